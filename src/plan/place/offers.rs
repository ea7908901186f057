//! What could be asked for right now: the planner's own answers, so that what is shown can be had.

use serde::Serialize;

use super::units::Units;
use super::why::Reason;
use super::{Held, When, is_had};
use crate::model::gpu::{Closeness, GpuDevice, GpuRequest, MAX_GPUS, ModelWord, WholeCards};
use crate::model::units::Mib;

/// Cards of one model and size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Offer {
    /// What to write for one of them. Where cards of one IOMMU group go together one alone may not be had: see `counts`.
    pub request: GpuRequest,
    /// Marketing name.
    pub model: String,
    /// Memory of each; zero where not known.
    pub memory: Mib,
    /// All that gvm manages, those that are held or out of order included.
    pub total: u32,
    /// The most that would be granted now to one machine.
    pub free: u32,
    /// Every number of them that would be granted now.
    pub counts: Vec<u32>,
    /// The most that would be granted now on one NUMA node; zero where nodes are not known.
    pub same_node: u32,
    /// The most that would be granted now below one switch; zero where none share one.
    pub same_switch: u32,
}

impl Offer {
    /// What to write for so many of them.
    pub fn request_for(&self, count: u32, closeness: Option<Closeness>) -> GpuRequest {
        match &self.request {
            GpuRequest::Whole(cards) => GpuRequest::Whole(WholeCards { count, closeness, ..cards.clone() }),
            other => other.clone(),
        }
    }
}

/// An offer for each model and size that gvm manages here, by name and size.
pub fn offers(cards: &[GpuDevice], held: &Held) -> Vec<Offer> {
    let units = Units::new(cards, held);
    let mut offers: Vec<Offer> = (0..units.classes.len()).filter_map(|class| offer(&units, class)).collect();
    offers.sort_by(|one, other| (&one.model, one.memory).cmp(&(&other.model, other.memory)));
    offers
}

fn offer(units: &Units<'_>, class: usize) -> Option<Offer> {
    let (mut total, mut free) = (0, 0);
    for (unit, seat) in units.all.iter().flat_map(|unit| unit.seats.iter().map(move |seat| (unit, seat))) {
        if seat.class == class && !matches!(seat.why, Some(Reason::Foreign { .. })) {
            total += 1;
            free += u32::from(unit.is_usable && unit.is_free);
        }
    }
    let device = units.classes.get(class)?.device;
    let one = request(units, class);
    // Never more than are free of this very model, though the word may ask for others as well.
    let most = free.min(MAX_GPUS);
    let is_offered = |count: u32, closeness: Option<Closeness>| {
        is_had(units, WholeCards { count, closeness, ..one.clone() }, When::Now)
    };
    let closest = |closeness| (2..=most).rev().find(|count| is_offered(*count, Some(closeness))).unwrap_or(0);
    let counts: Vec<u32> = (1..=most).filter(|count| is_offered(*count, None)).collect();
    (total > 0).then(|| Offer {
        request: GpuRequest::Whole(one.clone()),
        model: device.model.clone(),
        memory: device.memory,
        total,
        free: counts.last().copied().unwrap_or(0),
        same_node: closest(Closeness::SameNode),
        same_switch: closest(Closeness::SameSwitch),
        counts,
    })
}

/// The shortest request that asks for this model and no other, where there is one.
fn request(units: &Units<'_>, class: usize) -> WholeCards {
    let Some(this) = units.classes.get(class) else { return WholeCards::any(1) };
    let others = || units.classes.iter().enumerate().filter(|(other, _)| *other != class).map(|(_, other)| other);
    let words = this.name.words();
    let is_unique = |word: &&ModelWord| !others().any(|other| other.name.is_called(word));
    let model = words.iter().find(is_unique).or(words.first()).cloned();
    let is_ambiguous = model.as_ref().is_none_or(|word| !is_unique(&word));
    WholeCards { count: 1, memory: this.memory().filter(|_| is_ambiguous), model, closeness: None }
}
