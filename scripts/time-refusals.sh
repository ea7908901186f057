#!/usr/bin/env bash
# Can time tell whether another's VM, user or team exists? Names that are another's and names that are nobody's are asked
# for in a random order, 2,000 of each, over HTTPS with a member's token, in a private host. A permutation test of the
# difference of the ranks gives p for each question: where it is small, time tells.
#
#   time-refusals.sh [SAMPLES]
#
# The last line is one JSON object; p_min is the smallest p, multiplied by the number of questions (bar: over 0.01).
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "$0")")")
# shellcheck source-path=SCRIPTDIR source=lib/bench.sh
. "$root/scripts/lib/bench.sh"

bench_begin
stage "building gvm" bench_build
bench time_refusals "${1:-2000}"
