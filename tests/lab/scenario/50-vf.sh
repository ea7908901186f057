# shellcheck shell=bash
# a virtual function that says it is a card
# Made by the driver of its parent; whoever sees only vendor and class takes it for one.

scenario() {
  local vf=0000:03:10.0
  check "it is made" lab_says 0000:03:10.0 \
    "echo 0 >/sys/bus/pci/devices/0000:03:00.0/sriov_drivers_autoprobe; echo 1 >/sys/bus/pci/devices/0000:03:00.0/sriov_numvfs;
     udevadm settle; basename \$(readlink /sys/bus/pci/devices/0000:03:00.0/virtfn0)"
  check "it claims to be a 3D controller" lab_says $'0x10de\n0x2235\n0x030200' \
    "echo $vf=10de:2235:030200 >/sys/module/fakeid/parameters/set; cat /sys/bus/pci/devices/$vf/{vendor,device,class}"
  check "only physfn tells what it is" lab_says 0000:03:00.0 "basename \$(readlink /sys/bus/pci/devices/$vf/physfn)"
}
