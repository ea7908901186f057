#!/usr/bin/env bash
# Does gvm see the NVIDIA cards of this machine as nvidia-smi does? Reads only: nothing is reset, bound or changed. The
# client alone is built, which needs neither libvirt nor root.
#
#   check-gpu.sh           this machine's cards; it has some, and nvidia-smi
#   check-gpu.sh --check   a dry run without a card: a tree like /sys in a temporary folder, an NVML of our own
#                          (tests/fixtures/nvml/mock.c) and an nvidia-smi that says the same
#
# GVM_BIN names a gvm that is built already.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "$0")")")
# shellcheck source-path=SCRIPTDIR source=lib/log.sh
. "$root/scripts/lib/log.sh"
# shellcheck source-path=SCRIPTDIR source=lib/check.sh
. "$root/scripts/lib/check.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
scan=() smi=nvidia-smi
fields=pci.bus_id,name,uuid,memory.total,mig.mode.current,persistence_mode,driver_version

# device ADDRESS VENDOR DEVICE CLASS DRIVER GROUP   a device of the tree
device() {
  local at=$work/root/sys/devices/pci/$1 bus=$work/root/sys/bus/pci
  mkdir -p "$at" "$bus/devices" "$bus/drivers/$5" "$work/root/sys/kernel/iommu_groups/$6/devices"
  ln -s "$at" "$bus/devices/$1"
  ln -s "$at" "$work/root/sys/kernel/iommu_groups/$6/devices/$1"
  ln -s "$bus/drivers/$5" "$at/driver"
  ln -s "$work/root/sys/kernel/iommu_groups/$6" "$at/iommu_group"
  local name
  for name in "vendor $2" "device $3" "class $4" 'numa_node 0' 'power_state D0' 'reset_method flr bus'; do
    echo "${name#* }" >"$at/${name%% *}"
  done
  head -c 256 /dev/zero | tr '\0' x >"$at/config"
  : >"$at/resource"
}

dry_run() {
  stage 'a tree, an NVML and an nvidia-smi of our own'
  command -v cc >/dev/null || die 'there is no C compiler' "$root/scripts/setup.sh --build"
  cc -shared -fPIC -O1 -o "$work/libmock.so" "$root/tests/fixtures/nvml/mock.c"
  mkdir -p "$work/root/proc"
  device 0000:41:00.0 0x10de 0x20b5 0x030200 nvidia 1
  device 0001:c8:00.0 0x10de 0x20b5 0x030200 nvidia 2
  device 0000:99:00.0 0x10de 0x20b5 0x030200 nvidia 3
  cat >"$work/nvidia-smi" <<'SMI'
#!/bin/sh
echo '00000000:41:00.0, NVIDIA A100 80GB PCIe, GPU-00000000, 81920, Disabled, Enabled, 580.95.05'
echo '00000001:C8:00.0, NVIDIA A100 80GB PCIe, GPU-00000001, 81920, Disabled, Disabled, 580.95.05'
echo '00000000:99:00.0, NVIDIA A100 80GB PCIe, GPU-00000002, 81920, [N/A], Disabled, 580.95.05'
SMI
  chmod +x "$work/nvidia-smi"
  smi=$work/nvidia-smi
  scan=(--root "$work/root" --nvml "$work/libmock.so")
}

case ${1:-} in
  --check) dry_run ;;
  '') command -v nvidia-smi >/dev/null || die 'there is no nvidia-smi here' "$0 --check for a dry run" ;;
  *) die "there is no option $1" "$0 [--check]" ;;
esac
command -v python3 >/dev/null || die 'there is no python3 here' 'apt install python3-minimal'

gvm=${GVM_BIN:-}
if [ -z "$gvm" ]; then
  stage 'building the client'
  (cd "$root" && cargo build --quiet --bin gvm --no-default-features)
  gvm=${CARGO_TARGET_DIR:-$root/target}/debug/gvm
fi

stage 'asking both'
"$smi" --query-gpu="$fields" --format=csv,noheader,nounits >"$work/smi.csv" || die 'nvidia-smi fails' 'nvidia-smi'
begin=$(_now_ms)
"$gvm" -o json gpu scan "${scan[@]}" >"$work/scan.json"
note "gvm's look took $(($(_now_ms) - begin)) ms"
stage_end

# One line for each fact: card, what, nvidia-smi's word, gvm's word.
python3 - "$work/smi.csv" "$work/scan.json" >"$work/facts" <<'PY'
import json, sys

# nvidia-smi writes eight digits and capitals where the kernel writes four.
def canonical(text):
    domain, rest = text.strip().lower().split(":", 1)
    return f"{int(domain, 16):04x}:{rest}"

scan = json.load(open(sys.argv[2]))
cards = {card["address"]: card for card in scan["cards"]}
told = set()
for line in open(sys.argv[1]):
    bus, name, uuid, memory, mig, persistence, driver = [part.strip() for part in line.split(",")]
    at = canonical(bus)
    told.add(at)
    card = cards.get(at, {})
    nvml = card.get("nvml") or {}
    is_on = lambda word: {"Enabled": "True", "Disabled": "False"}.get(word, "None")
    size = (card.get("memory") or {}).get("size")
    facts = [
        ("is seen", "True", str(at in cards)),
        ("name", name, card.get("model")),
        ("uuid", uuid, nvml.get("uuid")),
        ("memory in MiB", memory, size),
        ("MIG", is_on(mig), (nvml.get("mig") or {}).get("is_on")),
        ("persistence mode", is_on(persistence), card.get("is_persistent")),
        ("driver", "nvidia", card.get("driver")),
        ("driver version", driver, scan["nvml"].get("driver")),
        ("health", "ok", (card.get("health") or {}).get("state")),
    ]
    for what, theirs, ours in facts:
        print(at, what, theirs, ours, sep="\t")
for at, card in cards.items():
    if card.get("driver") == "nvidia":
        print(at, "is told by nvidia-smi too", "True", str(at in told), sep="\t")
PY
[ -s "$work/facts" ] || die 'nvidia-smi lists no card' 'nvidia-smi -L'
while IFS=$'\t' read -r at what theirs ours; do
  check "$at $what" same "$theirs" "$ours"
done <"$work/facts"
totals
