# shellcheck shell=bash
# mediated devices of a card: offered as it has room, made for a machine, driven by its guest, taken away
# The card shares its group with a network card of the host: as a whole nobody gets it, and that is no matter here.

_card=0000:07:01.0
_types=/sys/bus/pci/devices/$_card/mdev_supported_types
_names() { echo "ls -d $_types/*/devices/*-*-* 2>/dev/null | sed 's,.*/,,'"; }
_made() { echo "$(_names) | wc -l"; }
_offer() { echo "gvm -o json gpu offers | jq -r '.offers[] | select(.request == \"vgpu:$1\") | .free'"; }
_logs() { in_lab "$LAB_SHORT" gvm logs "$1" | tr -d '\r'; }
_log() { local text; text=$(_logs "$1"); grep -Eq "$2" <<<"$text" || { printf 'want: %s\ngot:  %s\n' "$2" "$(tail -n 8 <<<"$text")"; return 1; }; }
# UUIDs that the driver has made of a type, and those that QEMU was given by libvirt's account.
_uuids() { in_lab "$LAB_SHORT" "ls $_types/nvidia-$1/devices" 2>/dev/null; }
_given() { printf '%s' "for name in \$(virsh -q list --name); do virsh dumpxml \$name; done | sed -n \"s/.*<address uuid='\\(.*\\)'.*/\\1/p\""; }

scenario() {
  local uuid theirs=11111111-2222-4333-8444-555555555555
  lab_gvm "mediated devices" || return 0
  check "the card's driver begins to offer mediated devices" lab_says 'NVIDIA A40-12Q' \
    "echo $_card >/sys/module/labnv/parameters/mediated; cat $_types/nvidia-563/name"
  check "gvm sees a card that is divided" lab_within 60 divided "gvm -q gpu scan >/dev/null 2>&1; gpu field $_card state"
  check "four of the smallest fit, and one of the largest" lab_says '4 1' "echo \$($(_offer A40-12Q)) \$($(_offer A40-48Q))"

  check "a machine with one is made" in_lab "$LAB_SHORT" gvm create small --profile lab --gpu vgpu:A40-12Q --no-wait
  check "its guest has looked around" lab_within "$LAB_LONG" 1 "gvm logs small | grep -c L2-DONE"
  uuid=$(_uuids 563)
  check "the driver has made it, and QEMU has it" lab_says "${uuid:-none}" "$(_given)"
  check "the card stays with its driver" lab_says nvidia card driver $_card
  check "the guest sees it" _log small 'L2-PCI 0000:..:00.0 0x10de 0x2235 0x0302'
  check "its memory keeps what is written" lab_within 60 1 "gvm logs small | grep -c 'L2-VRAM 0000:..:00.0 ok'"
  check "gvm says whose it is" lab_matches 'carries A40-12Q for VM small' "$LAB_SHORT" gpu field $_card reasons
  check "three more of its size fit, and no other" lab_says '3 0' "echo \$($(_offer A40-12Q)) \$($(_offer A40-24Q))"
  check "another size is refused with the reason" lab_matches 'set to profiles of 12 GiB' "$LAB_SHORT" \
    "gvm create large --profile lab --gpu vgpu:A40-24Q --no-wait"
  check "it is not taken away while the machine has it" lab_matches 'is in use: pid [0-9]+ .*/dev/vfio/[0-9]+ open' "$LAB_SHORT" \
    "gvm helper remove-vgpu $_card/$uuid A40-12Q"
  check "one that somebody else makes is counted" lab_says 2 \
    "echo $theirs >$_types/nvidia-563/create; gvm -q gpu scan >/dev/null 2>&1; $(_offer A40-12Q)"

  check "the machine is stopped" in_lab "$LAB_LONG" gvm stop small --force
  check "its mediated device has gone, and the other is left alone" lab_within 60 $theirs "$(_names)"
  check "all but that fit again" lab_says 3 \
    "gvm -q gpu scan >/dev/null 2>&1; $(_offer A40-12Q); echo 1 >/sys/bus/mdev/devices/$theirs/remove"
  check "the machine is removed" in_lab "$LAB_SHORT" gvm delete small --now --yes
  _killed
  check "the card's driver makes no more of them" lab_says none \
    "echo >/sys/module/labnv/parameters/mediated; ls $_types >/dev/null 2>&1 || echo none"
}

# The whole lab is to end within 15 minutes.
_killed() {
  local uuid
  [ -n "${GVM_LONG:-}" ] || {
    skip "kill -9 while a mediated device is made" "a long variant (GVM_LONG=1)"
    return 0
  }
  lab_holds "kill -9 while a mediated device is made" || return 0
  check "a machine is to have two; the manager waits once the first is made" in_lab "$LAB_LONG" \
    "hold at vgpu-made && gvm -q create cut --profile bare --gpu vgpu:A40-24Q --gpu vgpu:A40-24Q --no-wait >/dev/null && hold met 120"
  uuid=$(_uuids 565)
  check "one is made" lab_says 1 "$(_made)"
  check "killed there, it comes back" in_lab "$LAB_LONG" hold kill
  check "the machine runs with both, and nothing is left over" lab_within "$LAB_LONG" 'running 2 2' \
    "echo \$(gvm -o json show cut | jq -r .state) \$($(_made)) \$($(_given) | wc -l)"
  check "the first is the one that was made before" lab_matches "${uuid:-none}" "$LAB_SHORT" "$(_given)"
  check "it is removed, and they with it" lab_within "$LAB_LONG" 0 \
    "gvm -q delete cut --now --yes >/dev/null 2>&1; $(_made)"
}
