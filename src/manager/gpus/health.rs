//! Cards that fall ill: what is decided of them by what the kernel's log and a look say, and how they come back.
//!
//! ```text
//!   every look: entries --+--> verdicts --> ONE transaction: row, record, how far the log was taken in
//!   kernel's log, Tally --+                  \--> told to the machine that has the card
//!   leases, functions ----'  (lost under a machine)
//!
//!   readmit: a look, a self-test --> row, record
//! ```
//!
//! A card that is taken out of service stays with the machine that has it: to end it is its owner's decision.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::super::{Manager, ManagerError, Result, error};
use super::steps::why;
use crate::model::card::history::GpuHistory;
use crate::model::card::kernel_log::{LogMark, LogReader};
use crate::model::card::{Card, CardFinding, CardFindingKind};
use crate::model::event::{AuditEvent, Outcome};
use crate::model::gpu::{GpuId, LeaseState, Partition};
use crate::model::id::VmId;
use crate::model::inventory::{KnownGpu, Withheld};
use crate::model::pci::PciAddress;
use crate::model::state::Observed;
use crate::model::vm::Vm;
use crate::plan::health::{Tally, Told, Verdict, objections, verdict, with_sign};
use crate::plan::inventory::{Entry, functions_of};
use crate::store::gpus::Decision;
use crate::store::{Write, audit, commit, gpus, write_meta};

/// Name of the value that says how far the log was taken in.
const MARK: &str = "kernel-log";

/// The hypervisor is asked no longer, since a look waits for it.
const OBSERVE_PATIENCE: Duration = Duration::from_secs(2);

/// Batches that one look takes in; what has come beyond them is for the next one.
const MAX_BATCHES: usize = 64;

/// How it stands with the kernel's log.
#[derive(Debug, Default)]
pub(super) struct Log {
    reader: Option<LogReader>,
    /// The last record that was taken in.
    sequence: Option<u64>,
    /// What was said and is not decided on yet, because the store failed.
    told: BTreeMap<GpuId, Told>,
    /// Why it cannot be read.
    problem: Option<String>,
    is_gap_told: bool,
}

impl Log {
    /// What somebody should know.
    pub(super) fn finding(&self) -> Option<CardFinding> {
        let text = self.problem.clone()?;
        Some(CardFinding { kind: CardFindingKind::KernelLog, address: None, text })
    }

    fn cannot(&mut self, why: String) {
        if self.problem.as_ref() != Some(&why) {
            tracing::warn!(%why, "errors of GPUs that only the kernel's log tells will not be seen");
        }
        self.problem = Some(why);
    }
}

/// A row of the record about something that gvm decided by itself.
pub(super) fn own_record(
    action: &str,
    row: &KnownGpu,
    vm: Option<VmId>,
    outcome: Outcome,
    detail: impl Into<String>,
) -> AuditEvent {
    AuditEvent { vm, ..AuditEvent::own(Timestamp::now(), action, label(row), outcome) }.ended(outcome, detail)
}

/// A card in the record.
pub(super) fn label(row: &KnownGpu) -> String {
    format!("{} ({})", row.identity.address, row.model)
}

/// Takes a card out of service, on the record; its row must be read under the same lock.
pub(super) async fn take_out(
    tx: &mut Write,
    row: &KnownGpu,
    vm: Option<VmId>,
    withheld: Withheld,
) -> crate::store::Result<()> {
    let action = match &withheld {
        Withheld::Quarantined { .. } => "gpu.quarantine",
        Withheld::Stuck { .. } => "gpu.stuck",
    };
    tracing::error!(gpu = %row.id, address = %row.identity.address, why = why(&withheld), "a GPU is taken out of service");
    audit::begin(tx, &own_record(action, row, vm, Outcome::Success, why(&withheld)), None).await?;
    // What was first wrong with it says more than what followed from that.
    if matches!((&row.withheld, &withheld), (Some(Withheld::Quarantined { .. }), Withheld::Quarantined { .. })) {
        return Ok(());
    }
    gpus::decide(tx, &row.id, &Decision::Withhold(Some(withheld))).await.map(|_| ())
}

impl Manager {
    /// Heeds what a look and the log say. True where something was decided.
    pub(super) async fn heed(&self, entries: &[Entry]) -> bool {
        let mut log = self.gpus.log.lock().await;
        self.take_in(&mut log, entries).await;
        match self.decide(&mut log, entries).await {
            Ok(is_decided) => is_decided,
            Err(e) => {
                tracing::error!(error = %error::chain(&e), "cannot write down that a GPU is ill; it is tried again");
                false
            }
        }
    }

    /// Reads the log as far as it has come.
    async fn take_in(&self, log: &mut Log, entries: &[Entry]) {
        let reader = match log.reader.take() {
            Some(reader) => reader,
            None => {
                let boot_id = self.host().boot_id;
                // Of an earlier boot there is nothing left in the log, and numbers begin anew.
                let mark = self.store.meta::<LogMark>(MARK).await.ok().flatten();
                log.sequence = mark.filter(|mark| mark.boot_id == boot_id).map(|mark| mark.sequence);
                LogReader::ignoring(&self.config.gpu.ignore_xids)
            }
        };
        let mut tally = Tally::of(reader, std::mem::take(&mut log.told), entries);
        for _ in 0..MAX_BATCHES {
            let batch = match self.gpus.backend.kernel_log(log.sequence).await {
                Ok(batch) => batch,
                Err(why) => {
                    log.cannot(why);
                    break;
                }
            };
            log.problem = None;
            if batch.has_gap && !std::mem::replace(&mut log.is_gap_told, true) {
                tracing::warn!("the kernel's log is written faster than it is read: errors of GPUs may be missed");
            }
            for record in &batch.records {
                tally.read(record);
                log.sequence = log.sequence.max(Some(record.sequence));
            }
            if !batch.has_more {
                break;
            }
        }
        let (told, reader) = tally.end();
        (log.told, log.reader) = (told, Some(reader));
    }

    /// What is told of cards becomes what is kept of them, together with how far the log was taken in: a line counts once.
    async fn decide(&self, log: &mut Log, entries: &[Entry]) -> Result<bool> {
        let lost = self.lost_in_machines(entries).await?;
        let of = |row: &KnownGpu, card: Option<&Card>, told: &BTreeMap<GpuId, Told>| {
            let under = lost.get(&row.id).filter(|_| row.withheld.is_none()).cloned().map(Verdict::Quarantine);
            under.or_else(|| verdict(row, card, told.get(&row.id)))
        };
        let known = entries.iter().filter_map(|entry| Some((entry.known.as_ref()?, entry.card.as_ref())));
        if log.told.is_empty() && !known.clone().any(|(row, card)| of(row, card, &log.told).is_some()) {
            return Ok(false);
        }
        let (boot_id, now) = (self.host().boot_id, Timestamp::now());
        let mut tx = self.store.write().await?;
        let leases = crate::store::leases::read(&mut tx).await?;
        let rows: BTreeMap<GpuId, KnownGpu> =
            gpus::read(&mut tx).await?.into_iter().map(|row| (row.id.clone(), row)).collect();
        let mut news: Vec<(GpuId, String)> = Vec::new();
        for (row, card) in known.filter_map(|(row, card)| Some((rows.get(&row.id)?, card))) {
            let Some(verdict) = of(row, card, &log.told) else { continue };
            let at = row.identity.address;
            let vm = leases.iter().find(|lease| *lease.partition.gpu() == row.id).map(|lease| lease.vm);
            match &verdict {
                Verdict::Quarantine(why) => {
                    take_out(&mut tx, row, vm, Withheld::Quarantined { why: why.clone(), at: now }).await?;
                    news.push((row.id.clone(), format!("GPU {} at {at} is ill: {why}", row.model)));
                    continue;
                }
                Verdict::Drain(why) => {
                    tracing::warn!(gpu = %row.id, address = %at, %why, "a GPU wants a reset");
                    audit::begin(&mut tx, &own_record("gpu.drain", row, vm, Outcome::Success, why), None).await?;
                    news.push((row.id.clone(), format!("GPU {} at {at} wants a reset: {why}", row.model)));
                }
                Verdict::Note(why) => tracing::info!(gpu = %row.id, address = %at, %why, "an error of an application"),
            }
            let history = with_sign(&row.history, &verdict, &boot_id, now);
            gpus::decide(&mut tx, &row.id, &Decision::History(Box::new(history))).await?;
        }
        if let Some(sequence) = log.sequence {
            write_meta(&mut tx, MARK, &LogMark { boot_id, sequence }).await?;
        }
        commit(tx).await?;
        log.told.clear();
        for (gpu, text) in news {
            self.tell_holders(&gpu, &text).await;
        }
        Ok(true)
    }

    /// Whole cards that a machine of this boot has, and that are not with VFIO any more: pulled out, off the bus, or taken
    /// away by hand. VFIO's node of a group is there as long as a member of it is with VFIO.
    async fn lost_in_machines(&self, entries: &[Entry]) -> Result<BTreeMap<GpuId, String>> {
        let is_with_vfio = |gpu: &GpuId| {
            let entry = entries.iter().find(|entry| entry.id == *gpu);
            entry.and_then(|entry| entry.card.as_ref()).is_some_and(|card| card.is_vfio)
        };
        let mut lost = BTreeMap::new();
        for lease in self.store.leases().await? {
            let gpu = lease.partition.gpu();
            let Partition::Whole { bdf, .. } = &lease.partition else { continue };
            if lease.state != LeaseState::Attached || is_with_vfio(gpu) {
                continue;
            }
            let Some(vm) = self.store.vm(lease.vm).await? else { continue };
            // After a restart of the host it is off, and takes its cards anew.
            if vm.started_at.is_none() || vm.started_boot.as_deref() != Some(self.host().boot_id.as_str()) {
                continue;
            }
            // The look may be older than the lease: what counts is the function as it is.
            let Ok(states) = self.gpus.backend.functions(&[*bdf]).await else { continue };
            let why = match states.first() {
                Some(state) if state.is_there && (state.is_vfio || !self.has_device(&vm, *bdf).await) => continue,
                Some(state) if state.is_there => {
                    format!(
                        "it was taken from VFIO ({}) while a VM had it",
                        state.driver.as_deref().unwrap_or("no driver")
                    )
                }
                _ => "it vanished from the bus while a VM had it".to_owned(),
            };
            lost.insert(gpu.clone(), why);
        }
        Ok(lost)
    }

    /// Whether the machine runs with this device: a lease may be noted as attached before the card is plugged.
    async fn has_device(&self, vm: &Vm, device: PciAddress) -> bool {
        let look = tokio::time::timeout(OBSERVE_PATIENCE, self.hypervisor.observe(vm.id)).await;
        let Ok(Observed::Defined(domain)) = look else { return false };
        domain.hostdevs.contains(&device.to_string())
    }

    /// Tells the machines that have a card, or a part of it.
    pub(super) async fn tell_holders(&self, gpu: &GpuId, text: &str) {
        let leases = self.store.leases().await.unwrap_or_default();
        for lease in leases.iter().filter(|lease| lease.partition.gpu() == gpu) {
            if let Ok(Some(vm)) = self.store.vm(lease.vm).await {
                self.watch.tell(&vm, "gpu", text);
            }
        }
    }

    /// Takes a card back into service, after a self-test unless it is told not to make one.
    pub(super) async fn readmit(&self, row: &KnownGpu, card: Option<&Card>, test: SelfTest) -> Result<String> {
        let at = row.identity.address;
        let stuck = match &row.withheld {
            Some(Withheld::Stuck { why, boot_id, .. }) if *boot_id == self.host().boot_id => Some(why),
            _ => None,
        };
        if let Some(why) = stuck.filter(|_| test == SelfTest::LeftOut) {
            let message = format!("GPU {at} hangs in the kernel: {why}");
            return Err(ManagerError::conflict(message).hint(format!(
                "a restart of the host helps; where the kernel has let go of it since, `gvm gpu readmit {at}` finds that out"
            )));
        }
        if test == SelfTest::Made {
            let functions = card.map(functions_of).unwrap_or_default();
            let states = self.gpus.backend.functions(&functions).await;
            let states = states.map_err(|e| ManagerError::unavailable(e.to_string()))?;
            let found = objections(card, &states);
            if !found.is_empty() {
                let message = format!("GPU {at} does not pass its self-test: {}", found.join("; "));
                let hint = match stuck {
                    Some(_) => "only a restart of the host helps where the kernel does not let go of it".to_owned(),
                    None => format!("mend that first (`gvm doctor`); `gvm gpu readmit {at} --force` makes no test"),
                };
                return Err(ManagerError::conflict(message).hint(hint));
            }
        }
        let mut tx = self.store.write().await?;
        let fresh = gpus::read(&mut tx).await?.into_iter().find(|fresh| fresh.id == row.id);
        let history = fresh.map(|fresh| fresh.history).unwrap_or_default();
        // Who makes no test answers for what the last machine left as well.
        let used_by = history.used_by.filter(|_| test == SelfTest::Made);
        let history = GpuHistory { noted: None, draining: None, used_by, ..history };
        gpus::decide(&mut tx, &row.id, &Decision::Withhold(None)).await?;
        gpus::decide(&mut tx, &row.id, &Decision::History(Box::new(history))).await?;
        commit(tx).await?;
        self.tell_holders(&row.id, &format!("GPU {} at {at} is back in service", row.model)).await;
        Ok(match test {
            SelfTest::Made => "readmitted after its self-test".to_owned(),
            SelfTest::LeftOut => "readmitted without a self-test".to_owned(),
        })
    }
}

/// Whether a card that returns to service is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SelfTest {
    Made,
    LeftOut,
}
