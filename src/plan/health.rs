//! Whether a card is in service: from what is seen of it now, and from what was decided and is kept.
//!
//! ```text
//!   seen now (NVML, config space) --+
//!   kept: Withheld, GpuHistory -----+--> service --> Good | Noted | Draining | Quarantined | Stuck
//!
//!   lines of the kernel's log --Tally--> one Told for each card, however many lines there were
//!   row, card, Told ------------> verdict --> what is to be kept from now on
//!   row, card, functions -------> objections: what a self-test has against a return to service
//! ```
//!
//! What can be seen again lasts as long as it is seen. What is told only once, or must not be forgotten when the card goes
//! to VFIO and NVML no longer knows it, is kept: see `docs/adr/0021-health.md`.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::model::card::blockers::BlockerKind;
use crate::model::card::function::FunctionState;
use crate::model::card::history::{GpuHistory, Sign};
use crate::model::card::kernel_log::{KernelRecord, LogReader, LogSign};
use crate::model::card::xid::Severity;
use crate::model::card::{Card, NvmlFacts, RecoveryAction};
use crate::model::gpu::{GpuId, Service};
use crate::model::inventory::{KnownGpu, Withheld};
use crate::model::pci::PciAddress;
use crate::plan::inventory::Entry;

/// Whether a card is in service; a machine has a lease of it where `is_leased`.
pub fn service(row: &KnownGpu, card: &Card, is_leased: bool) -> Service {
    match &row.withheld {
        Some(Withheld::Stuck { why, .. }) => return Service::Stuck(why.clone()),
        Some(Withheld::Quarantined { why, .. }) => return Service::Quarantined(why.clone()),
        None => {}
    }
    let nvml = card.nvml.as_ref();
    if let Some(why) = nvml.and_then(|nvml| failed_rows(nvml).or_else(|| reboot(nvml))) {
        return Service::Quarantined(why);
    }
    let reset = row.history.draining.as_ref().map(|sign| sign.why.clone()).or_else(|| nvml.and_then(wants_reset));
    if let Some(why) = reset.or_else(|| nvml.and_then(unsure)) {
        return Service::Draining(why);
    }
    if row.history.used_by.is_some() && !is_leased {
        return Service::Draining("it is not sanitised yet after its last VM".to_owned());
    }
    let throttled = nvml.filter(|nvml| !nvml.throttled.is_empty());
    let throttled = throttled.map(|nvml| format!("its clocks are held down: {}", nvml.throttled.join(", ")));
    match throttled.or_else(|| row.history.noted.as_ref().map(|sign| sign.why.clone())) {
        Some(why) => Service::Noted(why),
        None => Service::Good,
    }
}

/// Why a card that a machine was given is not to be taken for it after all.
pub fn refusal(row: &KnownGpu, card: &Card) -> Option<String> {
    match service(row, card, true) {
        Service::Good | Service::Noted(_) => None,
        // What the machine had before, it goes on with: only a new one waits for the reset.
        Service::Draining(_) if card.is_vfio => None,
        Service::Draining(why) | Service::Quarantined(why) | Service::Stuck(why) => Some(why),
    }
}

fn failed_rows(nvml: &NvmlFacts) -> Option<String> {
    let rows = nvml.remapped.filter(|rows| rows.has_failed)?;
    let lost = rows.uncorrectable;
    Some(format!(
        "a row of its memory could not be replaced ({lost} were, after errors that cannot be corrected): repair it"
    ))
}

fn reboot(nvml: &NvmlFacts) -> Option<String> {
    (nvml.recovery == Some(RecoveryAction::Reboot)).then(|| "its driver asks for a restart of the host".to_owned())
}

fn wants_reset(nvml: &NvmlFacts) -> Option<String> {
    let why = match nvml.recovery {
        Some(RecoveryAction::Reset) => "its driver asks for a reset".to_owned(),
        Some(RecoveryAction::DrainPeers) => "its driver asks to end the traffic to its neighbours".to_owned(),
        Some(RecoveryAction::DrainAndReset) => "its driver asks for an end of all work and a reset".to_owned(),
        Some(RecoveryAction::Other(number)) => {
            format!("its driver asks for a recovery that this gvm does not know (number {number})")
        }
        Some(RecoveryAction::None | RecoveryAction::Reboot) | None => {
            return nvml
                .remapped
                .filter(|rows| rows.is_pending)
                .map(|_| "rows of its memory are replaced at its next reset".to_owned());
        }
    };
    Some(why)
}

/// A card whose state NVML cannot tell is not taken for a well one.
fn unsure(nvml: &NvmlFacts) -> Option<String> {
    (!nvml.faults.is_empty()).then(|| format!("NVML cannot say how it is: {}", nvml.faults.join("; ")))
}

/// Since when a card is out of service, where that was written down.
pub fn since(row: &KnownGpu) -> Option<Timestamp> {
    match &row.withheld {
        Some(Withheld::Stuck { at, .. } | Withheld::Quarantined { at, .. }) => Some(*at),
        None => row.history.draining.as_ref().map(|sign| sign.at),
    }
}

/// What brings a card back into service, as commands with a word on them; nothing where it is in service.
pub fn remedy(row: &KnownGpu, card: Option<&Card>) -> Option<String> {
    let at = row.identity.address;
    let readmit = format!("gvm gpu readmit {at}");
    let asked = card.and_then(|card| card.nvml.as_ref());
    let of_withheld = match &row.withheld {
        Some(Withheld::Stuck { .. }) => Some("reboot  # nothing else makes the kernel let go of it".to_owned()),
        Some(Withheld::Quarantined { .. }) => Some(format!("{readmit}  # it is checked, and says what it still has")),
        None => None,
    };
    of_withheld.or_else(|| match service(row, card?, true) {
        Service::Quarantined(_) if asked.and_then(reboot).is_some() => Some("reboot".to_owned()),
        Service::Quarantined(_) | Service::Stuck(_) => Some(format!("nvidia-smi -q -i {at}  # it is to be repaired")),
        Service::Draining(_) if asked.and_then(wants_reset).is_none() && asked.and_then(unsure).is_some() => {
            Some(format!("nvidia-smi -q -i {at}; dmesg | grep -E '{at}|NVRM'"))
        }
        Service::Draining(_) => Some(format!("nvidia-smi --gpu-reset -i {at}; {readmit}  # once no VM has it")),
        Service::Good | Service::Noted(_) => None,
    })
}

/// True where a card is shown as out of service, whatever the reason.
pub fn is_out(entry: &Entry) -> bool {
    let out = |row: &KnownGpu, card: &Card| !matches!(service(row, card, true), Service::Good | Service::Noted(_));
    match (&entry.known, &entry.card) {
        (Some(row), Some(card)) => out(row, card),
        (Some(row), None) => row.withheld.is_some(),
        (None, _) => false,
    }
}

/// What the kernel's log said of one card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The worst of it.
    pub severity: Severity,
    /// The first line that was as bad.
    pub why: String,
    /// How many lines there were.
    pub lines: u64,
}

impl Told {
    /// In one line.
    pub fn words(&self) -> String {
        match self.lines {
            0 | 1 => self.why.clone(),
            lines => format!("{} ({lines} lines about it at once)", self.why),
        }
    }
}

/// Lines of the log, gathered for each card. It holds no more than there are cards.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    reader: LogReader,
    /// Functions that are cards or theirs, each with its card.
    cards: BTreeMap<PciAddress, GpuId>,
    told: BTreeMap<GpuId, Told>,
}

impl Tally {
    /// Of these cards, with what was told of them before; what the driver names by its slot is its function 0, and a virtual function stands for its card.
    pub fn of(reader: LogReader, told: BTreeMap<GpuId, Told>, entries: &[Entry]) -> Self {
        let mut cards = BTreeMap::new();
        // A card that has fallen off the bus may be gone by now; the place of one that is gone may be another's.
        let known = |is_here: bool| {
            entries.iter().filter(move |entry| entry.known.is_some() && entry.card.is_some() == is_here)
        };
        for entry in known(false).chain(known(true)) {
            cards.extend(entry.address().map(|address| (address, entry.id.clone())));
        }
        for card in entries.iter().filter_map(|entry| entry.card.as_ref()) {
            let owner = cards.get(&card.physfn.unwrap_or(card.address)).cloned();
            cards.extend(owner.map(|owner| (card.address, owner)));
        }
        Self { reader, cards, told }
    }

    /// Takes a record in.
    pub fn read(&mut self, record: &KernelRecord) {
        for LogSign { address, severity, why } in self.reader.read(record) {
            let Some(gpu) = self.cards.get(&address) else { continue };
            let told = self.told.entry(gpu.clone()).or_insert_with(|| Told { severity, why: why.clone(), lines: 0 });
            told.lines = told.lines.saturating_add(1);
            if severity > told.severity {
                (told.severity, told.why) = (severity, why);
            }
        }
    }

    /// What was said, and the reader as it stands: a message may go on in the next record.
    pub fn end(self) -> (BTreeMap<GpuId, Told>, LogReader) {
        (self.told, self.reader)
    }
}

/// What is to be kept from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is out of service until it is readmitted.
    Quarantine(String),
    /// It wants a reset, until it had one.
    Drain(String),
    /// Shown, and nothing else.
    Note(String),
}

/// What is to be kept of a card, from a look or from the log; `None` where that is so already.
pub fn verdict(row: &KnownGpu, card: Option<&Card>, told: Option<&Told>) -> Option<Verdict> {
    if row.withheld.is_some() {
        return None;
    }
    let lost = told.filter(|told| told.severity == Severity::Lost).map(Told::words);
    let rows = card.and_then(|card| card.nvml.as_ref()).and_then(failed_rows);
    if let Some(why) = lost.or(rows) {
        return Some(Verdict::Quarantine(why));
    }
    let told = told?;
    match told.severity {
        Severity::Lost => None,
        Severity::NeedsReset if row.history.draining.is_some() => None,
        Severity::NeedsReset => Some(Verdict::Drain(told.words())),
        Severity::Application => Some(Verdict::Note(told.words())),
    }
}

/// The history with a verdict that does not take the card out of service at once.
#[must_use]
pub fn with_sign(history: &GpuHistory, verdict: &Verdict, boot_id: &str, now: Timestamp) -> GpuHistory {
    let sign = |why: &String| Some(Sign { why: why.clone(), at: now, boot_id: boot_id.to_owned() });
    let history = history.clone();
    match verdict {
        Verdict::Quarantine(_) => history,
        Verdict::Drain(why) => GpuHistory { draining: sign(why), ..history },
        Verdict::Note(why) => GpuHistory { noted: sign(why), ..history },
    }
}

/// What a self-test has against a card that is to return to service; `states` are its functions, read anew.
pub fn objections(card: Option<&Card>, states: &[FunctionState]) -> Vec<String> {
    let Some(card) = card else { return vec!["it is not there".to_owned()] };
    let mut found: Vec<String> = Vec::new();
    for state in states {
        match &state.answers {
            _ if !state.is_there => found.push(format!("{} is not there", state.address)),
            Err(why) => found.push(format!("{} does not answer: {why}", state.address)),
            Ok(()) => {}
        }
    }
    let sick = card.blockers.iter().filter(|blocker| blocker.kind == BlockerKind::Health);
    found.extend(sick.map(|blocker| blocker.text.clone()));
    if card.driver.is_none() {
        found.push("no driver has it".to_owned());
    }
    if let Some(nvml) = &card.nvml {
        found.extend([failed_rows(nvml), reboot(nvml), wants_reset(nvml), unsure(nvml)].into_iter().flatten());
    }
    found.dedup();
    found
}

#[cfg(test)]
mod tests;
