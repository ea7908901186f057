//! What vGPUs could be asked for right now: the planner's own answers.

use super::pick::ranked;
use super::{Policy, VgpuPool, VgpuWish, pick, take};
use crate::model::gpu::{GpuRequest, MAX_GPUS, VgpuTypeName};
use crate::model::units::Mib;
use crate::plan::place::Offer;

/// An offer for each type that cards here offer or carry, by model and size; one for each MIG profile, whatever the types
/// are called that stand on it.
pub fn offers(pools: &[VgpuPool]) -> Vec<Offer> {
    let mut names: Vec<&VgpuTypeName> = pools.iter().flat_map(VgpuPool::types).collect();
    names.sort_unstable();
    names.dedup();
    let mut groups: Vec<(VgpuWish, GpuRequest, Vec<&VgpuTypeName>)> = Vec::new();
    for name in names {
        let (wish, request) = asked(pools, name);
        match groups.iter_mut().find(|(_, other, _)| *other == request) {
            Some((.., group)) => group.push(name),
            None => groups.push((wish, request, vec![name])),
        }
    }
    let mut offers: Vec<Offer> = groups.into_iter().map(|group| offer(pools, group)).collect();
    offers.sort_by_key(|offer| (offer.model.clone(), offer.memory));
    offers
}

/// How it is asked for: by its profile where that means this type on some card, else by its name.
pub(super) fn asked(pools: &[VgpuPool], name: &VgpuTypeName) -> (VgpuWish, GpuRequest) {
    let stands_for = |pool: &VgpuPool| {
        let profile = pool.profile_of(name).filter(|_| pool.types().contains(name))?;
        let same = pool.types().into_iter().filter(|other| pool.profile_of(other) == Some(profile)).collect();
        (ranked(same, &VgpuWish::Profile(profile)).first() == Some(&name)).then_some(profile)
    };
    match pools.iter().find_map(stands_for) {
        Some(profile) => (VgpuWish::Profile(profile), GpuRequest::Mig(profile.to_string())),
        None => (VgpuWish::Type(name.short().to_owned()), GpuRequest::Vgpu(name.short().to_owned())),
    }
}

fn offer(pools: &[VgpuPool], (wish, request, names): (VgpuWish, GpuRequest, Vec<&VgpuTypeName>)) -> Offer {
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let is_it = |name: Option<&VgpuTypeName>| name.is_some_and(|name| names.contains(&name));
    let there = pools.iter().flat_map(VgpuPool::taken).filter(|taken| is_it(taken.name.as_ref())).count();
    // A card has room for one or the other of them.
    let room = |pool: &VgpuPool| names.iter().map(|name| pool.room(name).count).max().unwrap_or(0);
    let free: u32 = pools.iter().map(room).fold(0, u32::saturating_add);
    let mut left = pools.to_vec();
    let mut granted = 0;
    while granted < MAX_GPUS {
        let Ok(choice) = pick(&left, &wish, Policy::Pack) else { break };
        take(&mut left, &choice);
        granted += 1;
    }
    let mut models: Vec<&str> = pools
        .iter()
        .filter(|pool| names.iter().any(|name| pool.types().contains(name)))
        .map(|pool| pool.model.as_str())
        .collect();
    models.dedup();
    let words: Vec<String> = names.iter().map(ToString::to_string).collect();
    let memory = names.iter().find_map(|name| pools.iter().find_map(|pool| pool.memory_of(name)));
    Offer {
        request,
        model: format!("{} on {}", words.join(", "), models.join(", ")),
        memory: memory.unwrap_or(Mib(0)),
        total: free.saturating_add(count(there)),
        free,
        counts: (1..=granted).collect(),
        same_node: 0,
        same_switch: 0,
    }
}
