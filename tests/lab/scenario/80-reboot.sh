# shellcheck shell=bash
# the host loses its power while a machine has a card, and comes back on its own disk

scenario() {
  lab_gvm "power cut" || return 0
  lab_runs kill || return 0
  in_lab "$LAB_SHORT" sync || true
  l1_kill
  # Not by check: what it learns of the new process would be lost with check's subshell.
  l1_start || true
  check "the host comes back" l1_lives
  check "with libvirt" lab_ready
  check "and gvm" lab_within "$LAB_LONG" active 'systemctl is-active gvm'
  check "the machine runs again, with its card" lab_settled kill running in-use
  check "leased once" lab_says "0000:01:00.0 kill.root" gpu leases
  check "a card that was stuck is free after a restart" lab_says 'free nvidia' "echo \$(gpu field 0000:02:00.0 state) \$(card driver 0000:02:00.0)"
}
