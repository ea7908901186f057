//! Cards on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A function of a card's slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuFunctionView {
    /// Address.
    pub address: String,
    /// What it is, such as `audio`.
    pub class: String,
    /// The driver that has it; empty where none.
    pub driver: String,
    /// It goes along with the card.
    pub goes_along: bool,
}

/// A member of a card's IOMMU group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupMemberView {
    /// Address.
    pub address: String,
    /// What it means for the card, in plain words.
    pub words: String,
    /// It keeps the card from being handed out.
    pub is_blocking: bool,
}

/// A card of this host, with everything that is known of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuView {
    /// Id for life.
    pub id: String,
    /// PCI address; of a card that is gone, where it was.
    pub address: String,
    /// Who made it.
    pub vendor: String,
    /// Name.
    pub model: String,
    /// Vendor and device number, such as `10de:20b5`.
    pub pci_id: String,
    /// Memory, MiB; zero where not known.
    pub memory_mib: u64,
    /// State word: free, claimed, in-use, sanitising, draining, withheld, stuck, blocked, foreign, vf, gone.
    pub state: String,
    /// What speaks against handing it out, in plain words.
    pub reasons: Vec<String>,
    /// Worth knowing, and no reason against it: an application's error, clocks that are held down.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Since when it is out of service, where that was written down.
    #[serde(default)]
    pub since: Option<String>,
    /// Commands that bring it back into service.
    #[serde(default)]
    pub remedy: Option<String>,
    /// How it was sanitised last, and when.
    #[serde(default)]
    pub sanitised: Option<String>,
    /// The machine that has it, where the caller may know.
    pub vm: Option<String>,
    /// What it is used for at the moment: passthrough, vgpu, mig, host, unbound.
    pub mode: String,
    /// It stays with VFIO between machines.
    pub is_kept: bool,
    /// The driver that has it; empty where none.
    pub driver: String,
    /// Drivers that its functions go back to, as `address=driver`.
    pub former: Vec<String>,
    /// NUMA node; none where not known.
    pub numa_node: Option<u32>,
    /// IOMMU group; none without an IOMMU.
    pub iommu_group: Option<u32>,
    /// Members of that group.
    pub group: Vec<GroupMemberView>,
    /// Functions of its slot.
    pub functions: Vec<GpuFunctionView>,
    /// 64-bit address space that a guest needs for it, MiB.
    pub aperture_mib: u64,
    /// Ways to reset it, in the kernel's order.
    pub reset_methods: Vec<String>,
    /// Link as it is and at best, such as `16.0 GT/s x16 of 32.0 GT/s x16`.
    pub link: String,
    /// Who has it open, in plain words; only for operators and administrators.
    pub holders: Vec<String>,
    /// Whether it answers, in plain words.
    pub health: String,
    /// The host's screen is on it.
    pub is_boot_display: bool,
    /// The card it is a virtual function of.
    pub physical_function: Option<String>,
    /// NVML's UUID, where it was ever told.
    pub uuid: Option<String>,
}

/// The cards of this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuList {
    /// When they were looked at.
    pub looked_at: String,
    /// By address; those that are gone last.
    pub gpus: Vec<GpuView>,
    /// What somebody should know besides.
    pub findings: Vec<String>,
    /// How it stands with NVML.
    pub nvml: String,
}

/// What could be asked for now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OfferView {
    /// What to write after `--gpu` for one of them.
    pub request: String,
    /// Name.
    pub model: String,
    /// Memory of each, MiB; zero where not known.
    pub memory_mib: u64,
    /// All that gvm manages.
    pub total: u32,
    /// The most that one machine would be given now.
    pub free: u32,
    /// Every number that would be given now.
    pub counts: Vec<u32>,
    /// The most on one NUMA node; zero where not known.
    pub same_node: u32,
    /// The most below one switch; zero where none share one.
    pub same_switch: u32,
}

/// All offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OfferList {
    /// By name and size.
    pub offers: Vec<OfferView>,
}

/// Request to change what a card is between machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeGpuMode {
    /// `passthrough` or `host`.
    pub mode: String,
}

/// Request to keep a card out of use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WithholdGpu {
    /// Why, for those who look.
    pub why: String,
}

/// A card that would be given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChosenGpu {
    /// Address.
    pub address: String,
    /// Name.
    pub model: String,
    /// NUMA node; none where not known.
    pub numa_node: Option<u32>,
    /// Functions that go along.
    pub siblings: Vec<String>,
}

/// What would be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DryRun {
    /// Name.
    pub name: String,
    /// Image.
    pub image: String,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Memory, MiB.
    pub memory_mib: u64,
    /// Root disk, MiB.
    pub disk_mib: u64,
    /// Cards that it would be given now.
    pub gpus: Vec<ChosenGpu>,
    /// NUMA node that it would stay on.
    pub numa_node: Option<u32>,
    /// What the person should know.
    pub notes: Vec<String>,
}
