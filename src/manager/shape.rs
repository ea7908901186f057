//! The shape of a machine: from profile and request, checked against image and host.

use super::create::CreateRequest;
use super::{Manager, ManagerError, Result};
use crate::image::user_data;
use crate::model::host::Accelerator;
use crate::model::image::{Boot, Image};
use crate::model::name::{GuestUser, ImageName, ProfileName};
use crate::model::principal::User;
use crate::model::profile::Profile;
use crate::model::units::Mib;
use crate::model::vm::{ImageRef, VmSpec};
use crate::store::{Write, vms};

/// The smallest memory that QEMU's firmware and a kernel start in.
const MIN_MEMORY: Mib = Mib(64);
/// The smallest disk.
const MIN_DISK: Mib = Mib(1);
/// The largest disk that qcow2 with our cluster size is asked to hold.
const MAX_DISK: Mib = Mib(16 << 20);
/// The largest cloud-init document.
const MAX_USER_DATA: usize = 64 << 10;

impl Manager {
    /// The profile, where this person may use it.
    pub(super) async fn profile_for(&self, user: &User, name: &ProfileName) -> Result<Profile> {
        let not_there =
            || ManagerError::not_found(format!("there is no profile {name}")).hint("see `gvm profile list`");
        let loaded = self.load_profiles().await?;
        let profile = loaded.resolve(name).ok_or_else(not_there)?;
        let profile = profile
            .map_err(|e| ManagerError::invalid(e.to_string()).hint("ask the administrator to mend the profile"))?;
        if !profile.allows(user.name.as_str()) && user.role < crate::model::principal::Role::Admin {
            return Err(not_there());
        }
        Ok(profile)
    }

    pub(super) async fn image_for(&self, profile: &Profile, asked: Option<&ImageName>) -> Result<Option<Image>> {
        let Some(name) = asked.or(profile.image.as_ref()) else { return Ok(None) };
        if profile.boot == Boot::Firmware {
            return Err(ManagerError::invalid(format!(
                "profile {} boots firmware alone and takes no image",
                profile.name
            )));
        }
        let row = self.store.newest_image(name).await?;
        let image = row.map(|row| row.image).ok_or_else(|| {
            ManagerError::not_found(format!("there is no image {name} in the catalogue"))
                .hint("see `gvm image list`; an administrator adds one with `gvm image import`")
        })?;
        match profile.boot {
            Boot::Uefi if image.disk.is_none() => Err(ManagerError::invalid(format!(
                "image {name} has no disk to boot from; profile {} boots by UEFI",
                profile.name
            ))
            .hint("use a profile with boot = \"kernel\"")),
            Boot::Kernel if image.kernel.is_none() => Err(ManagerError::invalid(format!(
                "image {name} has no kernel beside it; profile {} boots a kernel directly",
                profile.name
            ))
            .hint("use a profile with boot = \"uefi\"")),
            _ => Ok(Some(image)),
        }
    }

    /// The shape from profile and request, checked against image and host.
    pub(super) fn shape(
        &self,
        user: &User,
        profile: &Profile,
        image: Option<&Image>,
        request: &CreateRequest,
        notes: &mut Vec<String>,
    ) -> Result<VmSpec> {
        let caps = request.caps.or(&profile.caps);
        caps.check().map_err(|e| ManagerError::invalid(e.to_string()))?;
        let vcpus = request.vcpus.unwrap_or(profile.vcpus);
        let memory = request.memory.unwrap_or(profile.memory);
        let disk = request.disk.unwrap_or(profile.disk);
        self.check_shape(vcpus, memory, disk, image)?;
        let user_data = match &request.user_data {
            None => None,
            Some(text) if text.len() > MAX_USER_DATA => {
                return Err(ManagerError::invalid(format!("the user data is larger than {MAX_USER_DATA} bytes")));
            }
            Some(text) => {
                let checked = user_data::check(text).map_err(|e| ManagerError::invalid(format!("user data: {e}")))?;
                notes.extend(checked.notices);
                Some(checked.text)
            }
        };
        if let Accelerator::Emulation { why } = &self.host().accelerator {
            notes.push(format!("this host runs VMs under software emulation, many times slower than KVM: {why}"));
        }
        let guest_user = profile
            .guest_user
            .clone()
            .or_else(|| user.name.as_str().parse().ok().filter(|u: &GuestUser| u.as_str() != "root"));
        Ok(VmSpec {
            profile: profile.name.clone(),
            image: image.map(|image| ImageRef { name: image.name.clone(), id: image.id }),
            clone_of: None,
            boot: profile.boot,
            vcpus,
            memory,
            disk,
            caps,
            gpus: request.gpus.clone().unwrap_or_else(|| profile.gpus.clone()),
            tpm: request.tpm.unwrap_or(profile.tpm),
            secure_boot: profile.secure_boot,
            graphics: profile.graphics,
            ttl: request.ttl.or(profile.ttl),
            guest_user: match (guest_user, image) {
                (Some(user), _) => user,
                (None, Some(image)) => image.user.clone(),
                (None, None) => "gvm".parse().map_err(|_| ManagerError::invalid("no guest user"))?,
            },
            user_data,
            profile_user_data: profile.user_data.clone(),
        })
    }

    /// Checks a size against what a machine can be and what the host is.
    pub(super) fn check_shape(&self, vcpus: u32, memory: Mib, disk: Mib, image: Option<&Image>) -> Result<()> {
        let capacity = self.host().capacity;
        if vcpus == 0 {
            return Err(ManagerError::invalid("a VM needs at least 1 CPU"));
        }
        if vcpus > capacity.cpus {
            return Err(ManagerError::invalid(format!("{vcpus} CPUs are more than this host has ({})", capacity.cpus))
                .hint(format!("use --cpus {} or fewer", capacity.cpus)));
        }
        if memory < MIN_MEMORY {
            return Err(ManagerError::invalid(format!(
                "{memory} of memory is too small to boot; the least is {MIN_MEMORY}"
            )));
        }
        let usable = Mib(capacity.memory.0.saturating_sub(capacity.reserve.0));
        if memory > usable {
            return Err(ManagerError::invalid(format!(
                "{memory} of memory is more than this host can give ({usable})"
            ))
            .hint(format!("use --memory {}M or less", usable.0)));
        }
        let least = image.map_or(MIN_DISK, |image| {
            image.disk.as_ref().map_or(image.min_disk, |disk| disk.virtual_size.max(image.min_disk)).max(MIN_DISK)
        });
        if disk < least {
            let of = image.map(|image| format!(" for image {}", image.name)).unwrap_or_default();
            return Err(ManagerError::invalid(format!("a disk of {disk} is too small{of}; the least is {least}"))
                .hint(format!("use --disk {}M or more", least.0)));
        }
        if disk > MAX_DISK {
            return Err(ManagerError::invalid(format!("a disk of {disk} is too large; the most is {MAX_DISK}")));
        }
        Ok(())
    }

    /// Checks that the memory still fits beside all that should run.
    pub(super) async fn check_capacity(&self, tx: &mut Write, more: Mib) -> Result<()> {
        let capacity = self.host().capacity;
        let used = vms::given_memory(tx).await?;
        let free = Mib(capacity.memory.0.saturating_sub(capacity.reserve.0).saturating_sub(used.0));
        if more > free {
            return Err(ManagerError::no_capacity(format!(
                "this host has {free} of memory free ({} in all, {} kept for the host, {used} given to VMs); this asks for {more}",
                capacity.memory, capacity.reserve
            ))
            .hint("stop or delete VMs, or ask for less with --memory"));
        }
        Ok(())
    }
}
