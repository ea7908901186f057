# shellcheck shell=bash disable=SC2154 # $lab, $work and $key are build.sh's
# The nested host's disk: its packages, the modules, and what makes it a lab.

# Work for people, for the network or for a long life; and what waits for hardware that is not there.
LAB_MASKED=(apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service
  fstrim.timer logrotate.timer man-db.timer getty@tty1.service systemd-timesyncd.service systemd-pstore.service
  systemd-hwdb-update.service systemd-binfmt.service systemd-update-utmp.service libvirt-guests.service
  systemd-random-seed.service ssh.service nftables.service)

# lab_disk ROOT-TAR MODULES OUT   OUT/root.ext4 and OUT/id, the runner's key
lab_disk() {
  local tar=$1 modules=$2 out=$3 unit
  local dir=$work/root
  mkdir "$dir"
  tar -C "$dir" -xf "$tar"
  mkdir -p "$dir/lib/modules" "$dir/lab/run" "$dir/etc/dropbear"
  cp -a "$modules"/lib/modules/* "$dir/lib/modules/"
  install -m 0755 "$lab/host/net" "$dir/lab/net"
  install -m 0644 "$lab"/host/*.service "$dir/etc/systemd/system/"
  install -m 0644 "$lab/host/modules.conf" "$dir/etc/modules-load.d/lab.conf"

  # For the loopback address of whoever builds this, and for nothing else.
  ssh-keygen -q -t ed25519 -N '' -C lab -f "$out/id"
  install -D -m 0600 "$out/id.pub" "$dir/root/.ssh/authorized_keys"
  chmod 0700 "$dir/root/.ssh"
  rm -f "$dir"/etc/dropbear/*_key
  chroot "$dir" dropbearkey -t ed25519 -f /etc/dropbear/dropbear_ed25519_host_key >/dev/null 2>&1

  echo lab >"$dir/etc/hostname"
  printf '127.0.0.1 localhost lab\n' >"$dir/etc/hosts"
  # What differs from run to run comes on a disk of its own.
  printf '/dev/vdb /lab/run ext4 ro,nofail,x-systemd.device-timeout=60 0 0\n' >"$dir/etc/fstab"
  # Of the machine that built it; nothing in here resolves names.
  : >"$dir/etc/resolv.conf"
  # One that exists is kept over a restart, as on a real host.
  echo 6c61620000000000000000000000cafe >"$dir/etc/machine-id"
  mkdir -p "$dir/etc/systemd/journald.conf.d"
  printf '[Journal]\nStorage=volatile\nRuntimeMaxUse=32M\n' >"$dir/etc/systemd/journald.conf.d/lab.conf"
  # libvirtd would go after two idle minutes and look for its capabilities again.
  echo 'LIBVIRTD_ARGS=' >"$dir/etc/default/libvirtd"
  # It asks every emulator there is what it can do, which takes each a while here; nobody needs this one.
  rm -f "$dir/usr/bin/qemu-system-i386"
  for unit in "${LAB_MASKED[@]}"; do ln -sf /dev/null "$dir/etc/systemd/system/$unit"; done
  chroot "$dir" systemctl -q enable lab-net.service dropbear.service
  chroot "$dir" systemctl -q set-default multi-user.target

  # Room enough for the doctor. A new file is all zeros, so there is nothing for L1's kernel to clear later.
  truncate -s 32G "$out/root.ext4"
  mke2fs -q -t ext4 -O ^metadata_csum -i 65536 \
    -E lazy_itable_init=1,lazy_journal_init=1,assume_storage_prezeroed=1,root_owner=0:0 -d "$dir" "$out/root.ext4"
  rm -rf "$dir"
}
