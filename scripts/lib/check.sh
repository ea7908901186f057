# shellcheck shell=bash
# Counting for the test scripts. A skipped check always says why, and the totals count it.

_passed=0
_failed=0
_skipped=0

# check NAME CMD...   CMD succeeds: passed. Its output is shown only when it fails.
check() {
  local name=$1 out rc=0
  shift
  out=$("$@" 2>&1) || rc=$?
  if [ "$rc" = 0 ]; then
    _passed=$((_passed + 1))
    printf 'ok    %s\n' "$name"
  else
    _failed=$((_failed + 1))
    printf 'FAIL  %s (exit %d)\n' "$name" "$rc"
    [ -z "$out" ] || printf '      %s\n' "${out//$'\n'/$'\n'      }"
  fi
}

skip() {
  _skipped=$((_skipped + 1))
  printf 'skip  %s: %s\n' "$1" "$2"
}

# same WANT GOT   for use with check: both texts are shown when they differ
same() {
  [ "$1" = "$2" ] || {
    printf 'want: %s\ngot:  %s\n' "$1" "$2"
    return 1
  }
}

# within SECONDS CMD...   CMD succeeds within that time, asked ten times a second
within() {
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || {
      "$@"
      return
    }
    sleep 0.1
  done
}

# totals   the last line of every test script; fails when a check did
totals() {
  printf '%d passed, %d failed, %d skipped\n' "$_passed" "$_failed" "$_skipped"
  [ "$_failed" = 0 ]
}
