# shellcheck shell=bash
# Words for people: stages with their time, and errors that say what to do.
# Everything goes to stderr, so that a script's stdout stays free for its results.

_stage_text=
_stage_begin=0

_now_ms() {
  local now=${EPOCHREALTIME/[.,]/}
  echo $((now / 1000))
}

# stage TEXT          begins a stage; the next stage, stage_end or die closes it
# stage TEXT CMD...   runs CMD as a stage of its own and passes its exit code on
stage() {
  local text=$1
  shift
  stage_end
  _stage_text=$text
  _stage_begin=$(_now_ms)
  printf '==> %s\n' "$text" >&2
  [ $# -gt 0 ] || return 0
  local rc=0
  "$@" || rc=$?
  stage_end "$rc"
  return "$rc"
}

# stage_end [RC]   says how long the open stage took; nothing when none is open
stage_end() {
  [ -n "$_stage_text" ] || return 0
  local ms=$(($(_now_ms) - _stage_begin)) word='done in'
  [ "${1:-0}" = 0 ] || word='failed after'
  printf '    %s %d.%d s\n' "$word" $((ms / 1000)) $((ms % 1000 / 100)) >&2
  _stage_text=
}

note() {
  printf '    %s\n' "$*" >&2
}

warn() {
  printf 'warning: %s\n' "$*" >&2
}

# die WHAT [DO-THIS]   ends the script; DO-THIS is the way out, as a command where there is one
die() {
  stage_end 1
  printf 'error: %s\n' "$1" >&2
  [ -z "${2:-}" ] || printf '  try: %s\n' "$2" >&2
  exit 1
}
