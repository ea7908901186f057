//! How divided cards stand: what lies where, what fits, what is lost by where things lie, and what would mend it.

use super::offers::asked;
use super::slices::{self, Slot};
use super::{Room, VgpuPool};
use crate::model::gpu::mig::MigProfile;
use crate::model::gpu::{GpuRequest, VgpuTypeName};
use crate::model::pci::PciAddress;
use crate::plan::mig::Lost;

/// All divided cards of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// By address.
    pub cards: Vec<CardReport>,
    /// For each profile that no card has room for: what would make room, in plain words.
    pub mends: Vec<(MigProfile, String)>,
}

/// One card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardReport {
    /// Where it is.
    pub address: PciAddress,
    /// Its name.
    pub model: String,
    /// Why nothing more may be made on it, where that is so.
    pub blocked: Option<String>,
    /// Its MIG instances, where MIG is on.
    pub mig: Option<MigReport>,
    /// What it carries, with how many of each.
    pub carries: Vec<(VgpuTypeName, u32)>,
    /// What it can be asked for, with how many more there could be of each, and of nothing else.
    pub fits: Vec<(GpuRequest, Room)>,
}

/// The instances of a card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigReport {
    /// Memory slices of the card.
    pub memory_slices: u32,
    /// Compute slices of the card.
    pub compute_slices: u32,
    /// Instances by where they lie.
    pub slots: Vec<Slot>,
    /// An administrator decided on them.
    pub is_fixed: bool,
    /// Share of what is free that cannot be had for where things lie, in percent; `None` where the layout is not
    /// understood.
    pub fragmented_percent: Option<u32>,
    /// What is lost by that.
    pub lost: Vec<Lost>,
}

/// Reports on divided cards.
pub fn report(pools: &[VgpuPool]) -> Report {
    let mut missing: Vec<MigProfile> = Vec::new();
    for pool in pools {
        for name in pool.types() {
            let Some(profile) = pool.profile_of(name) else { continue };
            let has_room = pools.iter().any(|pool| pool.mig.as_ref().is_some_and(|mig| mig.room(profile) > 0));
            if !has_room && !missing.contains(&profile) {
                missing.push(profile);
            }
        }
    }
    let all: Vec<&VgpuPool> = pools.iter().collect();
    let mend = |profile: MigProfile| Some((profile, slices::mend(&all, profile)?));
    Report { cards: pools.iter().map(card).collect(), mends: missing.into_iter().filter_map(mend).collect() }
}

fn card(pool: &VgpuPool) -> CardReport {
    let mig = pool.mig.as_ref().map(|mig| {
        let mut slots = mig.slots.clone();
        slots.sort_by_key(|slot| slot.instance.placement);
        let fragmentation = mig.planner.fragmentation(&mig.placed()).ok();
        let geometry = mig.planner.geometry();
        MigReport {
            memory_slices: geometry.memory_slices(),
            compute_slices: geometry.compute_slices(),
            slots,
            is_fixed: mig.is_fixed,
            fragmented_percent: fragmentation.as_ref().map(|found| found.percent),
            lost: fragmentation.map(|found| found.lost).unwrap_or_default(),
        }
    });
    let mut carries: Vec<(VgpuTypeName, u32)> = Vec::new();
    for name in pool.taken().filter_map(|taken| taken.name.as_ref()) {
        match carries.iter_mut().find(|(known, _)| known == name) {
            Some((_, count)) => *count += 1,
            None => carries.push((name.clone(), 1)),
        }
    }
    let own = std::slice::from_ref(pool);
    let mut names: Vec<&VgpuTypeName> = pool.types().into_iter().collect();
    // What the card cannot be in its mode is no news.
    names.retain(|name| pool.mig.is_some() == (pool.profile_of(name).is_some()));
    names.retain(|name| pool.mig.is_some() || name.grade().is_none_or(|grade| grade.slices.is_none()));
    names.sort_by_key(|name| (name.grade().map_or(0, |grade| grade.memory.0), (*name).clone()));
    let mut fits: Vec<(GpuRequest, Room)> = Vec::new();
    for name in names {
        let request = asked(own, name).1;
        // One line for a profile; its series differ in licence, not in room.
        if pool.mig.is_none() || matches!(request, GpuRequest::Mig(_)) {
            fits.push((request, pool.room(name)));
        }
    }
    CardReport { address: pool.bdf, model: pool.model.clone(), blocked: pool.blocked.clone(), mig, carries, fits }
}
