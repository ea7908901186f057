# shellcheck shell=bash
# an error of a card in the kernel's log takes it out of service; what a program writes there does not

_say='Xid (PCI:0000:01:00): 79, pid=1, name=python, GPU has fallen off the bus.'
_seen() { printf '%s' "journalctl --no-pager -u gvm --since @$1 | grep -c 'taken out of service' || true"; }

scenario() {
  local card=0000:01:00.0 begin
  lab_gvm "health of cards" || return 0
  begin=$(in_lab "$LAB_SHORT" date +%s)
  check "the same words by a program are no error of the card" lab_says 'free nvidia' \
    "echo 'NVRM: $_say' >/dev/kmsg; echo \$(gpu field $card state) \$(card driver $card)"
  in_lab "$LAB_SHORT" "echo '$_say' >/sys/module/labnv/parameters/say" || true
  # Of the manager itself: nobody asks it anything meanwhile.
  check "the driver's words are read within a tick" lab_within 45 1 "$(_seen "$begin")"
  check "the card is out of service, and why is told" lab_says 'withheld Xid 79: GPU has fallen off the bus.' \
    "echo \$(gpu field $card state) \$(gpu field $card reasons)"
  check "nobody else is given it" lab_matches "$card.*Xid 79" "$LAB_SHORT" gvm create sick --profile bare --gpu a6000 --no-wait
  check "the doctor names it" lab_matches "$card.*Xid 79" "$LAB_LONG" gvm doctor
  check "and no other card" lab_says "$card" "gvm -o json gpu list 2>/dev/null | jq -r '.gpus[] | select(.reasons | tostring | test(\"Xid\")) | .address'"
  check "it comes back after its self-test" in_lab "$LAB_SHORT" gvm gpu readmit $card
  check "and stays: a line counts once" lab_says free "gvm gpu list >/dev/null 2>&1; gpu field $card state"
}
