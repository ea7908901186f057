//! Cards in memory, with faults: what the manager is tested with.
//!
//! A clone is the same host: it lives on when a manager is dropped, as cards do when one crashes.

mod change;
mod health;
mod shape;
mod vgpu;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use uuid::Uuid;

use super::sysfs::slot;
use super::{BindError, GpuBackend, GpuError, LogBatch};
use crate::model::card::function::{FunctionState, Restore};
use crate::model::card::history::{SanitiseJob, SanitiseMethod};
use crate::model::card::kernel_log::KernelRecord;
use crate::model::card::shape::ShapeJob;
use crate::model::card::vgpu::VgpuJob;
use crate::model::card::{Discovery, Holder, NvmlFacts};
use crate::model::gpu::PciAddress;

/// A host whose cards are what a test says they are.
#[derive(Clone, Debug)]
pub struct FakeGpus(Arc<Host>);

#[derive(Debug)]
struct Host {
    state: Mutex<State>,
    /// Whether changes wait.
    is_held: watch::Sender<bool>,
}

/// Slots are told by their function 0.
#[derive(Debug, Default)]
struct State {
    discovery: Discovery,
    managed: Option<BTreeSet<PciAddress>>,
    is_hung: bool,
    looks: usize,
    next_bind: Option<BindError>,
    next_restore: Option<BindError>,
    stuck: BTreeSet<PciAddress>,
    lost_at_restore: BTreeSet<PciAddress>,
    next_vgpu: Option<BindError>,
    next_shape: Option<BindError>,
    /// What cards can be divided into.
    dividable: BTreeMap<PciAddress, shape::Dividable>,
    /// Mediated devices that somebody has open.
    open_mdevs: BTreeSet<Uuid>,
    /// What NVML knows again when a card comes back from VFIO.
    nvml: BTreeMap<PciAddress, NvmlFacts>,
    binds: BTreeMap<PciAddress, usize>,
    restores: BTreeMap<PciAddress, usize>,
    log: Vec<KernelRecord>,
    is_log_hidden: bool,
    next_sanitise: Option<BindError>,
    sanitised: Vec<SanitiseJob>,
    /// Changes that are under way.
    changing: BTreeSet<PciAddress>,
}

impl Default for FakeGpus {
    fn default() -> Self {
        Self(Arc::new(Host { state: Mutex::default(), is_held: watch::Sender::new(false) }))
    }
}

impl FakeGpus {
    /// Shows these cards.
    pub fn showing(discovery: Discovery) -> Self {
        let fake = Self::default();
        fake.show(discovery);
        fake
    }

    /// Shows other cards from here on.
    pub fn show(&self, discovery: Discovery) {
        self.state().discovery = discovery;
    }

    /// Only these are managed; without this call, all are.
    pub fn manage(&self, cards: impl IntoIterator<Item = PciAddress>) {
        let mut state = self.state();
        state.managed = Some(cards.into_iter().collect());
        state.judge();
    }

    /// Looks are not answered from here on.
    pub fn hang(&self) {
        self.state().is_hung = true;
    }

    /// Looks are answered again, nothing is stuck any more, and changes go on.
    pub fn recover(&self) {
        let mut state = self.state();
        state.is_hung = false;
        state.recover();
        drop(state);
        self.0.is_held.send_replace(false);
    }

    /// Failures that were announced and have met nobody do not come any more.
    pub fn heal(&self) {
        let mut state = self.state();
        (state.next_bind, state.next_restore, state.next_vgpu, state.next_shape) = (None, None, None, None);
    }

    /// How often somebody looked.
    pub fn looks(&self) -> usize {
        self.state().looks
    }

    /// The next `bind` that has something to do fails so, and changes nothing.
    pub fn fail_next_bind(&self, error: BindError) {
        self.state().next_bind = Some(error);
    }

    /// The next `restore` that has something to do fails so, and changes nothing.
    pub fn fail_next_restore(&self, error: BindError) {
        self.state().next_restore = Some(error);
    }

    /// The next vGPU that is to be made or taken away is not, and fails so.
    pub fn fail_next_vgpu(&self, error: BindError) {
        self.state().next_vgpu = Some(error);
    }

    /// Changes do not come back from here on, until [`Self::recover`]: a manager can be dropped meanwhile. What they were
    /// to do is done only then, and not at all for those who have been dropped.
    pub fn hold_changes(&self) {
        self.0.is_held.send_replace(true);
    }

    /// Changes of this card's functions hang in the kernel from here on.
    pub fn stick(&self, address: PciAddress) {
        self.state().stuck.insert(slot(address));
    }

    /// The card does not answer any more once it is given back.
    pub fn lose_at_restore(&self, address: PciAddress) {
        self.state().lost_at_restore.insert(slot(address));
    }

    /// The card is not there any more.
    pub fn vanish(&self, address: PciAddress) {
        self.state().discovery.cards.retain(|card| slot(card.address) != slot(address));
    }

    /// Somebody has the card open.
    pub fn open(&self, address: PciAddress, holder: Holder) {
        let mut state = self.state();
        for card in state.discovery.cards.iter_mut().filter(|card| slot(card.address) == slot(address)) {
            card.holders.push(holder.clone());
            card.holders.sort();
        }
        state.judge();
    }

    /// Nobody has the card open any more.
    pub fn close(&self, address: PciAddress) {
        let mut state = self.state();
        for card in state.discovery.cards.iter_mut().filter(|card| slot(card.address) == slot(address)) {
            card.holders.clear();
        }
        state.judge();
    }

    /// How often this function was taken to VFIO from something else.
    pub fn binds(&self, address: PciAddress) -> usize {
        self.state().binds.get(&address).copied().unwrap_or(0)
    }

    /// How often this function was given back to something else.
    pub fn restores(&self, address: PciAddress) -> usize {
        self.state().restores.get(&address).copied().unwrap_or(0)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks slots as being changed; waits while changes are held.
    async fn begin(&self, addresses: Vec<PciAddress>) -> Result<Changing<'_>, BindError> {
        self.state().begin(&addresses)?;
        let changing = Changing { fake: self, addresses };
        let mut is_held = self.0.is_held.subscribe();
        // The sender lives as long as we do.
        let _ = is_held.wait_for(|is_held| !is_held).await;
        Ok(changing)
    }
}

/// Slots that are being changed, until the change is done or dropped.
struct Changing<'a> {
    fake: &'a FakeGpus,
    addresses: Vec<PciAddress>,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let mut state = self.fake.state();
        for address in &self.addresses {
            state.changing.remove(&slot(*address));
        }
    }
}

#[async_trait]
impl GpuBackend for FakeGpus {
    async fn discover(&self) -> Result<Discovery, GpuError> {
        let mut state = self.state();
        state.looks += 1;
        if state.is_hung { Err(GpuError::Busy(Duration::from_secs(1))) } else { Ok(state.discovery.clone()) }
    }

    async fn functions(&self, addresses: &[PciAddress]) -> Result<Vec<FunctionState>, GpuError> {
        let state = self.state();
        if let (true, Some(address)) = (state.is_hung, addresses.first()) {
            return Err(GpuError::Hangs { address: *address, after: Duration::from_secs(5) });
        }
        Ok(addresses.iter().map(|address| state.function(*address)).collect())
    }

    async fn bind(&self, addresses: &[PciAddress]) -> Result<(), BindError> {
        let _changing = self.begin(addresses.to_vec()).await?;
        self.state().bind(addresses)
    }

    async fn restore(&self, functions: &[Restore]) -> Result<(), BindError> {
        let _changing = self.begin(functions.iter().map(|one| one.address).collect()).await?;
        self.state().restore(functions)
    }

    async fn vgpu(&self, job: &VgpuJob) -> Result<(), BindError> {
        let _changing = self.begin(vec![job.site().parent]).await?;
        self.state().vgpu(job)
    }

    async fn reshape(&self, job: &ShapeJob) -> Result<(), BindError> {
        let _changing = self.begin(vec![job.card()]).await?;
        self.state().reshape(job)
    }

    async fn sanitise(&self, job: &SanitiseJob) -> Result<SanitiseMethod, BindError> {
        let _changing = self.begin(vec![job.card]).await?;
        self.state().sanitise(job)
    }

    async fn kernel_log(&self, after: Option<u64>) -> Result<LogBatch, String> {
        self.state().log_after(after)
    }
}
