//! The fake's vGPUs: the rules of the drivers, without one.
//!
//! A function carries one vGPU, a card without virtual functions several. Those that share a card by time are of one
//! size. A function that has a type lists no others; the others list what the memory that is left allows.

use uuid::Uuid;

use super::State;
use super::shape::Dividable;
use crate::gpu::BindError;
use crate::model::card::Card;
use crate::model::card::vgpu::{MadeVgpu, OfferedType, VgpuFramework, VgpuJob, VgpuParent, VgpuSite};
use crate::model::gpu::VgpuTypeName;
use crate::model::pci::PciAddress;
use crate::model::units::Mib;

impl State {
    pub(super) fn vgpu(&mut self, job: &VgpuJob) -> Result<(), BindError> {
        let (VgpuSite { parent, uuid }, name) = match job {
            VgpuJob::Make { site, name } | VgpuJob::Remove { site, name } => (*site, name),
        };
        let refused = |why: String| Err(BindError::Refused(why));
        let Some(card) = self.discovery.cards.iter().find(|card| card.address == parent) else {
            return refused(format!("there is no PCI device at {parent}"));
        };
        let Some(facts) = &card.vgpu else { return refused(format!("{parent} carries no vGPUs")) };
        let there = facts.made.iter().find(|made| made.uuid == uuid);
        let is_it = there.is_some_and(|made| made.name.as_ref() == Some(name));
        let is_make = matches!(job, VgpuJob::Make { .. });
        match there {
            Some(_) if is_it == is_make && is_it => return Ok(()),
            None if !is_make => return Ok(()),
            Some(_) if !is_it => return refused(format!("{parent} carries another vGPU than {name}")),
            _ => {}
        }
        if let Some(error) = self.next_vgpu.take() {
            return Err(error);
        }
        self.hang_if_stuck(&[parent])?;
        match uuid {
            Some(uuid) if !is_make && self.open_mdevs.contains(&uuid) => {
                return refused(format!("{parent}/{uuid} is in use"));
            }
            None if !is_make => self.refuse_if_held(parent)?,
            _ => {}
        }
        let room = self.room(parent, name);
        let slice = self.instance_for(self.card_behind(parent), name);
        let Some(card) = self.discovery.cards.iter_mut().find(|card| card.address == parent) else { return Ok(()) };
        let is_vf = card.is_vf();
        let Some(facts) = &mut card.vgpu else { return Ok(()) };
        if is_make {
            let Some(offered) = facts.offered.iter().find(|offered| offered.name == *name) else {
                return Err(BindError::Failed(format!("{parent} does not offer {name} now")));
            };
            let is_free = !is_vf || facts.made.is_empty();
            if room == 0 || !is_free || slice.is_err() {
                return Err(BindError::Failed(format!(
                    "{parent} does not become {name}: not enough is left on its card"
                )));
            }
            let (type_id, name) = (offered.id.clone(), Some(name.clone()));
            facts.made.push(MadeVgpu { uuid, type_id, name, gpu_instance: slice.unwrap_or_default() });
        } else {
            facts.made.retain(|made| made.uuid != uuid);
        }
        self.list(parent);
        self.judge();
        Ok(())
    }

    fn parents(&self, of: PciAddress) -> impl Iterator<Item = &Card> {
        self.discovery.cards.iter().filter(move |card| card.physfn.unwrap_or(card.address) == of && card.vgpu.is_some())
    }

    /// The card behind a function.
    fn card_behind(&self, parent: PciAddress) -> PciAddress {
        let card = self.discovery.cards.iter().find(|card| card.address == parent);
        card.and_then(|card| card.physfn).unwrap_or(parent)
    }

    /// How many more of a type the card's memory takes.
    fn room(&self, parent: PciAddress, name: &VgpuTypeName) -> u32 {
        let of = self.card_behind(parent);
        let size = |name: &VgpuTypeName| name.grade().map_or(0, |grade| grade.memory.0);
        let made = self.parents(of).filter_map(|card| card.vgpu.as_ref()).flat_map(|facts| &facts.made);
        let used: Vec<u64> = made.filter_map(|made| made.name.as_ref()).map(size).collect();
        let by_time = name.grade().is_some_and(|grade| grade.slices.is_none());
        if by_time && used.iter().any(|other| *other != size(name)) {
            return 0;
        }
        let card = self.discovery.cards.iter().find(|card| card.address == of);
        let Mib(all) = card.and_then(|card| card.memory).map_or(Mib(0), |memory| memory.size);
        let left = all.next_multiple_of(4 << 10).saturating_sub(used.iter().sum());
        u32::try_from(left / size(name).max(1)).unwrap_or(u32::MAX)
    }

    /// What is left is offered everywhere anew.
    pub(super) fn list(&mut self, parent: PciAddress) {
        let of = self.card_behind(parent);
        let names: Vec<VgpuTypeName> = self
            .parents(of)
            .filter_map(|card| card.vgpu.as_ref())
            .flat_map(|facts| facts.offered.iter().map(|offered| offered.name.clone()))
            .collect();
        let rooms: Vec<(VgpuTypeName, u32)> =
            names.into_iter().map(|name| (name.clone(), self.room(parent, &name))).collect();
        let its = |card: &&mut Card| card.physfn.unwrap_or(card.address) == of;
        for card in self.discovery.cards.iter_mut().filter(its) {
            let is_vf = card.is_vf();
            let Some(facts) = &mut card.vgpu else { continue };
            let is_taken = is_vf && !facts.made.is_empty();
            for offered in &mut facts.offered {
                let room = rooms.iter().find(|(name, _)| *name == offered.name).map_or(0, |(_, room)| *room);
                offered.available = if is_taken { 0 } else { room.min(if is_vf { 1 } else { u32::MAX }) };
            }
        }
    }
}

pub(super) fn offered(framework: VgpuFramework, types: &[&str]) -> Vec<OfferedType> {
    let offer = |(number, text): (usize, &&str)| {
        let name = VgpuTypeName::parse(text)?;
        let id = match framework {
            VgpuFramework::Mdev => format!("nvidia-{}", 700 + number),
            VgpuFramework::VendorVfio => (1100 + number).to_string(),
        };
        Some(OfferedType { id, name, available: 1, memory: None, most: None })
    };
    types.iter().enumerate().filter_map(offer).collect()
}

impl super::FakeGpus {
    /// The driver forgets all vGPUs, as it does when the host restarts.
    pub fn forget_vgpus(&self) {
        let mut state = self.state();
        let mut cards = Vec::new();
        for card in &mut state.discovery.cards {
            if let Some(facts) = &mut card.vgpu {
                facts.made.clear();
                cards.push(card.address);
            }
        }
        cards.iter().for_each(|card| state.list(*card));
        state.judge();
    }

    /// A process has the mediated device open.
    pub fn open_mdev(&self, uuid: Uuid) {
        self.state().open_mdevs.insert(uuid);
    }

    /// Nobody has mediated devices open any more.
    pub fn close_mdevs(&self) {
        self.state().open_mdevs.clear();
    }

    /// A card without virtual functions carries mediated devices of these types itself.
    pub fn mediate(&self, card: PciAddress, types: &[&str]) {
        let mut state = self.state();
        let offered = offered(VgpuFramework::Mdev, types);
        let facts = VgpuParent { framework: VgpuFramework::Mdev, offered, made: Vec::new(), faults: Vec::new() };
        for one in state.discovery.cards.iter_mut().filter(|one| one.address == card) {
            one.vgpu = Some(facts.clone());
        }
        state.judge();
        state.list(card);
    }

    /// Divides a card into virtual functions that offer these types: the vendor's VFIO. Their addresses follow the card's.
    pub fn divide(&self, card: PciAddress, functions: u8, types: &[&str]) {
        self.divide_by(VgpuFramework::VendorVfio, card, functions, types);
    }

    /// The same, with a mediated device on each function.
    pub fn divide_mediated(&self, card: PciAddress, functions: u8, types: &[&str]) {
        self.divide_by(VgpuFramework::Mdev, card, functions, types);
    }

    fn divide_by(&self, framework: VgpuFramework, card: PciAddress, functions: u8, types: &[&str]) {
        let mut state = self.state();
        state.dividable.insert(card, Dividable::new(functions, framework, types));
        state.enable(card, functions);
        state.judge();
    }
}
