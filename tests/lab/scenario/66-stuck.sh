# shellcheck shell=bash
# a driver that never lets go: the card is stuck until the host is restarted, and nothing else is

scenario() {
  local card=0000:02:00.0 other=0000:01:00.0
  lab_gvm "a card that is stuck" || return 0
  # In use by somebody whom no look into /proc finds.
  in_lab "$LAB_SHORT" "node=\$(sed -n 's/^Device Minor: *//p' /proc/driver/nvidia/gpus/$card/information | tr -dc 0-9); echo \$((1 << node)) >/sys/module/labnv/parameters/pinned" || true
  in_lab "$LAB_SHORT" gvm create hung --profile lab --gpu a40 --no-wait >/dev/null 2>&1 || true
  check "the driver is asked for the card, and hangs" lab_within 60 1 'grep -ls labnv_remove /proc/[0-9]*/stack | wc -l'
  check "meanwhile the list of cards is told" lab_matches "$other" 30 gvm gpu list
  check "and the other card is taken and given back" lab_says $'vfio-pci\nnvidia' \
    "gvm -q gpu mode $other passthrough >/dev/null; card driver $other; gvm -q gpu mode $other host >/dev/null; card driver $other"
  check "the machine is told of it and does not wait for ever" lab_within 120 failed "gvm -o json show hung | jq -r .state"
  check "with the write that hangs" lab_matches 'stuck.*driver/unbind' "$LAB_SHORT" "gvm -o json show hung | jq -r .detail"
  check "nobody else is given the card" lab_matches "$card.*(stuck|hangs|hung)" "$LAB_SHORT" gvm create other --profile lab --gpu a40 --no-wait
  check "the machine is removed" in_lab "$LAB_LONG" gvm -q delete hung --now --yes
  check "its card is stuck" lab_within 30 stuck gpu field $card state
  # The kernel goes on; gvm does not trust a card that hung.
  in_lab "$LAB_SHORT" 'echo 0 >/sys/module/labnv/parameters/pinned' || true
  check "and stays so until the host is restarted" lab_matches 'only a restart of the host' "$LAB_SHORT" gvm gpu readmit $card
}
