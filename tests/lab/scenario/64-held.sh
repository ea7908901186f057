# shellcheck shell=bash
# a card that a process has open: refused at once, by name

# The refusal's time less that of a command that asks for nothing; both in milliseconds.
_refusal() {
  in_lab "$LAB_LONG" "now() { date +%s%3N; }; a=\$(now); gvm -q profile list >/dev/null; b=\$(now)
    gvm create held --profile lab --gpu a6000 --no-wait 2>&1; echo took \$((\$(now) - b - (b - a)))" 2>&1 || true
}

scenario() {
  local text pid
  lab_gvm "a card that is held" || return 0
  in_lab "$LAB_SHORT" "setsid sleep 900 </dev/nvidia0 >/dev/null 2>&1 & echo \$! >/run/holder" || true
  pid=$(in_lab "$LAB_SHORT" cat /run/holder)
  text=$(_refusal)
  check "the refusal names the process and its program" grep -E "sleep.*\b$pid\b|\b$pid\b.*sleep" <<<"$text"
  check "within two seconds" awk '$1 == "took" { exit $2 > 2000 } END { if (NR == 0) exit 1 }' <<<"$text"
  note "$(tail -n 1 <<<"$text") ms"
  check "the card's driver was not touched" lab_says nvidia card driver 0000:01:00.0
  check "gvm gpu show names it as well" lab_matches "$pid" "$LAB_SHORT" gpu field 0000:01:00.0 holders
  in_lab "$LAB_SHORT" 'kill $(cat /run/holder)' || true
  check "once it is closed, the card is free" lab_within 60 free gpu field 0000:01:00.0 state
  in_lab "$LAB_SHORT" 'gvm -q delete held --now --yes' >/dev/null 2>&1 || true
}
