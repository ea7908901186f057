# shellcheck shell=bash
# the manager killed while it takes a card: it settles, and no lease is lost or doubled

scenario() {
  local card=0000:01:00.0
  lab_gvm "kill -9 at the start" || return 0
  lab_holds "kill -9 at the start" || return 0

  check "it waits after the card was bound" in_lab "$LAB_LONG" \
    "hold at after-ensure-gpu-bound && gvm -q create kill --profile bare --gpu a6000 --no-wait >/dev/null && hold met 120"
  check "the card is vfio-pci's" lab_says vfio-pci card driver $card
  check "killed there, it comes back" in_lab "$LAB_LONG" hold kill after-start
  check "goes on, and waits after the domain's start" in_lab "$LAB_LONG" hold met $((LAB_LONG - 20))
  check "leased once" lab_says "$card kill.root" gpu leases
  check "killed there, it comes back" in_lab "$LAB_LONG" hold kill
  check "the machine runs with its card" lab_settled kill running in-use
  check "leased once" lab_says "$card kill.root" gpu leases
  check "one QEMU has it" lab_says 1 'pgrep -c qemu-system'
}
