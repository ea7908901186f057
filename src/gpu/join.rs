//! Puts together what different sources say of a card. The address is the only thing that joins them.

use std::collections::HashMap;

use super::NVIDIA_DRIVER;
use super::nvml::Answer;
use crate::model::card::{
    Card, CardFinding, CardFindingKind, CardMemory, Health, MemorySource, NvmlFacts, NvmlStatus, known,
};
use crate::model::units::Mib;

/// Gives each card what NVML says of it. A card of NVML's that the kernel does not show is raised; a card of the
/// driver's that NVML does not list was dropped.
pub(super) fn nvml(cards: &mut [Card], answer: Answer) -> Vec<CardFinding> {
    let mut findings = Vec::new();
    let Answer { status, cards: facts, names, faults } = answer;
    for (address, names) in &names {
        let is_of = |card: &&mut Card| card.physfn.unwrap_or(card.address) == *address;
        for made in cards.iter_mut().filter(is_of).filter_map(|card| card.vgpu.as_mut()).flat_map(|vgpu| &mut vgpu.made)
        {
            // `1145`, and `nvidia-746` of a mediated device.
            let id = made.type_id.rsplit('-').next().and_then(|id| id.parse().ok());
            made.name = made.name.take().or_else(|| names.get(&id?).cloned());
        }
    }
    for facts in facts {
        match cards.iter_mut().find(|card| card.address == facts.address) {
            Some(card) => {
                card.is_persistent = facts.is_persistent;
                card.nvml = Some(facts);
            }
            None => findings.push(unmatched(&facts)),
        }
    }
    let is_dropped = |card: &&mut Card| {
        card.driver.as_deref() == Some(NVIDIA_DRIVER) && !card.is_vf() && card.nvml.is_none() && card.health.is_good()
    };
    if matches!(status, NvmlStatus::Ready { .. }) {
        let why = faults.first().map_or_else(String::new, |fault| format!(" ({fault})"));
        for card in cards.iter_mut().filter(is_dropped) {
            card.health = Health::Dropped(format!("the nvidia driver has it, and NVML does not list it{why}"));
        }
    }
    let fault = |text| CardFinding { kind: CardFindingKind::NvmlFailed, address: None, text };
    findings.extend(faults.into_iter().map(fault));
    findings
}

fn unmatched(facts: &NvmlFacts) -> CardFinding {
    let uuid = facts.uuid.as_deref().unwrap_or("without a UUID");
    let text = format!("NVML lists a card at {} ({uuid}) that the kernel does not show there", facts.address);
    CardFinding { kind: CardFindingKind::NvmlUnmatched, address: Some(facts.address), text }
}

/// The name that needs no database.
pub(super) fn known_name(card: &Card) -> Option<String> {
    let told = card.nvml.as_ref().and_then(|nvml| nvml.name.clone());
    told.or_else(|| known::look_up(card.vendor, &card.ids)?.name.map(str::to_owned))
}

/// Name and memory.
pub(super) fn describe(card: &mut Card, names: &HashMap<(u16, u16), String>) {
    let looked_up = || names.get(&(card.ids.vendor, card.ids.device)).cloned();
    if let Some(name) = known_name(card).or_else(looked_up) {
        card.model = name;
    }
    let told = card.nvml.as_ref().and_then(|nvml| nvml.memory);
    let told = told.filter(|size| size.0 > 0).map(|size| CardMemory { size, source: MemorySource::Nvml });
    // A virtual function has the number of its card and a part of its memory.
    let known = known::look_up(card.vendor, &card.ids).filter(|_| !card.is_vf());
    let known = known.map(|known| CardMemory { size: known.memory, source: MemorySource::Table });
    let wide = card.bars.iter().filter(|bar| bar.is_64bit && bar.is_prefetchable && !card.is_vf());
    let size = wide.map(|bar| Mib(bar.size >> 20)).max().filter(|size| size.0 > 0);
    let window = size.map(|size| CardMemory { size, source: MemorySource::Bar });
    let driver = card.memory.filter(|memory| memory.source == MemorySource::Driver);
    card.memory = told.or(driver).or(known).or(window);
}
