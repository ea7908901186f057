//! Cards in memory, with faults: what the manager is tested with.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::{GpuBackend, GpuError};
use crate::model::card::Discovery;

/// A host whose cards are what a test says they are.
#[derive(Clone, Debug, Default)]
pub struct FakeGpus(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    discovery: Discovery,
    is_hung: bool,
    looks: usize,
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

    /// Does not answer from here on.
    pub fn hang(&self) {
        self.state().is_hung = true;
    }

    /// Answers again.
    pub fn recover(&self) {
        self.state().is_hung = false;
    }

    /// How often somebody looked.
    pub fn looks(&self) -> usize {
        self.state().looks
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl GpuBackend for FakeGpus {
    async fn discover(&self) -> Result<Discovery, GpuError> {
        let mut state = self.state();
        state.looks += 1;
        if state.is_hung { Err(GpuError::Busy(Duration::from_secs(1))) } else { Ok(state.discovery.clone()) }
    }
}
