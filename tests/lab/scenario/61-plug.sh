# shellcheck shell=bash
# gvm set --gpu: a card is plugged into a machine that runs, and is not taken out of one

scenario() {
  local card=0000:02:00.0
  lab_gvm "gvm plugs a card" || return 0
  check "a machine without a card is made, and can be logged in to" in_lab 500 gvm create plug --profile lab
  check "it is given a card while it runs" lab_within 60 "in-use plug.root" \
    "gvm -q set plug --gpu a40 >/dev/null 2>&1; echo \$(gpu field $card state) \$(gpu field $card vm)"
  check "vfio-pci has it" lab_says vfio-pci card driver $card
  check "the guest has found it" lab_within 60 0x5046 "gvm -q ssh plug cat '/sys/bus/pci/devices/*/device' 2>/dev/null | grep 5046"
  check "it cannot be taken out again, and why is told" lab_matches 'taken out' "$LAB_SHORT" gvm set plug --gpu none
  check "the machine runs on" lab_says running "gvm -o json show plug | jq -r .state"
  check "the machine is stopped" in_lab "$LAB_LONG" gvm stop plug
  check "the card is free and its driver is back" lab_within 10 $'free\nnvidia' "gpu field $card state; card driver $card"
  check "it was reset before, for it is alone on its bus" lab_matches '^reset \(bus\), ' "$LAB_SHORT" gpu field $card sanitised
  check "the machine is removed" in_lab "$LAB_SHORT" gvm delete plug --now --yes
}
