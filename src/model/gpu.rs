//! GPUs: devices, requests, partitions, leases.
//!
//! Only whole cards are planned today; the shapes of vGPU and MIG partitions are here from the first day so
//! that rows and descriptions need not change when they come.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::id::{LeaseId, VmId};
use super::units::Mib;
use super::vm::Generation;

/// A card's stable identity: NVML's UUID (`GPU-...`) or, where no driver can be asked, `pci-<address>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GpuId(pub String);

impl fmt::Display for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

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

/// How a card is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuMode {
    /// The whole card goes to one machine (VFIO).
    Passthrough,
    /// Divided into vGPUs, mediated or on virtual functions.
    Vgpu,
    /// Divided into MIG instances.
    Mig,
}

/// A card as known to the planner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuDevice {
    /// Identity.
    pub id: GpuId,
    /// Address.
    pub bdf: PciAddress,
    /// Marketing name, such as `NVIDIA A100-SXM4-80GB`.
    pub model: String,
    /// Memory of the card.
    pub memory: Mib,
    /// Mode it is in.
    pub mode: GpuMode,
    /// NUMA node; `None` where the firmware does not say (sysfs -1).
    pub numa_node: Option<u32>,
    /// Other functions of the same slot that must go along (audio, USB).
    #[serde(default)]
    pub siblings: Vec<PciAddress>,
    /// Why it cannot be handed out, where it cannot.
    #[serde(default)]
    pub blocked: Option<String>,
}

/// What a member asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum GpuRequest {
    /// So many whole cards of any model.
    Count(u32),
    /// One whole card whose model has this word, lower case.
    Model(String),
    /// One device with at least this much memory.
    Memory(Mib),
    /// One MIG slice by profile name, such as `3g.40gb`.
    Mig(String),
    /// One vGPU by type name, such as `L40S-12Q`.
    Vgpu(String),
}

/// Why a text is not a GPU request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a GPU request; write a count (1), a model (a100), a size (20GiB), mig:PROFILE (mig:3g.40gb) or vgpu:TYPE (vgpu:L40S-12Q)"
)]
pub struct GpuRequestError(String);

impl FromStr for GpuRequest {
    type Err = GpuRequestError;

    fn from_str(text: &str) -> Result<Self, GpuRequestError> {
        let wrong = || GpuRequestError(text.to_owned());
        let is_word = |w: &str| {
            !w.is_empty() && w.len() <= 40 && w.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.+_".contains(&b))
        };
        if let Some(profile) = text.strip_prefix("mig:") {
            return is_word(profile).then(|| Self::Mig(profile.to_owned())).ok_or_else(wrong);
        }
        if let Some(kind) = text.strip_prefix("vgpu:") {
            return is_word(kind).then(|| Self::Vgpu(kind.to_owned())).ok_or_else(wrong);
        }
        if text.bytes().all(|b| b.is_ascii_digit()) {
            return text.parse().ok().filter(|n| (1..=16).contains(n)).map(Self::Count).ok_or_else(wrong);
        }
        if text.starts_with(|c: char| c.is_ascii_digit())
            && let Ok(size) = text.parse::<Mib>()
        {
            return (size.0 > 0).then_some(Self::Memory(size)).ok_or_else(wrong);
        }
        is_word(text).then(|| Self::Model(text.to_ascii_lowercase())).ok_or_else(wrong)
    }
}

impl TryFrom<String> for GpuRequest {
    type Error = GpuRequestError;

    fn try_from(text: String) -> Result<Self, GpuRequestError> {
        text.parse()
    }
}

impl fmt::Display for GpuRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Model(model) => f.write_str(model),
            Self::Memory(size) => write!(f, "{}MiB", size.0),
            Self::Mig(profile) => write!(f, "mig:{profile}"),
            Self::Vgpu(kind) => write!(f, "vgpu:{kind}"),
        }
    }
}

impl From<GpuRequest> for String {
    fn from(request: GpuRequest) -> Self {
        request.to_string()
    }
}

/// A part of a card that one machine can hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Partition {
    /// The whole card, with the functions that go along.
    Whole {
        /// The card.
        gpu: GpuId,
        /// Its address.
        bdf: PciAddress,
        /// Functions of the same slot.
        siblings: Vec<PciAddress>,
        /// Its NUMA node.
        numa_node: Option<u32>,
    },
    /// A MIG instance.
    Mig {
        /// The card.
        gpu: GpuId,
        /// Profile name.
        profile: String,
        /// First memory slice.
        start: u32,
    },
    /// A vGPU.
    Vgpu {
        /// The card.
        gpu: GpuId,
        /// Type name.
        vgpu_type: String,
        /// Which of its equals, counted by the card.
        index: u32,
    },
}

impl Partition {
    /// The card it is a part of.
    pub const fn gpu(&self) -> &GpuId {
        match self {
            Self::Whole { gpu, .. } | Self::Mig { gpu, .. } | Self::Vgpu { gpu, .. } => gpu,
        }
    }

    /// `whole` or `slice`: leases of one kind exclude those of the other on the same card (table `gpu_use`).
    pub const fn use_kind(&self) -> &'static str {
        match self {
            Self::Whole { .. } => "whole",
            Self::Mig { .. } | Self::Vgpu { .. } => "slice",
        }
    }

    /// A key that is equal exactly for the same partition: the unique key of the lease table.
    pub fn key(&self) -> String {
        match self {
            Self::Whole { gpu, .. } => format!("{gpu}/whole"),
            Self::Mig { gpu, profile, start } => format!("{gpu}/mig/{profile}@{start}"),
            Self::Vgpu { gpu, vgpu_type, index } => format!("{gpu}/vgpu/{vgpu_type}#{index}"),
        }
    }
}

/// Where a held partition stands. Free has no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseState {
    /// Reserved by a committed intent; the host was not touched yet.
    Claimed,
    /// In a machine.
    Attached,
    /// Being reset and checked between tenants.
    Sanitising,
    /// Kept out of use until an administrator returns it.
    Quarantined,
    /// The kernel does not let go of it; only a reboot helps.
    Stuck,
}

/// The holding of one partition by one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuLease {
    /// Its id.
    pub id: LeaseId,
    /// What is held.
    pub partition: Partition,
    /// By which machine.
    pub vm: VmId,
    /// The generation of the machine that claimed it.
    pub generation: Generation,
    /// Where it stands.
    pub state: LeaseState,
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
    fn requests_are_read_and_written_back() {
        for text in ["1", "2", "a100", "mig:3g.40gb", "vgpu:L40S-12Q"] {
            assert_eq!(text.parse::<GpuRequest>().unwrap().to_string(), text);
        }
        assert_eq!("20GiB".parse::<GpuRequest>(), Ok(GpuRequest::Memory(Mib(20 << 10))));
        for bad in ["", "0", "17", "mig:", "a b", "x'><y"] {
            assert!(bad.parse::<GpuRequest>().is_err(), "{bad}");
        }
    }
}
