#!/usr/bin/env bash
# What a look at the cards of a host costs, on a tree of 20,000 PCI devices in a folder (GVM_BENCH_CARDS of them cards,
# 64 where nothing is said, each with its audio function and its IOMMU group). No card, no root and no libvirt is needed.
#
# The last line is one JSON object. discover_s: median of 7 looks (bar: 1). rss_mib: the most memory of the program,
# the making of the tree included (bar: 50). calibration_s: the reading of one small file of each device, without
# anything else: the floor under discover_s, which tells how fast the machine is; discover_ratio is over that.
# refresh_s: median of 7 looks at 16 cards of a mock of NVML that takes no time, 8 of them with seven MIG instances each
# (bar: 0.05); refresh_ratio is over calibration_s as well.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "$0")")")
# shellcheck source-path=SCRIPTDIR source=lib/log.sh
. "$root/scripts/lib/log.sh"

# Numbers are worth something of an optimised build only; GVM_BUILD=dev is for trying it out.
args=(bench --quiet --bench gpu)
if [ "${GVM_BUILD:-release}" = dev ]; then
  warn "this is a dev build; its numbers say little"
  args+=(--profile dev)
else
  args+=(--no-default-features)
fi
[ -z "${GVM_FEATURES:-}" ] || args+=(--features "$GVM_FEATURES")
cd "$root"
cargo "${args[@]}" || die "the bench failed" "cargo ${args[*]}"
