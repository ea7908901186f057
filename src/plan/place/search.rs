//! The best set of units for some terms: exact, by dynamic programming over the tree of places.
//!
//! Each place (NUMA node, root complex, switch) gives, for every number of cards that could be taken from it for each
//! term, the best way to do so; a place's answers are put together from those of the places in it. The cost is a sum
//! over places and cards, so that the best of the whole is made of bests of the parts.

use super::units::{Class, Place, Unit};
use crate::model::gpu::{Closeness, MAX_GPUS, MAX_KINDS, WholeCards};
use crate::model::units::Mib;

/// A term of the request, alike ones added up.
#[derive(Clone, Debug)]
pub(super) struct Term {
    pub cards: WholeCards,
}

impl Term {
    /// True where model and size are those asked for.
    pub fn fits(&self, class: &Class<'_>) -> bool {
        self.is_called(class) && self.is_large(class)
    }

    pub fn is_called(&self, class: &Class<'_>) -> bool {
        self.cards.model.as_ref().is_none_or(|word| class.name.is_called(word))
    }

    pub fn is_large(&self, class: &Class<'_>) -> bool {
        self.cards.memory.is_none_or(|least| class.memory().is_some_and(|memory| is_as_sold(memory, least)))
    }

    /// True where it is known whether the unit is close to others in the way that is asked for.
    pub fn is_placed(&self, unit: &Unit<'_>) -> bool {
        match self.cards.closeness {
            None => true,
            Some(Closeness::SameNode) => unit.node.is_some(),
            Some(Closeness::SameSwitch) => !unit.upstream.is_empty(),
        }
    }
}

/// Of a size as sold a card tells so much, in percent: ECC takes a sixteenth, and the driver a little more.
const TOLD_OF_SOLD: u64 = 93;
/// Sizes as sold are multiples of it, or told in full.
const SOLD_STEP: u64 = 4 << 10;

/// True where a card that tells `memory` is sold as one of `size` at least: `48GiB` gets an L40S, which tells 46068 MiB;
/// `41GiB` does not get a card of 40 GiB.
pub(super) const fn is_as_sold(Mib(memory): Mib, Mib(size): Mib) -> bool {
    let Mib(sold) = as_sold(Mib(memory));
    memory >= size || size <= sold && memory.saturating_mul(100) >= size.saturating_mul(TOLD_OF_SOLD)
}

/// The size that a card is sold with which tells `memory`.
pub const fn as_sold(Mib(memory): Mib) -> Mib {
    Mib(memory.div_ceil(SOLD_STEP).saturating_mul(SOLD_STEP))
}

/// The terms that a model fits, a bit for each.
pub(super) fn bits(terms: &[Term], class: &Class<'_>) -> u8 {
    terms.iter().enumerate().filter(|(_, term)| term.fits(class)).fold(0, |bits, (at, _)| bits | 1 << at)
}

/// `fits` with only the one model where a term has one.
pub(super) fn restricted(fits: &[u8], models: &[Option<usize>]) -> Vec<u8> {
    let is_kept = |class: usize, at: usize, model: &Option<usize>, bits: u8| {
        bits & (1 << at) != 0 && model.is_none_or(|only| only == class)
    };
    let keep = |(class, bits): (usize, &u8)| {
        models
            .iter()
            .enumerate()
            .filter(|(at, model)| is_kept(class, *at, model, *bits))
            .fold(0, |kept, (at, _)| kept | 1 << at)
    };
    fits.iter().enumerate().map(keep).collect()
}

/// Cards by term, a byte each; see [`Search::fits_caps`].
type Taken = u32;
const _: () = assert!(MAX_KINDS == 4 && MAX_GPUS < 128);

/// One way to take cards, and what it costs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Way {
    taken: Taken,
    /// Place of `taken` in a table.
    index: usize,
    /// How many places are touched; five bits for each level, the highest level first.
    spread: u64,
    memory: u64,
    /// Pairs, fours and eights of neighbours that are no longer there.
    broken: u32,
    /// Units, the lowest address as the highest bit.
    units: u128,
}

impl Way {
    pub fn has(&self, rank: usize) -> bool {
        self.units & unit_bit(rank) != 0
    }

    pub fn is_better(&self, other: &Self) -> bool {
        let cost = |way: &Self| (way.spread, way.memory, way.broken, !way.units);
        cost(self) < cost(other)
    }

    const fn with(self, other: &Self) -> Self {
        Self {
            taken: self.taken + other.taken,
            index: self.index + other.index,
            spread: self.spread + other.spread,
            memory: self.memory + other.memory,
            broken: self.broken + other.broken,
            units: self.units | other.units,
        }
    }
}

const fn unit_bit(rank: usize) -> u128 {
    if rank < 128 { 1 << (127 - rank) } else { 0 }
}

/// A unit with what can be taken from it.
#[derive(Debug)]
struct Leaf<'u> {
    unit: &'u Unit<'u>,
    /// How many of its cards fit each term.
    fitting: [u32; MAX_KINDS],
    ways: Vec<Way>,
}

#[derive(Clone, Copy, Debug)]
enum Level {
    Node,
    Root,
    /// The bridge with so many above itself.
    Bridge(usize),
}

impl Level {
    fn place(self, unit: &Unit<'_>) -> Place {
        match self {
            Self::Node => unit.node_place(),
            Self::Root => unit.root_place(),
            Self::Bridge(depth) => unit.bridge_place(depth),
        }
    }
}

/// Levels that are looked at: node, root, root port and some switches below each other. Five bits each fill 64.
const MAX_LEVELS: usize = 12;

struct Search<'t> {
    terms: &'t [Term],
    caps: Taken,
    strides: [usize; MAX_KINDS],
    size: usize,
    levels: Vec<Level>,
}

/// The best way to meet all terms with these units, each model fitting the terms in `fits`.
pub(super) fn best(terms: &[Term], units: &[&Unit<'_>], fits: &[u8]) -> Option<Way> {
    let mut search = Search { terms, caps: 0, strides: [0; MAX_KINDS], size: 1, levels: Vec::new() };
    for ((at, term), stride) in terms.iter().enumerate().zip(&mut search.strides) {
        *stride = search.size;
        search.size *= term.cards.count as usize + 1;
        search.caps |= term.cards.count << (8 * at);
    }
    let leaves: Vec<Leaf<'_>> = units.iter().filter_map(|unit| search.leaf(unit, fits)).collect();
    let mut fitting = [0; MAX_KINDS];
    leaves.iter().for_each(|leaf| add(&mut fitting, &leaf.fitting));
    if terms.iter().zip(fitting).any(|(term, fitting)| fitting < term.cards.count) {
        return None;
    }
    search.levels = levels(&leaves);
    search.solve(&leaves, 0).into_iter().find(|way| way.taken == search.caps)
}

/// Levels on which two of the units part, and the root port's.
fn levels(leaves: &[Leaf<'_>]) -> Vec<Level> {
    let mut depths = vec![0];
    for (one, next) in leaves.iter().zip(leaves.iter().skip(1)) {
        let shared = one.unit.upstream.iter().zip(next.unit.upstream).take_while(|(one, next)| one == next).count();
        depths.extend(shared.checked_sub(1));
    }
    depths.sort_unstable();
    depths.dedup();
    [Level::Node, Level::Root].into_iter().chain(depths.into_iter().map(Level::Bridge)).take(MAX_LEVELS).collect()
}

fn add(sum: &mut [u32; MAX_KINDS], more: &[u32; MAX_KINDS]) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
}

/// Pairs, fours, eights and sixteens among so many neighbours.
const fn sets(neighbours: u32) -> u32 {
    neighbours / 2 + neighbours / 4 + neighbours / 8 + neighbours / 16
}

impl Search<'_> {
    /// True where no term has more than its count: no byte of the difference borrows.
    const fn fits_caps(&self, taken: Taken) -> bool {
        const HIGH: u32 = 0x8080_8080;
        ((self.caps | HIGH) - taken) & HIGH == HIGH
    }

    fn leaf<'u>(&self, unit: &'u Unit<'u>, fits: &[u8]) -> Option<Leaf<'u>> {
        let placed = self.terms.iter().enumerate().filter(|(_, term)| term.is_placed(unit));
        let placed = placed.fold(0, |bits: u8, (at, _)| bits | 1 << at);
        let mut fitting = [0; MAX_KINDS];
        let mut ways = vec![Way { units: unit_bit(unit.rank), ..Way::default() }];
        for seat in &unit.seats {
            let bits = fits.get(seat.class).copied().unwrap_or_default() & placed;
            let Mib(memory) = seat.device.memory;
            let mut longer: Vec<Way> = Vec::new();
            for (at, (stride, count)) in self.strides.iter().zip(&mut fitting).enumerate() {
                if bits & (1 << at) == 0 {
                    continue;
                }
                *count += 1;
                // What is not known may be the largest of all.
                let memory = if memory == 0 { 1 << 32 } else { memory };
                let one = Way { taken: 1 << (8 * at), index: *stride, memory, ..Way::default() };
                longer.extend(ways.iter().map(|way| way.with(&one)));
            }
            longer.retain(|way| self.fits_caps(way.taken));
            longer.sort_by_key(|way| way.taken);
            longer.dedup_by_key(|way| way.taken);
            ways = longer;
        }
        (!ways.is_empty()).then_some(Leaf { unit, fitting, ways })
    }

    fn solve(&self, leaves: &[Leaf<'_>], level: usize) -> Vec<Way> {
        let none = Way::default();
        if let [only] = leaves {
            let mut ways: Vec<Way> = [none].into_iter().chain(only.ways.iter().copied()).collect();
            (level..self.levels.len()).for_each(|level| self.close(&mut ways, leaves, level));
            return ways;
        }
        let mut sum = vec![none];
        let mut table = vec![None; self.size];
        match self.levels.get(level) {
            None => {
                for leaf in leaves {
                    let ways: Vec<Way> = [none].into_iter().chain(leaf.ways.iter().copied()).collect();
                    self.join(&mut sum, &ways, &mut table);
                }
            }
            Some(here) => {
                for within in leaves.chunk_by(|one, next| here.place(one.unit) == here.place(next.unit)) {
                    let mut ways = self.solve(within, level + 1);
                    self.close(&mut ways, within, level);
                    self.join(&mut sum, &ways, &mut table);
                }
            }
        }
        sum
    }

    /// Counts a place as touched, with what is broken up in it, and drops ways that leave close cards apart.
    fn close(&self, ways: &mut Vec<Way>, within: &[Leaf<'_>], level: usize) {
        let kind = self.levels.get(level).copied().unwrap_or(Level::Node);
        let mut fitting = [0; MAX_KINDS];
        within.iter().for_each(|leaf| add(&mut fitting, &leaf.fitting));
        let touched = 1 << (5 * (MAX_LEVELS - 1).saturating_sub(level));
        // A set below one switch is worth more than one that only shares a node.
        let worth = match kind {
            Level::Node => 1,
            Level::Root => 2,
            Level::Bridge(_) => 4,
        };
        ways.retain(|way| {
            let is_apart = |(at, term): (usize, &Term)| {
                let is_here = match (term.cards.closeness, kind) {
                    (Some(Closeness::SameNode), Level::Node) | (Some(Closeness::SameSwitch), Level::Bridge(0)) => true,
                    (Some(Closeness::SameNode | Closeness::SameSwitch) | None, _) => false,
                };
                let taken = way.taken >> (8 * at) & 0xff;
                is_here && taken != 0 && taken != term.cards.count
            };
            !self.terms.iter().enumerate().any(is_apart)
        });
        for way in ways.iter_mut().filter(|way| way.taken != 0) {
            way.spread += touched;
            for (at, fitting) in fitting.iter().enumerate() {
                let taken = way.taken >> (8 * at) & 0xff;
                way.broken += worth * (sets(*fitting) - sets(fitting.saturating_sub(taken)));
            }
        }
    }

    /// The best of each sum of two places' ways.
    fn join(&self, sum: &mut Vec<Way>, ways: &[Way], table: &mut [Option<Way>]) {
        for (one, other) in sum.iter().flat_map(|one| ways.iter().map(move |other| (one, other))) {
            if !self.fits_caps(one.taken + other.taken) {
                continue;
            }
            let both = one.with(other);
            if let Some(slot) = table.get_mut(both.index)
                && slot.is_none_or(|best| both.is_better(&best))
            {
                *slot = Some(both);
            }
        }
        sum.clear();
        sum.extend(table.iter_mut().filter_map(Option::take));
    }
}
