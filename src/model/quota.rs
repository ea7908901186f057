//! What one person may hold at once. Usage is computed from live rows, never counted along.

use serde::{Deserialize, Serialize};

use super::units::Mib;

/// Limits of one person; `None` means not limited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Quota {
    /// Machines, deleted ones within their undelete window included.
    pub vms: Option<u64>,
    /// Virtual CPUs of machines that should run.
    pub vcpus: Option<u64>,
    /// Memory of machines that should run.
    pub memory: Option<Mib>,
    /// Disk of all machines.
    pub disk: Option<Mib>,
}

/// What is held, or what a request would add.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Machines.
    pub vms: u64,
    /// Virtual CPUs.
    pub vcpus: u64,
    /// Memory.
    pub memory: Mib,
    /// Disk.
    pub disk: Mib,
}

/// Why a request is over quota.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("over your quota of {what}: you have {have}, this asks for {ask}, the limit is {limit}")]
pub struct QuotaExceeded {
    /// The term that failed.
    pub what: &'static str,
    /// Held now.
    pub have: String,
    /// Asked for.
    pub ask: String,
    /// The limit.
    pub limit: String,
}

/// Checks what is held plus what is asked for against the limits.
///
/// # Errors
/// Names the first term that is exceeded, with the numbers.
pub fn check(quota: &Quota, have: &Usage, ask: &Usage) -> Result<(), QuotaExceeded> {
    let count = |what, limit: Option<u64>, have: u64, ask: u64| match limit {
        Some(limit) if ask > 0 && have.saturating_add(ask) > limit => {
            Err(QuotaExceeded { what, have: have.to_string(), ask: ask.to_string(), limit: limit.to_string() })
        }
        _ => Ok(()),
    };
    let size = |what, limit: Option<Mib>, have: Mib, ask: Mib| match limit {
        Some(limit) if ask.0 > 0 && have.0.saturating_add(ask.0) > limit.0 => {
            Err(QuotaExceeded { what, have: have.to_string(), ask: ask.to_string(), limit: limit.to_string() })
        }
        _ => Ok(()),
    };
    count("virtual machines", quota.vms, have.vms, ask.vms)?;
    count("vCPUs", quota.vcpus, have.vcpus, ask.vcpus)?;
    size("memory", quota.memory, have.memory, ask.memory)?;
    size("disk", quota.disk, have.disk, ask.disk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_exceeded_term_is_named_with_its_numbers() {
        let quota = Quota { vms: Some(2), memory: Some(Mib(4096)), ..Quota::default() };
        let have = Usage { vms: 1, memory: Mib(3072), ..Usage::default() };
        let ask = Usage { vms: 1, memory: Mib(2048), vcpus: 64, ..Usage::default() };
        let error = check(&quota, &have, &ask).unwrap_err();
        assert_eq!(
            error.to_string(),
            "over your quota of memory: you have 3 GiB, this asks for 2 GiB, the limit is 4 GiB"
        );
    }

    #[test]
    fn asking_for_nothing_of_a_term_is_never_over_it() {
        let quota = Quota { vms: Some(1), ..Quota::default() };
        let have = Usage { vms: 3, ..Usage::default() };
        assert!(check(&quota, &have, &Usage { memory: Mib(1), ..Usage::default() }).is_ok());
    }
}
