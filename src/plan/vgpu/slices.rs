//! Cards that MIG divides: each vGPU has an instance of its own behind it.
//!
//! The driver gives a vGPU any idle instance of its profile. So an idle one of the right profile goes first; else one is
//! made where it takes the least from what could still be had. What others made is used and never destroyed.

use std::fmt;
use std::sync::Arc;

use super::{VgpuHeld, VgpuPool};
use crate::model::card::vgpu::{MadeVgpu, VgpuSite};
use crate::model::card::{Card, SupportedVgpu};
use crate::model::gpu::VgpuTypeName;
use crate::model::gpu::mig::{Geometry, Instance, MigProfile};
use crate::plan::mig::{self, Carved, CarvedCard, Planner, Recarve, WhyNoRoom};

/// The instances of a card, and what more there could be.
#[derive(Clone, Debug)]
pub struct MigPool {
    /// What its kind of card can be divided into.
    pub planner: Arc<Planner>,
    /// What is there, or reserved.
    pub slots: Vec<Slot>,
    /// An administrator decided on the instances: none is made beside them.
    pub is_fixed: bool,
    /// The types that NVML says the card has, with their profiles.
    types: Vec<(VgpuTypeName, MigProfile)>,
    /// Leases whose room somebody else has by now.
    lost: Vec<VgpuSite>,
}

/// An instance, or the room for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// What it is and where it lies.
    pub instance: Instance,
    /// It is there; else a lease has its room.
    pub is_made: bool,
    /// Who has it.
    pub user: Option<SlotUser>,
}

/// Who has an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotUser {
    /// A machine of ours; its name where that may be told.
    Ours(Option<String>),
    /// Somebody else.
    Other,
}

/// Why a profile cannot be had on a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoSlot {
    /// The layout is an administrator's and has no idle one.
    Fixed(MigProfile),
    /// There is no room for one more.
    NoRoom(WhyNoRoom),
}

impl MigPool {
    /// The instances of a card with MIG on. `None` where what NVML tells of them is not understood.
    pub(super) fn of(
        card: &Card,
        functions: &[&Card],
        held: &[VgpuHeld],
        planners: &dyn Fn(&Geometry) -> Option<Arc<Planner>>,
    ) -> Option<Self> {
        let nvml = card.nvml.as_ref()?;
        let facts = nvml.mig.as_ref().filter(|facts| facts.is_on)?;
        let planner = planners(facts.geometry.as_ref()?)?;
        let parents = || functions.iter().filter_map(|function| Some((function.address, function.vgpu.as_ref()?)));
        let mut slots = Vec::new();
        let mut is_satisfied = vec![false; held.len()];
        for made in &facts.instances {
            let vgpu = parents().find_map(|(parent, facts)| {
                let on_it = |vgpu: &&MadeVgpu| vgpu.gpu_instance == Some(made.id);
                facts.made.iter().find(on_it).map(|vgpu| (parent, vgpu.uuid))
            });
            let user = vgpu.map(|(parent, uuid)| {
                let ours = held.iter().position(|held| held.site.parent == parent && held.site.uuid == uuid);
                if let Some(satisfied) = ours.and_then(|at| is_satisfied.get_mut(at)) {
                    *satisfied = true;
                }
                match ours.and_then(|at| held.get(at)) {
                    Some(held) => SlotUser::Ours(held.vm.clone()),
                    None => SlotUser::Other,
                }
            });
            slots.push(Slot { instance: made.instance, is_made: true, user });
        }
        let mut pool = Self { planner, slots, is_fixed: false, types: types(&nvml.vgpu_types), lost: Vec::new() };
        let coming =
            || held.iter().zip(&is_satisfied).filter(|(_, is_satisfied)| !**is_satisfied).map(|(held, _)| held);
        // Who counts with an instance that is there has it before anybody who would take any.
        let (exact, others): (Vec<_>, Vec<_>) = coming().partition(|held| pool.has_idle(held.slice));
        for held in exact.into_iter().chain(others) {
            if !pool.reserve(held) {
                pool.lost.push(held.site);
            }
        }
        let is_ours = |site: VgpuSite| held.iter().any(|held| held.site == site);
        for (parent, facts) in parents() {
            // A mediated device does not say which instance it has: it has one of its profile.
            let unsaid =
                |made: &&MadeVgpu| made.gpu_instance.is_none() && !is_ours(VgpuSite { parent, uuid: made.uuid });
            for name in facts.made.iter().filter(unsaid).filter_map(|made| made.name.as_ref()) {
                let profile = pool.profile_of(name);
                let is_it = |slot: &&mut Slot| slot.user.is_none() && Some(slot.instance.profile) == profile;
                pool.slots.iter_mut().find(is_it).into_iter().for_each(|slot| slot.user = Some(SlotUser::Other));
            }
        }
        Some(pool)
    }

    /// Counts a lease whose vGPU is not made yet, or does not say where it is; false where there is no room for it.
    fn reserve(&mut self, held: &VgpuHeld) -> bool {
        let Some(instance) = held.slice else { return false };
        let user = Some(SlotUser::Ours(held.vm.clone()));
        let is_idle = |slot: &Slot| slot.user.is_none() && slot.instance.profile == instance.profile;
        let is_it = |slot: &Slot| is_idle(slot) && slot.instance == instance;
        let idle = self.slots.iter().position(is_it).or_else(|| self.slots.iter().position(is_idle));
        if let Some(slot) = idle.and_then(|at| self.slots.get_mut(at)) {
            slot.user = user;
            return true;
        }
        // Where somebody else has put something there meanwhile, the room is lost.
        let is_lawful = self.is_lawful_with(instance);
        if is_lawful {
            self.slots.push(Slot { instance, is_made: false, user });
        }
        is_lawful
    }

    fn has_idle(&self, instance: Option<Instance>) -> bool {
        self.slots.iter().any(|slot| slot.user.is_none() && Some(slot.instance) == instance)
    }

    fn is_lawful_with(&self, instance: Instance) -> bool {
        let mut all = self.placed();
        all.push(instance);
        self.planner.check(&all).is_ok()
    }

    /// Everything that is there or reserved.
    pub fn placed(&self) -> Vec<Instance> {
        self.slots.iter().map(|slot| slot.instance).collect()
    }

    fn idle(&self, profile: MigProfile) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(move |slot| slot.user.is_none() && slot.instance.profile == profile)
    }

    /// The profile behind a type: as NVML says, else by the type's name.
    pub fn profile_of(&self, name: &VgpuTypeName) -> Option<MigProfile> {
        let told = self.types.iter().find(|(known, _)| known == name).map(|(_, profile)| *profile);
        told.or_else(|| name.grade()?.profile(self.planner.geometry()))
    }

    /// The types that NVML names.
    pub(super) fn types(&self) -> impl Iterator<Item = &VgpuTypeName> {
        self.types.iter().map(|(name, _)| name)
    }

    /// How many more of a profile can be had.
    pub fn room(&self, profile: MigProfile) -> u32 {
        let idle = u32::try_from(self.idle(profile).count()).unwrap_or(u32::MAX);
        let new = match self.is_fixed {
            true => 0,
            false => {
                let rooms = self.planner.capacity(&self.placed()).unwrap_or_default();
                rooms.iter().find(|room| room.profile == profile).map_or(0, |room| room.count)
            }
        };
        idle.saturating_add(new)
    }

    /// Where the next of a profile lies: an idle one, else where it takes the least.
    ///
    /// # Errors
    /// Why there is none.
    pub fn next(&self, profile: MigProfile) -> Result<Instance, NoSlot> {
        if let Some(slot) = self.idle(profile).last() {
            return Ok(slot.instance);
        }
        match self.is_fixed {
            true => Err(NoSlot::Fixed(profile)),
            false => self.planner.place(&self.placed(), profile).map_err(NoSlot::NoRoom),
        }
    }

    /// Counts a choice.
    pub(super) fn take(&mut self, instance: Instance) {
        let user = Some(SlotUser::Ours(None));
        match self.slots.iter_mut().find(|slot| slot.instance == instance && slot.user.is_none()) {
            Some(slot) => slot.user = user,
            None => self.slots.push(Slot { instance, is_made: false, user }),
        }
    }

    /// True where the lease of a vGPU still has what it reserved.
    pub fn keeps(&self, site: VgpuSite) -> bool {
        !self.lost.contains(&site)
    }

    /// Its instances as the planner of moves takes them.
    pub fn carved(&self) -> Vec<Carved> {
        self.slots.iter().map(|slot| Carved { instance: slot.instance, is_in_use: slot.user.is_some() }).collect()
    }
}

fn types(supported: &[SupportedVgpu]) -> Vec<(VgpuTypeName, MigProfile)> {
    supported.iter().filter_map(|one| Some((one.name.clone(), one.profile?))).collect()
}

/// The card that loses the least by one more of a profile, and where it lies there; a card with an idle one goes first.
pub(super) fn best<'p>(pools: &[&'p VgpuPool], profile: MigProfile) -> Option<(&'p VgpuPool, Instance)> {
    let migs = || pools.iter().filter_map(|pool| Some((*pool, pool.mig.as_ref()?)));
    if let Some((pool, mig)) = migs().find(|(_, mig)| mig.idle(profile).next().is_some()) {
        return Some((pool, mig.next(profile).ok()?));
    }
    let open: Vec<(&VgpuPool, &MigPool)> = migs().filter(|(_, mig)| !mig.is_fixed).collect();
    let placed: Vec<Vec<Instance>> = open.iter().map(|(_, mig)| mig.placed()).collect();
    let cards: Vec<mig::Card<'_>> =
        open.iter().zip(&placed).map(|((_, mig), placed)| mig::Card { planner: &mig.planner, placed }).collect();
    let pick = mig::pick(&cards, profile).ok()?;
    open.get(pick.card).map(|(pool, _)| (*pool, pick.instance))
}

/// What would have to go so that one more of a profile has room, in plain words.
pub fn mend(pools: &[&VgpuPool], profile: MigProfile) -> Option<String> {
    let is_open = |pool: &&&VgpuPool| pool.blocked.is_none();
    let open: Vec<(&VgpuPool, &MigPool)> = pools
        .iter()
        .filter(is_open)
        .filter_map(|pool| Some((*pool, pool.mig.as_ref().filter(|mig| !mig.is_fixed)?)))
        .collect();
    let carved: Vec<Vec<Carved>> = open.iter().map(|(_, mig)| mig.carved()).collect();
    let cards: Vec<CarvedCard<'_>> =
        open.iter().zip(&carved).map(|((_, mig), carved)| CarvedCard { planner: &mig.planner, carved }).collect();
    let recarve = mig::recarve(&cards, profile).ok()?;
    Some(words(&recarve, &open))
}

fn words(recarve: &Recarve, open: &[(&VgpuPool, &MigPool)]) -> String {
    let place = |card: usize| open.get(card).map_or_else(String::new, |(pool, _)| pool.bdf.to_string());
    let holder = |card: usize, instance: Instance| {
        let slot = open.get(card).and_then(|(_, mig)| mig.slots.iter().find(|slot| slot.instance == instance));
        match slot.and_then(|slot| slot.user.clone()) {
            Some(SlotUser::Ours(Some(vm))) => format!("VM {vm}"),
            Some(SlotUser::Ours(None)) => "the VM".to_owned(),
            Some(SlotUser::Other) | None => "whoever is".to_owned(),
        }
    };
    let mut steps: Vec<String> = Vec::new();
    for step in &recarve.moves {
        let (from, to) = (&step.from, &step.to);
        let who = holder(from.card, from.instance);
        let same = if from.card == to.card { String::new() } else { format!(" of {}", place(to.card)) };
        steps.push(format!("move {who} from {} on {} to {}{same}", from.instance, place(from.card), to.instance));
    }
    let idle = recarve.destroy.iter().map(|pick| format!("remove the idle {} of {}", pick.instance, place(pick.card)));
    steps.extend(idle);
    let wanted = &recarve.wanted;
    format!("{} on {} would have room: {}", wanted.instance, place(wanted.card), steps.join(", then "))
}

impl fmt::Display for NoSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(profile) => write!(f, "its layout was decided on, and has no idle {profile}"),
            Self::NoRoom(why) => write!(f, "{why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Parent, Policy, VgpuWish, pick, take};
    use super::*;
    use crate::model::gpu::GpuId;
    use crate::model::gpu::mig::fixtures::a100_80;
    use crate::model::pci::PciAddress;
    use crate::model::units::Mib;

    const TYPES: [&str; 8] = [
        "A100D-1-10C",
        "A100D-1-10CME",
        "A100D-1-20C",
        "A100D-2-20C",
        "A100D-3-40C",
        "A100D-4-40C",
        "A100D-7-80C",
        "A100D-20C",
    ];

    fn instance(text: &str) -> Instance {
        crate::model::card::shape::parse_instance(text).unwrap()
    }

    /// A card with so many functions and these idle instances.
    fn card(bus: u8, functions: u8, idle: &[&str]) -> VgpuPool {
        let bdf = PciAddress { domain: 0, bus, slot: 0, function: 0 };
        let slots = idle.iter().map(|text| Slot { instance: instance(text), is_made: true, user: None }).collect();
        let planner = Arc::new(Planner::new(a100_80()).unwrap());
        let parent = |number: u8| Parent {
            address: PciAddress { slot: 1 + number / 8, function: number % 8, ..bdf },
            is_single: true,
            framework: crate::model::card::vgpu::VgpuFramework::VendorVfio,
            offered: Vec::new(),
            taken: Vec::new(),
            fault: None,
        };
        VgpuPool {
            gpu: GpuId(format!("pci-{bdf}")),
            bdf,
            model: "NVIDIA A100".to_owned(),
            memory: Some(Mib(80 << 10)),
            is_mixed: false,
            known: TYPES.iter().filter_map(|text| VgpuTypeName::parse(text)).collect(),
            parents: (0..functions).map(parent).collect(),
            mig: Some(MigPool { planner, slots, is_fixed: false, types: Vec::new(), lost: Vec::new() }),
            allowed: Vec::new(),
            blocked: None,
        }
    }

    fn room(pool: &VgpuPool, text: &str) -> u32 {
        pool.room(&VgpuTypeName::parse(text).unwrap()).count
    }

    fn ask(pools: &mut [VgpuPool], profile: &str) -> Result<Instance, String> {
        let choice =
            pick(pools, &VgpuWish::Profile(profile.parse().unwrap()), Policy::Pack).map_err(|why| why.to_string())?;
        take(pools, &choice);
        Ok(choice.slice.unwrap())
    }

    #[test]
    fn a_name_stands_for_a_profile() {
        let pool = card(1, 7, &[]);
        let of = |text: &str| pool.profile_of(&VgpuTypeName::parse(text).unwrap()).map(|profile| profile.to_string());
        let told: Vec<Option<String>> = TYPES.iter().map(|text| of(text)).collect();
        let want = ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"];
        assert_eq!(told, want.map(|text| Some(text.to_owned())).into_iter().chain([None]).collect::<Vec<_>>());
    }

    #[test]
    fn room_is_slices_and_functions_together() {
        assert_eq!(room(&card(1, 7, &[]), "A100D-1-10C"), 7);
        assert_eq!(room(&card(1, 3, &[]), "A100D-1-10C"), 3, "not more than functions");
        assert_eq!(room(&card(1, 7, &[]), "A100D-20C"), 0, "nothing shares the card by time");
        let mut pools = [card(1, 7, &["3g.40gb@0:4"])];
        assert_eq!((room(&pools[0], "A100D-3-40C"), room(&pools[0], "A100D-4-40C")), (2, 0));
        assert_eq!(ask(&mut pools, "3g.40gb").unwrap(), instance("3g.40gb@0:4"), "the idle one first");
        pools[0].mig.as_mut().unwrap().is_fixed = true;
        insta::assert_snapshot!(ask(&mut pools, "3g.40gb").unwrap_err(), @r"
        mig:3g.40gb cannot be had now
          0000:01:00.0: its layout was decided on, and has no idle 3g.40gb
        ");
    }

    #[test]
    fn an_idle_one_anywhere_goes_before_a_new_one() {
        let mut pools = [card(1, 7, &[]), card(2, 7, &["2g.20gb@4:2"])];
        let choice = pick(&pools, &VgpuWish::Profile("2g.20gb".parse().unwrap()), Policy::Pack).unwrap();
        assert_eq!((choice.parent.bus, choice.slice), (2, Some(instance("2g.20gb@4:2"))));
        take(&mut pools, &choice);
        assert_eq!(ask(&mut pools, "7g.80gb").unwrap(), instance("7g.80gb@0:8"));
        insta::assert_snapshot!(ask(&mut pools, "7g.80gb").unwrap_err(), @r"
        mig:7g.80gb cannot be had now
          0000:01:00.0: 7g.80gb: the card may have 1 of it, and has
          0000:02:00.0: 7g.80gb takes 7 compute slices, 5 are free
        ");
    }

    proptest::proptest! {
        /// What is shown can be had, one after the other, and not one more.
        #[test]
        fn what_is_offered_can_be_had(before in proptest::collection::vec(0_usize..7, 0..9), asked in 0_usize..7) {
            let profiles = ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"];
            let mut pools = [card(1, 7, &["1g.10gb@3:1"]), card(2, 4, &[])];
            for index in before {
                let _ = ask(&mut pools, profiles[index]);
            }
            let promised: u32 = pools.iter().map(|pool| room(pool, TYPES[asked])).sum();
            for number in 0..promised {
                proptest::prop_assert!(ask(&mut pools, profiles[asked]).is_ok(), "{number} of {promised}");
            }
            proptest::prop_assert!(ask(&mut pools, profiles[asked]).is_err());
            for pool in &pools {
                let mig = pool.mig.as_ref().unwrap();
                proptest::prop_assert!(mig.planner.check(&mig.placed()).is_ok());
            }
        }
    }
}
