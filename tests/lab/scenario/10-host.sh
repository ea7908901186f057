# shellcheck shell=bash
# the nested host is what the others take it for
# Groups, drivers and names of the cards, as a real host would have them.

_group() { echo "basename \$(readlink /sys/bus/pci/devices/$1/iommu_group)"; }

scenario() {
  check "it runs without a failed unit" lab_says running systemctl is-system-running
  check "an IOMMU translates, and remaps interrupts" lab_matches 'DMAR-IR: Enabled IRQ remapping' "$LAB_SHORT" dmesg
  check "KVM is there" lab_says /dev/kvm ls /dev/kvm
  check "card and audio function share a group" lab_says same \
    "[ \$($(_group 0000:01:00.0)) = \$($(_group 0000:01:00.1)) ] && echo same"
  check "the second card is alone in its group" lab_says 0000:02:00.0 ls /sys/bus/pci/devices/0000:02:00.0/iommu_group/devices
  check "the third shares its group with a bridge and a network card" lab_says $'0000:06:00.0\n0000:07:01.0\n0000:07:02.0' \
    ls /sys/bus/pci/devices/0000:07:01.0/iommu_group/devices
  check "drivers hold them" lab_says $'nvidia\nsnd_hda_intel\nnvidia\nnvidia\ne1000\nnvme' \
    card driver 0000:01:00.{0,1} 0000:02:00.0 0000:07:0{1,2}.0 0000:04:00.0
  check "each has its device node, and says which" lab_says $'Device Minor: \t 0\nDevice Minor: \t 1\nDevice Minor: \t 2' \
    "ls /dev/nvidia0 /dev/nvidia1 /dev/nvidia2 >/dev/null && grep -h Minor /proc/driver/nvidia/gpus/0000:0[127]:0[01].0/information"
  check "libvirt sees the names they claim" lab_matches "<product id='0x2230'>" "$LAB_SHORT" virsh nodedev-dumpxml pci_0000_01_00_0
  check "the host's screen is none of them" lab_says 0000:00:01.0 \
    "grep -lx 1 /sys/bus/pci/devices/*/boot_vga | sed 's,.*devices/,,; s,/.*,,'"
}
