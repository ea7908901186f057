//! Cards of a machine that exists: another request, and plugging while it runs.
//!
//! ```text
//!   it holds no cards, and is to run    claimed at once; EnsureGpuBound and AttachGpu where it runs, else as at every start
//!   it is off, and is to stay off       only the request changes: cards are claimed when it is to run
//!   it holds cards, and is not off      refused: a guest does not bear that a GPU is taken out (ADR 0016)
//! ```

use std::sync::Arc;

use jiff::Timestamp;

use super::super::steps::{Done, Failure};
use super::super::{Manager, ManagerError, Result, hold};
use super::steps::{last, must_have_memory};
use super::{Seen, write_leases};
use crate::hypervisor::PLUG_PORTS;
use crate::model::gpu::{GpuRequest, LeaseState};
use crate::model::principal::User;
use crate::model::state::Observed;
use crate::model::units::Mib;
use crate::model::vm::{Vm, VmSpec};
use crate::plan::window::EMPTY_PORT;
use crate::store::{Write, commit, leases};

/// What was seen before the transaction of a change.
#[derive(Clone, Debug)]
pub(in crate::manager) struct Now {
    /// Of the machine.
    pub observed: Observed,
    /// Of the cards, where some are asked for.
    pub seen: Option<Arc<Seen>>,
}

impl Manager {
    /// Changes what a machine asks for, and claims cards where it is to run; gives what should be known besides.
    pub(in crate::manager) async fn change_gpus(
        &self,
        tx: &mut Write,
        vm: &mut Vm,
        requests: &[GpuRequest],
        now: &Now,
        user: Option<&User>,
    ) -> Result<Option<String>> {
        if vm.spec.gpus == requests {
            return Ok(None);
        }
        if let Observed::Unknown(why) = &now.observed {
            return Err(ManagerError::unavailable(format!("the state of VM {} is not known: {why}", vm.name)));
        }
        // A request that could never be met is refused as such, before anybody stops a machine for it.
        let seen = now.seen.as_deref();
        let wished = VmSpec { gpus: requests.to_vec(), ..vm.spec.clone() };
        self.could_have_gpus(tx, seen, user, &wished).await?;
        let is_holding = leases::read(tx).await?.iter().any(|lease| lease.vm == vm.id);
        let is_off = now.observed.is_off() && !vm.desired.is_up();
        if !is_off && (is_holding || has_devices(&now.observed)) {
            return Err(bound_to_it(vm, requests));
        }
        vm.spec.gpus = requests.to_vec();
        let chosen = match vm.desired.is_up() {
            true => self.choose_gpus(tx, seen, user, &vm.spec).await?,
            false => self.could_have_gpus(tx, seen, user, &vm.spec).await?,
        };
        let devices = chosen.partitions.iter().map(|partition| partition.devices().len()).sum::<usize>();
        if devices > usize::from(PLUG_PORTS) {
            let message = format!(
                "up to {PLUG_PORTS} functions of GPUs can be plugged into a running VM, and these have {devices}"
            );
            return Err(ManagerError::conflict(message).hint(after_stop(vm, requests)));
        }
        write_leases(tx, vm.id, vm.generation, &chosen).await?;
        // What it still holds of its last run is no longer meant for it: given back, and not used again.
        (vm.placement.gpus, vm.placement.mmio64, vm.placement.huge_page) = (chosen.partitions, chosen.mmio64, None);
        let is_tight = now.observed.is_active() && chosen.is_tight;
        Ok(is_tight.then(|| {
            format!(
                "a guest that runs has no room laid out for memory windows above {}: if the driver does not find the GPU's, \
                 gvm restart {}",
                Mib(EMPTY_PORT >> 20),
                vm.name
            )
        }))
    }
}

fn has_devices(observed: &Observed) -> bool {
    matches!(observed, Observed::Defined(domain) if !domain.hostdevs.is_empty())
}

fn bound_to_it(vm: &Vm, requests: &[GpuRequest]) -> ManagerError {
    ManagerError::conflict(format!(
        "VM {} has GPUs, and none can be taken out of a VM that runs: the driver in its guest does not bear it (NVIDIA \
         does not support it, and the guest may hang)",
        vm.name
    ))
    .hint(after_stop(vm, requests))
}

fn after_stop(vm: &Vm, requests: &[GpuRequest]) -> String {
    let asked: Vec<String> = requests.iter().map(|request| format!("--gpu {request}")).collect();
    let asked = if asked.is_empty() { "--gpu none".to_owned() } else { asked.join(" ") };
    format!("gvm stop {0} && gvm set {0} {asked}", vm.name)
}

/// Plugs the cards of a running machine that VFIO has already, and notes that it has them.
pub(in crate::manager) async fn attach(manager: &Manager, vm: &Vm, step: &'static str) -> Done {
    let on_store = |error| Failure::store(step, &error);
    let held = manager.store.leases_of(vm.id).await.map_err(on_store)?;
    if held.is_empty() {
        return Err(last(step, "it holds no GPU any more"));
    }
    // What it has of its memory already need not be found any more; unknown counts as nothing.
    let stats = manager.hypervisor.stats(vm.id).await.unwrap_or_default();
    must_have_memory(vm, Mib(stats.rss_kib / 1024), step).await?;
    let devices: Vec<_> = held.iter().flat_map(|lease| lease.partition.devices()).collect();
    manager.watch.tell(vm, "gpu", "plugging its GPUs into the running machine");
    let attached = manager.hypervisor.attach_devices(vm.id, &devices).await;
    attached.map_err(|e| Failure::hypervisor(step, &e))?;
    hold::point("gpu-attached").await;
    let mut tx = manager.store.write().await.map_err(on_store)?;
    leases::set_state(&mut tx, vm.id, LeaseState::Attached, Timestamp::now()).await.map_err(on_store)?;
    commit(tx).await.map_err(on_store)
}
