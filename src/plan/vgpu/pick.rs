//! Which card and which function gets the next vGPU, or why none.

use std::cmp::Reverse;
use std::fmt;

use super::{Limit, VgpuPool};
use crate::model::card::vgpu::OfferedType;
use crate::model::gpu::{GpuId, VgpuSeries, VgpuTypeName};
use crate::model::pci::PciAddress;
use crate::model::units::Mib;

/// Where the next one goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// To the fullest card, so that others stay empty for other sizes and for machines that want all of one.
    #[default]
    Pack,
    /// To the emptiest card, so that neighbours are few.
    Spread,
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VgpuWish {
    /// A type by its name, in the words of [`VgpuTypeName::is_called`].
    Type(String),
    /// At least so much memory, for CUDA: the smallest type that has it.
    Memory(Mib),
}

/// Where it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VgpuChoice {
    /// The card.
    pub gpu: GpuId,
    /// The function that is to carry it.
    pub parent: PciAddress,
    /// What to make there; its number is good for this moment only.
    pub offered: OfferedType,
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
    /// Names that can be asked for.
    pub names: Vec<VgpuTypeName>,
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
    });
    let size = |name: &VgpuTypeName| name.grade().map_or(u64::MAX, |grade| grade.memory.0);
    // The smallest that will do; compute before graphics, whose licence costs more.
    names.sort_by_key(|name| (size(name), name.grade().map(|grade| Reverse(grade.series == VgpuSeries::C))));
    for name in &names {
        let mut fit: Vec<&VgpuPool> = pools.iter().filter(|pool| pool.room(name).count > 0).collect();
        fit.sort_by_key(|pool| {
            let taken = pool.taken().count();
            (if policy == Policy::Pack { usize::MAX - taken } else { taken }, pool.bdf)
        });
        if let Some(pool) = fit.first()
            && let Some((parent, offered)) = pool.next_parent(name)
        {
            let reason = reason(pool, name, policy, fit.len());
            return Ok(VgpuChoice { gpu: pool.gpu.clone(), parent: parent.address, offered: offered.clone(), reason });
        }
    }
    Err(why(pools, wish, &names))
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
    };
    let mut may_come = false;
    let cards = pools.iter().map(|pool| {
        let has: Vec<&&VgpuTypeName> = names.iter().filter(|name| pool.types().contains(**name)).collect();
        let Some(name) = has.first() else {
            return (pool.bdf, format!("{} has no such type", pool.model));
        };
        let limit = pool.room(name).limit;
        may_come |= !matches!(limit, Limit::NoSuchType | Limit::Blocked(_)) && pool.taken().any(|taken| taken.is_ours);
        (pool.bdf, limit.words(name))
    });
    let cards = cards.collect();
    let mut all: Vec<VgpuTypeName> = pools.iter().flat_map(VgpuPool::types).cloned().collect();
    all.sort_unstable();
    all.dedup();
    WhyNoVgpu { wish: told, cards, names: all, may_come }
}

impl Limit {
    fn words(&self, name: &VgpuTypeName) -> String {
        match self {
            Self::NoSuchType => "it has no such type".to_owned(),
            Self::Blocked(why) => why.clone(),
            Self::UnknownSize => "it carries a vGPU whose size is not known".to_owned(),
            Self::Size(size) => format!("it is set to profiles of {size} as long as one of them is there"),
            Self::Functions => format!("none of its functions is free for {name}"),
            Self::Memory => format!("it has not enough memory left for {name}"),
            Self::Driver => format!("it carries as many {name} as its driver allows"),
        }
    }
}

impl fmt::Display for WhyNoVgpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be had now", self.wish)?;
        if self.cards.is_empty() {
            return f.write_str(": no card of this host is divided into vGPUs (gvm gpu mode GPU vgpu)");
        }
        self.cards.iter().try_for_each(|(address, why)| write!(f, "\n  {address}: {why}"))
    }
}
