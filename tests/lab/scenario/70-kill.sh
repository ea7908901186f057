# shellcheck shell=bash
# the manager killed while it takes a card and gives it back: it settles, and no lease is lost or doubled

_one() { lab_says "$1" "gpu leases"; }

scenario() {
  local card=0000:01:00.0
  lab_gvm "kill -9" || return 0
  lab_holds "kill -9" || return 0

  check "it waits after the card was bound" in_lab "$LAB_LONG" "hold at after-ensure-gpu-bound && gvm -q create kill --profile lab --gpu a6000 --no-wait >/dev/null && hold met 120"
  check "the card is vfio-pci's" lab_says vfio-pci card driver $card
  check "killed there, it comes back" in_lab "$LAB_LONG" hold kill
  check "and goes on: the machine runs with its card" lab_settled kill running in-use
  check "leased once" _one "$card kill"

  check "it waits before the drivers are restored" in_lab "$LAB_LONG" "hold at release-gpu && gvm -q stop kill --force --no-wait >/dev/null && hold met 120"
  check "killed there, it comes back" in_lab "$LAB_LONG" hold kill
  check "and goes on: the machine is off, the card free" lab_settled kill stopped free
  check "its drivers are back" lab_within 10 $'nvidia\nsnd_hda_intel' card driver 0000:01:00.0 0000:01:00.1
  check "leased to nobody" _one ''

  check "it waits after the domain's start" in_lab "$LAB_LONG" "hold at after-start && gvm -q start kill --no-wait >/dev/null && hold met 120"
  check "killed there, it comes back" in_lab "$LAB_LONG" hold kill
  check "and goes on: the machine runs with its card" lab_settled kill running in-use
  check "leased once" _one "$card kill"
  check "one QEMU has it" lab_says 1 'pgrep -c qemu-system'
}
