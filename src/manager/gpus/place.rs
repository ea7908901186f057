//! Admission: chooses cards and claims them, within the transaction that commits the machine's intent.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use uuid::Uuid;

use super::super::{Kind, Manager, ManagerError, Result};
use super::planners::Planners;
use super::{Gpus, Seen, sanitise};
use crate::model::card::Card;
use crate::model::gpu::{GpuDevice, GpuId, GpuLease, GpuRequest, GpuShare, LeaseState, Partition, Service};
use crate::model::id::{LeaseId, UserId, VmId};
use crate::model::inventory::{KnownGpu, Shape};
use crate::model::principal::{Role, User};
use crate::model::state::Observed;
use crate::model::units::Mib;
use crate::model::vm::{Generation, Vm, VmSpec};
use crate::plan::choose::choose;
use crate::plan::inventory::{Entry, Eyes, devices};
use crate::plan::place::{Held, Holder, WhyNot};
use crate::plan::share::share;
use crate::plan::vgpu::{self, Policy, Taken, VgpuHeld, VgpuPool};
use crate::plan::window::{GuestCpu, Window, fits_empty_port};
use crate::store::{Write, gpus, leases, vms};

/// What may be told to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reader {
    pub eyes: Eyes,
    user: Option<UserId>,
}

impl Reader {
    pub fn of(user: Option<&User>) -> Self {
        let is_host = user.is_none_or(|user| user.role >= Role::Operator);
        Self { eyes: if is_host { Eyes::Host } else { Eyes::Member }, user: user.map(|user| user.id) }
    }

    /// True where the one who reads may know of the machine.
    pub fn may_know(&self, vm: &Vm) -> bool {
        self.eyes == Eyes::Host || self.user == Some(vm.owner)
    }
}

/// What was chosen for a machine.
#[derive(Clone, Debug, Default)]
pub(in crate::manager) struct Chosen {
    pub partitions: Vec<Partition>,
    /// How much of its card each is.
    pub shares: Vec<GpuShare>,
    pub mmio64: Option<Mib>,
    /// A guest that runs has no room laid out for them.
    pub is_tight: bool,
}

/// Cards as the planner takes them.
#[derive(Clone, Debug, Default)]
pub(in crate::manager) struct Table {
    pub devices: Vec<GpuDevice>,
    pub held: Held,
    pub pools: Vec<VgpuPool>,
    policy: Policy,
}

impl Table {
    /// From a look, the leases, and those machines whose names may be told.
    pub fn new(
        entries: &[Entry],
        leases: &[GpuLease],
        names: &HashMap<VmId, String>,
        eyes: Eyes,
        gpus: &Gpus,
        boot_id: &str,
    ) -> Self {
        let leased: HashSet<GpuId> = leases.iter().map(|lease| lease.partition.gpu().clone()).collect();
        let holder = |lease: &GpuLease| {
            let holder = Holder { state: lease.state, vm: names.get(&lease.vm).cloned() };
            (lease.partition.gpu().clone(), holder)
        };
        let mut devices = devices(entries, &leased, eyes);
        let mut pools = pools_of(entries, leases, &devices, names, &gpus.planners);
        for row in entries.iter().filter_map(|entry| entry.known.as_ref()) {
            let Some(why) = unsettled(row, gpus.is_reshaping(&row.id), boot_id) else { continue };
            let of_row = pools.iter_mut().find(|pool| pool.gpu == row.id);
            of_row.into_iter().for_each(|pool| pool.blocked = pool.blocked.take().or(Some(why.clone())));
            let of_row = devices.iter_mut().find(|device| device.id == row.id);
            of_row.into_iter().for_each(|device| device.blocked = device.blocked.take().or(Some(why.clone())));
        }
        // Nobody is given all of what is to be divided, even where somebody else has put it together.
        for row in entries.iter().filter_map(|entry| entry.known.as_ref()).filter(|row| row.shape.is_some()) {
            let of_row = devices.iter_mut().find(|device| device.id == row.id && device.blocked.is_none());
            of_row.into_iter().for_each(|device| device.blocked = Some("it is there to be divided".to_owned()));
        }
        Self { devices, held: leases.iter().map(holder).collect(), pools, policy: Policy::default() }
    }

    /// True where a vGPU that is held can be had as it was.
    fn has(&self, partition: &Partition) -> bool {
        let Partition::Vgpu { gpu, site, name, slice, .. } = partition else { return false };
        let is_its = |taken: &Taken| taken.is_ours && taken.name.as_ref().is_none_or(|other| other == name);
        let is_good = |parent: &vgpu::Parent| {
            // A stranger may have taken its place, where there is but one.
            let is_alone = !parent.is_single || parent.taken.len() == 1;
            parent.address == site.parent && parent.fault.is_none() && is_alone && parent.taken.iter().any(is_its)
        };
        let mut pools = self.pools.iter().filter(|pool| pool.gpu == *gpu && pool.blocked.is_none());
        pools.any(|pool| {
            let keeps = match (slice, &pool.mig) {
                (None, None) => true,
                (Some(_), Some(mig)) => mig.keeps(*site),
                (Some(_), None) | (None, Some(_)) => false,
            };
            keeps && pool.parents.iter().any(is_good)
        })
    }

    /// Picks.
    pub fn pick(&self, requests: &[GpuRequest]) -> std::result::Result<Vec<Partition>, WhyNot> {
        choose(requests, &self.devices, &self.held, &self.pools, self.policy, Uuid::now_v7())
    }
}

/// Why nothing of a card may be given away for what it is divided into.
fn unsettled(row: &KnownGpu, is_reshaping: bool, boot_id: &str) -> Option<String> {
    if is_reshaping {
        return Some("it is being divided otherwise just now".to_owned());
    }
    let shaped = row.shape.as_ref().filter(|shaped| shaped.boot_id.as_deref() != Some(boot_id))?;
    let (at, word) = (row.identity.address, shaped.shape.word());
    Some(format!(
        "it is not divided again yet after a restart (an administrator can do that: gvm gpu mode {at} {word})"
    ))
}

/// The cards that are divided into vGPUs. Those that are kept out of use or are not gvm's give nothing away.
fn pools_of(
    entries: &[Entry],
    leases: &[GpuLease],
    devices: &[GpuDevice],
    names: &HashMap<VmId, String>,
    planners: &Planners,
) -> Vec<VgpuPool> {
    let cards: Vec<&Card> = entries.iter().filter_map(|entry| entry.card.as_ref()).collect();
    let held = |lease: &GpuLease| {
        let (site, name) = lease.partition.vgpu()?;
        let (name, slice, vm) = (name.clone(), lease.partition.slice(), names.get(&lease.vm).cloned());
        Some(VgpuHeld { site, name, slice, vm })
    };
    let held: Vec<VgpuHeld> = leases.iter().filter_map(held).collect();
    let id = |card: &Card| {
        let entry = entries.iter().find(|entry| entry.known.is_some() && entry.address() == Some(card.address));
        entry.map_or_else(|| card.id(), |entry| entry.id.clone())
    };
    let mut pools = vgpu::pools(&cards, &held, id, &|geometry| planners.of(geometry));
    for pool in &mut pools {
        let row = entries.iter().find(|entry| entry.id == pool.gpu).and_then(|entry| entry.known.as_ref());
        pool.known = row.map(|row| row.vgpu_types.clone()).unwrap_or_default();
        match row.and_then(|row| row.shape.as_ref()).map(|shaped| &shaped.shape) {
            Some(Shape::Vgpu { types }) => pool.allowed.clone_from(types),
            Some(Shape::Mig { instances, types }) => {
                pool.allowed.clone_from(types);
                pool.mig.iter_mut().for_each(|mig| mig.is_fixed = instances.is_some());
            }
            None => {}
        }
        let Some(device) = devices.iter().find(|device| device.id == pool.gpu) else { continue };
        let is_to_have_mig =
            matches!(row.and_then(|row| row.shape.as_ref()).map(|shaped| &shaped.shape), Some(Shape::Mig { .. }));
        let card = cards.iter().find(|card| card.address == pool.bdf);
        if is_to_have_mig && card.is_some_and(|card| card.nvml.is_none()) {
            pool.blocked =
                pool.blocked.take().or_else(|| Some("NVML does not say what MIG instances it has".to_owned()));
        }
        let why = match &device.service {
            Service::Good | Service::Noted(_) if device.is_foreign => Some("it is not gvm's".to_owned()),
            Service::Good | Service::Noted(_) => None,
            Service::Draining(why) | Service::Quarantined(why) => Some(format!("it is out of service: {why}")),
            Service::Stuck(why) => Some(format!("it is stuck in the kernel until the host restarts: {why}")),
        };
        pool.blocked = pool.blocked.take().or(why);
    }
    pools
}

impl Manager {
    /// The cards of the last look, leases left aside.
    pub(in crate::manager) fn known_devices(&self) -> Vec<GpuDevice> {
        let seen = self.gpus.last_seen();
        seen.map(|seen| devices(&seen.entries, &HashSet::new(), Eyes::Member)).unwrap_or_default()
    }

    /// A look at the cards before an admission, where it asks for some.
    pub(in crate::manager) async fn look_for(&self, requests: &[GpuRequest]) -> Result<Option<Arc<Seen>>> {
        if requests.is_empty() { Ok(None) } else { self.look_at_gpus().await.map(Some) }
    }

    /// The table of an admission under the store's write lock: leases and decisions as they are now.
    pub(in crate::manager) async fn gpu_table(
        &self,
        tx: &mut Write,
        seen: &Seen,
        user: Option<&User>,
    ) -> Result<Table> {
        let reader = Reader::of(user);
        let leases = leases::read(tx).await?;
        let mut names = HashMap::new();
        for vm in leases.iter().map(|lease| lease.vm).collect::<HashSet<_>>() {
            if let Some(vm) = vms::read(tx, vm).await?.filter(|vm| reader.may_know(vm)) {
                names.insert(vm.id, vm.name.to_string());
            }
        }
        let entries = with_decisions(&seen.entries, gpus::read(tx).await?);
        let policy = self.config.gpu.vgpu_policy;
        Ok(Table { policy, ..Table::new(&entries, &leases, &names, reader.eyes, &self.gpus, &self.host().boot_id) })
    }

    /// Cards for a machine that is to run: those it holds where all of them can still be had, else others.
    pub(in crate::manager) async fn renew_gpus(
        &self,
        tx: &mut Write,
        vm: &mut Vm,
        seen: Option<&Seen>,
        user: Option<&User>,
        observed: &Observed,
    ) -> Result<()> {
        let held: Vec<GpuLease> = leases::read(tx).await?.into_iter().filter(|lease| lease.vm == vm.id).collect();
        // Of a request from before, and not given back yet.
        let is_left = held.iter().any(|lease| !vm.placement.gpus.contains(&lease.partition));
        if is_left && !observed.is_off() {
            let message = format!("VM {} has not let go of GPUs that it is not to have any more", vm.name);
            return Err(ManagerError::conflict(message).hint(format!("gvm stop {0} && gvm start {0}", vm.name)));
        }
        if is_left {
            give_up(tx, &held).await?;
        }
        let held = if is_left { Vec::new() } else { held };
        let Some(seen) = seen else { return Ok(()) };
        let table = self.gpu_table(tx, seen, user).await?;
        let is_good = |lease: &GpuLease| {
            let device = table.devices.iter().find(|device| device.id == *lease.partition.gpu());
            let is_there = |device: &GpuDevice| match &lease.partition {
                Partition::Whole { bdf, .. } => *bdf == device.bdf,
                Partition::Vgpu { bdf, .. } => *bdf == device.bdf && table.has(&lease.partition),
            };
            device.is_some_and(|device| is_there(device) && matches!(device.service, Service::Good | Service::Noted(_)))
        };
        let is_up = observed.is_active();
        if !held.is_empty() && (is_up || held.iter().all(is_good)) {
            return Ok(());
        }
        if is_up {
            // Somebody started it by hand, without cards.
            vm.restart_requested = Some(vm.generation);
        }
        give_up(tx, &held).await?;
        let own = sanitise::lend(tx, vm.id).await?;
        let table = self.gpu_table(tx, seen, user).await?;
        let chosen = self.pick_gpus(&table, &vm.spec)?;
        for gpu in &own {
            sanitise::mark_used(tx, gpu, vm.id).await?;
        }
        write_leases(tx, vm.id, vm.generation, &chosen).await?;
        (vm.placement.gpus, vm.placement.mmio64) = (chosen.partitions, chosen.mmio64);
        Ok(())
    }

    /// Refuses a machine that is to stay off and could never have its cards; it is given none before it is to run.
    pub(in crate::manager) async fn could_have_gpus(
        &self,
        tx: &mut Write,
        seen: Option<&Seen>,
        user: Option<&User>,
        spec: &VmSpec,
    ) -> Result<Chosen> {
        match self.choose_gpus(tx, seen, user, spec).await {
            Err(refusal) if refusal.kind != Kind::NoCapacity => Err(refusal),
            Ok(_) | Err(_) => Ok(Chosen::default()),
        }
    }

    /// Chooses cards for a machine that is to run; nothing where it asks for none.
    pub(in crate::manager) async fn choose_gpus(
        &self,
        tx: &mut Write,
        seen: Option<&Seen>,
        user: Option<&User>,
        spec: &VmSpec,
    ) -> Result<Chosen> {
        match seen.filter(|_| !spec.gpus.is_empty()) {
            None => Ok(Chosen::default()),
            Some(seen) => self.pick_gpus(&self.gpu_table(tx, seen, user).await?, spec),
        }
    }

    /// Picks, and counts the room in the guest's address space.
    fn pick_gpus(&self, table: &Table, spec: &VmSpec) -> Result<Chosen> {
        let partitions = table.pick(&spec.gpus).map_err(|why| match self.gpus.are_restored() {
            true => ManagerError::from(why),
            false => ManagerError::unavailable("the GPUs are being divided again after the start of the host")
                .hint("ask again in a minute; `gvm gpu list` says how far it is"),
        })?;
        // The windows of a virtual function are a part of its card's, and small.
        let is_whole = |partition: &&Partition| matches!(partition, Partition::Whole { .. });
        let is_picked =
            |device: &&GpuDevice| partitions.iter().filter(is_whole).any(|partition| *partition.gpu() == device.id);
        let window = Window::of(table.devices.iter().filter(is_picked), spec.memory);
        let is_tight = !table.devices.iter().filter(is_picked).all(fits_empty_port);
        let host = self.host();
        if let (true, Some(bits)) = (host.accelerator.is_kvm(), host.capacity.phys_bits) {
            let cpu = GuestCpu::HostPassthrough { bits };
            window.check(cpu).map_err(|why| ManagerError::invalid(why.to_string()))?;
        }
        let share = |partition| share(partition, &table.devices, &table.pools);
        let shares = partitions.iter().map(share).collect();
        Ok(Chosen { partitions, shares, mmio64: window.mmio64_mib().map(Mib), is_tight })
    }
}

/// Gives up what a machine that is off holds. A card that is still bound is given back by the next tidying: nobody holds
/// it, and what its drivers were is on its own row. Of a vGPU nothing but its lease tells whose it is, so that one stays
/// until the vGPU was taken away.
async fn give_up(tx: &mut Write, held: &[GpuLease]) -> Result<()> {
    for lease in held {
        match lease.partition.vgpu() {
            Some(_) => leases::set_state_of(tx, lease.id, LeaseState::Sanitising, Timestamp::now()).await?,
            None => leases::release_one(tx, lease.id, Timestamp::now()).await?,
        }
    }
    Ok(())
}

/// The entries of a look with what is decided by now.
pub(super) fn with_decisions(entries: &[Entry], known: Vec<KnownGpu>) -> Vec<Entry> {
    let mut known: HashMap<GpuId, _> = known.into_iter().map(|row| (row.id.clone(), row)).collect();
    let fresh = |entry: &Entry| Entry { known: known.remove(&entry.id).or(entry.known.clone()), ..entry.clone() };
    entries.iter().map(fresh).collect()
}

/// Writes the leases of a machine whose row is in the store.
pub(in crate::manager) async fn write_leases(
    tx: &mut Write,
    vm: VmId,
    generation: Generation,
    chosen: &Chosen,
) -> Result<()> {
    for (partition, share) in chosen.partitions.iter().zip(&chosen.shares) {
        let lease = GpuLease {
            id: LeaseId::generate(),
            partition: partition.clone(),
            share: *share,
            vm,
            generation,
            state: LeaseState::Claimed,
        };
        leases::claim(tx, &lease, Timestamp::now()).await?;
        if partition.vgpu().is_none() {
            sanitise::mark_used(tx, partition.gpu(), vm).await?;
        }
    }
    Ok(())
}
