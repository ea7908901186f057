//! The two steps of a machine that touch cards: take them before it starts, give them back when it is off.
//!
//! What must be put back is in the store before anything is touched, and a lease ends only when the card was seen to be
//! free and to answer. A card that does not come through that is kept out of use; its machine is not held up by it.

use std::collections::HashMap;

use jiff::Timestamp;

use super::super::steps::{Done, Failure};
use super::super::{Manager, hold};
use super::{health, sanitise, slices};
use crate::gpu::BindError;
use crate::host::{HostRoot, facts};
use crate::model::card::Card;
use crate::model::card::function::{FunctionState, Restore};
use crate::model::gpu::{GpuId, GpuLease, LeaseState, Partition};
use crate::model::inventory::{KnownGpu, Withheld};
use crate::model::pci::PciAddress;
use crate::model::state::Observed;
use crate::model::units::Mib;
use crate::model::vm::Vm;
use crate::plan::inventory::{functions, functions_of, obstacles};
use crate::plan::vm::GpuFacts;
use crate::plan::{pages, place};
use crate::store::gpus::Decision;
use crate::store::{commit, gpus, leases, vms};

/// Where a machine stands with its cards; an error says why that is not known.
pub(in crate::manager) async fn standing(manager: &Manager, vm: &Vm, observed: &Observed) -> Result<GpuFacts, String> {
    let leases = manager.store.leases_of(vm.id).await.map_err(|e| super::super::error::chain(&e))?;
    if leases.is_empty() {
        return Ok(GpuFacts::NoLease);
    }
    if let Observed::Defined(domain) = observed
        && observed.is_active()
    {
        let mut devices = leases.iter().flat_map(|lease| lease.partition.devices());
        let has_all = devices.all(|device| domain.hostdevs.contains(&device.to_string()));
        match leases.iter().all(|lease| lease.state == LeaseState::Attached) {
            true if has_all => return Ok(GpuFacts::Attached),
            _ if has_all => return Ok(GpuFacts::Bound),
            // A card that cannot be looked at must not keep a machine from being stopped.
            _ if !vm.desired.is_up() => return Ok(GpuFacts::Bound),
            _ => {}
        }
    }
    let is_left = |lease: &GpuLease| !vm.placement.gpus.contains(&lease.partition);
    if leases.iter().any(|lease| lease.state == LeaseState::Sanitising || is_left(lease)) {
        // What of them is still bound is not worth a look: taking them is repeatable.
        return Ok(GpuFacts::NotBound);
    }
    // Of a mediated device that is the one that carries it.
    let functions = |lease: &GpuLease| match lease.partition.vgpu() {
        Some((site, _)) => vec![site.parent],
        None => lease.partition.functions(),
    };
    let mut functions: Vec<PciAddress> = leases.iter().flat_map(functions).collect();
    functions.sort_unstable();
    functions.dedup();
    let states = manager.gpus.backend.functions(&functions).await.map_err(|e| e.to_string())?;
    let is_taken = |partition: &Partition| match partition {
        Partition::Vgpu { .. } => slices::is_made(partition, &states),
        _ => partition.functions().iter().all(|function| is_vfio(&states, *function)),
    };
    let is_bound = !states.is_empty() && leases.iter().all(|lease| is_taken(&lease.partition));
    Ok(if is_bound { GpuFacts::Bound } else { GpuFacts::NotBound })
}

fn is_vfio(states: &[FunctionState], function: PciAddress) -> bool {
    states.iter().any(|state| state.address == function && state.is_vfio)
}

pub(super) fn transient(step: &'static str, message: impl Into<String>) -> Failure {
    Failure { is_transient: true, ..Failure::new(step, message) }
}

pub(super) fn last(step: &'static str, message: impl Into<String>) -> Failure {
    Failure { is_final: true, ..Failure::new(step, message) }
}

/// Takes the cards of a machine that is off, or into which they are to be plugged: everything is checked first, then
/// recorded, then done.
pub(in crate::manager) async fn ensure_bound(manager: &Manager, vm: &Vm, step: &'static str) -> Done {
    slices::end_left(manager, vm, step).await?;
    if vm.spec.gpus.is_empty() {
        return Ok(());
    }
    let leases = manager.store.leases_of(vm.id).await.map_err(|e| Failure::store(step, &e))?;
    if leases.is_empty() {
        return Err(last(step, "it holds no GPU any more; start it again to be given one"));
    }
    if !manager.gpus.are_restored() {
        return Err(transient(step, "the GPUs are being divided again after the start of the host"));
    }
    let seen = manager.look_at_gpus().await.map_err(|e| transient(step, e.to_string()))?;
    let mates = functions(seen.entries.iter().filter_map(|entry| entry.card.as_ref()));
    let mut cards: Vec<(&Partition, &Card)> = Vec::new();
    for partition in &vm.placement.gpus {
        let (gpu, bdf, siblings) = match partition {
            Partition::Whole { gpu, bdf, siblings, .. } => (gpu, bdf, siblings),
            Partition::Vgpu { .. } => continue,
        };
        let (row, card) = seen.card(gpu).ok_or_else(|| last(step, gone(&seen.entries, gpu, *bdf)))?;
        if card.address != *bdf {
            let message = format!(
                "GPU {gpu} was at {bdf} and is at {} now: cards were added or moved; start the VM again to be given one anew",
                card.address
            );
            return Err(last(step, message));
        }
        if let Some(withheld) = &row.withheld {
            return Err(last(step, format!("GPU {bdf} is out of service: {}", why(withheld))));
        }
        if let Some(why) = crate::plan::health::refusal(row, card) {
            return Err(last(
                step,
                format!("GPU {bdf} is out of service: {why}. Start the VM again to be given another"),
            ));
        }
        let obstacles = obstacles(card, &mates, Some(&vm.domain_name()));
        if !obstacles.is_empty() {
            return Err(Failure::new(step, format!("GPU {bdf} cannot be taken: {}", obstacles.join("; "))));
        }
        if card.siblings() != *siblings {
            return Err(last(step, format!("the functions of GPU {bdf} are others than when it was given to the VM")));
        }
        cards.push((partition, card));
    }
    for partition in vm.placement.gpus.iter().filter(|partition| partition.vgpu().is_some()) {
        let refusal = seen.card(partition.gpu()).and_then(|(row, card)| crate::plan::health::refusal(row, card));
        if let Some(why) = refusal {
            let message =
                format!("GPU {} is out of service: {why}. Start the VM again to be given another", partition.gpu());
            return Err(last(step, message));
        }
        slices::ensure_made(manager, vm, &seen, partition, step).await?;
        hold::point("vgpu-made").await;
    }
    for (partition, card) in cards {
        manager.watch.tell(vm, "gpu", format!("taking {} at {} from the host", card.model, card.address));
        let _hands = manager.gpus.hands_on(partition.gpu()).await;
        record_former(manager, vm, partition.gpu(), card, step).await?;
        hold::point("gpu-recorded").await;
        bind(manager, partition.gpu(), card, step).await?;
    }
    let on_store = |error| Failure::store(step, &error);
    // The memory of a machine that runs is what it is.
    let huge_page = if vm.started_at.is_some() { None } else { Some(huge_page(vm).await) };
    let mut tx = manager.store.write().await.map_err(on_store)?;
    // A lease that was about to end is one to be used again.
    leases::set_state(&mut tx, vm.id, LeaseState::Claimed, Timestamp::now()).await.map_err(on_store)?;
    if let (Some(mut fresh), Some(huge_page)) = (vms::read(&mut tx, vm.id).await.map_err(on_store)?, huge_page)
        && fresh.placement.huge_page != huge_page
    {
        // Only now is it known what the pools have; the definition follows from the row.
        fresh.placement.huge_page = huge_page;
        vms::update(&mut tx, &fresh).await.map_err(on_store)?;
    }
    commit(tx).await.map_err(on_store)
}

/// Pages for the machine's memory, as the pools stand now.
async fn huge_page(vm: &Vm) -> Option<Mib> {
    let node = place::numa_node(&vm.placement.gpus);
    let memory = vm.spec.memory;
    let looked =
        tokio::task::spawn_blocking(move || pages::pick(&facts::huge_pools(&HostRoot::default()), node, memory));
    looked.await.ok().flatten()
}

/// Refuses what the host has not the memory for: a device pins all of the machine's memory at once, and the host would go
/// down. `resident` is what it has of it already.
pub(in crate::manager) async fn must_have_memory(vm: &Vm, resident: Mib, step: &'static str) -> Done {
    if vm.placement.gpus.is_empty() || vm.placement.huge_page.is_some() {
        return Ok(());
    }
    let looked = tokio::task::spawn_blocking(|| facts::memory(&HostRoot::default())).await;
    match looked {
        Ok((total, available)) if total.0 > 0 && available.0.saturating_add(resident.0) < vm.spec.memory.0 => {
            let memory = vm.spec.memory;
            let has = if resident.0 > 0 { format!(" ({resident} in use)") } else { String::new() };
            Err(Failure::new(
                step,
                format!(
                    "a GPU pins all of a VM's memory at once: it has {memory}{has}, and the host has {available} available of {total}"
                ),
            ))
        }
        _ => Ok(()),
    }
}

/// A card that is not where it was.
fn gone(entries: &[crate::plan::inventory::Entry], gpu: &GpuId, bdf: PciAddress) -> String {
    use crate::model::card::identity::Whereabouts;
    let entry = entries.iter().find(|entry| entry.id == *gpu);
    match entry.and_then(|entry| entry.whereabouts.as_ref()) {
        Some(Whereabouts::Moved { to }) => format!(
            "GPU {gpu} is no longer at {bdf}; the one card like it is at {to}. Start the VM again to be given a card anew"
        ),
        _ => format!("GPU {gpu} is no longer at {bdf}; start the VM again to be given a card anew"),
    }
}

pub(super) fn why(withheld: &Withheld) -> &str {
    match withheld {
        Withheld::Quarantined { why, .. } | Withheld::Stuck { why, .. } => why,
    }
}

/// What must be put back, before anything is touched; and a last time that the card is this machine's.
async fn record_former(manager: &Manager, vm: &Vm, gpu: &GpuId, card: &Card, step: &'static str) -> Done {
    let on_store = |error| Failure::store(step, &error);
    let states = manager.gpus.backend.functions(&functions_of(card)).await;
    let states = states.map_err(|e| transient(step, e.to_string()))?;
    let mut tx = manager.store.write().await.map_err(on_store)?;
    let leases = leases::read(&mut tx).await.map_err(on_store)?;
    if !leases.iter().any(|lease| lease.vm == vm.id && lease.partition.gpu() == gpu) {
        return Err(transient(step, format!("the lease of GPU {} has ended", card.address)));
    }
    add_former(&mut tx, gpu, &states).await.map_err(on_store)?;
    sanitise::mark_used(&mut tx, gpu, vm.id).await.map_err(on_store)?;
    commit(tx).await.map_err(on_store)
}

/// Adds to what must be put back; what is recorded already stays, as it is from before the first touch.
pub(super) async fn add_former(
    tx: &mut crate::store::Write,
    gpu: &GpuId,
    states: &[FunctionState],
) -> crate::store::Result<()> {
    let rows = gpus::read(tx).await?;
    let mut former = rows.into_iter().find(|row| row.id == *gpu).map(|row| row.former).unwrap_or_default();
    for state in states.iter().filter(|state| !state.is_vfio) {
        if !former.iter().any(|known| known.address == state.address) {
            former.push(Restore { address: state.address, driver: state.driver.clone() });
        }
    }
    gpus::decide(tx, gpu, &Decision::Former(former)).await.map(|_| ())
}

async fn bind(manager: &Manager, gpu: &GpuId, card: &Card, step: &'static str) -> Done {
    let functions = functions_of(card);
    let address = card.address;
    match manager.gpus.backend.bind(&functions).await {
        Ok(()) => {}
        Err(BindError::Stuck(why)) => {
            withhold_stuck(manager, gpu, &why).await.map_err(|e| Failure::store(step, &e))?;
            let message = format!("GPU {address} is stuck: {why}. Start the VM again to be given another card");
            return Err(last(step, message));
        }
        Err(BindError::Transient(why)) => return Err(transient(step, format!("GPU {address}: {why}"))),
        Err(BindError::Refused(why) | BindError::Failed(why)) => {
            return Err(Failure::new(step, format!("GPU {address} cannot be taken: {why}")));
        }
    }
    let states = manager.gpus.backend.functions(&functions).await.map_err(|e| transient(step, e.to_string()))?;
    for state in &states {
        let is_same = state.address != address || state.ids == Some(card.ids);
        if let Err(why) = &state.answers {
            return Err(Failure::new(step, format!("GPU {}: {why}", state.address)));
        }
        if !state.is_vfio || !is_same {
            return Err(Failure::new(step, format!("GPU {} is not with VFIO after it was taken", state.address)));
        }
    }
    Ok(())
}

pub(super) async fn withhold_stuck(manager: &Manager, gpu: &GpuId, why: &str) -> crate::store::Result<()> {
    let boot_id = manager.host().boot_id;
    let withheld = Withheld::Stuck { why: why.to_owned(), at: Timestamp::now(), boot_id };
    withhold(manager, gpu, withheld).await
}

pub(super) async fn withhold(manager: &Manager, gpu: &GpuId, withheld: Withheld) -> crate::store::Result<()> {
    let mut tx = manager.store.write().await?;
    let Some(row) = gpus::read(&mut tx).await?.into_iter().find(|row| row.id == *gpu) else { return Ok(()) };
    health::take_out(&mut tx, &row, None, withheld).await?;
    commit(tx).await
}

/// How the giving back of a card ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GivenBack {
    /// As it was, and it answers.
    Well,
    /// Something is wrong with it.
    Withheld(Withheld),
}

/// Checks a card that no machine uses any more and gives it back to the drivers it had; an error means: again later.
pub(super) async fn give_back(
    manager: &Manager,
    row: &KnownGpu,
    functions: &[PciAddress],
) -> Result<GivenBack, String> {
    let backend = &manager.gpus.backend;
    let quarantined = |why: String| GivenBack::Withheld(Withheld::Quarantined { why, at: Timestamp::now() });
    let states = backend.functions(functions).await.map_err(|e| e.to_string())?;
    if let Some(open) = states.iter().find(|state| state.is_open == Some(true)) {
        return Err(format!("somebody still has {} open", open.address));
    }
    if let Some(withheld) = sanitise::ensure(manager, &row.id, &states).await? {
        return Ok(GivenBack::Withheld(withheld));
    }
    let is_there = |address: PciAddress| states.iter().any(|state| state.address == address && state.is_there);
    let wanted: Vec<Restore> = row.former.iter().filter(|former| is_there(former.address)).cloned().collect();
    if !row.is_kept && !wanted.is_empty() {
        match backend.restore(&wanted).await {
            Ok(()) => {}
            Err(BindError::Transient(why) | BindError::Refused(why)) => return Err(why),
            Err(BindError::Stuck(why)) => {
                let (at, boot_id) = (Timestamp::now(), manager.host().boot_id);
                return Ok(GivenBack::Withheld(Withheld::Stuck { why, at, boot_id }));
            }
            Err(BindError::Failed(why)) => {
                return Ok(quarantined(format!("it was not given back to the driver it had: {why}")));
            }
        }
    }
    let states = backend.functions(functions).await.map_err(|e| e.to_string())?;
    // A card that was pulled out is told by the look; there is nothing to be kept out of use.
    let faults = states.iter().filter(|state| state.is_there).filter_map(|state| {
        let why = state.answers.as_ref().err()?;
        Some(format!("no answer after its VM was done: {} {why}", state.address))
    });
    Ok(faults.into_iter().next().map_or(GivenBack::Well, quarantined))
}

/// Ends the leases of a machine that is off.
pub(in crate::manager) async fn release(manager: &Manager, vm: &Vm, step: &'static str) -> Done {
    let on_store = |error| Failure::store(step, &error);
    let mut tx = manager.store.write().await.map_err(on_store)?;
    leases::set_state(&mut tx, vm.id, LeaseState::Sanitising, Timestamp::now()).await.map_err(on_store)?;
    let rows: HashMap<GpuId, KnownGpu> =
        gpus::read(&mut tx).await.map_err(on_store)?.into_iter().map(|row| (row.id.clone(), row)).collect();
    commit(tx).await.map_err(on_store)?;
    hold::point("gpu-sanitising").await;
    let mut ends: Vec<(GpuId, GivenBack)> = Vec::new();
    for lease in manager.store.leases_of(vm.id).await.map_err(on_store)? {
        let (gpu, address) = (lease.partition.gpu(), lease.partition.address());
        let Some(row) = rows.get(gpu) else { continue };
        if matches!(row.withheld, Some(Withheld::Stuck { .. })) {
            continue;
        }
        manager.watch.tell(vm, "gpu", format!("giving {} at {address} back", row.model));
        let functions = lease.partition.functions();
        let _hands = manager.gpus.hands_on(gpu).await;
        let end = match lease.partition.vgpu() {
            Some(_) => slices::take_away(manager, row, &lease.partition).await,
            None => give_back(manager, row, &functions).await,
        };
        let end = end.map_err(|why| transient(step, why))?;
        ends.push((gpu.clone(), end));
    }
    hold::point("gpu-given-back").await;
    finish_release(manager, vm, &ends).await.map_err(on_store)?;
    // Whoever waits for a card learns of it by the next look.
    let _ = manager.look_at_gpus().await;
    Ok(())
}

async fn finish_release(manager: &Manager, vm: &Vm, ends: &[(GpuId, GivenBack)]) -> crate::store::Result<()> {
    let mut tx = manager.store.write().await?;
    let Some(mut fresh) = vms::read(&mut tx, vm.id).await? else { return Ok(()) };
    let known = gpus::read(&mut tx).await?;
    let held = leases::read(&mut tx).await?;
    for (gpu, end) in ends {
        let Some(row) = known.iter().find(|row| row.id == *gpu) else { continue };
        // Its lease ended meanwhile, and what is written down of the card may be of whoever has it by now.
        let ours = held.iter().find(|lease| lease.vm == vm.id && lease.partition.gpu() == gpu);
        if ours.is_some_and(|lease| lease.partition.vgpu().is_some()) {
            sanitise::record_slice(&mut tx, row, vm.id, end).await?;
        }
        match end {
            GivenBack::Well if row.is_kept || ours.is_none() => {}
            GivenBack::Well => {
                gpus::decide(&mut tx, gpu, &Decision::Former(Vec::new())).await?;
            }
            GivenBack::Withheld(withheld) => {
                manager.watch.tell(vm, "gpu", format!("GPU {gpu} is kept out of use: {}", why(withheld)));
                health::take_out(&mut tx, row, Some(vm.id), withheld.clone()).await?;
            }
        }
    }
    // Wanted again meanwhile: the leases stay, and the cards are taken anew.
    if fresh.desired.is_up() {
        leases::set_state(&mut tx, vm.id, LeaseState::Claimed, Timestamp::now()).await?;
        let again = fresh.placement.gpus.iter().filter(|partition| partition.vgpu().is_none());
        for partition in again {
            sanitise::mark_used(&mut tx, partition.gpu(), vm.id).await?;
        }
    } else {
        leases::release(&mut tx, vm.id, Timestamp::now()).await?;
        fresh.placement.gpus.clear();
        vms::update(&mut tx, &fresh).await?;
    }
    commit(tx).await
}
