//! PCI: addresses, and what a device on the bus is.

mod device;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use self::device::{
    Bar, Function, GroupMember, IommuGroup, Link, MemberRole, PciIds, Upstream, Vendor, class_words, is_bridge,
};

/// A canonical PCI address. NVML, sysfs and libvirt spell the same card differently
/// (`00000000:C8:00.0`, `0000:c8:00.0`, `pci_0000_c8_00_0`); only this type is ever compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PciAddress {
    /// Domain (segment).
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Slot, at most 0x1f.
    pub slot: u8,
    /// Function, at most 7.
    pub function: u8,
}

/// Why a text is not a PCI address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a PCI address; write for example 0000:41:00.0")]
pub struct PciError(String);

impl FromStr for PciAddress {
    type Err = PciError;

    fn from_str(text: &str) -> Result<Self, PciError> {
        let wrong = || PciError(text.to_owned());
        let hex = |part: &str, widths: std::ops::RangeInclusive<usize>| {
            let is_hex = widths.contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit());
            is_hex.then(|| u32::from_str_radix(part, 16).ok()).flatten().ok_or_else(wrong)
        };
        let node = text.strip_prefix("pci_").map(|rest| rest.splitn(4, '_').collect::<Vec<_>>());
        let (domain, bus, slot, function) = match node.as_deref() {
            Some([domain, bus, slot, function]) => (*domain, *bus, *slot, *function),
            Some(_) => return Err(wrong()),
            None => {
                let (front, function) = text.rsplit_once('.').ok_or_else(wrong)?;
                let (front, slot) = front.rsplit_once(':').ok_or_else(wrong)?;
                let (domain, bus) = front.rsplit_once(':').unwrap_or(("0000", front));
                (domain, bus, slot, function)
            }
        };
        let narrow = |value: u32, max: u32| u8::try_from(value).ok().filter(|v| u32::from(*v) <= max).ok_or_else(wrong);
        Ok(Self {
            domain: hex(domain, 4..=8)?,
            bus: narrow(hex(bus, 2..=2)?, 0xff)?,
            slot: narrow(hex(slot, 2..=2)?, 0x1f)?,
            function: narrow(hex(function, 1..=1)?, 7)?,
        })
    }
}

impl TryFrom<String> for PciAddress {
    type Error = PciError;

    fn try_from(text: String) -> Result<Self, PciError> {
        text.parse()
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.slot, self.function)
    }
}

impl fmt::Debug for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PciAddress({self})")
    }
}

impl From<PciAddress> for String {
    fn from(address: PciAddress) -> Self {
        address.to_string()
    }
}

impl PciAddress {
    /// True where both are functions of one slot, that is of one card.
    pub const fn is_same_slot(self, other: Self) -> bool {
        self.domain == other.domain && self.bus == other.bus && self.slot == other.slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_card_has_one_address_however_it_is_spelt() {
        let canonical = |text: &str| text.parse::<PciAddress>().map(|a| a.to_string());
        assert_eq!(canonical("00000001:C8:00.0"), canonical("0001:c8:00.0"));
        assert_eq!(canonical("pci_0001_c8_00_0"), canonical("0001:c8:00.0"));
        assert_eq!(canonical("d6:00.0").unwrap(), "0000:d6:00.0");
        assert_eq!(canonical("10000:e1:00.0").unwrap(), "10000:e1:00.0");
        for bad in ["0000:d6:20.0", "0000:d6:00.8", "d6", "0000:d6:0.0", "+000:d6:00.0", ""] {
            assert!(canonical(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn functions_of_one_slot_belong_together() {
        let check = |one: &str, other: &str| {
            one.parse::<PciAddress>().unwrap().is_same_slot(other.parse::<PciAddress>().unwrap())
        };
        assert!(check("0000:41:00.0", "0000:41:00.1"));
        assert!(!check("0000:41:00.0", "0001:41:00.0") && !check("0000:41:00.0", "0000:42:00.0"));
    }
}
