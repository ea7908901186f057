//! Does one step. Every step may be done again at any time and then changes nothing.

use jiff::Timestamp;

use super::domain::{self, Surroundings};
use super::{Manager, ManagerError, gpus, hold, lock};
use crate::hypervisor::{DomainSpec, ErrorKind, HypervisorError, LiveChange};
use crate::image::catalogue::base_disk;
use crate::image::cloudinit::SeedSpec;
use crate::image::disk;
use crate::image::sshkey::SshKey;
use crate::image::{ImageError, ImageErrorKind, seed};
use crate::model::event::{AuditEvent, ITSELF, Outcome};
use crate::model::gpu::LeaseState;
use crate::model::id::VmId;
use crate::model::image::{Boot, Image};
use crate::model::state::{FirstBoot, Observed};
use crate::model::units::Mib;
use crate::model::vm::{Desired, Vm};
use crate::plan::vm::Step;
use crate::store::vms::VmSecrets;
use crate::store::{StoreError, audit, commit, leases, vms};

/// A step that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its name.
    pub step: &'static str,
    /// Cause in plain words.
    pub message: String,
    /// It is the hypervisor's weather: does not count as a try.
    pub is_transient: bool,
    /// Trying again cannot help before the request changes.
    pub is_final: bool,
}

impl Failure {
    /// One that counts and is tried again.
    pub fn new(step: &'static str, message: impl Into<String>) -> Self {
        Self { step, message: message.into(), is_transient: false, is_final: false }
    }

    pub(super) fn hypervisor(step: &'static str, error: &HypervisorError) -> Self {
        Self {
            is_transient: error.kind == ErrorKind::Transient,
            is_final: error.kind == ErrorKind::Invalid,
            ..Self::new(step, error.to_string())
        }
    }

    fn image(step: &'static str, error: &ImageError) -> Self {
        Self {
            is_transient: error.kind == ImageErrorKind::Transient,
            is_final: error.kind == ImageErrorKind::Invalid,
            ..Self::new(step, error.to_string())
        }
    }

    pub(super) fn store(step: &'static str, error: &StoreError) -> Self {
        Self { is_transient: true, ..Self::new(step, super::error::chain(error)) }
    }

    fn manager(step: &'static str, error: &ManagerError) -> Self {
        let is_final = error.kind == super::Kind::Invalid;
        Self { is_final, ..Self::new(step, error.to_string()) }
    }
}

/// How a step ends.
pub(super) type Done = Result<(), Failure>;

/// Does the step.
///
/// # Errors
/// Says what failed and whether trying again can help.
pub async fn execute(manager: &Manager, vm: &Vm, step: &Step) -> Done {
    let name = step.name();
    let on_hypervisor = |error: HypervisorError| Failure::hypervisor(name, &error);
    let hypervisor = &manager.hypervisor;
    match step {
        Step::EnsureDisk => {
            manager.watch.tell(vm, "disk", format!("making the disk of {}", vm.spec.disk));
            ensure_disk(manager, vm, name).await
        }
        Step::EnsureSeed => {
            manager.watch.tell(vm, "seed", "writing the cloud-init seed");
            ensure_seed(manager, vm, name).await
        }
        Step::EnsureGpuBound => gpus::ensure_bound(manager, vm, name).await,
        Step::AttachGpu => gpus::attach(manager, vm, name).await,
        Step::ReleaseGpu => gpus::release(manager, vm, name).await,
        Step::Define => {
            let spec = domain_spec(manager, vm).await.map_err(|e| Failure::manager(name, &e))?;
            manager.watch.tell(vm, "define", "defining the machine");
            hypervisor.define(&spec).await.map_err(on_hypervisor)
        }
        Step::Start => start(manager, vm, name).await,
        Step::RecordStarted => edit(manager, vm, name, |fresh| mark_started(manager, fresh)).await,
        Step::Pause => hypervisor.pause(vm.id).await.map_err(on_hypervisor),
        Step::Resume => hypervisor.resume(vm.id).await.map_err(on_hypervisor),
        Step::AskShutdown => {
            if vm.stop_asked_at.is_none() {
                manager.watch.tell(vm, "stop", "asking the guest to shut down");
                edit(manager, vm, name, |fresh| fresh.stop_asked_at = Some(Timestamp::now())).await?;
                hold::point("stop-asked").await;
            }
            hypervisor.shutdown(vm.id).await.map_err(on_hypervisor)
        }
        Step::ForceOff => {
            let why = if vm.stop_asked_at.is_some() { "it did not shut down in time" } else { "as asked" };
            manager.watch.tell(vm, "stop", format!("forcing it off: {why}"));
            hypervisor.force_off(vm.id).await.map_err(on_hypervisor)
        }
        Step::RecordOff => {
            manager.watch.tell(vm, "off", "it is off");
            forget_reach(manager, vm.id);
            edit(manager, vm, name, mark_off).await
        }
        Step::AcceptOff => {
            manager.watch.tell(vm, "off", "the guest shut itself down");
            forget_reach(manager, vm.id);
            end_by_manager(manager, vm, name, "guest", "vm.poweroff", mark_off_by_guest).await
        }
        Step::Expire => {
            manager.watch.tell(vm, "stop", "its lifetime is over");
            end_by_manager(manager, vm, name, ITSELF, "vm.expire", |fresh| fresh.desired = Desired::Stopped).await
        }
        Step::Purge => {
            manager.watch.tell(vm, "delete", "the undelete window is over");
            end_by_manager(manager, vm, name, ITSELF, "vm.purge", |fresh| fresh.desired = Desired::Absent).await
        }
        Step::ApplyCaps(caps) => apply(manager, vm, name, LiveChange::Caps(caps.clone())).await,
        Step::ApplyVcpus(vcpus) => apply(manager, vm, name, LiveChange::Vcpus(*vcpus)).await,
        Step::ApplyMemory(memory) => apply(manager, vm, name, LiveChange::Memory(*memory)).await,
        Step::ApplyDisk(size) => apply(manager, vm, name, LiveChange::RootDisk(*size)).await,
        Step::Undefine => {
            manager.watch.tell(vm, "delete", "removing the machine");
            hypervisor.undefine(vm.id).await.map_err(on_hypervisor)
        }
        Step::EnsureFilesGone => {
            let network = &manager.config.network.name;
            hypervisor.ensure_host_entry_gone(network, vm.placement.mac).await.map_err(on_hypervisor)?;
            hold::point("files-gone").await;
            disk::ensure_gone(&manager.layout.vm(vm.id)).await.map_err(|e| Failure::image(name, &e))
        }
        Step::Forget => forget(manager, vm, name).await,
    }
}

/// The description of a machine as it should be.
///
/// # Errors
/// Where the store fails or the image does not fit.
pub async fn domain_spec(manager: &Manager, vm: &Vm) -> super::Result<DomainSpec> {
    let image = image_of(manager, vm).await?;
    let owner = manager.store.user(vm.owner).await?.map(|user| user.name.to_string()).unwrap_or_default();
    let host = manager.host();
    let around = Surroundings {
        layout: &manager.layout,
        image: image.as_ref(),
        network: &manager.config.network.name,
        accelerator: &host.accelerator,
        host_cpus: host.capacity.cpus,
        owner: &owner,
    };
    domain::spec(vm, &around)
}

async fn image_of(manager: &Manager, vm: &Vm) -> super::Result<Option<Image>> {
    let Some(reference) = &vm.spec.image else { return Ok(None) };
    let row = manager.store.image(reference.id).await?;
    let gone = || ManagerError::invalid(format!("image {} is gone from the catalogue", reference.name));
    row.map(|row| Some(row.image)).ok_or_else(gone)
}

async fn ensure_disk(manager: &Manager, vm: &Vm, step: &'static str) -> Done {
    let on_image = |error: ImageError| Failure::image(step, &error);
    let files = manager.layout.vm(vm.id);
    let image = image_of(manager, vm).await.map_err(|e| Failure::manager(step, &e))?;
    if vm.first_boot != FirstBoot::Waiting && !files.root().exists() {
        // It ran on a disk once. An empty one in its place would look like lost data without a reason.
        let path = files.root().display().to_string();
        return Err(Failure::new(
            step,
            format!("its disk {path} is missing; put it back from a backup, or delete the VM"),
        ));
    }
    let tools = disk::DiskTools::default();
    if let Some(source) = vm.spec.clone_of
        && !files.root().exists()
    {
        return clone_disk(manager, vm, source, step).await;
    }
    let base = image.as_ref().and_then(|image| base_disk(&manager.layout, image));
    disk::ensure_overlay(&tools, base.as_ref(), &files, vm.spec.disk).await.map_err(on_image)
}

/// Takes a machine's disk for reading: it is not started meanwhile.
struct CopyHold<'m> {
    manager: &'m Manager,
    source: VmId,
}

impl Drop for CopyHold<'_> {
    fn drop(&mut self) {
        lock(&self.manager.copied).remove(&self.source);
        self.manager.look_at(self.source);
    }
}

async fn clone_disk(manager: &Manager, vm: &Vm, source: VmId, step: &'static str) -> Done {
    if !lock(&manager.copied).insert(source) {
        return Err(Failure {
            is_transient: true,
            ..Failure::new(step, "another copy of the same machine is being made")
        });
    }
    let _hold = CopyHold { manager, source };
    // Looked at under the hold: from here on it cannot be started through us.
    match manager.hypervisor.observe(source).await {
        Observed::Unknown(why) => return Err(Failure { is_transient: true, ..Failure::new(step, why) }),
        seen if seen.is_active() => {
            return Err(Failure::new(step, "the machine that is to be copied runs; stop it first"));
        }
        _ => {}
    }
    let tools = disk::DiskTools::default();
    disk::clone_disk(&tools, &manager.layout.vm(source), &manager.layout.vm(vm.id))
        .await
        .map_err(|e| Failure::image(step, &e))
}

async fn ensure_seed(manager: &Manager, vm: &Vm, step: &'static str) -> Done {
    let on_store = |error: StoreError| Failure::store(step, &error);
    let secrets = manager.store.secrets(vm.id).await.map_err(on_store)?;
    let secrets = secrets.ok_or_else(|| Failure::new(step, "its keys are missing in the database"))?;
    let mut keys: Vec<_> =
        manager.store.keys(vm.owner).await.map_err(on_store)?.into_iter().map(|row| row.key).collect();
    let parse = |text: &str| text.parse().map_err(|e| Failure::new(step, format!("a stored key cannot be read: {e}")));
    keys.push(parse(&secrets.login_key_public)?);
    let host_key =
        SshKey { private: secrets.host_key_private.clone().into(), public: parse(&secrets.host_key_public)? };
    let spec = SeedSpec {
        vm: vm.id,
        hostname: vm.name.clone(),
        mac: vm.placement.mac,
        user: vm.spec.guest_user.clone(),
        authorized_keys: keys,
        host_key,
        profile_user_data: vm.spec.profile_user_data.clone(),
        user_data: vm.spec.user_data.clone(),
    };
    seed::ensure_seed(&spec, &manager.layout.vm(vm.id)).await.map_err(|e| Failure::image(step, &e))
}

async fn start(manager: &Manager, vm: &Vm, step: &'static str) -> Done {
    let on_hypervisor = |error: HypervisorError| Failure::hypervisor(step, &error);
    if lock(&manager.copied).contains(&vm.id) {
        return Err(Failure { is_transient: true, ..Failure::new(step, "its disk is being copied") });
    }
    gpus::must_have_memory(vm, Mib(0), step).await?;
    forget_reach(manager, vm.id);
    let hypervisor = &manager.hypervisor;
    let network = manager.network();
    manager.watch.tell(vm, "network", format!("address {}", vm.placement.address));
    hypervisor.ensure_network(&network).await.map_err(on_hypervisor)?;
    hold::point("host-entry").await;
    let placement = &vm.placement;
    hypervisor
        // The label may be another owner's too; the domain's name is nobody else's.
        .ensure_host_entry(&network.name, placement.mac, placement.address, &vm.domain_name())
        .await
        .map_err(on_hypervisor)?;
    hold::point("start-domain").await;
    manager.watch.tell(vm, "start", "starting the machine");
    hypervisor.start(vm.id).await.map_err(on_hypervisor)
}

fn mark_started(manager: &Manager, vm: &mut Vm) {
    vm.started_at = Some(Timestamp::now());
    vm.started_boot = Some(manager.host().boot_id);
    (vm.stop_asked_at, vm.is_force_stop) = (None, false);
    if vm.spec.boot == Boot::Firmware {
        vm.first_boot = FirstBoot::Done;
    }
}

fn mark_off(vm: &mut Vm) {
    (vm.started_at, vm.started_boot, vm.stop_asked_at) = (None, None, None);
    vm.is_force_stop = false;
    vm.restart_requested = None;
}

fn mark_off_by_guest(vm: &mut Vm) {
    mark_off(vm);
    vm.desired = Desired::Stopped;
}

fn forget_reach(manager: &Manager, vm: VmId) {
    lock(&manager.reachable).remove(&vm);
}

/// Changes the row, unless something else is wanted by now: then the next look decides anew.
async fn edit(manager: &Manager, vm: &Vm, step: &'static str, change: impl FnOnce(&mut Vm) + Send) -> Done {
    let on_store = |error: StoreError| Failure::store(step, &error);
    let mut tx = manager.store.write().await.map_err(on_store)?;
    let Some(mut fresh) = vms::read(&mut tx, vm.id).await.map_err(on_store)? else { return Ok(()) };
    if fresh.generation != vm.generation {
        return Ok(());
    }
    change(&mut fresh);
    vms::update(&mut tx, &fresh).await.map_err(on_store)?;
    if fresh.started_at.is_some() && !fresh.placement.gpus.is_empty() {
        leases::set_state(&mut tx, vm.id, LeaseState::Attached).await.map_err(on_store)?;
    }
    commit(tx).await.map_err(on_store)
}

/// Changes what is wanted in the manager's own name, on the record.
async fn end_by_manager(
    manager: &Manager,
    vm: &Vm,
    step: &'static str,
    actor: &str,
    action: &str,
    change: impl FnOnce(&mut Vm) + Send,
) -> Done {
    let on_store = |error: StoreError| Failure::store(step, &error);
    let label = manager.label(vm).await.map_err(|e| Failure::manager(step, &e))?;
    let mut tx = manager.store.write().await.map_err(on_store)?;
    let Some(mut fresh) = vms::read(&mut tx, vm.id).await.map_err(on_store)? else { return Ok(()) };
    if fresh.generation != vm.generation {
        return Ok(());
    }
    change(&mut fresh);
    fresh.generation = fresh.generation.next();
    vms::update(&mut tx, &fresh).await.map_err(on_store)?;
    let row = AuditEvent {
        actor: actor.to_owned(),
        vm: Some(vm.id),
        ..AuditEvent::own(Timestamp::now(), action, label, Outcome::Pending)
    };
    audit::begin(&mut tx, &row, Some(fresh.generation)).await.map_err(on_store)?;
    commit(tx).await.map_err(on_store)
}

async fn apply(manager: &Manager, vm: &Vm, step: &'static str, change: LiveChange) -> Done {
    manager.watch.tell(vm, "change", format!("changing the running machine ({step})"));
    manager.hypervisor.apply(vm.id, &change).await.map_err(|e| Failure::hypervisor(step, &e))
}

async fn forget(manager: &Manager, vm: &Vm, step: &'static str) -> Done {
    let on_store = |error: StoreError| Failure::store(step, &error);
    let mut tx = manager.store.write().await.map_err(on_store)?;
    // The domain was observed to be gone before this step: the proof on which leases are given up.
    leases::release(&mut tx, vm.id).await.map_err(on_store)?;
    vms::forget(&mut tx, vm.id).await.map_err(on_store)?;
    audit::finish(&mut tx, vm.id, vm.generation, Outcome::Success, "", Timestamp::now()).await.map_err(on_store)?;
    commit(tx).await.map_err(on_store)?;
    manager.watch.tell(vm, "gone", "it is gone");
    manager.watch.forget(vm.id);
    forget_reach(manager, vm.id);
    Ok(())
}

/// The secrets of a new machine.
///
/// # Errors
/// Where the random source fails.
pub fn make_secrets(name: &str) -> Result<VmSecrets, ImageError> {
    let host = SshKey::generate(&format!("host@{name}"))?;
    let login = SshKey::generate("gvm-gateway")?;
    Ok(VmSecrets {
        host_key_public: host.public.to_string(),
        host_key_private: host.private.expose().clone(),
        login_key_public: login.public.to_string(),
        login_key_private: login.private.expose().clone(),
    })
}
