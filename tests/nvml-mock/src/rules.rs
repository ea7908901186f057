//! What card and driver do: MIG modes, instances, vGPUs, virtual functions, resets.

use nix::errno::Errno;

use crate::code;
use crate::kinds::{Family, Profile, VgpuType};
use crate::state::{Card, Framework, Function, GpuInstance, Mdev, now};

/// An NVML error.
pub type Code = u32;

// --- MIG --------------------------------------------------------------------------------------------------------------

impl Card {
    pub fn has_mig(&self) -> bool {
        !self.kind().profiles.is_empty()
    }

    pub fn profile(&self, id: u32) -> Option<&'static Profile> {
        self.kind().profiles.iter().find(|profile| profile.id == id)
    }

    /// Asks for a mode; what it answers with is the activation's status.
    pub fn set_mig(&mut self, is_on: bool) -> Result<Code, Code> {
        if !self.has_mig() {
            return Err(code::NOT_SUPPORTED);
        }
        if !self.functions.is_empty() || !self.instances.is_empty() {
            return Err(code::IN_USE);
        }
        self.mig.1 = is_on;
        if self.kind().family == Family::Ampere {
            return Ok(if self.mig.0 == is_on { code::SUCCESS } else { code::RESET_REQUIRED });
        }
        if self.mig.0 != is_on {
            self.mig.0 = is_on;
            self.epoch += 1;
        }
        Ok(code::SUCCESS)
    }

    fn is_free(&self, start: u32, size: u32) -> bool {
        self.instances.iter().all(|other| start >= other.start + other.size || other.start >= start + size)
    }

    fn slices(&self) -> u32 {
        self.kind().profiles.iter().map(|profile| profile.slices).max().unwrap_or(0)
    }

    fn free_slices(&self) -> u32 {
        let used: u32 = self.instances.iter().filter_map(|one| self.profile(one.profile)).map(|p| p.slices).sum();
        self.slices().saturating_sub(used)
    }

    /// Whether there is room for one more that begins there.
    pub fn fits(&self, profile: &Profile, start: u32) -> bool {
        let same = self.instances.iter().filter(|one| one.profile == profile.id).count() as u32;
        let media = |id: u32| self.profile(id).is_some_and(|profile| profile.name.contains("+me"));
        let is_media_free = !media(profile.id) || !self.instances.iter().any(|one| media(one.profile));
        same < profile.most
            && is_media_free
            && profile.slices <= self.free_slices()
            && self.is_free(start, profile.size)
    }

    /// Makes an instance; without a place, where the driver likes it.
    pub fn create(&mut self, profile: u32, place: Option<(u32, u32)>) -> Result<u32, Code> {
        if !self.mig.0 {
            return Err(code::NOT_SUPPORTED);
        }
        let Some(profile) = self.profile(profile) else { return Err(code::INVALID_ARGUMENT) };
        let start = match place {
            Some((start, size)) if size != profile.size || !profile.starts.contains(&start) => {
                return Err(code::INVALID_ARGUMENT);
            }
            Some((start, _)) => Some(start).filter(|start| self.fits(profile, *start)),
            None => profile.starts.iter().rev().copied().find(|start| self.fits(profile, *start)),
        };
        let start = start.ok_or(code::INSUFFICIENT_RESOURCES)?;
        // Numbers go by size and place: 7g is 0, seven 1g are 7 to 13.
        let id = match profile.size {
            1 => 7 + start,
            2 => 3 + start / 2,
            4 if self.slices() == 7 => 1 + start / 4,
            _ => 0,
        };
        self.instances.push(GpuInstance {
            id,
            profile: profile.id,
            start,
            size: profile.size,
            compute: Default::default(),
        });
        Ok(id)
    }

    pub fn instance(&self, id: u32) -> Option<&GpuInstance> {
        self.instances.iter().find(|one| one.id == id)
    }

    /// vGPUs on an instance.
    pub fn vgpus_on(&self, id: u32) -> usize {
        self.made().filter(|(_, instance)| *instance == Some(id)).count()
    }

    pub fn destroy(&mut self, id: u32) -> Result<(), Code> {
        let Some(instance) = self.instance(id) else { return Err(code::INVALID_ARGUMENT) };
        if !instance.compute.is_empty() || self.vgpus_on(id) > 0 {
            return Err(code::IN_USE);
        }
        self.instances.retain(|one| one.id != id);
        Ok(())
    }

    /// Slices of a compute profile by its number; the ids are the numbers.
    pub fn compute_slices(number: u32) -> Result<u32, Code> {
        match number {
            0 => Ok(1),
            1 => Ok(2),
            2 => Ok(3),
            3 => Ok(4),
            4 => Ok(7),
            5..=7 => Err(code::NOT_SUPPORTED),
            _ => Err(code::INVALID_ARGUMENT),
        }
    }

    pub fn create_compute(&mut self, id: u32, profile: u32) -> Result<u32, Code> {
        let wanted = Self::compute_slices(profile)?;
        let Some(instance) = self.instance(id) else { return Err(code::INVALID_ARGUMENT) };
        let slices = self.profile(instance.profile).map_or(0, |profile| profile.slices);
        let used: u32 = instance.compute.values().filter_map(|profile| Self::compute_slices(*profile).ok()).sum();
        if wanted > slices.saturating_sub(used) {
            return Err(code::INSUFFICIENT_RESOURCES);
        }
        let free = (0..).find(|number| !instance.compute.contains_key(number)).unwrap_or_default();
        let instance = self.instances.iter_mut().find(|one| one.id == id).ok_or(code::UNKNOWN)?;
        instance.compute.insert(free, profile);
        Ok(free)
    }

    pub fn destroy_compute(&mut self, id: u32, compute: u32) -> Result<(), Code> {
        if self.vgpus_on(id) > 0 {
            return Err(code::IN_USE);
        }
        let instance = self.instances.iter_mut().find(|one| one.id == id).ok_or(code::INVALID_ARGUMENT)?;
        instance.compute.remove(&compute).map(|_| ()).ok_or(code::INVALID_ARGUMENT)
    }
}

// --- vGPUs ------------------------------------------------------------------------------------------------------------

impl Card {
    pub fn vgpu_type(&self, id: u32) -> Option<&'static VgpuType> {
        self.kind().types.iter().find(|kind| kind.id == id)
    }

    /// The vGPUs that are made: type, and instance behind it.
    pub fn made(&self) -> impl Iterator<Item = (u32, Option<u32>)> {
        let typed = self.functions.iter().filter(|function| function.vgpu != 0).map(|f| (f.vgpu, f.instance));
        typed.chain(self.mdevs.iter().map(|mdev| (mdev.vgpu, mdev.instance)))
    }

    /// The instance that a vGPU of this type would be on; `Some(None)` on the card itself, `None` where there is no room.
    pub fn room(&self, kind: &VgpuType) -> Option<Option<u32>> {
        match kind.profile {
            Some(profile) if self.mig.0 => {
                let has_room = |one: &&GpuInstance| {
                    let on_it = self.made().filter(|(_, instance)| *instance == Some(one.id));
                    let (count, is_same) =
                        on_it.fold((0, true), |(count, is_same), (id, _)| (count + 1, is_same && id == kind.id));
                    one.profile == profile && !one.compute.is_empty() && count < kind.per_instance && is_same
                };
                self.instances.iter().find(has_room).map(|one| Some(one.id))
            }
            None if !self.mig.0 => {
                let sizes: Vec<u64> =
                    self.made().filter_map(|(id, _)| self.vgpu_type(id)).map(|kind| kind.memory_gib).collect();
                let whole = self.kind().types.iter().map(|kind| kind.memory_gib).max().unwrap_or(0);
                let is_left = sizes.iter().sum::<u64>() + kind.memory_gib <= whole;
                let is_size = self.is_mixed || sizes.iter().all(|size| *size == kind.memory_gib);
                let is_number = (sizes.len() as u32) < kind.most;
                (is_left && is_size && is_number).then_some(None)
            }
            _ => None,
        }
    }

    /// The types that could be made now.
    pub fn creatable(&self) -> Vec<&'static VgpuType> {
        self.kind().types.iter().filter(|kind| self.room(kind).is_some()).collect()
    }

    /// A write to `current_vgpu_type` of a virtual function.
    pub fn set_type(&mut self, number: usize, id: u32) -> Result<(), Errno> {
        let function = self.functions.get(number).ok_or(Errno::ENODEV)?;
        if id == 0 {
            if function.is_in_use || function.refusals > 0 {
                let function = &mut self.functions[number];
                function.refusals = function.refusals.saturating_sub(1);
                return Err(Errno::EBUSY);
            }
            self.functions[number].vgpu = 0;
            self.functions[number].instance = None;
            return Ok(());
        }
        if function.vgpu != 0 {
            return Err(Errno::EPERM);
        }
        let kind = self.vgpu_type(id).ok_or(Errno::EINVAL)?;
        let instance = self.room(kind).ok_or(Errno::EIO)?;
        let refusals = self.refusals;
        let function = &mut self.functions[number];
        (function.vgpu, function.instance, function.refusals) = (id, instance, refusals);
        Ok(())
    }

    /// Where mediated devices are made, by their addresses.
    pub fn parents(&self) -> Vec<String> {
        match self.framework {
            Framework::Mdev if self.kind().functions == 0 => vec![self.address.clone()],
            Framework::Mdev => (0..self.functions.len()).map(|number| self.function_address(number)).collect(),
            _ => Vec::new(),
        }
    }

    /// How many more of a type a parent takes. A virtual function carries one.
    pub fn available(&self, parent: &str, kind: &VgpuType) -> u32 {
        if self.room(kind).is_none() {
            return 0;
        }
        match self.kind().functions {
            0 => kind.most.saturating_sub(self.mdevs.len() as u32),
            _ => u32::from(!self.mdevs.iter().any(|mdev| mdev.parent == parent)),
        }
    }

    pub fn create_mdev(&mut self, parent: &str, id: u32, uuid: &str) -> Result<(), Errno> {
        let kind = self.vgpu_type(id).ok_or(Errno::EINVAL)?;
        if self.available(parent, kind) == 0 {
            return Err(Errno::ENOSPC);
        }
        if self.mdevs.iter().any(|mdev| mdev.uuid == uuid) {
            return Err(Errno::EEXIST);
        }
        let instance = self.room(kind).ok_or(Errno::ENOSPC)?;
        let (uuid, parent) = (uuid.to_owned(), parent.to_owned());
        self.mdevs.push(Mdev { uuid, parent, vgpu: id, instance, is_in_use: false });
        Ok(())
    }
}

// --- virtual functions, drivers, resets -------------------------------------------------------------------------------

impl Card {
    /// A write to `sriov_numvfs`. NVIDIA's driver takes none, and neither does a card without a driver.
    pub fn set_functions(&mut self, count: u32) -> Result<(), Errno> {
        match self.driver.as_deref() {
            Some("pci-pf-stub") => self.number_functions(count),
            _ => Err(Errno::ENOENT),
        }
    }

    fn number_functions(&mut self, count: u32) -> Result<(), Errno> {
        if count > self.kind().functions {
            return Err(Errno::ERANGE);
        }
        if count > 0 && !self.functions.is_empty() {
            return Err(Errno::EBUSY);
        }
        let late = self.late;
        let one = |number: u64| Function {
            driver: Some("nvidia".to_owned()),
            bound_at: now().saturating_add(late.saturating_mul(number + 1)),
            ..Function::default()
        };
        self.functions = (0..u64::from(count)).map(one).collect();
        Ok(())
    }

    /// NVIDIA's program: the card goes to pci-pf-stub and comes back, and with that all instances are gone.
    pub fn sriov_manage(&mut self, way: &str) -> Result<(), String> {
        if self.made().next().is_some() {
            return Err(format!("{}: vGPUs are in use", self.address));
        }
        if self.framework == Framework::None {
            return Err(format!("{} is not enabled for vGPU by its driver", self.address));
        }
        let count = match way {
            "-e" => self.kind().functions,
            "-d" => 0,
            _ => return Err("usage: sriov-manage <-e|-d> <address>".to_owned()),
        };
        if (count > 0) == !self.functions.is_empty() {
            return Ok(());
        }
        self.functions.clear();
        self.renew();
        self.number_functions(count).map_err(|errno| errno.desc().to_owned())
    }

    /// `nvidia-smi --gpu-reset`.
    pub fn reset(&mut self) -> Result<(), String> {
        if !self.functions.is_empty() || self.made().next().is_some() {
            return Err(format!("GPU {} is currently in use by one or more other processes", self.address));
        }
        if self.is_lost {
            return Err(format!("GPU {} is lost", self.address));
        }
        self.mig.0 = self.mig.1;
        self.recovery = 0;
        if let Some(remapped) = &mut self.remapped {
            remapped.2 = false;
        }
        self.renew();
        Ok(())
    }

    /// What every reset and every new driver do.
    fn renew(&mut self) {
        self.instances.clear();
        self.epoch += 1;
    }

    /// Its driver lets go of it.
    pub fn unbind(&mut self) -> Result<(), Errno> {
        if self.made().next().is_some() {
            return Err(Errno::EBUSY);
        }
        self.driver = None;
        self.functions.clear();
        // Later cards forget the mode with their driver.
        if self.kind().family != Family::Ampere {
            self.mig = (false, false);
        }
        self.renew();
        Ok(())
    }

    /// A restart of the host: what lives in the kernel is gone, and MIG mode stays on cards that write it down.
    pub fn reboot(&mut self) {
        self.mdevs.clear();
        self.functions.clear();
        self.driver_override.clear();
        self.driver = Some("nvidia".to_owned());
        match self.kind().family {
            Family::Ampere => self.mig.0 = self.mig.1,
            _ => self.mig = (false, false),
        }
        self.renew();
    }

    /// A probe: the driver that the override names, else nvidia.
    pub fn probe(&mut self) {
        if self.driver.is_none() {
            self.driver = Some(or_nvidia(&self.driver_override));
        }
    }
}

impl Function {
    pub fn probe(&mut self) {
        if self.driver.is_none() {
            self.driver = Some(or_nvidia(&self.driver_override));
        }
    }
}

fn or_nvidia(name: &str) -> String {
    if name.is_empty() { "nvidia".to_owned() } else { name.to_owned() }
}
