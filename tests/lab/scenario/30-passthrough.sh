# shellcheck shell=bash
# a card and its audio function in a guest that drives them, by virsh alone; a second card plugged in while it runs
# The ground that gvm stands on: vfio-pci by hand, a domain that libvirt does not manage devices for.

_lines() { in_lab "$LAB_SHORT" vm lines one 2>/dev/null || true; }
_line() { local text; text=$(_lines); grep -Eq "$1" <<<"$text" || { printf 'want: %s\ngot:  %s\n' "$1" "$text"; return 1; }; }

scenario() {
  local card='0000:01:00.0 0000:01:00.1' other=0000:02:00.0
  check "vfio-pci takes the slot" lab_says $'vfio-pci\nvfio-pci' "card take $card && card driver $card"
  check "a guest starts with it" in_lab "$LAB_LONG" vm start one $card
  check "its device node has gone" lab_says gone "[ ! -e /dev/nvidia0 ] && echo gone"
  check "the guest is up" in_lab "$LAB_LONG" vm wait one DONE $((LAB_LONG - 20))
  check "it sees the card as it truly is" _line '^L2-PCI 0000:01:00.0 0x1002 0x5159 0x0300'
  check "its sibling is function 1 of the same slot" _line '^L2-PCI 0000:01:00.1 0x8086 0x293e 0x0403'
  check "the card's memory keeps what is written" _line '^L2-VRAM 0000:01:00.0 ok'
  check "its sound driver finds the codec: DMA and interrupts" _line '^L2-SOUND 0000:01:00.1 ok'

  check "vfio-pci takes a second card" lab_says vfio-pci "card take $other && card driver $other"
  check "it is plugged into the running guest" lab_matches 'attached successfully' "$LAB_LONG" \
    "vm hostdev $other 2 >/run/other.xml && virsh attach-device one /run/other.xml --live"
  check "the guest drives it" in_lab "$LAB_LONG" vm wait one "'VRAM 0000:02:00.0 ok'" 120
  check "and is asked to give it up" lab_matches 'detached successfully|request sent' "$LAB_LONG" virsh detach-device one /run/other.xml --live
  check "it lets go" in_lab "$LAB_LONG" vm wait one "'GONE 0000:02:00.0'" 120

  check "the guest is destroyed" in_lab "$LAB_SHORT" virsh -q destroy one
  check "no QEMU is left" lab_within 20 0 'pgrep -c qemu-system || true'
  check "the former drivers are back" lab_says $'nvidia\nsnd_hda_intel\nnvidia' \
    "card give $card $other && card driver $card $other"
  check "so are the device nodes" lab_within 10 $'/dev/nvidia0\n/dev/nvidia1\n/dev/nvidia2' 'ls /dev/nvidia?'
}
