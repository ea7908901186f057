//! The fake's shapes: cards that are divided otherwise, by the rules of NVIDIA's driver and without one.
//!
//! MIG does not change while virtual functions are on. A change of virtual functions, and a reset, take all MIG instances
//! with them. What is in use stays.

use std::collections::BTreeMap;

use super::State;
use super::vgpu::offered;
use crate::gpu::BindError;
use crate::model::card::pci::{Function, GroupMember, IommuGroup, MemberRole, Vendor};
use crate::model::card::shape::ShapeJob;
use crate::model::card::vgpu::{OfferedType, VgpuFramework, VgpuParent};
use crate::model::card::{
    Card, CardMemory, HostVgpuMode, MadeInstance, MemorySource, MigFacts, NvmlFacts, Sriov, SupportedVgpu,
};
use crate::model::gpu::VgpuTypeName;
use crate::model::gpu::mig::{Geometry, Instance, MigProfile};
use crate::model::pci::PciAddress;
use crate::model::units::Mib;

/// What a card of the fake can be divided into.
#[derive(Clone, Debug)]
pub(super) struct Dividable {
    functions: u8,
    framework: VgpuFramework,
    offered: Vec<OfferedType>,
    /// MIG changes at the next reset only.
    needs_reset: bool,
    next_instance: u32,
}

impl Dividable {
    pub(super) fn new(functions: u8, framework: VgpuFramework, types: &[&str]) -> Self {
        Self { functions, framework, offered: offered(framework, types), needs_reset: false, next_instance: 0 }
    }
}

impl State {
    pub(super) fn reshape(&mut self, job: &ShapeJob) -> Result<(), BindError> {
        let at = job.card();
        let refused = |why: String| Err(BindError::Refused(format!("{at}: {why}")));
        let Some(card) = self.discovery.cards.iter().find(|card| card.address == at).cloned() else {
            return refused("there is no PCI device".to_owned());
        };
        let Some(dividable) = self.dividable.get(&at).cloned() else {
            return refused("it cannot be divided".to_owned());
        };
        if let Some(error) = self.next_shape.take() {
            return Err(error);
        }
        self.hang_if_stuck(&[at])?;
        let is_carrying = || {
            let its = |card: &&Card| card.physfn == Some(at);
            self.discovery
                .cards
                .iter()
                .filter(its)
                .filter_map(|card| card.vgpu.as_ref())
                .any(|facts| !facts.made.is_empty())
        };
        let enabled = card.sriov.as_ref().map_or(0, |sriov| sriov.enabled);
        match job {
            ShapeJob::Functions { count, .. } => {
                let count = count.map_or(dividable.functions, |count| u8::try_from(count).unwrap_or(u8::MAX));
                if u32::from(count) == enabled {
                    return Ok(());
                }
                if is_carrying() {
                    return refused("it carries a vGPU".to_owned());
                }
                self.discovery.cards.retain(|card| card.physfn != Some(at));
                self.forget_instances(at);
                self.enable(at, count);
            }
            ShapeJob::MigMode { is_on, .. } => {
                if enabled > 0 {
                    return refused("switch its virtual functions off first".to_owned());
                }
                self.with_mig(at, |mig| {
                    mig.is_on_pending = *is_on;
                    if !dividable.needs_reset {
                        mig.is_on = *is_on;
                    }
                });
            }
            ShapeJob::Reset { .. } => {
                self.forget_instances(at);
                self.with_mig(at, |mig| mig.is_on = mig.is_on_pending);
            }
            ShapeJob::MakeInstance { instance, .. } => self.make_instance(at, *instance)?,
            ShapeJob::RemoveInstance { instance, .. } => self.remove_instance(at, *instance)?,
        }
        self.judge();
        Ok(())
    }

    fn with_mig(&mut self, at: PciAddress, change: impl FnOnce(&mut MigFacts)) {
        let card = self.discovery.cards.iter_mut().find(|card| card.address == at);
        if let Some(mig) = card.and_then(|card| card.nvml.as_mut()).and_then(|nvml| nvml.mig.as_mut()) {
            change(mig);
        }
    }

    fn forget_instances(&mut self, at: PciAddress) {
        self.with_mig(at, |mig| mig.instances.clear());
    }

    /// Virtual functions that offer the card's types.
    pub(super) fn enable(&mut self, at: PciAddress, count: u8) {
        let Some(dividable) = self.dividable.get(&at).cloned() else { return };
        let Some(whole) = self.discovery.cards.iter().find(|card| card.address == at).cloned() else { return };
        let address = |number: u8| PciAddress { slot: at.slot + 1 + number / 8, function: number % 8, ..at };
        for card in self.discovery.cards.iter_mut().filter(|card| card.address == at) {
            let functions = (0..count).map(address).collect();
            card.sriov = Some(Sriov { enabled: count.into(), total: dividable.functions.into(), functions });
        }
        for number in 0..count {
            let (framework, offered) = (dividable.framework, dividable.offered.clone());
            let (address, physfn, sriov, nvml) = (address(number), Some(at), None, None);
            let vgpu = VgpuParent { framework, offered, made: Vec::new(), faults: Vec::new() };
            let function = match whole.vendor {
                Vendor::Nvidia => Card { address, physfn, sriov, vgpu: Some(vgpu), nvml, iommu: None, ..whole.clone() },
                // Those of other makers go to machines as they are.
                _ => {
                    let class = Some(whole.ids.class);
                    let member = GroupMember { address, class, driver: None, role: MemberRole::Card };
                    let number = u32::from(at.bus) << 8 | u32::from(number);
                    let iommu = Some(IommuGroup { number, members: vec![member] });
                    let functions = vec![Function { address, class, driver: None }];
                    let share = |memory: CardMemory| CardMemory {
                        size: Mib(memory.size.0 / u64::from(count)),
                        source: MemorySource::Share,
                    };
                    let memory = whole.memory.map(share);
                    Card { address, physfn, sriov, nvml, iommu, functions, memory, driver: None, ..whole.clone() }
                }
            };
            self.discovery.cards.push(function);
        }
        self.list(at);
    }

    fn mig(&self, at: PciAddress) -> Option<&MigFacts> {
        self.discovery.cards.iter().find(|card| card.address == at)?.mig()
    }

    fn make_instance(&mut self, at: PciAddress, instance: Instance) -> Result<(), BindError> {
        let failed = |why: &str| Err(BindError::Failed(format!("{at}: {instance} cannot be made: {why}")));
        let Some(mig) = self.mig(at).filter(|mig| mig.is_on) else { return failed("MIG is off") };
        if mig.instances.iter().any(|made| made.instance == instance) {
            return Ok(());
        }
        let Some(geometry) = &mig.geometry else { return failed("no geometry") };
        let Some(profile) = geometry.profile(instance.profile) else { return failed("there is no such profile") };
        let compute = |instance: &Instance| geometry.profile(instance.profile).map_or(0, |profile| profile.compute);
        let used: u32 = mig.instances.iter().map(|made| compute(&made.instance)).sum();
        let end = |instance: &Instance| instance.placement.start + instance.placement.size;
        let is_beside =
            |other: &Instance| end(other) <= instance.placement.start || end(&instance) <= other.placement.start;
        if !profile.starts.contains(&instance.placement.start)
            || used + profile.compute > geometry.compute_slices()
            || !mig.instances.iter().all(|made| is_beside(&made.instance))
        {
            return failed("insufficient resources");
        }
        let id = self.dividable.get_mut(&at).map_or(0, |dividable| {
            dividable.next_instance += 1;
            dividable.next_instance
        });
        self.with_mig(at, |mig| mig.instances.push(MadeInstance { id, instance, compute_instances: 1 }));
        Ok(())
    }

    fn remove_instance(&mut self, at: PciAddress, instance: Instance) -> Result<(), BindError> {
        let Some(made) =
            self.mig(at).and_then(|mig| mig.instances.iter().find(|made| made.instance == instance)).copied()
        else {
            return Ok(());
        };
        if self.used_instances(at).contains(&made.id) {
            return Err(BindError::Refused(format!("{at}: {instance} is in use")));
        }
        self.with_mig(at, |mig| mig.instances.retain(|other| other.id != made.id));
        Ok(())
    }

    fn used_instances(&self, at: PciAddress) -> Vec<u32> {
        let its = self.discovery.cards.iter().filter(|card| card.physfn == Some(at));
        let made = its.filter_map(|card| card.vgpu.as_ref()).flat_map(|facts| &facts.made);
        made.filter_map(|made| made.gpu_instance).collect()
    }

    /// The idle instance that the driver puts behind a vGPU of this type; an error where there is none, `None` where the
    /// type has none.
    pub(super) fn instance_for(&self, at: PciAddress, name: &VgpuTypeName) -> Result<Option<u32>, ()> {
        let mig = self.mig(at).filter(|mig| mig.is_on);
        let slices = name.grade().and_then(|grade| grade.slices);
        let (Some(mig), Some(_)) = (mig, slices) else {
            return if mig.is_some() == slices.is_some() { Ok(None) } else { Err(()) };
        };
        let used = self.used_instances(at);
        let profile = profile_of(mig.geometry.as_ref(), name);
        let idle = mig.instances.iter().find(|made| Some(made.instance.profile) == profile && !used.contains(&made.id));
        idle.map(|made| Some(made.id)).ok_or(())
    }
}

fn profile_of(geometry: Option<&Geometry>, name: &VgpuTypeName) -> Option<MigProfile> {
    name.grade()?.profile(geometry?)
}

impl super::FakeGpus {
    /// The card can be divided from here on: into so many virtual functions that offer these types, and by MIG where it
    /// has a geometry. `needs_reset`: MIG changes at the next reset only, as on Ampere.
    pub fn can_divide(
        &self,
        at: PciAddress,
        functions: u8,
        types: &[&str],
        geometry: Option<Geometry>,
        needs_reset: bool,
    ) {
        let mut state = self.state();
        let dividable = Dividable { needs_reset, ..Dividable::new(functions, VgpuFramework::VendorVfio, types) };
        for card in state.discovery.cards.iter_mut().filter(|card| card.address == at) {
            let supported = |name: &VgpuTypeName| SupportedVgpu {
                name: name.clone(),
                memory: name.grade().map(|grade| grade.memory),
                most: None,
                profile: profile_of(geometry.as_ref(), name),
            };
            let mig = geometry.clone().map(|geometry| MigFacts { geometry: Some(geometry), ..MigFacts::default() });
            card.nvml = (card.vendor == Vendor::Nvidia).then(|| NvmlFacts {
                uuid: Some(format!("GPU-{at}")),
                mig,
                host_vgpu: Some(HostVgpuMode::Sriov),
                vgpu_types: dividable.offered.iter().map(|offered| supported(&offered.name)).collect(),
                ..NvmlFacts::at(at)
            });
            card.sriov = Some(Sriov { enabled: 0, total: functions.into(), functions: Vec::new() });
        }
        state.dividable.insert(at, dividable);
        state.judge();
    }

    /// The next change of a shape fails so, and changes nothing.
    pub fn fail_next_shape(&self, error: BindError) {
        self.state().next_shape = Some(error);
    }

    /// The host restarts: virtual functions, vGPUs and MIG instances are gone, and MIG where it is not kept by the card.
    pub fn restart(&self) {
        let mut state = self.state();
        let all: BTreeMap<PciAddress, Dividable> = state.dividable.clone();
        for (at, dividable) in all {
            state.discovery.cards.retain(|card| card.physfn != Some(at));
            state.enable(at, 0);
            state.with_mig(at, |mig| {
                mig.instances.clear();
                mig.is_on &= dividable.needs_reset;
                mig.is_on_pending = mig.is_on;
            });
        }
        state.judge();
    }

    /// Somebody beside gvm makes a MIG instance, or removes one.
    pub fn meddle(&self, job: &ShapeJob) {
        let _ = self.state().reshape(job);
    }
}
