//! From the cards of a look and the leases to pools.

use std::sync::Arc;

use super::slices::MigPool;
use super::{Parent, Taken, VgpuPool};
use crate::model::card::Card;
use crate::model::card::vgpu::{MadeVgpu, VgpuSite};
use crate::model::gpu::mig::{Geometry, Instance};
use crate::model::gpu::{GpuId, VgpuTypeName};
use crate::model::units::Mib;
use crate::plan::mig::Planner;
use crate::plan::place::as_sold;

/// A vGPU that a lease has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VgpuHeld {
    /// Where it is, or will be.
    pub site: VgpuSite,
    /// Its type.
    pub name: VgpuTypeName,
    /// The MIG instance that it counts with.
    pub slice: Option<Instance>,
    /// The machine that has it, where it may be told.
    pub vm: Option<String>,
}

/// The cards that are divided into vGPUs, by address. `id` says what a card is called for life; `planners` keeps a planner
/// for each kind of card, as one costs more than all else here.
pub fn pools(
    cards: &[&Card],
    held: &[VgpuHeld],
    id: impl Fn(&Card) -> GpuId,
    planners: &dyn Fn(&Geometry) -> Option<Arc<Planner>>,
) -> Vec<VgpuPool> {
    let whole = cards.iter().filter(|card| !card.is_vf());
    let mut pools: Vec<VgpuPool> = whole.filter_map(|card| pool(card, cards, held, id(card), planners)).collect();
    pools.sort_by_key(|pool| pool.bdf);
    pools
}

fn pool(
    card: &Card,
    cards: &[&Card],
    held: &[VgpuHeld],
    gpu: GpuId,
    planners: &dyn Fn(&Geometry) -> Option<Arc<Planner>>,
) -> Option<VgpuPool> {
    let is_its = |other: &&Card| other.address == card.address || other.physfn == Some(card.address);
    let functions: Vec<&Card> = cards.iter().copied().filter(is_its).collect();
    let mut parents: Vec<Parent> = functions.iter().filter_map(|function| parent(function, card, held)).collect();
    parents.sort_by_key(|parent| parent.address);
    let here: Vec<VgpuHeld> =
        held.iter().filter(|held| parents.iter().any(|parent| parent.address == held.site.parent)).cloned().collect();
    let mig = MigPool::of(card, &functions, &here, planners);
    let blocked = match card.mig() {
        _ if !card.health.is_good() => Some("the card does not answer".to_owned()),
        Some(facts) if facts.is_on != facts.is_on_pending => {
            Some("its MIG mode changes with its next reset".to_owned())
        }
        Some(facts) if facts.is_on && mig.is_none() => Some("what NVML tells of its MIG is not understood".to_owned()),
        _ => None,
    };
    let memory = card.memory.filter(|memory| !memory.is_estimated()).map(|memory| as_sold(memory.size));
    (!parents.is_empty()).then(|| VgpuPool {
        gpu,
        bdf: card.address,
        model: card.model.clone(),
        memory,
        is_mixed: card.nvml.as_ref().is_some_and(|nvml| nvml.is_mixed),
        known: Vec::new(),
        parents,
        mig,
        allowed: Vec::new(),
        blocked,
    })
}

fn parent(function: &Card, card: &Card, held: &[VgpuHeld]) -> Option<Parent> {
    let facts = function.vgpu.as_ref()?;
    let memory_of = |name: &VgpuTypeName| {
        let told = facts.offered.iter().find(|offered| offered.name == *name).and_then(|offered| offered.memory());
        told.or_else(|| name.grade().map(|grade| grade.memory))
    };
    let is_single = function.is_vf();
    let here: Vec<&VgpuHeld> = held.iter().filter(|held| held.site.parent == function.address).collect();
    // Neither has a UUID where a function itself is the vGPU.
    let is_leased = |made: &MadeVgpu| here.iter().any(|held| held.site.uuid == made.uuid);
    let made = facts.made.iter().map(|made| {
        let memory: Option<Mib> = made.name.as_ref().and_then(memory_of);
        Taken { name: made.name.clone(), memory, is_ours: is_leased(made), is_made: true }
    });
    let is_made = |held: &VgpuHeld| facts.made.iter().any(|made| made.uuid == held.site.uuid);
    let coming = here.iter().filter(|held| !is_made(held)).map(|held| Taken {
        name: Some(held.name.clone()),
        memory: memory_of(&held.name),
        is_ours: true,
        is_made: false,
    });
    let fault = facts.faults.first().cloned().or_else(|| match () {
        () if function.is_vf() && function.driver.is_none() => Some("no driver has it".to_owned()),
        // Its driver alone makes vGPUs on it.
        () if function.is_vf() && function.driver != card.driver => {
            Some(format!("it is with another driver ({}) than its card", function.driver.as_deref().unwrap_or("none")))
        }
        () if !function.health.is_good() => Some("it does not answer".to_owned()),
        () => None,
    });
    let taken = made.chain(coming).collect();
    let (address, framework) = (function.address, facts.framework);
    Some(Parent { address, framework, is_single, offered: facts.offered.clone(), taken, fault })
}
