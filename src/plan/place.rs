//! Picks cards for the requests of one machine, or says why not.
//!
//! ```text
//! cards + held ──> units ──────> search ──> partitions, by address
//!                 (units.rs)   (search.rs)      or
//!                                            WhyNot (explain.rs, why.rs)
//! ```
//! - The unit is the IOMMU group: its cards go to one machine, or to none. Never are more cards given than were asked
//!   for, so that a group of two is had by asking for two.
//! - The search is exact. Of all sets that meet the requests it takes, in this order: the one on the fewest NUMA nodes,
//!   below the fewest root complexes, below the fewest switches; with the least memory; that breaks up the fewest pairs,
//!   fours and eights of neighbours; with the lowest addresses. Cards of one request are of one model where that can be.
//! - A card whose node or switch is not known is near to none.
//! - Same values in, same answer out.
//!
//! Cards on an NVSwitch board are refused, single ones too: whatever their number, CUDA in the guest does not start until
//! the host's fabric manager has activated a partition of just these cards, and this gvm cannot do that yet.

mod explain;
mod offers;
#[cfg(test)]
mod property_tests;
mod search;
#[cfg(test)]
mod tests;
mod units;
mod why;

use std::collections::HashMap;

use crate::model::gpu::{GpuDevice, GpuId, GpuRequest, LeaseState, Partition, WholeCards};
pub use offers::{Offer, offers};
use search::Term;
pub use search::as_sold;
use units::{Unit, Units};
pub use why::{CardWhy, NoVgpu, Reason, TermCount, UnknownModel, WhyKind, WhyNot};

/// Who holds a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Where the lease stands.
    pub state: LeaseState,
    /// The machine's name, where the one who asks may see it.
    pub vm: Option<String>,
}

/// Cards that are held.
pub type Held = HashMap<GpuId, Holder>;

/// Picks partitions for all requests of one machine, or says why not; in the order of their addresses.
///
/// # Errors
/// [`WhyNot`], with a reason for each card.
pub fn pick(requests: &[GpuRequest], cards: &[GpuDevice], held: &Held) -> Result<Vec<Partition>, WhyNot> {
    if requests.is_empty() {
        return Ok(Vec::new());
    }
    let units = Units::new(cards, held);
    GpuRequest::check_list(requests).map_err(|e| WhyNot::of_request(requests, WhyKind::BadRequest(e.to_string())))?;
    let terms = terms_of(requests)?;
    match choose(&units, &terms, When::Now) {
        Some(chosen) => Ok(partitions(&chosen)),
        None => Err(explain::explain(requests, &terms, &units)),
    }
}

/// The node that all cards are on; `None` where one's node is not known or they are on several, so that nothing is
/// pinned.
pub fn numa_node(partitions: &[Partition]) -> Option<u32> {
    let mut nodes = partitions.iter().map(Partition::numa_node);
    let first = nodes.next()??;
    nodes.all(|node| node == Some(first)).then_some(first)
}

/// Which cards count as there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// Those that are free.
    Now,
    /// Those, and what is held and will come back.
    Later,
}

/// How many combinations of models are tried for requests that leave the model open. An ordinary request has as many as
/// the host has models; more come only from several open requests on a host of very many models, which then may get
/// cards of different models.
const MAX_COMBINATIONS: usize = 64;

/// The units of the best set that meets all terms.
fn choose<'u>(units: &'u Units<'_>, terms: &[Term], when: When) -> Option<Vec<&'u Unit<'u>>> {
    let there: Vec<&Unit<'_>> =
        units.all.iter().filter(|unit| unit.is_usable && (unit.is_free || when == When::Later)).collect();
    let fits: Vec<u8> = units.classes.iter().map(|class| search::bits(terms, class)).collect();
    let open = vec![None; terms.len()];
    let combinations = combinations(terms, &fits, &there);
    let best = combinations
        .iter()
        .filter_map(|models| search::best(terms, &there, &search::restricted(&fits, models)))
        .reduce(|one, other| if other.is_better(&one) { other } else { one });
    let is_open_tried = combinations.contains(&open);
    let best = best.or_else(|| (!is_open_tried).then(|| search::best(terms, &there, &fits)).flatten())?;
    Some(there.into_iter().filter(|unit| best.has(unit.rank)).collect())
}

/// For each term the one model of its cards, or `None` for any.
fn combinations(terms: &[Term], fits: &[u8], there: &[&Unit<'_>]) -> Vec<Vec<Option<usize>>> {
    let mut free = vec![0; fits.len()];
    for seat in there.iter().flat_map(|unit| &unit.seats) {
        if let Some(count) = free.get_mut(seat.class) {
            *count += 1;
        }
    }
    let mut all: Vec<Vec<Option<usize>>> = vec![Vec::new()];
    for (at, term) in terms.iter().enumerate() {
        let is_enough = |(class, bits): (usize, &u8)| {
            let is_model = bits & (1 << at) != 0 && free.get(class).is_some_and(|free| *free >= term.cards.count);
            (term.cards.count > 1 && is_model).then_some(Some(class))
        };
        let mut models: Vec<Option<usize>> = fits.iter().enumerate().filter_map(is_enough).collect();
        if models.is_empty() {
            models.push(None);
        }
        let longer = |models_so_far: &Vec<Option<usize>>| {
            let start = models_so_far.clone();
            models.clone().into_iter().map(move |model| start.iter().copied().chain([model]).collect::<Vec<_>>())
        };
        all = all.iter().flat_map(longer).take(MAX_COMBINATIONS).collect();
    }
    all
}

/// Terms of whole cards; alike ones are one.
fn terms_of(requests: &[GpuRequest]) -> Result<Vec<Term>, WhyNot> {
    let mut terms: Vec<Term> = Vec::new();
    for request in requests {
        let cards = match request {
            GpuRequest::Whole(cards) => cards,
            GpuRequest::Mig(_) => return Err(WhyNot::of_request(requests, WhyKind::MigNotOffered)),
            GpuRequest::Vgpu(_) => return Err(WhyNot::of_request(requests, WhyKind::VgpuNotOffered)),
        };
        match terms.iter_mut().find(|term| term.cards.is_alike(cards)) {
            Some(term) => term.cards.count += cards.count,
            None => terms.push(Term { cards: cards.clone() }),
        }
    }
    Ok(terms)
}

/// Whether so many of these could be had now.
fn is_had(units: &Units<'_>, cards: WholeCards, when: When) -> bool {
    choose(units, &[Term { cards }], when).is_some()
}

fn partitions(chosen: &[&Unit<'_>]) -> Vec<Partition> {
    let mut devices: Vec<&GpuDevice> = chosen.iter().flat_map(|unit| &unit.seats).map(|seat| seat.device).collect();
    devices.sort_by(|one, other| (one.bdf, &one.id).cmp(&(other.bdf, &other.id)));
    let whole = |device: &GpuDevice| Partition::Whole {
        gpu: device.id.clone(),
        bdf: device.bdf,
        siblings: device.siblings.clone(),
        numa_node: device.numa_node,
    };
    devices.into_iter().map(whole).collect()
}
