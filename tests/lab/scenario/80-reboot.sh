# shellcheck shell=bash
# the host loses its power while a machine has a card, and comes back on its own disk

scenario() {
  lab_gvm "power cut" || return 0
  # Of the scenario before, where it ran.
  in_lab "$LAB_LONG" "gvm -q show kill >/dev/null 2>&1 || gvm -q create kill --profile lab --gpu a6000 --no-wait >/dev/null" || true
  check "a machine runs with a card" lab_settled kill running in-use
  in_lab "$LAB_SHORT" sync || true
  l1_kill
  check "the host comes back" l1_start
  check "with libvirt" lab_ready
  check "and gvm" lab_within "$LAB_LONG" active 'systemctl is-active gvm'
  check "the machine runs again, with its card" lab_settled kill running in-use
  check "leased once" lab_says "0000:01:00.0 kill" gpu leases
  check "stopped" in_lab "$LAB_LONG" gvm -q stop kill --force
  check "the card is free and its drivers are back" lab_within 30 $'free\nnvidia\nsnd_hda_intel' \
    "gpu field 0000:01:00.0 state; card driver 0000:01:00.0 0000:01:00.1"
  check "removed" in_lab "$LAB_SHORT" gvm -q delete kill --now --yes
}
