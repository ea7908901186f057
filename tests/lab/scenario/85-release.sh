# shellcheck shell=bash
# the manager killed while it gives a card back: the drivers come back all the same

scenario() {
  lab_gvm "kill -9 at the end" || return 0
  lab_holds "kill -9 at the end" || return 0
  lab_runs kill || return 0
  check "it waits before the drivers are restored" in_lab "$LAB_LONG" \
    "hold at release-gpu && gvm -q stop kill --force --no-wait >/dev/null && hold met 120"
  check "the card is still vfio-pci's" lab_says vfio-pci card driver 0000:01:00.0
  check "killed there, it comes back" in_lab "$LAB_LONG" hold kill
  check "the machine is off, the card free" lab_settled kill stopped free
  check "its drivers are back" lab_within 10 $'nvidia\nsnd_hda_intel' card driver 0000:01:00.0 0000:01:00.1
  check "it was sanitised" lab_matches '^(vfio-close|reset)' "$LAB_SHORT" gpu field 0000:01:00.0 sanitised
  check "nothing is leased, nothing is taken" lab_says '' 'gpu leases; gpu taken'
  check "the machine is removed" in_lab "$LAB_LONG" gvm -q delete kill --now --yes
}
