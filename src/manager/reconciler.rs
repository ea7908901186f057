//! Makes the world match what was asked: one machine at a time, one step per look.
//!
//! ```text
//!   wake (request, libvirt event, tick, start of the process)
//!        |                                +--------------------------------+
//!        v                                v                                |
//!   [dispatcher] --slot per VM--> observe -> plan --Act(step)--> do it ----+
//!        ^                                   |--Settled--> finish the record
//!        +------- "look again at t" ---------+--Wait(t)/GiveUp
//! ```
//!
//! Single flight per machine: a wake that arrives while its pass runs makes it run once more. It takes no
//! argument but the id, and remembers nothing between passes.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::steps::{self, Failure};
use super::{Manager, Result, error, hold};
use crate::hypervisor::Wake;
use crate::model::event::Outcome;
use crate::model::id::VmId;
use crate::model::state::Observed;
use crate::model::vm::{Desired, Trouble, Vm};
use crate::plan::vm::{Artefacts, Decision, Facts, Step, plan};
use crate::store::{audit, commit, vms};

/// Passes at once: libvirt takes about five calls per connection, and steps mostly wait.
const PASSES_AT_ONCE: usize = 8;
/// Ended passes that may wait to be noticed.
const DONE_QUEUE: usize = 64;
/// The same step so often in a row has no effect: something is wrong with it.
const MAX_REPEATS: u32 = 3;
/// Between a request to shut down and the next look.
const AFTER_ASK: SignedDuration = SignedDuration::from_secs(1);
/// First and longest pause after a failed step.
const BACKOFF: (u64, u64) = (1, 60);
/// Pause after a failure that is the hypervisor's weather, not the machine's.
const TRANSIENT_PAUSE: SignedDuration = SignedDuration::from_secs(2);

#[derive(Default)]
struct Slot {
    is_again: bool,
}

struct Dispatcher {
    manager: Arc<Manager>,
    running: HashMap<VmId, Slot>,
    queue: VecDeque<VmId>,
    timers: BTreeSet<(Instant, VmId)>,
    done: mpsc::Sender<(VmId, Option<Timestamp>)>,
}

/// Runs until the manager is told to stop, then waits for the passes under way.
pub async fn run(manager: Arc<Manager>, mut woken: mpsc::Receiver<VmId>) {
    let (done, mut finished) = mpsc::channel(DONE_QUEUE);
    let mut events = manager.hypervisor.wakes();
    let mut tick = tokio::time::interval(Duration::from_secs(manager.config.manager.tick_seconds));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let stop = manager.stop.clone();
    let mut dispatcher =
        Dispatcher { manager, running: HashMap::new(), queue: VecDeque::new(), timers: BTreeSet::new(), done };
    loop {
        let next_timer = dispatcher.timers.first().map(|(at, _)| *at);
        tokio::select! {
            () = stop.cancelled() => break,
            Some(vm) = woken.recv() => dispatcher.wake(vm),
            Some((vm, again)) = finished.recv() => dispatcher.finished(vm, again),
            wake = next_event(&mut events) => {
                dispatcher.manager.looks.changed();
                match wake {
                    Wake::Vm(vm) => dispatcher.wake(vm),
                    Wake::All => dispatcher.wake_all().await,
                }
            }
            _ = tick.tick() => dispatcher.wake_all().await,
            () = sleep_until(next_timer) => dispatcher.fire(),
        }
    }
    // A pass ends by itself at its next step: the token is cancelled.
    while !dispatcher.running.is_empty() {
        match tokio::time::timeout(Duration::from_secs(20), finished.recv()).await {
            Ok(Some((vm, _))) => {
                dispatcher.running.remove(&vm);
            }
            Ok(None) | Err(_) => break,
        }
    }
}

async fn next_event(events: &mut Option<mpsc::Receiver<Wake>>) -> Wake {
    if let Some(receiver) = events
        && let Some(wake) = receiver.recv().await
    {
        return wake;
    }
    *events = None;
    std::future::pending().await
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl Dispatcher {
    async fn wake_all(&mut self) {
        match self.manager.store.vm_ids().await {
            Ok(ids) => ids.into_iter().for_each(|vm| self.wake(vm)),
            Err(e) => tracing::error!(error = %error::chain(&e), "cannot list the machines to look at"),
        }
    }

    fn wake(&mut self, vm: VmId) {
        self.timers.retain(|(_, other)| *other != vm);
        if let Some(slot) = self.running.get_mut(&vm) {
            slot.is_again = true;
        } else if self.running.len() < PASSES_AT_ONCE {
            self.spawn(vm);
        } else if !self.queue.contains(&vm) {
            self.queue.push_back(vm);
        }
    }

    fn spawn(&mut self, vm: VmId) {
        self.running.insert(vm, Slot::default());
        let (manager, done) = (self.manager.clone(), self.done.clone());
        self.manager.tasks.spawn(async move {
            let again = match pass(&manager, vm).await {
                Ok(again) => again,
                Err(e) => {
                    tracing::error!(%vm, error = %error::chain(&e), "a pass failed");
                    Some(after(Timestamp::now(), TRANSIENT_PAUSE))
                }
            };
            let _ = done.send((vm, again)).await;
        });
    }

    fn finished(&mut self, vm: VmId, again: Option<Timestamp>) {
        let is_again = self.running.remove(&vm).is_some_and(|slot| slot.is_again);
        if is_again {
            self.queue.push_back(vm);
        } else if let Some(at) = again {
            let wait = Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default();
            self.timers.insert((Instant::now() + wait, vm));
        }
        while self.running.len() < PASSES_AT_ONCE {
            let Some(next) = self.queue.pop_front() else { break };
            self.spawn(next);
        }
    }

    fn fire(&mut self) {
        let now = Instant::now();
        while let Some((at, vm)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.remove(&(at, vm));
            self.wake(vm);
        }
    }
}

fn after(now: Timestamp, span: SignedDuration) -> Timestamp {
    now.saturating_add(span).unwrap_or(Timestamp::MAX)
}

/// What one look at a machine led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Looked {
    /// This step was done: look again.
    Did(Step),
    /// Look again at this time, or when something happens.
    Later(Timestamp),
    /// Nothing to do until something happens.
    AtRest,
}

/// Brings one machine as far as it goes now; tells when to look again.
///
/// # Errors
/// Where the store fails.
pub async fn pass(manager: &Arc<Manager>, id: VmId) -> Result<Option<Timestamp>> {
    let mut last: Option<(Step, u32)> = None;
    while !manager.stop.is_cancelled() {
        match look(manager, id).await? {
            Looked::AtRest => return Ok(None),
            Looked::Later(at) => return Ok(Some(at)),
            Looked::Did(step) => {
                manager.looks.changed();
                let repeats = match &last {
                    Some((before, count)) if *before == step => count + 1,
                    _ => 1,
                };
                if repeats > MAX_REPEATS {
                    let failure = Failure::new(step.name(), "it was done several times and had no effect");
                    return match manager.store.vm(id).await? {
                        Some(vm) => record_failure(manager, &vm, failure).await.map(Some),
                        None => Ok(None),
                    };
                }
                last = Some((step, repeats));
            }
        }
    }
    Ok(None)
}

/// Looks at one machine once, and does at most one step.
///
/// # Errors
/// Where the store fails.
pub async fn look(manager: &Arc<Manager>, id: VmId) -> Result<Looked> {
    let Some(vm) = manager.store.vm(id).await? else { return Ok(Looked::AtRest) };
    let observed = manager.hypervisor.observe(id).await;
    match decide(manager, &vm, &observed).await? {
        Decision::Settled => {
            settle(manager, &vm, &observed).await?;
            Ok(Looked::AtRest)
        }
        Decision::Wait(until) => {
            // Waiting for a lifetime's or window's end is being settled.
            if !matches!(observed, Observed::Unknown(_)) && is_at_rest(&vm, &observed) {
                settle(manager, &vm, &observed).await?;
            }
            Ok(Looked::Later(until))
        }
        Decision::GiveUp(why) => {
            finish(manager, &vm, Outcome::Failure, &why).await?;
            Ok(Looked::AtRest)
        }
        Decision::Act(step) => {
            hold::point(step.name()).await;
            let outcome = steps::execute(manager, &vm, &step).await;
            hold::point(&format!("after-{}", step.name())).await;
            match outcome {
                Ok(()) if step == Step::Forget => Ok(Looked::AtRest),
                Ok(()) if step == Step::AskShutdown => Ok(Looked::Later(after(Timestamp::now(), AFTER_ASK))),
                Ok(()) => Ok(Looked::Did(step)),
                Err(failure) => record_failure(manager, &vm, failure).await.map(Looked::Later),
            }
        }
    }
}

async fn decide(manager: &Manager, vm: &Vm, observed: &Observed) -> Result<Decision> {
    let artefacts = artefacts(manager, vm).await;
    let is_defined_as_wanted = match observed {
        Observed::Defined(domain) if vm.desired != Desired::Absent => match steps::domain_spec(manager, vm).await {
            Ok(spec) => spec.is_met_by(domain),
            // Rendering fails again, and is told, at the step that needs it.
            Err(_) => false,
        },
        _ => false,
    };
    let gpus = match super::gpus::standing(manager, vm, observed).await {
        Ok(gpus) => gpus,
        // Nothing may be concluded of a machine whose cards cannot be looked at.
        Err(why) => {
            tracing::warn!(vm = %vm.id, %why, "cannot look at a machine's GPUs");
            return Ok(Decision::Wait(after(Timestamp::now(), TRANSIENT_PAUSE)));
        }
    };
    let host = manager.host();
    let config = &manager.config.manager;
    let grace = SignedDuration::from_secs(i64::try_from(config.stop_grace_seconds).unwrap_or(i64::MAX));
    let facts = Facts {
        observed,
        artefacts,
        gpus,
        is_defined_as_wanted,
        boot_id: &host.boot_id,
        stop_grace: grace,
        max_attempts: config.max_attempts,
        now: Timestamp::now(),
    };
    Ok(plan(vm, &facts))
}

async fn artefacts(manager: &Manager, vm: &Vm) -> Artefacts {
    let files = manager.layout.vm(vm.id);
    let looked = tokio::task::spawn_blocking(move || Artefacts {
        has_folder: files.dir().exists(),
        disk: crate::image::disk::info(&files.root()).ok().map(|info| info.virtual_size),
        has_seed: files.seed().exists(),
        has_room: has_room(files.dir()),
    });
    looked.await.unwrap_or_default()
}

/// Space that must be free before a machine that was held by a full disk goes on.
const ROOM: u64 = 256 << 20;

fn has_room(dir: &std::path::Path) -> bool {
    nix::sys::statvfs::statvfs(dir).is_ok_and(|fs| fs.blocks_available().saturating_mul(fs.fragment_size()) >= ROOM)
}

/// True where everything asked for is done, though something is to come at a known time.
fn is_at_rest(vm: &Vm, observed: &Observed) -> bool {
    use crate::model::state::{Power, WhyPaused};
    match vm.desired {
        Desired::Running => vm.restart_requested.is_none() && matches!(observed.power(), Some(Power::Running)),
        Desired::Paused => matches!(observed.power(), Some(Power::Paused(WhyPaused::Asked))),
        Desired::Stopped => !observed.is_active(),
        Desired::Absent => false,
    }
}

async fn settle(manager: &Arc<Manager>, vm: &Vm, observed: &Observed) -> Result<()> {
    if vm.trouble.is_some() || vm.attempts > 0 || vm.next_try.is_some() {
        let mut tx = manager.store.write().await?;
        if let Some(mut fresh) = vms::read(&mut tx, vm.id).await? {
            (fresh.trouble, fresh.attempts, fresh.next_try) = (None, 0, None);
            vms::update(&mut tx, &fresh).await?;
        }
        commit(tx).await?;
    }
    finish(manager, vm, Outcome::Success, "").await?;
    if observed.is_active() {
        super::boot::ensure_watched(manager, vm);
    }
    Ok(())
}

/// Writes the second half of the record of everything asked up to this generation.
async fn finish(manager: &Manager, vm: &Vm, outcome: Outcome, detail: &str) -> Result<()> {
    if !manager.store.has_pending(vm.id, vm.generation).await? {
        return Ok(());
    }
    let mut tx = manager.store.write().await?;
    audit::finish(&mut tx, vm.id, vm.generation, outcome, detail, Timestamp::now()).await?;
    Ok(commit(tx).await?)
}

/// Notes a failed step in the row; tells when to try again.
async fn record_failure(manager: &Manager, vm: &Vm, failure: Failure) -> Result<Timestamp> {
    let now = Timestamp::now();
    let mut tx = manager.store.write().await?;
    let Some(mut fresh) = vms::read(&mut tx, vm.id).await? else { return Ok(now) };
    if fresh.generation != vm.generation {
        // Something else is wanted by now: that is tried at once.
        return Ok(now);
    }
    let (shortest, longest) = BACKOFF;
    let pause = if failure.is_transient {
        TRANSIENT_PAUSE
    } else {
        fresh.attempts = fresh.attempts.saturating_add(1);
        let seconds = shortest.checked_shl(fresh.attempts.saturating_sub(1)).unwrap_or(longest).min(longest);
        fresh.trouble = Some(Trouble {
            step: failure.step.to_owned(),
            message: failure.message.clone(),
            at: now,
            is_final: failure.is_final,
        });
        SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(60))
    };
    let next = after(now, pause);
    fresh.next_try = Some(next);
    vms::update(&mut tx, &fresh).await?;
    commit(tx).await?;
    let stage = if failure.is_transient { "retry" } else { "failed" };
    manager.watch.tell(vm, stage, format!("{}: {}", failure.step, failure.message));
    Ok(next)
}
