//! What a card has as a PCI device: numbers, functions, group, BARs, link, way to the processor.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::PciAddress;

/// Who made a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Vendor {
    /// NVIDIA (10de).
    Nvidia,
    /// AMD (1002).
    Amd,
    /// Intel (8086).
    Intel,
    /// Somebody else, or not known.
    #[default]
    Other,
}

impl Vendor {
    /// By its PCI number.
    pub const fn from_id(id: u16) -> Option<Self> {
        match id {
            0x10de => Some(Self::Nvidia),
            0x1002 => Some(Self::Amd),
            0x8086 => Some(Self::Intel),
            _ => None,
        }
    }

    /// As typed in a request; empty where not known.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Nvidia => "nvidia",
            Self::Amd => "amd",
            Self::Intel => "intel",
            Self::Other => "",
        }
    }

    /// True where a device of this vendor and class is a GPU: displays of all kinds, and AMD's accelerators, which
    /// call themselves processing accelerators from the MI300 on.
    pub const fn is_gpu(self, class: u32) -> bool {
        class >> 16 == 0x03 || class >> 16 == 0x12 && matches!(self, Self::Amd)
    }
}

impl fmt::Display for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Nvidia => "NVIDIA",
            Self::Amd => "AMD",
            Self::Intel => "Intel",
            Self::Other => "other",
        })
    }
}

/// The numbers by which a kind of card is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PciIds {
    /// Vendor.
    pub vendor: u16,
    /// Device.
    pub device: u16,
    /// Maker and number of the board; some devices have none. Tells cards of one device number apart (A2, A16).
    pub subsystem: Option<(u16, u16)>,
    /// Class, six hex digits.
    pub class: u32,
}

impl fmt::Display for PciIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:04x}", self.vendor, self.device)
    }
}

/// A class in plain words.
pub const fn class_words(class: u32) -> &'static str {
    match (class >> 16, class >> 8) {
        (_, 0x0108) => "NVMe disk",
        (0x01, _) => "disk controller",
        (0x02, _) => "network card",
        (_, 0x0300) => "display",
        (_, 0x0302) => "3D accelerator",
        (0x03, _) => "display device",
        (_, 0x0403) => "audio",
        (_, 0x0680) => "bridge device",
        (0x06, _) => "bridge",
        (_, 0x0c03) => "USB controller",
        (_, 0x0c80) => "USB-C controller",
        (0x12, _) => "accelerator",
        _ => "device",
    }
}

/// True for bridges, which VFIO does not count among the members of a group. NVSwitches (class 0680) are none.
pub const fn is_bridge(class: u32) -> bool {
    matches!(class >> 8, 0x0600 | 0x0604 | 0x0609)
}

/// One function of a card's slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// Where.
    pub address: PciAddress,
    /// Its class; `None` where it cannot be read.
    pub class: Option<u32>,
    /// The driver that has it.
    pub driver: Option<String>,
}

/// What a member of an IOMMU group means for a card in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberRole {
    /// The card.
    Card,
    /// A bridge: ignored.
    Bridge,
    /// Another function of the slot: it can be taken along, whatever driver has it.
    Sibling,
    /// It has no driver, or one of VFIO's. It blocks nothing, and cannot go to another machine meanwhile.
    Idle,
    /// The host uses it: the group cannot be given away, and gvm does not take it from the host.
    Blocking,
}

impl MemberRole {
    /// True where it keeps the card from being handed out.
    pub const fn is_blocking(self) -> bool {
        matches!(self, Self::Blocking)
    }
}

/// One member of an IOMMU group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupMember {
    /// Where.
    pub address: PciAddress,
    /// Its class; `None` where it cannot be read.
    pub class: Option<u32>,
    /// The driver that has it.
    pub driver: Option<String>,
    /// What it means for the card.
    pub role: MemberRole,
}

impl GroupMember {
    /// In one phrase, such as `0000:42:00.0 (nvme), NVMe disk of class 0x010802, is used by the host`.
    pub fn words(&self) -> String {
        let driver = self.driver.as_deref().unwrap_or("no driver");
        let class = self.class.map_or_else(
            || "device of unknown class".to_owned(),
            |class| format!("{} of class {class:#08x}", class_words(class)),
        );
        match self.role {
            MemberRole::Card => format!("{} ({driver}) is the card", self.address),
            MemberRole::Bridge => format!("{} is a bridge and is ignored", self.address),
            MemberRole::Sibling => format!("{} ({driver}) is a sibling that can be taken along", self.address),
            MemberRole::Idle => format!("{} ({driver}), {class}, is not used by the host", self.address),
            MemberRole::Blocking => format!("{} ({driver}), {class}, is used by the host", self.address),
        }
    }
}

/// Devices that the IOMMU cannot tell apart. It goes to one machine as a whole, or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IommuGroup {
    /// The kernel's number.
    pub number: u32,
    /// All members, the card among them, by address.
    pub members: Vec<GroupMember>,
}

/// A window into a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Bar {
    /// Which, 0 to 5.
    #[serde(default)]
    pub index: u8,
    /// Bytes.
    pub size: u64,
    /// True where it may lie above 4 GiB.
    #[serde(default)]
    pub is_64bit: bool,
    /// True where reads have no side effects, so that it may lie in a bridge's prefetchable window, the only one above
    /// 4 GiB.
    #[serde(default)]
    pub is_prefetchable: bool,
}

/// A link's speed and width.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Link {
    /// Transfers in a second and lane, in millions: 16.0 GT/s is 16000.
    pub megatransfers: Option<u32>,
    /// Lanes.
    pub width: Option<u32>,
}

/// The way from a card to the processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Upstream {
    /// The root it hangs below, such as `pci0000:40`; `None` where the tree does not show it.
    pub root: Option<String>,
    /// Bridges and switch ports from the root down.
    pub bridges: Vec<PciAddress>,
}

impl Upstream {
    /// How much of the way two cards share: 0 nothing, 1 the root, more for each bridge they are both below.
    pub fn shared_with(&self, other: &Self) -> usize {
        if self.root.is_none() || self.root != other.root {
            return 0;
        }
        1 + self.bridges.iter().zip(&other.bridges).take_while(|(mine, theirs)| mine == theirs).count()
    }
}
