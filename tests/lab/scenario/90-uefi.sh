# shellcheck shell=bash
# a guest under UEFI firmware, last, for it may end the emulator
# QEMU 10.0 asserts where a guest of its emulated SVM writes CR8 while an interrupt waits for its window (the write raises
# the virtual interrupt without QEMU's big lock). Linux hardly ever does; the interrupt handlers of UEFI firmware always do.
# So this is tried, with a deadline of its own, and told as it went.

scenario() {
  local card=0000:02:00.0 name="it starts and drives a card" begin
  lab_logs
  in_lab "$LAB_SHORT" card take "$card" || true
  begin=$SECONDS
  if in_lab "$LAB_LONG" FIRMWARE=uefi vm start uefi "$card" >"${run:?}/uefi" 2>&1 &&
    in_lab 300 vm wait uefi VRAM 280 >"$run/uefi" 2>&1; then
    check "$name" lab_matches 'L2-VRAM .* ok' "$LAB_SHORT" vm lines uefi
    note "$((SECONDS - begin)) s after virsh create began"
  elif grep -q 'bql_locked' "$run/qemu.log"; then
    skip "$name" "it ended the emulator after $((SECONDS - begin)) s: $(grep -m 1 bql_locked "$run/qemu.log")"
    lab_gone
    return
  else
    skip "$name" "not within $((SECONDS - begin)) s under nested emulation: $(tail -n 1 "$run/uefi" | tr -d '\r')"
  fi
  in_lab "$LAB_SHORT" "virsh -q destroy uefi; card give $card" >/dev/null 2>&1 || true
}
