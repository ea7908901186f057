//! The fake's signs of health: a kernel's log, facts that change, and what becomes of a card that is sanitised.

use super::{FakeGpus, State};
use crate::gpu::{BindError, LogBatch};
use crate::model::card::Card;
use crate::model::card::history::{SanitiseJob, SanitiseMethod, SanitiseWay};
use crate::model::card::kernel_log::KernelRecord;
use crate::model::gpu::PciAddress;

/// Records of one batch.
const BATCH: usize = 1000;

impl FakeGpus {
    /// The kernel says this.
    pub fn log(&self, text: &str) {
        let mut state = self.state();
        let sequence = u64::try_from(state.log.len()).unwrap_or(u64::MAX);
        let record = KernelRecord { sequence, micros: sequence, is_kernels: true, text: text.to_owned() };
        state.log.push(record);
    }

    /// The host starts anew: the kernel has said nothing yet.
    pub fn restart_log(&self) {
        self.state().log.clear();
    }

    /// The kernel's log cannot be read from here on.
    pub fn hide_log(&self) {
        self.state().is_log_hidden = true;
    }

    /// Changes what a card looks like.
    pub fn edit(&self, address: PciAddress, change: impl FnOnce(&mut Card)) {
        let mut state = self.state();
        if let Some(card) = state.discovery.cards.iter_mut().find(|card| card.address == address) {
            change(card);
        }
        state.judge();
    }

    /// The next sanitising fails so.
    pub fn fail_next_sanitise(&self, error: BindError) {
        self.state().next_sanitise = Some(error);
    }

    /// How a card was sanitised, each time.
    pub fn sanitised(&self, address: PciAddress) -> Vec<SanitiseWay> {
        let state = self.state();
        state.sanitised.iter().filter(|job| job.card == address).map(|job| job.way.clone()).collect()
    }
}

impl State {
    pub(super) fn log_after(&self, after: Option<u64>) -> Result<LogBatch, String> {
        if self.is_log_hidden {
            return Err("the kernel's log cannot be read: Operation not permitted".to_owned());
        }
        let mut left = self.log.iter().filter(|record| after.is_none_or(|after| record.sequence > after));
        let records: Vec<KernelRecord> = left.by_ref().take(BATCH).cloned().collect();
        Ok(LogBatch { records, has_more: left.next().is_some(), has_gap: false })
    }

    pub(super) fn sanitise(&mut self, job: &SanitiseJob) -> Result<SanitiseMethod, BindError> {
        let now = self.function(job.card);
        if !now.is_there {
            return Err(BindError::Refused(format!("{} is not there", job.card)));
        }
        self.refuse_if_held(job.card)?;
        if let Some(error) = self.next_sanitise.take() {
            return Err(error);
        }
        self.hang_if_stuck(&[job.card])?;
        let method = match &job.way {
            SanitiseWay::Command { words, .. } => SanitiseMethod::Command(words.first().cloned().unwrap_or_default()),
            SanitiseWay::Reset => {
                let first = self.discovery.card(job.card).and_then(|card| card.reset_methods.first());
                match first.filter(|_| now.is_vfio && now.answers.is_ok()) {
                    Some(kind) => SanitiseMethod::Reset(kind.clone()),
                    None => return Err(BindError::Refused(format!("{} has no way to be reset", job.card))),
                }
            }
        };
        self.sanitised.push(job.clone());
        Ok(method)
    }
}
