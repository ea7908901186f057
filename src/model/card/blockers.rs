//! Why a card cannot go to a machine as a whole, in plain words. Every reason is told, not only the first.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Card, CardMode, Health, known};
use crate::model::gpu::PciAddress;

/// What kind of reason it is, for those who decide by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockerKind {
    /// It does not answer.
    Health,
    /// It is not on the list of cards that gvm manages.
    Foreign,
    /// There is no IOMMU.
    NoIommu,
    /// The host uses another member of its IOMMU group.
    GroupMember,
    /// It is a virtual function: a vGPU, not a card.
    VirtualFunction,
    /// It has virtual functions or mediated devices.
    Divided,
    /// MIG is on, or about to change.
    Mig,
    /// The host's screen is on it.
    BootDisplay,
    /// A driver has it that gvm does not take cards from.
    Driver,
    /// One of gvm's machines has it.
    InMachine,
    /// Somebody else has it open, or nobody can see who has.
    Held,
    /// Persistence mode is on.
    Persistence,
    /// It is on a board with NVSwitches.
    NvSwitch,
}

/// One reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocker {
    /// Its kind.
    pub kind: BlockerKind,
    /// In plain words, beginning in lower case, such as `its config space reads 0xffff`.
    pub text: String,
}

/// What counts besides the card itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Circumstances<'a> {
    /// The cards that gvm manages; `None` where no list was made, so that all count.
    pub managed: Option<&'a BTreeSet<PciAddress>>,
    /// Whether the board has NVSwitches.
    pub has_nvswitch: bool,
    /// What is missing for partitions of their fabric, where that was told.
    pub fabric: Option<&'a str>,
    /// Whether some card has an IOMMU group.
    pub has_iommu: bool,
}

/// Drivers that gvm takes a card from.
const DRIVERS: [&str; 7] = ["nvidia", "nouveau", "amdgpu", "radeon", "i915", "xe", "pci-stub"];

/// Names of gvm's domains begin with it.
const OWN: &str = "gvm-";

/// All reasons, weightiest first.
pub fn find(card: &Card, around: &Circumstances<'_>) -> Vec<Blocker> {
    let mut found = Vec::new();
    let mut add = |kind, text: String| found.push(Blocker { kind, text });
    match &card.health {
        Health::Ok | Health::Asleep => {}
        Health::NoAnswer(why) => add(BlockerKind::Health, format!("no answer: {why}")),
        Health::Dropped(why) | Health::Unknown(why) => add(BlockerKind::Health, why.clone()),
    }
    if around.managed.is_some_and(|managed| !managed.contains(&card.address)) {
        add(BlockerKind::Foreign, "it is not on the list of cards that gvm manages".to_owned());
    }
    match &card.iommu {
        None if around.has_iommu => add(BlockerKind::NoIommu, "it is in no IOMMU group, as other cards are".to_owned()),
        None => add(BlockerKind::NoIommu, "the host has no IOMMU, or it is switched off".to_owned()),
        Some(group) => {
            for member in card.blocking_members() {
                let text = format!("IOMMU group {} has another member: {}", group.number, member.words());
                add(BlockerKind::GroupMember, text);
            }
        }
    }
    if let Some(physfn) = card.physfn.filter(|_| !card.is_part()) {
        add(BlockerKind::VirtualFunction, format!("it is a virtual function of {physfn}, not a whole card"));
    }
    if let Some(sriov) = card.sriov.as_ref().filter(|sriov| sriov.enabled > 0) {
        add(BlockerKind::Divided, format!("{} virtual functions of it are switched on", sriov.enabled));
    }
    let mdevs = card.vgpu.as_ref().map_or(0, |facts| facts.made.len());
    if mdevs > 0 && !card.is_vf() {
        add(BlockerKind::Divided, format!("vGPUs are made on it: {mdevs}"));
    }
    if let Some(mig) = card.mig() {
        let on = |is_on| if is_on { "on" } else { "off" };
        match (mig.is_on, mig.is_on_pending) {
            (false, false) => {}
            (true, true) => add(BlockerKind::Mig, "MIG is on".to_owned()),
            (current, pending) => {
                let text = format!("MIG is {} and turns {} with the next reset", on(current), on(pending));
                add(BlockerKind::Mig, text);
            }
        }
    }
    if card.is_boot_display {
        add(BlockerKind::BootDisplay, "it is the boot display: the host's screen is on it".to_owned());
    }
    match card.driver.as_deref() {
        Some(driver) if !card.is_vfio && !DRIVERS.contains(&driver) => {
            add(BlockerKind::Driver, format!("the driver {driver} has it, which gvm does not take cards from"));
        }
        _ => {}
    }
    for holder in &card.holders {
        let is_own = holder.domain.as_deref().is_some_and(|domain| domain.starts_with(OWN));
        add(if is_own { BlockerKind::InMachine } else { BlockerKind::Held }, holder.words());
    }
    if !card.is_holders_complete {
        add(BlockerKind::Held, "not all processes can be looked into, so it is not known who has it open".to_owned());
    }
    // Under VFIO the NVIDIA driver does not have the card, whatever it said before.
    if card.is_persistent == Some(true) && card.mode != CardMode::Passthrough {
        let text = "persistence mode is on: the driver holds it without a process (nvidia-smi -pm 0 ends that)";
        add(BlockerKind::Persistence, text.to_owned());
    }
    let is_on_board = known::look_up(card.vendor, &card.ids).is_none_or(|known| known.has_nvlink_board);
    if around.has_nvswitch && card.vendor == super::Vendor::Nvidia && !card.is_vf() && is_on_board {
        let text = around.fabric.unwrap_or("the board has NVSwitches, whose partitions gvm does not manage yet");
        add(BlockerKind::NvSwitch, text.to_owned());
    }
    found
}
