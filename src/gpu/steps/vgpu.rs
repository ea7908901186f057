//! The writes by which vGPUs are made and taken away: what `gvm helper make-vgpu` and `remove-vgpu` do.
//!
//! ```text
//!   vendor's VFIO   make:    VF/nvidia/current_vgpu_type = ID, read back          EPERM: it has a type already
//!                   remove:  VF/nvidia/current_vgpu_type = 0, again until taken   EIO: no memory left on the card
//!   mediated        make:    mdev_supported_types/TYPE/create = UUID, wait for the device and its VFIO group
//!                   remove:  sys/bus/mdev/devices/UUID/remove = 1, again until taken
//! ```
//! Types are looked up by name each time: numbers change with the driver, lists with what the card carries. A type that
//! a function carries and that no list has any more, because the card is full, is named by NVML. The driver
//! takes a moment to let go of a vGPU whose machine has ended, so a refused removal is tried again. What a process has
//! open is never taken away: that blocks in the kernel.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use uuid::Uuid;

use super::{Change, DEVICES, PAUSE, SETTLE, StepError, Steps, seconds, told};
use crate::gpu::holders::Nodes;
use crate::gpu::vgpu::{self, TypeFolder};
use crate::model::card::vgpu::{VgpuJob, VgpuSite};
use crate::model::gpu::{PciAddress, VgpuTypeName};

const MDEVS: &str = "sys/bus/mdev/devices";

/// Between two tries to take a vGPU away.
const AGAIN: Duration = Duration::from_secs(1);

/// Virtual functions of one card; more are not asked for the name of a type.
const MAX_VFS: u32 = 256;

impl Steps<'_> {
    /// Makes a vGPU, or takes one away; `nvml` is NVIDIA's library, where not the system's.
    ///
    /// # Errors
    /// Where it must not be done, or the kernel does not do it.
    pub fn run_vgpu(&mut self, job: &VgpuJob, nvml: Option<&Path>) -> Result<(), StepError> {
        let VgpuSite { parent, uuid } = job.site();
        let until = self.begin(parent)?;
        let is_vendor = self.files.exists(&format!("{DEVICES}/{parent}/nvidia/current_vgpu_type"));
        let change = match (job, uuid) {
            (_, None) if !is_vendor => {
                let text = format!("{parent} is no virtual function that takes types (nvidia/current_vgpu_type)");
                return Err(StepError::refused(text));
            }
            (VgpuJob::Make { name, .. }, None) => self.set_type(parent, name, nvml, until),
            (VgpuJob::Remove { name, .. }, None) => self.clear_type(parent, name, nvml, until),
            (VgpuJob::Make { name, .. }, Some(uuid)) => self.create(parent, uuid, name, until),
            (VgpuJob::Remove { name, .. }, Some(uuid)) => self.destroy(parent, uuid, name, until),
        };
        self.done(parent, change?)
    }

    // --- types written to virtual functions ---------------------------------------------------------------------------

    fn set_type(
        &mut self,
        vf: PciAddress,
        name: &VgpuTypeName,
        nvml: Option<&Path>,
        until: Instant,
    ) -> Result<Change, StepError> {
        let file = format!("{DEVICES}/{vf}/nvidia/current_vgpu_type");
        let current = self.current_type(vf, until)?;
        if current != 0 {
            let there = self.name_of(vf, current, nvml);
            if there.as_ref() == Some(name) {
                return Ok(Change::None);
            }
            let other = there.map_or_else(|| format!("type {current}"), |it| it.to_string());
            return Err(StepError::refused(format!("{vf} carries a vGPU already ({other}), so it gets no {name}")));
        }
        let Some(id) = self.number_of(vf, name) else {
            let offered = self.offered(vf);
            let has = if offered.is_empty() { "nothing at the moment".to_owned() } else { offered.join(", ") };
            return Err(StepError::failed(format!("{vf} does not offer {name} now: it offers {has}")));
        };
        if let Err(error) = self.put(vf, &file, &id.to_string()) {
            let why = match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::EPERM) => "it has a type already, says the driver (EPERM)".to_owned(),
                Some(Errno::EIO) => "not enough memory is left on its card (EIO)".to_owned(),
                _ => told(&error),
            };
            return Err(StepError::failed(format!("{vf} does not become {name}: {why}")));
        }
        match self.current_type(vf, until)? {
            now if now == id => Ok(Change::Made),
            now => Err(StepError::failed(format!("{vf} was told to become {name} ({id}) and reads {now}"))),
        }
    }

    fn clear_type(
        &mut self,
        vf: PciAddress,
        name: &VgpuTypeName,
        nvml: Option<&Path>,
        until: Instant,
    ) -> Result<Change, StepError> {
        let file = format!("{DEVICES}/{vf}/nvidia/current_vgpu_type");
        let current = self.current_type(vf, until)?;
        if current == 0 {
            return Ok(Change::None);
        }
        // What nobody can name must be the one that is meant.
        if let Some(other) = self.name_of(vf, current, nvml).filter(|other| other != name) {
            return Err(StepError::refused(format!("{vf} carries {other} by now, and not {name}: it is left alone")));
        }
        self.refuse_if_held(vf)?;
        self.again(vf, &file, "0", until, |steps| steps.current_type(vf, until).is_ok_and(|now| now == 0))?;
        Ok(Change::Made)
    }

    /// The number of the type that a function has; 0 for none.
    fn current_type(&self, vf: PciAddress, until: Instant) -> Result<u32, StepError> {
        let file = format!("{DEVICES}/{vf}/nvidia/current_vgpu_type");
        loop {
            // Empty for a moment while the driver changes it.
            match self.files.text(&file).and_then(|text| text.parse().ok()) {
                Some(id) => return Ok(id),
                None if Instant::now() > until => {
                    return Err(StepError::failed(format!("{vf}: its type cannot be read (/{file})")));
                }
                None => std::thread::sleep(PAUSE),
            }
        }
    }

    fn offered(&self, vf: PciAddress) -> Vec<String> {
        vgpu::listed(&self.files, &format!("{DEVICES}/{vf}/nvidia"))
            .into_iter()
            .map(|(_, name)| name.to_string())
            .collect()
    }

    /// What the function itself lists, and then its neighbours behind the same card.
    fn listed_around(&self, vf: PciAddress) -> impl Iterator<Item = (u32, VgpuTypeName)> {
        let own = format!("{DEVICES}/{vf}/nvidia");
        let other = move |number: u32| format!("{DEVICES}/{vf}/physfn/virtfn{number}/nvidia");
        let folders = std::iter::once(own).chain((0..MAX_VFS).map(other));
        folders.take_while(|folder| self.files.exists(folder)).flat_map(|folder| vgpu::listed(&self.files, &folder))
    }

    fn number_of(&self, vf: PciAddress, name: &VgpuTypeName) -> Option<u32> {
        self.listed_around(vf).find(|(_, listed)| listed == name).map(|(id, _)| id)
    }

    /// By the lists; a type of which nothing more fits is on none of them, so then by NVIDIA's library.
    fn name_of(&mut self, vf: PciAddress, id: u32, nvml: Option<&Path>) -> Option<VgpuTypeName> {
        let listed = self.listed_around(vf).find(|(listed, _)| *listed == id).map(|(_, name)| name);
        listed.or_else(|| {
            let card = self.files.link_name(&format!("{DEVICES}/{vf}/physfn"))?.parse().ok()?;
            self.types_of(card, nvml)?.remove(&id)
        })
    }

    // --- mediated devices ---------------------------------------------------------------------------------------------

    fn create(
        &mut self,
        parent: PciAddress,
        uuid: Uuid,
        name: &VgpuTypeName,
        until: Instant,
    ) -> Result<Change, StepError> {
        if let Some(there) = self.made(uuid) {
            return match there == (Some(parent), Some(name.clone())) {
                true => self.await_mdev(parent, uuid, name, until).map(|()| Change::None),
                false => {
                    Err(StepError::refused(format!("there is a mediated device {uuid} already, and it is no {name}")))
                }
            };
        }
        let folder = self.type_folder(parent, name, until)?;
        let none_left = |steps: &Self| steps.files.number(&format!("{folder}/available_instances")) == Some(0);
        // One that is going takes a moment; and a driver that is asked for one too many may keep the writer waiting.
        let settled = Instant::now() + SETTLE.min(self.patience / 4);
        while none_left(self) && Instant::now() < settled {
            std::thread::sleep(PAUSE);
        }
        let refused = |why: &str| Err(StepError::failed(format!("{parent} makes no {name}: {why}")));
        if none_left(self) {
            return refused("none is available");
        }
        if let Err(error) = self.put(parent, &format!("{folder}/create"), &uuid.to_string()) {
            return refused(if none_left(self) { "none is available".to_owned() } else { told(&error) }.as_str());
        }
        self.await_mdev(parent, uuid, name, until)?;
        Ok(Change::Made)
    }

    /// Waits until a mediated device is there and VFIO has it: without a group nobody can open it.
    fn await_mdev(&self, parent: PciAddress, uuid: Uuid, name: &VgpuTypeName, until: Instant) -> Result<(), StepError> {
        let folder = format!("{MDEVS}/{uuid}");
        let has_group = || self.files.link_name(&format!("{folder}/iommu_group")).is_some();
        let has_node = || self.files.exists(&format!("{folder}/vfio-dev"));
        loop {
            let is_there = self.made(uuid).is_some();
            if is_there && (has_group() || has_node()) {
                return Ok(());
            }
            if Instant::now() > until {
                let what = match is_there {
                    true => "was made, and no driver of VFIO has taken it",
                    false => "has not come",
                };
                let patience = seconds(self.patience);
                return Err(StepError::failed(format!("{parent}: {name} {uuid} {what} within {patience}")));
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn destroy(
        &mut self,
        parent: PciAddress,
        uuid: Uuid,
        name: &VgpuTypeName,
        until: Instant,
    ) -> Result<Change, StepError> {
        let Some(there) = self.made(uuid) else { return Ok(Change::None) };
        if there != (Some(parent), Some(name.clone())) {
            return Err(StepError::refused(format!(
                "the mediated device {uuid} is no {name} of {parent}: it is left alone"
            )));
        }
        // Not those of its parent: others of that may be in use.
        let mut nodes = Nodes::default();
        nodes.add_mdev(0, &self.files, uuid);
        self.refuse_if_open(parent, &nodes)?;
        let gone = |steps: &Self| steps.made(uuid).is_none();
        self.again(parent, &format!("{MDEVS}/{uuid}/remove"), "1", until, gone)?;
        Ok(Change::Made)
    }

    /// Parent and type of a mediated device that is there.
    fn made(&self, uuid: Uuid) -> Option<(Option<PciAddress>, Option<VgpuTypeName>)> {
        let device = std::fs::canonicalize(self.files.path(&format!("{MDEVS}/{uuid}"))).ok()?;
        let parent = device.parent().and_then(|parent| parent.file_name()?.to_str()?.parse().ok());
        let name = self.files.text(&format!("{MDEVS}/{uuid}/mdev_type/name"));
        Some((parent, name.and_then(|name| VgpuTypeName::parse(&name))))
    }

    /// The folder of a type. A parent that is being set up shows types without names; that is waited out.
    fn type_folder(&self, parent: PciAddress, name: &VgpuTypeName, until: Instant) -> Result<String, StepError> {
        let folder = format!("{DEVICES}/{parent}/mdev_supported_types");
        loop {
            let all = vgpu::type_folders(&self.files, &folder);
            let found = all.iter().find(|one| one.name.as_ref() == Some(name));
            if let Some(TypeFolder { path, .. }) = found {
                return Ok(path.clone());
            }
            let is_settled = !all.is_empty() && all.iter().all(|one| one.name.is_some());
            if is_settled || Instant::now() > until {
                let names: Vec<_> = all.iter().filter_map(|one| one.name.as_ref()).map(ToString::to_string).collect();
                let has = if names.is_empty() { "no type at all".to_owned() } else { names.join(", ") };
                return Err(StepError::failed(format!("{parent} does not offer {name}: it offers {has}")));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Writes until it is as wished.
    fn again(
        &mut self,
        address: PciAddress,
        file: &str,
        value: &str,
        until: Instant,
        is_so: impl Fn(&Self) -> bool,
    ) -> Result<(), StepError> {
        loop {
            let written = self.put(address, file, value);
            if is_so(self) {
                return Ok(());
            }
            if Instant::now() > until {
                let why = written.err().map_or_else(|| "the driver does not let go".to_owned(), |error| told(&error));
                let patience = seconds(self.patience);
                return Err(StepError::failed(format!("{address} was not freed within {patience} (/{file}): {why}")));
            }
            std::thread::sleep(AGAIN.min(self.patience / 10));
        }
    }
}

#[cfg(test)]
#[path = "vgpu_tests.rs"]
mod tests;
