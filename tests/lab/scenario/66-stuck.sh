# shellcheck shell=bash
# a driver that never lets go: the card is stuck, and nothing else is

scenario() {
  lab_gvm "a card that is stuck" || return 0
  # In use by somebody whom no look into /proc finds.
  in_lab "$LAB_SHORT" "node=\$(sed -n 's/^Device Minor: *//p' /proc/driver/nvidia/gpus/0000:02:00.0/information | tr -dc 0-9); echo \$((1 << node)) >/sys/module/labnv/parameters/pinned"
  in_lab "$LAB_SHORT" gvm create stuck --profile lab --gpu a40 --no-wait >/dev/null 2>&1 || true
  check "the card is found out to be stuck" lab_within "$LAB_LONG" stuck gpu field 0000:02:00.0 state
  check "the list of cards is told as before" lab_matches '0000:01:00.0' 30 gvm gpu list
  check "the other card is taken and given back" lab_says $'vfio-pci\nnvidia' \
    "gvm -q gpu mode 0000:01:00.0 passthrough; card driver 0000:01:00.0; gvm -q gpu mode 0000:01:00.0 host; card driver 0000:01:00.0"
  check "nobody else is given it" lab_matches 'stuck' "$LAB_SHORT" gvm create other --profile lab --gpu a40 --no-wait
  in_lab "$LAB_SHORT" 'echo 0 >/sys/module/labnv/parameters/pinned; gvm -q delete stuck --now --yes; gvm -q delete other --now --yes' >/dev/null 2>&1 || true
  check "once the driver has let go, an administrator takes it back into use" lab_within 120 free \
    "gvm -q gpu readmit 0000:02:00.0 >/dev/null 2>&1; gpu field 0000:02:00.0 state"
  check "with its driver" lab_within 30 nvidia card driver 0000:02:00.0
}
