//! What would have to go for one more instance: idle instances freely, machines as few as can be.
//!
//! There is no live move between MIG instances: a machine that is moved is stopped, its instance is destroyed, another of
//! the same profile is created, and it starts on that. So this only proposes.
//!
//! For every card, and every set of the machines on it, it is asked whether the wanted instance and all of the set fit when
//! just these are taken away - on this card again, or in what is free of others. Sets are tried from the cheapest on, so
//! that the first that works moves the fewest machines, and of those the least memory. Machines of other cards stay where
//! they are: a chain of moves over several cards is not looked for.

use std::cmp::Reverse;

use super::graph::Node;
use super::why::WhyNoRoom;
use super::{Pick, Planner};
use crate::model::gpu::mig::{Instance, MigProfile};
use crate::model::units::Mib;

/// Most machines of one card of which every set is tried; cards have 7. Of more, sets of up to [`FEW`] are tried.
const EVERY_SET: usize = 10;
/// How many machines are moved at most on a card that has very many.
const FEW: usize = 3;

/// An instance, and whether a machine has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carved {
    /// Where it lies.
    pub instance: Instance,
    /// Whether a machine has it. One that is idle may be destroyed.
    pub is_in_use: bool,
}

/// A card with its instances and what is used of them.
#[derive(Clone, Copy, Debug)]
pub struct CarvedCard<'a> {
    /// Of its kind.
    pub planner: &'a Planner,
    /// Its instances.
    pub carved: &'a [Carved],
}

/// A machine's instance that would be had elsewhere: *stop this machine*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The instance that it has.
    pub from: Pick,
    /// The one that it would get.
    pub to: Pick,
}

/// How one more instance could be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recarve {
    /// The wanted instance.
    pub wanted: Pick,
    /// Machines that have to be stopped first; none where nothing in use is in the way.
    pub moves: Vec<Move>,
    /// Idle instances that are in the way.
    pub destroy: Vec<Pick>,
    /// What is to be created, once the machines are off and their instances and the idle ones are gone. Idle instances that
    /// can be taken as they are, are not among them.
    pub create: Vec<Pick>,
    /// Memory of the machines that are moved.
    pub moved: Mib,
}

/// What is in use on one card.
struct Used<'a> {
    planner: &'a Planner,
    carved: &'a [Carved],
    node: Node,
    /// Those that are in use.
    held: Vec<Instance>,
}

/// Some machines of one card, to be moved.
struct Set {
    memory: Mib,
    card: usize,
    members: u64,
}

/// How one more instance of this profile could be had on these cards: at once, by destroying idle instances, or by moving
/// machines; as few of them as possible, of equals with the least memory, of equals by what is lost of the cards' worth.
///
/// # Errors
/// For each card why not; with the reason that counts when all idle instances are gone.
pub fn recarve(cards: &[CarvedCard<'_>], profile: MigProfile) -> Result<Recarve, Vec<WhyNoRoom>> {
    let used: Vec<Result<Used<'_>, WhyNoRoom>> = cards.iter().map(Used::new).collect();
    let most = used.iter().flatten().map(|used| used.held.len()).max().unwrap_or_default();
    let mut best: Option<(Mib, (i64, usize), Recarve)> = None;
    for count in 0..=most {
        let mut sets: Vec<Set> = Vec::new();
        for (card, used) in used.iter().enumerate() {
            sets.extend(used.iter().flat_map(|used| used.sets(card, profile, count)));
        }
        sets.sort_by_key(|set| (set.memory, set.card));
        for set in &sets {
            if best.as_ref().is_some_and(|(least, ..)| *least < set.memory) {
                break;
            }
            let Some((loss, found)) = attempt(&used, set, profile) else { continue };
            let cost = (loss, found.destroy.len());
            if best.as_ref().is_none_or(|(_, other, _)| cost < *other) {
                best = Some((set.memory, cost, found));
            }
        }
        if best.is_some() {
            break;
        }
    }
    best.map(|(.., found)| found).ok_or_else(|| {
        let why = |used: Result<Used<'_>, WhyNoRoom>| match used {
            Ok(used) => used.planner.why(used.node, &used.held, profile),
            Err(why) => why,
        };
        used.into_iter().map(why).collect()
    })
}

impl<'a> Used<'a> {
    fn new(card: &CarvedCard<'a>) -> Result<Self, WhyNoRoom> {
        let all: Vec<Instance> = card.carved.iter().map(|carved| carved.instance).collect();
        card.planner.check(&all).map_err(WhyNoRoom::Layout)?;
        let held: Vec<Instance> = card.carved.iter().filter(|c| c.is_in_use).map(|c| c.instance).collect();
        let node = card.planner.node(&held).map_err(WhyNoRoom::Layout)?;
        Ok(Self { planner: card.planner, carved: card.carved, node, held })
    }

    /// Every set of so many machines whose slices would make room for the profile, if they lay right.
    fn sets(&self, card: usize, profile: MigProfile, count: usize) -> Vec<Set> {
        let Some(told) = self.planner.geometry.profile(profile) else { return Vec::new() };
        if self.held.len() > EVERY_SET && count > FEW {
            return Vec::new();
        }
        let (compute, memory) = self.planner.free(self.node);
        let set = |members: u64| {
            let mut set = Set { memory: Mib(0), card, members };
            let (mut free_compute, mut free_memory) = (compute, memory);
            for of in self.members(members).filter_map(|(_, i)| self.planner.geometry.profile(i.profile)) {
                free_compute += of.compute;
                free_memory += of.size;
                set.memory.0 += of.memory.0;
            }
            (told.compute <= free_compute && told.size <= free_memory).then_some(set)
        };
        subsets(self.held.len().min(64), count).into_iter().filter_map(set).collect()
    }

    fn members(&self, set: u64) -> impl Iterator<Item = (usize, Instance)> + '_ {
        let is_member = move |(at, _): &(usize, Instance)| *at < 64 && set & (1 << at) != 0;
        self.held.iter().copied().enumerate().filter(is_member)
    }
}

/// All sets of so many of so many, as bits.
fn subsets(of: usize, count: usize) -> Vec<u64> {
    let mut all = vec![0_u64];
    for _ in 0..count {
        // Only what lies above is added, so that each set comes once.
        let more = |set: &u64| {
            let (set, above) = (*set, (64 - set.leading_zeros()) as usize);
            (above..of).map(move |member| set | 1 << member)
        };
        all = all.iter().flat_map(more).collect();
    }
    all
}

/// The proposal that moves just this set, where there is one, and what it costs of the cards' worth.
fn attempt(used: &[Result<Used<'_>, WhyNoRoom>], set: &Set, profile: MigProfile) -> Option<(i64, Recarve)> {
    let target = used.get(set.card)?.as_ref().ok()?;
    let kept: Vec<Instance> =
        target.held.iter().enumerate().filter(|(at, _)| set.members & (1 << at) == 0).map(|(_, i)| *i).collect();
    let node = target.planner.node(&kept).ok()?;
    let moved: Vec<Instance> = target.members(set.members).map(|(_, instance)| instance).collect();
    let mut best: Option<(i64, Recarve)> = None;
    // Which of them leave the card; most often none has to.
    let mut leaving: Vec<u64> = (0..1_u64 << moved.len()).collect();
    leaving.sort_by_key(|set| set.count_ones());
    for leave in leaving {
        let (mut stay, mut go) = (Vec::new(), Vec::new());
        for (at, instance) in moved.iter().enumerate() {
            if leave & (1 << at) == 0 { stay.push(*instance) } else { go.push(*instance) }
        }
        let mut wanted = vec![profile];
        wanted.extend(stay.iter().map(|instance| instance.profile));
        let Some((here, after)) = target.planner.all_of(node, &wanted) else { continue };
        let Some(there) = elsewhere(used, set.card, &go) else { continue };
        let mut loss = target.planner.loss(target.node, after);
        loss += there.iter().map(|(_, loss)| loss).sum::<i64>();
        let at = |card: usize| move |instance: &Instance| Pick { card, instance: *instance };
        let to: Vec<Pick> = here.iter().map(at(set.card)).chain(there.iter().map(|(pick, _)| *pick)).collect();
        let from = stay.iter().chain(&go).map(at(set.card));
        let moves: Vec<Move> = from.zip(to.iter().skip(1)).map(|(from, to)| Move { from, to: *to }).collect();
        let found = told(used, *to.first()?, moves, set.memory);
        let is_better = |(other, known): &(i64, Recarve)| (loss, found.destroy.len()) < (*other, known.destroy.len());
        if best.as_ref().is_none_or(is_better) {
            best = Some((loss, found));
        }
    }
    best
}

/// Places for all of these on the other cards, beside what is in use there; with what each costs.
fn elsewhere(used: &[Result<Used<'_>, WhyNoRoom>], but: usize, wanted: &[Instance]) -> Option<Vec<(Pick, i64)>> {
    let nodes: Vec<Option<(&Planner, Node)>> = used
        .iter()
        .enumerate()
        .map(|(card, used)| used.as_ref().ok().filter(|_| card != but).map(|used| (used.planner, used.node)))
        .collect();
    spread(&nodes, wanted)
}

fn spread(nodes: &[Option<(&Planner, Node)>], wanted: &[Instance]) -> Option<Vec<(Pick, i64)>> {
    let Some((first, rest)) = wanted.split_first() else { return Some(Vec::new()) };
    let mut tried: Vec<(*const Planner, Node)> = Vec::new();
    let mut options = Vec::new();
    for (card, there) in nodes.iter().enumerate() {
        let Some((planner, node)) = there else { continue };
        // Cards that are alike answer alike.
        if tried.contains(&(std::ptr::from_ref(*planner), *node)) {
            continue;
        }
        tried.push((std::ptr::from_ref(*planner), *node));
        let Some(number) = planner.number(first.profile) else { continue };
        let Some(told) = planner.geometry.profiles().get(number) else { continue };
        for (start, next) in planner.graph.next(*node, number) {
            options.push((planner.loss(*node, next), card, told.at(start), next));
        }
    }
    options.sort_by_key(|(loss, card, instance, _)| (*loss, *card, Reverse(instance.placement.start)));
    for (loss, card, instance, next) in options {
        let mut after = nodes.to_vec();
        if let Some(Some((_, node))) = after.get_mut(card) {
            *node = next;
        }
        if let Some(mut others) = spread(&after, rest) {
            others.insert(0, (Pick { card, instance }, loss));
            return Some(others);
        }
    }
    None
}

/// The proposal in full: what of the idle has to go, and what is new.
fn told(used: &[Result<Used<'_>, WhyNoRoom>], wanted: Pick, moves: Vec<Move>, moved: Mib) -> Recarve {
    let new: Vec<Pick> = [wanted].into_iter().chain(moves.iter().map(|moved| moved.to)).collect();
    let mut recarve = Recarve { wanted, moves, destroy: Vec::new(), create: new.clone(), moved };
    for (card, used) in used.iter().enumerate() {
        let Ok(used) = used else { continue };
        let leaves =
            |instance: &Instance| recarve.moves.iter().any(|m| m.from.card == card && m.from.instance == *instance);
        let mut layout: Vec<Instance> = used.held.iter().filter(|instance| !leaves(instance)).copied().collect();
        layout.extend(new.iter().filter(|pick| pick.card == card).map(|pick| pick.instance));
        let idle: Vec<Instance> = used.carved.iter().filter(|c| !c.is_in_use).map(|c| c.instance).collect();
        for instance in idle {
            let pick = Pick { card, instance };
            if recarve.create.contains(&pick) {
                recarve.create.retain(|other| *other != pick);
                continue;
            }
            layout.push(instance);
            if used.planner.check(&layout).is_err() {
                layout.pop();
                recarve.destroy.push(pick);
            }
        }
    }
    recarve
}
