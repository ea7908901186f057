//! Admission: everything is checked and chosen before anything happens, and committed at once.

use jiff::Timestamp;

use super::{Kind, Manager, ManagerError, Result, boot, steps};
use crate::auth::policy::Permit;
use crate::image::user_data;
use crate::model::caps::Caps;
use crate::model::gpu::{GpuLease, GpuRequest, LeaseState};
use crate::model::host::Accelerator;
use crate::model::id::{LeaseId, OpId, VmId};
use crate::model::image::{Boot, Image};
use crate::model::name::{GuestUser, ImageName, ProfileName, Tag, VmName};
use crate::model::principal::User;
use crate::model::profile::Profile;
use crate::model::quota::{self, Usage};
use crate::model::state::{FirstBoot, Observed};
use crate::model::units::{Mib, Seconds};
use crate::model::vm::{Desired, Generation, ImageRef, Placement, Vm, VmSpec};
use crate::plan::{address, place};
use crate::store::vms::VmSecrets;
use crate::store::{StoreError, Write, audit, commit, leases, read_meta, vms, write_meta};

/// The smallest memory that QEMU's firmware and a kernel start in.
const MIN_MEMORY: Mib = Mib(64);
/// The smallest disk.
const MIN_DISK: Mib = Mib(1);
/// The largest disk that qcow2 with our cluster size is asked to hold.
const MAX_DISK: Mib = Mib(16 << 20);
/// The largest cloud-init document.
const MAX_USER_DATA: usize = 64 << 10;
/// Labels on one machine.
pub(super) const MAX_TAGS: usize = 32;
/// Where the address that was given last is kept.
const LAST_ADDRESS: &str = "last-address";
/// Names that are tried for a machine without one.
const NAME_TRIES: u32 = 1000;

/// A request to make a machine, every value parsed. What is absent comes from the profile.
#[derive(Clone, Debug)]
pub struct CreateRequest {
    /// Name; made from the profile's where absent.
    pub name: Option<VmName>,
    /// Profile.
    pub profile: ProfileName,
    /// Image.
    pub image: Option<ImageName>,
    /// Virtual CPUs.
    pub vcpus: Option<u32>,
    /// Memory.
    pub memory: Option<Mib>,
    /// Root disk.
    pub disk: Option<Mib>,
    /// GPUs; empty takes away the profile's.
    pub gpus: Option<Vec<GpuRequest>>,
    /// Limits over those of the profile.
    pub caps: Caps,
    /// Lifetime after each start.
    pub ttl: Option<Seconds>,
    /// A cloud-init document.
    pub user_data: Option<String>,
    /// Labels.
    pub tags: Vec<Tag>,
    /// TPM.
    pub tpm: Option<bool>,
    /// Leave it off.
    pub is_stopped: bool,
}

/// What was accepted.
#[derive(Clone, Debug)]
pub struct AcceptedChange {
    /// The operation.
    pub operation: OpId,
    /// The machine.
    pub vm: VmId,
    /// Its row as it was committed; by now the machine may be gone already, where that was asked for.
    pub row: Box<Vm>,
    /// What the person should know.
    pub notes: Vec<String>,
}

impl Manager {
    /// Admits a new machine.
    ///
    /// # Errors
    /// Every refusal says what would have been accepted.
    pub async fn create(&self, permit: &Permit, request: CreateRequest) -> Result<AcceptedChange> {
        let user = permit.user().ok_or_else(|| ManagerError::denied("only a person can have a VM"))?.clone();
        let profile = self.profile_for(&user, &request.profile).await?;
        let image = self.image_for(&profile, request.image.as_ref()).await?;
        let mut tags: Vec<Tag> = Vec::new();
        request.tags.iter().for_each(|tag| {
            if !tags.contains(tag) {
                tags.push(tag.clone())
            }
        });
        if tags.len() > MAX_TAGS {
            return Err(ManagerError::invalid(format!("a VM has at most {MAX_TAGS} tags")));
        }
        let mut notes = Vec::new();
        let spec = self.shape(&user, &profile, image.as_ref(), &request, &mut notes)?;
        let vm_id = VmId::generate();
        let secrets = steps::make_secrets("vm").map_err(|e| ManagerError::unavailable(e.to_string()).because(e))?;
        let desired = if request.is_stopped { Desired::Stopped } else { Desired::Running };
        let wish = Wish { id: vm_id, name: request.name, desired, tags, action: "vm.create" };
        self.admit(permit, &user, spec, wish, &secrets, notes).await
    }

    /// Admits a copy of a machine that is off.
    ///
    /// # Errors
    /// As [`Self::create`], and where the source is not off.
    pub async fn clone_vm(&self, permit: &Permit, name: VmName) -> Result<AcceptedChange> {
        let user = permit.user().ok_or_else(|| ManagerError::denied("only a person can have a VM"))?.clone();
        let source = self.permitted(permit).await?;
        let observed = self.observe_for_change(source.id).await;
        if let Observed::Unknown(why) = &observed {
            return Err(ManagerError::unavailable(format!("the state of VM {} is not known: {why}", source.name)));
        }
        if source.desired != Desired::Stopped || observed.is_active() {
            return Err(ManagerError::conflict(format!("VM {} is not stopped", source.name))
                .hint(format!("gvm stop {0} && gvm clone {0} {name}", source.name)));
        }
        if !source.spec.gpus.is_empty() {
            return Err(ManagerError::invalid("a VM with GPUs cannot be cloned yet")
                .hint("create a new one with the same profile"));
        }
        let spec = VmSpec { clone_of: Some(source.id), ..source.spec.clone() };
        let secrets = steps::make_secrets("vm").map_err(|e| ManagerError::unavailable(e.to_string()).because(e))?;
        let wish = Wish {
            id: VmId::generate(),
            name: Some(name),
            desired: Desired::Running,
            tags: source.tags,
            action: "vm.clone",
        };
        self.admit(permit, &user, spec, wish, &secrets, Vec::new()).await
    }

    /// The one transaction: quota, capacity, choices, intent, record.
    async fn admit(
        &self,
        permit: &Permit,
        user: &User,
        spec: VmSpec,
        wish: Wish,
        secrets: &VmSecrets,
        notes: Vec<String>,
    ) -> Result<AcceptedChange> {
        let mut tx = self.store.write().await?;
        let running = wish.desired == Desired::Running;
        let ask = ask(&spec, running);
        quota::check(&self.config.people.quota, &vms::usage(&mut tx, Some(user.id)).await?, &ask)?;
        self.check_capacity(&mut tx, ask.memory).await?;
        let taken = vms::addresses(&mut tx).await?;
        let subnet = self.config.network.subnet;
        let no_address = || {
            ManagerError::no_capacity(format!("all addresses of the members' network {subnet} are in use"))
                .hint("delete VMs, or ask the administrator for a larger network.subnet")
        };
        let last = read_meta(&mut tx, LAST_ADDRESS).await?;
        let address = address::pick_address(subnet, &taken.0, last).ok_or_else(no_address)?;
        write_meta(&mut tx, LAST_ADDRESS, &address).await?;
        let placement = Placement {
            host: self.host().id,
            mac: address::pick_mac(wish.id, &taken.1),
            address,
            gpus: place::pick(&spec.gpus, &[], &place::Held::new())?,
        };
        let name = match wish.name {
            Some(name) => name,
            None => free_name(self, user, &spec.profile).await?,
        };
        let vm = Vm {
            id: wish.id,
            name,
            owner: user.id,
            first_boot: if spec.clone_of.is_some() { FirstBoot::Waiting } else { FirstBoot::default() },
            spec,
            desired: wish.desired,
            generation: Generation(1),
            restart_requested: None,
            is_force_stop: false,
            stop_asked_at: None,
            started_at: None,
            started_boot: None,
            placement,
            tags: wish.tags,
            trouble: None,
            attempts: 0,
            next_try: None,
            created_at: Timestamp::now(),
            undelete_until: None,
        };
        vms::insert(&mut tx, &vm, secrets).await.map_err(|e| match e {
            StoreError::Taken("the name") => ManagerError::conflict(format!("you already have a VM named {}", vm.name))
                .hint("choose another name, or delete that one first"),
            other => other.into(),
        })?;
        for partition in &vm.placement.gpus {
            let lease = GpuLease {
                id: LeaseId::generate(),
                partition: partition.clone(),
                vm: vm.id,
                generation: vm.generation,
                state: LeaseState::Claimed,
            };
            leases::claim(&mut tx, &lease).await?;
        }
        let row = Self::pending(permit, wish.action, format!("{}.{}", vm.name, user.name), Some(vm.id));
        audit::begin(&mut tx, &row, Some(vm.generation)).await?;
        commit(tx).await?;
        self.watch.begin(&vm, format!("{} as {}", vm.spec.profile, vm.name));
        self.look_at(vm.id);
        Ok(AcceptedChange { operation: row.id, vm: vm.id, row: Box::new(vm), notes })
    }

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
    fn shape(
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
        let used = vms::usage(tx, None).await?.memory;
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

    /// True where the guest's SSH server was seen to answer.
    pub fn is_reachable(&self, vm: &Vm) -> bool {
        boot::is_reachable(self, vm.id, vm.started_at)
    }
}

struct Wish {
    id: VmId,
    name: Option<VmName>,
    desired: Desired,
    tags: Vec<Tag>,
    action: &'static str,
}

const fn ask(spec: &VmSpec, running: bool) -> Usage {
    Usage {
        vms: 1,
        vcpus: if running { spec.vcpus as u64 } else { 0 },
        memory: if running { spec.memory } else { Mib(0) },
        disk: spec.disk,
    }
}

/// `PROFILE`, `PROFILE-2`, `PROFILE-3`, ...
async fn free_name(manager: &Manager, user: &User, profile: &ProfileName) -> Result<VmName> {
    for number in 1..=NAME_TRIES {
        let stem: String = profile.as_str().chars().take(58).collect();
        let text = if number == 1 { stem } else { format!("{stem}-{number}") };
        let Ok(name) = text.parse::<VmName>() else { continue };
        if manager.store.vm_by_name(user.id, &name, false).await?.is_none() {
            return Ok(name);
        }
    }
    Err(ManagerError { kind: Kind::Conflict, ..ManagerError::invalid("no free name found; give one") })
}
