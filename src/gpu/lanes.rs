//! A thread for each slot: a read that hangs in one card's files holds up nobody who asks for another.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::worker::{NotBegun, Worker};
use crate::model::gpu::PciAddress;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAnswer {
    /// It does not come back, or an earlier one has not.
    #[error("it has not come back within {} s", .0.as_secs_f32())]
    Hangs(Duration),
    /// It broke off.
    #[error("it broke off")]
    Broken,
    /// The system gives no thread.
    #[error("no thread can be started")]
    NoThread(#[source] std::io::Error),
}

/// One after the other.
#[derive(Debug)]
pub(super) struct Lane {
    turn: tokio::sync::Mutex<()>,
    worker: Worker,
}

impl Lane {
    pub(super) fn new(name: &'static str) -> Self {
        Self { turn: tokio::sync::Mutex::new(()), worker: Worker::new(name) }
    }

    /// Does a job when those before it are done; all of it within the patience.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        patience: Duration,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let answer = async {
            let _turn = self.turn.lock().await;
            let (sender, receiver) = tokio::sync::oneshot::channel();
            let job = move || {
                // Whoever asked may have given up.
                let _ = sender.send(job());
            };
            self.worker.begin(job).map_err(|error| match error {
                NotBegun::Busy(since) => NoAnswer::Hangs(since),
                NotBegun::NoThread(error) => NoAnswer::NoThread(error),
            })?;
            receiver.await.map_err(|_| NoAnswer::Broken)
        };
        tokio::time::timeout(patience, answer).await.unwrap_or(Err(NoAnswer::Hangs(patience)))
    }
}

/// The lanes that were ever used: as many as there are slots that gvm changes.
#[derive(Debug, Default)]
pub(super) struct Lanes(Mutex<HashMap<PciAddress, Arc<Lane>>>);

impl Lanes {
    /// That of a slot, by its function 0.
    pub(super) fn of(&self, slot: PciAddress) -> Arc<Lane> {
        let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(lanes.entry(slot).or_insert_with(|| Arc::new(Lane::new("gvm-gpu-slot"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_job_that_hangs_holds_up_its_own_lane_only() {
        let lanes = Lanes::default();
        let [one, other] = ["0000:41:00.0", "0000:42:00.0"].map(|slot| slot.parse().unwrap());
        let (sender, receiver) = std::sync::mpsc::sync_channel::<()>(1);
        let hangs = move || receiver.recv().unwrap();
        let short = Duration::from_millis(100);
        assert!(matches!(lanes.of(one).ask(short, hangs).await, Err(NoAnswer::Hangs(_))));
        assert!(matches!(lanes.of(one).ask(short * 5, || ()).await, Err(NoAnswer::Hangs(_))));
        assert_eq!(lanes.of(other).ask(short * 50, || 7).await.unwrap(), 7);
        sender.send(()).unwrap();
        assert_eq!(lanes.of(one).ask(short * 50, || 8).await.unwrap(), 8);
    }

    #[tokio::test]
    async fn jobs_of_one_lane_wait_for_each_other() {
        let lane = Lane::new("gvm-test");
        let slow = |number: u32| {
            lane.ask(Duration::from_secs(20), move || {
                std::thread::sleep(Duration::from_millis(300));
                number
            })
        };
        let (one, two) = tokio::join!(slow(1), slow(2));
        assert_eq!((one.unwrap(), two.unwrap()), (1, 2));
    }
}
