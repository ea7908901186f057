//! Whether a layout is lawful, what has room beside it, and what not and why.

use super::graph::{Node, memory_of};
use super::why::{LayoutError, WhyNoRoom, largeness};
use super::{Planner, Room};
use crate::model::gpu::mig::{GeometryProfile, Instance, MigProfile};

impl Planner {
    /// Whether these instances can lie on the card together.
    ///
    /// # Errors
    /// The first reason why not.
    pub fn check(&self, placed: &[Instance]) -> Result<(), LayoutError> {
        self.node(placed).map(|_| ())
    }

    /// Every memory slice at which one more of this profile could be created now, ascending; none where the profile or the
    /// layout is not understood.
    pub fn free_starts(&self, placed: &[Instance], profile: MigProfile) -> Vec<u32> {
        let there = self.node(placed).ok().zip(self.number(profile));
        there.map_or_else(Vec::new, |(node, number)| self.graph.next(node, number).map(|(start, _)| start).collect())
    }

    /// How many more of each profile could be created now, each by itself: the instances are laid beside each other as
    /// well as can be, so the number is true where NVML's count of free instances may not be. A mix is asked of
    /// [`Planner::fits`].
    ///
    /// # Errors
    /// Where what is placed is not lawful.
    pub fn capacity(&self, placed: &[Instance]) -> Result<Vec<Room>, LayoutError> {
        let node = self.node(placed)?;
        let names = self.geometry.profiles().iter().enumerate();
        Ok(names.map(|(at, told)| Room { profile: told.name, count: self.graph.room(node, at) }).collect())
    }

    /// The layout's node.
    pub(super) fn node(&self, placed: &[Instance]) -> Result<Node, LayoutError> {
        let mut node = Node::EMPTY;
        for instance in placed {
            let next = self.number(instance.profile).and_then(|number| self.after(node, number, instance));
            node = next.ok_or_else(|| self.fault(placed, instance))?;
        }
        Ok(node)
    }

    /// The layout with this instance, where it is lawful.
    pub(super) fn after(&self, node: Node, number: usize, instance: &Instance) -> Option<Node> {
        let is_size = self.geometry.profiles().get(number).is_some_and(|told| told.size == instance.placement.size);
        is_size.then(|| self.graph.with(node, number, instance.placement.start)).flatten()
    }

    /// Which profile it is, by its place in the geometry.
    pub(super) fn number(&self, profile: MigProfile) -> Option<usize> {
        self.geometry.profiles().iter().position(|told| told.name == profile)
    }

    /// What is wrong with an instance that has no place among the others.
    fn fault(&self, placed: &[Instance], instance: &Instance) -> LayoutError {
        let Some(told) = self.geometry.profile(instance.profile) else {
            return LayoutError::Unknown(instance.profile);
        };
        if told.size != instance.placement.size || !told.starts.contains(&instance.placement.start) {
            return LayoutError::Place(*instance);
        }
        let before: Vec<&Instance> = placed.iter().take_while(|other| !std::ptr::eq(*other, instance)).collect();
        let of = |other: &Instance| self.geometry.profile(other.profile);
        if let Some(other) = before.iter().find(|other| memory_of(other) & memory_of(instance) != 0) {
            return LayoutError::Overlap(**other, *instance);
        }
        if let Some(other) = before.iter().find(|other| of(other).is_some_and(|o| o.takes_media && told.takes_media)) {
            return LayoutError::Media(**other, *instance);
        }
        let alike = before.iter().filter(|other| other.profile == instance.profile).count();
        let count = u32::try_from(alike).map_or(u32::MAX, |alike| alike + 1);
        if count > told.most {
            return LayoutError::Most { profile: told.name, most: told.most, count };
        }
        let compute: u32 = before.iter().filter_map(|other| of(other)).map(|other| other.compute).sum();
        LayoutError::Compute { needed: compute + told.compute, there: self.geometry.compute_slices() }
    }

    /// Why one more of this profile has no room.
    pub(super) fn why(&self, node: Node, placed: &[Instance], profile: MigProfile) -> WhyNoRoom {
        let Some(told) = self.geometry.profile(profile) else { return WhyNoRoom::Unknown(profile) };
        let (compute, memory) = self.free(node);
        let count = placed.iter().filter(|other| other.profile == profile).count();
        if self.graph.taken(node).has_media && told.takes_media {
            return WhyNoRoom::Media(profile);
        }
        if u32::try_from(count).is_ok_and(|count| count >= told.most) {
            return WhyNoRoom::Most(profile, told.most);
        }
        if compute < told.compute {
            return WhyNoRoom::Compute { profile, needs: told.compute, free: compute };
        }
        if memory < told.size {
            return WhyNoRoom::Memory { profile, needs: told.size, free: memory };
        }
        WhyNoRoom::Scattered { profile, compute, memory, largest: self.largest(node).map(|told| told.name) }
    }

    /// Free compute and memory slices.
    pub(super) fn free(&self, node: Node) -> (u32, u32) {
        let taken = self.graph.taken(node);
        (
            self.geometry.compute_slices().saturating_sub(taken.compute),
            self.geometry.memory_slices().saturating_sub(taken.memory.count_ones()),
        )
    }

    /// The largest profile that has room.
    pub(super) fn largest(&self, node: Node) -> Option<&GeometryProfile> {
        let has_room = |(at, told): (usize, _)| (self.graph.room(node, at) > 0).then_some(told);
        self.geometry.profiles().iter().enumerate().filter_map(has_room).max_by_key(|told| largeness(told))
    }
}
