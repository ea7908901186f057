//! Changes by NVML: MIG mode and GPU instances. For `gvm helper` alone, since each call may block for as long as it likes.
//!
//! ```text
//!   make    GPU instance at its placement --> one compute instance of all its slices     fails: GPU instance goes again
//!   remove  compute instances --> GPU instance
//! ```
//! The library is opened for each job and closed after it: an open one holds the card. Handles are never kept, as they
//! mean nothing after a reset.

use std::collections::BTreeMap;
use std::path::Path;

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::ask::{Ask, Say};
use super::mig::{self, Found, Profile, overlap};
use super::raw::{self, GpuInstance};
use super::vgpu;
pub(in crate::gpu) use super::words::ActError;
use super::words::Trouble;
use crate::model::card::MadeInstance;
use crate::model::card::shape::instance_text;
use crate::model::gpu::mig::Instance;
use crate::model::gpu::{PciAddress, VgpuTypeName};
use crate::model::units::Mib;

/// Where a job is told what is about to be called.
pub(in crate::gpu) type Tell<'a> = &'a dyn Fn(String);

/// MIG on a card, as a job finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gpu) struct MigState {
    /// In force.
    pub(in crate::gpu) is_on: bool,
    /// In force after the next reset.
    pub(in crate::gpu) is_on_pending: bool,
    /// GPU instances.
    pub(in crate::gpu) instances: usize,
}

/// NVIDIA's library, for one card.
pub(in crate::gpu) struct Library<'a> {
    /// `None` takes the system's.
    pub(in crate::gpu) path: Option<&'a Path>,
    pub(in crate::gpu) card: PciAddress,
    pub(in crate::gpu) tell: Tell<'a>,
}

impl Library<'_> {
    /// MIG as it stands.
    pub(in crate::gpu) fn state(&self) -> Result<MigState, ActError> {
        self.with(|device, ask| {
            ask.step("MIG mode")?;
            let mode = device.mig_mode().map_err(|error| match error {
                NvmlError::NotSupported => ActError::Refused("the card has no MIG".to_owned()),
                error => ActError::of("asking for MIG mode", &error),
            })?;
            let is_on = mode.current == 1;
            let instances = if is_on { self.look(device, ask)?.1.len() } else { 0 };
            Ok(MigState { is_on, is_on_pending: mode.pending == 1, instances })
        })
    }

    /// Names of the card's vGPU types by their numbers.
    pub(in crate::gpu) fn type_names(&self) -> Result<BTreeMap<u32, VgpuTypeName>, ActError> {
        self.with(|device, ask| {
            vgpu::names(device, ask).map_err(|error| ActError::of("asking for the types of vGPU", &error))
        })
    }

    /// Asks for a mode; which one is in force then is to be read again.
    pub(in crate::gpu) fn set_mode(&self, is_on: bool) -> Result<(), ActError> {
        let what = if is_on { "switching MIG on" } else { "switching MIG off" };
        self.with(|device, ask| {
            ask.change(what)?;
            // It says as well whether a reset is needed; the modes that are read afterwards say it better.
            device.set_mig_mode(is_on).map_err(|error| ActError::of(what, &error))?;
            Ok(())
        })
    }

    /// Makes an instance with one compute instance that has all of it; false where it was there.
    pub(in crate::gpu) fn make(&self, instance: Instance) -> Result<bool, ActError> {
        self.with(|device, ask| {
            refuse_unless_on(device, ask)?;
            let (profiles, found) = self.look(device, ask)?;
            let profile = lawful(device, &profiles, instance, ask)?;
            let there = found.iter().find(|found| overlap(found.made.instance.placement, instance.placement));
            if let Some(there) = there {
                return match there.made.instance == instance {
                    true if there.made.compute_instances > 0 => Ok(false),
                    true => add_compute(there.handle, profile, instance, ask).map(|()| true),
                    false => Err(ActError::Refused(format!(
                        "{} lies where {} is to go; remove it first",
                        instance_text(&there.made.instance),
                        instance_text(&instance)
                    ))),
                };
            }
            let what = format!("making the GPU instance {}", instance_text(&instance));
            ask.change(&what)?;
            let made = raw::create_instance(device, profile.id, instance.placement);
            let made = made.map_err(|error| ActError::of(&what, &error))?;
            if let Err(error) = add_compute(made, profile, instance, ask) {
                return Err(undone(made, error, ask));
            }
            match self.look(device, ask)?.1.iter().any(|found| is_whole(&found.made, instance)) {
                true => Ok(true),
                false => Err(ActError::Failed(format!("{what}: it was made, and is not there",))),
            }
        })
    }

    /// Ends an instance; false where it was not there. `holder` says for the number of an instance who has it.
    pub(in crate::gpu) fn remove(
        &self,
        instance: Instance,
        holder: &dyn Fn(u32) -> Option<String>,
    ) -> Result<bool, ActError> {
        self.with(|device, ask| {
            ask.step("MIG mode")?;
            let mode = device.mig_mode().map_err(|error| ActError::of("asking for MIG mode", &error))?;
            if mode.current != 1 {
                return Ok(false);
            }
            let (_, found) = self.look(device, ask)?;
            let Some(there) = found.iter().find(|found| found.made.instance == instance) else { return Ok(false) };
            let held = match holder(there.made.id) {
                None => active_vgpu(device, there.made.id, ask)?,
                held => held,
            };
            if let Some(who) = held {
                return Err(ActError::Refused(format!("{} is in use: {who}", instance_text(&instance))));
            }
            let what = format!("removing the compute instances of {}", instance_text(&instance));
            for compute in mig::compute_instances(there.handle, ask).map_err(|error| ActError::of(&what, &error))? {
                ask.change(&what)?;
                compute.destroy().map_err(|error| ActError::of(&what, &error))?;
            }
            let what = format!("removing the GPU instance {}", instance_text(&instance));
            ask.change(&what)?;
            there.handle.destroy().map_err(|error| ActError::of(&what, &error))?;
            match self.look(device, ask)?.1.iter().any(|found| found.made.instance == instance) {
                true => Err(ActError::Failed(format!("{what}: it was removed, and is still there"))),
                false => Ok(true),
            }
        })
    }

    fn with<T>(&self, work: impl FnOnce(&Device<'_>, &Ask<'_>) -> Result<T, ActError>) -> Result<T, ActError> {
        let say = |call: String| {
            (self.tell)(call);
            Ok(())
        };
        let say: Say<'_> = &say;
        say("opening and initialising NVML".to_owned())?;
        let nvml = super::open(self.path).map_err(|error| ActError::of("opening NVML", &error))?;
        say("finding the card".to_owned())?;
        let device = nvml.device_by_pci_bus_id(bus_id(self.card)).map_err(|error| match error {
            NvmlError::NotFound | NvmlError::InvalidArg => {
                ActError::Refused("NVML does not know the card (NOT_FOUND)".to_owned())
            }
            error => ActError::of("finding the card", &error),
        })?;
        work(&device, &Ask::new(say, "the card".to_owned()))
    }

    fn look<'d>(&self, device: &'d Device<'d>, ask: &Ask<'_>) -> Result<(Vec<Profile>, Vec<Found<'d>>), ActError> {
        let mut faults = Vec::new();
        ask.step("the memory")?;
        let total = device.memory_info().ok().map(|memory| Mib(memory.total >> 20));
        let profiles =
            mig::profiles(device, total, ask, &mut faults).map_err(|t| told("asking for MIG profiles", t))?;
        let found = mig::instances(device, &profiles, ask).map_err(|t| told("asking for MIG instances", t))?;
        Ok((profiles, found))
    }
}

/// As NVML writes addresses: eight digits of domain.
fn bus_id(card: PciAddress) -> String {
    let PciAddress { domain, bus, slot, function } = card;
    format!("{domain:08X}:{bus:02X}:{slot:02X}.{function:X}")
}

fn refuse_unless_on(device: &Device<'_>, ask: &Ask<'_>) -> Result<(), ActError> {
    ask.step("MIG mode")?;
    let mode = device.mig_mode().map_err(|error| ActError::of("asking for MIG mode", &error))?;
    match (mode.current, mode.pending) {
        (1, _) => Ok(()),
        (_, 1) => Err(ActError::Refused("MIG comes on with the card's next reset only; reset it first".to_owned())),
        _ => Err(ActError::Refused("MIG is off; switch it on first".to_owned())),
    }
}

/// The profile of an instance that the card can have.
fn lawful<'p>(
    device: &Device<'_>,
    profiles: &'p [Profile],
    instance: Instance,
    ask: &Ask<'_>,
) -> Result<&'p Profile, ActError> {
    let Some(profile) = profiles.iter().find(|profile| profile.name == instance.profile) else {
        let names: Vec<String> = profiles.iter().map(|profile| profile.name.to_string()).collect();
        let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        return Err(ActError::Refused(format!("the card has no MIG profile {}; it has {has}", instance.profile)));
    };
    ask.step("placements")?;
    let places = raw::placements(device, profile.id).map_err(|error| ActError::of("asking for placements", &error))?;
    if places.contains(&instance.placement) {
        return Ok(profile);
    }
    let places: Vec<String> = places.iter().map(ToString::to_string).collect();
    Err(ActError::Refused(format!(
        "{} cannot lie at {}; it may at {}",
        instance.profile,
        instance.placement,
        places.join(", ")
    )))
}

/// One compute instance that has all of the instance's slices.
fn add_compute(handle: GpuInstance<'_>, profile: &Profile, instance: Instance, ask: &Ask<'_>) -> Result<(), ActError> {
    let what = format!("making the compute instance of {}", instance_text(&instance));
    let all = mig::compute_profiles(handle, ask).map_err(|error| ActError::of(&what, &error))?;
    let Some(whole) = all.iter().find(|compute| compute.slices == profile.slices) else {
        let slices = profile.slices;
        return Err(ActError::Failed(format!("{what}: there is no compute profile of {slices} slices")));
    };
    ask.change(&what)?;
    handle.create_compute_instance(whole.id).map_err(|error| ActError::of(&what, &error))
}

/// A GPU instance without a compute instance is of no use: it goes again.
fn undone(made: GpuInstance<'_>, error: ActError, ask: &Ask<'_>) -> ActError {
    // Whether somebody listens does not matter any more.
    let _ = ask.change("removing the GPU instance that was just made");
    match (made.destroy(), error) {
        (Ok(()), error) => error,
        (Err(left), ActError::Refused(why) | ActError::Failed(why)) => {
            ActError::Failed(format!("{why}; and the GPU instance that was made for it stays: {}", super::words(&left)))
        }
    }
}

/// A vGPU of a running machine on an instance; the kernel's files do not name the instance of a mediated device.
fn active_vgpu(device: &Device<'_>, id: u32, ask: &Ask<'_>) -> Result<Option<String>, ActError> {
    ask.step("running vGPUs")?;
    let active = match device.active_vgpus() {
        Ok(active) => active,
        Err(error) if super::words::is_absence(&error) => return Ok(None),
        Err(error) => return Err(ActError::of("asking for running vGPUs", &error)),
    };
    for vgpu in active {
        ask.step("the instance of a running vGPU")?;
        match vgpu.gpu_instance_id() {
            Ok(its) if its == id => return Ok(Some("a running vGPU is on it".to_owned())),
            Ok(_) => {}
            // It ended meanwhile, or shares the card by time.
            Err(NvmlError::NotFound | NvmlError::NotSupported) => {}
            Err(error) => return Err(ActError::of("asking for the instance of a running vGPU", &error)),
        }
    }
    Ok(None)
}

fn is_whole(made: &MadeInstance, instance: Instance) -> bool {
    made.instance == instance && made.compute_instances > 0
}

fn told(what: &str, trouble: Trouble) -> ActError {
    match trouble {
        Trouble::Nvml(error) => ActError::of(what, &error),
        Trouble::Sense(why) => ActError::Failed(format!("{what}: {why}")),
    }
}

impl From<NvmlError> for ActError {
    fn from(error: NvmlError) -> Self {
        Self::of("asking NVML", &error)
    }
}
