//! What people and teams hold and may hold.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One kind of what is limited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaLineView {
    /// Its word: `vms`, `running_vms`, `vcpus`, `memory`, `disk`, `gpus`, `gpu_memory`, `gpu_slices`, `gpu_hours`.
    pub kind: String,
    /// The unit of the numbers: `number`, `mib` or `seconds`.
    pub unit: String,
    /// Held now.
    pub used: u64,
    /// Up to where; absent where there is no limit.
    pub limit: Option<u64>,
    /// Who says so: `own`, `each member of TEAM` or `[people.quota]`; empty where nobody does.
    pub source: String,
    /// What the next machine would add.
    pub next: u64,
}

/// What a person or team holds and may hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaView {
    /// Name of the person or team.
    pub name: String,
    /// True for a team.
    pub is_team: bool,
    /// Every kind, in the order of docs/quotas.md.
    pub lines: Vec<QuotaLineView>,
    /// The profile of the next machine: that was asked for, else of the newest machine, else the first.
    pub profile: String,
    /// Of a team: what each member has whose default team it is, as it is typed.
    pub member_limits: BTreeMap<String, String>,
    /// When GPU hours begin anew.
    pub month_end: String,
}

/// Request to change limits. Kinds that are not named stay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SetQuota {
    /// By kind: a number, a size (`64GiB`), hours, `unlimited`; null lets a wider limit count again.
    pub limits: BTreeMap<String, Option<String>>,
    /// Of a team: the same for each member whose default team it is.
    pub member_limits: BTreeMap<String, Option<String>>,
}
