#!/usr/bin/env bash
# How much of a new machine's way to its first login is gvm's own doing, in a private host, with the image tiny.
#
#   gvm     gvm create NAME --profile tiny            from the start of the command to the end of a first ssh command,
#                                                     less the making of overlay and seed (told beside)
#   virsh   virsh start NAME                          the same description under another name, UUID and address, defined
#                                                     before, with an overlay and a seed made before
#
# 7 pairs in turn, one machine at a time. Both are waited for alike: every 50 ms one looks for the SSH banner, then one
# command is run by ssh, straight to the guest. ssh runs on both sides; gvm's admission, database, definition, network
# entry and its own watching are on one side only.
#
# clone_ratio: the making of the overlay on an image of 10 GiB with 1 GiB of data in it, against one of 100 MiB with
# 10 MiB, by the time between the manager's events `disk` and `seed`, medians of 15 in turn.
#
# The last line is one JSON object. ratio_median: median of the pairs' ratios (bar: 1.10); clone_ratio (bar: 1.2).
# ratio_with_prepare_median counts the overlay and the seed on gvm's side alone.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "$0")")")
# shellcheck source-path=SCRIPTDIR source=lib/bench.sh
. "$root/scripts/lib/bench.sh"

bench_begin
stage "building gvm" bench_build
stage "building the image tiny"
image=$("$root/vm-images/build.sh" tiny 2>/dev/null | tail -n 1)
[ -e "$image/image.toml" ] || die "the image tiny could not be built" "$root/vm-images/build.sh tiny"
bench bench_create "$image" "${GVM_BENCH_PAIRS:-7}"
