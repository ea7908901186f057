//! Cards as they are found on a host: everything that can be known about a GPU without touching it.
//!
//! ```text
//!   /sys, /proc --+
//!   pci.ids ------+--> gpu (reads) --> [Card] --> blockers::find --> Card.blockers (plain words)
//!   NVML ---------+                          \--> identity::CardIdentity (is it still the same card?)
//! ```
//!
//! A [`Card`] is a fact of one moment. Who may have it, and who has it, is not here: that is [`super::gpu`].

pub mod blockers;
pub mod function;
pub mod history;
pub mod identity;
pub mod kernel_log;
pub mod known;
mod nvml;
pub mod shape;
pub mod vgpu;
pub mod xid;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::gpu::GpuId;
pub use super::pci;
use super::pci::PciAddress;
use super::pci::{Bar, Function, GroupMember, IommuGroup, Link, PciIds, Upstream, Vendor};
use super::units::Mib;
use blockers::Blocker;
pub use nvml::{HostVgpuMode, MadeInstance, MigFacts, NvmlFacts, RecoveryAction, RemappedRows, SupportedVgpu};
use vgpu::VgpuParent;

/// How a card is used at the moment, by what it is bound to and divided into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CardMode {
    /// Bound to a VFIO driver: ready to go to a machine as a whole.
    Passthrough,
    /// It has virtual functions or mediated types.
    Vgpu,
    /// MIG is on, without vGPUs over it.
    Mig,
    /// The host's own driver has it.
    Host,
    /// No driver has it. After a crash in the middle of a change a card is left like this.
    Unbound,
}

/// Whether the card answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state", content = "why")]
pub enum Health {
    /// It answers.
    Ok,
    /// It is switched off by the kernel's power saving, and was not woken to be asked.
    Asleep,
    /// Its config space reads all ones, or its power state is lost: it fell off the bus.
    NoAnswer(String),
    /// Its driver has it, and the vendor's library does not list it: it was dropped silently.
    Dropped(String),
    /// Its config space could not be read.
    Unknown(String),
}

impl Health {
    /// True where the card may be used.
    pub const fn is_good(&self) -> bool {
        matches!(self, Self::Ok | Self::Asleep)
    }
}

/// How the size of a card's memory is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemorySource {
    /// The vendor's library said so.
    Nvml,
    /// Its driver said so below `/sys`.
    Driver,
    /// Of a virtual function: an equal part of what its card is known to have.
    Share,
    /// From the table of known cards.
    Table,
    /// The largest 64-bit BAR: a lower bound, since not every card maps all of its memory.
    Bar,
}

/// The memory of a card. Unknown is `None` at the card, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CardMemory {
    /// How much.
    pub size: Mib,
    /// Says who.
    pub source: MemorySource,
}

impl CardMemory {
    /// True where it is a guess from below.
    pub const fn is_estimated(self) -> bool {
        matches!(self.source, MemorySource::Bar)
    }
}

/// Virtual functions of a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sriov {
    /// Switched on.
    pub enabled: u32,
    /// At most.
    pub total: u32,
    /// Addresses of those that are there.
    pub functions: Vec<PciAddress>,
}

/// A process that has a device node of the card open.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Holder {
    /// The process.
    pub pid: u32,
    /// Its short name.
    pub comm: String,
    /// The node, such as `/dev/nvidia3` or `/dev/vfio/12`.
    pub device: String,
    /// The libvirt domain, where the process is a QEMU that says so (`-name guest=`).
    #[serde(default)]
    pub domain: Option<String>,
}

impl Holder {
    /// In one phrase, such as `pid 812 (dcgm-exporter) has /dev/nvidia3 open`.
    pub fn words(&self) -> String {
        let Self { pid, comm, device, domain } = self;
        match domain {
            Some(domain) => format!("pid {pid} ({comm}, domain {domain}) has {device} open"),
            None => format!("pid {pid} ({comm}) has {device} open"),
        }
    }
}

/// One GPU, physical or virtual function, with all that is known of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// Where it is.
    pub address: PciAddress,
    /// Who made it.
    pub vendor: Vendor,
    /// Numbers of vendor, device and board, and its class.
    pub ids: PciIds,
    /// Its name: NVML's, else that of the table of known cards, else that of pci.ids, else its numbers.
    pub model: String,
    /// All functions of its slot, itself among them.
    pub functions: Vec<Function>,
    /// Its IOMMU group; `None` where there is no IOMMU.
    pub iommu: Option<IommuGroup>,
    /// Its NUMA node; `None` where the firmware does not say (the kernel's -1).
    pub numa_node: Option<u32>,
    /// Its BARs that have a size.
    pub bars: Vec<Bar>,
    /// Its memory.
    pub memory: Option<CardMemory>,
    /// How it can be reset, in the kernel's order.
    pub reset_methods: Vec<String>,
    /// Its link as it is.
    pub link: Link,
    /// Its link at best.
    pub link_max: Link,
    /// The driver that has it.
    pub driver: Option<String>,
    /// The only driver that may take it, where one is set.
    pub driver_override: Option<String>,
    /// True where the driver is one of VFIO's, by its name or because the kernel made a VFIO device of the card.
    pub is_vfio: bool,
    /// The physical function behind it, where it is a virtual one.
    pub physfn: Option<PciAddress>,
    /// Its virtual functions, where it can have some.
    pub sriov: Option<Sriov>,
    /// The vGPUs that this very function can carry and carries; of a card with virtual functions, theirs.
    #[serde(default)]
    pub vgpu: Option<VgpuParent>,
    /// True where the firmware chose it for the host's screen.
    pub is_boot_display: bool,
    /// Who has it open.
    pub holders: Vec<Holder>,
    /// False where not all processes could be looked into, so that `holders` may lack some.
    pub is_holders_complete: bool,
    /// Persistence mode, where it can be asked.
    pub is_persistent: Option<bool>,
    /// How it is used.
    pub mode: CardMode,
    /// Whether it answers.
    pub health: Health,
    /// What is between it and the processor.
    pub upstream: Upstream,
    /// What NVML knows.
    pub nvml: Option<NvmlFacts>,
    /// Why it cannot go to a machine as a whole, as it is; empty where it can.
    pub blockers: Vec<Blocker>,
}

impl Card {
    /// Its stable identity: NVML's UUID, else its address.
    pub fn id(&self) -> GpuId {
        let uuid = self.nvml.as_ref().and_then(|nvml| nvml.uuid.clone());
        GpuId(uuid.unwrap_or_else(|| format!("pci-{}", self.address)))
    }

    /// True where it is a virtual function.
    pub const fn is_vf(&self) -> bool {
        self.physfn.is_some()
    }

    /// True where it is a virtual function that goes to a machine as it is, like a card of its own: those of AMD and
    /// Intel, whose share of the card is set at the card. NVIDIA's carry vGPUs and have a type.
    pub const fn is_part(&self) -> bool {
        self.is_vf() && self.vgpu.is_none() && matches!(self.vendor, Vendor::Amd | Vendor::Intel)
    }

    /// True where it can be somebody's by itself, and so has a row of its own.
    pub const fn is_own(&self) -> bool {
        !self.is_vf() || self.is_part()
    }

    /// The functions that go along with it: the others of its slot that its IOMMU group binds to it. Without an
    /// IOMMU, all others of its slot.
    pub fn siblings(&self) -> Vec<PciAddress> {
        let is_bound = |address: PciAddress| {
            self.iommu.as_ref().is_none_or(|group| group.members.iter().any(|member| member.address == address))
        };
        let others = self.functions.iter().map(|function| function.address).filter(|other| *other != self.address);
        others.filter(|other| is_bound(*other)).collect()
    }

    /// The 64-bit address space that a guest needs for it: BARs rounded up to powers of two.
    pub fn aperture(&self) -> u64 {
        let bars = self.bars.iter().filter(|bar| bar.is_64bit);
        bars.map(|bar| bar.size.checked_next_power_of_two().unwrap_or(u64::MAX)).fold(0, u64::saturating_add)
    }

    /// True where it is divided, or will be with its next reset: it has virtual functions, or MIG is on.
    pub fn is_divided(&self) -> bool {
        let has_functions = self.sriov.as_ref().is_some_and(|sriov| sriov.enabled > 0);
        has_functions || self.mig().is_some_and(|mig| mig.is_on || mig.is_on_pending)
    }

    /// MIG, where it has it and NVML tells of it.
    pub fn mig(&self) -> Option<&MigFacts> {
        self.nvml.as_ref()?.mig.as_ref()
    }

    /// Members of its IOMMU group that keep it from being handed out.
    pub fn blocking_members(&self) -> impl Iterator<Item = &GroupMember> {
        self.iommu.iter().flat_map(|group| &group.members).filter(|member| member.role.is_blocking())
    }

    /// Its mode by what is known of it.
    pub fn derive_mode(&self) -> CardMode {
        let has_vgpu = self.vgpu.is_some() || self.sriov.as_ref().is_some_and(|sriov| sriov.enabled > 0);
        let is_mig = self.mig().is_some_and(|mig| mig.is_on);
        match &self.driver {
            // Its driver makes a VFIO device of each virtual function.
            _ if self.is_vf() && self.vgpu.is_some() => CardMode::Vgpu,
            _ if self.is_vfio => CardMode::Passthrough,
            None => CardMode::Unbound,
            Some(_) if has_vgpu => CardMode::Vgpu,
            Some(_) if is_mig => CardMode::Mig,
            Some(_) => CardMode::Host,
        }
    }
}

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CardFindingKind {
    /// The kernel shows no PCI devices at all.
    NoPci,
    /// A device looks like a GPU and its files cannot be made sense of.
    Unreadable,
    /// NVML cannot be asked although the NVIDIA driver has a card.
    NvmlFailed,
    /// NVML lists a card that the kernel does not show.
    NvmlUnmatched,
    /// The board has NVSwitches.
    NvSwitch,
    /// Not all processes could be looked into.
    HoldersIncomplete,
    /// The list of managed cards names an address without a GPU.
    ManagedMissing,
    /// More devices than are looked at.
    TooMany,
    /// The kernel's log cannot be read.
    KernelLog,
}

/// Something about the host's cards that somebody should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardFinding {
    /// What it is about.
    pub kind: CardFindingKind,
    /// Where, if it is about one place.
    #[serde(default)]
    pub address: Option<PciAddress>,
    /// In plain words.
    pub text: String,
}

/// How it stands with NVML. Its absence is a fact, not a failure: a card under VFIO is never known to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum NvmlStatus {
    /// No card is with the NVIDIA driver, so there was nothing to ask.
    NotAsked,
    /// It answered.
    Ready {
        /// Version of the driver, where it said.
        driver: Option<String>,
    },
    /// It is not there, does not fit, or gave up.
    Failed {
        /// Why, in plain words.
        why: String,
    },
}

/// One look at a host's cards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discovery {
    /// The cards by address.
    pub cards: Vec<Card>,
    /// What somebody should know besides.
    pub findings: Vec<CardFinding>,
    /// How it stands with NVML.
    pub nvml: NvmlStatus,
    /// NVSwitches of the board.
    pub nvswitches: Vec<PciAddress>,
}

impl Default for Discovery {
    fn default() -> Self {
        Self { cards: Vec::new(), findings: Vec::new(), nvml: NvmlStatus::NotAsked, nvswitches: Vec::new() }
    }
}

impl Discovery {
    /// The card at an address.
    pub fn card(&self, address: PciAddress) -> Option<&Card> {
        self.cards.iter().find(|card| card.address == address)
    }

    /// Works out what follows from the facts: mode and blockers of every card.
    #[must_use]
    pub fn judged(mut self, managed: Option<&BTreeSet<PciAddress>>) -> Self {
        let has_nvswitch = !self.nvswitches.is_empty();
        let has_iommu = self.cards.iter().any(|card| card.iommu.is_some());
        let fabric = self.findings.iter().find(|finding| finding.kind == CardFindingKind::NvSwitch);
        let fabric = fabric.map(|finding| finding.text.as_str());
        let around = blockers::Circumstances { managed, has_nvswitch, fabric, has_iommu };
        for card in &mut self.cards {
            card.mode = card.derive_mode();
            card.blockers = blockers::find(card, &around);
        }
        self
    }
}
