//! What people are told as it happens: a stream for whoever listens, and the events of each machine's last accepted
//! change for whoever comes later. Nothing is decided from it, so losing it in a crash loses nothing.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

use jiff::Timestamp;
use tokio::sync::broadcast;

use super::lock;
use crate::model::event::Progress;
use crate::model::id::{UserId, VmId};

/// Events that a slow listener may fall behind before it is told that it missed some.
const STREAM_DEPTH: usize = 1024;
/// Events kept per machine: a create has about a dozen.
const KEPT_PER_VM: usize = 64;

/// A progress with whose machine it is.
#[derive(Clone, Debug)]
pub struct Told {
    /// The owner, for deciding who may hear it.
    pub owner: UserId,
    /// The machine's name at that time.
    pub name: String,
    /// What happened.
    pub progress: Progress,
}

/// The publisher.
#[derive(Debug)]
pub struct Watch {
    stream: broadcast::Sender<Told>,
    kept: Mutex<HashMap<VmId, VecDeque<Told>>>,
}

impl Default for Watch {
    fn default() -> Self {
        Self::new()
    }
}

impl Watch {
    /// With nobody listening.
    pub fn new() -> Self {
        Self { stream: broadcast::Sender::new(STREAM_DEPTH), kept: Mutex::default() }
    }

    /// Tells everybody.
    pub fn tell(&self, vm: &crate::model::vm::Vm, stage: &str, message: impl Into<String>) {
        let message = message.into();
        tracing::info!(vm = %vm.id, name = %vm.name, stage, "{message}");
        let progress = Progress { vm: vm.id, at: Timestamp::now(), stage: stage.to_owned(), message };
        let told = Told { owner: vm.owner, name: vm.name.to_string(), progress };
        let mut kept = lock(&self.kept);
        let queue = kept.entry(vm.id).or_default();
        if queue.len() == KEPT_PER_VM {
            queue.pop_front();
        }
        queue.push_back(told.clone());
        // Sent under the lock, so that `listen` sees every event exactly once. No listener is no fault.
        let _ = self.stream.send(told);
    }

    /// A change was accepted: what is kept from now on belongs to it.
    pub fn begin(&self, vm: &crate::model::vm::Vm, message: impl Into<String>) {
        lock(&self.kept).remove(&vm.id);
        self.tell(vm, "accepted", message);
    }

    /// The kept events of one machine (of none: pass `None`) and everything from now on.
    pub fn listen(&self, vm: Option<VmId>) -> (Vec<Told>, broadcast::Receiver<Told>) {
        let kept = lock(&self.kept);
        let past = vm.and_then(|vm| kept.get(&vm)).map(|queue| queue.iter().cloned().collect());
        (past.unwrap_or_default(), self.stream.subscribe())
    }

    /// The newest event of a machine.
    pub fn last(&self, vm: VmId) -> Option<Progress> {
        lock(&self.kept).get(&vm).and_then(|queue| queue.back()).map(|told| told.progress.clone())
    }

    /// Forgets a machine that is gone.
    pub fn forget(&self, vm: VmId) {
        lock(&self.kept).remove(&vm);
    }
}
