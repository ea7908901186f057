#!/usr/bin/env bash
# What the SSH gateway offers to strangers, as ssh-audit (Debian package ssh-audit) judges it: each [fail] mark fails,
# and so does a [warn] mark that is not expected here; docs/adr/0027 says why those are.
#
#   audit-ssh.sh              a gateway of its own on loopback; it needs no manager to be looked at
#   audit-ssh.sh HOST:PORT    one that runs
#
# GVM_BIN names a gvm that is built already.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "$0")")")
# shellcheck source-path=SCRIPTDIR source=lib/log.sh
. "$root/scripts/lib/log.sh"

# The algorithms that may have a [warn] mark. The last two are younger than some releases of ssh-audit.
expected='hmac-sha2-256|hmac-sha2-512|mlkem768x25519-sha256|kex-strict-s-v00@openssh.com'

command -v ssh-audit >/dev/null || die "ssh-audit is not installed" "apt-get install ssh-audit"
work=$(mktemp -d)
gateway=
finish() {
  [ -z "$gateway" ] || kill "$gateway" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

# listens FILE   the address in the log of a gateway
listens() {
  grep -o '"address":"[^"]*"' "$1" | head -n 1 | cut -d '"' -f 4
}

target=${1:-}
if [ -z "$target" ]; then
  gvm=${GVM_BIN:-}
  if [ -z "$gvm" ]; then
    stage "building gvm" cargo build --quiet --no-default-features --manifest-path "$root/Cargo.toml"
    gvm=$root/target/debug/gvm
  fi
  printf '[manager]\nsocket = "%s/none"\n[gateway]\nlisten = "127.0.0.1:0"\nhost_key = "%s/host_ed25519"\n' \
    "$work" "$work" >"$work/gvm.toml"
  GVM_LOG=info timeout 120 "$gvm" --config "$work/gvm.toml" gateway 2>"$work/log" &
  gateway=$!
  for _ in $(seq 100); do
    target=$(listens "$work/log") || true
    [ -z "$target" ] || break
    sleep 0.1
  done
  [ -n "$target" ] || die "the gateway did not start: $(tail -n 3 "$work/log")"
fi

# Its exit code tells warnings and failures from a host that does not answer.
rc=0
timeout 60 ssh-audit --no-colors --port "${target##*:}" "${target%:*}" >"$work/report" || rc=$?
if ! grep -q '^(kex)' "$work/report"; then
  sed 's/^/    /' "$work/report" >&2
  die "ssh-audit did not come to a result (exit $rc)" "ssh-audit -d -p ${target##*:} ${target%:*}"
fi
# A mark on a line of its own belongs to the algorithm above it.
awk '/^\([a-z0-9]+\) / { name = $2 } /\[(fail|warn)\]/ { mark = /\[fail\]/ ? "fail" : "warn"; print mark, name }' \
  "$work/report" | sort -u >"$work/marks"
bad=$(grep '^fail' "$work/marks" || true)
odd=$(grep '^warn' "$work/marks" | grep -Ev "^warn ($expected)\$" || true)
if [ -n "$bad$odd" ]; then
  cat "$work/report" >&2
  die "ssh-audit marks: $(echo "$bad $odd" | tr '\n' ' ')" "change the lists in src/gateway/ssh.rs"
fi
echo "no [fail] mark, $(grep -c '^warn' "$work/marks" || true) expected [warn] marks, $(grep -c '^([a-z]*) ' "$work/report") algorithms"
