//! What became of a card that its present state does not show: signs of the kernel's log, who had it, how it was sanitised.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::vgpu::VgpuSite;
use crate::model::gpu::VgpuTypeName;
use crate::model::id::VmId;
use crate::model::pci::PciAddress;

/// A sign that was heeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sign {
    /// In plain words.
    pub why: String,
    /// When it was taken in.
    pub at: Timestamp,
    /// The boot in which it came: a restart of the host resets every card.
    pub boot_id: String,
}

/// What is remembered of a card's health. Kept in its row, beside what keeps it out of use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuHistory {
    /// An error that was an application's own: shown, and nothing else.
    pub noted: Option<Sign>,
    /// It works on and wants a reset: nobody is given it anew before.
    pub draining: Option<Sign>,
    /// The machine that was given it whole, and since whose claim it was not sanitised.
    pub used_by: Option<VmId>,
    /// How it was sanitised last.
    pub sanitised: Option<Sanitised>,
    /// vGPUs of machines that are gone, which its driver would not take away: tried again once the card is readmitted.
    pub left: Vec<(VgpuSite, VgpuTypeName)>,
}

impl GpuHistory {
    /// What is left of it in this boot of the host.
    #[must_use]
    pub fn in_boot(&self, boot_id: &str) -> Self {
        let is_now = |sign: &Sign| sign.boot_id == boot_id;
        Self {
            noted: self.noted.clone().filter(is_now),
            draining: self.draining.clone().filter(is_now),
            ..self.clone()
        }
    }
}

/// What was done to a partition between two machines.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "method", content = "with")]
pub enum SanitiseMethod {
    /// A reset that gvm asked the kernel for, by this of its methods (`flr`, `bus`, ...).
    Reset(String),
    /// Nothing beside what VFIO does by itself when the last user closes a device, or it is taken from it.
    VfioClose,
    /// A vGPU was destroyed; the next one is created anew.
    VgpuRemoved,
    /// The configured command.
    Command(String),
}

impl fmt::Display for SanitiseMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reset(kind) => write!(f, "reset ({kind})"),
            Self::VfioClose => f.write_str("vfio-close"),
            Self::VgpuRemoved => f.write_str("vgpu-removed"),
            Self::Command(program) => write!(f, "command ({program})"),
        }
    }
}

/// How a sanitising ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sanitised {
    /// By what.
    pub method: SanitiseMethod,
    /// When.
    pub at: Timestamp,
    /// Why it was no more than that; empty where there is nothing to say.
    #[serde(default)]
    pub note: String,
    /// Why it failed, where it did.
    #[serde(default)]
    pub fault: Option<String>,
}

impl Sanitised {
    /// In one line, without the time.
    pub fn words(&self) -> String {
        let note = if self.note.is_empty() { String::new() } else { format!("; {}", self.note) };
        match &self.fault {
            None => format!("{}{note}", self.method),
            Some(fault) => format!("{} failed: {fault}{note}", self.method),
        }
    }
}

/// How a whole card is to be sanitised.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SanitiseWay {
    /// By a reset.
    Reset,
    /// By a program and its arguments; `{address}` stands for the card's.
    Command {
        /// The program first.
        words: Vec<String>,
        /// Seconds that it has.
        seconds: u64,
    },
}

/// A whole card that is to be sanitised: nobody has it open.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SanitiseJob {
    /// The card's own function.
    pub card: PciAddress,
    /// How.
    pub way: SanitiseWay,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_history_is_read_and_signs_end_with_their_boot() {
        let empty: GpuHistory = serde_json::from_str("{}").unwrap();
        assert_eq!(empty, GpuHistory::default());
        let sign = Sign { why: "Xid 63".to_owned(), at: Timestamp::UNIX_EPOCH, boot_id: "one".to_owned() };
        let sanitised = Sanitised {
            method: SanitiseMethod::Reset("flr".to_owned()),
            at: Timestamp::UNIX_EPOCH,
            note: String::new(),
            fault: None,
        };
        let history = GpuHistory {
            left: Vec::new(),
            noted: Some(sign.clone()),
            draining: Some(sign),
            used_by: Some(VmId::generate()),
            sanitised: Some(sanitised.clone()),
        };
        let text = serde_json::to_string(&history).unwrap();
        assert_eq!(serde_json::from_str::<GpuHistory>(&text).unwrap(), history);
        assert_eq!(history.in_boot("one"), history);
        let after = history.in_boot("two");
        assert_eq!((after.noted, after.draining, after.used_by), (None, None, history.used_by));
        assert_eq!(sanitised.words(), "reset (flr)");
        let failed = Sanitised { fault: Some("no".to_owned()), note: "so".to_owned(), ..sanitised };
        assert_eq!(failed.words(), "reset (flr) failed: no; so");
    }
}
