//! MIG instances behind vGPUs of machines: made when there is no idle one, and gone with the machine.
//!
//! Every instance that gvm makes is written down before. The driver puts a vGPU on any idle instance of its profile, so what
//! a vGPU stands on is read back, and what is gvm's is known by where it lies.

use super::super::steps::{Done, Failure};
use super::super::{Manager, Result, error, hold};
use super::shape::functions;
use super::steps::{last, transient, withhold_stuck};
use crate::gpu::BindError;
use crate::model::card::shape::ShapeJob;
use crate::model::card::vgpu::VgpuSite;
use crate::model::card::{Card, MadeInstance};
use crate::model::gpu::mig::Instance;
use crate::model::gpu::{GpuId, GpuLease, Partition};
use crate::model::inventory::{KnownGpu, Shape};
use crate::model::pci::PciAddress;
use crate::model::vm::Vm;
use crate::plan::inventory::Entry;
use crate::plan::shape::user_of;
use crate::store::gpus::Decision;
use crate::store::{commit, gpus, leases, read_meta, vms, write_meta};

/// Sees to an idle instance for a machine's vGPU; the caller has the card's lock.
pub(super) async fn ensure(manager: &Manager, partition: &Partition, step: &'static str) -> Done {
    let (Partition::Vgpu { gpu, bdf, .. }, Some(wanted)) = (partition, partition.slice()) else { return Ok(()) };
    // Anew, with nobody of ours at the card: what was seen before the lock may have been ended since.
    let seen = manager.look_at_gpus().await.map_err(|e| transient(step, e.to_string()))?;
    let Some((row, card)) = seen.card(gpu) else { return Err(last(step, format!("GPU {gpu} is gone"))) };
    if card.nvml.is_none() {
        return Err(transient(step, format!("NVML does not say what MIG instances GPU {bdf} has")));
    }
    let Some(mig) = card.mig().filter(|mig| mig.is_on) else {
        return Err(last(step, format!("MIG is off on GPU {bdf}; start the VM again to be given another")));
    };
    let vfs = functions(&seen, card);
    // An earlier try came further.
    if partition.vgpu().is_some_and(|(site, _)| has_vgpu(card, site, &vfs)) {
        return Ok(());
    }
    let leases = manager.store.leases().await.map_err(|e| Failure::store(step, &e))?;
    // As the planner counts: the driver takes any idle instance of the profile, and each that waits is to have one.
    let waits = |lease: &&GpuLease| {
        let is_its = |slice: Instance| slice.profile == wanted.profile;
        let site = lease.partition.vgpu().map(|(site, _)| site);
        lease.partition.gpu() == gpu
            && lease.partition.slice().is_some_and(is_its)
            && site.is_some_and(|site| !has_vgpu(card, site, &vfs))
    };
    let waiting = leases.iter().filter(waits).count();
    let is_idle = |made: &&MadeInstance| {
        made.instance.profile == wanted.profile && made.compute_instances > 0 && user_of(&vfs, card, made).is_none()
    };
    let idle: Vec<&MadeInstance> = mig.instances.iter().filter(is_idle).collect();
    if idle.iter().any(|made| made.instance == wanted) || idle.len() >= waiting.max(1) {
        return Ok(());
    }
    // What is there and not idle is not gvm's for having been asked for; one that lacks its half is, where a crash left it.
    let is_half_made = |made: &MadeInstance| {
        made.instance == wanted && made.compute_instances == 0 && row.own_instances.contains(&wanted)
    };
    let is_in_its_place = |made: &&MadeInstance| {
        let (one, other) = (made.instance.placement, wanted.placement);
        one.start < other.start + other.size && other.start < one.start + one.size && !is_half_made(made)
    };
    if let Some(other) = mig.instances.iter().find(is_in_its_place) {
        let who = user_of(&vfs, card, other).unwrap_or_else(|| format!("the MIG instance {} is there", other.instance));
        return Err(Failure::new(
            step,
            format!("{wanted} cannot be made on GPU {bdf}: {who}. Start the VM again to be given another"),
        ));
    }
    change_own(manager, &row.id, |own| add(own, wanted)).await.map_err(|e| Failure::store(step, &e))?;
    hold::point("mig-recorded").await;
    match manager.gpus.backend.reshape(&ShapeJob::MakeInstance { card: *bdf, instance: wanted }).await {
        Ok(()) => {}
        Err(BindError::Stuck(why)) => {
            withhold_stuck(manager, gpu, &why).await.map_err(|e| Failure::store(step, &e))?;
            return Err(last(step, format!("GPU {bdf} is stuck: {why}. Start the VM again to be given another card")));
        }
        Err(BindError::Transient(why)) => return Err(transient(step, format!("{wanted} on GPU {bdf}: {why}"))),
        Err(BindError::Refused(why) | BindError::Failed(why)) => {
            return Err(Failure::new(step, format!("{wanted} cannot be made on GPU {bdf}: {why}")));
        }
    }
    hold::point("mig-made").await;
    Ok(())
}

/// Name of the value that says of which boot the instances are that are written down.
const BOOT: &str = "mig-instances-boot";

fn add(own: &mut Vec<Instance>, instance: Instance) {
    if !own.contains(&instance) {
        own.push(instance);
    }
}

/// Changes what is written down as gvm's; the caller has the card's lock.
async fn change_own(
    manager: &Manager,
    gpu: &GpuId,
    change: impl FnOnce(&mut Vec<Instance>),
) -> crate::store::Result<()> {
    let mut tx = manager.store.write().await?;
    let fresh = gpus::read(&mut tx).await?.into_iter().find(|fresh| fresh.id == *gpu);
    let before = fresh.map(|fresh| fresh.own_instances).unwrap_or_default();
    let mut own = before.clone();
    change(&mut own);
    if own != before {
        gpus::decide(&mut tx, gpu, &Decision::OwnInstances(own)).await?;
    }
    commit(tx).await
}

/// What a vGPU stands on is what its lease counts with from here on: two that count with the same one would both be
/// promised it again after a restart of the host. The caller has the card's lock.
pub(super) async fn note_slice(manager: &Manager, vm: &Vm, partition: &Partition) -> Result<()> {
    let (Partition::Vgpu { gpu, site, .. }, Some(slice)) = (partition, partition.slice()) else { return Ok(()) };
    let seen = manager.look_at_gpus().await?;
    let real = seen.card(gpu).and_then(|(_, card)| behind(card, *site, &functions(&seen, card)));
    let Some(real) = real.filter(|real| *real != slice) else { return Ok(()) };
    let mut now = partition.clone();
    if let Partition::Vgpu { slice, .. } = &mut now {
        *slice = Some(real);
    }
    let mut tx = manager.store.write().await?;
    let leases = leases::read(&mut tx).await?;
    let lease = leases.iter().find(|lease| lease.vm == vm.id && lease.partition == *partition);
    if let (Some(lease), Some(mut row)) = (lease, vms::read(&mut tx, vm.id).await?) {
        leases::set_partition(&mut tx, lease.id, &now).await?;
        row.placement.gpus.iter_mut().filter(|its| *its == partition).for_each(|its| its.clone_from(&now));
        vms::update(&mut tx, &row).await?;
    }
    Ok(commit(tx).await?)
}

/// True where the vGPU of a lease is made, by a look that is fresh.
fn has_vgpu(card: &Card, site: VgpuSite, vfs: &[&Card]) -> bool {
    let mut functions = vfs.iter().copied().chain([card]).filter(|function| function.address == site.parent);
    functions.any(|function| {
        function.vgpu.as_ref().is_some_and(|facts| facts.made.iter().any(|made| made.uuid == site.uuid))
    })
}

/// The instance that a function's vGPU stands on, by a look that is fresh.
pub(super) fn behind(card: &Card, site: VgpuSite, vfs: &[&Card]) -> Option<Instance> {
    let function = vfs.iter().copied().chain([card]).find(|function| function.address == site.parent)?;
    let made = function.vgpu.as_ref()?.made.iter().find(|made| made.uuid == site.uuid)?;
    let is_it = |instance: &&MadeInstance| Some(instance.id) == made.gpu_instance;
    card.mig()?.instances.iter().find(is_it).map(|made| made.instance)
}

/// Before the vGPU on it is taken away: where that is broken off, the next tidying ends an instance of an administrator's
/// layout as it does one that gvm made.
pub(super) async fn mark(manager: &Manager, row: &KnownGpu, instance: Instance) -> crate::store::Result<()> {
    match is_wanted(row, instance) {
        true => change_own(manager, &row.id, |own| add(own, instance)).await,
        false => Ok(()),
    }
}

/// Ends an instance after its vGPU: what gvm made is gone for good, what an administrator wants there is made anew, so that
/// nothing of the last machine is left in it; what others made stays. The caller has the card's lock.
pub(super) async fn end(manager: &Manager, row: &KnownGpu, instance: Instance) -> std::result::Result<(), BindError> {
    let card = row.identity.address;
    let on_store = |e: crate::store::StoreError| BindError::Transient(error::chain(&e));
    let rows = manager.store.gpus().await.map_err(on_store)?;
    if !rows.iter().any(|fresh| fresh.id == row.id && fresh.own_instances.contains(&instance)) {
        return Ok(());
    }
    manager.gpus.backend.reshape(&ShapeJob::RemoveInstance { card, instance }).await?;
    if is_wanted(row, instance) {
        manager.gpus.backend.reshape(&ShapeJob::MakeInstance { card, instance }).await?;
    }
    // Whoever makes one there next is not gvm.
    change_own(manager, &row.id, |own| own.retain(|other| *other != instance)).await.map_err(on_store)
}

/// True where an administrator's layout has this instance.
fn is_wanted(row: &KnownGpu, instance: Instance) -> bool {
    match row.shape.as_ref().map(|shaped| &shaped.shape) {
        Some(Shape::Mig { instances: Some(wanted), .. }) => wanted.contains(&instance),
        _ => false,
    }
}

impl Manager {
    /// After a restart of the host no instance is left of those that gvm made, and whoever has made one at the same place
    /// since, made his own.
    pub(super) async fn forget_instances(&self) {
        let boot_id = self.host().boot_id;
        let forgotten = async {
            let mut tx = self.store.write().await?;
            if read_meta::<String>(&mut tx, BOOT).await?.as_ref() == Some(&boot_id) {
                return Ok(());
            }
            for row in gpus::read(&mut tx).await?.iter().filter(|row| !row.own_instances.is_empty()) {
                gpus::decide(&mut tx, &row.id, &Decision::OwnInstances(Vec::new())).await?;
            }
            write_meta(&mut tx, BOOT, &boot_id).await?;
            commit(tx).await
        };
        if let Err(e) = forgotten.await {
            tracing::error!(error = %error::chain(&e), "cannot forget the MIG instances of before the restart of the host");
        }
    }

    /// Ends instances of a card that gvm made and no machine wants any more: a crash, or a start that failed, left them.
    pub(super) async fn tidy_instances(&self, entry: &Entry) -> Result<()> {
        let has_own = |row: &KnownGpu| !row.own_instances.is_empty();
        if entry.card.is_none() || !entry.known.as_ref().is_some_and(has_own) {
            return Ok(());
        }
        let Some(_hands) = self.gpus.free_hands_on(&entry.id) else { return Ok(()) };
        // Looked at under the card's lock: a machine may have been given one meanwhile.
        let seen = self.look_at_gpus().await?;
        let Some((row, card)) = seen.card(&entry.id).filter(|(row, _)| row.withheld.is_none()) else { return Ok(()) };
        // What NVML fails to tell is not gone.
        let is_told = card.nvml.as_ref().is_some_and(|nvml| nvml.faults.is_empty());
        let Some(mig) = card.mig().filter(|_| is_told) else { return Ok(()) };
        let leases = self.store.leases().await?;
        let own = self.store.gpus().await?.into_iter().find(|row| row.id == entry.id).map(|row| row.own_instances);
        let mut kept = Vec::new();
        for instance in own.unwrap_or_default() {
            let made = mig.instances.iter().find(|made| mig.is_on && made.instance == instance);
            let is_used = made.is_some_and(|made| user_of(&functions(&seen, card), card, made).is_some());
            let is_wanted = is_wanted(row, instance) && mig.is_on;
            if is_used || (made.is_some() || is_wanted) && is_leased(&leases, &entry.id, instance) {
                kept.push(instance);
                continue;
            }
            // One that is not there is made by whoever has the lease, and written down again before.
            match self.end_left_instance(card.address, instance, made.is_some(), is_wanted).await {
                Ok(()) => {}
                Err(BindError::Stuck(why)) => {
                    withhold_stuck(self, &row.id, &why).await?;
                    kept.push(instance);
                }
                Err(e) => {
                    tracing::warn!(gpu = %row.id, %instance, error = %e, "cannot end a MIG instance");
                    kept.push(instance);
                }
            }
        }
        Ok(change_own(self, &row.id, |own| *own = kept).await?)
    }

    /// Ends what a machine left; what an administrator wants there is made anew.
    async fn end_left_instance(
        &self,
        card: PciAddress,
        instance: Instance,
        is_made: bool,
        is_wanted: bool,
    ) -> std::result::Result<(), BindError> {
        if is_made {
            tracing::info!(%card, %instance, "no machine wants this MIG instance: ending it");
            self.gpus.backend.reshape(&ShapeJob::RemoveInstance { card, instance }).await?;
        }
        if is_wanted {
            self.gpus.backend.reshape(&ShapeJob::MakeInstance { card, instance }).await?;
        }
        Ok(())
    }
}

fn is_leased(leases: &[GpuLease], gpu: &GpuId, instance: Instance) -> bool {
    let its = leases.iter().filter(|lease| lease.partition.gpu() == gpu);
    its.filter_map(|lease| lease.partition.slice()).any(|slice| slice == instance)
}
