# shellcheck shell=bash disable=SC2154
# tiny: the release's cloud kernel and an initramfs that is the whole system. Sourced by build.sh.

# Loaded at boot in this order before anything else; what they depend on goes before them.
TINY_MODULES=(virtio_pci virtio_blk virtio_net isofs button evdev)
# Loaded after the ready line, so that nobody waits for them.
TINY_LATE_MODULES=(virtio-rng virtio_balloon virtio_console)

TINY_PACKAGES=(busybox-static dropbear-bin openssh-sftp-server openssh-client rsync ucspi-tcp)

# earlyprintk puts the kernel's first line on the wire at once (the accelerator probe waits for it); quiet keeps the
# boot sector's chatter out, loglevel=6 lets the "Linux version" line through and little else. The self-tests of the
# kernel's ciphers cost a second under emulation and nothing here uses them.
TINY_CMDLINE='console=ttyS0 earlyprintk=ttyS0,115200 quiet loglevel=6 mitigations=off cryptomgr.notests panic=10'

# add_modules TREE VERSION LIST MODULE...: copies the modules and appends their load order to LIST.
add_modules() {
    local tree=$1 version=$2 list=$3 word path m
    shift 3
    for m in "$@"; do
        # modprobe prints "insmod PATH" lines, dependencies first; "builtin NAME" where there is nothing to load.
        modprobe --show-depends -d "$tree" -S "$version" "$m" | while read -r word path; do
            [ "$word" = insmod ] || continue
            path=${path%% *}
            grep -qxF "${path##*/}" "$root/lib/gvm/modules.early" "$list" 2>/dev/null && continue
            cp "$path" "$root/lib/gvm/${path##*/}"
            printf '%s\n' "${path##*/}" >> "$list"
        done
    done
}

# add_program SOURCE TARGET: a program of the package tree and the libraries it needs.
add_program() {
    local lib
    install -m 0755 "$tree/$1" "$root/$2"
    "$TREE_LD" --library-path "$TREE_LIBS" --list "$tree/$1" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' |
        while read -r lib; do
            [ -e "$root/lib/x86_64-linux-gnu/${lib##*/}" ] || install -m 0755 "$lib" "$root/lib/x86_64-linux-gnu/"
        done
}

recipe() {
    local work=$1 out=$2 key=$3
    local tree=$work/tree ktree=$work/kernel root=$work/root kpkg version applet f

    apt_private "$work/apt"
    kpkg=$(kernel_package)
    [ -n "$kpkg" ] || die "the release has no cloud kernel"
    fetch_alone "$ktree" "$kpkg"
    fetch_tree "$tree" "${TINY_PACKAGES[@]}"
    version=${kpkg#linux-image-}

    # One directory for programs and one for libraries; the usual names all lead there.
    mkdir -p "$root"/{bin,dev,etc,home,lib/gvm,lib/x86_64-linux-gnu,lib/openssh,lib64,mnt,proc,root,run,sys,tmp,usr,var}
    ln -s bin "$root/sbin"
    ln -s ../bin "$root/usr/bin"
    ln -s ../bin "$root/usr/sbin"
    ln -s ../lib "$root/usr/lib"
    ln -s /run "$root/var/run"
    chmod 0700 "$root/root"
    chmod 1777 "$root/tmp"

    # trixie ships compressed modules; the early ones are decompressed here, not by a slow guest.
    find "$ktree" -name '*.ko.xz' -exec xz -d {} +
    local moddir=$ktree/usr/lib/modules
    if [ -d "$ktree/lib/modules" ]; then moddir=$ktree/lib/modules; else ln -s usr/lib "$ktree/lib"; fi
    [ -d "$moddir/$version" ] || die "no modules for $version"
    depmod -b "$ktree" "$version"
    add_modules "$ktree" "$version" "$root/lib/gvm/modules.early" "${TINY_MODULES[@]}"
    add_modules "$ktree" "$version" "$root/lib/gvm/modules.late" "${TINY_LATE_MODULES[@]}"

    f=$tree/usr/bin/busybox
    [ -e "$f" ] || f=$tree/bin/busybox
    install -m 0755 "$f" "$root/bin/busybox"
    # su and sulogin stay reachable for root only: without the setuid bit they give nobody anything.
    "$f" --list | while read -r applet; do
        case $applet in busybox|dpkg|dpkg-deb|rpm|rpm2cpio) continue ;; esac
        ln -s busybox "$root/bin/$applet"
    done
    ln -s bin/busybox "$root/init"

    tree_ld "$tree"
    install -m 0755 "$TREE_LD" "$root/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
    ln -s ../lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 "$root/lib64/ld-linux-x86-64.so.2"
    add_program usr/sbin/dropbear bin/dropbear
    add_program usr/bin/dropbearconvert bin/dropbearconvert
    add_program usr/lib/openssh/sftp-server lib/openssh/sftp-server
    add_program usr/bin/scp bin/scp
    add_program usr/bin/rsync bin/rsync
    add_program usr/bin/tcpserver bin/tcpserver
    ln -s openssh/sftp-server "$root/lib/sftp-server"

    cp -R "$here/tiny/rootfs/." "$root/"
    chmod 0755 "$root"/etc/gvm/*
    printf 'PRETTY_NAME="gvm tiny (%s %s)"\nID=gvm-tiny\nVERSION_ID=%s\n' "$(os_id)" "$(os_version)" "$key" > "$root/etc/os-release"

    # Same packages and same recipe give the same bytes.
    find "$root" -exec touch -h -d @1700000000 {} +
    (cd "$root" && find . -print0 | sort -z | cpio --null --create --format=newc --owner=0:0 --reproducible --quiet) |
        zstd -19 -q > "$out/initrd.img"
    install -m 0644 "$ktree/boot/vmlinuz-$version" "$out/vmlinuz"

    local size
    size=$(($(stat -c %s "$out/vmlinuz") + $(stat -c %s "$out/initrd.img")))
    [ "$size" -lt 20000000 ] || die "tiny grew to $size bytes; 20 MB is the limit"

    cat > "$out/image.toml" <<TOML
name = "tiny"
version = "$key"
os = "tiny"
arch = "x86_64"
user = "gvm"
min_disk_mib = 16

[kernel]
file = "vmlinuz"
sha256 = "$(sha256_of "$out/vmlinuz")"
initrd = "initrd.img"
initrd_sha256 = "$(sha256_of "$out/initrd.img")"
cmdline = "$TINY_CMDLINE"
TOML
}
