#!/usr/bin/env bash
# The host set-up without installing anything: package lists, and the backports entry derived from various sources.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "$0")")")
# shellcheck source-path=SCRIPTDIR source=lib/log.sh
. "$root/scripts/lib/log.sh"
# shellcheck source-path=SCRIPTDIR source=lib/check.sh
. "$root/scripts/lib/check.sh"
# shellcheck source-path=SCRIPTDIR source=lib/setup.sh
. "$root/scripts/lib/setup.sh"

work=$(mktemp -d "${TMPDIR:-/tmp}/gvm-setup.XXXXXX")
trap 'rm -rf "$work"' EXIT
etc=$work/etc/apt
parts=$etc/sources.list.d

# derive   backports.sh on an apt of our own; the sources are what a check has put there
derive() {
  APT_CONFIG=$work/apt.conf "$role_files/backports.sh" "${1:-bookworm}"
}
fresh() {
  rm -rf "$etc"
  mkdir -p "$parts" "$etc/preferences.d" "$work/var/lib/apt/lists/partial" "$work/var/lib/dpkg"
  : >"$work/var/lib/dpkg/status"
  echo "Dir \"$work\";" >"$work/apt.conf"
}

deb822() {
  fresh
  cat >"$parts/debian.sources" <<'END'
# a comment alone is no stanza

Types: deb
URIs: http://mirror.example/debian
Suites: bookworm
Components: main
Enabled: no

Types: deb deb-src
# in between
URIs: http://second.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abcd

Types: deb
URIs: http://second.example/debian-security
Suites: bookworm-security
Components: main
END
  derive && diff - "$parts/gvm-backports.sources" <<'END'
Types: deb
URIs: http://second.example/debian
Suites: bookworm-backports
Components: main contrib
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abcd
END
}

one_line() {
  fresh
  cat >"$etc/sources.list" <<'END'
# deb http://commented.example/debian bookworm main
deb-src http://mirror.example/debian bookworm main
deb [ arch=amd64 signed-by=/usr/share/keyrings/k.gpg ] http://mirror.example/debian bookworm main contrib # ours
deb http://mirror.example/debian-security bookworm-security main
END
  derive && diff - "$parts/gvm-backports.list" <<'END'
deb [ arch=amd64 signed-by=/usr/share/keyrings/k.gpg ] http://mirror.example/debian bookworm-backports main contrib
END
}

disabled_file() {
  fresh
  echo 'deb http://off.example/debian bookworm main' >"$parts/a.list.disabled"
  echo 'deb http://on.example/debian bookworm main' >"$parts/b.list"
  derive && grep -q on.example "$parts/gvm-backports.list"
}

second_time() { [ "$(derive)" = present ]; }
pins_only_the_hypervisor() { grep -qx 'Package: src:qemu src:libvirt src:seabios' "$etc/preferences.d/gvm-backports.pref"; }

nothing_to_derive_from() {
  fresh
  ! derive 2>"$work/err" && grep -q 'try: add the suite' "$work/err" && [ -z "$(find "$etc" -name 'gvm*')" ]
}

not_needed() {
  fresh
  [ "$(derive trixie)" = "not needed" ] && [ -z "$(ls "$parts")" ]
}

no_package_twice() { [ -z "$(packages runtime build test | sort | uniq -d)" ]; }
lists_are_clean() { ! packages runtime build test | grep -vE '^[a-z0-9][a-z0-9.+-]+( backports)?$'; }

# The best of a few: the machine may have other things to do.
quick_when_complete() {
  local begin _
  for _ in 1 2 3 4 5; do
    begin=${EPOCHREALTIME/[.,]/}
    "$root/scripts/setup.sh" --build --test --check
    [ $((${EPOCHREALTIME/[.,]/} - begin)) -ge 1000000 ] || return 0
  done
  return 1
}

check "no package is listed twice" no_package_twice
check "every line of the lists is a package" lists_are_clean
if command -v apt-get >/dev/null; then
  check "backports from one-line sources" one_line
  check "backports from a disabled file's neighbour" disabled_file
  check "backports from deb822 sources with a key inside" deb822
  check "the second time nothing changes" second_time
  check "the pin names the hypervisor only" pins_only_the_hypervisor
  check "nothing to derive from: says what to do, leaves nothing" nothing_to_derive_from
  check "Debian 13 needs none" not_needed
else
  skip "backports entries" "there is no apt here"
fi
if "$root/scripts/setup.sh" --build --test --check 2>/dev/null; then
  check "setup.sh takes less than a second when all is there" quick_when_complete
else
  skip "setup.sh takes less than a second when all is there" "not all is there"
fi
totals
