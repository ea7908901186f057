//! What gvm's placement is measured against, for tests and the simulation: nothing else calls it.

use super::{Card, Pick};
use crate::model::gpu::mig::{GeometryProfile, MigProfile};

/// The first card that has room, and there the first start in the order that `starts` gives.
pub fn first_card(
    cards: &[Card<'_>],
    profile: MigProfile,
    starts: impl Fn(&GeometryProfile) -> Vec<u32>,
) -> Option<Pick> {
    let on_card = |(card, Card { planner, placed }): (usize, &Card<'_>)| {
        let told = planner.geometry().profile(profile)?;
        let free = planner.free_starts(placed, profile);
        let start = starts(told).into_iter().find(|start| free.contains(start))?;
        Some(Pick { card, instance: told.at(start) })
    };
    cards.iter().enumerate().find_map(on_card)
}

/// First fit: the first card that has room, at the lowest start.
pub fn first_fit(cards: &[Card<'_>], profile: MigProfile) -> Option<Pick> {
    first_card(cards, profile, |told| told.starts.clone())
}
