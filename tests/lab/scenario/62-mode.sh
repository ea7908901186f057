# shellcheck shell=bash
# gvm gpu mode: a card that stays prepared, and goes back

scenario() {
  local card=0000:02:00.0
  lab_gvm "gvm gpu mode" || return 0
  check "it is prepared" lab_says vfio-pci "gvm -q gpu mode $card passthrough >/dev/null && card driver $card"
  check "and gvm says so" lab_says 'passthrough free' "echo \$(gpu field $card mode) \$(gpu field $card state)"
  check "a card that cannot be prepared is refused with its reason" lab_matches '0000:07:02\.0' "$LAB_SHORT" gvm gpu mode 0000:07:01.0 passthrough
  check "its driver was not touched" lab_says nvidia card driver 0000:07:01.0
  check "it goes back" lab_says nvidia "gvm -q gpu mode $card host >/dev/null && card driver $card"
}
