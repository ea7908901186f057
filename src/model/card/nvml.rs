//! What NVIDIA's management library says of a card. It knows only cards that NVIDIA's driver has.

use serde::{Deserialize, Serialize};

use crate::model::gpu::VgpuTypeName;
use crate::model::gpu::mig::{Geometry, Instance, MigProfile};
use crate::model::pci::PciAddress;
use crate::model::units::Mib;

/// MIG as NVML says it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigFacts {
    /// In force.
    pub is_on: bool,
    /// In force after the next reset.
    pub is_on_pending: bool,
    /// What the card can be divided into; `None` where it was not told, or makes no sense.
    #[serde(default)]
    pub geometry: Option<Geometry>,
    /// What it is divided into.
    #[serde(default)]
    pub instances: Vec<MadeInstance>,
}

/// A GPU instance that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeInstance {
    /// NVML's number for it, which a virtual function shows as `gpu_instance_id`; it changes when it is made anew.
    pub id: u32,
    /// What it is and where it lies.
    pub instance: Instance,
    /// Compute instances in it; without one no machine can use it.
    pub compute_instances: u32,
}

/// How the driver makes vGPUs of a card (`nvmlDeviceGetHostVgpuMode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostVgpuMode {
    /// On the card itself.
    NonSriov,
    /// On its virtual functions.
    Sriov,
}

/// A type of vGPU that a card has, whatever there is room for at the moment (`nvmlDeviceGetSupportedVgpus`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupportedVgpu {
    /// Its name.
    pub name: VgpuTypeName,
    /// Its framebuffer.
    pub memory: Option<Mib>,
    /// At most so many on a card.
    pub most: Option<u32>,
    /// The profile of the MIG instance behind it; `None` where it shares the card by time.
    pub profile: Option<MigProfile>,
}

/// What the driver says a card needs (`NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecoveryAction {
    /// Nothing.
    None,
    /// A reset of the card.
    Reset,
    /// A restart of the host.
    Reboot,
    /// No traffic to its neighbours any more.
    DrainPeers,
    /// An end of all work on it, and a reset.
    DrainAndReset,
    /// A number that this gvm does not know.
    Other(u32),
}

/// Rows of memory that were replaced (`nvmlDeviceGetRemappedRows`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RemappedRows {
    /// After errors that could be corrected.
    pub correctable: u32,
    /// After errors that could not.
    pub uncorrectable: u32,
    /// Some are to be replaced at the next reset.
    pub is_pending: bool,
    /// One could not be replaced: the card is to be repaired.
    pub has_failed: bool,
}

/// What NVML knows of a card. Only cards that the NVIDIA driver has are known to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvmlFacts {
    /// Where it is; the only thing that joins it with the kernel's view.
    pub address: PciAddress,
    /// `GPU-...`.
    pub uuid: Option<String>,
    /// Marketing name.
    pub name: Option<String>,
    /// Memory.
    pub memory: Option<Mib>,
    /// MIG, where the card has it.
    pub mig: Option<MigFacts>,
    /// How vGPUs are made; `None` where the driver makes none.
    #[serde(default)]
    pub host_vgpu: Option<HostVgpuMode>,
    /// Mixed-size mode: vGPUs of several sizes share it by time (`nvmlDeviceGetVgpuHeterogeneousMode`).
    #[serde(default)]
    pub is_mixed: bool,
    /// Types of vGPU that it has.
    #[serde(default)]
    pub vgpu_types: Vec<SupportedVgpu>,
    /// What it needs, where the driver tells it.
    #[serde(default)]
    pub recovery: Option<RecoveryAction>,
    /// Rows of its memory that were replaced, where it replaces some.
    #[serde(default)]
    pub remapped: Option<RemappedRows>,
    /// Why its clocks are held down by heat or power (`nvmlDeviceGetCurrentClocksEventReasons`), in plain words.
    #[serde(default)]
    pub throttled: Vec<String>,
    /// The number in `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// Persistence mode: the driver holds the card without any process to be found.
    pub is_persistent: Option<bool>,
    /// What it refused to say, and why.
    #[serde(default)]
    pub faults: Vec<String>,
}

impl NvmlFacts {
    /// Nothing but the address.
    pub const fn at(address: PciAddress) -> Self {
        Self {
            address,
            uuid: None,
            name: None,
            memory: None,
            mig: None,
            host_vgpu: None,
            is_mixed: false,
            vgpu_types: Vec::new(),
            recovery: None,
            remapped: None,
            throttled: Vec::new(),
            minor: None,
            is_persistent: None,
            faults: Vec::new(),
        }
    }
}
