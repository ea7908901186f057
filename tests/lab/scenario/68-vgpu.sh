# shellcheck shell=bash
# a card is divided by gvm gpu mode; vGPUs on its functions: offered, made for a machine, seen by its guest, taken away

_card=$LAB_L40S
# QEMU's card has eight.
_all=$'8\n8\n8'
_offer() { echo "gvm -o json gpu offers | jq -r '.offers[] | select(.request == \"vgpu:$1\") | .free'"; }
_logs() { in_lab "$LAB_SHORT" gvm logs "$1" | tr -d '\r'; }
_log() { local text; text=$(_logs "$1"); grep -Eq "$2" <<<"$text" || { printf 'want: %s\ngot:  %s\n' "$2" "$(tail -n 8 <<<"$text")"; return 1; }; }

scenario() {
  local vf=0000:03:10.0
  lab_gvm "vGPUs" || return 0
  lab_l40s
  check "gvm gpu mode divides it" in_lab "$LAB_LONG" gvm gpu mode "$_card" vgpu
  check "all its functions are on, with the same driver" lab_says "$_all" "$(lab_functions)"
  check "gvm sees a card that is divided, as was decided" lab_says 'divided vgpu' "echo \$(gpu field $_card state) \$(gpu field $_card shape)"
  check "the plan shows it, and what fits" lab_matches "1 vgpu:L40S-48Q" "$LAB_SHORT" "gvm gpu plan | grep -A 3 '^$_card .*: vgpu'"
  check "four of the smallest fit, and one of the largest" lab_says '4 1' "echo \$($(_offer L40S-12Q)) \$($(_offer L40S-48Q))"

  check "a machine with a vGPU is made" in_lab "$LAB_SHORT" gvm create small --profile lab --gpu vgpu:L40S-12Q --no-wait
  check "its guest has looked around" lab_within "$LAB_LONG" 1 "gvm logs small | grep -c L2-DONE"
  check "its function has the type" lab_says 1150 "$(lab_type "$vf")"
  check "and stays with its driver" lab_says nvidia card driver $vf
  check "libvirt does not manage it" lab_says no "virsh dumpxml \$(virsh -q list --name | head -n 1) | sed -n \"s/.*hostdev mode='subsystem' type='pci' managed='\\(.*\\)'.*/\\1/p\""
  check "the guest sees it" _log small 'L2-PCI 0000:..:00.0 0x10de 0x26b9'
  check "gvm says whose it is" lab_says 'in-use small.root' "echo \$(gpu field $vf state) \$(gpu field $vf vm)"
  check "three more of its size fit, and no other" lab_says '3 0' "echo \$($(_offer L40S-12Q)) \$($(_offer L40S-24Q))"
  check "another size is refused with the reason" lab_matches 'set to profiles of 12 GiB' "$LAB_SHORT" \
    "gvm create large --profile lab --gpu vgpu:L40S-24Q --no-wait"
  check "the card is not put together while the machine has a part of it" lab_matches "$_card is held by VM small" "$LAB_SHORT" \
    gvm gpu mode "$_card" host
  check "nor divided otherwise" lab_says "$_all" "$(lab_functions)"
  check "the function is not cleared while the machine has it" lab_matches 'busy|Busy' "$LAB_SHORT" \
    "echo 0 >/sys/bus/pci/devices/$vf/nvidia/current_vgpu_type"

  # The driver lets go late: twice it refuses.
  in_lab "$LAB_SHORT" 'echo 2 >/sys/module/labnv/parameters/lingering' || true
  check "the machine is stopped" in_lab "$LAB_LONG" gvm stop small --force
  check "the function is free again" lab_within 60 '0 vf' "echo \$($(lab_type "$vf")) \$(gpu field $vf state)"
  check "everything fits again" lab_says '4 1' "echo \$($(_offer L40S-12Q)) \$($(_offer L40S-48Q))"
  check "the machine is removed" in_lab "$LAB_SHORT" gvm delete small --now --yes

  check "gvm says how it was sanitised" lab_matches '^vgpu-removed, ' "$LAB_SHORT" gpu field "$_card" sanitised
  _killed "$vf"
  check "the card is put together again" in_lab "$LAB_LONG" gvm gpu mode "$_card" host
  check "its functions have gone" lab_says $'0\n8\n0' "$(lab_functions)"
  check "it stays with its driver, and nobody decided anything" lab_says 'nvidia ' "echo \"\$(card driver $_card) \$(gpu field $_card shape)\""
}

# The whole lab is to end within 15 minutes.
_killed() {
  local vf=$1
  [ -n "${GVM_LONG:-}" ] || {
    skip "kill -9 while a vGPU is made, and while a card is divided" "a long variant (GVM_LONG=1)"
    return 0
  }
  lab_holds "kill -9 while a vGPU is made, and while a card is divided" || return 0
  check "a size alone gets a vGPU; the manager waits once it is made" in_lab "$LAB_LONG" \
    "hold at vgpu-made && gvm -q create cut --profile bare --gpu 20GiB --no-wait >/dev/null && hold met 120"
  check "it is made, and leased once" lab_says "1152 1" "echo \$($(lab_type "$vf")) \$(gpu leases | grep -c .)"
  check "killed there, it comes back" in_lab "$LAB_LONG" hold kill
  check "the machine runs, with the same one" lab_within "$LAB_LONG" 'running 1152 1' \
    "echo \$(gvm -o json show cut | jq -r .state) \$($(lab_type "$vf")) \$(gpu leases | grep -c .)"
  check "it is removed, and the vGPU with it" lab_within "$LAB_LONG" '0 0' \
    "gvm -q delete cut --now --yes >/dev/null 2>&1; echo \$($(lab_type "$vf")) \$(gpu leases | grep -c . || true)"

  check "the manager waits once it is written down that the card is to be divided" in_lab "$LAB_LONG" \
    "gvm -q gpu mode $_card host >/dev/null && hold at gpu-shape-recorded && { setsid gvm -q gpu mode $_card vgpu </dev/null >/dev/null 2>&1 & } && hold met 120"
  check "killed there, it comes back" in_lab "$LAB_LONG" hold kill gpu-shape-step
  check "goes on by itself, and waits before the functions are switched on" in_lab "$LAB_LONG" hold met $((LAB_LONG - 20))
  check "they are off, and nothing is offered of it" lab_says $'0\n8\n0' "$(lab_functions); $(_offer L40S-48Q)"
  check "killed there, it comes back" in_lab "$LAB_LONG" hold kill
  check "the card is divided all the same" lab_within "$LAB_LONG" "divided vgpu ${_all//$'\n'/ }" \
    "echo \$(gpu field $_card state) \$(gpu field $_card shape) \$($(lab_functions))"
}
