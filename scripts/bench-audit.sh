#!/usr/bin/env bash
# What it takes to verify a record of a million entries (GVM_BENCH_ENTRIES for another number) that a manager wrote into a
# database in a temporary folder. No root and no libvirt is needed.
#
# The last line is one JSON object. rows_per_s: entries that `gvm audit verify` gets through in a second, median of 3 runs
# (bar: 200,000). calibration_s: two million SHA-256 values one after another, which tells how fast the machine is;
# rows_per_calibration: entries verified in that time. append_per_s: entries written in transactions of 10,000.
# slowest_write_beside_ms: the longest of 200 writes with a transaction each while a verification runs. rss_mib: the most
# memory of the program.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "$0")")")
# shellcheck source-path=SCRIPTDIR source=lib/log.sh
. "$root/scripts/lib/log.sh"

# Numbers are worth something of an optimised build only; GVM_BUILD=dev is for trying it out.
args=(bench --quiet --bench audit)
if [ "${GVM_BUILD:-release}" = dev ]; then
  warn "this is a dev build; its numbers say little"
  args+=(--profile dev)
fi
[ -z "${GVM_FEATURES:-}" ] || args+=(--features "$GVM_FEATURES")
cd "$root"
cargo "${args[@]}" || die "the bench failed" "cargo ${args[*]}"
