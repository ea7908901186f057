#!/usr/bin/env bash
# How many answers a second a member gets while the host is busy with nothing else: GET /v1/vms by the owner of 5 machines,
# with a token, over 8 HTTPS connections that stay open; wrk asks from the same cores for 15 seconds, three times. 10,000
# people are known (GVM_BENCH_USERS for another number), and the record has a million entries (GVM_BENCH_ENTRIES).
#
# The last line is one JSON object. per_s: the median of the three (bar: 2,000), p50_ms and p99_ms of the same run.
# verify_rows_per_s: `gvm audit verify` over all of it, the command's start included. rss_mib: the manager's memory after
# all that. calibration_ms: a fixed loop before and after, which tells how busy the machine was.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "$0")")")
# shellcheck source-path=SCRIPTDIR source=lib/bench.sh
. "$root/scripts/lib/bench.sh"

bench_begin
stage "building gvm" bench_build
bench bench_members "${GVM_BENCH_USERS:-10000}" "${GVM_BENCH_ENTRIES:-1000000}"
