//! Taking a card's functions from their drivers, and giving them back.
//!
//! ```text
//!   bind, restore --> in flight? --> look (lane of the slot) --> held? --> vfio-pci there? --> gvm helper --> as wished
//!                      \ Stuck,        \ Refused                 \ Refused    \ Refused           \ Failed, Stuck
//!                        Transient
//! ```
//!
//! All that can hang does so in a thread of its slot or in the helper. The helper is killed at its deadline; one that does
//! not die of it is left where it is, and its slot with it.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::Child;
use tokio::time::{Instant, timeout_at};

use super::files::Files;
use super::flights::{Flights, Process, Taken};
use super::function::Look;
use super::lanes::{Lane, Lanes, NoAnswer};
use super::steps::{NOT_LOADED, Progress, StepKind, VFIO, seconds};
use super::sysfs::slot;
use super::{BindError, GpuError, GpuOptions, function};
use crate::child::{self, ChildCall};
use crate::model::card::function::{DriverJob, FunctionState};
use crate::model::card::shape::{ShapeJob, instance_text};
use crate::model::card::vgpu::VgpuJob;
use crate::model::gpu::PciAddress;

/// Reads of a few files, and a search for holders that ends by itself before.
const PATIENCE: Duration = Duration::from_secs(5);

/// modprobe(8) reads some files and links a module in.
const MODPROBE: Duration = Duration::from_secs(10);

/// A card takes so much longer to be divided otherwise than a function to change its driver: 16 virtual functions take
/// half a minute to come to theirs.
const SHAPE_FACTOR: u32 = 4;

/// What a helper prints is a few lines for each function.
const MAX_OUTPUT: u64 = 1 << 20;

/// What is needed for changing drivers.
#[derive(Debug)]
pub(super) struct Claims {
    pub(super) options: GpuOptions,
    pub(super) files: Files,
    pub(super) flights: Arc<Flights>,
    pub(super) lanes: Lanes,
    /// The search through all processes, which is no slot's.
    holders: Lane,
}

impl Claims {
    pub(super) fn new(options: GpuOptions) -> Self {
        let files = Files::below(&options.root);
        let (flights, lanes) = (Arc::default(), Lanes::default());
        Self { options, files, flights, lanes, holders: Lane::new("gvm-gpu-holders") }
    }

    /// Reads these functions, each slot in its own lane, all at once.
    pub(super) async fn functions(&self, addresses: &[PciAddress]) -> Result<Vec<FunctionState>, GpuError> {
        self.adopt().await.map_err(GpuError::from)?;
        let hanging = self.flights.hanging();
        let read = addresses.iter().map(|&address| {
            let (files, hangs) = (self.files.clone(), hanging.get(&slot(address)).cloned());
            let lane = self.lanes.of(slot(address));
            async move {
                let job = move || function::state(&files, address, hangs.as_deref());
                lane.ask(PATIENCE, job).await.map_err(|error| match error {
                    NoAnswer::Hangs(after) => GpuError::Hangs { address, after },
                    error => error.into(),
                })
            }
        });
        let mut states = futures_util::future::try_join_all(read).await?;
        let files = self.files.clone();
        let search = move || {
            function::find_open(&files, &mut states);
            states
        };
        Ok(self.holders.ask(PATIENCE, search).await?)
    }

    /// Brings functions to their drivers.
    pub(super) async fn change(&self, job: DriverJob) -> Result<(), BindError> {
        self.adopt().await.map_err(|error| BindError::Transient(error.to_string()))?;
        let taken = self.flights.begin(&job.addresses())?;
        let looks = self.look(&job).await?;
        if looks.is_empty() {
            return Ok(());
        }
        let (files, held) = (self.files.clone(), looks.clone());
        let search = move || function::refuse_if_held(&files, &held);
        let searched = self.holders.ask(PATIENCE, search).await;
        searched.map_err(|error| BindError::Transient(format!("the search for holders: {error}")))??;
        if matches!(job, DriverJob::Bind(_)) {
            self.ensure_vfio().await?;
        }
        let job = function::in_order(job, looks);
        let (verb, functions): (_, Vec<String>) = match &job {
            DriverJob::Bind(addresses) => ("bind", addresses.iter().map(ToString::to_string).collect()),
            DriverJob::Restore(all) => ("restore", all.iter().map(ToString::to_string).collect()),
        };
        self.help(&taken, verb, functions, self.options.bind_patience).await?;
        match self.look(&job).await?.first() {
            None => Ok(()),
            Some(look) => Err(BindError::Failed(format!("{}: its driver has changed again meanwhile", look.address))),
        }
    }

    /// Makes a vGPU, or takes one away. The helper looks first: what is as wished is left alone, what somebody has open
    /// as well.
    pub(super) async fn vgpu(&self, job: &VgpuJob) -> Result<(), BindError> {
        self.adopt().await.map_err(|error| BindError::Transient(error.to_string()))?;
        let taken = self.flights.begin(&[job.site().parent])?;
        let (verb, name) = match job {
            VgpuJob::Make { name, .. } => ("make-vgpu", name),
            VgpuJob::Remove { name, .. } => ("remove-vgpu", name),
        };
        let words = vec![job.site().to_string(), name.to_string()];
        self.help(&taken, verb, words, self.options.bind_patience).await
    }

    /// Changes what a card is divided into. The helper looks first, as with vGPUs.
    pub(super) async fn reshape(&self, job: &ShapeJob) -> Result<(), BindError> {
        self.adopt().await.map_err(|error| BindError::Transient(error.to_string()))?;
        let taken = self.flights.begin(&[job.card()])?;
        let (verb, word) = match job {
            ShapeJob::Functions { count, .. } => {
                ("set-functions", Some(count.map_or_else(|| "all".to_owned(), |count| count.to_string())))
            }
            ShapeJob::MigMode { is_on, .. } => ("set-mig", Some(if *is_on { "on" } else { "off" }.to_owned())),
            ShapeJob::Reset { .. } => ("reset", None),
            ShapeJob::MakeInstance { instance, .. } => ("make-instance", Some(instance_text(instance))),
            ShapeJob::RemoveInstance { instance, .. } => ("remove-instance", Some(instance_text(instance))),
        };
        let words = [job.card().to_string()].into_iter().chain(word).collect();
        self.help(&taken, verb, words, self.options.bind_patience * SHAPE_FACTOR).await
    }

    /// The functions that are not as wished yet, and may be changed.
    async fn look(&self, job: &DriverJob) -> Result<Vec<Look>, BindError> {
        let mut slots: Vec<PciAddress> = job.addresses().into_iter().map(slot).collect();
        slots.sort_unstable();
        slots.dedup();
        let mut looks = Vec::new();
        for which in slots {
            let (files, job, given) = (self.files.clone(), job.clone(), self.options.boot_displays.clone());
            let look = move || function::look_at(&files, &job, which, &given);
            let found = self.lanes.of(which).ask(PATIENCE, look).await.map_err(|error| match error {
                NoAnswer::Hangs(_) => BindError::Stuck(format!("{which}: looking at it hangs in the kernel: {error}")),
                error => BindError::Transient(format!("{which}: looking at it: {error}")),
            })?;
            looks.extend(found?);
        }
        Ok(looks)
    }

    /// Looks once for what an earlier manager left.
    pub(super) async fn adopt(&self) -> Result<(), NoAnswer> {
        if self.flights.is_adopted() {
            return Ok(());
        }
        let (flights, root) = (Arc::clone(&self.flights), self.options.root.clone());
        self.holders.ask(PATIENCE, move || flights.adopt(&root)).await
    }

    async fn ensure_vfio(&self) -> Result<(), BindError> {
        let is_loaded = || self.files.exists(&format!("sys/bus/pci/drivers/{VFIO}"));
        if !is_loaded() && self.options.root == Path::new("/") {
            // Whether it could is seen by what is there afterwards.
            let _ = ChildCall::new("modprobe", MODPROBE).args([VFIO]).run().await;
        }
        if is_loaded() { Ok(()) } else { Err(BindError::Refused(NOT_LOADED.to_owned())) }
    }

    /// Runs the helper, with a deadline for each function.
    pub(super) async fn help(
        &self,
        taken: &Taken,
        verb: &str,
        words: Vec<String>,
        patience: Duration,
    ) -> Result<(), BindError> {
        let cannot = |error: std::io::Error| BindError::Transient(format!("the helper cannot be run: {error}"));
        let arguments = self.arguments(verb, words, patience);
        let mut call = ChildCall::new(&self.options.helper, patience).args(arguments);
        let mut child = call.command().stderr(Stdio::null()).spawn().map_err(cannot)?;
        taken.runs(child.id().and_then(Process::of));
        let Some(stdout) = child.stdout.take() else { return Err(cannot(std::io::ErrorKind::BrokenPipe.into())) };
        let mut lines = BufReader::new(stdout.take(MAX_OUTPUT)).lines();
        let mut deadline = Instant::now() + patience;
        let mut doing = "starting".to_owned();
        let mut failure = None;
        let status = loop {
            match timeout_at(deadline, lines.next_line()).await {
                Ok(Ok(Some(line))) => {
                    let Ok(progress) = serde_json::from_str::<Progress>(&line) else { continue };
                    doing = progress.words();
                    taken.does(&doing);
                    tracing::debug!(step = %doing, "gvm helper");
                    match progress {
                        Progress::Begin { .. } => deadline = Instant::now() + patience,
                        Progress::Failed { kind, text } => failure = Some((kind, text)),
                        _ => {}
                    }
                }
                // Its end, or nothing that can be read: then its status says the rest.
                Ok(Ok(None) | Err(_)) => match timeout_at(deadline, child.wait()).await {
                    Ok(status) => break status.map_err(cannot)?,
                    Err(_) => return Err(give_up(taken, child, &doing, patience).await),
                },
                Err(_) => return Err(give_up(taken, child, &doing, patience).await),
            }
        };
        match failure {
            Some((StepKind::Refused, text)) => Err(BindError::Refused(text)),
            Some((StepKind::Failed, text)) => Err(BindError::Failed(text)),
            None if status.success() => Ok(()),
            None if status.code().is_none() => {
                Err(BindError::Transient(format!("the helper ended with {status}, {doing}")))
            }
            None => Err(BindError::Failed(format!("the helper ended with {status}, {doing}"))),
        }
    }

    fn arguments(&self, verb: &str, words: Vec<String>, patience: Duration) -> Vec<std::ffi::OsString> {
        // Its own patience ends before ours, so that it can still say what did not come.
        let own = patience.mul_f32(0.8).as_millis().to_string();
        let mut all: Vec<std::ffi::OsString> = ["helper", verb, "--root"].map(Into::into).into();
        all.push(self.options.root.clone().into());
        if let Some(nvml) = &self.options.nvml {
            all.extend(["--nvml".into(), nvml.clone().into()]);
        }
        all.extend(["--patience-ms", &own, "--"].map(Into::into));
        all.extend(words.into_iter().map(Into::into));
        all
    }
}

async fn give_up(taken: &Taken, mut child: Child, doing: &str, patience: Duration) -> BindError {
    child::end(&mut child).await;
    taken.sticks();
    let after = seconds(patience);
    let is_gone = !matches!(child.try_wait(), Ok(None));
    let end = match is_gone {
        true => "it was killed",
        false => "it cannot be killed, so the host has to be rebooted before this card can be used",
    };
    BindError::Stuck(format!("{doing}: the helper did not end within {after}; {end}"))
}
