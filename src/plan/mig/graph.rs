//! Every lawful layout of a card, told apart only by what decides what may come: the memory slices that are taken, the
//! compute, the media extensions, and counts of profiles whose limit the slices do not imply.
//!
//! One instance more is an edge to another layout; an edge that is not there is a placement that is not allowed. Taking
//! an instance away from a lawful layout leaves a lawful one, so that any order of creation leads to the same node.

use std::collections::HashMap;

use crate::model::gpu::mig::{Geometry, GeometryProfile, Instance, MAX_SLICES};

/// Most layouts of one card that are understood. Cards of 8 memory slices have about a thousand.
const MAX_NODES: usize = 1 << 16;

/// A layout, by its number; 0 is the empty card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Node(u32);

impl Node {
    pub(super) const EMPTY: Self = Self(0);
    const NONE: Self = Self(u32::MAX);

    const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What is taken of a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Taken {
    /// Memory slices, a bit each.
    pub memory: u32,
    /// Compute slices.
    pub compute: u32,
    /// The media extensions.
    pub has_media: bool,
    /// Instances of each profile whose limit has to be counted, six bits each.
    counts: u128,
}

/// One profile at one start.
#[derive(Clone, Copy, Debug)]
struct Step {
    profile: usize,
    start: u32,
    memory: u32,
}

/// Bits of a count; no card has 64 slices.
const COUNT_BITS: u32 = 6;

/// All layouts of a card, what leads from one to the next, and what each is worth.
#[derive(Clone, Debug)]
pub(super) struct Graph {
    steps: Vec<Step>,
    /// For each profile, where its steps begin; one more at the end.
    first_step: Vec<usize>,
    taken: Vec<Taken>,
    /// Node after a step, `steps.len()` of them for each node.
    edges: Vec<Node>,
    /// How many more of each profile, `profiles` of them for each node.
    room: Vec<u8>,
    /// What could still be made of each layout; see [`Graph::worth`].
    worth: Vec<u64>,
    profiles: usize,
}

impl Graph {
    /// `None` where the card has more layouts than are understood.
    pub(super) fn new(geometry: &Geometry) -> Option<Self> {
        let mut steps = Vec::new();
        let mut first_step = vec![0];
        for (at, profile) in geometry.profiles().iter().enumerate() {
            let step = |start: &u32| Step { profile: at, start: *start, memory: bits(*start, profile.size) };
            steps.extend(profile.starts.iter().map(step));
            first_step.push(steps.len());
        }
        let mut graph = Self {
            steps,
            first_step,
            taken: vec![Taken::default()],
            edges: Vec::new(),
            room: Vec::new(),
            worth: Vec::new(),
            profiles: geometry.profiles().len(),
        };
        graph.explore(geometry)?;
        graph.judge(geometry);
        Some(graph)
    }

    pub(super) const fn node_count(&self) -> usize {
        self.taken.len()
    }

    /// What is taken in a layout.
    pub(super) fn taken(&self, node: Node) -> Taken {
        self.taken.get(node.index()).copied().unwrap_or_default()
    }

    /// How many more of this profile alone could be created, wherever they may lie.
    pub(super) fn room(&self, node: Node, profile: usize) -> u32 {
        self.room.get(node.index() * self.profiles + profile).copied().map_or(0, u32::from)
    }

    /// What could still be made of a layout; comparable between layouts of one card.
    pub(super) fn worth(&self, node: Node) -> u64 {
        self.worth.get(node.index()).copied().unwrap_or_default()
    }

    /// Every start at which one more of this profile may be created, with the layout that it makes.
    pub(super) fn next(&self, node: Node, profile: usize) -> impl Iterator<Item = (u32, Node)> + '_ {
        let from = self.first_step.get(profile).copied().unwrap_or_default();
        let to = self.first_step.get(profile + 1).copied().unwrap_or_default();
        let row = node.index() * self.steps.len();
        let edges = self.edges.get(row + from..row + to).unwrap_or_default();
        let steps = self.steps.get(from..to).unwrap_or_default();
        steps.iter().zip(edges).filter(|(_, next)| **next != Node::NONE).map(|(step, next)| (step.start, *next))
    }

    /// The layout with one instance more, where it is lawful.
    pub(super) fn with(&self, node: Node, profile: usize, start: u32) -> Option<Node> {
        self.next(node, profile).find(|(at, _)| *at == start).map(|(_, next)| next)
    }

    /// Finds all layouts and the edges between them.
    fn explore(&mut self, geometry: &Geometry) -> Option<()> {
        let limits = limits(geometry);
        let mut known: HashMap<Taken, Node> = HashMap::from([(Taken::default(), Node::EMPTY)]);
        let mut at = 0;
        while let Some(from) = self.taken.get(at).copied() {
            for step in &self.steps {
                let next = geometry
                    .profiles()
                    .get(step.profile)
                    .zip(limits.get(step.profile))
                    .and_then(|(profile, limit)| from.with(step, profile, *limit, geometry.compute_slices()));
                let node = match next {
                    None => Node::NONE,
                    Some(next) => match known.get(&next) {
                        Some(node) => *node,
                        None => {
                            let node = Node(u32::try_from(self.taken.len()).ok()?);
                            known.insert(next, node);
                            self.taken.push(next);
                            node
                        }
                    },
                };
                self.edges.push(node);
            }
            at += 1;
            if self.taken.len() > MAX_NODES {
                return None;
            }
        }
        Some(())
    }

    /// Fills in rooms and worths, from the fullest layouts back to the empty one: each step takes memory.
    fn judge(&mut self, geometry: &Geometry) {
        let mut order: Vec<Node> = (0..).map(Node).take(self.taken.len()).collect();
        order.sort_by_key(|node| std::cmp::Reverse(self.taken(*node).memory.count_ones()));
        self.room = vec![0; self.taken.len() * self.profiles];
        self.worth = vec![0; self.taken.len()];
        for node in order {
            let mut worth = 0;
            for (profile, told) in geometry.profiles().iter().enumerate() {
                let more = self.next(node, profile).map(|(_, next)| self.room(next, profile) + 1).max().unwrap_or(0);
                if let Some(room) = self.room.get_mut(node.index() * self.profiles + profile) {
                    *room = u8::try_from(more).unwrap_or(u8::MAX);
                }
                worth += u64::from(more) * weight(told);
            }
            if let Some(place) = self.worth.get_mut(node.index()) {
                *place = worth;
            }
        }
    }
}

/// How much one more of a profile counts.
fn weight(profile: &GeometryProfile) -> u64 {
    u64::from(profile.size) * u64::from(profile.size)
}

/// Bits of the memory slices from a start on.
pub(super) const fn bits(start: u32, size: u32) -> u32 {
    let ones = if size >= MAX_SLICES { u32::MAX } else { (1 << size) - 1 };
    if start >= MAX_SLICES { 0 } else { ones << start }
}

/// Memory slices of an instance.
pub(super) const fn memory_of(instance: &Instance) -> u32 {
    bits(instance.placement.start, instance.placement.size)
}

/// Where the count of a profile is kept and how far it may go.
#[derive(Clone, Copy, Debug)]
struct Limit {
    shift: u32,
    most: u32,
}

/// For each profile its limit, where the slices (and the one set of media extensions) would allow more.
fn limits(geometry: &Geometry) -> Vec<Option<Limit>> {
    let mut shift = 0;
    let limit = |profile: &GeometryProfile| {
        let by_compute = geometry.compute_slices() / profile.compute.max(1);
        let by_media = if profile.takes_media { 1 } else { u32::MAX };
        let possible = disjoint(profile).min(by_compute).min(by_media);
        (profile.most < possible).then(|| {
            let limit = Limit { shift, most: profile.most };
            shift += COUNT_BITS;
            limit
        })
    };
    geometry.profiles().iter().map(limit).collect()
}

/// Most instances of a profile that do not overlap: of neighbours of one size, the first that begins is always right.
fn disjoint(profile: &GeometryProfile) -> u32 {
    let mut free_from = 0;
    let mut count = 0;
    for start in &profile.starts {
        if *start >= free_from {
            count += 1;
            free_from = start + profile.size;
        }
    }
    count
}

impl Taken {
    fn with(self, step: &Step, profile: &GeometryProfile, limit: Option<Limit>, compute_slices: u32) -> Option<Self> {
        let compute = self.compute + profile.compute;
        let is_media_twice = self.has_media && profile.takes_media;
        if self.memory & step.memory != 0 || compute > compute_slices || is_media_twice {
            return None;
        }
        let mut counts = self.counts;
        if let Some(limit) = limit {
            let mask = (1 << COUNT_BITS) - 1;
            if (counts >> limit.shift) & mask >= u128::from(limit.most) {
                return None;
            }
            counts += 1 << limit.shift;
        }
        let has_media = self.has_media || profile.takes_media;
        Some(Self { memory: self.memory | step.memory, compute, has_media, counts })
    }
}
