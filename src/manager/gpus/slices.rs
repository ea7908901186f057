//! vGPUs of one machine: made before it starts, taken away when it is off.
//!
//! A virtual function is used again and again, so each step asks first whose it is: by the lease, by who has it open, and
//! by the type that it has. What is somebody else's is left alone.

use jiff::Timestamp;

use super::super::steps::{Done, Failure};
use super::super::{Manager, Result, error};
use super::steps::{GivenBack, last, transient, why, withhold, withhold_stuck};
use super::{Seen, instances, shape};
use crate::gpu::BindError;
use crate::model::card::function::FunctionState;
use crate::model::card::vgpu::{MadeVgpu, VgpuJob, VgpuSite};
use crate::model::gpu::{GpuId, GpuLease, Partition, VgpuTypeName};
use crate::model::id::VmId;
use crate::model::inventory::{KnownGpu, Withheld};
use crate::model::vm::Vm;
use crate::plan::inventory::Entry;
use crate::store::gpus::Decision;
use crate::store::{self, Write, commit, gpus, leases, vms};

/// True where a function carries what the partition wants of it. A type that nobody can name is taken for it: only a
/// lease of ours has it made.
pub(super) fn is_made(partition: &Partition, states: &[FunctionState]) -> bool {
    let Some((site, name)) = partition.vgpu() else { return true };
    let state = states.iter().find(|state| state.address == site.parent);
    state.is_some_and(|state| state.vgpus.iter().any(|made| is_it(made, site, name)))
}

fn is_it(made: &MadeVgpu, site: VgpuSite, name: &VgpuTypeName) -> bool {
    made.uuid == site.uuid && made.name.as_ref().is_none_or(|other| other == name)
}

/// Makes one vGPU of a machine that is off.
pub(super) async fn ensure_made(
    manager: &Manager,
    vm: &Vm,
    seen: &Seen,
    partition: &Partition,
    step: &'static str,
) -> Done {
    let Partition::Vgpu { gpu, bdf, site, name, .. } = partition else { return Ok(()) };
    let gone = || last(step, format!("GPU {gpu} is no longer at {bdf}; start the VM again to be given a vGPU anew"));
    let (row, card) = seen.card(gpu).filter(|(_, card)| card.address == *bdf).ok_or_else(gone)?;
    if let Some(withheld) = &row.withheld {
        return Err(last(step, format!("GPU {bdf} is out of service: {}", why(withheld))));
    }
    manager.watch.tell(vm, "gpu", format!("making {name} on {} at {}", card.model, site.parent));
    let _hands = manager.gpus.hands_on(gpu).await;
    // A last time that it is this machine's, with nobody else at the card.
    let leases = manager.store.leases_of(vm.id).await.map_err(|e| Failure::store(step, &e))?;
    if !leases.iter().any(|lease| lease.partition == *partition) {
        return Err(transient(step, format!("the lease of {name} at {} has ended", site.parent)));
    }
    instances::ensure(manager, partition, step).await?;
    match manager.gpus.backend.vgpu(&VgpuJob::Make { site: *site, name: name.clone() }).await {
        Ok(()) => {
            if let Err(e) = instances::note_slice(manager, vm, partition).await {
                tracing::warn!(%gpu, error = %error::chain(&e), "cannot note on which MIG instance a vGPU is");
            }
            Ok(())
        }
        Err(BindError::Stuck(why)) => {
            withhold_stuck(manager, gpu, &why).await.map_err(|e| Failure::store(step, &e))?;
            Err(last(step, format!("GPU {bdf} is stuck: {why}. Start the VM again to be given another card")))
        }
        Err(BindError::Transient(why)) => Err(transient(step, format!("{name} at {}: {why}", site.parent))),
        Err(BindError::Refused(why) | BindError::Failed(why)) => {
            Err(Failure::new(step, format!("{name} cannot be made: {why}")))
        }
    }
}

/// Takes away the vGPUs that a machine held and is not to have any more, and ends their leases.
pub(super) async fn end_left(manager: &Manager, vm: &Vm, step: &'static str) -> Done {
    let on_store = |error| Failure::store(step, &error);
    let mut tx = manager.store.write().await.map_err(on_store)?;
    let leases = left(&mut tx, vm.id).await.map_err(on_store)?;
    let rows = gpus::read(&mut tx).await.map_err(on_store)?;
    drop(tx);
    for lease in leases {
        let gpu = lease.partition.gpu();
        let _hands = manager.gpus.hands_on(gpu).await;
        // What hangs in the kernel is gone with the next restart of the host.
        let is_stuck = |row: &&KnownGpu| matches!(row.withheld, Some(Withheld::Stuck { .. }));
        if let Some(row) = rows.iter().find(|row| row.id == *gpu).filter(|row| !is_stuck(row)) {
            match take_away(manager, row, &lease.partition).await.map_err(|why| transient(step, why))? {
                GivenBack::Well => {}
                GivenBack::Withheld(withheld) => withhold(manager, gpu, withheld).await.map_err(on_store)?,
            }
        }
        let mut tx = manager.store.write().await.map_err(on_store)?;
        // Its owner may have changed his mind meanwhile.
        if left(&mut tx, vm.id).await.map_err(on_store)?.iter().any(|other| other.id == lease.id) {
            leases::release_one(&mut tx, lease.id, Timestamp::now()).await.map_err(on_store)?;
        }
        commit(tx).await.map_err(on_store)?;
    }
    Ok(())
}

/// Leases of a machine that its placement knows nothing of any more.
async fn left(tx: &mut Write, vm: VmId) -> store::Result<Vec<GpuLease>> {
    let Some(row) = vms::read(tx, vm).await? else { return Ok(Vec::new()) };
    let mut leases = leases::read(tx).await?;
    leases.retain(|lease| lease.vm == vm && !row.placement.gpus.contains(&lease.partition));
    Ok(leases)
}

/// Takes away a vGPU that no machine uses any more, and the MIG instance behind it; an error means: again later. The
/// caller has the card's lock.
pub(super) async fn take_away(
    manager: &Manager,
    row: &KnownGpu,
    partition: &Partition,
) -> std::result::Result<GivenBack, String> {
    let Some((site, name)) = partition.vgpu() else { return Ok(GivenBack::Well) };
    let backend = &manager.gpus.backend;
    let states = backend.functions(&[site.parent]).await.map_err(|e| e.to_string())?;
    let Some(state) = states.first().filter(|state| state.is_there) else { return Ok(GivenBack::Well) };
    let is_open = match site.uuid {
        // Others of its parent may be in use.
        Some(uuid) => state.open_mdevs.contains(&uuid),
        None => state.is_open == Some(true),
    };
    if is_open {
        return Err(format!("somebody still has {site} open"));
    }
    // Another's by now, or gone with a restart of the host.
    if !state.vgpus.iter().any(|made| is_it(made, site, name)) {
        return Ok(GivenBack::Well);
    }
    let at = Timestamp::now();
    let instance = match partition.slice() {
        None => None,
        Some(_) => {
            let seen = manager.look_at_gpus().await.map_err(|e| e.to_string())?;
            seen.card(&row.id).and_then(|(_, card)| instances::behind(card, site, &shape::functions(&seen, card)))
        }
    };
    if let Some(instance) = instance {
        instances::mark(manager, row, instance).await.map_err(|e| error::chain(&e))?;
    }
    let removed = match backend.vgpu(&VgpuJob::Remove { site, name: name.clone() }).await {
        Ok(()) => match instance {
            Some(instance) => instances::end(manager, row, instance).await,
            None => Ok(()),
        },
        Err(error) => Err(error),
    };
    match removed {
        Ok(()) => Ok(GivenBack::Well),
        Err(BindError::Transient(why) | BindError::Refused(why)) => Err(why),
        Err(BindError::Stuck(why)) => {
            Ok(GivenBack::Withheld(Withheld::Stuck { why, at, boot_id: manager.host().boot_id }))
        }
        Err(BindError::Failed(why)) => {
            change_left(manager, &row.id, |left| left.push((site, name.clone())))
                .await
                .map_err(|e| error::chain(&e))?;
            let why = format!("a vGPU was not taken away after its VM was done: {why}");
            Ok(GivenBack::Withheld(Withheld::Quarantined { why, at }))
        }
    }
}

/// Changes what is written down as left on a card.
async fn change_left(
    manager: &Manager,
    gpu: &GpuId,
    change: impl FnOnce(&mut Vec<(VgpuSite, VgpuTypeName)>),
) -> store::Result<()> {
    let mut tx = manager.store.write().await?;
    let row = gpus::read(&mut tx).await?.into_iter().find(|row| row.id == *gpu);
    let mut history = row.map(|row| row.history).unwrap_or_default();
    change(&mut history.left);
    history.left.dedup();
    gpus::decide(&mut tx, gpu, &Decision::History(Box::new(history))).await?;
    commit(tx).await
}

impl Manager {
    /// Takes away what an earlier try left of machines that are gone, on a card that is in service again.
    pub(super) async fn tidy_left(&self, entry: &Entry) -> Result<()> {
        let has_left = |row: &KnownGpu| !row.history.left.is_empty();
        if !entry.known.as_ref().is_some_and(has_left) {
            return Ok(());
        }
        let Some(_hands) = self.gpus.free_hands_on(&entry.id) else { return Ok(()) };
        let rows = self.store.gpus().await?;
        let is_it = |row: &KnownGpu| row.id == entry.id && row.withheld.is_none();
        let Some(row) = rows.into_iter().find(is_it) else { return Ok(()) };
        for (site, name) in row.history.left.clone() {
            let leases = self.store.leases().await?;
            let is_leased = leases.iter().any(|lease| lease.partition.vgpu().is_some_and(|(other, _)| other == site));
            let gpu = row.id.clone();
            let partition = Partition::Vgpu {
                gpu,
                bdf: row.identity.address,
                site,
                name: name.clone(),
                numa_node: None,
                slice: None,
            };
            change_left(self, &row.id, |left| left.retain(|other| *other != (site, name.clone()))).await?;
            let end = if is_leased { Ok(GivenBack::Well) } else { take_away(self, &row, &partition).await };
            match end {
                Ok(GivenBack::Well) => {}
                Ok(GivenBack::Withheld(withheld)) => withhold(self, &row.id, withheld).await?,
                Err(why) => {
                    tracing::warn!(gpu = %row.id, %site, %why, "a vGPU that is left is taken away later");
                    change_left(self, &row.id, |left| left.push((site, name))).await?;
                }
            }
        }
        Ok(())
    }
}
