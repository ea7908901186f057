//! MIG by NVIDIA's library: what `gvm helper set-mig`, `make-instance` and `remove-instance` do.
//!
//! ```text
//!   set-mig          nothing lives on the card: no instance, no virtual function, nobody has it open
//!                    --> asked for --> read again: in force, or pending until a reset (told, and no failure)
//!   make-instance    MIG in force, place lawful and free --> GPU instance, compute instance --> read again
//!   remove-instance  no vGPU on it --> compute instances, GPU instance --> read again
//! ```
//! What can be seen in the kernel's files is looked at while the library is closed: an open one has the card open.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use super::{Change, DEVICES, Progress, StepError, Steps, with};
use crate::gpu::nvml::act::{ActError, Library};
use crate::gpu::{NVIDIA_DRIVER, vgpu};
use crate::model::card::vgpu::MadeVgpu;
use crate::model::gpu::VgpuTypeName;
use crate::model::gpu::mig::Instance;
use crate::model::pci::PciAddress;

impl Steps<'_> {
    pub(super) fn set_mig(&mut self, card: PciAddress, is_on: bool, nvml: Option<&Path>) -> Result<Change, StepError> {
        let state = self.by_nvml(card, nvml, |library| library.state())?;
        if state.is_on_pending == is_on {
            if state.is_on != is_on {
                (self.tell)(&Progress::NeedsReset { address: card });
            }
            return Ok(Change::None);
        }
        if state.instances > 0 {
            let count = state.instances;
            return Err(StepError::refused(format!("{card} has {count} MIG instances; remove them first")));
        }
        let functions = self.files.number(&format!("{DEVICES}/{card}/sriov_numvfs")).unwrap_or(0);
        if functions > 0 {
            let text = format!("{card} has {functions} virtual functions switched on; switch them off first");
            return Err(StepError::refused(text));
        }
        self.refuse_if_used(card)?;
        self.by_nvml(card, nvml, |library| library.set_mode(is_on))?;
        let state = self.by_nvml(card, nvml, |library| library.state())?;
        let word = if is_on { "on" } else { "off" };
        match (state.is_on == is_on, state.is_on_pending == is_on) {
            (true, true) => {}
            (false, true) => (self.tell)(&Progress::NeedsReset { address: card }),
            _ => {
                return Err(StepError::failed(format!(
                    "{card}: MIG was switched {word} and does not read so; something else may have the card open"
                )));
            }
        }
        Ok(Change::Made)
    }

    pub(super) fn make_instance(
        &mut self,
        card: PciAddress,
        instance: Instance,
        nvml: Option<&Path>,
    ) -> Result<Change, StepError> {
        let is_made = self.by_nvml(card, nvml, |library| library.make(instance))?;
        Ok(if is_made { Change::Made } else { Change::None })
    }

    pub(super) fn remove_instance(
        &mut self,
        card: PciAddress,
        instance: Instance,
        nvml: Option<&Path>,
    ) -> Result<Change, StepError> {
        let mut vgpus = self.vgpus_of(card)?;
        if vgpus.iter().any(|(_, made)| made.name.is_none()) {
            let names = self.types_of(card, nvml).unwrap_or_default();
            for (_, made) in vgpus.iter_mut().filter(|(_, made)| made.name.is_none()) {
                made.name = made.type_id.parse().ok().and_then(|id: u32| names.get(&id).cloned());
            }
        }
        let holder = |id: u32| {
            let on_it = |made: &&(PciAddress, MadeVgpu)| is_on(&made.1, id);
            vgpus.iter().find(on_it).map(|(function, made)| {
                let name = made.name.as_ref().map_or_else(|| format!("type {}", made.type_id), ToString::to_string);
                match made.gpu_instance {
                    Some(_) => format!("{function} carries a vGPU on it ({name}); remove that first"),
                    None => format!(
                        "{function} carries a vGPU ({name}), and the driver does not say on which instance; remove that first"
                    ),
                }
            })
        };
        let is_removed = self.by_nvml(card, nvml, |library| library.remove(instance, &holder))?;
        Ok(if is_removed { Change::Made } else { Change::None })
    }

    /// The vGPUs of a card and its virtual functions. One that cannot be read may carry any.
    fn vgpus_of(&self, card: PciAddress) -> Result<Vec<(PciAddress, MadeVgpu)>, StepError> {
        let mut all = Vec::new();
        for function in self.functions_of(card).into_iter().chain([card]) {
            let Some(facts) = vgpu::read(&self.files, &format!("{DEVICES}/{function}")) else { continue };
            if let Some(fault) = facts.faults.first() {
                let text = format!("{function}: {fault}, so it is not known whether it uses the instance");
                return Err(StepError::refused(text));
            }
            all.extend(facts.made.into_iter().map(|made| (function, made)));
        }
        Ok(all)
    }

    /// Names of a card's types by their numbers, as the library knows them; `None` where it cannot be asked.
    pub(super) fn types_of(&mut self, card: PciAddress, nvml: Option<&Path>) -> Option<BTreeMap<u32, VgpuTypeName>> {
        self.by_nvml(card, nvml, |library| library.type_names()).ok()
    }

    /// Does something with the library. Only a card that its driver has is known to it.
    fn by_nvml<T>(
        &mut self,
        card: PciAddress,
        nvml: Option<&Path>,
        work: impl FnOnce(&Library<'_>) -> Result<T, ActError>,
    ) -> Result<T, StepError> {
        let device = self.device(card);
        if device.is_vf() {
            return Err(StepError::refused(format!("{card} is a virtual function; MIG is its card's")));
        }
        let driver = device.driver();
        if driver.as_deref() != Some(NVIDIA_DRIVER) {
            let now = with(driver.as_deref());
            return Err(StepError::refused(format!("{card} is {now}; NVML knows cards of the driver nvidia only")));
        }
        let tell = RefCell::new(&mut *self.tell);
        let tell = |call: String| (tell.borrow_mut())(&Progress::Call { address: card, call });
        work(&Library { path: nvml, card, tell: &tell }).map_err(|error| match error {
            ActError::Refused(why) => StepError::refused(format!("{card}: {why}")),
            ActError::Failed(why) => StepError::failed(format!("{card}: {why}")),
        })
    }
}

/// A mediated device that is backed by MIG may be on any instance, as its files do not say on which.
fn is_on(made: &MadeVgpu, id: u32) -> bool {
    match made.gpu_instance {
        Some(its) => its == id,
        None => {
            let grade = made.name.as_ref().and_then(|name| name.grade());
            grade.is_none_or(|grade| grade.slices.is_some())
        }
    }
}
