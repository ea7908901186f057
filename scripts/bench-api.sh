#!/usr/bin/env bash
# What listing 500 machines costs, in a private host: GET /v1/vms?limit=500 on an open connection to the manager's
# socket against libvirt's own virConnectGetAllDomainStats on an open connection, 21 pairs in turn.
#
# The last line is one JSON object. list_ratio: median of the pairs' ratios (bar: 3). rss_mib: the manager's memory
# after the listings (bar: 80). ready_s: from the start of a manager that finds these machines to its first answer
# (bar: 3). Beside them: what the two cost, the same ratio for the cheapest form of libvirt's call (states alone), and
# a fixed loop's time before and after, which tells how busy the machine was.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "$0")")")
# shellcheck source-path=SCRIPTDIR source=lib/bench.sh
. "$root/scripts/lib/bench.sh"

bench_begin
stage "building gvm" bench_build
bench bench_api "${GVM_BENCH_VMS:-500}"
