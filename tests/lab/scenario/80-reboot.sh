# shellcheck shell=bash
# the host loses its power while machines have a card, a vGPU and a mediated device, and comes back on its own disk
# The driver comes late: until then there is nothing to divide, and no machine may be given anything.

_third=0000:07:01.0
_of() { echo "gvm -o json show $1 | jq -r .state"; }

scenario() {
  local vf=0000:03:10.0 leases=$'0000:01:00.0 kill.root\n0000:03:10.0 half.root' uuid
  lab_gvm "power cut" || return 0
  lab_runs kill || return 0
  lab_l40s
  check "gvm gpu mode divides it" in_lab "$LAB_LONG" gvm gpu mode "$LAB_L40S" vgpu
  in_lab "$LAB_SHORT" gvm -q create half --profile bare --gpu vgpu:L40S-24Q --no-wait >/dev/null || true
  in_lab "$LAB_SHORT" "echo $_third >/sys/module/labnv/parameters/mediated
    gvm -q create mediated --profile bare --gpu vgpu:A40-24Q --no-wait" >/dev/null || true
  check "a machine runs with a vGPU" lab_within "$LAB_LONG" 'running 1152' "echo \$($(_of half)) \$($(lab_type "$vf"))"
  check "and one with a mediated device" lab_within "$LAB_LONG" running "$(_of mediated)"
  uuid=$(in_lab "$LAB_SHORT" "$(_mdev)")
  in_lab "$LAB_SHORT" "printf 'blacklist labnv\noptions labnv mediated=$_third\n' >/etc/modprobe.d/lab-late.conf; sync" || true
  l1_kill
  # Not by check: what it learns of the new process would be lost with check's subshell.
  l1_start || true
  check "the host comes back" l1_lives
  check "with libvirt" lab_ready
  check "and gvm" lab_within "$LAB_LONG" active 'systemctl is-active gvm'
  check "no driver has the card, and its functions are gone" lab_says 'none 0' "echo \$(card driver $LAB_L40S) \$(cat /sys/bus/pci/devices/$LAB_L40S/sriov_numvfs)"
  check "the machines wait for it" lab_within 90 3 \
    "for name in kill half mediated; do gvm -o json show \$name | jq -r .detail; done | grep -c 'being divided again'"
  check "and none runs" lab_says 0 'pgrep -c qemu-system || true'
  check "its driver comes" lab_within 30 nvidia "modprobe labnv; rm -f /etc/modprobe.d/lab-late.conf; card driver $LAB_L40S"
  check "the machine with a vGPU runs again, with its type" lab_within "$LAB_LONG" 'running 1152' "echo \$($(_of half)) \$($(lab_type "$vf"))"
  check "all functions are on" lab_says $'8\n8\n8' "$(lab_functions)"
  check "gvm switched them on before any machine started" lab_says '' "$(_early)"
  check "the machine with a card runs again, with its card" lab_settled kill running in-use
  check "so does the one with a mediated device" lab_within "$LAB_LONG" running "$(_of mediated)"
  check "by the name that it had" lab_says "${uuid:-none}" "$(_mdev)"
  check "each is leased once" lab_says "$leases" gpu leases
  check "a card that was stuck is free after a restart" lab_says 'free nvidia' "echo \$(gpu field 0000:02:00.0 state) \$(card driver 0000:02:00.0)"
  check "the machines with parts are removed" in_lab "$LAB_LONG" "gvm -q delete half --now --yes && gvm -q delete mediated --now --yes"
  check "and the mediated device with it" lab_within 60 '' "$(_mdev)"
  in_lab "$LAB_SHORT" 'echo >/sys/module/labnv/parameters/mediated' || true
}

# The mediated device of the third card, by its name.
_mdev() { echo "ls /sys/bus/pci/devices/$_third/mdev_supported_types/nvidia-565/devices 2>/dev/null"; }

# QEMUs that are older than the manager's word that the card is divided.
_early() {
  echo "at=\$(journalctl --no-pager -b -u gvm -o short-unix | grep 'divided as it was' | cut -d. -f1)
    [ -n \"\$at\" ] || echo never
    for pid in \$(pgrep qemu-system); do
      [ \"\$(date -d \"\$(ps -o lstart= -p \$pid)\" +%s)\" -ge \"\$at\" ] || echo \"pid \$pid came before\"
    done"
}
