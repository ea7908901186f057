//! Threads that wait for libvirt, so that nothing else has to.
//!
//! ```text
//!   call() --Job--> [bounded queue] --> worker 1..N, each with a connection of its own
//!      ^ reply (oneshot) or deadline
//!
//!   worker:  idle -> running -> idle
//!                       | deadline passed: stuck, a new worker takes its place
//!                       `-> the call returns after all: it goes on in a free place, or ends
//! ```
//!
//! A hung libvirtd holds threads, never the runtime. Stuck threads are bounded: when [`MAX_STUCK`] hang, no more are
//! made and calls fail at once, until one comes back. A connection serves one call at a time, far below the five at
//! which libvirtd starts to warn.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use virt::connect::Connect;

use super::session::Session;
use crate::hypervisor::{ErrorKind, HypervisorError, Result};

/// Calls that may wait. At some milliseconds each the last one is served within a deadline; more would only time out.
const QUEUE: usize = 512;

/// Threads of one pool that may hang in libvirt at once.
const MAX_STUCK: usize = 6;

type Work = Box<dyn FnOnce(Result<&Connect>) -> bool + Send>;

/// One call on its way.
struct Job {
    expires: Instant,
    /// Runs it and says whether the connection may be lost.
    work: Work,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    /// Workers that are not stuck.
    live: usize,
    /// What each busy worker has to be done by.
    running: BTreeMap<u64, Instant>,
    stuck: BTreeSet<u64>,
    last_worker: u64,
    is_closed: bool,
}

struct Inner {
    name: &'static str,
    uri: String,
    size: usize,
    state: Mutex<State>,
    wakeup: Condvar,
}

/// A fixed number of workers and their queue.
pub(super) struct Pool {
    inner: Arc<Inner>,
}

impl Pool {
    /// Starts `size` workers named after `name`, at most 11 bytes for the kernel to show all of it.
    pub(super) fn new(name: &'static str, uri: &str, size: usize) -> Result<Self> {
        let inner = Arc::new(Inner {
            name,
            uri: uri.to_owned(),
            size,
            state: Mutex::new(State::default()),
            wakeup: Condvar::new(),
        });
        let pool = Self { inner };
        for _ in 0..size {
            pool.inner.add_worker(&mut pool.inner.state())?;
        }
        Ok(pool)
    }

    /// Runs `work` on a worker with its connection and waits for the answer, at most for `deadline`.
    ///
    /// A call that takes longer goes on in the background: its effect may still come. Nothing is lost by that, since
    /// the manager looks again before it does anything.
    pub(super) async fn call<T, F>(&self, doing: &str, deadline: Duration, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connect) -> Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let asked = doing.to_owned();
        let work = move |conn: Result<&Connect>| {
            if reply.is_closed() {
                return false;
            }
            let result = match conn {
                Ok(conn) => work(conn),
                Err(error) => Err(HypervisorError { doing: asked, ..error }),
            };
            let may_be_lost = result.as_ref().is_err_and(|error| error.kind == ErrorKind::Transient);
            let _ = reply.send(result);
            may_be_lost
        };
        self.push(doing, deadline, Box::new(work))?;
        match tokio::time::timeout(deadline, answer).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(HypervisorError::new(ErrorKind::Transient, doing, "the call broke off inside gvm")),
            Err(_) => {
                self.sweep();
                let seconds = deadline.as_secs_f32();
                let message = format!("libvirt at {} did not answer within {seconds} s", self.inner.uri);
                Err(HypervisorError::new(ErrorKind::Transient, doing, message))
            }
        }
    }

    /// Hands over a call that nobody waits for. One that finds no room is left out.
    pub(super) fn post(
        &self,
        doing: &str,
        deadline: Duration,
        work: impl FnOnce(&Connect) -> Result<()> + Send + 'static,
    ) {
        let about = doing.to_owned();
        let work = move |conn: Result<&Connect>| match conn.and_then(work) {
            Ok(()) => false,
            Err(error) => {
                tracing::debug!(%error, doing = about, "nobody waited for this");
                error.kind == ErrorKind::Transient
            }
        };
        if let Err(error) = self.push(doing, deadline, Box::new(work)) {
            tracing::debug!(%error, "left out");
        }
    }

    fn push(&self, doing: &str, deadline: Duration, work: Work) -> Result<()> {
        let mut state = self.inner.state();
        let refuse = |message: String| Err(HypervisorError::new(ErrorKind::Transient, doing, message));
        if state.live == 0 {
            let (uri, stuck) = (&self.inner.uri, state.stuck.len());
            return refuse(format!("libvirt at {uri} does not answer: {stuck} calls hang in it"));
        }
        if state.queue.len() >= QUEUE {
            return refuse(format!("{QUEUE} calls wait for libvirt already"));
        }
        state.queue.push_back(Job { expires: Instant::now() + deadline, work });
        drop(state);
        self.inner.wakeup.notify_one();
        Ok(())
    }

    /// Declares workers stuck whose call is over its deadline, and replaces them. Called when a caller gives up, and
    /// from time to time for calls whose caller went away.
    pub(super) fn sweep(&self) {
        let now = Instant::now();
        let mut state = self.inner.state();
        let late: Vec<u64> = state.running.iter().filter(|(_, by)| **by <= now).map(|(worker, _)| *worker).collect();
        for worker in late {
            state.running.remove(&worker);
            state.stuck.insert(worker);
            state.live -= 1;
            let stuck = state.stuck.len();
            tracing::warn!(pool = self.inner.name, worker, stuck, "a call hangs in libvirt");
            if stuck <= MAX_STUCK
                && let Err(error) = self.inner.add_worker(&mut state)
            {
                tracing::error!(%error, "no thread for libvirt calls");
            }
        }
    }
}

impl Drop for Pool {
    /// Lets the workers end after the call they are in. They are not waited for: one may hang.
    fn drop(&mut self) {
        let mut state = self.inner.state();
        state.is_closed = true;
        state.queue.clear();
        drop(state);
        self.inner.wakeup.notify_all();
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_worker(self: &Arc<Self>, state: &mut State) -> Result<()> {
        state.last_worker += 1;
        let worker = state.last_worker;
        let inner = Arc::clone(self);
        let builder = thread::Builder::new().name(format!("{}-{worker}", self.name));
        builder
            .spawn(move || inner.work(worker))
            .map_err(|e| HypervisorError::new(ErrorKind::Transient, "starting a thread for libvirt", e.to_string()))?;
        state.live += 1;
        Ok(())
    }

    /// A worker's life.
    fn work(&self, worker: u64) {
        let mut session = Session::new(&self.uri);
        while let Some(job) = self.next(worker) {
            let may_be_lost = catch_unwind(AssertUnwindSafe(|| (job.work)(session.connection())));
            match may_be_lost {
                Ok(false) => {}
                Ok(true) => session.check(),
                Err(_) => {
                    tracing::error!(pool = self.name, "a libvirt call panicked");
                    // Not dropped: that may panic again, and what state it is in is not known.
                    std::mem::forget(std::mem::replace(&mut session, Session::new(&self.uri)));
                }
            }
            if !self.stays(worker) {
                return;
            }
        }
    }

    /// The next call that somebody still waits for; `None` when the pool is closed.
    fn next(&self, worker: u64) -> Option<Job> {
        let mut state = self.state();
        loop {
            if state.is_closed {
                return None;
            }
            match state.queue.pop_front() {
                Some(job) if job.expires <= Instant::now() => {}
                Some(job) => {
                    state.running.insert(worker, job.expires);
                    return Some(job);
                }
                None => state = self.wakeup.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// After a call: false for a worker that was declared stuck and has been replaced.
    fn stays(&self, worker: u64) -> bool {
        let mut state = self.state();
        state.running.remove(&worker);
        if !state.stuck.remove(&worker) {
            return true;
        }
        let is_needed = state.live < self.size;
        if is_needed {
            state.live += 1;
        }
        is_needed
    }
}
