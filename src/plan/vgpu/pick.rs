//! Which card and which function gets the next vGPU, or why none.

use std::cmp::Reverse;
use std::fmt;

use super::offers::asked;
use super::{Limit, VgpuPool, slices};
pub use crate::model::gpu::VgpuPolicy as Policy;
use crate::model::gpu::mig::{Instance, MigProfile};
use crate::model::gpu::{GpuId, GpuRequest, VgpuSeries, VgpuTypeName};
use crate::model::pci::PciAddress;
use crate::model::units::Mib;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VgpuWish {
    /// A type by its name, in the words of [`VgpuTypeName::is_called`].
    Type(String),
    /// At least so much memory, for CUDA: the smallest type that has it.
    Memory(Mib),
    /// A MIG profile: the type that has all of such an instance.
    Profile(MigProfile),
}

/// How many things that can be had are named to whoever cannot have what they asked for.
const ALTERNATIVES: usize = 3;

/// Where it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VgpuChoice {
    /// The card.
    pub gpu: GpuId,
    /// The function that is to carry it.
    pub parent: PciAddress,
    /// What to make there.
    pub name: VgpuTypeName,
    /// Its framebuffer, where known.
    pub memory: Option<Mib>,
    /// The MIG instance that is to be behind it, there already or not.
    pub slice: Option<Instance>,
    /// Why there, in plain words.
    pub reason: String,
}

/// Why there is none, card by card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhyNoVgpu {
    /// What was asked for.
    pub wish: String,
    /// Each card with its reason.
    pub cards: Vec<(PciAddress, String)>,
    /// What can be had now, the nearest in size first.
    pub now: Vec<GpuRequest>,
    /// What would make room, in plain words.
    pub mend: Option<String>,
    /// True where it can be had when others have given theirs back.
    pub may_come: bool,
}

/// Finds a function for what is asked for. Same values in, same answer out.
///
/// # Errors
/// [`WhyNoVgpu`], with a reason for each card.
pub fn pick(pools: &[VgpuPool], wish: &VgpuWish, policy: Policy) -> Result<VgpuChoice, WhyNoVgpu> {
    let mut names: Vec<&VgpuTypeName> = pools.iter().flat_map(VgpuPool::types).collect();
    names.sort_unstable();
    names.dedup();
    names.retain(|name| match wish {
        VgpuWish::Type(word) => name.is_called(word),
        VgpuWish::Memory(least) => does_compute(name, *least),
        VgpuWish::Profile(profile) => pools.iter().any(|pool| pool.profile_of(name) == Some(*profile)),
    });
    let names = ranked(names, wish);
    for name in &names {
        let mut fit: Vec<&VgpuPool> = pools.iter().filter(|pool| pool.room(name).count > 0).collect();
        fit.sort_by_key(|pool| {
            let taken = pool.taken().count();
            (if policy == Policy::Pack { usize::MAX - taken } else { taken }, pool.bdf)
        });
        let profile = fit.iter().find_map(|pool| pool.profile_of(name));
        let (pool, slice) = match profile {
            Some(profile) => slices::best(&fit, profile).map(|(pool, instance)| (Some(pool), Some(instance))),
            None => fit.first().map(|pool| (Some(*pool), None)),
        }
        .unwrap_or_default();
        if let Some(pool) = pool
            && let Some(parent) = pool.next_parent(name)
        {
            let reason = match slice {
                Some(instance) => format!("{name} with {instance} behind it on {}", pool.bdf),
                None => reason(pool, name, policy, fit.len()),
            };
            let (gpu, parent) = (pool.gpu.clone(), parent.address);
            return Ok(VgpuChoice { gpu, parent, name: (*name).clone(), memory: pool.memory_of(name), slice, reason });
        }
    }
    Err(why(pools, wish, &names))
}

/// The types that meet a wish, the best first: the smallest that will do, and compute before graphics, whose licence costs
/// more.
pub(super) fn ranked<'n>(names: Vec<&'n VgpuTypeName>, wish: &VgpuWish) -> Vec<&'n VgpuTypeName> {
    let size = |name: &VgpuTypeName| name.grade().map_or(u64::MAX, |grade| grade.memory.0);
    let is_compute = |name: &VgpuTypeName| name.grade().map(|grade| Reverse(grade.series == VgpuSeries::C));
    let mut names = names;
    match wish {
        // Some cards share an instance by time, too: who asks for a profile wants all of it.
        VgpuWish::Profile(_) => names.sort_by_key(|name| (Reverse(size(name)), is_compute(name))),
        VgpuWish::Type(_) | VgpuWish::Memory(_) => names.sort_by_key(|name| (size(name), is_compute(name))),
    }
    names
}

/// Whether the type computes and is large enough.
fn does_compute(name: &VgpuTypeName, least: Mib) -> bool {
    let does = |series| matches!(series, VgpuSeries::C | VgpuSeries::Q);
    name.grade().is_some_and(|grade| does(grade.series) && grade.memory >= least)
}

fn reason(pool: &VgpuPool, name: &VgpuTypeName, policy: Policy, cards: usize) -> String {
    let taken = pool.taken().count();
    let where_to = match (policy, taken) {
        _ if cards == 1 => "the only card with room".to_owned(),
        (Policy::Pack, 0) => "an empty card, since no other with room carries any".to_owned(),
        (Policy::Pack, _) => format!("the fullest card with room ({taken} there already)"),
        (Policy::Spread, _) => format!("the emptiest card with room ({taken} there already)"),
    };
    format!("{name} on {}: {where_to}", pool.bdf)
}

fn why(pools: &[VgpuPool], wish: &VgpuWish, names: &[&VgpuTypeName]) -> WhyNoVgpu {
    let told = match wish {
        VgpuWish::Type(word) => format!("vgpu:{word}"),
        VgpuWish::Memory(size) => format!("a vGPU with {size}"),
        VgpuWish::Profile(profile) => format!("mig:{profile}"),
    };
    let mut may_come = false;
    let cards = pools.iter().map(|pool| {
        let has: Vec<&&VgpuTypeName> = names.iter().filter(|name| pool.types().contains(**name)).collect();
        let Some(name) = has.first() else {
            return (pool.bdf, format!("{} has no such type", pool.model));
        };
        let limit = pool.room(name).limit;
        // What is out of use comes back into it.
        may_come |= match &limit {
            Limit::NoSuchType => false,
            Limit::Blocked(_) => true,
            _ => pool.taken().any(|taken| taken.is_ours),
        };
        (pool.bdf, limit.words(name.as_str()))
    });
    let cards = cards.collect();
    let mut all: Vec<VgpuTypeName> = pools.iter().flat_map(VgpuPool::types).cloned().collect();
    all.sort_unstable();
    all.dedup();
    let size = |name: &VgpuTypeName| name.grade().map_or(0, |grade| grade.memory.0);
    let wanted = match wish {
        VgpuWish::Memory(size) => size.0,
        VgpuWish::Type(_) | VgpuWish::Profile(_) => names.first().map_or(0, |name| size(name)),
    };
    let mut others: Vec<&VgpuTypeName> =
        all.iter().filter(|name| pools.iter().any(|pool| pool.room(name).count > 0)).collect();
    others.sort_by_key(|name| (size(name).abs_diff(wanted), Reverse(size(name))));
    let mut now: Vec<GpuRequest> = Vec::new();
    for request in others.into_iter().map(|name| asked(pools, name).1) {
        if now.len() < ALTERNATIVES && !now.contains(&request) {
            now.push(request);
        }
    }
    let profile = names.iter().find_map(|name| pools.iter().find_map(|pool| pool.profile_of(name)));
    let mend = profile.and_then(|profile| slices::mend(&pools.iter().collect::<Vec<_>>(), profile));
    WhyNoVgpu { wish: told, cards, now, mend, may_come }
}

impl Limit {
    /// In plain words, about a type.
    pub fn words(&self, name: &str) -> String {
        match self {
            Self::NoSuchType => "it has no such type".to_owned(),
            Self::Blocked(why) => why.clone(),
            Self::UnknownSize => "it carries a vGPU whose size is not known".to_owned(),
            Self::Size(size) => format!("it is set to profiles of {size} as long as one of them is there"),
            Self::Functions => format!("none of its functions is free for {name}"),
            Self::Memory => format!("it has not enough memory left for {name}"),
            Self::Driver => format!("it carries as many {name} as its driver allows"),
            Self::Allowed => format!("no more {name} may be made on it (gvm gpu show says what may)"),
            Self::Mixed => {
                "it is in mixed-size mode, and shows what fits beside the vGPU that is coming once that is made"
                    .to_owned()
            }
            Self::MigOn => "MIG is on, so nothing shares it by time".to_owned(),
            Self::MigOff => "MIG is off (an administrator changes it by gvm gpu mode GPU mig)".to_owned(),
            Self::Slices(why) => why.to_string(),
        }
    }
}

impl fmt::Display for WhyNoVgpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be had now", self.wish)?;
        if self.cards.is_empty() {
            return f.write_str(": no card of this host is divided into vGPUs (gvm gpu mode GPU vgpu)");
        }
        self.cards.iter().try_for_each(|(address, why)| write!(f, "\n  {address}: {why}"))?;
        self.mend.iter().try_for_each(|mend| write!(f, "\n{mend}"))
    }
}
