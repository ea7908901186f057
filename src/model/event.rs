//! What happened: the record of actions and the progress of machines.

use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::id::{OpId, UserId, VmId};
use super::principal::Origin;

/// The name that the manager itself has in the record.
pub const ITSELF: &str = "gvm";

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

impl FromStr for Outcome {
    type Err = UnknownOutcome;

    fn from_str(text: &str) -> Result<Self, UnknownOutcome> {
        let all = [Self::Pending, Self::Success, Self::Denied, Self::Failure];
        let found = all.into_iter().find(|outcome| outcome.as_str() == text);
        found.ok_or_else(|| UnknownOutcome(text.chars().take(40).collect()))
    }
}

/// A word that is no outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no outcome; use pending, success, denied or failure")]
pub struct UnknownOutcome(String);

/// What is put on the record: who does what to what, from where, and how it ends where that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEvent {
    /// Id of the operation.
    pub id: OpId,
    /// When it was asked.
    pub at: Timestamp,
    /// Who asked: a user name, `gateway` or `gvm` for the manager itself.
    pub actor: String,
    /// The person's id, which outlives a change of name.
    pub actor_id: Option<UserId>,
    /// From where.
    pub origin: Origin,
    /// What, such as `vm.create`.
    pub action: String,
    /// To what: a VM's `name.owner` or another object's name.
    pub target: String,
    /// The machine, where it is one.
    pub vm: Option<VmId>,
    /// How it ended; pending where its end is a later entry.
    pub outcome: Outcome,
    /// Reason or detail in plain words.
    pub detail: String,
}

impl AuditEvent {
    /// The manager's own doing, done now.
    pub fn own(at: Timestamp, action: &str, target: String, outcome: Outcome) -> Self {
        Self {
            id: OpId::generate(),
            at,
            actor: ITSELF.to_owned(),
            actor_id: None,
            origin: Origin::internal(),
            action: action.to_owned(),
            target,
            vm: None,
            outcome,
            detail: String::new(),
        }
    }

    /// The same with its end.
    #[must_use]
    pub fn ended(self, outcome: Outcome, detail: impl Into<String>) -> Self {
        Self { outcome, detail: detail.into(), ..self }
    }
}

/// An operation as the record tells it: its two entries joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Id.
    pub id: OpId,
    /// When it was asked.
    pub at: Timestamp,
    /// Who asked, by the name of then.
    pub actor: String,
    /// What.
    pub action: String,
    /// To what.
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
