# shellcheck shell=bash
# The nested host's packages, unpacked and configured: one tar, kept until the list or a version changes.

# The entries of this host's own apt that are the distribution's; its mirror and its keys come with them.
_root_sources() {
  # shellcheck disable=SC2016 # variables of apt
  apt-get indextargets --format '$(ORIGIN) $(RELEASE) $(SOURCESENTRY)' 'Created-By: Packages' |
    sed -nE "s/^Debian(:? Backports)? $1(-updates|-security|-backports)? (.*):[0-9]+\$/\3/p" | sort -u
}

# lab_root FILE   makes the tar
lab_root() {
  local tar=$1 codename
  local -a sources
  codename=$(lab_codename)
  mapfile -t sources < <(_root_sources "$codename")
  [ ${#sources[@]} -gt 0 ] || die "apt names no source of $codename on this machine" "apt-get update"
  # The pin is the role's: only the hypervisor comes from backports. On a release without them it matches nothing.
  # shellcheck disable=SC2016 # the hook expands $1
  mmdebstrap --quiet --variant=minbase --include="$(lab_packages | paste -sd,)" \
    --aptopt='APT::Install-Recommends "false"' --dpkgopt='force-unsafe-io' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --setup-hook='printf "Package: src:qemu src:libvirt src:seabios\nPin: release n='"$codename"'-backports\nPin-Priority: 500\n" >"$1/etc/apt/preferences.d/lab"' \
    --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin' \
    "$codename" "$tar.new" "${sources[@]}" --format=tar >&2 || die "the packages of the nested host could not be installed"
  mv "$tar.new" "$tar"
}
