//! GPUs: devices, requests, partitions, leases.

mod device;
pub mod fabric;
pub mod layout;
pub mod mig;
mod name;
mod request;
mod vgpu;

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

use super::card::vgpu::VgpuSite;
use super::id::{LeaseId, VmId};
pub use super::pci::{Bar, GroupMember, PciAddress, PciError, Vendor};
use super::units::Mib;
use super::vm::Generation;
pub use device::{HostDevice, HostDeviceError};
pub use name::{ModelName, ModelWord};
pub use request::{Closeness, GpuRequest, GpuRequestError, MAX_GPUS, MAX_KINDS, WholeCards};
pub use vgpu::{VgpuGrade, VgpuPolicy, VgpuSeries, VgpuTypeName};

/// A card's stable identity: NVML's UUID (`GPU-...`) or, where no driver can be asked, `pci-<address>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GpuId(pub String);

impl fmt::Display for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
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

impl GpuMode {
    /// As typed on the command line.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Passthrough => "passthrough",
            Self::Vgpu => "vgpu",
            Self::Mig => "mig",
        }
    }
}

/// How a card is wired to others beside PCI Express.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fabric {
    /// Not at all, or not known.
    #[default]
    None,
    /// NVLink from card to card, which works in whatever machine the cards are.
    Nvlink,
    /// NVLink through switches that the host manages: works only within an activated partition of the fabric.
    Nvswitch,
}

/// Whether a card is in service: what was concluded of its health, and what an administrator decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state", content = "why")]
pub enum Service {
    /// Nothing against it.
    #[default]
    Good,
    /// A fault that was its last machine's own: still handed out.
    Noted(String),
    /// It needs a reset or repair once its machine is done: not handed out anew.
    Draining(String),
    /// Not handed out until an administrator returns it to service.
    Quarantined(String),
    /// The kernel does not let go of it; only a restart of the host helps.
    Stuck(String),
}

/// A card as known to the planner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuDevice {
    /// Identity.
    pub id: GpuId,
    /// Address.
    pub bdf: PciAddress,
    /// Who made it.
    #[serde(default)]
    pub vendor: Vendor,
    /// Marketing name, such as `NVIDIA A100-SXM4-80GB`.
    pub model: String,
    /// All memory of the card; zero where it is not known.
    pub memory: Mib,
    /// Mode it is in.
    pub mode: GpuMode,
    /// NUMA node; `None` where the firmware does not say. Sysfs's -1 is read as that too.
    #[serde(default, deserialize_with = "node_or_unknown")]
    pub numa_node: Option<u32>,
    /// Other functions of the same slot that must go along (audio, USB).
    #[serde(default)]
    pub siblings: Vec<PciAddress>,
    /// Its IOMMU group. Cards of one group go to one machine or to none. `None` in an inventory that does not say; a
    /// host without an IOMMU has its cards `blocked`.
    #[serde(default)]
    pub iommu_group: Option<u32>,
    /// Members of its group that the host drives: neither bridges, nor functions of its slot, nor cards. They cannot go
    /// along, and make the group unusable.
    #[serde(default)]
    pub blockers: Vec<GroupMember>,
    /// The bridges between it and the root complex, from the root port down; empty where not known.
    #[serde(default)]
    pub upstream: Vec<PciAddress>,
    /// Its memory windows.
    #[serde(default)]
    pub bars: Vec<Bar>,
    /// Its other wiring.
    #[serde(default)]
    pub fabric: Fabric,
    /// What is missing for partitions of its fabric, where it is on a board with NVSwitches.
    #[serde(default)]
    pub fabric_why: Option<String>,
    /// Whether it is in service.
    #[serde(default)]
    pub service: Service,
    /// It is not gvm's: not on the list of managed addresses, or held by something that gvm did not start. Shown, never
    /// handed out; `blocked` may say by whom it is held.
    #[serde(default)]
    pub is_foreign: bool,
    /// Why it cannot be handed out, where it cannot.
    #[serde(default)]
    pub blocked: Option<String>,
}

/// A node number; sysfs says -1 where there is none, which must not become a node of its own.
fn node_or_unknown<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    Ok(Option::<i64>::deserialize(from)?.and_then(|node| u32::try_from(node).ok()))
}

impl GpuDevice {
    /// A card for passthrough with nothing known beyond these.
    pub fn new(id: GpuId, bdf: PciAddress, model: impl Into<String>, memory: Mib) -> Self {
        Self {
            id,
            bdf,
            vendor: Vendor::default(),
            model: model.into(),
            memory,
            mode: GpuMode::Passthrough,
            numa_node: None,
            siblings: Vec::new(),
            iommu_group: None,
            blockers: Vec::new(),
            upstream: Vec::new(),
            bars: Vec::new(),
            fabric: Fabric::default(),
            fabric_why: None,
            service: Service::default(),
            is_foreign: false,
            blocked: None,
        }
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
    /// A vGPU, of its own memory or with a MIG instance behind it.
    Vgpu {
        /// The card.
        gpu: GpuId,
        /// The card's address.
        bdf: PciAddress,
        /// Where it is made.
        site: VgpuSite,
        /// Its type.
        name: VgpuTypeName,
        /// The card's NUMA node.
        numa_node: Option<u32>,
        /// The MIG instance behind it; `None` where it shares the card by time. The driver takes any idle one of the
        /// profile, so this is a reservation of room and not of this very instance.
        #[serde(default)]
        slice: Option<mig::Instance>,
    },
}

impl Partition {
    /// The card it is a part of.
    pub const fn gpu(&self) -> &GpuId {
        match self {
            Self::Whole { gpu, .. } | Self::Vgpu { gpu, .. } => gpu,
        }
    }

    /// The functions that a machine gets with it: the card's own first, then those of its slot; of a vGPU the virtual
    /// function, unless it is a mediated device.
    pub fn functions(&self) -> Vec<PciAddress> {
        match self {
            Self::Whole { bdf, siblings, .. } => [*bdf].into_iter().chain(siblings.iter().copied()).collect(),
            Self::Vgpu { site: VgpuSite { parent, uuid: None }, .. } => vec![*parent],
            Self::Vgpu { .. } => Vec::new(),
        }
    }

    /// What a machine's description names: the functions, or the mediated device.
    pub fn devices(&self) -> Vec<HostDevice> {
        match self {
            Self::Vgpu { site: VgpuSite { uuid: Some(uuid), .. }, .. } => vec![HostDevice::Mdev(*uuid)],
            _ => self.functions().into_iter().map(HostDevice::Pci).collect(),
        }
    }

    /// The address of a whole card, or of the function that carries a vGPU.
    pub const fn address(&self) -> PciAddress {
        match self {
            Self::Whole { bdf, .. } => *bdf,
            Self::Vgpu { site, .. } => site.parent,
        }
    }

    /// The NUMA node, where it is known.
    pub const fn numa_node(&self) -> Option<u32> {
        match self {
            Self::Whole { numa_node, .. } | Self::Vgpu { numa_node, .. } => *numa_node,
        }
    }

    /// The MIG instance behind it.
    pub const fn slice(&self) -> Option<mig::Instance> {
        match self {
            Self::Vgpu { slice, .. } => *slice,
            Self::Whole { .. } => None,
        }
    }

    /// What there is to be made and taken away for it.
    pub const fn vgpu(&self) -> Option<(VgpuSite, &VgpuTypeName)> {
        match self {
            Self::Vgpu { site, name, .. } => Some((*site, name)),
            Self::Whole { .. } => None,
        }
    }

    /// `whole` or `slice`: leases of one kind exclude those of the other on the same card (table `gpu_use`).
    pub const fn use_kind(&self) -> &'static str {
        match self {
            Self::Whole { .. } => "whole",
            Self::Vgpu { .. } => "slice",
        }
    }

    /// A key that is equal exactly for the same partition: the unique key of the lease table.
    pub fn key(&self) -> String {
        match self {
            Self::Whole { gpu, .. } => format!("{gpu}/whole"),
            // A virtual function carries one, whatever it is called; a card itself as many as it has names for.
            Self::Vgpu { gpu, bdf, site: VgpuSite { parent, uuid }, .. } => match uuid.filter(|_| parent == bdf) {
                Some(uuid) => format!("{gpu}/vgpu/{uuid}"),
                None => format!("{gpu}/vgpu/{parent}"),
            },
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
    /// Being given back: reset and checked between tenants.
    Sanitising,
}

/// How much of its card a partition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuShare {
    /// In millionths, 1 to [`GpuShare::WHOLE_PPM`].
    pub ppm: u32,
    /// Its memory; zero where it is not known.
    pub memory: Mib,
}

impl GpuShare {
    /// All of a card.
    pub const WHOLE_PPM: u32 = 1_000_000;

    /// All of a card with this memory.
    pub const fn whole(memory: Mib) -> Self {
        Self { ppm: Self::WHOLE_PPM, memory }
    }

    /// So many of so many equal parts; all of it where that makes no sense.
    pub fn of(part: u64, whole: u64, memory: Mib) -> Self {
        let ppm = part.saturating_mul(u64::from(Self::WHOLE_PPM)).checked_div(whole).filter(|ppm| *ppm > 0);
        let ppm = ppm.and_then(|ppm| u32::try_from(ppm).ok()).unwrap_or(Self::WHOLE_PPM);
        Self { ppm: ppm.min(Self::WHOLE_PPM), memory }
    }
}

/// The holding of one partition by one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuLease {
    /// Its id.
    pub id: LeaseId,
    /// What is held.
    pub partition: Partition,
    /// How much of the card that is.
    pub share: GpuShare,
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
    fn an_inventory_that_says_little_is_read() {
        let text = r#"{"id": "GPU-1", "bdf": "0000:41:00.0", "model": "NVIDIA A100", "memory": 81920,
            "mode": "passthrough"}"#;
        let bdf = "0000:41:00.0".parse().unwrap();
        let read: GpuDevice = serde_json::from_str(text).unwrap();
        assert_eq!(read, GpuDevice::new(GpuId("GPU-1".to_owned()), bdf, "NVIDIA A100", Mib(81920)));
        let mut full = read;
        full.service = Service::Quarantined("no answer after reset".to_owned());
        full.upstream = vec![bdf];
        assert_eq!(serde_json::from_str::<GpuDevice>(&serde_json::to_string(&full).unwrap()).unwrap(), full);
    }

    /// Case A-numa-unknown.
    #[test]
    fn no_node_is_not_node_zero() {
        for (text, node) in [("1", Some(1)), ("0", Some(0)), ("-1", None), ("null", None)] {
            let json = format!(
                r#"{{"id": "G", "bdf": "0000:41:00.0", "model": "M", "memory": 1, "mode": "mig", "numa_node": {text}}}"#
            );
            assert_eq!(serde_json::from_str::<GpuDevice>(&json).unwrap().numa_node, node, "{text}");
        }
    }
}
