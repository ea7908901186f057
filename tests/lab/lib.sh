# shellcheck shell=bash
# Words of the lab: where things lie, and what this host's apt has to offer. Wants scripts/lib/log.sh and $root.

: "${root:?}"
lab=$root/tests/lab
# shellcheck disable=SC2034 # of whoever sources this
lab_cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/gvm/lab

# shellcheck disable=SC2034 # of whoever sources this
LAB_TOOLS=(mmdebstrap mke2fs cpio zstd xz depmod make gcc dpkg-deb qemu-system-x86_64 qemu-img ssh ssh-keygen socat strip)

# The release of this host is the release of the lab.
lab_codename() { (. /etc/os-release && echo "${VERSION_CODENAME:-}"); }

# apt's lists of this host; read once more where there are none.
lab_lists() {
  apt-cache show --no-all-versions linux-image-amd64 >/dev/null 2>&1 ||
    apt-get -qq update >&2 || die "apt has no package lists on this machine" "apt-get update"
}

# The generic flavour: the cloud one lacks the drivers of emulated cards. Of a release with two kernels the newer one,
# so that Debian 12 and 13 run the same lab. An ABI is not written down anywhere: Debian offers only its latest.
lab_kernel() {
  local meta
  for meta in linux-image-6.12-amd64 linux-image-amd64; do
    apt-cache depends "$meta" 2>/dev/null |
      awk '$1 == "Depends:" && $2 ~ /^linux-image-[0-9].*-amd64$/ { sub(/^linux-image-/, "", $2); print $2; found = 1; exit }
           END { exit !found }' && return
  done
  die "apt offers no generic kernel of $(lab_codename)" "apt-cache policy linux-image-amd64"
}

# lab_candidates PACKAGE...   the versions that apt would install
lab_candidates() { apt-cache policy "$@" | sed -n 's/^ *Candidate: //p'; }

# What a host runs on, by the same list that scripts/setup.sh and the role install, and what the lab wants beside it.
lab_packages() {
  sed -E 's/#.*//; s/[[:space:]].*//; /^$/d' "$root/ansible/roles/gvm_host/files/packages/runtime.txt"
  printf '%s\n' systemd-sysv udev dbus dropbear-bin pciutils procps jq
}

# A digest of what stdin says, short enough for a folder's name.
lab_digest() { sha256sum | cut -c1-12; }

# Files below a folder of this one, each with its digest.
lab_files() { (cd "$lab" && find "$@" -type f | sort | xargs sha256sum); }

# Of all of them at once: each look costs apt a second.
lab_root_key() {
  {
    lab_codename
    cat "$lab/build/root.sh"
    lab_packages
    lab_candidates libvirt-daemon-system qemu-system-x86 systemd ovmf dropbear-bin
  } | lab_digest
}

# lab_key KERNEL ROOT-KEY   one key for all that is in the finished folder
lab_key() {
  {
    echo "$2"
    lab_candidates "linux-image-$1"
    "$root/vm-images/build.sh" tiny --print-dir | sed 's,.*/,,'
    lab_files lib.sh build.sh build mod guest host
  } | lab_digest
}
