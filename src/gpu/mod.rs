//! The port to a host's cards, and its two implementations.
//!
//! ```text
//!   manager --discover, functions--> [dyn GpuBackend] --> HostGpus   /sys, /proc and NVML
//!           --bind, restore,                         --> fake.rs    in memory, with faults
//!             vgpu, reshape,
//!             sanitise -->
//!           --kernel_log-->                           kmsg: the kernel's log
//!
//!   HostGpus: sysfs --> cards --> nvml (if the NVIDIA driver has one) --> join by address
//!                         \--> names (pci.ids) --> holders --> judged: mode, blockers
//!
//!   all changes: claim (flights, lanes, function) --starts--> gvm helper --> steps: the writes; nvml::act: MIG
//! ```
//!
//! Discovery only reads: it never resets, rescans, binds or wakes a card. Drivers are changed by a child process alone,
//! since the kernel may never come back from it; see `docs/adr/0014-claim-and-return.md`. Besides `host`, this is the only folder that
//! names the kernel's files, and the only one that names `nvml_wrapper`. What it finds are facts of the moment; who may
//! have a card and who has it is decided elsewhere.

mod claim;
mod fabric;
pub mod fake;
mod files;
mod flights;
mod function;
mod holders;
mod join;
mod kmsg;
mod lanes;
mod names;
mod nvml;
mod sanitise;
mod share;
pub mod steps;
mod sysfs;
mod uevent;
mod vgpu;
mod worker;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::claim::Claims;
use self::files::Files;
use self::kmsg::KernelLog;
use self::lanes::NoAnswer;
use self::nvml::NvmlReader;
use self::uevent::Events;
use self::worker::{NotBegun, Worker};
use crate::model::card::blockers::BlockerKind;
use crate::model::card::function::{DriverJob, FunctionState, Restore};
use crate::model::card::history::{SanitiseJob, SanitiseMethod};
use crate::model::card::kernel_log::KernelRecord;
use crate::model::card::pci::PciIds;
use crate::model::card::shape::ShapeJob;
use crate::model::card::vgpu::VgpuJob;
use crate::model::card::{CardFinding, CardFindingKind, Discovery, NvmlStatus};
use crate::model::gpu::PciAddress;

/// A look takes milliseconds, and some seconds where cards are woken by NVML's first question; eight of them in turn
/// stay below this.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time for a function to change its driver, all told. Letting go takes a card seconds, and a driver may come up to 20 s
/// after a reset.
const BIND_PATIENCE: Duration = Duration::from_secs(30);

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
    /// One of them does not let itself be read.
    #[error("reading {address} has not come back within {} s", .after.as_secs())]
    Hangs {
        /// Which function.
        address: PciAddress,
        /// How long it has been waited for.
        after: Duration,
    },
}

impl From<NoAnswer> for GpuError {
    fn from(error: NoAnswer) -> Self {
        match error {
            NoAnswer::Hangs(after) => Self::Busy(after),
            NoAnswer::Broken => Self::Broken,
            NoAnswer::NoThread(error) => Self::NoThread(error),
        }
    }
}

/// Why functions are not with the driver that they should be with. All texts name the function.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// It must not be done as things are; nothing was touched. Somebody has it open, it is no card, it is not there.
    #[error("{0}")]
    Refused(String),
    /// The kernel did not do it: a write failed, or the driver did not come. Some functions may be changed already.
    #[error("{0}")]
    Failed(String),
    /// A write does not come back. The card is not touched again as long as it hangs; mostly only a reboot helps.
    #[error("{0}")]
    Stuck(String),
    /// It may work the next time: another change is under way, or the helper could not be started or was killed.
    #[error("{0}")]
    Transient(String),
}

/// Records of the kernel's log, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogBatch {
    /// They.
    pub records: Vec<KernelRecord>,
    /// True where more have come already.
    pub has_more: bool,
    /// True where the kernel had to overwrite some before they were read.
    pub has_gap: bool,
}

/// The port: what the manager asks of cards.
///
/// `bind` and `restore` do what is not done yet and can be repeated from wherever they were ended. They are told functions,
/// never kinds of device. Whether the caller may have a card is not asked here: that is what leases are for.
#[async_trait]
pub trait GpuBackend: Send + Sync + std::fmt::Debug {
    /// Looks at all cards. Reads only.
    ///
    /// # Errors
    ///
    /// Where the host does not answer in time; the same question may be asked again.
    async fn discover(&self) -> Result<Discovery, GpuError>;

    /// Looks at these functions alone, in this order. Reads only; takes milliseconds, and a moment for who has them open.
    ///
    /// # Errors
    ///
    /// Where one of them does not answer in time.
    async fn functions(&self, addresses: &[PciAddress]) -> Result<Vec<FunctionState>, GpuError>;

    /// Gives functions to VFIO, cards before their siblings.
    ///
    /// # Errors
    ///
    /// Where it must not be, or did not come to be; see [`BindError`].
    async fn bind(&self, addresses: &[PciAddress]) -> Result<(), BindError>;

    /// Gives functions back to the drivers that they had, siblings before their cards.
    ///
    /// # Errors
    ///
    /// Where it must not be, or did not come to be; see [`BindError`].
    async fn restore(&self, functions: &[Restore]) -> Result<(), BindError>;

    /// Makes a vGPU, or takes one away; by the name of its type, and only where nobody has it open.
    ///
    /// # Errors
    ///
    /// Where it must not be, or did not come to be; see [`BindError`].
    async fn vgpu(&self, job: &VgpuJob) -> Result<(), BindError>;

    /// Changes what a card is divided into.
    ///
    /// # Errors
    ///
    /// Where it must not be, or did not come to be; see [`BindError`].
    async fn reshape(&self, job: &ShapeJob) -> Result<(), BindError>;

    /// Sanitises a whole card that nobody has open, and says by what. Refused: it must not be reset as it is, so that the
    /// reset at VFIO's close is all that it had.
    ///
    /// # Errors
    ///
    /// Where it must not be, or did not come to be; see [`BindError`].
    async fn sanitise(&self, job: &SanitiseJob) -> Result<SanitiseMethod, BindError>;

    /// Records of the kernel's log past this number that were not given yet. Comes back at once.
    ///
    /// # Errors
    ///
    /// In plain words, where the log cannot be read; the next call tries again.
    async fn kernel_log(&self, after: Option<u64>) -> Result<LogBatch, String>;

    /// Waits until devices came, went or changed their drivers; for ever where nothing tells.
    async fn changed(&self) {
        std::future::pending().await
    }
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
    /// Cards that the host's screen is on and that are handed out all the same.
    pub boot_displays: BTreeSet<PciAddress>,
    /// The program that changes drivers: gvm itself, as it was found at the start.
    pub helper: PathBuf,
    /// Time for each function to change its driver. The helper is killed after that.
    pub bind_patience: Duration,
}

impl Default for GpuOptions {
    fn default() -> Self {
        Self {
            root: "/".into(),
            pci_ids: None,
            nvml: None,
            nvml_patience: nvml::PATIENCE,
            managed: None,
            boot_displays: BTreeSet::new(),
            helper: std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into()),
            bind_patience: BIND_PATIENCE,
        }
    }
}

/// The cards of this host.
#[derive(Clone, Debug)]
pub struct HostGpus {
    options: GpuOptions,
    files: Files,
    nvml: NvmlReader,
    worker: Arc<Worker>,
    claims: Arc<Claims>,
    events: Events,
    log: Arc<KernelLog>,
}

impl HostGpus {
    /// Looks nowhere yet.
    pub fn new(options: GpuOptions) -> Self {
        let files = Files::below(&options.root);
        let nvml = NvmlReader::new(options.nvml.clone(), options.nvml_patience);
        let claims = Arc::new(Claims::new(options.clone()));
        let log = Arc::new(KernelLog::new(&options));
        Self { options, files, nvml, worker: Arc::new(Worker::new("gvm-gpus")), claims, events: Events::default(), log }
    }

    /// Looks at all cards on this thread: for programs without a runtime. It blocks as long as the kernel does.
    pub fn look(&self) -> Discovery {
        self.claims.flights.adopt(&self.options.root);
        let hanging = self.claims.flights.hanging();
        let sysfs::Found { mut cards, nvswitches, mut findings } = sysfs::read(&self.files, &hanging);
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
        share::divide(&mut cards);
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
        let mut found = Discovery { cards, findings, nvml: status, nvswitches }.judged(self.options.managed.as_ref());
        for card in found.cards.iter_mut().filter(|card| self.options.boot_displays.contains(&card.address)) {
            card.blockers.retain(|blocker| blocker.kind != BlockerKind::BootDisplay);
        }
        found
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

    async fn functions(&self, addresses: &[PciAddress]) -> Result<Vec<FunctionState>, GpuError> {
        self.claims.functions(addresses).await
    }

    async fn bind(&self, addresses: &[PciAddress]) -> Result<(), BindError> {
        self.claims.change(DriverJob::Bind(addresses.to_vec())).await
    }

    async fn restore(&self, functions: &[Restore]) -> Result<(), BindError> {
        self.claims.change(DriverJob::Restore(functions.to_vec())).await
    }

    async fn vgpu(&self, job: &VgpuJob) -> Result<(), BindError> {
        self.claims.vgpu(job).await
    }

    async fn reshape(&self, job: &ShapeJob) -> Result<(), BindError> {
        self.claims.reshape(job).await
    }

    async fn sanitise(&self, job: &SanitiseJob) -> Result<SanitiseMethod, BindError> {
        self.claims.sanitise(job).await
    }

    async fn kernel_log(&self, after: Option<u64>) -> Result<LogBatch, String> {
        let mut batch = self.log.read()?;
        batch.records.retain(|record| after.is_none_or(|after| record.sequence > after));
        Ok(batch)
    }

    async fn changed(&self) {
        match self.options.root == Path::new("/") {
            true => self.events.next().await,
            false => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod cases_tests;
#[cfg(test)]
mod junk_tests;
#[cfg(test)]
mod tree_tests;
