#!/usr/bin/env bash
# Usage: scripts/sim-mig.sh [TRACE]
#
# Replays GPU work on 8 A100-80 cards under MIG, with gvm's placement, with first fit (the first card that has room, at the
# lowest start) and with the order that the driver tries by itself as far as public samples show it. TRACE is openb's pod
# list or its folder; without it ../shared/data/openb is taken, and where that is not there either, or TRACE is `synthetic`,
# a made-up trace that is always the same.
#
# - A pod's share of a GPU becomes a profile: up to 143 thousandths 1g.10gb, 286 2g.20gb, 429 3g.40gb, 572 4g.40gb, else
#   7g.80gb; several GPUs are as many 7g.80gb at once. Pods that were never scheduled are left out, as how long they would
#   have run is not known.
# - Arrivals are stretched so that the jobs ask for 0.9, 1.0 and 1.1 of all memory slices; how long each runs stays.
# - A job that has not started within an hour goes away: it is not served, and has waited an hour.
# - A single replay says little: a few jobs that hold whole cards for weeks come in, or do not, by chance, which moves the
#   served by up to ten in a hundred either way. So each load is replayed from 16 points of the trace on (what was before
#   comes after the end), and summed up; the least and the most of a round, and the round that begins where the trace does,
#   are told beside.
# - The queue is the same for all: in order, so that who cannot start holds up who came later. The same with backfill
#   (whoever has room passes) is told too, and not judged: there, a better placement lets in more of the large and long jobs
#   that others go without, so that the count of served ones says little.
#
# The last line is one JSON object: served_vs_first_fit (bar: at least 1.0) and wait_vs_first_fit (at most 1.0) of the worst
# load, in order; avoidable_refusals (0): tries in any replay that failed though an allowed placement was free, judged
# without the planner; raw: all figures. The exit code is 1 where a bar is missed.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "$0")")")
# shellcheck source-path=SCRIPTDIR source=lib/log.sh
. "$root/scripts/lib/log.sh"

case ${1:-} in
  -h | --help)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
    exit 0
    ;;
esac
[ $# -le 1 ] || die "one trace at a time" "scripts/sim-mig.sh [TRACE]"
trace=${1:-$root/../shared/data/openb}
[ ! -d "$trace" ] || trace=$trace/openb_pod_list_default.csv
if [ "${1:-}" = synthetic ]; then
  trace=
elif [ ! -f "$trace" ]; then
  [ $# -eq 0 ] || die "$trace is not there" "scripts/sim-mig.sh, or scripts/sim-mig.sh synthetic"
  warn "no trace at $trace; a made-up one is taken"
  trace=
fi
[ -z "$trace" ] || trace=$(readlink -f "$trace")

# GVM_BUILD=dev is for trying it out: the figures are the same, it only takes longer.
args=(bench --quiet --no-default-features --bench sim_mig)
[ "${GVM_BUILD:-release}" != dev ] || args+=(--profile dev)
[ -z "$trace" ] || args+=(-- "$trace")
cd "$root"
cargo "${args[@]}" || die "a bar is missed, or the simulation failed; see above" "cargo ${args[*]}"
