#!/usr/bin/env bash
# Measures the SSH gateway against OpenSSH on loopback, and prints one JSON object as its last line:
#   terminate_ratio  bulk throughput of `ssh VM@gateway` over that of `ssh -J sshd guest`, median   (at least 1.0)
#   jump_ratio       bulk throughput of `ssh -J gateway VM` over the same, median                   (at least 0.95)
#   keystroke_ms     what the gateway adds to a keystroke's echo, median                            (under 2)
#   rss_mib          memory of the gateway with 200 idle sessions                                   (under 80)
# Options: --pairs N, --mib N, --sessions N. GVM=path/to/gvm uses that binary instead of a release build.
# Needs root (a private /run for sshd), openssh and python3.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" != 0 ]; then
    echo "bench-gateway.sh: run it as root" >&2
    exit 1
fi
if [ -z "${GVM:-}" ]; then
    cargo build --release --no-default-features >&2
    GVM=target/release/gvm
fi
export GVM
exec unshare -m --propagation private sh -c \
    'mount -t tmpfs none /run && mkdir -m 755 /run/sshd && exec python3 scripts/bench-gateway.py "$@"' sh "$@"
