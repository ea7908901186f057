//! What is done to a whole card between two machines: a reset by a helper, or the configured command.

use std::time::Duration;

use super::BindError;
use super::claim::Claims;
use super::lanes::NoAnswer;
use super::steps::first_reset_method;
use super::sysfs::slot;
use crate::child::ChildCall;
use crate::model::card::history::{SanitiseJob, SanitiseMethod, SanitiseWay};
use crate::model::gpu::PciAddress;

/// Stands for the card's address in the words of a command.
const ADDRESS: &str = "{address}";

/// A look at one file.
const PATIENCE: Duration = Duration::from_secs(5);

/// The kernel waits up to 60 s for a function to answer after its reset (`PCIE_RESET_READY_POLL_MS`).
const RESET_FACTOR: u32 = 3;

impl Claims {
    /// Sanitises a card that nobody has open.
    pub(super) async fn sanitise(&self, job: &SanitiseJob) -> Result<SanitiseMethod, BindError> {
        self.adopt().await.map_err(|error| BindError::Transient(error.to_string()))?;
        let taken = self.flights.begin(&[job.card])?;
        match &job.way {
            SanitiseWay::Reset => {
                let kind = self.reset_kind(job.card).await?;
                let words = vec![job.card.to_string()];
                self.help(&taken, "reset-function", words, self.options.bind_patience * RESET_FACTOR).await?;
                Ok(SanitiseMethod::Reset(kind))
            }
            SanitiseWay::Command { words, seconds } => {
                run(job.card, words, Duration::from_secs(*seconds)).await.map_err(BindError::Failed)
            }
        }
    }

    /// The method that the kernel will take: the first of its list.
    async fn reset_kind(&self, card: PciAddress) -> Result<String, BindError> {
        let files = self.files.clone();
        let read = move || first_reset_method(&files, card);
        let kind = self.lanes.of(slot(card)).ask(PATIENCE, read).await.map_err(|error| match error {
            NoAnswer::Hangs(_) => BindError::Stuck(format!("{card}: looking at it hangs in the kernel: {error}")),
            error => BindError::Transient(format!("{card}: looking at it: {error}")),
        })?;
        kind.ok_or_else(|| BindError::Refused(format!("{card}: the kernel knows no way to reset it")))
    }
}

/// Runs the configured command to its end.
async fn run(card: PciAddress, words: &[String], patience: Duration) -> Result<SanitiseMethod, String> {
    let words: Vec<String> = words.iter().map(|word| word.replace(ADDRESS, &card.to_string())).collect();
    let (program, arguments) = words.split_first().ok_or_else(|| format!("{card}: the command is empty"))?;
    let output = ChildCall::new(program, patience).args(arguments).run().await;
    match output.map_err(|error| format!("{card}: {error}"))? {
        output if output.is_success() => Ok(SanitiseMethod::Command(program.clone())),
        output => Err(format!("{card}: {}", output.complaint())),
    }
}
