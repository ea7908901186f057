# shellcheck shell=bash
# a driver that does not let go of a card in use: the write to unbind hangs, as with the vendor's
# So that "held" and "stuck" are tried against the real thing.

scenario() {
  local at=0000:02:00.0 node
  node=$(in_lab "$LAB_SHORT" "sed -n 's/^Device Minor: *//p' /proc/driver/nvidia/gpus/$at/information | tr -dc 0-9")
  # setsid: they outlive the login that started them.
  in_lab "$LAB_SHORT" "setsid sleep 600 <'/dev/nvidia$node' >/dev/null 2>&1 & echo \$! >/run/holder" || true
  check "a process holds /dev/nvidia$node" lab_says "/dev/nvidia$node" 'readlink /proc/$(cat /run/holder)/fd/0'
  in_lab "$LAB_SHORT" "setsid sh -c 'echo $at >/sys/bus/pci/devices/$at/driver/unbind; echo done >/run/unbound' </dev/null >/dev/null 2>&1 & echo \$! >/run/writer" || true
  check "the writer sleeps where no signal reaches it" lab_within 10 D "sed 's/.*) //; s/ .*//' /proc/\$(cat /run/writer)/stat"
  check "not even SIGKILL" lab_says D "kill -KILL \$(cat /run/writer); sleep 1.5; sed 's/.*) //; s/ .*//' /proc/\$(cat /run/writer)/stat"
  check "the kernel's log says why" lab_matches 'Attempting to remove device 0000:02:00.0 with non-zero usage count' "$LAB_SHORT" dmesg
  check "the other card does not care" lab_says nvidia card driver 0000:01:00.0
  # The link to the driver has gone from the first: that the writer is gone tells that the kernel went on.
  check "once it is closed, the writer's end is done" lab_within 15 gone "kill \$(cat /run/holder) 2>/dev/null; [ -e /proc/\$(cat /run/writer) ] || echo gone"
  check "and the card is free" lab_says none card driver $at
  check "it is given back" lab_says nvidia "card give $at && card driver $at"
}
