//! From layout files to what every card is to be, and back.
//!
//! ```text
//!   LayoutFile + name of a config + cards of the host ──> layouts ──> CardLayout of each card that an entry is for
//!   cards of a look ──> as_it_is ──> export ──> LayoutFile and notes
//! ```
//! - Entries are taken as mig-parted and vgpu-device-manager take them (`WalkSelectedMigConfigForEachGPU` in mig-parted's
//!   `cmd/nvidia-mig-parted/assert/assert.go`): one after the other, each for every card that its numbers and its filter
//!   name, so that of several for one card *the last* stands. Cards that none names stay as they are, and so does a card
//!   without MIG that `all` names, or that is to have MIG off.
//! - They pass over in silence what an entry names and cannot have. That is refused here: an index without a card, a card
//!   that the filter keeps out and that no other entry takes. Only an entry whose filter lets none of the host's cards
//!   through is passed over: one file is written for many hosts.
//! - Placements are not in the files. Instances that are there and wanted stay where they are, if the others find room
//!   beside them; so a layout that is there already changes nothing.

mod export;
mod mig;
#[cfg(test)]
mod tests;
mod vgpu;
mod why;

use crate::model::card::{Card, SupportedVgpu};
use crate::model::gpu::layout::{CardLayout, LayoutContent, LayoutDevices, LayoutEntry, LayoutFile};
use crate::model::pci::{PciAddress, Vendor};
pub use export::{Exported, as_it_is, export};
use mig::Planners;
pub use why::{WhyNoCardLayout, WhyNoLayout};

/// A card of the host as the files count it.
#[derive(Clone, Debug)]
pub struct HostCard<'a> {
    /// Its facts.
    pub card: &'a Card,
    /// Its virtual functions, where it has some.
    pub functions: Vec<&'a Card>,
    /// The types of vGPU that it is known to have, whether there is room for them now or not.
    pub types: Vec<SupportedVgpu>,
}

/// What a card is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedCard {
    /// Its number in the file.
    pub index: u32,
    /// Where it is.
    pub address: PciAddress,
    /// What it is to be.
    pub layout: CardLayout,
}

/// The cards of a look as the files count them: those of NVIDIA, without virtual functions, by address and whatever
/// driver has them. nvidia-smi counts the same, but leaves out cards that are with VFIO.
pub fn numbered(cards: &[Card]) -> Vec<HostCard<'_>> {
    let mut own: Vec<&Card> = cards.iter().filter(|card| card.vendor == Vendor::Nvidia && !card.is_vf()).collect();
    own.sort_by_key(|card| card.address);
    own.into_iter().map(|card| host_card(card, cards)).collect()
}

fn host_card<'a>(card: &'a Card, cards: &'a [Card]) -> HostCard<'a> {
    let mut functions: Vec<&Card> = cards.iter().filter(|other| other.physfn == Some(card.address)).collect();
    functions.sort_by_key(|function| function.address);
    let mut types = card.nvml.as_ref().map(|nvml| nvml.vgpu_types.clone()).unwrap_or_default();
    let parents = [card].into_iter().chain(functions.iter().copied()).filter_map(|function| function.vgpu.as_ref());
    for offered in parents.flat_map(|parent| &parent.offered) {
        if !types.iter().any(|known| known.name == offered.name) {
            let (name, memory, most) = (offered.name.clone(), offered.memory, offered.most);
            types.push(SupportedVgpu { name, memory, most, profile: None });
        }
    }
    HostCard { card, functions, types }
}

/// What the cards are to be by one config of a file: the cards that change or are as wished already, by index. A file
/// with one config needs no name.
///
/// # Errors
/// Why not; then nothing of the file may be applied.
pub fn layouts(file: &LayoutFile, name: Option<&str>, cards: &[HostCard<'_>]) -> Result<Vec<PlannedCard>, WhyNoLayout> {
    let (config, entries) = selected(file, name)?;
    let wrong = |at: usize, why| WhyNoLayout::Entry { config: config.to_owned(), entry: at + 1, why };
    let mut last: Vec<Option<(usize, &LayoutEntry)>> = vec![None; cards.len()];
    for (at, entry) in entries.iter().enumerate().filter(|(_, entry)| is_for(entry, cards)) {
        if let LayoutDevices::Indexes(list) = &entry.devices
            && let Some(index) = list.iter().find(|index| at_index(cards, **index).is_none())
        {
            return Err(wrong(at, WhyNoCardLayout::NoIndex { index: *index, count: cards.len() }));
        }
        for (slot, (index, card)) in last.iter_mut().zip((0_u32..).zip(cards)) {
            if names(entry, index) && lets(entry, card) {
                *slot = Some((at, entry));
            }
        }
    }
    for (at, entry) in entries.iter().enumerate().filter(|(_, entry)| is_for(entry, cards)) {
        let LayoutDevices::Indexes(list) = &entry.devices else { continue };
        let kept_out = list.iter().find(|index| usize::try_from(**index).is_ok_and(|at| last.get(at) == Some(&None)));
        if let Some((index, card)) = kept_out.and_then(|index| Some((*index, at_index(cards, *index)?))) {
            return Err(wrong(at, WhyNoCardLayout::wrong_card(index, card.card, &entry.filter)));
        }
    }
    if last.iter().all(Option::is_none) {
        return Err(WhyNoLayout::nothing(config, cards));
    }
    let mut planners = Planners::default();
    let mut planned = Vec::new();
    for ((index, card), taken) in (0_u32..).zip(cards).zip(last) {
        let Some((at, entry)) = taken else { continue };
        let layout = one(entry, index, card, &mut planners).map_err(|why| wrong(at, why))?;
        planned.extend(layout.map(|layout| PlannedCard { index, address: card.card.address, layout }));
    }
    Ok(planned)
}

fn selected<'a>(file: &'a LayoutFile, name: Option<&str>) -> Result<(&'a str, &'a [LayoutEntry]), WhyNoLayout> {
    let there = || file.configs.keys().cloned().collect::<Vec<_>>();
    let found = match name {
        Some(name) => file.configs.get_key_value(name),
        None if file.configs.len() > 1 => return Err(WhyNoLayout::Several(there())),
        None => file.configs.first_key_value(),
    };
    let found = found.map(|(name, entries)| (name.as_str(), entries.as_slice()));
    found.ok_or_else(|| WhyNoLayout::NoConfig { name: name.unwrap_or_default().to_owned(), there: there() })
}

/// What one card is to be; `None` where it stays as it is.
fn one(
    entry: &LayoutEntry,
    index: u32,
    card: &HostCard<'_>,
    planners: &mut Planners,
) -> Result<Option<CardLayout>, WhyNoCardLayout> {
    let has_mig = card.card.mig().is_some();
    match &entry.content {
        LayoutContent::MigOff => Ok(has_mig.then_some(CardLayout::Host)),
        // The program whose format it is passes it over as well; where nobody could ask the card, nothing is known.
        LayoutContent::Mig(_) if !has_mig && entry.devices == LayoutDevices::All && card.card.nvml.is_some() => {
            Ok(None)
        }
        LayoutContent::Mig(counts) => {
            let instances = planners.instances(index, card.card, counts)?;
            Ok(Some(CardLayout::Mig { instances, vgpus: Vec::new() }))
        }
        LayoutContent::Vgpu(counts) => vgpu::layout(index, card, counts, planners).map(Some),
    }
}

fn at_index<'c, 'a>(cards: &'c [HostCard<'a>], index: u32) -> Option<&'c HostCard<'a>> {
    cards.get(usize::try_from(index).ok()?)
}

/// True where it is meant for this host: its filter lets some card through.
fn is_for(entry: &LayoutEntry, cards: &[HostCard<'_>]) -> bool {
    cards.iter().any(|card| lets(entry, card))
}

fn names(entry: &LayoutEntry, index: u32) -> bool {
    match &entry.devices {
        LayoutDevices::All => true,
        LayoutDevices::Indexes(list) => list.contains(&index),
    }
}

fn lets(entry: &LayoutEntry, card: &HostCard<'_>) -> bool {
    entry.filter.is_empty() || entry.filter.iter().any(|filter| filter.lets(&card.card.ids))
}
