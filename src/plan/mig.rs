//! MIG layouts: what has room on a card, where it goes, and what would have to move for it.
//!
//! ```text
//! Geometry ──> Planner ── check, free_starts, capacity, fits, fragmentation   one card
//!  (NVML)     (graph.rs)  place, pick                                         one card, several cards
//!                         recarve                                             several cards, with what is in use
//! ```
//! - A [`Planner`] is made once for each kind of card. It knows every lawful layout (a thousand on the largest cards), and
//!   for each of them how many more of each profile could be created. So every answer is exact and is a look at a table.
//! - *Place*: of all allowed placements the one that loses the least of what could still be created, with large profiles
//!   counting more than their size. Nothing is refused that an allowed placement would have served.
//! - *Re-carve* moves as few machines as possible, and is a proposal: nothing that is in use is touched by it.
//! - Same values in, same answer out.
//!
//! What is lawful here is what NVML says: starts, sizes, limits, one set of media extensions. A card may still refuse;
//! then the card is right, and what it has is read again.

#[cfg(test)]
mod brute_tests;
mod fits;
mod fragmentation;
mod graph;
mod layout;
mod place;
mod recarve;
#[cfg(test)]
mod recarve_tests;
#[cfg(test)]
mod replay_tests;
#[cfg(test)]
mod tests;
mod why;
pub mod yardstick;

use crate::model::gpu::mig::{Geometry, Instance, MigProfile};
pub use fragmentation::{Fragmentation, Lost};
use graph::Graph;
pub use place::pick;
pub use recarve::{Carved, CarvedCard, Move, Recarve, recarve};
pub use why::{LayoutError, WhyNoRoom};

/// What is known of one kind of card; to be made once and kept, as it costs more than every question.
#[derive(Clone, Debug)]
pub struct Planner {
    geometry: Geometry,
    graph: Graph,
}

/// The card can be divided in more ways than are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the card's MIG profiles can lie in more ways than are understood")]
pub struct TooManyLayouts;

/// So many more of one profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Which.
    pub profile: MigProfile,
    /// How many more of it, if of nothing else.
    pub count: u32,
}

/// A card with what is on it.
#[derive(Clone, Copy, Debug)]
pub struct Card<'a> {
    /// Of its kind.
    pub planner: &'a Planner,
    /// Its instances.
    pub placed: &'a [Instance],
}

/// A place on one of several cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Which card, by its place in the list.
    pub card: usize,
    /// What is to be created there.
    pub instance: Instance,
}

impl Planner {
    /// A planner for cards of this geometry.
    ///
    /// # Errors
    /// Where there are more layouts than are understood; no card that exists comes near.
    pub fn new(geometry: Geometry) -> Result<Self, TooManyLayouts> {
        let graph = Graph::new(&geometry).ok_or(TooManyLayouts)?;
        Ok(Self { geometry, graph })
    }

    /// What its cards can be divided into.
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// How many layouts there are, told apart by what they leave.
    pub const fn layouts(&self) -> usize {
        self.graph.node_count()
    }
}
