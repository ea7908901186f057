# shellcheck shell=bash
# gvm: its inventory, a machine with a card, a second that is refused, everything given back

_show() { echo "gpu field $1 $2"; }
_logs() { in_lab "$LAB_SHORT" gvm logs one | tr -d '\r'; }
_log() { local text; text=$(_logs); grep -Eq "$1" <<<"$text" || { printf 'want: %s\ngot:  %s\n' "$1" "$(tail -n 8 <<<"$text")"; return 1; }; }

scenario() {
  local card=0000:01:00.0
  lab_gvm "gvm with a card" || return 0
  check "its list is what sysfs has, and no virtual function is offered" \
    lab_says $'0000:01:00.0 10de:2230\n0000:02:00.0 10de:2235\n0000:07:01.0 10de:2235' \
    "gvm -o json gpu list | jq -r '.gpus[] | select(.vendor | test(\"NVIDIA\")) | select(.physical_function == null) | \"\\(.address) \\(.pci_id)\"'"
  check "the first is free, with its driver" lab_says 'free nvidia' "echo \$($(_show $card state)) \$($(_show $card driver))"
  check "the third is blocked by the network card, by name" lab_matches '0000:07:02\.0' "$LAB_SHORT" "$(_show 0000:07:01.0 reasons)"
  check "the host's screen is not offered" lab_says '' "gvm -o json gpu list | jq -r '.gpus[] | select(.is_boot_display and .state == \"free\") | .address'"

  check "a machine with the card is made, and can be logged in to" in_lab 500 gvm create one --profile lab --gpu a6000
  check "the card is in use by it" lab_says "in-use one.root" "echo \$($(_show $card state)) \$($(_show $card vm))"
  check "the guest sees the card as it truly is" _log 'L2-PCI 0000:..:00.0 0x1002 0x5159 0x0300'
  check "its sibling is function 1 of the same slot" _log 'L2-PCI 0000:..:00.1 0x8086 0x293e 0x0403'
  check "the card's memory keeps what is written" lab_within 60 1 "gvm logs one | grep -c 'L2-VRAM 0000:..:00.0 ok'"
  check "its sound driver finds the codec" lab_within 60 1 "gvm logs one | grep -c 'L2-SOUND 0000:..:00.1 ok'"
  check "a second machine that asks for it is refused, with the reason" lab_matches "$card.*(in use|one)" "$LAB_SHORT" \
    "gvm create two --profile lab --gpu a6000 --no-wait"
  check "and is not made" lab_says one "gvm -o json list | jq -r '.vms[].name'"
  check "nobody gets the card in the shared group" lab_matches '0000:07:02\.0' "$LAB_SHORT" \
    "gvm create two --profile lab --gpu 2xa40 --no-wait"

  check "the machine is stopped" in_lab "$LAB_LONG" gvm stop one
  check "the card is free and its drivers are back" lab_within 10 $'free\nnvidia\nsnd_hda_intel' \
    "$(_show $card state); card driver 0000:01:00.0 0000:01:00.1"
  check "gvm says how it was sanitised, and why not by a reset" \
    lab_matches '^vfio-close; not reset by gvm: .*0000:01:00\.1 is on it as well, ' "$LAB_SHORT" "$(_show $card sanitised)"
  check "nothing is leased, nothing is taken" lab_says '' "gpu leases; gpu taken"
  check "the machine is removed" in_lab "$LAB_SHORT" gvm delete one --now --yes
}
