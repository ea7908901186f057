# shellcheck shell=bash
# vGPUs on virtual functions: offered as the card has room, made for a machine, seen by its guest, taken away

_card=0000:03:00.0
# What the driver says of the first function, and how gvm sees it.
_type() { echo "cat /sys/bus/pci/devices/$1/nvidia/current_vgpu_type"; }
_offer() { echo "gvm -o json gpu offers | jq -r '.offers[] | select(.request == \"vgpu:$1\") | .free'"; }
_logs() { in_lab "$LAB_SHORT" gvm logs "$1" | tr -d '\r'; }
_log() { local text; text=$(_logs "$1"); grep -Eq "$2" <<<"$text" || { printf 'want: %s\ngot:  %s\n' "$2" "$(tail -n 8 <<<"$text")"; return 1; }; }

scenario() {
  local vf=0000:03:10.0
  lab_gvm "vGPUs" || return 0
  check "a card with virtual functions says that it is an L40S, and has its driver" lab_within 30 nvidia \
    "card driver $_card | grep -qx nvidia || {
       echo 0 >/sys/bus/pci/devices/$_card/sriov_numvfs; echo $_card >/sys/bus/pci/devices/$_card/driver/unbind
       echo $_card=10de:26b9:030200 >/sys/module/fakeid/parameters/set; echo $_card >/sys/bus/pci/drivers_probe; }; card driver $_card"
  check "its functions are with the same driver" lab_within 60 $'nvidia\nnvidia' \
    "[ \$(cat /sys/bus/pci/devices/$_card/sriov_numvfs) = 4 ] || {
       echo 1 >/sys/bus/pci/devices/$_card/sriov_drivers_autoprobe; echo 4 >/sys/bus/pci/devices/$_card/sriov_numvfs; }
     card driver $vf 0000:03:10.2"
  check "gvm sees a card that is divided" lab_within 60 divided "gvm -q gpu scan >/dev/null 2>&1; gpu field $_card state"
  check "four of the smallest fit, and one of the largest" lab_says '4 1' "echo \$($(_offer L40S-12Q)) \$($(_offer L40S-48Q))"

  check "a machine with a vGPU is made" in_lab "$LAB_SHORT" gvm create small --profile lab --gpu vgpu:L40S-12Q --no-wait
  check "its guest has looked around" lab_within "$LAB_LONG" 1 "gvm logs small | grep -c L2-DONE"
  check "its function has the type" lab_says 1150 "$(_type $vf)"
  check "and stays with its driver" lab_says nvidia card driver $vf
  check "libvirt does not manage it" lab_says no "virsh dumpxml \$(virsh -q list --name | head -n 1) | sed -n \"s/.*hostdev mode='subsystem' type='pci' managed='\\(.*\\)'.*/\\1/p\""
  check "the guest sees it" _log small 'L2-PCI 0000:..:00.0 0x10de 0x26b9'
  check "gvm says whose it is" lab_says 'in-use small.root' "echo \$(gpu field $vf state) \$(gpu field $vf vm)"
  check "three more of its size fit, and no other" lab_says '3 0' "echo \$($(_offer L40S-12Q)) \$($(_offer L40S-24Q))"
  check "another size is refused with the reason" lab_matches 'set to profiles of 12 GiB' "$LAB_SHORT" \
    "gvm create large --profile lab --gpu vgpu:L40S-24Q --no-wait"
  check "the function is not cleared while the machine has it" lab_matches 'busy|Busy' "$LAB_SHORT" \
    "echo 0 >/sys/bus/pci/devices/$vf/nvidia/current_vgpu_type"

  # The driver lets go late: twice it refuses.
  in_lab "$LAB_SHORT" 'echo 2 >/sys/module/labnv/parameters/lingering' || true
  check "the machine is stopped" in_lab "$LAB_LONG" gvm stop small --force
  check "the function is free again" lab_within 60 '0 vf' "echo \$($(_type $vf)) \$(gpu field $vf state)"
  check "everything fits again" lab_says '4 1' "echo \$($(_offer L40S-12Q)) \$($(_offer L40S-48Q))"
  check "the machine is removed" in_lab "$LAB_SHORT" gvm delete small --now --yes

  # The whole lab is to end within 15 minutes.
  [ -n "${GVM_LONG:-}" ] || {
    skip "kill -9 while a vGPU is made" "a long variant (GVM_LONG=1)"
    return 0
  }
  lab_holds "kill -9 while a vGPU is made" || return 0
  check "a size alone gets a vGPU; the manager waits once it is made" in_lab "$LAB_LONG" \
    "hold at vgpu-made && gvm -q create cut --profile bare --gpu 20GiB --no-wait >/dev/null && hold met 120"
  check "it is made, and leased once" lab_says "1152 1" "echo \$($(_type $vf)) \$(gpu leases | grep -c .)"
  check "killed there, it comes back" in_lab "$LAB_LONG" hold kill
  check "the machine runs, with the same one" lab_within "$LAB_LONG" 'running 1152 1' \
    "echo \$(gvm -o json show cut | jq -r .state) \$($(_type $vf)) \$(gpu leases | grep -c .)"
  check "it is removed, and the vGPU with it" lab_within "$LAB_LONG" '0 0' \
    "gvm -q delete cut --now --yes >/dev/null 2>&1; echo \$($(_type $vf)) \$(gpu leases | grep -c . || true)"
}
