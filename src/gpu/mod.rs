//! The port to a host's cards, and its two implementations.
//!
//! ```text
//!   manager --discover--> [dyn GpuBackend] --> HostGpus   /sys, /proc and NVML
//!           <-Discovery--                  --> fake.rs    in memory, with faults
//!
//!   HostGpus: sysfs --> cards --> nvml (if the NVIDIA driver has one) --> join by address
//!                         \--> names (pci.ids) --> holders --> judged: mode, blockers
//! ```
//!
//! Discovery only reads: it never resets, rescans, binds or wakes a card. Besides `host`, this is the only folder that
//! names the kernel's files, and the only one that names `nvml_wrapper`. What it finds are facts of the moment; who may
//! have a card and who has it is decided elsewhere.

pub mod fake;
mod files;
mod holders;
mod join;
mod names;
mod nvml;
mod sysfs;
mod worker;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::files::Files;
use self::nvml::NvmlReader;
use self::worker::{NotBegun, Worker};
use crate::model::card::pci::PciIds;
use crate::model::card::{CardFinding, CardFindingKind, Discovery, NvmlStatus};
use crate::model::gpu::PciAddress;

/// A look takes milliseconds, and some seconds where cards are woken by NVML's first question; eight of them in turn
/// stay below this.
const PATIENCE: Duration = Duration::from_secs(60);

/// Driver whose cards NVML knows.
const NVIDIA_DRIVER: &str = "nvidia";

/// Why there is no discovery. All of these may pass.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// It took too long.
    #[error("looking at the cards took longer than {} s", .0.as_secs())]
    Deadline(Duration),
    /// An earlier look hangs.
    #[error("looking at the cards: an earlier look has not come back for {} s", .0.as_secs())]
    Busy(Duration),
    /// It broke off.
    #[error("looking at the cards broke off")]
    Broken,
    /// The system gives no thread.
    #[error("looking at the cards: no thread can be started")]
    NoThread(#[source] std::io::Error),
}

/// The port: what the manager asks of cards.
#[async_trait]
pub trait GpuBackend: Send + Sync + std::fmt::Debug {
    /// Looks at all cards. Reads only.
    ///
    /// # Errors
    ///
    /// Where the host does not answer in time; the same question may be asked again.
    async fn discover(&self) -> Result<Discovery, GpuError>;
}

/// Where to look, and which cards count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuOptions {
    /// The folder that stands for `/`.
    pub root: PathBuf,
    /// The PCI ID database; `None` looks where distributions keep it.
    pub pci_ids: Option<PathBuf>,
    /// NVML; `None` takes the system's.
    pub nvml: Option<PathBuf>,
    /// Deadline of one call of NVML.
    pub nvml_patience: Duration,
    /// The cards that gvm manages; `None` where no list was made, so that all count. Others are shown, and blocked.
    pub managed: Option<BTreeSet<PciAddress>>,
}

impl Default for GpuOptions {
    fn default() -> Self {
        Self { root: "/".into(), pci_ids: None, nvml: None, nvml_patience: nvml::PATIENCE, managed: None }
    }
}

/// The cards of this host.
#[derive(Clone, Debug)]
pub struct HostGpus {
    options: GpuOptions,
    files: Files,
    nvml: NvmlReader,
    worker: Arc<Worker>,
}

impl HostGpus {
    /// Looks nowhere yet.
    pub fn new(options: GpuOptions) -> Self {
        let files = Files::below(&options.root);
        let nvml = NvmlReader::new(options.nvml.clone(), options.nvml_patience);
        Self { options, files, nvml, worker: Arc::new(Worker::new("gvm-gpus")) }
    }

    /// Looks at all cards on this thread: for programs without a runtime. It blocks as long as the kernel does.
    pub fn look(&self) -> Discovery {
        let sysfs::Found { mut cards, nvswitches, mut findings } = sysfs::read(&self.files);
        let mut status = NvmlStatus::NotAsked;
        if cards.iter().any(|card| card.driver.as_deref() == Some(NVIDIA_DRIVER)) {
            let answer = self.nvml.read();
            if let NvmlStatus::Failed { why } = &answer.status {
                let kind = CardFindingKind::NvmlFailed;
                findings.push(CardFinding { kind, address: None, text: why.clone() });
            }
            status = answer.status.clone();
            findings.extend(join::nvml(&mut cards, answer));
        }
        let unnamed: Vec<PciIds> =
            cards.iter().filter(|card| join::known_name(card).is_none()).map(|c| c.ids).collect();
        let looked_up = match unnamed.is_empty() {
            true => Default::default(),
            false => names::look_up(&self.files, self.options.pci_ids.as_deref(), &unnamed),
        };
        for card in &mut cards {
            join::describe(card, &looked_up);
        }
        if let Some(why) = holders::search(&self.files, &mut cards).incomplete {
            findings.push(CardFinding { kind: CardFindingKind::HoldersIncomplete, address: None, text: why });
        }
        for address in self.options.managed.iter().flatten() {
            if !cards.iter().any(|card| card.address == *address) {
                let what = sysfs::what_is_at(&self.files, *address);
                let text = format!("{address} is on the list of managed cards and is no GPU: there is {what}");
                let kind = CardFindingKind::ManagedMissing;
                findings.push(CardFinding { kind, address: Some(*address), text });
            }
        }
        Discovery { cards, findings, nvml: status, nvswitches }.judged(self.options.managed.as_ref())
    }
}

#[async_trait]
impl GpuBackend for HostGpus {
    async fn discover(&self) -> Result<Discovery, GpuError> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let host = self.clone();
        let job = move || {
            // Whoever asked may have given up.
            let _ = sender.send(host.look());
        };
        self.worker.begin(job).map_err(|error| match error {
            NotBegun::Busy(since) => GpuError::Busy(since),
            NotBegun::NoThread(error) => GpuError::NoThread(error),
        })?;
        match tokio::time::timeout(PATIENCE, receiver).await {
            Ok(Ok(discovery)) => Ok(discovery),
            Ok(Err(_)) => Err(GpuError::Broken),
            Err(_) => Err(GpuError::Deadline(PATIENCE)),
        }
    }
}

#[cfg(test)]
mod cases_tests;
#[cfg(test)]
mod junk_tests;
#[cfg(test)]
mod tree_tests;
