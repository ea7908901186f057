#!/usr/bin/env bash
# Builds the nested host from the distribution's packages. See README.md.
#   build.sh [--print-dir]
# The last line on stdout is its folder; everything else goes to stderr. What is there already is not built again.
set -euo pipefail
export LC_ALL=C
umask 022
self=$(readlink -f "$0")
root=$(dirname "$(dirname "$(dirname "$self")")")
# shellcheck source-path=SCRIPTDIR source=../../scripts/lib/log.sh
. "$root/scripts/lib/log.sh"
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$root/tests/lab/lib.sh"
for part in root kernel host guest; do
  # shellcheck source=/dev/null
  . "$lab/build/$part.sh"
done

missing=()
for tool in "${LAB_TOOLS[@]}"; do command -v "$tool" >/dev/null || missing+=("$tool"); done
[ ${#missing[@]} = 0 ] || die "not installed: ${missing[*]}" "scripts/setup.sh --test"
lab_lists
release=$(lab_kernel)
root_key=$(lab_root_key)
key=$(lab_key "$release" "$root_key")
final=$lab_cache/lab-$key
if [ "${1:-}" = --print-dir ]; then
  echo "$final"
  exit
fi
[ "$(id -u)" = 0 ] || die "the nested host's files belong to root" "sudo $0"

mkdir -p "$lab_cache"
exec 9>"$lab_cache/.lock"
flock -n 9 || {
  note "another build of the lab runs; waiting for it"
  flock 9
}
if [ -e "$final/ready" ]; then
  echo "$final"
  exit
fi

work=$(mktemp -d "$lab_cache/.work.XXXXXX")
# Ten thousand files: nobody waits for that. What a killed one leaves, the next build removes.
trap 'rm -rf --one-file-system "$work" </dev/null >/dev/null 2>&1 9>&- &' EXIT
# A build that died; and what nobody has used for two weeks.
find "$lab_cache" -maxdepth 1 -name '.work.*' ! -path "$work" -exec rm -rf {} +
find "$lab_cache" -maxdepth 1 \( -name 'lab-*' -o -name 'root-*' \) -mtime +14 -exec rm -rf {} +
root_tar=$lab_cache/root-$root_key.tar
out=$work/out
mkdir "$out"

# Not "stage TEXT COMMAND": a function that runs as a condition goes on after its errors.
if [ ! -e "$root_tar" ]; then
  stage "installing the nested host's packages"
  lab_root "$root_tar"
fi
stage "fetching the kernel $release"
lab_fetch_kernel "$release" "$work/kernel"
stage "unpacking it"
lab_vmlinux "$work/kernel/boot/vmlinuz-$release" >"$out/vmlinux"
[ "$(head -c 4 "$out/vmlinux" | tail -c 3)" = ELF ] || die "no kernel came out of vmlinuz-$release"
stage "building the lab's modules"
lab_build_modules "$release" "$work/kernel" "$work/ours"
stage "choosing the distribution's"
lab_modules "$release" "$work/kernel" "$work/ours" "$work/modules"
lab_initrd "$release" "$work/kernel" "$work/modules" "$out/initrd"
stage "the guest"
tiny=$("$root/vm-images/build.sh" tiny | tail -n 1)
lab_guest "$release" "$work/kernel" "$tiny" "$out/image"
stage "the nested host's disk"
lab_disk "$root_tar" "$work/modules" "$out"
stage_end
echo "$release" >"$out/ready"
rm -rf "$final"
mv "$out" "$final"
echo "$final"
