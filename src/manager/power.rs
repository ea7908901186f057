//! Start, stop, restart, pause, resume, delete, undelete: each only changes what is wanted.

use jiff::{SignedDuration, Timestamp};

use super::create::AcceptedChange;
use super::quota::Growth;
use super::{Manager, ManagerError, Result};
use crate::auth::policy::Permit;
use crate::model::principal::User;
use crate::model::quota::Usage;
use crate::model::state::Observed;
use crate::model::vm::{Desired, Vm};
use crate::store::{StoreError, Write, audit, commit, quotas, vms};

/// What a person wants of a machine's power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// On.
    Start,
    /// Off, after asking the guest.
    Stop,
    /// Off at once.
    ForceStop,
    /// Off and on again.
    Restart,
    /// Off at once and on again.
    ForceRestart,
    /// vCPUs held.
    Pause,
    /// vCPUs let go.
    Resume,
    /// Off and gone after the undelete window.
    Delete,
    /// Gone at once.
    DeleteNow,
    /// Back from deletion, off.
    Undelete,
}

impl Wanted {
    /// True where it is to run afterwards, whatever it does now.
    const fn is_up(self) -> bool {
        matches!(self, Self::Start | Self::Restart | Self::ForceRestart)
    }

    const fn action(self) -> &'static str {
        match self {
            Self::Start => "vm.start",
            Self::Stop | Self::ForceStop => "vm.stop",
            Self::Restart | Self::ForceRestart => "vm.restart",
            Self::Pause => "vm.pause",
            Self::Resume => "vm.resume",
            Self::Delete | Self::DeleteNow => "vm.delete",
            Self::Undelete => "vm.undelete",
        }
    }
}

impl Manager {
    /// Changes what is wanted of a machine's power.
    ///
    /// # Errors
    /// Where the machine is in no state for it, or there is no room.
    pub async fn power(&self, permit: &Permit, wanted: Wanted) -> Result<AcceptedChange> {
        let vm = self.permitted(permit).await?;
        let label = self.label(&vm).await?;
        // Looked at before the transaction: no call of the hypervisor happens inside of one.
        let observed = self.observe_for_change(vm.id).await;
        if let (true, false, Observed::Unknown(why)) = (wanted.is_up(), vm.spec.gpus.is_empty(), &observed) {
            return Err(ManagerError::unavailable(format!("the state of VM {} is not known: {why}", vm.name)));
        }
        let seen = if wanted.is_up() { self.look_for(&vm.spec.gpus).await? } else { None };
        let mut tx = self.store.write().await?;
        let mut vm = vms::read(&mut tx, vm.id).await?.ok_or_else(|| ManagerError::not_found("the VM is gone"))?;
        let held = quotas::usage_of_vm(&mut tx, &vm).await?;
        self.want(&mut tx, &mut vm, wanted, &observed, permit.user()).await?;
        vm.generation = vm.generation.next();
        if wanted.is_up() {
            self.renew_gpus(&mut tx, &mut vm, seen.as_deref(), permit.user(), &observed).await?;
            if !vm.placement.gpus.is_empty() {
                let holds = quotas::usage_of_vm(&mut tx, &vm).await?;
                self.check_quota(&mut tx, growth(&vm, permit.user(), &held, &holds)).await?;
            }
        }
        if matches!(wanted, Wanted::Restart | Wanted::ForceRestart) {
            vm.restart_requested = Some(vm.generation);
        }
        (vm.trouble, vm.attempts, vm.next_try) = (None, 0, None);
        vms::update(&mut tx, &vm).await.map_err(|e| match e {
            StoreError::Taken("the name") => {
                ManagerError::conflict(format!("you have another VM named {} by now", vm.name))
                    .hint(format!("rename that one first: gvm rename {} OTHER", vm.name))
            }
            other => other.into(),
        })?;
        let row = Self::pending(permit, wanted.action(), label, Some(vm.id));
        audit::begin(&mut tx, &row, Some(vm.generation)).await?;
        commit(tx).await?;
        self.watch.begin(&vm, wanted.action());
        self.look_at(vm.id);
        Ok(AcceptedChange { operation: row.id, vm: vm.id, row: Box::new(vm), notes: Vec::new() })
    }

    async fn want(
        &self,
        tx: &mut Write,
        vm: &mut Vm,
        wanted: Wanted,
        observed: &Observed,
        user: Option<&User>,
    ) -> Result<()> {
        let name = vm.name.clone();
        if vm.is_deleted() && !matches!(wanted, Wanted::Undelete | Wanted::DeleteNow) {
            return Err(ManagerError::conflict(format!("VM {name} is deleted")).hint(format!("gvm undelete {name}")));
        }
        match wanted {
            Wanted::Start => {
                let is_being_stopped =
                    vm.desired == Desired::Stopped && (vm.stop_asked_at.is_some() || vm.is_force_stop);
                self.want_up(tx, vm, user).await?;
                // A stop under way is let come to its end first; one that nobody noted yet is not taken for the
                // guest's own wish.
                if is_being_stopped || vm.started_at.is_some() && observed.is_off() {
                    vm.restart_requested = Some(vm.generation.next());
                }
            }
            Wanted::Stop => {
                vm.desired = Desired::Stopped;
                vm.restart_requested = None;
            }
            Wanted::ForceStop => {
                vm.desired = Desired::Stopped;
                vm.restart_requested = None;
                vm.is_force_stop = !observed.is_off();
            }
            Wanted::Restart | Wanted::ForceRestart => {
                if observed.is_off() && vm.desired == Desired::Stopped {
                    return Err(off(vm, "restarted"));
                }
                self.want_up(tx, vm, user).await?;
                vm.is_force_stop = wanted == Wanted::ForceRestart && !observed.is_off();
            }
            Wanted::Pause => {
                must_be_up(vm, observed, "paused")?;
                vm.desired = Desired::Paused;
            }
            Wanted::Resume => {
                must_be_up(vm, observed, "resumed")?;
                vm.desired = Desired::Running;
            }
            Wanted::Delete => {
                let window = i64::try_from(self.config.manager.undelete_seconds).unwrap_or(i64::MAX);
                let until = Timestamp::now().saturating_add(SignedDuration::from_secs(window));
                vm.undelete_until = Some(until.unwrap_or(Timestamp::MAX));
                vm.desired = if window == 0 { Desired::Absent } else { Desired::Stopped };
                vm.restart_requested = None;
            }
            Wanted::DeleteNow => {
                vm.undelete_until = Some(Timestamp::now());
                vm.desired = Desired::Absent;
            }
            Wanted::Undelete => {
                if vm.undelete_until.is_none() || vm.desired == Desired::Absent {
                    return Err(ManagerError::conflict(format!(
                        "VM {name} cannot be undeleted: it is not within its undelete window"
                    )));
                }
                vm.undelete_until = None;
            }
        }
        Ok(())
    }

    /// What a stopped machine does not hold counts anew when it is to run. What its request tells of is checked before
    /// cards are chosen: who may not have them is not told that there are none.
    async fn want_up(&self, tx: &mut Write, vm: &mut Vm, user: Option<&User>) -> Result<()> {
        if vm.desired == Desired::Stopped {
            let held = quotas::usage_of_vm(tx, vm).await?;
            let ask = Usage::asked((&vm.spec).into(), Desired::Running);
            self.check_quota(tx, growth(vm, user, &held, &ask)).await?;
            self.check_capacity(tx, ask.memory()).await?;
        }
        vm.desired = Desired::Running;
        Ok(())
    }
}

/// A machine that counts for the same team as before.
const fn growth<'a>(vm: &Vm, asker: Option<&'a User>, held: &'a Usage, holds: &'a Usage) -> Growth<'a> {
    Growth { asker, vm: vm.id, owner: vm.owner, before: (vm.team, held), after: (vm.team, holds) }
}

fn off(vm: &Vm, doing: &str) -> ManagerError {
    ManagerError::conflict(format!("VM {} is not running, so it cannot be {doing}", vm.name))
        .hint(format!("gvm start {}", vm.name))
}

/// Refuses what only a machine can do that is up and is to stay up.
fn must_be_up(vm: &Vm, observed: &Observed, doing: &str) -> Result<()> {
    if let Observed::Unknown(why) = observed {
        return Err(ManagerError::unavailable(format!("the state of VM {} is not known: {why}", vm.name)));
    }
    if observed.is_off() {
        return Err(off(vm, doing));
    }
    if vm.desired == Desired::Stopped {
        return Err(ManagerError::conflict(format!("VM {} is shutting down, so it cannot be {doing}", vm.name))
            .hint(format!("gvm start {}", vm.name)));
    }
    Ok(())
}
