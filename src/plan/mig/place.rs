//! Where one more instance goes: on the card, and at the start, that takes the least from what could still be created.

use std::cmp::Reverse;

use super::graph::Node;
use super::why::WhyNoRoom;
use super::{Card, Pick, Planner};
use crate::model::gpu::mig::{Instance, MigProfile};

impl Planner {
    /// Where on this card one more of this profile goes.
    ///
    /// # Errors
    /// Why it has no room. It is refused only where no allowed placement is free.
    pub fn place(&self, placed: &[Instance], profile: MigProfile) -> Result<Instance, WhyNoRoom> {
        let node = self.node(placed).map_err(WhyNoRoom::Layout)?;
        match self.best(node, profile) {
            Some(best) => Ok(best.instance),
            None => Err(self.why(node, placed, profile)),
        }
    }

    /// The start that leaves the most; of equals the last, since large profiles lie at the beginning.
    pub(super) fn best(&self, node: Node, profile: MigProfile) -> Option<Best> {
        let number = self.number(profile)?;
        let told = self.geometry.profiles().get(number)?;
        let options = self.graph.next(node, number);
        let (start, next) = options.max_by_key(|(start, next)| (self.graph.worth(*next), *start))?;
        Some(Best { instance: told.at(start), loss: self.loss(node, next) })
    }

    /// What of a card's worth is lost from one layout to the next, in millionths of the empty card's worth, so that cards
    /// of different kinds can be compared; negative where something is gained.
    pub(super) fn loss(&self, from: Node, to: Node) -> i64 {
        let lost = i128::from(self.graph.worth(from)) - i128::from(self.graph.worth(to));
        let of = i128::from(self.graph.worth(Node::EMPTY).max(1));
        i64::try_from(lost * 1_000_000 / of).unwrap_or(i64::MAX)
    }
}

/// The best place on one card.
#[derive(Clone, Copy, Debug)]
pub(super) struct Best {
    pub instance: Instance,
    pub loss: i64,
}

/// Where one more instance of this profile goes among several cards: to the card that loses the least by it; of equals to
/// the fullest, then the first.
///
/// # Errors
/// For each card, in their order, why it has no room. It is refused only where no card has a free allowed placement.
pub fn pick(cards: &[Card<'_>], profile: MigProfile) -> Result<Pick, Vec<WhyNoRoom>> {
    let mut whys = Vec::new();
    let mut best: Option<(i64, Reverse<u32>, Pick)> = None;
    for (card, Card { planner, placed }) in cards.iter().enumerate() {
        let node = match planner.node(placed) {
            Ok(node) => node,
            Err(error) => {
                whys.push(WhyNoRoom::Layout(error));
                continue;
            }
        };
        match planner.best(node, profile) {
            Some(found) => {
                let taken = planner.graph.taken(node).memory.count_ones();
                let key = (found.loss, Reverse(taken));
                if best.as_ref().is_none_or(|(loss, full, _)| key < (*loss, *full)) {
                    best = Some((key.0, key.1, Pick { card, instance: found.instance }));
                }
            }
            None => whys.push(planner.why(node, placed, profile)),
        }
    }
    best.map(|(_, _, pick)| pick).ok_or(whys)
}
