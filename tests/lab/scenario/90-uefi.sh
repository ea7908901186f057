# shellcheck shell=bash
# a guest under UEFI firmware
# Firmware alone is much work for a nested guest: with a deadline of its own, and when that passes it is said.

scenario() {
  local begin=$SECONDS card=0000:02:00.0
  in_lab "$LAB_SHORT" card take "$card"
  if in_lab "$LAB_LONG" FIRMWARE=uefi vm start uefi "$card" && in_lab 300 vm wait uefi VRAM 280 >"${run:?}/uefi" 2>&1; then
    check "it starts and drives a card, $((SECONDS - begin)) s after virsh create" lab_matches '^L2-VRAM .* ok' "$LAB_SHORT" vm lines uefi
  else
    skip "it starts and drives a card" "not within $((SECONDS - begin)) s under nested emulation: $(tail -n 1 "$run/uefi" | tr -d '\r')"
  fi
  in_lab "$LAB_SHORT" "virsh -q destroy uefi; card give $card" >/dev/null 2>&1 || true
}
