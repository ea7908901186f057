//! Rename, resize, limits, lifetime, labels.

use jiff::Timestamp;

use super::create::{AcceptedChange, MAX_TAGS};
use super::gpus::Now;
use super::quota::Growth;
use super::revoked::Revoked;
use super::{Manager, ManagerError, Result};
use crate::auth::policy::Permit;
use crate::model::caps::CapsChange;
use crate::model::gpu::GpuRequest;
use crate::model::name::{Tag, VmName};
use crate::model::quota::Usage;
use crate::model::units::{Mib, Seconds};
use crate::model::vm::{Vm, VmSpec};
use crate::plan::vm::needs_restart;
use crate::store::{StoreError, audit, commit, gpu_time, quotas, vms};

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
    /// The team that it counts for.
    pub team: Option<String>,
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
        } else if self.gpus.is_some() || self.team.is_some() || self.caps != CapsChange::default() || self.ttl.is_some()
        {
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
        let held = quotas::usage_of_vm(&mut tx, &before).await?;
        Self::edit_values(&mut vm, &request)?;
        self.check_shape(vm.spec.vcpus, vm.spec.memory, vm.spec.disk, image.as_ref())?;
        if let Some(team) = &request.team {
            vm.team = self.team_for(&mut tx, vm.owner, Some(team)).await?;
        }
        let (asker, ask) = (permit.user(), ask(&before, &vm, &held, request.gpus.as_deref()));
        let growth = Growth { asker, vm: vm.id, owner: vm.owner, before: (before.team, &held), after: (vm.team, &ask) };
        self.check_quota(&mut tx, growth).await?;
        self.check_capacity(&mut tx, ask.beyond(&held).memory()).await?;
        vm.generation = vm.generation.next();
        let mut notes = Vec::new();
        if let (Some(gpus), Some(now)) = (&request.gpus, &now) {
            notes.extend(self.change_gpus(&mut tx, &mut vm, gpus, now, permit.user()).await?);
            let holds = quotas::usage_of_vm(&mut tx, &vm).await?;
            self.check_quota(&mut tx, Growth { after: (vm.team, &holds), ..growth }).await?;
        }
        (vm.trouble, vm.attempts, vm.next_try) = (None, 0, None);
        vms::update(&mut tx, &vm).await.map_err(|e| match e {
            StoreError::Taken("the name") => {
                ManagerError::conflict(format!("you already have a VM named {}", vm.name)).hint("choose another name")
            }
            other => other.into(),
        })?;
        if before.team != vm.team {
            gpu_time::note(&mut tx, Timestamp::now()).await?;
        }
        let row = Self::pending(permit, request.action(), label, Some(vm.id));
        audit::begin(&mut tx, &row, Some(vm.generation)).await?;
        commit(tx).await?;
        if before.team != vm.team {
            self.revocations.tell(Revoked::Vm(vm.id));
        }
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
}

/// What a machine will hold: what it holds, in its new size, with the GPUs that are asked for in place of its own.
fn ask(before: &Vm, after: &Vm, held: &Usage, gpus: Option<&[GpuRequest]>) -> Usage {
    match gpus {
        Some(gpus) => {
            let spec = VmSpec { gpus: gpus.to_vec(), ..after.spec.clone() };
            Usage::asked((&spec).into(), after.desired)
        }
        None => {
            let of = |vm: &Vm| Usage::of_machine((&vm.spec).into(), vm.desired);
            held.beyond(&of(before)).plus(&of(after))
        }
    }
}
