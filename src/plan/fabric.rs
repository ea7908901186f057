//! Partitions of a fabric: which one a machine gets, and what the fabric manager is to be told next.
//!
//! ```text
//!   request for N cards ──> pick ──> a partition of just N free cards, or why not
//!   partitions as told + which are held ──> next ──> one step, then look again
//!       manager is new:         TellActivated(those of running machines), before anything else
//!       held, not active:       Activate      (its machine is not started before)
//!       ours, active, not held: Deactivate    (its machine is observed gone)
//! ```
//! Partitions are fixed sets that overlap, so one that is given away takes others with it. Of those that would do, the one
//! is picked that leaves the most to be had, with large ones counting first. A partition that is active and not ours is
//! left alone, and so is every one that shares a card with it.
//!
//! Nothing calls this yet: gvm cannot speak with the manager, and refuses boards with NVSwitches
//! ([`crate::model::gpu::fabric`]).

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::model::gpu::fabric::{FabricPartition, FabricTable};

/// Why no partition can be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhyNoPartition {
    /// The board has none of this size.
    #[error("this board has no partition of {wanted} GPUs; there are partitions of {}", listed(sizes))]
    NoSuchSize {
        /// Asked for.
        wanted: usize,
        /// There are these.
        sizes: BTreeSet<usize>,
    },
    /// In each, some card is in use.
    #[error("no free {wanted}-GPU partition: in each of the {all} some GPU is in use or kept out")]
    NoneFree {
        /// Asked for.
        wanted: usize,
        /// So many there are.
        all: usize,
    },
}

/// What the manager is to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FabricStep {
    /// After its restart: these are activated, and none else (`fmSetActivatedFabricPartitions`). An empty list is sent as
    /// well.
    TellActivated(BTreeSet<u32>),
    /// `fmActivateFabricPartition`.
    Activate(u32),
    /// `fmDeactivateFabricPartition`.
    Deactivate(u32),
}

/// Why nothing can be done for a partition that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhyNoStep {
    /// The board does not have it any more.
    #[error("the board has no partition {0} any more; its machine can only be stopped")]
    Gone(u32),
    /// Another one has its cards.
    #[error("partition {wanted} shares a GPU with partition {active}, which is active and not gvm's")]
    Taken {
        /// Held.
        wanted: u32,
        /// In its way.
        active: u32,
    },
    /// It was deactivated under its machine.
    #[error(
        "partition {0} is not active any more, and its machine runs: CUDA in it fails until the machine is stopped and \
         started"
    )]
    Lost(u32),
}

/// A partition that a machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldPartition {
    /// Which.
    pub id: u32,
    /// Whether its machine runs, so that its cards must not be touched.
    pub is_running: bool,
}

/// What is known when a step is planned.
#[derive(Clone, Copy, Debug)]
pub struct FabricView<'a> {
    /// What the manager says.
    pub table: &'a FabricTable,
    /// What machines have.
    pub held: &'a [HeldPartition],
    /// What gvm has activated, as written down; only these are ever deactivated.
    pub ours: &'a BTreeSet<u32>,
    /// The manager was restarted and has not been told yet.
    pub is_new: bool,
}

/// The partition that a machine with so many cards gets; `free` are the cards that may be given away, by physical id.
///
/// # Errors
/// Why there is none.
pub fn pick<'t>(
    table: &'t FabricTable,
    free: &BTreeSet<u32>,
    wanted: usize,
) -> Result<&'t FabricPartition, WhyNoPartition> {
    let all = || table.partitions().iter().filter(|partition| partition.modules.len() == wanted);
    if all().next().is_none() {
        let sizes = table.partitions().iter().map(|partition| partition.modules.len()).collect();
        return Err(WhyNoPartition::NoSuchSize { wanted, sizes });
    }
    let best = all().filter(|one| is_free(table, one, free)).max_by_key(|one| {
        let left: BTreeSet<u32> = free.difference(&one.modules).copied().collect();
        (sizes_left(table, one, &left), Reverse(one.id))
    });
    best.ok_or_else(|| WhyNoPartition::NoneFree { wanted, all: all().count() })
}

/// The partition of just these cards.
pub fn exact<'t>(table: &'t FabricTable, modules: &BTreeSet<u32>) -> Option<&'t FabricPartition> {
    table.partitions().iter().find(|partition| partition.modules == *modules)
}

/// What is to be done next; `None` where all is as it should be.
///
/// # Errors
/// Why a partition that is held cannot be made active.
pub fn next(view: FabricView<'_>) -> Result<Option<FabricStep>, WhyNoStep> {
    let FabricView { table, held, ours, is_new } = view;
    if is_new {
        let running = held.iter().filter(|held| held.is_running && ours.contains(&held.id)).map(|held| held.id);
        return Ok(Some(FabricStep::TellActivated(running.collect())));
    }
    let is_held = |id: u32| held.iter().any(|held| held.id == id);
    let done = table.partitions().iter().find(|one| one.is_active && ours.contains(&one.id) && !is_held(one.id));
    if let Some(done) = done {
        return Ok(Some(FabricStep::Deactivate(done.id)));
    }
    for one in held {
        let partition = table.get(one.id).ok_or(WhyNoStep::Gone(one.id))?;
        if partition.is_active {
            continue;
        }
        // Its cards would have to be reset under the machine.
        if one.is_running {
            return Err(WhyNoStep::Lost(one.id));
        }
        let in_the_way = table.partitions().iter().find(|other| other.is_active && other.overlaps(partition));
        return match in_the_way {
            Some(other) => Err(WhyNoStep::Taken { wanted: one.id, active: other.id }),
            None => Ok(Some(FabricStep::Activate(one.id))),
        };
    }
    Ok(None)
}

fn is_free(table: &FabricTable, one: &FabricPartition, free: &BTreeSet<u32>) -> bool {
    let is_clear = table.partitions().iter().all(|other| !other.is_active || !other.overlaps(one));
    is_clear && one.modules.is_subset(free)
}

/// How many partitions of each size can still be had one at a time, the largest size first.
fn sizes_left(table: &FabricTable, taken: &FabricPartition, left: &BTreeSet<u32>) -> Vec<usize> {
    let sizes: BTreeSet<usize> = table.partitions().iter().map(|partition| partition.modules.len()).collect();
    let still = |size: usize| {
        let same = table.partitions().iter().filter(|one| one.modules.len() == size && !one.overlaps(taken));
        same.filter(|one| is_free(table, one, left)).count()
    };
    sizes.into_iter().rev().map(still).collect()
}

fn listed(sizes: &BTreeSet<usize>) -> String {
    sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
