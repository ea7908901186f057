//! From what was found on the host to cards that can be planned with.
//!
//! ```text
//! cards of a look --+-> recognise --> entries: each card with its row, each row without a card
//! rows of the store +                  |  \--> rows that changed, to be written
//!                                      v
//!                       leases --> devices --> [GpuDevice], what `place` plans with
//! ```
//!
//! A card's id is for life, though its address and even its UUID come and go: under VFIO no driver can be asked for a
//! UUID, and a new card in the box shifts the addresses of the others. So a card is known again by its UUID where both
//! sides have one, else by its numbers at its old place. A card that fits in another place is told, and not taken for
//! the old one: it may be another tenant's.

use std::collections::{BTreeSet, HashSet};

use jiff::{SignedDuration, Timestamp};

use crate::model::card::blockers::{Blocker, BlockerKind};
use crate::model::card::history::GpuHistory;
use crate::model::card::identity::{CardIdentity, Whereabouts};
use crate::model::card::vgpu::VgpuParent;
use crate::model::card::{Card, CardMode, MemorySource};
use crate::model::gpu::{Fabric, GpuDevice, GpuId, GpuMode, VgpuTypeName};
use crate::model::inventory::{KnownGpu, Withheld};
use crate::model::pci::{GroupMember, PciAddress};
use crate::model::units::Mib;

/// A row is written no more often than this where nothing but the time of the look is new.
const SEEN_STEP: SignedDuration = SignedDuration::from_mins(1);

/// A card that is here, was here, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// For life.
    pub id: GpuId,
    /// What is remembered; nothing of virtual functions.
    pub known: Option<KnownGpu>,
    /// What was found; `None` where it is gone.
    pub card: Option<Card>,
    /// Where a card is that may be the one that is gone.
    pub whereabouts: Option<Whereabouts>,
}

impl Entry {
    /// Its name.
    pub fn model(&self) -> &str {
        let known = self.known.as_ref().map(|known| known.model.as_str());
        known.or_else(|| self.card.as_ref().map(|card| card.model.as_str())).unwrap_or_default()
    }

    /// Where it is, or was.
    pub fn address(&self) -> Option<PciAddress> {
        let card = self.card.as_ref().map(|card| card.address);
        card.or_else(|| self.known.as_ref().map(|known| known.identity.address))
    }

    /// Its memory, where known.
    pub fn memory(&self) -> Option<Mib> {
        let told = self.card.as_ref().and_then(|card| card.memory).map(|memory| memory.size);
        self.known.as_ref().and_then(|known| known.memory).or(told)
    }
}

/// What one look came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recognised {
    /// By address; those that are gone last.
    pub entries: Vec<Entry>,
    /// Rows to be written.
    pub changed: Vec<KnownGpu>,
}

/// Joins cards with what is remembered.
pub fn recognise(known: &[KnownGpu], cards: &[Card], boot_id: &str, now: Timestamp) -> Recognised {
    let mut owner: Vec<Option<&KnownGpu>> = vec![None; cards.len()];
    // First those that are sure.
    for by_uuid in [true, false] {
        for row in known {
            if owner.iter().flatten().any(|taken| taken.id == row.id) {
                continue;
            }
            let is_it = |card: &Card| card.is_own() && fits(&row.identity, card, by_uuid);
            let place = cards.iter().zip(&owner).position(|(card, owner)| owner.is_none() && is_it(card));
            if let Some(slot) = place.and_then(|place| owner.get_mut(place)) {
                *slot = Some(row);
            }
        }
    }
    let mut taken: HashSet<GpuId> = known.iter().map(|row| row.id.clone()).collect();
    let mut found = Recognised::default();
    for (card, owner) in cards.iter().zip(&owner) {
        if !card.is_own() {
            found.entries.push(Entry { id: card.id(), known: None, card: Some(card.clone()), whereabouts: None });
            continue;
        }
        let row = match owner {
            Some(row) => refreshed(row, card, cards, boot_id, now),
            None => new_row(card, cards, &mut taken, now),
        };
        if *owner != Some(&row) {
            found.changed.push(row.clone());
        }
        let card = Card { model: row.model.clone(), ..card.clone() };
        found.entries.push(Entry { id: row.id.clone(), known: Some(row), card: Some(card), whereabouts: None });
    }
    found.entries.sort_by_key(Entry::address);
    let strangers: Vec<Card> =
        cards.iter().zip(&owner).filter(|(_, owner)| owner.is_none()).map(|(card, _)| card.clone()).collect();
    for row in known.iter().filter(|row| !owner.iter().flatten().any(|taken| taken.id == row.id)) {
        let whereabouts = Some(row.identity.find(&strangers));
        found.entries.push(Entry { id: row.id.clone(), known: Some(row.clone()), card: None, whereabouts });
    }
    found
}

/// Whether the card is the remembered one.
fn fits(identity: &CardIdentity, card: &Card, by_uuid: bool) -> bool {
    let uuid = card.nvml.as_ref().and_then(|nvml| nvml.uuid.as_ref());
    match (&identity.uuid, uuid) {
        (Some(mine), Some(its)) => by_uuid && mine == its,
        _ => !by_uuid && identity.address == card.address && identity.ids == card.ids,
    }
}

fn refreshed(row: &KnownGpu, card: &Card, cards: &[Card], boot_id: &str, now: Timestamp) -> KnownGpu {
    let mut row = row.clone();
    let identity = CardIdentity::from(card);
    row.identity = CardIdentity { uuid: identity.uuid.or(row.identity.uuid), ..identity };
    // NVML's word is kept while the card is with VFIO; what the others say may change with their tables.
    let is_told = card.nvml.as_ref().is_some_and(|nvml| nvml.name.is_some());
    if is_told || row.identity.uuid.is_none() {
        row.model.clone_from(&card.model);
    }
    let told = card.memory.filter(|memory| memory.source == MemorySource::Nvml || row.memory.is_none());
    row.memory = told.map(|memory| memory.size).or(row.memory);
    if matches!(&row.withheld, Some(Withheld::Stuck { boot_id: then, .. }) if then != boot_id) {
        row.withheld = None;
    }
    row.history = row.history.in_boot(boot_id);
    row.vgpu_types = vgpu_types(card, cards, &row.vgpu_types);
    if now.duration_since(row.seen_at) >= SEEN_STEP {
        row.seen_at = now;
    }
    row
}

/// The types that a card has: what its functions list while nothing is made on it, and what they listed before where
/// something is.
fn vgpu_types(card: &Card, cards: &[Card], before: &[VgpuTypeName]) -> Vec<VgpuTypeName> {
    let its = cards.iter().filter(|other| other.physfn.unwrap_or(other.address) == card.address);
    let parents: Vec<&VgpuParent> = its.filter_map(|function| function.vgpu.as_ref()).collect();
    let listed = parents.iter().flat_map(|parent| &parent.offered).map(|offered| &offered.name);
    // NVML names all of them, whatever there is room for.
    let told = card.nvml.iter().flat_map(|nvml| &nvml.vgpu_types).map(|supported| &supported.name);
    let mut types: BTreeSet<&VgpuTypeName> = listed.chain(told).collect();
    // On another driver's card, or without functions, nothing is listed.
    if types.is_empty() || parents.iter().any(|parent| !parent.made.is_empty()) {
        types.extend(before);
    }
    types.into_iter().cloned().collect()
}

fn new_row(card: &Card, cards: &[Card], taken: &mut HashSet<GpuId>, now: Timestamp) -> KnownGpu {
    // The place of a card that is gone may be another's by now.
    let base = card.id();
    let mut id = base.clone();
    for number in 2_u32.. {
        if taken.insert(id.clone()) {
            break;
        }
        id = GpuId(format!("{base}-{number}"));
    }
    KnownGpu {
        id,
        identity: CardIdentity::from(card),
        model: card.model.clone(),
        memory: card.memory.map(|memory| memory.size),
        vgpu_types: vgpu_types(card, cards, &[]),
        is_kept: false,
        shape: None,
        own_instances: Vec::new(),
        former: Vec::new(),
        withheld: None,
        history: GpuHistory::default(),
        seen_at: now,
    }
}

/// Whether names of processes of the host may be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eyes {
    /// Everything: operators and administrators.
    Host,
    /// That somebody has a card open, and not who: members.
    Member,
}

/// What members read instead of a process of the host.
pub const SOMEBODY: &str = "a process of the host has it open (an administrator sees which)";

/// The cards that can be planned with; those of `leased` are held by machines of ours.
pub fn devices(entries: &[Entry], leased: &HashSet<GpuId>, eyes: Eyes) -> Vec<GpuDevice> {
    let mates = functions(entries.iter().filter_map(|entry| entry.card.as_ref()));
    let device = |entry: &Entry| {
        let (row, card) = (entry.known.as_ref()?, entry.card.as_ref()?);
        Some(device(entry, row, card, &mates, leased.contains(&entry.id), eyes))
    };
    entries.iter().filter_map(device).collect()
}

/// All functions that go along with cards.
pub fn functions<'c>(cards: impl Iterator<Item = &'c Card>) -> HashSet<PciAddress> {
    cards.filter(|card| card.is_own()).flat_map(functions_of).collect()
}

/// A card's functions: its own first, then those that go along.
pub fn functions_of(card: &Card) -> Vec<PciAddress> {
    [card.address].into_iter().chain(card.siblings()).collect()
}

fn device(
    entry: &Entry,
    row: &KnownGpu,
    card: &Card,
    mates: &HashSet<PciAddress>,
    is_leased: bool,
    eyes: Eyes,
) -> GpuDevice {
    let mut texts: Vec<String> = Vec::new();
    for blocker in hindrances(card, is_leased) {
        let text = match (blocker.kind, eyes) {
            (BlockerKind::Held, Eyes::Member) => SOMEBODY.to_owned(),
            _ => blocker.text.clone(),
        };
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    if card.is_part() && entry.memory().is_none() {
        texts.push("how much of its card's memory it has is not set, or not told by its driver".to_owned());
    }
    let has = |kind: BlockerKind| card.blockers.iter().any(|blocker| blocker.kind == kind);
    GpuDevice {
        id: row.id.clone(),
        bdf: card.address,
        vendor: card.vendor,
        model: row.model.clone(),
        memory: entry.memory().unwrap_or(Mib(0)),
        mode: match card.mode {
            CardMode::Vgpu => GpuMode::Vgpu,
            CardMode::Mig => GpuMode::Mig,
            CardMode::Passthrough | CardMode::Host | CardMode::Unbound => GpuMode::Passthrough,
        },
        numa_node: card.numa_node,
        siblings: card.siblings(),
        iommu_group: card.iommu.as_ref().map(|group| group.number),
        blockers: strangers(card, mates).cloned().collect(),
        upstream: card.upstream.bridges.clone(),
        bars: card.bars.clone(),
        fabric: if has(BlockerKind::NvSwitch) { Fabric::Nvswitch } else { Fabric::None },
        fabric_why: card.blockers.iter().find(|b| b.kind == BlockerKind::NvSwitch).map(|b| b.text.clone()),
        service: super::health::service(row, card, is_leased),
        is_foreign: has(BlockerKind::Foreign),
        blocked: (!texts.is_empty()).then(|| texts.join("; ")),
    }
}

/// Members of its group that the host drives and that are no cards, which would go along.
fn strangers<'c>(card: &'c Card, mates: &HashSet<PciAddress>) -> impl Iterator<Item = &'c GroupMember> {
    card.blocking_members().filter(|member| !mates.contains(&member.address))
}

/// What speaks against a card besides its group, and besides the machine that has a lease of it.
fn hindrances(card: &Card, is_leased: bool) -> impl Iterator<Item = &Blocker> {
    card.blockers.iter().filter(move |blocker| match blocker.kind {
        // Told by fields of their own.
        BlockerKind::GroupMember | BlockerKind::NvSwitch | BlockerKind::Foreign => false,
        BlockerKind::InMachine => !is_leased,
        _ => true,
    })
}

/// Everything that speaks against taking a card for a machine that has a lease of it; `mates` are the functions of all
/// cards, and `own` is the machine's domain, which may have the card already.
pub fn obstacles(card: &Card, mates: &HashSet<PciAddress>, own: Option<&str>) -> Vec<String> {
    let is_own = |blocker: &Blocker| {
        let mut holders = card.holders.iter().filter(|holder| own.is_some() && holder.domain.as_deref() == own);
        blocker.kind == BlockerKind::InMachine && holders.any(|holder| holder.words() == blocker.text)
    };
    let is_other = |blocker: &&Blocker| blocker.kind != BlockerKind::GroupMember && !is_own(blocker);
    let blockers = card.blockers.iter().filter(is_other).map(|blocker| blocker.text.clone());
    let group = strangers(card, mates).map(|member| format!("its IOMMU group cannot go along: {}", member.words()));
    blockers.chain(group).collect()
}

#[cfg(test)]
pub(in crate::plan) mod tests;
