#!/usr/bin/env bash
# The nested lab: a Debian host with an IOMMU, cards and gvm, inside of an emulator, and what is to be shown on it.
#   test-lab.sh                     everything; builds the lab where it is not built
#   test-lab.sh --only SCENARIO     that one alone, such as passthrough; may be repeated
#   test-lab.sh --keep              leaves the nested host running and says how to get in
#   test-lab.sh --list              what there is
# GVM_BIN names a gvm that is built already. Without one it is target/debug/gvm, and is built where it is not there.
# A scenario during which the emulator itself fails is run once more on a fresh host, and it is said; a check is not.
set -euo pipefail
self=$(readlink -f "$0")
root=$(dirname "$(dirname "$self")")
# shellcheck source-path=SCRIPTDIR source=lib/log.sh
. "$root/scripts/lib/log.sh"
# shellcheck source-path=SCRIPTDIR source=lib/check.sh
. "$root/scripts/lib/check.sh"
# shellcheck source-path=SCRIPTDIR source=lib/setup.sh
. "$root/scripts/lib/setup.sh"
# shellcheck source-path=SCRIPTDIR source=../tests/lab/lib.sh
. "$root/tests/lab/lib.sh"

only=' ' keep=''
while [ $# -gt 0 ]; do
  case $1 in
    --only)
      ls "$lab"/scenario/*-"${2:-}".sh >/dev/null 2>&1 || die "there is no scenario called '${2:-}'" "$0 --list"
      only+="$2 "
      shift
      ;;
    --keep) keep=yes ;;
    --list)
      for file in "$lab"/scenario/*.sh; do
        printf '%-12s %s\n' "$(basename "$file" .sh | cut -d- -f2-)" "$(sed -n '2s/^# //p' "$file")"
      done
      exit
      ;;
    *) sed -n '2,/^set -e/{/^#/s/^# \{0,1\}//p}' "$self" >&2; exit 2 ;;
  esac
  shift
done

[ "$(id -u)" = 0 ] || die "the lab is built as root" "sudo $0"
if [ -n "${GVM_BIN:-}" ]; then
  [ -x "$GVM_BIN" ] || die "there is no program $GVM_BIN"
  gvm=$GVM_BIN
else
  # Kill tests want the feature that the other suites are built with.
  GVM_FEATURES=${GVM_FEATURES:-hold}
  gvm=${CARGO_TARGET_DIR:-$root/target}/debug/gvm
  if [ ! -x "$gvm" ]; then
    stage "building gvm, the dev build" build_gvm dev
    gvm=$built
  fi
fi
stage "the nested host's disk, kernel and guest"
built=$("$lab/build.sh" | tail -n 1)
stage_end
[ -e "$built/ready" ] || die "the lab could not be built" "$lab/build.sh"

run=$(mktemp -d /var/tmp/gvm-lab.XXXXXX)
# shellcheck source-path=SCRIPTDIR source=../tests/lab/l1.sh
. "$lab/l1.sh"
# shellcheck source-path=SCRIPTDIR source=../tests/lab/words.sh
. "$lab/words.sh"
cleanup() {
  trap '' INT TERM
  l1_kill
  rm -rf --one-file-system "$run"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

lab_run_disk "$gvm"
lab_boot || die "the nested host did not come up twice" "read what it says above"
for file in "$lab"/scenario/*.sh; do
  name=$(basename "$file" .sh | cut -d- -f2-)
  if [ "$only" = ' ' ] || [[ $only == *" $name "* ]]; then lab_scenario "$name" "$file"; fi
done
lab_logs
if [ -n "$keep" ]; then
  note "the nested host runs on until Enter: ssh -F none -i $built/id -p $l1_port root@127.0.0.1, files in $run"
  read -r _ || sleep infinity
fi
totals
