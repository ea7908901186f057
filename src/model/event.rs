//! What happened: the record of actions and the progress of machines.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::id::{OpId, VmId};

/// How an audited action ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Accepted, its effect is still under way.
    Pending,
    /// Done.
    Success,
    /// Refused before anything happened.
    Denied,
    /// Tried and failed.
    Failure,
}

impl Outcome {
    /// The word stored and shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Success => "success",
            Self::Denied => "denied",
            Self::Failure => "failure",
        }
    }
}

/// One row of the record: who did what to what, when, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEvent {
    /// Id, also the operation's.
    pub id: OpId,
    /// When it was asked.
    pub at: Timestamp,
    /// Who asked: a user name, `gateway` or `gvm` for the manager itself.
    pub actor: String,
    /// What, such as `vm.create`.
    pub action: String,
    /// To what: a VM's `owner/name` or another object's name.
    pub target: String,
    /// The machine, where it is one.
    pub vm: Option<VmId>,
    /// How it ended.
    pub outcome: Outcome,
    /// Reason or detail in plain words.
    pub detail: String,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
}

/// A step of progress of one machine, as streamed to its owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The machine.
    pub vm: VmId,
    /// When.
    pub at: Timestamp,
    /// The stage's word, such as `disk`, `define`, `start`, `boot`, `ready`.
    pub stage: String,
    /// In plain words.
    pub message: String,
}
