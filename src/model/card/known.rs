//! Cards that are known by their numbers, for when no driver can be asked: a card under VFIO answers nobody.
//!
//! Names and sizes are those that NVML reports, so that a card does not change when it changes its driver.

use super::pci::{PciIds, Vendor};
use crate::model::units::Mib;

/// What is known of a kind of card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownCard {
    /// NVML's name; `None` where boards of one number differ and this one is not known.
    pub name: Option<&'static str>,
    /// Memory.
    pub memory: Mib,
    /// True where it sits on a board with NVSwitches, if there are any.
    pub has_nvlink_board: bool,
}

/// Device, board (subsystem), name, memory in MiB, on an NVSwitch board. A row with a board goes before one without.
type Row = (u16, Option<(u16, u16)>, Option<&'static str>, u64, bool);

const NVIDIA: [Row; 24] = [
    (0x1eb8, None, Some("Tesla T4"), 15_360, false),
    (0x20b0, None, Some("NVIDIA A100-SXM4-40GB"), 40_960, true),
    (0x20b2, None, Some("NVIDIA A100-SXM4-80GB"), 81_920, true),
    (0x20b5, None, Some("NVIDIA A100 80GB PCIe"), 81_920, false),
    (0x20b7, None, Some("NVIDIA A30"), 24_576, false),
    (0x20f1, None, Some("NVIDIA A100-PCIE-40GB"), 40_960, false),
    (0x2230, None, Some("NVIDIA RTX A6000"), 49_140, false),
    (0x2235, None, Some("NVIDIA A40"), 46_068, false),
    (0x2236, None, Some("NVIDIA A10"), 23_028, false),
    (0x2237, None, Some("NVIDIA A10G"), 23_028, false),
    (0x2321, None, Some("NVIDIA H100 NVL"), 95_830, false),
    (0x2330, None, Some("NVIDIA H100 80GB HBM3"), 81_559, true),
    (0x2331, None, Some("NVIDIA H100 PCIe"), 81_559, false),
    (0x2335, None, Some("NVIDIA H200"), 143_771, true),
    (0x2339, None, Some("NVIDIA H100"), 95_830, true),
    (0x233b, None, Some("NVIDIA H200 NVL"), 143_771, false),
    // One number for two cards; a board of another maker is told by neither.
    (0x25b6, Some((0x10de, 0x14a9)), Some("NVIDIA A16"), 15_356, false),
    (0x25b6, Some((0x10de, 0x157e)), Some("NVIDIA A2"), 15_356, false),
    (0x25b6, None, None, 15_356, false),
    (0x26b5, None, Some("NVIDIA L40"), 46_068, false),
    (0x26b9, None, Some("NVIDIA L40S"), 46_068, false),
    (0x27b8, None, Some("NVIDIA L4"), 23_034, false),
    (0x2901, None, Some("NVIDIA B200"), 183_359, true),
    (0x2bb5, None, Some("NVIDIA RTX PRO 6000 Blackwell Server Edition"), 97_887, false),
];

/// What is known of a card with these numbers.
pub fn look_up(vendor: Vendor, ids: &PciIds) -> Option<KnownCard> {
    if vendor != Vendor::Nvidia {
        return None;
    }
    let row = NVIDIA.iter().find(|row| row.0 == ids.device && (row.1.is_none() || row.1 == ids.subsystem))?;
    Some(KnownCard { name: row.2, memory: Mib(row.3), has_nvlink_board: row.4 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(device: u16, subsystem: Option<(u16, u16)>) -> Option<&'static str> {
        let ids = PciIds { vendor: 0x10de, device, subsystem, class: 0x03_0200 };
        look_up(Vendor::Nvidia, &ids).and_then(|known| known.name)
    }

    #[test]
    fn boards_tell_apart_what_the_device_number_does_not() {
        assert_eq!(name(0x25b6, Some((0x10de, 0x14a9))), Some("NVIDIA A16"));
        assert_eq!(name(0x25b6, Some((0x10de, 0x157e))), Some("NVIDIA A2"));
        assert_eq!(name(0x25b6, Some((0x10de, 0x0000))), None);
        assert_eq!(name(0x2bb5, None), Some("NVIDIA RTX PRO 6000 Blackwell Server Edition"));
        assert_eq!(name(0xffff, None), None);
    }
}
