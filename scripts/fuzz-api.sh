#!/usr/bin/env bash
# Requests made up from the API's own description, thousands of them, against a manager that is full of other people's
# things, with a member's token: no answer may be a fault of the manager (5xx), differ from the description, or tell
# anything of another's.
#
#   fuzz-api.sh [SECONDS [SEED]]     for so long (300), with that seed (1)
#   fuzz-api.sh --check              for half a minute
#
# In a private host, over HTTPS. schemathesis makes the requests. The last line is one JSON object.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "$0")")")
# shellcheck source-path=SCRIPTDIR source=lib/bench.sh
. "$root/scripts/lib/bench.sh"

seconds=300 seed=${2:-1} check=''
case ${1:-} in
  '') ;;
  --check) seconds=30 check=yes ;;
  *[!0-9]*)
    sed -n '2,/^set -e/{/^#/s/^# \{0,1\}//p}' "$0" >&2
    exit 2
    ;;
  *) seconds=$1 ;;
esac
bench_begin

# install_schemathesis   a venv in the cache, named by what is in it
install_schemathesis() {
  local wanted=$root/scripts/lib/fuzz-requirements.txt
  venv=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/gvm/schemathesis-$(sha256sum "$wanted" | cut -c 1-12)
  [ ! -x "$venv/bin/st" ] || return 0
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$wanted" || {
    rm -rf "$venv"
    return 1
  }
}
venv=''
if [ -n "$check" ]; then
  # A check that is one of many is left out, with a word, where the registry is not to be had.
  install_schemathesis >&2 || {
    echo "SKIPPED: pip could not install schemathesis, and it is not in the cache"
    exit
  }
else
  stage "installing schemathesis" install_schemathesis
fi
stage "building gvm, the dev build" build_gvm dev
bench fuzz_api "$venv/bin/st" "$root" "$seconds" "$seed"
