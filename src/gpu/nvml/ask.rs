//! Says what is about to be called, so that a call that does not come back has a name.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper::error::NvmlError;

/// Hears what is about to be called; an error where nobody waits for the answer any more.
pub(super) type Say<'a> = &'a dyn Fn(String) -> Result<(), NvmlError>;

/// Asks one card.
pub(super) struct Ask<'a> {
    say: Say<'a>,
    /// Which, in words.
    of: String,
}

impl<'a> Ask<'a> {
    pub(super) const fn new(say: Say<'a>, of: String) -> Self {
        Self { say, of }
    }

    /// Before it is asked for something.
    pub(super) fn step(&self, what: &str) -> Result<(), NvmlError> {
        (self.say)(format!("asking for {what} of {}", self.of))
    }

    /// Before something is changed.
    pub(super) fn change(&self, what: &str) -> Result<(), NvmlError> {
        (self.say)(what.to_owned())
    }
}

/// What the thread that calls is at, for the one who waits for it. A look at many cards makes thousands of calls, so
/// this is no queue.
#[derive(Debug)]
pub(super) struct Watch {
    at: Mutex<(String, Instant)>,
    is_given_up: AtomicBool,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self { at: Mutex::new(("starting".to_owned(), Instant::now())), is_given_up: AtomicBool::new(false) }
    }

    /// From the thread: before each call.
    pub(super) fn is_at(&self, step: String) -> Result<(), NvmlError> {
        if self.is_given_up.load(Ordering::Relaxed) {
            return Err(NvmlError::Timeout);
        }
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = (step, Instant::now());
        Ok(())
    }

    /// What it is at.
    pub(super) fn step(&self) -> String {
        self.at.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// What is left of the patience with the call that it is at.
    pub(super) fn left(&self, patience: Duration) -> Duration {
        let since = self.at.lock().unwrap_or_else(PoisonError::into_inner).1;
        patience.saturating_sub(since.elapsed())
    }

    /// Nobody waits any more: it ends at its next step.
    pub(super) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }
}
