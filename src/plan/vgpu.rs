//! vGPUs: how many of which type a card can still carry, and which card gets the next.
//!
//! ```text
//!   cards of a look + leases ──> pools ──> room: so many more of a type, and what limits it
//!                                     \──> pick: card and function, or why not
//! ```
//! - Free virtual functions are no capacity: they share one framebuffer. What can be had is the least of the free
//!   functions that offer the type, of the memory that is left, and of the driver's own limit.
//! - A card whose vGPUs share it by time carries one size unless it is in mixed-size mode; other series of the same size
//!   go beside each other. So cards of the wanted size come first, and empty ones are kept for other sizes.
//! - What is made and not ours is counted and never touched.

mod offers;
mod pick;
mod pools;

use std::collections::BTreeSet;

use crate::model::card::vgpu::{OfferedType, VgpuFramework};
use crate::model::gpu::{GpuId, VgpuTypeName};
use crate::model::pci::PciAddress;
use crate::model::units::Mib;
pub use offers::offers;
pub use pick::{Policy, VgpuChoice, VgpuWish, WhyNoVgpu, pick};
pub use pools::{VgpuHeld, pools};

/// A card that is divided into vGPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VgpuPool {
    /// The card.
    pub gpu: GpuId,
    /// Where it is.
    pub bdf: PciAddress,
    /// Its name.
    pub model: String,
    /// What its vGPUs share, as sold; `None` where not known, so that only the driver limits them.
    pub memory: Option<Mib>,
    /// Mixed-size mode: sizes may stand beside each other.
    pub is_mixed: bool,
    /// Types that it has, those included that it has no room for now.
    pub known: Vec<VgpuTypeName>,
    /// Functions that can carry vGPUs, by address.
    pub parents: Vec<Parent>,
    /// Why nothing more may be made on it, where that is so.
    pub blocked: Option<String>,
}

/// A function that can carry vGPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parent {
    /// Where it is.
    pub address: PciAddress,
    /// How it makes them.
    pub framework: VgpuFramework,
    /// A virtual function carries one vGPU; a card without them several.
    pub is_single: bool,
    /// What it offers at the moment.
    pub offered: Vec<OfferedType>,
    /// What is made on it, or leased and not made yet.
    pub taken: Vec<Taken>,
    /// Why it is given to nobody, where that is so.
    pub fault: Option<String>,
}

/// A vGPU that is there, or will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its type; `None` where a function has one that nobody can name.
    pub name: Option<VgpuTypeName>,
    /// Its framebuffer, where known.
    pub memory: Option<Mib>,
    /// A lease of ours has it.
    pub is_ours: bool,
    /// The driver counts it already.
    pub is_made: bool,
}

/// Counts a choice as taken.
pub fn take(pools: &mut [VgpuPool], choice: &VgpuChoice) {
    let parents = pools.iter_mut().flat_map(|pool| &mut pool.parents);
    for parent in parents.filter(|parent| parent.address == choice.parent) {
        let (name, memory) = (Some(choice.offered.name.clone()), choice.offered.memory());
        parent.taken.push(Taken { name, memory, is_ours: true, is_made: false });
    }
}

/// How many more of a type, and what limits them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// So many.
    pub count: u32,
    /// What there is not more of.
    pub limit: Limit,
}

/// What limits the number of vGPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The card does not have this type.
    NoSuchType,
    /// The card is out of use.
    Blocked(String),
    /// Something on it is of a size that is not known.
    UnknownSize,
    /// It carries vGPUs of another size.
    Size(Mib),
    /// Its functions that offer the type.
    Functions,
    /// Its memory.
    Memory,
    /// What the driver allows of the type.
    Driver,
}

impl VgpuPool {
    /// Everything that it offers, carries or is known to have, each once.
    pub fn types(&self) -> BTreeSet<&VgpuTypeName> {
        let offered = self.parents.iter().flat_map(|parent| &parent.offered).map(|offered| &offered.name);
        offered.chain(self.taken().filter_map(|taken| taken.name.as_ref())).chain(&self.known).collect()
    }

    /// What is on it.
    pub fn taken(&self) -> impl Iterator<Item = &Taken> {
        self.parents.iter().flat_map(|parent| &parent.taken)
    }

    /// The framebuffer of a type, by what is known here.
    pub fn memory_of(&self, name: &VgpuTypeName) -> Option<Mib> {
        let told = self.parents.iter().flat_map(|parent| &parent.offered).find(|offered| offered.name == *name);
        told.map_or_else(|| name.grade().map(|grade| grade.memory), OfferedType::memory)
    }

    /// How many more of a type can be had if nothing else is asked for.
    pub fn room(&self, name: &VgpuTypeName) -> Room {
        let none = |limit| Room { count: 0, limit };
        if !self.types().contains(name) {
            return none(Limit::NoSuchType);
        }
        if let Some(why) = &self.blocked {
            return none(Limit::Blocked(why.clone()));
        }
        let memory = self.memory_of(name);
        // Instances of MIG have memory of their own each.
        let is_by_time = |name: &VgpuTypeName| name.grade().is_none_or(|grade| grade.slices.is_none());
        if is_by_time(name) && !self.is_mixed && memory.is_some() {
            let sizes = || self.taken().filter(|taken| taken.name.as_ref().is_none_or(is_by_time));
            if sizes().any(|taken| taken.memory.is_none()) {
                return none(Limit::UnknownSize);
            }
            if let Some(other) = sizes().filter_map(|taken| taken.memory).find(|size| Some(*size) != memory) {
                return none(Limit::Size(other));
            }
        }
        let functions = self.parents.iter().map(|parent| parent.room(name)).fold(0_u32, u32::saturating_add);
        let mut room = Room { count: functions, limit: Limit::Functions };
        if let Some((all, each)) = self.memory.zip(memory).filter(|(_, each)| each.0 > 0) {
            let used: u64 =
                self.taken().map(|taken| taken.memory.map_or(0, |size| size.0)).fold(0, u64::saturating_add);
            room.lower(all.0.saturating_sub(used) / each.0, Limit::Memory);
        }
        if let Some(most) = self.most(name) {
            let same = self.taken().filter(|taken| taken.name.as_ref() == Some(name)).count();
            room.lower(u64::from(most).saturating_sub(same as u64), Limit::Driver);
        }
        room
    }

    fn most(&self, name: &VgpuTypeName) -> Option<u32> {
        let offered = self.parents.iter().flat_map(|parent| &parent.offered).filter(|offered| offered.name == *name);
        offered.filter_map(|offered| offered.most).min()
    }

    /// The function that would carry the next of a type: the first that is free for it.
    pub fn next_parent(&self, name: &VgpuTypeName) -> Option<(&Parent, &OfferedType)> {
        let parent = self.parents.iter().find(|parent| parent.room(name) > 0)?;
        Some((parent, parent.offers(name)?))
    }
}

impl Parent {
    fn offers(&self, name: &VgpuTypeName) -> Option<&OfferedType> {
        self.offered.iter().find(|offered| offered.name == *name && offered.available > 0)
    }

    /// How many of a type this function takes, whatever its card says.
    fn room(&self, name: &VgpuTypeName) -> u32 {
        let Some(offered) = self.offers(name).filter(|_| self.fault.is_none()) else { return 0 };
        if self.is_single {
            return u32::from(self.taken.is_empty());
        }
        // What is leased and not made yet is in nobody's count.
        let coming = self.taken.iter().filter(|taken| !taken.is_made).count();
        offered.available.saturating_sub(u32::try_from(coming).unwrap_or(u32::MAX))
    }
}

impl Room {
    fn lower(&mut self, count: u64, limit: Limit) {
        if count < u64::from(self.count) {
            *self = Self { count: u32::try_from(count).unwrap_or(u32::MAX), limit };
        }
    }
}

#[cfg(test)]
mod tests;
