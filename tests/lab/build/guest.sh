# shellcheck shell=bash disable=SC2154 # $lab, $work and $key are build.sh's
# The image `lab`: the userland of the image `tiny` under the generic kernel, with a job more: it drives the cards that
# it finds and says on its serial console what came of it.

# Beside those that tiny loads itself.
LAB_GUEST_MODULES=(snd-hda-intel snd-hda-codec-generic)
# Every letter on the serial line leaves the guest, so its kernel says nothing. Self-tests, audit and AppArmor cost
# seconds and nothing here uses them.
LAB_GUEST_CMDLINE='console=ttyS0 quiet loglevel=3 mitigations=off cryptomgr.notests nokaslr tsc=reliable no_timer_check
  apparmor=0 audit=0 random.trust_cpu=on panic=10'

# lab_guest RELEASE TREE TINY OUT   an image that `gvm image import` takes
lab_guest() {
  local release=$1 tree=$2 tiny=$3 out=$4 list module
  local dir=$work/guest
  mkdir -p "$dir/lib/gvm" "$out"
  for list in early late; do
    # By the names in tiny's own lists, whose files are of the other kernel.
    zstd -dcq "$tiny/initrd.img" | (cd "$work" && cpio -i --quiet --to-stdout "lib/gvm/modules.$list" "./lib/gvm/modules.$list") |
      sed 's/\.ko.*//' >"$work/modules.$list"
    xargs -a "$work/modules.$list" bash -c "$(declare -f _needs); _needs \"\$@\"" _ "$tree" "$release" >"$work/paths.$list"
  done
  _needs "$tree" "$release" "${LAB_GUEST_MODULES[@]}" >"$work/paths.lab"
  for list in early late lab; do
    : >"$dir/lib/gvm/modules.$list"
    while read -r module; do
      [ ! -e "$dir/lib/gvm/$(basename "$module" .xz)" ] || continue
      case $module in
        *.xz) xz -dc "$module" >"$dir/lib/gvm/$(basename "$module" .xz)" ;;
        *) cp "$module" "$dir/lib/gvm/" ;;
      esac
      basename "$module" .xz >>"$dir/lib/gvm/modules.$list"
    done <"$work/paths.$list"
  done
  cp -R "$lab/guest/." "$dir/"
  chmod 0755 "$dir"/etc/gvm/*
  # A later archive's files take the place of an earlier one's.
  {
    cat "$tiny/initrd.img"
    (cd "$dir" && find . | cpio -o -H newc --quiet -R 0:0) | zstd -q -3
  } >"$out/initrd.img"
  cp "$tree/boot/vmlinuz-$release" "$out/vmlinuz"
  cat >"$out/image.toml" <<TOML
name = "lab"
version = "$key"
os = "tiny"
arch = "x86_64"
user = "gvm"
min_disk_mib = 16

[kernel]
file = "vmlinuz"
sha256 = "$(sha256sum "$out/vmlinuz" | cut -d' ' -f1)"
initrd = "initrd.img"
initrd_sha256 = "$(sha256sum "$out/initrd.img" | cut -d' ' -f1)"
cmdline = "$(echo $LAB_GUEST_CMDLINE)"
TOML
}
