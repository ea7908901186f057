# shellcheck shell=bash
# a card whose group has another member in use: the kernel itself refuses
# What gvm has to foresee, with the name of the blocker, and never to run into.

scenario() {
  check "QEMU does not get it" lab_matches 'group [0-9]+ is not viable' "$LAB_LONG" \
    "card take 0000:07:01.0 && vm start shared 0000:07:01.0"
  check "its driver comes back" lab_says nvidia "card give 0000:07:01.0 && card driver 0000:07:01.0"
  check "the network card never noticed" lab_says e1000 card driver 0000:07:02.0
}
