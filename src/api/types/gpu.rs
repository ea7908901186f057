//! Cards on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::QuotaLineView;

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
    /// What an administrator decided that it is divided into, such as `mig` or `mig: 3g.40gb@0, 3g.40gb@4`; empty where
    /// nobody did.
    pub shape: String,
    /// The MIG instances that are there.
    pub instances: Vec<String>,
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

/// A MIG instance, or the room that a machine has for one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MigInstanceView {
    /// Its profile.
    pub profile: String,
    /// Its first memory slice.
    pub start: u32,
    /// How many memory slices it has.
    pub size: u32,
    /// `idle`, `in-use`, `reserved` (not made yet) or `foreign` (in use, and not by a machine of gvm).
    pub state: String,
    /// Who has it, where that may be told.
    pub vm: Option<String>,
}

/// How many more of something there could be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FitView {
    /// What to write after `--gpu`.
    pub request: String,
    /// How many more, and of nothing else.
    pub count: u32,
    /// What keeps it from being one more.
    pub limit: String,
}

/// How one divided card stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CardPlanView {
    /// Address.
    pub address: String,
    /// Name.
    pub model: String,
    /// `mig` or `vgpu`.
    pub mode: String,
    /// Why nothing more may be made on it; none where that is not so.
    pub blocked: Option<String>,
    /// Memory slices; zero without MIG.
    pub memory_slices: u32,
    /// Compute slices; zero without MIG.
    pub compute_slices: u32,
    /// MIG instances by where they lie.
    pub instances: Vec<MigInstanceView>,
    /// Whether an administrator decided on the instances, so that none is made beside them.
    pub is_fixed: bool,
    /// vGPUs that it carries, such as `2 L40S-12Q`.
    pub carries: Vec<String>,
    /// What fits.
    pub fits: Vec<FitView>,
    /// Share of what is free that cannot be had for where the instances lie, in percent; none without MIG.
    pub fragmented_percent: Option<u32>,
    /// What is lost by that, such as `4g.40gb: 0 fit, 1 would`.
    pub lost: Vec<String>,
}

/// How all divided cards stand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuPlan {
    /// By address.
    pub cards: Vec<CardPlanView>,
    /// What would make room for what has none anywhere, in plain words.
    pub advice: Vec<String>,
}

/// Request to change what a card is between machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeGpuMode {
    /// `passthrough`, `host`, `vgpu` or `mig`.
    pub mode: String,
}

/// Request to divide cards as a layout file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportLayout {
    /// The file, in the format of mig-parted or of vgpu-device-manager.
    pub text: String,
    /// Which of its configs; may be left out where there is only one.
    #[serde(default)]
    pub config: Option<String>,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// What became of one card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CardLayoutView {
    /// Address.
    pub address: String,
    /// Name.
    pub model: String,
    /// What it is to be, such as `mig: 3g.40gb@0, 3g.40gb@4`.
    pub layout: String,
    /// `as-wished`, `would-change`, `changed` or `failed`.
    pub outcome: String,
    /// Why it failed; none where it did not.
    pub why: Option<String>,
}

/// What became of the cards that a layout file names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LayoutResult {
    /// By address.
    pub cards: Vec<CardLayoutView>,
}

/// Cards as a layout file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportedLayout {
    /// The file, in YAML.
    pub text: String,
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
    /// What the owner holds and may hold, with what this machine would add.
    #[serde(default)]
    pub quota: Vec<QuotaLineView>,
    /// What the person should know.
    pub notes: Vec<String>,
}
