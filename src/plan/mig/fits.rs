//! Several instances at once: explicit placements for all of them.

use std::cmp::Reverse;

use super::Planner;
use super::graph::Node;
use super::why::{WhyNoRoom, largeness};
use crate::model::gpu::mig::{Instance, MigProfile};

/// A layout on the way: which layout of the step before it came from, and by which start.
#[derive(Clone, Copy, Debug)]
struct Link {
    node: Node,
    before: usize,
    start: u32,
}

impl Planner {
    /// Placements for all of these beside what is placed, in the order in which they are wanted; of all ways the one that
    /// leaves the most. The search is exact.
    ///
    /// # Errors
    /// Why not: the reason of the first that has no room even alone, else that they do not fit together.
    pub fn fits(&self, placed: &[Instance], wanted: &[MigProfile]) -> Result<Vec<Instance>, WhyNoRoom> {
        let node = self.node(placed).map_err(WhyNoRoom::Layout)?;
        if let Some((found, _)) = self.all_of(node, wanted) {
            return Ok(found);
        }
        let alone = wanted.iter().find(|profile| self.best(node, **profile).is_none());
        Err(alone.map_or_else(|| self.why_together(node, wanted), |profile| self.why(node, placed, *profile)))
    }

    /// Placements for all of these beside a layout, and the layout that they make.
    pub(super) fn all_of(&self, node: Node, wanted: &[MigProfile]) -> Option<(Vec<Instance>, Node)> {
        let mut order = Vec::with_capacity(wanted.len());
        for (at, profile) in wanted.iter().enumerate() {
            let number = self.number(*profile)?;
            order.push((at, number, self.geometry.profiles().get(number)?));
        }
        let (compute, memory) = self.free(node);
        let is_enough = order.iter().map(|(_, _, told)| told.compute).sum::<u32>() <= compute
            && order.iter().map(|(_, _, told)| told.size).sum::<u32>() <= memory;
        if !is_enough {
            return None;
        }
        // The large ones first: they have few starts, so that few layouts come up on the way.
        order.sort_by_key(|(_, number, told)| (Reverse(largeness(told)), *number));
        let mut layers = vec![vec![Link { node, before: 0, start: 0 }]];
        for (_, number, _) in &order {
            let layer = self.layer(layers.last()?, *number);
            if layer.is_empty() {
                return None;
            }
            layers.push(layer);
        }
        let last = layers.last()?;
        let (mut at, best) =
            last.iter().enumerate().max_by_key(|(at, link)| (self.graph.worth(link.node), Reverse(*at)))?;
        let mut found: Vec<(usize, Instance)> = Vec::with_capacity(wanted.len());
        for (layer, (place, _, told)) in layers.iter().skip(1).zip(&order).rev() {
            let link = layer.get(at)?;
            found.push((*place, told.at(link.start)));
            at = link.before;
        }
        found.sort_by_key(|(place, _)| *place);
        Some((found.into_iter().map(|(_, instance)| instance).collect(), best.node))
    }

    /// The layouts with one instance more, each of them once.
    fn layer(&self, from: &[Link], number: usize) -> Vec<Link> {
        let mut layer: Vec<Link> = Vec::new();
        for (before, link) in from.iter().enumerate() {
            let nexts = self.graph.next(link.node, number);
            layer.extend(nexts.map(|(start, node)| Link { node, before, start }));
        }
        layer.sort_by_key(|link| link.node);
        layer.dedup_by_key(|link| link.node);
        layer
    }

    /// Every layout that just these instances can have; of each kind one.
    pub(super) fn layouts_of(&self, there: &[MigProfile]) -> Vec<Node> {
        let mut layer = vec![Link { node: Node::EMPTY, before: 0, start: 0 }];
        let mut order: Vec<usize> = there.iter().filter_map(|profile| self.number(*profile)).collect();
        order.sort_by_key(|number| Reverse(self.geometry.profiles().get(*number).map(largeness)));
        for number in order {
            layer = self.layer(&layer, number);
        }
        layer.into_iter().map(|link| link.node).collect()
    }

    fn why_together(&self, node: Node, wanted: &[MigProfile]) -> WhyNoRoom {
        let (compute, memory) = self.free(node);
        let told = || wanted.iter().filter_map(|profile| self.geometry.profile(*profile));
        WhyNoRoom::Together {
            wanted: wanted.to_vec(),
            compute: (told().map(|told| told.compute).sum(), compute),
            memory: (told().map(|told| told.size).sum(), memory),
        }
    }
}
