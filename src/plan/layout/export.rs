//! From cards to a layout file.

use std::collections::BTreeMap;

use super::HostCard;
use crate::model::card::vgpu::MadeVgpu;
use crate::model::gpu::VgpuTypeName;
use crate::model::gpu::layout::{
    CardLayout, DeviceFilter, LayoutContent, LayoutDevices, LayoutEntry, LayoutFile, LayoutFormat,
};
use crate::model::gpu::mig::Instance;
use crate::model::pci::{PciAddress, PciIds};

/// A card to be written into a file.
#[derive(Clone, Debug)]
pub struct Exported {
    /// Its number in the file.
    pub index: u32,
    /// Where it is.
    pub address: PciAddress,
    /// Its numbers.
    pub ids: PciIds,
    /// What it is.
    pub layout: CardLayout,
    /// vGPUs on it whose type nobody can name.
    pub unnamed: usize,
}

impl Exported {
    /// A card as it stands.
    pub fn new(index: u32, card: &HostCard<'_>) -> Self {
        let unnamed = made(card).filter(|made| made.name.is_none()).count();
        Self { index, address: card.card.address, ids: card.card.ids, layout: as_it_is(card), unnamed }
    }
}

fn made<'a>(card: &HostCard<'a>) -> impl Iterator<Item = &'a MadeVgpu> {
    let parents: Vec<_> = [card.card].into_iter().chain(card.functions.iter().copied()).collect();
    parents.into_iter().filter_map(|function| function.vgpu.as_ref()).flat_map(|parent| &parent.made)
}

/// What a card is divided into at the moment. vGPUs whose type nobody can name are left out.
pub fn as_it_is(card: &HostCard<'_>) -> CardLayout {
    let types = counted(made(card).filter_map(|made| made.name.clone()));
    match card.card.mig().filter(|mig| mig.is_on) {
        Some(mig) => {
            let mut instances: Vec<Instance> = mig.instances.iter().map(|made| made.instance).collect();
            instances.sort_by_key(|instance| instance.placement);
            CardLayout::Mig { instances, vgpus: types }
        }
        None if types.is_empty() => CardLayout::Host,
        None => CardLayout::Vgpu { types },
    }
}

/// A file with one config, and what it cannot say. Cards of one kind that are alike have one entry. Read again on the
/// same host it makes of every card in it what it is.
pub fn export(format: LayoutFormat, config: &str, cards: &[Exported]) -> (LayoutFile, Vec<String>) {
    let mut entries: Vec<LayoutEntry> = Vec::new();
    let mut notes = vec![format!("Layout of this host's cards for {format}, written by gvm.")];
    for card in cards {
        if card.unnamed > 0 {
            let Exported { index, address, unnamed, .. } = card;
            notes.push(format!(
                "Card {index} ({address}) carries vGPUs of a type without a name, which are left out: {unnamed}"
            ));
        }
        let content = match format {
            LayoutFormat::MigParted => mig(card, &mut notes),
            LayoutFormat::VgpuDeviceManager => vgpu(card, &mut notes),
        };
        let Some(content) = content else { continue };
        let filter = vec![DeviceFilter::of(&card.ids)];
        match entries.iter_mut().find(|entry| entry.filter == filter && entry.content == content) {
            Some(LayoutEntry { devices: LayoutDevices::Indexes(list), .. }) => list.push(card.index),
            _ => entries.push(LayoutEntry { filter, devices: LayoutDevices::Indexes(vec![card.index]), content }),
        }
    }
    let configs = match entries.is_empty() {
        true => {
            notes.push("No card can be told in this format; a file without entries is not read by anybody.".to_owned());
            BTreeMap::new()
        }
        false => BTreeMap::from([(config.to_owned(), entries)]),
    };
    (LayoutFile { format, configs }, notes)
}

fn mig(card: &Exported, notes: &mut Vec<String>) -> Option<LayoutContent> {
    let Exported { index, address, .. } = card;
    match &card.layout {
        CardLayout::Host => Some(LayoutContent::MigOff),
        CardLayout::Vgpu { .. } => {
            notes.push(format!(
                "Card {index} ({address}) carries vGPUs, which this format does not say: it is left out. Export it for {}.",
                LayoutFormat::VgpuDeviceManager
            ));
            None
        }
        CardLayout::Mig { instances, vgpus } => {
            if !instances.is_empty() {
                let places = instances.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
                notes.push(format!("Placements are not in this format. Card {index} ({address}): {places}"));
            }
            if !vgpus.is_empty() {
                notes.push(format!("vGPUs are not in this format. Card {index} ({address}): {}", words(vgpus)));
            }
            Some(LayoutContent::Mig(counted(instances.iter().map(|instance| instance.profile))))
        }
    }
}

fn vgpu(card: &Exported, notes: &mut Vec<String>) -> Option<LayoutContent> {
    let Exported { index, address, .. } = card;
    let short = |types: &[(VgpuTypeName, u32)]| {
        // The format's names have no spaces: the last word tells the type.
        let named = types.iter().filter_map(|(name, count)| Some((VgpuTypeName::parse(name.short())?, *count)));
        let mut named: Vec<_> = named.collect();
        named.sort_unstable();
        LayoutContent::Vgpu(named)
    };
    match &card.layout {
        CardLayout::Host => Some(LayoutContent::Vgpu(Vec::new())),
        CardLayout::Vgpu { types } if types.iter().all(|(name, _)| name.grade().is_some()) => Some(short(types)),
        CardLayout::Vgpu { types } => {
            notes.push(format!(
                "Card {index} ({address}) carries vGPUs of types that this format has no names for: {}. It is left out.",
                words(types)
            ));
            None
        }
        CardLayout::Mig { instances, vgpus } => {
            let told: u32 = vgpus.iter().map(|(_, count)| *count).fold(0, u32::saturating_add);
            if usize::try_from(told).is_ok_and(|told| told == instances.len()) && told > 0 {
                let places = instances.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
                notes.push(format!("Placements are not in this format. Card {index} ({address}): {places}"));
                return Some(short(vgpus));
            }
            notes.push(format!(
                "Card {index} ({address}) has MIG instances without a vGPU on each, which this format does not say: it \
                 is left out. Export it for {}.",
                LayoutFormat::MigParted
            ));
            None
        }
    }
}

/// So many of each, in order.
fn counted<T: Ord>(items: impl Iterator<Item = T>) -> Vec<(T, u32)> {
    let mut counts: BTreeMap<T, u32> = BTreeMap::new();
    for item in items {
        *counts.entry(item).or_default() += 1;
    }
    counts.into_iter().collect()
}

fn words(types: &[(VgpuTypeName, u32)]) -> String {
    types.iter().map(|(name, count)| format!("{count}x {name}")).collect::<Vec<_>>().join(", ")
}
