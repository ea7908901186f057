//! What NVIDIA's library knows of the cards that its driver has.
//!
//! ```text
//!   read() --begins--> thread gvm-nvml: open, init, each card, shut down
//!          <--Watch--  "asking for the memory of card 3"    before each call
//!          <--Card---  facts of one card
//!          <--End----  the driver's version, or why not
//! ```
//!
//! Each call has a deadline: when it has passed, what has come is returned, with the step that hangs.
//! NVML is opened and closed for each look, because an open NVML holds `/dev/nvidiaN`: a manager that kept it would be
//! the holder that keeps its own cards from being taken. It is only asked when the driver has a card, since
//! initialising NVML may load the driver.
//!
//! What a card does not have, or this version of the library cannot tell, is left out; all else that is not told is a
//! fault of the card, since whoever looks for healthy cards must not take silence for health. Changes are in [`act`].

pub(super) mod act;
mod ask;
mod health;
mod mig;
mod raw;
mod vgpu;
mod words;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use self::ask::{Ask, Say, Watch};
use self::vgpu::Names;
use self::words::{Trouble, words};
use super::worker::{NotBegun, Worker};
use crate::model::card::{MigFacts, NvmlFacts, NvmlStatus};
use crate::model::gpu::PciAddress;
use crate::model::units::Mib;

/// A card without persistence mode is initialised by the first question, which takes seconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Messages that wait: the reader takes them as they come, so that this only spares switches of threads.
const QUEUE: usize = 16;

/// The longest wait before the one who waits looks again at which call the thread is in.
const GLANCE: Duration = Duration::from_millis(250);

/// More cards than a host can have.
const MAX_CARDS: u32 = 1024;

/// What came of asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: NvmlStatus,
    pub(super) cards: Vec<NvmlFacts>,
    /// Names of the cards' vGPU types by numbers, which mean nothing a moment later.
    pub(super) names: Vec<(PciAddress, Names)>,
    /// Cards that NVML counts and says nothing of: it was lost, most often.
    pub(super) faults: Vec<String>,
}

impl Answer {
    fn failed(why: String) -> Self {
        Self { status: NvmlStatus::Failed { why }, cards: Vec::new(), names: Vec::new(), faults: Vec::new() }
    }
}

/// The library, and the one thread that calls it.
#[derive(Clone, Debug)]
pub(super) struct NvmlReader {
    library: Option<PathBuf>,
    patience: Duration,
    worker: Arc<Worker>,
}

enum Message {
    Card(Box<NvmlFacts>, Names),
    Fault(String),
    End(Result<Option<String>, String>),
}

impl NvmlReader {
    pub(super) fn new(library: Option<PathBuf>, patience: Duration) -> Self {
        Self { library, patience, worker: Arc::new(Worker::new("gvm-nvml")) }
    }

    /// Asks about all cards. Returns within the deadline of one call after the last call that came back.
    pub(super) fn read(&self) -> Answer {
        let (sender, receiver) = sync_channel(QUEUE);
        let library = self.library.clone();
        let watch = Arc::new(Watch::new());
        let watched = Arc::clone(&watch);
        let begun = self.worker.begin(move || {
            let end = survey(library.as_deref(), &sender, &watched).map_err(|error| words(&error));
            // Nobody listens any more where a call took longer than the deadline.
            let _ = sender.send(Message::End(end));
        });
        match begun {
            Ok(()) => self.collect(&receiver, &watch),
            Err(busy @ NotBegun::Busy(_)) => Answer::failed(format!("NVML does not answer: {busy}")),
            Err(error @ NotBegun::NoThread(_)) => Answer::failed(error.to_string()),
        }
    }

    fn collect(&self, receiver: &Receiver<Message>, watch: &Watch) -> Answer {
        let mut answer = Answer::failed(String::new());
        loop {
            match receiver.recv_timeout(watch.left(self.patience).min(GLANCE)) {
                Ok(Message::Card(card, names)) => {
                    answer.names.push((card.address, names));
                    answer.cards.push(*card);
                }
                Ok(Message::Fault(fault)) => answer.faults.push(fault),
                Ok(Message::End(end)) => {
                    answer.status = match end {
                        Ok(driver) => NvmlStatus::Ready { driver },
                        Err(why) => NvmlStatus::Failed { why },
                    };
                    return answer;
                }
                Err(RecvTimeoutError::Timeout) if !watch.left(self.patience).is_zero() => {}
                Err(RecvTimeoutError::Timeout) => {
                    watch.give_up();
                    let (patience, step) = (self.patience.as_secs_f32(), watch.step());
                    let why = format!("NVML did not answer within {patience} s: {step}");
                    answer.status = NvmlStatus::Failed { why };
                    return answer;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let why = format!("asking NVML broke off: {}", watch.step());
                    answer.status = NvmlStatus::Failed { why };
                    return answer;
                }
            }
        }
    }
}

/// Opens the library, which is closed when it is dropped.
fn open(library: Option<&Path>) -> Result<Nvml, NvmlError> {
    match library {
        Some(path) => Nvml::builder().lib_path(OsStr::new(path)).init(),
        None => Nvml::init(),
    }
}

/// Runs on the thread. Where nobody waits any more, it ends at the next step.
fn survey(library: Option<&Path>, out: &SyncSender<Message>, watch: &Watch) -> Result<Option<String>, NvmlError> {
    let say = |step: String| watch.is_at(step);
    say("opening and initialising it".to_owned())?;
    let nvml = open(library)?;
    say("asking for the driver's version".to_owned())?;
    let driver = nvml.sys_driver_version().ok();
    say("counting the cards".to_owned())?;
    let count = nvml.device_count()?.min(MAX_CARDS);
    for index in 0..count {
        say(format!("finding card {index}"))?;
        let found = nvml.device_by_index(index).and_then(|device| {
            let address = address(&device)?;
            Ok((device, address))
        });
        let message = match found {
            Ok((device, address)) => {
                let (facts, names) = card(&device, address, index, &say)?;
                Message::Card(Box::new(facts), names)
            }
            Err(error) => Message::Fault(format!("card {index} of NVML: {}", words(&error))),
        };
        out.send(message).map_err(|_| NvmlError::Timeout)?;
    }
    say("closing it".to_owned())?;
    drop(nvml);
    Ok(driver)
}

/// By the long text (eight digits of domain, upper case): the numbers beside it lack the function.
fn address(device: &Device<'_>) -> Result<PciAddress, NvmlError> {
    let info = device.pci_info()?;
    info.bus_id.trim().parse().map_err(|_| NvmlError::GetPciInfoFailed)
}

fn card(device: &Device<'_>, address: PciAddress, index: u32, say: Say<'_>) -> Result<(NvmlFacts, Names), NvmlError> {
    let mut names = Names::new();
    let mut faults = Vec::new();
    let mut facts = NvmlFacts::at(address);
    let ask = Ask::new(say, format!("card {index} ({address})"));
    ask.step("the UUID")?;
    facts.uuid = told("UUID", device.uuid(), &mut faults).filter(|uuid| !uuid.is_empty());
    ask.step("the name")?;
    facts.name = told("name", device.name(), &mut faults).filter(|name| !name.is_empty());
    ask.step("the memory")?;
    facts.memory = told("memory", device.memory_info(), &mut faults).map(|memory| Mib(memory.total >> 20));
    ask.step("the minor number")?;
    facts.minor = told("minor number", device.minor_number(), &mut faults);
    ask.step("persistence mode")?;
    facts.is_persistent = told("persistence mode", device.is_in_persistent_mode(), &mut faults);
    ask.step("MIG mode")?;
    let mode = told("MIG mode", device.mig_mode(), &mut faults);
    let profiles = match &mode {
        Some(_) => {
            let all = mig::profiles(device, facts.memory, &ask, &mut faults);
            told("MIG profiles", all, &mut faults).unwrap_or_default()
        }
        None => Vec::new(),
    };
    if let Some(mode) = mode {
        let geometry = told("MIG placements", mig::geometry(device, &profiles, &ask), &mut faults).flatten();
        let mut mig =
            MigFacts { is_on: mode.current == 1, is_on_pending: mode.pending == 1, geometry, instances: Vec::new() };
        if mig.is_on {
            let found = told("MIG instances", mig::instances(device, &profiles, &ask), &mut faults);
            mig.instances = found.unwrap_or_default().into_iter().map(|found| found.made).collect();
        }
        facts.mig = Some(mig);
    }
    facts.host_vgpu = told("the way in which vGPUs are made", vgpu::host_mode(device, &ask), &mut faults);
    if facts.host_vgpu.is_some() {
        // What is not told is the stricter of both, and so no fault.
        facts.is_mixed = vgpu::is_mixed(device, &ask).unwrap_or(false);
        let types = vgpu::types(device, &profiles, &ask, &mut names, &mut faults);
        facts.vgpu_types = told("types of vGPU", types, &mut faults).unwrap_or_default();
    }
    facts.recovery = told("the recovery that it needs", health::recovery(device, &ask), &mut faults);
    facts.remapped = told("replaced rows of memory", health::remapped(device, &ask), &mut faults);
    facts.throttled = told("what slows it down", health::throttled(device, &ask), &mut faults).unwrap_or_default();
    facts.faults = faults;
    Ok((facts, names))
}

/// What cannot be asked of this kind of card, or by this version of the library, is no fault of the card.
fn told<T, E: Into<Trouble>>(what: &str, answer: Result<T, E>, faults: &mut Vec<String>) -> Option<T> {
    match answer.map_err(Into::into) {
        Ok(value) => Some(value),
        Err(trouble) => {
            if !trouble.is_absence() {
                faults.push(format!("{what}: {}", trouble.words()));
            }
            None
        }
    }
}

#[cfg(test)]
#[path = "nvml_tests.rs"]
mod tests;
