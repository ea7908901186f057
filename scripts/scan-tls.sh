#!/usr/bin/env bash
# What a public scanner of TLS (sslscan, of the distribution) says of a listener: gvm's HTTPS, or any other.
#
#   scripts/scan-tls.sh HOST:PORT          everything
#   scripts/scan-tls.sh --check HOST:PORT  the same in at most a minute, for tests
#
# Ends with 1 and the lines concerned where it finds a protocol before TLS 1.2, a cipher without forward secrecy or
# without authentication of what is said, a weak key or signature, compression, insecure renegotiation or Heartbleed.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "$0")")")
# shellcheck source-path=SCRIPTDIR source=lib/log.sh
. "$root/scripts/lib/log.sh"

limit=600
if [ "${1:-}" = --check ]; then
  limit=60
  shift
fi
[ $# = 1 ] || die "one address is wanted" "$0 [--check] HOST:PORT"
command -v sslscan >/dev/null || die "sslscan is not there" "$root/scripts/setup.sh --test"

report=$(mktemp)
trap 'rm -f "$report"' EXIT
timeout "$limit" sslscan --no-colour --show-certificate --connect-timeout=5 "$1" >"$report" 2>&1 ||
  die "sslscan did not come to its end within $limit s" "$(tail -n 3 "$report")"

fail() {
  cat "$report"
  die "$1" "$2"
}
grep -qE 'TLSv1\.[23] +enabled' "$report" || fail "nobody speaks TLS at $1" "is the address right?"
! grep -nE '^(SSLv[23]|TLSv1\.[01]) +enabled' "$report" || fail "an old protocol is spoken" "only TLS 1.2 and 1.3 may be"
accepted=$(grep -E '^(Preferred|Accepted) ' "$report") || fail "no cipher was accepted" "is the address right?"
weak=$(grep -vE 'TLSv1\.3 .*TLS_(AES|CHACHA20)|TLSv1\.2 .*ECDHE-(RSA|ECDSA)-(AES(128|256)-GCM|CHACHA20-POLY1305)' <<<"$accepted" || true)
[ -z "$weak" ] || fail "weak ciphers are accepted" "$weak"
! grep -nE 'vulnerable to heartbleed' "$report" | grep -v 'not vulnerable' || fail "Heartbleed" "another library"
! grep -nE '^(Insecure session renegotiation supported|Compression enabled)' "$report" ||
  fail "renegotiation or compression" "neither may be"
! grep -nE 'Signature Algorithm: .*(md5|sha1)With' "$report" || fail "the certificate's signature is weak" "make another"
! grep -nE 'RSA Key Strength: +(512|768|1024)$' "$report" || fail "the certificate's key is weak" "make another"
note "no weak protocol, cipher, key or signature at $1: $(wc -l <<<"$accepted") ciphers"
