//! What people see of the cards.

use std::collections::HashMap;

use jiff::Timestamp;

use super::super::{Manager, Result};
use super::change::find;
use super::place::{Reader, Table, with_decisions};
use super::{Seen, shape};
use crate::auth::policy::Permit;
use crate::model::card::blockers::BlockerKind;
use crate::model::card::vgpu::{MadeVgpu, VgpuSite};
use crate::model::card::{CardFinding, NvmlStatus};
use crate::model::gpu::{GpuDevice, GpuLease, LeaseState, Service};
use crate::model::id::VmId;
use crate::model::pci::{PciAddress, Vendor};
use crate::plan::health;
use crate::plan::inventory::{Entry, Eyes};
use crate::plan::place::{Offer, offers};
use crate::plan::shape::{Next, Target, next};
use crate::plan::vgpu::{self, Report, VgpuPool};

/// Where a card stands, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuState {
    /// It can be had.
    Free,
    /// It is divided into vGPUs; its virtual functions say who has them.
    Divided,
    /// A machine is to have it.
    Claimed,
    /// A machine has it.
    InUse,
    /// It is being given back.
    Sanitising,
    /// It wants a reset, or cannot say how it is: nobody is given it anew.
    Draining,
    /// Kept out of use by decision.
    Withheld,
    /// The kernel does not let go of it.
    Stuck,
    /// Something speaks against handing it out.
    Blocked,
    /// Not gvm's.
    Foreign,
    /// A virtual function, not a card.
    VirtualFunction,
    /// It is no longer here.
    Gone,
}

impl GpuState {
    /// As shown.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Divided => "divided",
            Self::Claimed => "claimed",
            Self::InUse => "in-use",
            Self::Sanitising => "sanitising",
            Self::Draining => "draining",
            Self::Withheld => "withheld",
            Self::Stuck => "stuck",
            Self::Blocked => "blocked",
            Self::Foreign => "foreign",
            Self::VirtualFunction => "vf",
            Self::Gone => "gone",
        }
    }
}

/// One card as people see it.
#[derive(Clone, Debug)]
pub struct GpuRow {
    /// Itself; without names of the host's processes where they may not be told.
    pub entry: Entry,
    /// Where it stands.
    pub state: GpuState,
    /// What speaks against it, in plain words.
    pub reasons: Vec<String>,
    /// Who has it: name and owner, where they may be told.
    pub vm: Option<String>,
    /// Worth knowing, and no reason against it.
    pub notes: Vec<String>,
    /// Since when it is out of service, where that was written down.
    pub since: Option<Timestamp>,
    /// What brings it back into service.
    pub remedy: Option<String>,
}

/// All cards, with what should be known besides.
#[derive(Clone, Debug)]
pub struct GpuListing {
    /// When the cards were looked at.
    pub at: Timestamp,
    /// The cards, by address; those that are gone last.
    pub rows: Vec<GpuRow>,
    /// Findings about the host as a whole.
    pub findings: Vec<CardFinding>,
    /// How it stands with NVML.
    pub nvml: NvmlStatus,
    /// NVSwitches of the board.
    pub nvswitches: Vec<PciAddress>,
}

impl Manager {
    /// All cards.
    ///
    /// # Errors
    /// Where host or store do not answer.
    pub async fn gpus(&self, permit: &Permit) -> Result<GpuListing> {
        let seen = self.look_at_gpus().await?;
        let reader = Reader::of(permit.user());
        let leases = self.store.leases().await?;
        let entries = with_decisions(&seen.entries, self.store.gpus().await?);
        let names = self.holder_names(&leases, reader).await?;
        let table = Table::new(&entries, &leases, &names, reader.eyes, &self.gpus, &self.host().boot_id);
        let row = |entry: &Entry| {
            let device = table.devices.iter().find(|device| device.id == entry.id);
            let is_its = |lease: &&GpuLease| match lease.partition.vgpu() {
                Some((site, _)) => entry.card.as_ref().is_some_and(|card| card.is_vf() && card.address == site.parent),
                None => *lease.partition.gpu() == entry.id && entry.known.is_some(),
            };
            let lease = leases.iter().find(is_its);
            let pool = table.pools.iter().find(|pool| pool.gpu == entry.id && entry.known.is_some());
            let carried = carried(entry, &leases, &names);
            let mut row = row(entry, device, lease, pool, (&names, carried), reader.eyes);
            row.reasons.extend(not_in_shape(entry, &seen));
            row
        };
        Ok(GpuListing {
            at: seen.at,
            rows: entries.iter().map(row).collect(),
            findings: seen.findings.clone(),
            nvml: seen.nvml.clone(),
            nvswitches: seen.nvswitches.clone(),
        })
    }

    /// One card.
    ///
    /// # Errors
    /// Where there is none of that name.
    pub async fn gpu(&self, permit: &Permit, name: &str) -> Result<GpuRow> {
        let listing = self.gpus(permit).await?;
        let entries: Vec<Entry> = listing.rows.iter().map(|row| row.entry.clone()).collect();
        let found = find(&entries, name)?;
        let is_it = |row: &GpuRow| row.entry.id == found.id && row.entry.address() == found.address();
        let row = listing.rows.into_iter().find(is_it);
        row.ok_or_else(|| super::super::ManagerError::not_found(format!("there is no GPU {name:?}")))
    }

    /// What could be asked for now.
    ///
    /// # Errors
    /// Where host or store do not answer.
    pub async fn gpu_offers(&self, permit: &Permit) -> Result<Vec<Offer>> {
        let table = self.gpu_now(permit).await?;
        let mut all = offers(&table.devices, &table.held);
        all.extend(vgpu::offers(&table.pools));
        Ok(all)
    }

    /// How divided cards stand.
    ///
    /// # Errors
    /// Where host or store do not answer.
    pub async fn gpu_plan(&self, permit: &Permit) -> Result<Report> {
        Ok(vgpu::report(&self.gpu_now(permit).await?.pools))
    }

    async fn gpu_now(&self, permit: &Permit) -> Result<Table> {
        let seen = self.look_at_gpus().await?;
        let reader = Reader::of(permit.user());
        let leases = self.store.leases().await?;
        let entries = with_decisions(&seen.entries, self.store.gpus().await?);
        let names = self.holder_names(&leases, reader).await?;
        Ok(Table::new(&entries, &leases, &names, reader.eyes, &self.gpus, &self.host().boot_id))
    }

    async fn holder_names(&self, leases: &[GpuLease], reader: Reader) -> Result<HashMap<VmId, String>> {
        let mut names = HashMap::new();
        for lease in leases {
            if let Some(vm) = self.store.vm(lease.vm).await?.filter(|vm| reader.may_know(vm)) {
                names.insert(vm.id, self.label(&vm).await?);
            }
        }
        Ok(names)
    }
}

/// What is missing of a shape that was decided on: somebody changed the card beside gvm.
fn not_in_shape(entry: &Entry, seen: &Seen) -> Option<String> {
    let (row, card) = entry.known.as_ref().zip(entry.card.as_ref())?;
    let shape = &row.shape.as_ref()?.shape;
    let missing = match next(card, &shape::functions(seen, card), Target::Shape(shape)) {
        Next::Done => return None,
        Next::Do(job) => format!("{job} is missing"),
        Next::Wait(why) | Next::Stop(why) => why,
    };
    let (word, address) = (shape.word(), card.address);
    Some(format!("it is not divided as it should be ({missing}); `gvm gpu mode {address} {word}` does it again"))
}

/// What vGPUs a function carries; with whose they are, where one function has several.
fn carried(entry: &Entry, leases: &[GpuLease], names: &HashMap<VmId, String>) -> Vec<String> {
    let Some(card) = &entry.card else { return Vec::new() };
    let words = |made: &MadeVgpu| {
        let what = match &made.name {
            Some(name) => format!("carries {name}"),
            None => format!("carries a vGPU of type {}", made.type_id),
        };
        let site = VgpuSite { parent: card.address, uuid: made.uuid };
        let is_its = |lease: &&GpuLease| lease.partition.vgpu().is_some_and(|(other, _)| other == site);
        let lease = leases.iter().find(is_its).filter(|_| !card.is_vf());
        match lease.and_then(|lease| names.get(&lease.vm)) {
            Some(vm) => format!("{what} for VM {vm}"),
            None => what,
        }
    };
    card.vgpu.iter().flat_map(|facts| &facts.made).map(words).collect()
}

/// True where its virtual functions go to machines as they are.
fn is_in_parts(entry: &Entry) -> bool {
    let card = entry.card.as_ref().filter(|card| !card.is_vf() && card.vendor != Vendor::Nvidia);
    card.is_some_and(|card| card.sriov.as_ref().is_some_and(|sriov| sriov.enabled > 0))
}

fn row(
    entry: &Entry,
    device: Option<&GpuDevice>,
    lease: Option<&GpuLease>,
    pool: Option<&VgpuPool>,
    (names, carried): (&HashMap<VmId, String>, Vec<String>),
    eyes: Eyes,
) -> GpuRow {
    let mut entry = entry.clone();
    let mut reasons: Vec<String> = device.and_then(|device| device.blocked.clone()).into_iter().collect();
    reasons.extend(device.into_iter().flat_map(|device| &device.blockers).map(|member| member.words()));
    if let Some(card) = &mut entry.card {
        // Words that the planner's view has in fields of their own.
        let told = [BlockerKind::Foreign, BlockerKind::NvSwitch, BlockerKind::VirtualFunction];
        let more = card.blockers.iter().filter(|blocker| told.contains(&blocker.kind));
        reasons.extend(more.map(|blocker| blocker.text.clone()));
        reasons.extend(carried);
        if eyes == Eyes::Member {
            card.holders.clear();
            card.blockers.clear();
        }
    }
    let is_left = entry.known.as_ref().is_some_and(|row| row.history.used_by.is_some()) && lease.is_none();
    let service = match device.map(|device| &device.service) {
        Some(Service::Quarantined(why)) => Some((GpuState::Withheld, why)),
        Some(Service::Draining(why)) if is_left => Some((GpuState::Sanitising, why)),
        Some(Service::Draining(why)) => Some((GpuState::Draining, why)),
        Some(Service::Stuck(why)) => Some((GpuState::Stuck, why)),
        Some(Service::Good | Service::Noted(_)) | None => None,
    };
    let notes = match device.map(|device| &device.service) {
        Some(Service::Noted(why)) => vec![why.clone()],
        _ => Vec::new(),
    };
    reasons.extend(service.iter().map(|(_, why)| (*why).clone()));
    let state = match (lease.map(|lease| lease.state), device) {
        _ if entry.card.is_none() => GpuState::Gone,
        (None, None) => GpuState::VirtualFunction,
        // Whoever was to have it does not get it.
        _ if matches!(service, Some((GpuState::Stuck, _))) => GpuState::Stuck,
        (Some(LeaseState::Attached), _) => GpuState::InUse,
        (Some(LeaseState::Sanitising), _) => GpuState::Sanitising,
        (Some(LeaseState::Claimed), _) => GpuState::Claimed,
        (None, Some(device)) => match service {
            Some((state, _)) => state,
            None if device.is_foreign => GpuState::Foreign,
            None if pool.is_some() || is_in_parts(&entry) => GpuState::Divided,
            None if reasons.is_empty() => GpuState::Free,
            None => GpuState::Blocked,
        },
    };
    let vm = lease.and_then(|lease| names.get(&lease.vm).cloned());
    let since = entry.known.as_ref().and_then(health::since);
    let remedy = entry.known.as_ref().and_then(|row| health::remedy(row, entry.card.as_ref()));
    GpuRow { entry, state, reasons, vm, notes, since, remedy }
}
