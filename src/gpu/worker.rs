//! A named thread for calls that may never come back: at most one at a time, and whoever waits has a deadline.
//!
//! When the kernel or a driver does not answer, the thread stays where it is - nothing can end it - and everyone who
//! asks meanwhile is told so at once. No second thread is lost to the same fault.

use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Why a job was not begun.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotBegun {
    /// The last one has not come back.
    #[error("an earlier call has not come back for {} s", .0.as_secs())]
    Busy(Duration),
    /// The system gives no thread.
    #[error("no thread can be started")]
    NoThread(#[source] std::io::Error),
}

/// The one thread, or none.
#[derive(Debug)]
pub(super) struct Worker {
    name: &'static str,
    running: Mutex<Option<(JoinHandle<()>, Instant)>>,
}

impl Worker {
    pub(super) const fn new(name: &'static str) -> Self {
        Self { name, running: Mutex::new(None) }
    }

    /// Begins a job, unless the last one is still at it.
    pub(super) fn begin(&self, job: impl FnOnce() + Send + 'static) -> Result<(), NotBegun> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((handle, since)) = running.take() {
            // What it sends is its last act but not its end: give it a moment.
            let patience = Instant::now() + Duration::from_millis(100);
            while !handle.is_finished() && Instant::now() < patience {
                std::thread::sleep(Duration::from_millis(1));
            }
            if !handle.is_finished() {
                let busy = since.elapsed();
                *running = Some((handle, since));
                return Err(NotBegun::Busy(busy));
            }
        }
        let handle = std::thread::Builder::new().name(self.name.to_owned()).spawn(job).map_err(NotBegun::NoThread)?;
        *running = Some((handle, Instant::now()));
        Ok(())
    }
}
