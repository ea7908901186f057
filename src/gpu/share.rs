//! Memory of cards and of their virtual functions, as drivers other than NVIDIA's tell it below `/sys`.
//!
//! | driver | where | source of the fact |
//! |---|---|---|
//! | amdgpu | `CARD/mem_info_vram_total`, bytes | kernel, `Documentation/gpu/amdgpu/driver-misc.rst` |
//! | xe | `CARD/sriov_admin/vfN/profile/vram_quota`, bytes, N from 1; from Linux 7.0 | kernel, `Documentation/ABI/testing/sysfs-driver-intel-xe-sriov` |
//! | i915 with SR-IOV (Intel's own build) | `CARD/drm/cardM/{iov,prelim_iov}/vfN/gt*/lmem_quota`, bytes | what Intel's `xpumanager` and `intel-resource-drivers-for-kubernetes` read |
//! | gim (AMD's SR-IOV driver) | nothing is known; its functions are equal parts of the card | `amd/MxGPU-Virtualization`, table of supported numbers of functions |
//!
//! *Not verified on a card*: whether gim shows anything of the memory, and whether quotas of several tiles add up.
//! A quota of 0 is one that is not set yet.

use super::files::Files;
use crate::model::card::{Card, CardMemory, MemorySource};
use crate::model::pci::{PciAddress, Vendor};
use crate::model::units::Mib;

const DEVICES: &str = "sys/bus/pci/devices";
/// More nodes and graphics tiles no card has.
const MAX_NAMES: usize = 64;

/// Gives cards and virtual functions the memory that a driver tells. A card that `hangs` is not read.
pub(super) fn tell(files: &Files, cards: &mut [Card], hangs: impl Fn(PciAddress) -> bool) {
    let mut told: Vec<(PciAddress, u64)> = Vec::new();
    for card in cards.iter().filter(|card| !card.is_vf() && !hangs(card.address)) {
        let folder = format!("{DEVICES}/{}", card.address);
        match card.vendor {
            Vendor::Amd => {
                told.extend(files.number(&format!("{folder}/mem_info_vram_total")).map(|b| (card.address, b)))
            }
            Vendor::Intel => {
                let functions = card.sriov.iter().flat_map(|sriov| &sriov.functions).zip(1_u32..);
                told.extend(functions.filter_map(|(vf, number)| Some((*vf, quota(files, &folder, number)?))));
            }
            Vendor::Nvidia | Vendor::Other => {}
        }
    }
    for (address, bytes) in told {
        let size = Mib(bytes >> 20);
        if let Some(card) = cards.iter_mut().find(|card| card.address == address && size.0 > 0) {
            card.memory = Some(CardMemory { size, source: MemorySource::Driver });
        }
    }
}

fn quota(files: &Files, folder: &str, number: u32) -> Option<u64> {
    if let Some(bytes) = files.number(&format!("{folder}/sriov_admin/vf{number}/profile/vram_quota")) {
        return Some(bytes);
    }
    let nodes = files.names(&format!("{folder}/drm"), MAX_NAMES).unwrap_or_default();
    let is_card = |name: &&String| name.strip_prefix("card").is_some_and(|rest| rest.parse::<u32>().is_ok());
    let node = nodes.iter().find(is_card)?;
    ["iov", "prelim_iov"].iter().find_map(|tree| {
        let function = format!("{folder}/drm/{node}/{tree}/vf{number}");
        let tiles = files.names(&function, MAX_NAMES)?;
        let quotas = tiles.iter().filter(|name| name.starts_with("gt"));
        let quotas: Vec<u64> =
            quotas.filter_map(|tile| files.number(&format!("{function}/{tile}/lmem_quota"))).collect();
        (!quotas.is_empty()).then(|| quotas.into_iter().fold(0, u64::saturating_add))
    })
}

/// Functions whose driver tells nothing are equal parts of their card, where that is how their maker divides it.
pub(super) fn divide(cards: &mut [Card]) {
    let part = |card: &Card| {
        let enabled = card.sriov.as_ref().map(|sriov| u64::from(sriov.enabled)).filter(|enabled| *enabled > 0)?;
        let CardMemory { size: Mib(all), source } = card.memory?;
        // A guess stays one.
        let source = if source == MemorySource::Bar { source } else { MemorySource::Share };
        Some((card.address, CardMemory { size: Mib(all / enabled), source }))
    };
    let amd = cards.iter().filter(|card| card.vendor == Vendor::Amd && !card.is_vf());
    let parts: Vec<_> = amd.filter_map(part).collect();
    for function in cards.iter_mut().filter(|card| card.vendor == Vendor::Amd && card.memory.is_none()) {
        let of = parts.iter().find(|(address, _)| Some(*address) == function.physfn);
        function.memory = of.map(|(_, memory)| *memory);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree_tests::{Tree, at};
    use super::*;
    use crate::model::card::blockers::BlockerKind;
    use crate::model::card::{CardMode, Discovery};

    /// A card and so many virtual functions at `.1`, `.2` and so on.
    fn functions(ids: &str, vf_ids: &str, driver: Option<&str>, vf_driver: Option<&str>, count: u32) -> Tree {
        let tree = Tree::new();
        let card = "0000:c8:00.0";
        tree.device(card, ids, 0x03_8000, driver).attribute(card, "sriov_totalvfs", "7\n").attribute(
            card,
            "sriov_numvfs",
            format!("{count}\n"),
        );
        for number in 1..=count {
            let vf = format!("0000:c8:00.{number}");
            tree.device(&vf, vf_ids, 0x03_8000, vf_driver);
            tree.link(&format!("{DEVICES}/{vf}/physfn"), &format!("../{card}"));
            tree.link(&format!("{DEVICES}/{card}/virtfn{}", number - 1), &format!("../{vf}"));
        }
        tree
    }

    fn memory(found: &Discovery, address: &str) -> Option<(u64, MemorySource)> {
        found.card(at(address)).unwrap().memory.map(|memory| (memory.size.0, memory.source))
    }

    #[test]
    fn functions_of_amd_are_equal_parts() {
        let tree = functions("1002:74a1", "1002:74b5", Some("gim"), Some("vfio-pci"), 4);
        tree.attribute("0000:c8:00.0", "mem_info_vram_total", "206141652992\n");
        let found = tree.look();
        assert_eq!(memory(&found, "0000:c8:00.0"), Some((196_592, MemorySource::Driver)));
        assert_eq!(memory(&found, "0000:c8:00.3"), Some((49_148, MemorySource::Share)));
        let [card, vf] = ["0000:c8:00.0", "0000:c8:00.1"].map(|address| found.card(at(address)).unwrap());
        assert_eq!((card.mode, vf.mode), (CardMode::Vgpu, CardMode::Passthrough));
        let kinds = |card: &Card| card.blockers.iter().map(|blocker| blocker.kind).collect::<Vec<_>>();
        assert!(kinds(card).contains(&BlockerKind::Divided) && kinds(card).contains(&BlockerKind::Driver));
        assert!(vf.is_part() && !kinds(vf).contains(&BlockerKind::VirtualFunction), "{:?}", vf.blockers);
    }

    #[test]
    fn a_guess_of_the_cards_memory_stays_a_guess() {
        let tree = functions("1002:74a1", "1002:74b5", Some("gim"), None, 2);
        let window = "0x0000030000000000 0x0000033fffffffff 0x000000000014220c\n";
        tree.attribute("0000:c8:00.0", "resource", window);
        let found = tree.look();
        assert_eq!(memory(&found, "0000:c8:00.2"), Some((128 << 10, MemorySource::Bar)));
        assert!(found.card(at("0000:c8:00.2")).unwrap().memory.unwrap().is_estimated());
        assert_eq!(memory(&functions("1002:74a1", "1002:74b5", Some("gim"), None, 2).look(), "0000:c8:00.2"), None);
    }

    #[test]
    fn quotas_of_intel_are_read_where_either_driver_has_them() {
        let xe = functions("8086:e211", "8086:e211", Some("xe"), Some("xe"), 2);
        xe.attribute("0000:c8:00.0", "sriov_admin/vf1/profile/vram_quota", "8589934592\n");
        xe.attribute("0000:c8:00.0", "sriov_admin/vf2/profile/vram_quota", "0\n");
        let found = xe.look();
        assert_eq!(memory(&found, "0000:c8:00.1"), Some((8192, MemorySource::Driver)));
        assert_eq!(memory(&found, "0000:c8:00.2"), None, "not provisioned, and not an equal part either");
        let vf = found.card(at("0000:c8:00.1")).unwrap();
        assert!(vf.is_part(), "it goes to a machine as it is");

        for tree in ["iov", "prelim_iov"] {
            let i915 = functions("8086:56c0", "8086:56c0", Some("i915"), Some("vfio-pci"), 2);
            for (file, quota) in [("vf1/gt0", "8388608000"), ("vf2/gt0", "4194304000"), ("vf2/gt1", "4194304000")] {
                i915.attribute("0000:c8:00.0", &format!("drm/card1/{tree}/{file}/lmem_quota"), format!("{quota}\n"));
            }
            i915.attribute("0000:c8:00.0", "drm/card1-DP-1/status", "connected\n");
            i915.attribute("0000:c8:00.0", "drm/renderD128/dev", "226:128\n");
            let found = i915.look();
            for vf in ["0000:c8:00.1", "0000:c8:00.2"] {
                assert_eq!(memory(&found, vf), Some((8000, MemorySource::Driver)), "{tree} {vf}");
            }
        }
        // Nothing is provisioned, or not by a driver that tells.
        assert_eq!(memory(&functions("8086:56c0", "8086:56c0", Some("i915"), None, 1).look(), "0000:c8:00.1"), None);
    }

    #[test]
    fn junk_is_no_memory() {
        for junk in ["", "many\n", "-1\n", "99999999999999999999999999\n", "0\n"] {
            let tree = functions("1002:74a1", "1002:74b5", Some("amdgpu"), None, 1);
            tree.attribute("0000:c8:00.0", "mem_info_vram_total", junk);
            assert_eq!(memory(&tree.look(), "0000:c8:00.0"), None, "{junk:?}");
        }
    }
}
