#!/usr/bin/env bash
# The scripts' own parts without installing anything: package lists, the backports entry derived from various sources,
# how test.sh counts.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "$0")")")
# shellcheck source-path=SCRIPTDIR source=lib/log.sh
. "$root/scripts/lib/log.sh"
# shellcheck source-path=SCRIPTDIR source=lib/check.sh
. "$root/scripts/lib/check.sh"
# shellcheck source-path=SCRIPTDIR source=lib/setup.sh
. "$root/scripts/lib/setup.sh"
# shellcheck source-path=SCRIPTDIR source=lib/count.sh
. "$root/scripts/lib/count.sh"

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

# counts WANT EXIT   of what stdin says
counts() {
  cat >"$work/log"
  count "$work/log" "$2"
  same "$1" "$passed $failed $skipped"
}

nextest() {
  counts "10 0 1" 0 <<'END'
SKIPPED e2e::kill::one: needs root
  stdout ---
    SKIPPED e2e::kill::one: needs root
     Summary [   2.1s] 11 tests run: 11 passed (1 slow), 8 skipped
END
}

nextest_failing() {
  counts "289 6 0" 100 <<'END'
     Summary [  60.1s] 295 tests run: 289 passed (3 slow), 4 failed, 2 timed out, 8 skipped
END
}

cargo_test() {
  counts "15 1 3" 101 <<'END'
     Running unittests src/lib.rs (target/debug/deps/gvm-0)
skipped: mke2fs is not installed
test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s
     Running tests/it/main.rs (target/debug/deps/it-0)
---- own_process stdout ----
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; finished in 0.1s
SKIPPED a::b: no libvirt
test result: FAILED. 5 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s
   Doc-tests gvm
test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s
END
}

script() { counts "3 0 2" 0 <<<$'skip  a: b\n3 passed, 0 failed, 2 skipped'; }
script_that_dies() { counts "3 1 0" 1 <<<"3 passed, 0 failed, 0 skipped"; }
command_alone() { counts "1 0 0" 0 <<<"anything" && counts "0 1 0" 2 <<<"anything"; }
left_out() { counts "0 0 1" 0 <<<"SKIPPED: shellcheck is not installed"; }

what_failed() {
  cat >"$work/log" <<'END'
test a::fails ... FAILED
test b::works ... ok
---- a::fails stdout ----
PRIVATE HOST of a::fails: 9.5 s
PRIVATE HOST of b::works: 12.0 s
thread 'a::fails' (12) panicked at tests/it/a.rs:3:5:
assertion failed: 1 == 2
note: run with RUST_BACKTRACE=1
END
  same "test a::fails ... FAILED|thread 'a::fails' (12) panicked at tests/it/a.rs:3:5:|assertion failed: 1 == 2|note: run with RUST_BACKTRACE=1|" \
    "$(failures "$work/log" | tr '\n' '|')" &&
    same "12.0 s b::works|9.5 s a::fails|" "$(slowest "$work/log" | tr '\n' '|')"
}

check "counts cargo nextest" nextest
check "counts a failing cargo nextest" nextest_failing
check "tells what failed, and what took longest" what_failed
check "counts cargo test, tests that start themselves again, and what they left out" cargo_test
check "counts a script by its last line" script
check "counts a script that ends badly after its last line" script_that_dies
check "counts a command as one" command_alone
check "counts a suite that is left out" left_out
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
