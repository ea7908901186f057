//! What vGPUs could be asked for right now: the planner's own answers.

use super::pick::ranked;
use super::{Policy, VgpuPool, VgpuWish, pick, take};
use crate::model::gpu::{GpuRequest, MAX_GPUS, VgpuTypeName};
use crate::model::units::Mib;
use crate::plan::place::Offer;

/// An offer for each type that cards here offer or carry, by model and size.
pub fn offers(pools: &[VgpuPool]) -> Vec<Offer> {
    let mut names: Vec<&VgpuTypeName> = pools.iter().flat_map(VgpuPool::types).collect();
    names.sort_unstable();
    names.dedup();
    let mut offers: Vec<Offer> = names.into_iter().map(|name| offer(pools, name)).collect();
    offers.sort_by_key(|offer| (offer.model.clone(), offer.memory));
    offers
}

/// How it is asked for: by its profile where that means this type, else by its name.
pub(super) fn asked(pools: &[VgpuPool], name: &VgpuTypeName) -> (VgpuWish, GpuRequest) {
    let by_name = || (VgpuWish::Type(name.short().to_owned()), GpuRequest::Vgpu(name.short().to_owned()));
    let Some(profile) = pools.iter().find_map(|pool| pool.profile_of(name)) else { return by_name() };
    let mut same: Vec<&VgpuTypeName> = pools.iter().flat_map(VgpuPool::types).collect();
    same.retain(|other| pools.iter().any(|pool| pool.profile_of(other) == Some(profile)));
    let wish = VgpuWish::Profile(profile);
    match ranked(same, &wish).first() {
        Some(first) if *first == name => (wish, GpuRequest::Mig(profile.to_string())),
        _ => by_name(),
    }
}

fn offer(pools: &[VgpuPool], name: &VgpuTypeName) -> Offer {
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let there = pools.iter().flat_map(VgpuPool::taken).filter(|taken| taken.name.as_ref() == Some(name)).count();
    let free: u32 = pools.iter().map(|pool| pool.room(name).count).fold(0, u32::saturating_add);
    let (wish, request) = asked(pools, name);
    let mut left = pools.to_vec();
    let mut granted = 0;
    while granted < MAX_GPUS {
        let Ok(choice) = pick(&left, &wish, Policy::Pack) else { break };
        take(&mut left, &choice);
        granted += 1;
    }
    let model = pools.iter().find(|pool| pool.types().contains(name)).map(|pool| pool.model.clone());
    Offer {
        request,
        model: format!("{name} on {}", model.unwrap_or_default()),
        memory: pools.iter().find_map(|pool| pool.memory_of(name)).unwrap_or(Mib(0)),
        total: free.saturating_add(count(there)),
        free,
        counts: (1..=granted).collect(),
        same_node: 0,
        same_switch: 0,
    }
}
