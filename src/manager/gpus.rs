//! The cards of this host: looked at, remembered, given to machines and taken back.
//!
//! ```text
//!   look (start, tick, device event, before each admission)
//!     backend.discover -> plan::inventory::recognise -> rows that changed -> Seen
//!
//!   place.rs    admission: Seen + leases -> plan::place -> leases, in the admission's own transaction
//!   steps.rs    EnsureGpuBound and ReleaseGpu of one machine
//!   slices.rs   the same of its vGPUs; instances.rs of the MIG instances behind them
//!   plug.rs     another request of a machine that exists; AttachGpu
//!   health.rs   cards that fall ill, and how they come back
//!   sanitise.rs what is done to a partition between two machines
//!   change.rs   what an administrator decides of a card; what a crash left half done
//!   layout.rs   all cards as a file says
//!   shape.rs    dividing a card otherwise, and again after a restart of the host
//!   view.rs     what people see
//! ```
//!
//! Who holds a card is in the store alone; what it is and who has it open is looked at anew each time.

mod change;
mod health;
mod instances;
mod layout;
mod place;
mod planners;
mod plug;
mod sanitise;
mod shape;
mod slices;
mod steps;
mod view;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::OwnedMutexGuard;

use super::{Manager, ManagerError, Result, lock};
use crate::gpu::GpuBackend;
use crate::model::card::blockers::BlockerKind;
use crate::model::card::{Card, CardFinding, Discovery, NvmlStatus};
use crate::model::event::Outcome;
use crate::model::gpu::GpuId;
use crate::model::inventory::KnownGpu;
use crate::model::pci::PciAddress;
use crate::model::principal::User;
use crate::plan::inventory::{Eyes, Recognised, SOMEBODY, recognise};
use crate::store::{audit, commit, gpus};

pub use self::change::{GpuChange, WantedMode};
pub use self::layout::{LaidOut, LayoutOutcome, LayoutRequest};
pub(super) use self::place::{Table, write_leases};
pub(super) use self::plug::{Now, attach};
pub(super) use self::steps::{ensure_bound, must_have_memory, release, standing};
pub use crate::plan::inventory::Entry;
pub use crate::plan::mig::Lost;
pub use crate::plan::place::Offer;
pub use crate::plan::vgpu::slices::{Slot, SlotUser};
pub use crate::plan::vgpu::{CardReport, Report, Room};

pub use self::view::{GpuListing, GpuRow, GpuState};

/// A request waits so long for a look at the cards; a look that takes longer goes on without it.
const LOOK_PATIENCE: Duration = Duration::from_secs(10);
/// Device events come in bursts: so long is waited for the last one.
const SETTLE: Duration = Duration::from_secs(1);

/// One look, joined with what is remembered.
#[derive(Clone, Debug)]
pub struct Seen {
    /// When.
    pub at: Timestamp,
    begun: Instant,
    /// The cards.
    pub entries: Vec<Entry>,
    /// What somebody should know besides.
    pub findings: Vec<CardFinding>,
    /// How it stands with NVML.
    pub nvml: NvmlStatus,
    /// NVSwitches of the board.
    pub nvswitches: Vec<PciAddress>,
}

impl Seen {
    /// The look as it may be told to this person: members do not learn of the host's processes.
    pub(super) fn told(&self, user: Option<&User>) -> Discovery {
        let mut cards: Vec<Card> = self.entries.iter().filter_map(|entry| entry.card.clone()).collect();
        if place::Reader::of(user).eyes == Eyes::Member {
            for blocker in cards.iter_mut().flat_map(|card| &mut card.blockers) {
                if blocker.kind == BlockerKind::Held {
                    blocker.text = SOMEBODY.to_owned();
                }
            }
            cards.iter_mut().for_each(|card| card.holders.clear());
        }
        let (findings, nvml, nvswitches) = (self.findings.clone(), self.nvml.clone(), self.nvswitches.clone());
        Discovery { cards, findings, nvml, nvswitches }
    }

    /// The entry of a card that is here.
    pub fn card(&self, id: &GpuId) -> Option<(&KnownGpu, &Card)> {
        let entry = self.entries.iter().find(|entry| entry.id == *id)?;
        Some((entry.known.as_ref()?, entry.card.as_ref()?))
    }
}

/// The cards' part of the manager.
#[derive(Debug)]
pub(super) struct Gpus {
    backend: Arc<dyn GpuBackend>,
    seen: RwLock<Option<Arc<Seen>>>,
    looking: tokio::sync::Mutex<()>,
    planners: planners::Planners,
    /// Whether the cards are again what they were before the host restarted.
    are_restored: AtomicBool,
    /// How far the kernel's log was taken in.
    log: tokio::sync::Mutex<health::Log>,
    /// Whoever binds or restores a card holds its lock meanwhile.
    hands: Mutex<HashMap<GpuId, Arc<tokio::sync::Mutex<()>>>>,
    /// Cards that are being divided otherwise: nothing of them is given away meanwhile.
    reshaping: Mutex<HashSet<GpuId>>,
}

impl Gpus {
    pub(super) fn new(backend: Arc<dyn GpuBackend>) -> Self {
        Self {
            backend,
            seen: RwLock::default(),
            looking: tokio::sync::Mutex::default(),
            planners: planners::Planners::default(),
            are_restored: AtomicBool::new(true),
            log: tokio::sync::Mutex::default(),
            hands: Mutex::default(),
            reshaping: Mutex::default(),
        }
    }

    fn last_seen(&self) -> Option<Arc<Seen>> {
        self.seen.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// True once the cards are what they were before the host restarted; machines get none before.
    fn are_restored(&self) -> bool {
        self.are_restored.load(Ordering::Acquire)
    }

    fn is_reshaping(&self, gpu: &GpuId) -> bool {
        lock(&self.reshaping).contains(gpu)
    }

    /// The card's lock where nobody changes it; what tidies up comes again, and waits for no change that takes minutes.
    fn free_hands_on(&self, gpu: &GpuId) -> Option<OwnedMutexGuard<()>> {
        let mutex = lock(&self.hands).entry(gpu.clone()).or_default().clone();
        mutex.try_lock_owned().ok()
    }

    /// Waits until nobody else changes the card.
    async fn hands_on(&self, gpu: &GpuId) -> OwnedMutexGuard<()> {
        let mutex = lock(&self.hands).entry(gpu.clone()).or_default().clone();
        mutex.lock_owned().await
    }
}

impl Manager {
    /// Looks at the cards now, and remembers what is new of them.
    ///
    /// # Errors
    /// Where the host or the store does not answer in time.
    pub async fn look_at_gpus(&self) -> Result<Arc<Seen>> {
        let asked = Instant::now();
        let late = |_| {
            ManagerError::unavailable(format!("looking at the GPUs takes longer than {} s", LOOK_PATIENCE.as_secs()))
                .hint("`gvm doctor` says more")
        };
        let _one_at_a_time = tokio::time::timeout(LOOK_PATIENCE, self.gpus.looking.lock()).await.map_err(late)?;
        if let Some(seen) = self.gpus.last_seen().filter(|seen| seen.begun >= asked) {
            return Ok(seen);
        }
        let begun = Instant::now();
        let discovery = tokio::time::timeout(LOOK_PATIENCE, self.gpus.backend.discover()).await.map_err(late)?;
        let discovery = discovery.map_err(|e| ManagerError::unavailable(e.to_string()).because(e))?;
        let now = Timestamp::now();
        let boot_id = self.host().boot_id;
        let mut found = recognise(&self.store.gpus().await?, &discovery.cards, &boot_id, now);
        if !found.changed.is_empty() {
            found = self.remember(&discovery.cards, &boot_id, now).await?;
        }
        if self.heed(&found.entries).await {
            found.entries = place::with_decisions(&found.entries, self.store.gpus().await?);
        }
        let (mut findings, nvml, nvswitches) = (discovery.findings, discovery.nvml, discovery.nvswitches);
        findings.extend(self.gpus.log.lock().await.finding());
        let seen = Arc::new(Seen { at: now, begun, entries: found.entries, findings, nvml, nvswitches });
        *self.gpus.seen.write().unwrap_or_else(PoisonError::into_inner) = Some(seen.clone());
        Ok(seen)
    }

    async fn remember(&self, cards: &[Card], boot_id: &str, now: Timestamp) -> Result<Recognised> {
        let mut tx = self.store.write().await?;
        // Read anew under the lock: a decision may have been made meanwhile.
        let known = gpus::read(&mut tx).await?;
        let found = recognise(&known, cards, boot_id, now);
        for row in &found.changed {
            gpus::see(&mut tx, row).await?;
            // Signs of an earlier boot have ended with it.
            gpus::decide(&mut tx, &row.id, &gpus::Decision::History(Box::new(row.history.clone()))).await?;
            let before = known.iter().find(|before| before.id == row.id);
            match before {
                Some(before) if before.withheld != row.withheld => {
                    let end = Outcome::Success;
                    let event = health::own_record("gpu.return", row, None, end, "the host was restarted");
                    audit::begin(&mut tx, &event, None).await?;
                    gpus::decide(&mut tx, &row.id, &gpus::Decision::Withhold(row.withheld.clone())).await?;
                }
                Some(_) => {}
                None => tracing::info!(gpu = %row.id, model = %row.model, address = %row.identity.address, "a new GPU"),
            }
        }
        commit(tx).await?;
        Ok(found)
    }

    /// Looks at the cards at the start, at every tick and when devices come or go; puts back what a crash left.
    pub fn spawn_gpu_watch(self: &Arc<Self>) {
        self.gpus.are_restored.store(false, Ordering::Release);
        let manager = self.clone();
        self.tasks.spawn(async move {
            let stop = manager.stop.clone();
            let _: Option<()> = stop.run_until_cancelled(manager.watch_gpus()).await;
        });
    }

    /// After a start: brings the cards to what they were, before machines are given any of them.
    pub async fn restore_gpus(&self) {
        self.forget_instances().await;
        self.keep_gpus().await;
        self.restore_shapes().await;
        self.gpus.are_restored.store(true, Ordering::Release);
    }

    async fn watch_gpus(self: &Arc<Self>) {
        let tick = Duration::from_secs(self.config.manager.tick_seconds);
        self.restore_gpus().await;
        loop {
            self.keep_gpus_tidy().await;
            if tokio::time::timeout(tick, self.gpus.backend.changed()).await.is_ok() {
                tokio::time::sleep(SETTLE).await;
            }
        }
    }
}
