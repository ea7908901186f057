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
//! - A card with MIG on carries no vGPU by time; each has an instance behind it, and what has room is MIG's to say.
//! - What is made and not ours is counted and never touched.

mod offers;
mod pick;
mod pools;
mod report;
pub mod slices;

use std::collections::BTreeSet;

use crate::model::card::vgpu::{OfferedType, VgpuFramework};
use crate::model::gpu::mig::MigProfile;
use crate::model::gpu::{GpuId, VgpuTypeName};
use crate::model::pci::PciAddress;
use crate::model::units::Mib;
pub use offers::offers;
pub use pick::{Policy, VgpuChoice, VgpuWish, WhyNoVgpu, pick};
pub use pools::{VgpuHeld, pools};
pub use report::{CardReport, MigReport, Report, report};
use slices::{MigPool, NoSlot};

/// A card that is divided into vGPUs.
#[derive(Clone, Debug)]
pub struct VgpuPool {
    /// The card.
    pub gpu: GpuId,
    /// Where it is.
    pub bdf: PciAddress,
    /// Its name.
    pub model: String,
    /// What its vGPUs share, as sold; `None` where not known, so that only the driver limits them.
    pub memory: Option<Mib>,
    /// Mixed-size mode: sizes may stand beside each other, and where they lie decides what fits.
    pub is_mixed: bool,
    /// Types that it has, those included that it has no room for now.
    pub known: Vec<VgpuTypeName>,
    /// Functions that can carry vGPUs, by address.
    pub parents: Vec<Parent>,
    /// Its MIG instances, where MIG is on.
    pub mig: Option<MigPool>,
    /// An administrator's choice of types, with how many of each at most; empty where there is none.
    pub allowed: Vec<(VgpuTypeName, u32)>,
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
    for pool in pools.iter_mut().filter(|pool| pool.gpu == choice.gpu) {
        for parent in pool.parents.iter_mut().filter(|parent| parent.address == choice.parent) {
            let (name, memory) = (Some(choice.name.clone()), choice.memory);
            parent.taken.push(Taken { name, memory, is_ours: true, is_made: false });
        }
        if let Some((mig, instance)) = pool.mig.as_mut().zip(choice.slice) {
            mig.take(instance);
        }
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
    /// What an administrator allows of the type.
    Allowed,
    /// In mixed-size mode the driver places vGPUs as it likes: what it lists is true for the next one only.
    Mixed,
    /// MIG is on, and the type shares a card by time.
    MigOn,
    /// MIG is off, and the type has an instance behind it.
    MigOff,
    /// There is no instance for it, and no room for one.
    Slices(NoSlot),
}

impl VgpuPool {
    /// Everything that it offers, carries or is known to have, each once.
    pub fn types(&self) -> BTreeSet<&VgpuTypeName> {
        let offered = self.parents.iter().flat_map(|parent| &parent.offered).map(|offered| &offered.name);
        let told = self.mig.iter().flat_map(MigPool::types);
        offered.chain(self.taken().filter_map(|taken| taken.name.as_ref())).chain(&self.known).chain(told).collect()
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

    /// The profile of the MIG instance that a type has behind it on this card.
    pub fn profile_of(&self, name: &VgpuTypeName) -> Option<MigProfile> {
        self.mig.as_ref()?.profile_of(name)
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
        let has_slice = name.grade().is_some_and(|grade| grade.slices.is_some()) || self.profile_of(name).is_some();
        let mut room = match (&self.mig, has_slice) {
            (None, true) => none(Limit::MigOff),
            (Some(_), false) => none(Limit::MigOn),
            (None, false) => self.room_by_time(name),
            (Some(mig), true) => match self.profile_of(name) {
                None => none(Limit::NoSuchType),
                Some(profile) => self.room_of_slices(mig, profile),
            },
        };
        if !self.allowed.is_empty() {
            let most = self.allowed.iter().find(|(allowed, _)| allowed == name).map_or(0, |(_, most)| *most);
            room.lower(u64::from(most).saturating_sub(self.count(name)), Limit::Allowed);
        }
        room
    }

    /// An instance, and a function that is free to carry what is on it.
    fn room_of_slices(&self, mig: &MigPool, profile: MigProfile) -> Room {
        let functions = self.parents.iter().filter(|parent| parent.is_free()).count() as u64;
        let room = mig.room(profile);
        match mig.next(profile) {
            Err(why) => Room { count: 0, limit: Limit::Slices(why) },
            Ok(_) if functions < u64::from(room) => {
                Room { count: u32::try_from(functions).unwrap_or(u32::MAX), limit: Limit::Functions }
            }
            Ok(_) => Room { count: room, limit: Limit::Memory },
        }
    }

    fn room_by_time(&self, name: &VgpuTypeName) -> Room {
        let none = |limit| Room { count: 0, limit };
        let memory = self.memory_of(name);
        if !self.is_mixed && memory.is_some() {
            if self.taken().any(|taken| taken.memory.is_none()) {
                return none(Limit::UnknownSize);
            }
            if let Some(other) = self.taken().filter_map(|taken| taken.memory).find(|size| Some(*size) != memory) {
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
            room.lower(u64::from(most).saturating_sub(self.count(name)), Limit::Driver);
        }
        if self.is_mixed {
            let is_coming = self.taken().any(|taken| !taken.is_made);
            room.lower(u64::from(!is_coming), Limit::Mixed);
        }
        room
    }

    fn count(&self, name: &VgpuTypeName) -> u64 {
        self.taken().filter(|taken| taken.name.as_ref() == Some(name)).count() as u64
    }

    fn most(&self, name: &VgpuTypeName) -> Option<u32> {
        let offered = self.parents.iter().flat_map(|parent| &parent.offered).filter(|offered| offered.name == *name);
        offered.filter_map(|offered| offered.most).min()
    }

    /// The function that would carry the next of a type: the first that is free for it. A type with an instance behind it
    /// is listed only once the instance is there.
    pub fn next_parent(&self, name: &VgpuTypeName) -> Option<&Parent> {
        let has_slice = self.profile_of(name).is_some();
        self.parents.iter().find(|parent| if has_slice { parent.is_free() } else { parent.room(name) > 0 })
    }
}

impl Parent {
    fn offers(&self, name: &VgpuTypeName) -> Option<&OfferedType> {
        self.offered.iter().find(|offered| offered.name == *name && offered.available > 0)
    }

    /// True where it carries nothing, or may carry any number.
    fn is_free(&self) -> bool {
        self.fault.is_none() && (!self.is_single || self.taken.is_empty())
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
