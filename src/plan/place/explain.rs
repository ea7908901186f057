//! Finds out why a request cannot be met.

use super::search::Term;
use super::units::{Seat, Unit, Units};
use super::why::{CardWhy, Reason, TermCount, UnknownModel, WhyKind, WhyNot, written};
use super::{When, choose, is_had};
use crate::model::gpu::{Closeness, GpuRequest, MAX_GPUS, WholeCards};

/// A word with more slips than this was no slip.
const MAX_SLIPS: usize = 2;

/// Why these terms are not met now.
pub(super) fn explain(requests: &[GpuRequest], terms: &[Term], units: &Units<'_>) -> WhyNot {
    WhyNot {
        wanted: written(requests),
        kind: kind(terms, units),
        terms: terms.iter().map(|term| count(term, units)).collect(),
        cards: units.seats().into_iter().map(|(unit, seat)| card(terms, units, unit, seat)).collect(),
        now: granted_now(terms, units),
    }
}

fn kind(terms: &[Term], units: &Units<'_>) -> WhyKind {
    let is_managed = |seat: &&Seat<'_>| !matches!(seat.why, Some(Reason::Foreign { .. }));
    let managed: Vec<&Seat<'_>> = units.all.iter().flat_map(|unit| &unit.seats).filter(is_managed).collect();
    if managed.is_empty() {
        return WhyKind::NoGpus;
    }
    let is_here = |class: usize| managed.iter().any(|seat| seat.class == class);
    let here = || units.classes.iter().enumerate().filter(|(class, _)| is_here(*class)).map(|(_, class)| class);
    for word in terms.iter().filter_map(|term| term.cards.model.as_ref()) {
        if here().any(|class| class.name.is_called(word)) {
            continue;
        }
        let mut models: Vec<String> = here().map(|class| class.name.word()).collect();
        models.sort_unstable();
        models.dedup();
        let near = here().map(|class| (class.name.distance(word), class.name.word()));
        let nearest = near.min().filter(|(slips, _)| *slips <= MAX_SLIPS).map(|(_, near)| near);
        return WhyKind::UnknownModel(Box::new(UnknownModel { word: word.to_string(), nearest, models }));
    }
    if choose(units, terms, When::Later).is_some() {
        return WhyKind::NotFree;
    }
    if terms.iter().all(|term| mendable(term, units) >= term.cards.count) {
        return WhyKind::OutOfUse;
    }
    let counts: Vec<(u32, u32)> = terms.iter().map(|term| (count(term, units).exist, term.cards.count)).collect();
    if counts.iter().any(|(exist, _)| *exist == 0) {
        return WhyKind::NoneFits;
    }
    let is_enough = counts.iter().all(|(exist, wanted)| exist >= wanted);
    let open: Vec<Term> = terms.iter().map(opened).collect();
    let is_close = terms.iter().any(|term| term.cards.closeness.is_some());
    if is_enough && is_close && choose(units, &open, When::Later).is_some() {
        return WhyKind::Apart;
    }
    let is_grouped = units.all.iter().any(|unit| unit.is_usable && unit.seats.len() > 1);
    if is_enough && is_grouped { WhyKind::Grouped } else { WhyKind::TooFew }
}

/// Cards that fit a term, those included that something passing or an administrator's decision keeps out of use; but not
/// where that needs another slot or another board.
fn mendable(term: &Term, units: &Units<'_>) -> u32 {
    if term.cards.closeness.is_some() {
        return 0;
    }
    let is_it = |seat: &&Seat<'_>| {
        let is_built_in =
            matches!(seat.why, Some(Reason::GroupBlocked { .. } | Reason::Fabric { .. } | Reason::Foreign { .. }));
        !is_built_in && units.classes.get(seat.class).is_some_and(|class| term.fits(class))
    };
    let alone = units.all.iter().filter(|unit| unit.seats.len() == 1);
    u32::try_from(alone.flat_map(|unit| &unit.seats).filter(is_it).count()).unwrap_or(u32::MAX)
}

fn opened(term: &Term) -> Term {
    Term { cards: WholeCards { closeness: None, ..term.cards.clone() } }
}

fn count(term: &Term, units: &Units<'_>) -> TermCount {
    let fits = |unit: &&Unit<'_>, seat: &Seat<'_>| {
        unit.is_usable && units.classes.get(seat.class).is_some_and(|class| term.fits(class))
    };
    let (mut free, mut exist) = (0, 0);
    for unit in &units.all {
        for _ in unit.seats.iter().filter(|seat| fits(&unit, seat)) {
            exist += 1;
            free += u32::from(unit.is_free);
        }
    }
    TermCount { request: GpuRequest::Whole(term.cards.clone()), free, exist }
}

fn card(terms: &[Term], units: &Units<'_>, unit: &Unit<'_>, seat: &Seat<'_>) -> CardWhy {
    CardWhy {
        id: seat.device.id.clone(),
        bdf: seat.device.bdf,
        model: seat.device.model.clone(),
        memory: seat.device.memory,
        reason: reason(terms, units, unit, seat),
    }
}

/// The first reason that counts: not what is asked for, not to be had, not free, not close.
fn reason(terms: &[Term], units: &Units<'_>, unit: &Unit<'_>, seat: &Seat<'_>) -> Reason {
    if let Some(why) = not_asked_for(terms, units, seat) {
        return why;
    }
    if let Some(why) = not_to_be_had(seat) {
        return why;
    }
    let others = || unit.seats.iter().filter(|other| other.device.bdf != seat.device.bdf);
    let mate = |other: &Seat<'_>| not_to_be_had(other).or_else(|| not_asked_for(terms, units, other));
    if let Some((other, why)) = others().find_map(|other| mate(other).map(|why| (other, why))) {
        return Reason::Mate { with: other.device.bdf, why: Box::new(why) };
    }
    if !unit.is_usable {
        return Reason::Blocked { why: "gvm does not plan with so many GPUs on one host".to_owned() };
    }
    let not_placed = terms.iter().filter(|term| !term.is_placed(unit)).find_map(|term| term.cards.closeness);
    match not_placed.filter(|_| terms.iter().all(|term| !term.is_placed(unit))) {
        Some(Closeness::SameNode) => return Reason::NodeUnknown,
        Some(Closeness::SameSwitch) => return Reason::SwitchUnknown,
        None => {}
    }
    let with: Vec<_> = others().map(|other| other.device.bdf).collect();
    if with.is_empty() { Reason::Free } else { Reason::FreeTogether { with } }
}

/// Why a card fits no term.
fn not_asked_for(terms: &[Term], units: &Units<'_>, seat: &Seat<'_>) -> Option<Reason> {
    let class = units.classes.get(seat.class)?;
    if terms.iter().any(|term| term.fits(class)) {
        return None;
    }
    let least = terms.iter().filter(|term| term.is_called(class)).filter_map(|term| term.cards.memory).min();
    Some(match least {
        None => Reason::Model,
        Some(_) if class.memory().is_none() => Reason::MemoryUnknown,
        Some(wanted) => Reason::Memory { wanted },
    })
}

fn not_to_be_had(seat: &Seat<'_>) -> Option<Reason> {
    let held = || seat.holder.map(|holder| Reason::Held { state: holder.state, vm: holder.vm.clone() });
    seat.why.clone().or_else(held)
}

/// For each term the largest part of it that would be granted now, and the whole of it without its closeness.
fn granted_now(terms: &[Term], units: &Units<'_>) -> Vec<GpuRequest> {
    let mut granted: Vec<WholeCards> = Vec::new();
    for term in terms {
        let with = |count: u32| {
            let closeness = term.cards.closeness.filter(|_| count > 1);
            WholeCards { count, closeness, ..term.cards.clone() }
        };
        let more = (1..=term.cards.count).rev().chain(term.cards.count + 1..=MAX_GPUS).map(with);
        granted.extend(more.into_iter().find(|cards| is_had(units, cards.clone(), When::Now)));
        let open = opened(term).cards;
        if term.cards.closeness.is_some() && is_had(units, open.clone(), When::Now) {
            granted.push(open);
        }
    }
    granted.into_iter().map(GpuRequest::Whole).collect()
}
