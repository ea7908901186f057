//! The record.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An entry of the record. What began and ended later has two, of one operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EntryView {
    /// Number, from 1 on without a gap.
    pub seq: u64,
    /// RFC 3339, by the host's clock of then.
    pub at: String,
    /// Operation, as under `/v1/operations/{id}`.
    pub operation: String,
    /// begin, end or whole.
    pub half: String,
    /// Who asked, by the name of then; `gvm` for the manager itself.
    pub actor: String,
    /// Their id, which outlives a change of name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor_id: Option<String>,
    /// How it was known who asked, such as `socket` or `token ID`.
    pub via: String,
    /// The client's address, where it came over a network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The request's id, which an error's answer carries as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// What, such as `vm.create`.
    pub action: String,
    /// To what.
    pub target: String,
    /// The machine, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm_id: Option<String>,
    /// pending, success, denied or failure.
    pub outcome: String,
    /// Reason or detail.
    pub detail: String,
    /// SHA-256 over the hash before it and all of it.
    pub hash: String,
}

/// Entries of the record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EntryList {
    /// Newest first.
    pub entries: Vec<EntryView>,
    /// What to give as `before` for more; absent where there are no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// How far the record goes, signed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeadView {
    /// The newest signed head, one line to keep elsewhere; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
    /// The public key that heads are signed with now.
    pub key: String,
    /// Number of the last entry.
    pub last: u64,
}

/// Request to verify the record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct VerifyRecord {
    /// Heads that were kept elsewhere.
    pub heads: Vec<String>,
    /// The key that must have signed all heads; the manager's own where absent.
    pub key: Option<String>,
}

/// What a verification found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RecordVerdict {
    /// True where the record is what was written.
    pub ok: bool,
    /// Number of the last entry; 0 where something is wrong.
    pub last: u64,
    /// Signed heads that it was held against.
    pub heads: u64,
    /// The first bad entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_bad: Option<u64>,
    /// What is wrong with it: edited, unreadable, deleted, moved, inserted, cut_off, rewritten, other_key, bad_signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrong: Option<String>,
    /// In plain words.
    pub message: String,
}
