//! Rename, resize, limits, lifetime, labels.

use super::create::{AcceptedChange, MAX_TAGS};
use super::gpus::Now;
use super::{Manager, ManagerError, Result};
use crate::auth::policy::Permit;
use crate::model::caps::CapsChange;
use crate::model::gpu::GpuRequest;
use crate::model::name::{Tag, VmName};
use crate::model::quota::{self, Usage};
use crate::model::units::{Mib, Seconds};
use crate::model::vm::Vm;
use crate::plan::vm::needs_restart;
use crate::store::{StoreError, Write, audit, commit, vms};

/// A request to change a machine, every value parsed. What is absent stays.
#[derive(Clone, Debug, Default)]
pub struct ChangeRequest {
    /// New name.
    pub name: Option<VmName>,
    /// Virtual CPUs.
    pub vcpus: Option<u32>,
    /// Memory.
    pub memory: Option<Mib>,
    /// Root disk.
    pub disk: Option<Mib>,
    /// GPUs; none takes them away.
    pub gpus: Option<Vec<GpuRequest>>,
    /// Limits.
    pub caps: CapsChange,
    /// Lifetime; `Some(None)` takes it away.
    pub ttl: Option<Option<Seconds>>,
    /// Labels to put on.
    pub add_tags: Vec<Tag>,
    /// Labels to take off.
    pub remove_tags: Vec<Tag>,
}

impl ChangeRequest {
    /// The word for the record: what it is mainly about.
    fn action(&self) -> &'static str {
        if self.name.is_some() {
            "vm.rename"
        } else if self.vcpus.is_some() || self.memory.is_some() || self.disk.is_some() {
            "vm.resize"
        } else if self.gpus.is_some() || self.caps != CapsChange::default() || self.ttl.is_some() {
            "vm.set"
        } else {
            "vm.tag"
        }
    }
}

impl Manager {
    /// Changes a machine.
    ///
    /// # Errors
    /// Where a value does not fit, there is no room, or the name is taken.
    pub async fn change(&self, permit: &Permit, request: ChangeRequest) -> Result<AcceptedChange> {
        let vm = self.permitted(permit).await?;
        let label = self.label(&vm).await?;
        let image = match &vm.spec.image {
            Some(reference) => self.store.image(reference.id).await?.map(|row| row.image),
            None => None,
        };
        // Looked at before the transaction: nothing of the host is asked inside of one.
        let now = match &request.gpus {
            None => None,
            Some(gpus) => {
                Some(Now { observed: self.observe_for_change(vm.id).await, seen: self.look_for(gpus).await? })
            }
        };
        let mut tx = self.store.write().await?;
        let mut vm = vms::read(&mut tx, vm.id).await?.ok_or_else(|| ManagerError::not_found("the VM is gone"))?;
        if vm.is_deleted() {
            return Err(
                ManagerError::conflict(format!("VM {} is deleted", vm.name)).hint(format!("gvm undelete {}", vm.name))
            );
        }
        let before = vm.clone();
        Self::edit_values(&mut vm, &request)?;
        self.check_shape(vm.spec.vcpus, vm.spec.memory, vm.spec.disk, image.as_ref())?;
        self.check_growth(&mut tx, &before, &vm).await?;
        vm.generation = vm.generation.next();
        let mut notes = Vec::new();
        if let (Some(gpus), Some(now)) = (&request.gpus, &now) {
            notes.extend(self.change_gpus(&mut tx, &mut vm, gpus, now, permit.user()).await?);
        }
        (vm.trouble, vm.attempts, vm.next_try) = (None, 0, None);
        vms::update(&mut tx, &vm).await.map_err(|e| match e {
            StoreError::Taken("the name") => {
                ManagerError::conflict(format!("you already have a VM named {}", vm.name)).hint("choose another name")
            }
            other => other.into(),
        })?;
        let row = Self::pending(permit, request.action(), label, Some(vm.id));
        audit::begin(&mut tx, &row, Some(vm.generation)).await?;
        commit(tx).await?;
        self.watch.begin(&vm, row.action.as_str());
        self.look_at(vm.id);
        if needs_restart(&vm, &self.observe_for_change(vm.id).await) {
            notes.push(format!("the new size takes effect at the next start: gvm restart {}", vm.name));
        }
        Ok(AcceptedChange { operation: row.id, vm: vm.id, row: Box::new(vm), notes })
    }

    fn edit_values(vm: &mut Vm, request: &ChangeRequest) -> Result<()> {
        if let Some(name) = &request.name {
            vm.name = name.clone();
        }
        if let Some(disk) = request.disk {
            if disk < vm.spec.disk {
                return Err(ManagerError::invalid(format!("the disk has {} and cannot become smaller", vm.spec.disk))
                    .hint("create a new VM with a smaller disk and copy what you need"));
            }
            vm.spec.disk = disk;
        }
        vm.spec.vcpus = request.vcpus.unwrap_or(vm.spec.vcpus);
        vm.spec.memory = request.memory.unwrap_or(vm.spec.memory);
        vm.spec.caps = vm.spec.caps.with(&request.caps);
        vm.spec.caps.check().map_err(|e| ManagerError::invalid(e.to_string()))?;
        if let Some(ttl) = request.ttl {
            vm.spec.ttl = ttl;
        }
        vm.tags.retain(|tag| !request.remove_tags.contains(tag));
        for tag in &request.add_tags {
            if !vm.tags.contains(tag) {
                vm.tags.push(tag.clone());
            }
        }
        if vm.tags.len() > MAX_TAGS {
            return Err(ManagerError::invalid(format!("a VM has at most {MAX_TAGS} tags")));
        }
        Ok(())
    }

    /// What is more than before counts against quota and host.
    async fn check_growth(&self, tx: &mut Write, before: &Vm, after: &Vm) -> Result<()> {
        let runs = after.desired.is_up();
        let more = |new: u64, old: u64| if runs { new.saturating_sub(old) } else { 0 };
        let ask = Usage {
            vms: 0,
            vcpus: more(after.spec.vcpus.into(), before.spec.vcpus.into()),
            memory: Mib(more(after.spec.memory.0, before.spec.memory.0)),
            disk: Mib(after.spec.disk.0.saturating_sub(before.spec.disk.0)),
        };
        quota::check(&self.config.people.quota, &vms::usage(tx, Some(after.owner)).await?, &ask)?;
        self.check_capacity(tx, ask.memory).await
    }
}
