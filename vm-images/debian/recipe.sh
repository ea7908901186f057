# shellcheck shell=bash disable=SC2154
# debian: the release with systemd, cloud-init, openssh and the guest agent, on a UEFI disk. Sourced by build.sh.

DEBIAN_PACKAGES=(
    systemd-sysv udev dbus libpam-systemd systemd-resolved systemd-timesyncd
    linux-image-cloud-amd64 initramfs-tools zstd
    cloud-init cloud-guest-utils openssh-server openssh-sftp-server qemu-guest-agent
    sudo rsync ca-certificates curl iproute2 iputils-ping netbase procps less nano
    e2fsprogs fdisk kmod tzdata
)
# Timers that would wake up in the middle of a first boot, and services without a task in a VM.
DEBIAN_MASKED=(
    apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer e2scrub_reap.service
    systemd-pstore.service systemd-rfkill.socket systemd-rfkill.service systemd-binfmt.service
    systemd-network-generator.service proc-sys-fs-binfmt_misc.automount
    # The modules load by themselves when somebody opens their device.
    modprobe@configfs.service modprobe@dm_mod.service modprobe@drm.service modprobe@fuse.service modprobe@loop.service
    sys-kernel-config.mount sys-fs-fuse-connections.mount
)
DEBIAN_SIZE_MIB=3072
DEBIAN_ESP_MIB=64
# By kernel: software emulation is the usual reason to boot this way, and mitigations cost most there.
DEBIAN_CMDLINE='root=LABEL=root ro console=tty0 console=ttyS0 mitigations=off quiet systemd.show_status=yes'
DEBIAN_CMDLINE_GRUB='root=LABEL=root ro console=tty0 console=ttyS0 quiet systemd.show_status=yes'

recipe() {
    local work=$1 out=$2 key=$3
    local root=$work/root conf=$work/apt.conf raw=$work/disk.raw kernel

    apt_private "$work/apt"
    fetch_tree "$work/grub" grub-efi-amd64-bin grub-common

    # mmdebstrap reads no configuration of the host; how to reach the archive is carried over, and does not stay.
    apt-config dump | grep '^Acquire::' > "$conf" || true

    log "installing the system"
    mmdebstrap --quiet --mode=root --variant=minbase --format=directory \
        --aptopt="$conf" --aptopt='Acquire::Languages "none"' --aptopt='Apt::Install-Recommends "false"' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
        --include="$(IFS=,; printf '%s' "${DEBIAN_PACKAGES[*]}")" \
        --essential-hook="mkdir -p \"\$1\"/etc/initramfs-tools/conf.d" \
        --essential-hook="cp '$here/debian/rootfs/etc/initramfs-tools/conf.d/gvm' \"\$1\"/etc/initramfs-tools/conf.d/" \
        --customize-hook="cp -R '$here/debian/rootfs/.' \"\$1\"/" \
        --customize-hook="chroot \"\$1\" update-initramfs -u" \
        "$(os_codename)" "$root" "$work/apt/sources.d/host.sources"

    drop_perl "$root" "$work"
    configure_root "$root" "$key"

    kernel=$(cd "$root/boot" && printf '%s\n' vmlinuz-* | sort -V | tail -n 1)
    install -m 0644 "$root/boot/$kernel" "$out/vmlinuz"
    install -m 0644 "$root/boot/initrd.img-${kernel#vmlinuz-}" "$out/initrd.img"

    make_disk "$root" "$work/grub" "$raw"
    log "compressing"
    qemu-img convert -q -f raw -O qcow2 -c -o compression_type=zstd "$raw" "$out/disk.qcow2"

    cat > "$out/image.toml" <<TOML
name = "debian"
version = "$key"
os = "debian$(os_version)"
arch = "x86_64"
user = "gvm"
min_disk_mib = $DEBIAN_SIZE_MIB

[kernel]
file = "vmlinuz"
sha256 = "$(sha256_of "$out/vmlinuz")"
initrd = "initrd.img"
initrd_sha256 = "$(sha256_of "$out/initrd.img")"
cmdline = "$DEBIAN_CMDLINE"

[disk]
file = "disk.qcow2"
format = "qcow2"
sha256 = "$(sha256_of "$out/disk.qcow2")"
virtual_size_mib = $DEBIAN_SIZE_MIB
root_partition = 2
TOML
}

# drop_perl ROOT WORK: on bookworm usrmerge has done its work and would keep all of perl installed.
# Everything happens inside ROOT, and dpkg refuses to take away what something else still needs.
drop_perl() {
    local root=$1 work=$2 deb perl
    chroot "$root" dpkg-query -s usrmerge > /dev/null 2>&1 || return 0
    (cd "$work" && apt-get "${APT_OPTS[@]}" download usr-is-merged) || die "apt cannot fetch: usr-is-merged"
    deb=$(find "$work" -maxdepth 1 -name 'usr-is-merged_*.deb')
    mv "$deb" "$root/usr-is-merged.deb"
    chroot "$root" dpkg -i /usr-is-merged.deb
    rm "$root/usr-is-merged.deb"
    mapfile -t perl < <(chroot "$root" dpkg-query -W -f '${db:Status-Abbrev}${Package}\n' perl 'perl-modules-*' 'libperl5*' \
        libfile-find-rule-perl libnumber-compare-perl libtext-glob-perl 'libgdbm*' 2> /dev/null | sed -n 's/^ii *//p')
    chroot "$root" dpkg --purge usrmerge
    chroot "$root" dpkg --purge "${perl[@]}" || log "perl stays: something needs it"
}

configure_root() {
    local root=$1 key=$2 unit

    printf 'LABEL=root / ext4 errors=remount-ro 0 1\n' > "$root/etc/fstab"
    printf 'LANG=C.UTF-8\n' > "$root/etc/default/locale"
    printf 'gvm image debian %s\n' "$key" > "$root/etc/gvm-image"

    # Every member comes through the gateway, that is from one address.
    {
        printf 'UseDNS no\nMaxStartups 200:30:500\nMaxSessions 200\nPerSourceMaxStartups none\n'
        # Known to OpenSSH since 9.8, which is the first to punish an address.
        if dpkg --compare-versions "$(chroot "$root" dpkg-query -W -f '${Version}' openssh-server)" ge 1:9.8; then
            printf 'PerSourcePenalties no\n'
        fi
    } > "$root/etc/ssh/sshd_config.d/10-gvm.conf"
    # What cloud-init would write for ssh_pwauth: false, so that it does not restart sshd in the middle of a first boot.
    printf 'PasswordAuthentication no\n' > "$root/etc/ssh/sshd_config.d/50-cloud-init.conf"
    chmod 0600 "$root/etc/ssh/sshd_config.d/50-cloud-init.conf"
    rm -f "$root"/etc/ssh/ssh_host_*

    chroot "$root" systemctl -q enable systemd-networkd.service systemd-resolved.service
    for unit in "${DEBIAN_MASKED[@]}"; do ln -sf /dev/null "$root/etc/systemd/system/$unit"; done

    mkdir -p "$root/boot/grub"
    cat > "$root/boot/grub/grub.cfg" <<GRUB
# The links follow the newest kernel, so nothing has to be rewritten when one is installed.
set timeout=0
linux /vmlinuz $DEBIAN_CMDLINE_GRUB
initrd /initrd.img
boot
GRUB

    # What has to be each machine's own, and what only served the build.
    : > "$root/etc/machine-id"
    rm -f "$root/var/lib/dbus/machine-id" "$root/etc/hostname" "$root/var/lib/systemd/random-seed"
    rm -f "$root/etc/apt/apt.conf.d/99mmdebstrap" "$root/etc/dpkg/dpkg.cfg.d/99mmdebstrap"
    rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin "$root"/var/log/*.log "$root"/var/log/apt
    rm -rf "$root"/tmp/* "$root"/run/* "$root"/var/cache/debconf/*-old "$root"/var/lib/dpkg/*-old
    ln -sf ../run/systemd/resolve/stub-resolv.conf "$root/etc/resolv.conf"
    mv "$root"/etc/apt/sources.list.d/*host.sources "$root/etc/apt/sources.list.d/debian.sources"
    # A source that carries a password, or a path of this host, is nothing to hand out.
    if grep -qE '^URIs:.*(@|file:|copy:|cdrom:)' "$root"/etc/apt/sources.list.d/*; then
        rm -f "$root"/etc/apt/sources.list.d/*
        printf '# The archive this image was built from is private; name one here.\n' > "$root/etc/apt/sources.list"
    fi
}

# make_disk ROOT GRUB RAW: ESP and root file system side by side in one raw file, without loop devices.
make_disk() {
    local root=$1 grub=$2 raw=$3
    local esp=$work/esp.img fs=$work/root.img
    local root_start=$((1 + DEBIAN_ESP_MIB)) root_mib=$((DEBIAN_SIZE_MIB - DEBIAN_ESP_MIB - 2))

    log "making the boot partition"
    cat > "$work/early.cfg" <<'GRUB'
search --no-floppy --label root --set=root
set prefix=($root)/boot/grub
configfile ($root)/boot/grub/grub.cfg
GRUB
    tree_run "$grub" usr/bin/grub-mkimage -O x86_64-efi -d "$grub/usr/lib/grub/x86_64-efi" -c "$work/early.cfg" \
        -p /boot/grub -o "$work/bootx64.efi" part_gpt ext2 fat search search_label configfile normal linux boot echo test
    truncate -s "${DEBIAN_ESP_MIB}M" "$esp"
    mformat -i "$esp" -F -v ESP ::
    mmd -i "$esp" ::/EFI ::/EFI/BOOT
    mcopy -i "$esp" "$work/bootx64.efi" ::/EFI/BOOT/BOOTX64.EFI

    log "making the root file system"
    truncate -s "${root_mib}M" "$fs"
    # GRUB of this release may not know the two newest features; tables written now need no thread in every first boot.
    mke2fs -q -t ext4 -L root -m 1 -O '^metadata_csum_seed,^orphan_file' \
        -E lazy_itable_init=0,lazy_journal_init=0 -d "$root" "$fs"

    truncate -s "${DEBIAN_SIZE_MIB}M" "$raw"
    # Root comes last, so that it can grow.
    sfdisk -q "$raw" <<SFDISK
label: gpt
start=1MiB, size=${DEBIAN_ESP_MIB}MiB, type=uefi, name=esp
start=${root_start}MiB, size=${root_mib}MiB, type=linux, name=root
SFDISK
    dd if="$esp" of="$raw" bs=1M seek=1 conv=notrunc,sparse status=none
    dd if="$fs" of="$raw" bs=1M seek="$root_start" conv=notrunc,sparse status=none
}
