//! What NVIDIA's library knows of the cards that its driver has.
//!
//! ```text
//!   read() --begins--> thread gvm-nvml: open, init, each card, shut down
//!          <--Step---  "asking for the memory of card 3"    one before each call
//!          <--Card---  facts of one card
//!          <--End----  the driver's version, or why not
//! ```
//!
//! Each call has a deadline: when no message comes in time, what has come is returned, with the step that hangs.
//! NVML is opened and closed for each look, because an open NVML holds `/dev/nvidiaN`: a manager that kept it would be
//! the holder that keeps its own cards from being taken. It is only asked when the driver has a card, since
//! initialising NVML may load the driver.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::worker::{NotBegun, Worker};
use crate::model::card::{MigFacts, NvmlFacts, NvmlStatus};
use crate::model::gpu::PciAddress;
use crate::model::units::Mib;

/// A card without persistence mode is initialised by the first question, which takes seconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Messages that wait: the reader takes them as they come, so that this only spares switches of threads.
const QUEUE: usize = 16;

/// More cards than a host can have.
const MAX_CARDS: u32 = 1024;

/// What came of asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: NvmlStatus,
    pub(super) cards: Vec<NvmlFacts>,
    /// Cards that NVML counts and says nothing of: it was lost, most often.
    pub(super) faults: Vec<String>,
}

impl Answer {
    fn failed(why: String) -> Self {
        Self { status: NvmlStatus::Failed { why }, cards: Vec::new(), faults: Vec::new() }
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
    Step(String),
    Card(NvmlFacts),
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
        let begun = self.worker.begin(move || {
            let end = survey(library, &sender).map_err(|error| words(&error));
            // Nobody listens any more where a call took longer than the deadline.
            let _ = sender.send(Message::End(end));
        });
        match begun {
            Ok(()) => self.collect(&receiver),
            Err(busy @ NotBegun::Busy(_)) => Answer::failed(format!("NVML does not answer: {busy}")),
            Err(error @ NotBegun::NoThread(_)) => Answer::failed(error.to_string()),
        }
    }

    fn collect(&self, receiver: &Receiver<Message>) -> Answer {
        let mut answer = Answer::failed(String::new());
        let mut step = "starting".to_owned();
        loop {
            match receiver.recv_timeout(self.patience) {
                Ok(Message::Step(next)) => step = next,
                Ok(Message::Card(card)) => answer.cards.push(card),
                Ok(Message::Fault(fault)) => answer.faults.push(fault),
                Ok(Message::End(end)) => {
                    answer.status = match end {
                        Ok(driver) => NvmlStatus::Ready { driver },
                        Err(why) => NvmlStatus::Failed { why },
                    };
                    return answer;
                }
                Err(RecvTimeoutError::Timeout) => {
                    let why = format!("NVML did not answer within {} s: {step}", self.patience.as_secs_f32());
                    answer.status = NvmlStatus::Failed { why };
                    return answer;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    answer.status = NvmlStatus::Failed { why: format!("asking NVML broke off: {step}") };
                    return answer;
                }
            }
        }
    }
}

/// Runs on the thread. Where nobody listens any more, sending fails and it ends at the next step.
fn survey(library: Option<PathBuf>, out: &SyncSender<Message>) -> Result<Option<String>, NvmlError> {
    let say = |step: String| out.send(Message::Step(step)).map_err(|_| NvmlError::Timeout);
    say("opening and initialising it".to_owned())?;
    let nvml = match &library {
        Some(path) => Nvml::builder().lib_path(OsStr::new(path)).init()?,
        None => Nvml::init()?,
    };
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
            Ok((device, address)) => Message::Card(card(&device, address, index, &say)?),
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

fn card(
    device: &Device<'_>,
    address: PciAddress,
    index: u32,
    say: &dyn Fn(String) -> Result<(), NvmlError>,
) -> Result<NvmlFacts, NvmlError> {
    let mut faults = Vec::new();
    let mut facts = NvmlFacts::at(address);
    let step = |what: &str| say(format!("asking for {what} of card {index} ({address})"));
    step("the UUID")?;
    facts.uuid = told("UUID", device.uuid(), &mut faults).filter(|uuid| !uuid.is_empty());
    step("the name")?;
    facts.name = told("name", device.name(), &mut faults).filter(|name| !name.is_empty());
    step("the memory")?;
    facts.memory = told("memory", device.memory_info(), &mut faults).map(|memory| Mib(memory.total >> 20));
    step("the minor number")?;
    facts.minor = told("minor number", device.minor_number(), &mut faults);
    step("persistence mode")?;
    facts.is_persistent = told("persistence mode", device.is_in_persistent_mode(), &mut faults);
    step("MIG mode")?;
    let mig = told("MIG mode", device.mig_mode(), &mut faults);
    facts.mig =
        mig.map(|mode| MigFacts { is_on: mode.current == 1, is_on_pending: mode.pending == 1, ..MigFacts::default() });
    facts.faults = faults;
    Ok(facts)
}

/// What cannot be asked of this kind of card, or by this version of the library, is no fault of the card.
fn told<T>(what: &str, answer: Result<T, NvmlError>, faults: &mut Vec<String>) -> Option<T> {
    match answer {
        Ok(value) => Some(value),
        Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound) => None,
        Err(error) => {
            faults.push(format!("{what}: {}", words(&error)));
            None
        }
    }
}

/// What an error means where that is known.
fn words(error: &NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(error) => format!("NVML cannot be loaded: {error}"),
        NvmlError::FailedToLoadSymbol(symbol) => format!("this is no NVML that gvm can use: {symbol}"),
        NvmlError::DriverNotLoaded => "the NVIDIA driver is not loaded".to_owned(),
        NvmlError::LibRmVersionMismatch => "NVML and the NVIDIA driver are of different versions".to_owned(),
        NvmlError::GpuLost => "the card has fallen off the bus".to_owned(),
        NvmlError::NoPermission => "NVML may not be asked by this user".to_owned(),
        error => error.to_string(),
    }
}

#[cfg(test)]
#[path = "nvml_tests.rs"]
mod tests;
