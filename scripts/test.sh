#!/usr/bin/env bash
# Installs what the tests need, then runs all of them, the cheap ones first. A failure does not end the run.
#
#   test.sh                 everything but the long variants
#   test.sh --all           and the long variants
#   test.sh --only SUITE    that suite alone; may be repeated
#   test.sh --list          what there is
#
# Its last line is the sum of all suites: N passed, N failed, N skipped. What was left out is told above it, with the
# reason. What a suite wrote is under target/test-logs.
# shellcheck disable=SC2317 # suites are called by their name
set -euo pipefail
self=$(readlink -f "$0")
root=$(dirname "$(dirname "$self")")
# shellcheck source-path=SCRIPTDIR source=lib/log.sh
. "$root/scripts/lib/log.sh"
# shellcheck source-path=SCRIPTDIR source=lib/setup.sh
. "$root/scripts/lib/setup.sh"
# shellcheck source-path=SCRIPTDIR source=lib/count.sh
. "$root/scripts/lib/count.sh"

# NAME, longest time in seconds, what it is. In the order in which they run.
suites='
fmt           60   the format of the Rust sources
shell         60   the scripts, by shellcheck
deny          120  licences and bans of dependencies, by cargo-deny
clippy        1800 the Rust sources, by clippy
rust          2700 unit and integration tests
client        1200 gvm without the cargo feature libvirt: builds, needs no libvirt, and reads cards (dry run)
setup         120  scripts/test-setup.sh
private-host  300  scripts/test-private-host.sh
tiny          600  the image tiny: built and booted
debian        1800 the image debian: built, and lived in by a member; tried on its own with --all
quickstart    900  scripts/quickstart.sh --check
package       1800 scripts/test-package.sh: the Debian packages, from dev builds
systemd       900  scripts/test-systemd.sh
fuzz          300  scripts/fuzz-api.sh --check: made-up requests, for half a minute
libvirt       2700 tests over real libvirtd, QEMU and guests, in private hosts
ansible       1200 scripts/test-ansible.sh
lab           1500 scripts/test-lab.sh: cards on a nested host with an IOMMU
'
# Those that a run has no time for, unless with --all or by their name.
only_with_all=' package fuzz '
# Everything is built with the same features, so that it is built once.
export GVM_FEATURES=hold
target=${CARGO_TARGET_DIR:-$root/target}
logs=$target/test-logs
threads=${GVM_E2E_THREADS:-2}

usage() {
  sed -n '2,/^# shellcheck/{/^# shell/d; /^#/s/^# \{0,1\}//p}' "$self" >&2
  exit 2
}

all='' only=' ' suite=''
while [ $# -gt 0 ]; do
  case $1 in
    --all) all=yes ;;
    --only)
      grep -q "^${2:-} " <<<"$suites" || die "there is no suite called '${2:-}'" "$0 --list"
      only+="$2 "
      shift
      ;;
    __suite)
      suite=$2
      shift
      ;;
    --list)
      awk 'NF { name = $1; $1 = $2 = ""; printf "%-13s %s\n", name, $0 }' <<<"$suites"
      exit
      ;;
    *) usage ;;
  esac
  shift
done

# Namespaces and images need root; what cargo does is done as the one who called sudo.
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || die "most suites need root, and there is no sudo here" "run this as root: $self"
  [ -z "$all" ] || set -- --all
  for name in $only; do set -- "$@" --only "$name"; done
  exec sudo --preserve-env=CARGO_TARGET_DIR,CARGO_HOME,RUSTUP_HOME,GVM_E2E_THREADS -- "$self" "$@"
fi

in_repo() { (cd "$root" && as_user "$@"); }

# --- suites -----------------------------------------------------------------------------------------------------------
# Each ends with a line "N passed, N failed, N skipped", or its exit code is its one test.

suite_fmt() { in_repo cargo fmt --all --check; }

suite_shell() {
  command -v shellcheck >/dev/null || { skipped "shellcheck is not installed"; return; }
  cd "$root"
  local -a files
  mapfile -t files < <(find .ci scripts ansible vm-images tests/lab -type f | while read -r file; do
    if [[ $(head -c 64 "$file" | head -n 1) =~ (^#!.*(bash|/sh)|shellcheck\ shell=) ]]; then echo "$file"; fi
  done)
  # Below a warning it is taste.
  shellcheck --external-sources --severity=warning "${files[@]}"
}

suite_deny() {
  in_repo cargo deny --version >/dev/null 2>&1 || { skipped "cargo-deny is not installed"; return; }
  in_repo cargo deny check bans licenses sources
}

suite_clippy() { in_repo cargo clippy --quiet --all-targets --features "$GVM_FEATURES" -- -D warnings; }

# Modules of tests/it that want a libvirtd have a suite of their own.
libvirt_modules() {
  grep -rlE '(in_private_host|need_libvirt)!' "$root/tests/it" | sed -E "s,^$root/tests/it/,,; s,[/.].*,," |
    grep -v '^support$' | sort -u
}

suite_rust() {
  local -a apart=()
  local module expression='all()'
  for module in $(libvirt_modules); do
    apart+=(--skip "$module::")
    expression+=" - (binary(it) & test(/^$module::/))"
  done
  [ -z "$all" ] || export GVM_LONG=1 PROPTEST_CASES=2048
  if in_repo cargo nextest --version >/dev/null 2>&1; then
    in_repo cargo nextest run --features "$GVM_FEATURES" --no-fail-fast --color never --hide-progress-bar \
      --status-level slow --final-status-level fail --success-output final -E "$expression"
  else
    in_repo cargo test --features "$GVM_FEATURES" --no-fail-fast -- --show-output "${apart[@]}"
  fi
}

suite_client() {
  local needed code=0
  in_repo cargo build --bin gvm --no-default-features
  "$target/debug/gvm" --version
  needed=$(readelf -d "$target/debug/gvm" | grep NEEDED)
  echo "$needed"
  ! grep -qi libvirt <<<"$needed" || code=1
  # It says so itself where the manager is asked for.
  ! "$target/debug/gvm" serve 2>"$logs/client.serve" || code=1
  grep -q 'built without the manager' "$logs/client.serve" || code=1
  GVM_BIN=$target/debug/gvm "$root/scripts/check-gpu.sh" --check || code=1
  # The others want theirs back; it is only put in its place again.
  in_repo cargo build --bin gvm --test it --features "$GVM_FEATURES"
  return "$code"
}

suite_setup() { "$root/scripts/test-setup.sh"; }
suite_private-host() { "$root/scripts/test-private-host.sh"; }

suite_tiny() {
  "$root/vm-images/build.sh" tiny
  # This limit is that of a machine that does nothing else.
  POWERDOWN_LIMIT=15 "$root/vm-images/test.sh" tiny
}

suite_debian() {
  local program
  "$root/vm-images/build.sh" debian
  [ -z "$all" ] || "$root/vm-images/test.sh" debian
  program=$(test_program)
  # Alone: under emulation it takes both cores.
  end_to_end "$program" e2e::debian
}

suite_quickstart() { "$root/scripts/quickstart.sh" --check; }

suite_package() { "$root/scripts/test-package.sh"; }

suite_systemd() {
  # It finds the program that the others use.
  in_repo cargo build --quiet --bin gvm --test it --features "$GVM_FEATURES"
  "$root/scripts/test-systemd.sh" "$target/debug/gvm"
}

suite_fuzz() { "$root/scripts/fuzz-api.sh" --check; }

# The path of the integration tests' program, built.
test_program() {
  # The program that it is about is built with it, and told before or after it.
  in_repo cargo test --quiet --features "$GVM_FEATURES" --test it --no-run --message-format json |
    grep -F '"kind":["test"]' | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1
}

# end_to_end PROGRAM ARG...   its tests over a real libvirtd
end_to_end() {
  local program=$1
  shift
  [ -z "$all" ] || export GVM_LONG=1
  # A file of snapshots is found from there.
  export GVM_E2E=libvirt INSTA_WORKSPACE_ROOT=$root
  cd "$root"
  "$program" --show-output "$@"
}

suite_libvirt() {
  local program
  local -a filters
  program=$(test_program)
  # Where they are built already, this takes no time.
  "$root/vm-images/build.sh" tiny
  "$root/vm-images/build.sh" debian
  mapfile -t filters < <(libvirt_modules | sed 's/$/::/')
  end_to_end "$program" --test-threads "$threads" --skip e2e::debian "${filters[@]}"
}

suite_ansible() { "$root/scripts/test-ansible.sh"; }

suite_lab() {
  # Alone, like the others: its emulator wants a core for itself.
  in_repo cargo build --quiet --bin gvm --test it --features "$GVM_FEATURES"
  [ -z "$all" ] || export GVM_LONG=1
  GVM_BIN=$target/debug/gvm "$root/scripts/test-lab.sh"
}

skipped() { echo "SKIPPED: $1"; }

seconds() { printf '%d.%d s' $(($1 / 1000)) $(($1 % 1000 / 100)); }

# --- run ----------------------------------------------------------------------------------------------------------------

running=''
end_running() {
  trap '' INT TERM
  # timeout hands it on to all that it has started.
  [ -z "$running" ] || { kill "$running" 2>/dev/null && wait "$running"; } || true
  exit 130
}

# run_suite NAME DEADLINE WHAT
run_suite() {
  local name=$1 deadline=$2 what=$3 log=$logs/$1.log code=0 start result
  printf '==> %s: %s\n' "$name" "$what"
  start=$(_now_ms)
  timeout --kill-after 30 "$deadline" "$self" __suite "$name" ${all:+--all} </dev/null >"$log" 2>&1 &
  running=$!
  wait "$running" || code=$?
  running=''
  [ "$code" != 124 ] && [ "$code" != 137 ] || echo "ended after $deadline s, its longest time" >>"$log"
  count "$log" "$code"
  result="$passed passed, $failed failed, $skipped skipped"
  if [ "$failed" != 0 ]; then
    tail -n 60 "$log" | sed 's/^/    | /'
    printf '    all of it: %s\n' "$log"
    failed_what+=$(failures "$log" | sed "s/^/  $name: /")$'\n'
  fi
  took+=$(slowest "$log" | sed "s/^/  $name: /")$'\n'
  start=$(($(_now_ms) - start))
  printf '    %s (%s)\n' "$result" "$(seconds "$start")"
  all_passed=$((all_passed + passed)) all_failed=$((all_failed + failed)) all_skipped=$((all_skipped + skipped))
  table+=$(printf '%-13s %7d %7d %7d  %10s' "$name" "$passed" "$failed" "$skipped" "$(seconds "$start")")$'\n'
  left_out+=$(skip_reasons "$log" | sed "s/^/  $name: /")$'\n'
}

run_all() {
  local name deadline what begin=$SECONDS
  all_passed=0 all_failed=0 all_skipped=0 table='' left_out='' failed_what='' took=''
  stage "looking for what the tests need" "$root/scripts/setup.sh" --build --test 2>&1
  mkdir -p "$logs"
  as_user test -w "$logs" || chown "${SUDO_USER:-root}" "$target" "$logs"
  trap end_running INT TERM
  while read -r name deadline what; do
    [ -n "$name" ] || continue
    if [ "$only" = ' ' ] && [ -z "$all" ] && [[ $only_with_all == *" $name "* ]]; then
      left_out+="  the suite $name (--all)"$'\n'
    elif [ "$only" = ' ' ] || [[ $only == *" $name "* ]]; then
      run_suite "$name" "$deadline" "$what"
    fi
  done <<<"$suites"
  [ -n "$all" ] || left_out+="  the long variants (--all)"
  printf '\n%-13s %7s %7s %7s\n%s' suite passed failed skipped "$table"
  left_out=$(sort -u <<<"$left_out" | grep . || true)
  [ -z "$left_out" ] || printf '\nleft out:\n%s\n' "$left_out"
  took=$(grep . <<<"$took" || true)
  [ -z "$took" ] || printf '\nlongest over libvirt:\n%s\n' "$took"
  failed_what=$(grep . <<<"$failed_what" || true)
  [ -z "$failed_what" ] || printf '\nfailed:\n%s\n' "$failed_what"
  printf '\nall in %d min %d s\n' $(((SECONDS - begin) / 60)) $(((SECONDS - begin) % 60))
  printf '%d passed, %d failed, %d skipped\n' "$all_passed" "$all_failed" "$all_skipped"
  [ "$all_failed" = 0 ]
}

# One command with its own exit, so that bash never reads on in a file that was replaced meanwhile.
{
  if [ -n "$suite" ]; then "suite_$suite"; else run_all; fi
  exit
}
