//! Per-VM caps: what a virtual machine may take from its neighbours.
//!
//! Memory and disk size are part of the shape ([`crate::model::vm::VmSpec`]): the memory cap *is* the
//! machine's size, never libvirt's `<hard_limit>`, which kills QEMU instead of limiting the guest
//! (libvirt.org/formatdomain.html#memory-tuning).

use serde::{Deserialize, Serialize};

/// Limits that can be set at create and changed on a running machine. `None` means not limited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Caps {
    /// Relative CPU weight, 1 to 10000 (libvirt `<cputune><shares>`; the cgroup default is 1024 on v1, 100 on v2).
    pub cpu_shares: Option<u32>,
    /// CPU time in percent of one core: 150 means one and a half cores, over all vCPUs together
    /// (libvirt `<global_quota>` with a period of 100 ms).
    pub cpu_percent: Option<u32>,
    /// Disk operations per second, reads and writes together, per disk (`total_iops_sec`).
    pub disk_iops: Option<u64>,
    /// Disk bytes per second, reads and writes together, per disk (`total_bytes_sec`).
    pub disk_bytes_per_sec: Option<u64>,
    /// Network bytes per second into the machine.
    pub net_in_bytes_per_sec: Option<u64>,
    /// Network bytes per second out of the machine.
    pub net_out_bytes_per_sec: Option<u64>,
}

/// A change of caps: what is `None` stays, `Some(None)` is lifted. Only what it names is changed, so that two changes at
/// once do not undo each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapsChange {
    /// See [`Caps::cpu_shares`].
    pub cpu_shares: Option<Option<u32>>,
    /// See [`Caps::cpu_percent`].
    pub cpu_percent: Option<Option<u32>>,
    /// See [`Caps::disk_iops`].
    pub disk_iops: Option<Option<u64>>,
    /// See [`Caps::disk_bytes_per_sec`].
    pub disk_bytes_per_sec: Option<Option<u64>>,
    /// See [`Caps::net_in_bytes_per_sec`].
    pub net_in_bytes_per_sec: Option<Option<u64>>,
    /// See [`Caps::net_out_bytes_per_sec`].
    pub net_out_bytes_per_sec: Option<Option<u64>>,
}

/// Why caps cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CapsError {
    /// Outside of what libvirt takes.
    #[error("{what} is {value}; use {range}")]
    OutOfRange {
        /// The cap.
        what: &'static str,
        /// What was asked.
        value: u64,
        /// What would be accepted.
        range: &'static str,
    },
}

impl Caps {
    /// Checks every cap against what libvirt and the kernel accept.
    ///
    /// # Errors
    /// Names the first cap that is out of range.
    pub fn check(&self) -> Result<(), CapsError> {
        let within = |what, value: Option<u64>, min: u64, max: u64, range| match value {
            Some(value) if value < min || value > max => Err(CapsError::OutOfRange { what, value, range }),
            _ => Ok(()),
        };
        const RATE_MAX: u64 = 1 << 40;
        within("cpu-shares", self.cpu_shares.map(u64::from), 2, 10_000, "2 to 10000")?;
        within("cpu-percent", self.cpu_percent.map(u64::from), 1, 100_000, "1 to 100000 (100 is one core)")?;
        within("disk-iops", self.disk_iops, 10, 10_000_000, "10 to 10000000")?;
        for (what, value) in [
            ("disk-bps", self.disk_bytes_per_sec),
            ("net-in", self.net_in_bytes_per_sec),
            ("net-out", self.net_out_bytes_per_sec),
        ] {
            within(what, value, 1 << 10, RATE_MAX, "1 KiB/s to 1 TiB/s")?;
        }
        Ok(())
    }

    /// These caps with a change made to them.
    #[must_use]
    pub fn with(&self, change: &CapsChange) -> Self {
        Self {
            cpu_shares: change.cpu_shares.unwrap_or(self.cpu_shares),
            cpu_percent: change.cpu_percent.unwrap_or(self.cpu_percent),
            disk_iops: change.disk_iops.unwrap_or(self.disk_iops),
            disk_bytes_per_sec: change.disk_bytes_per_sec.unwrap_or(self.disk_bytes_per_sec),
            net_in_bytes_per_sec: change.net_in_bytes_per_sec.unwrap_or(self.net_in_bytes_per_sec),
            net_out_bytes_per_sec: change.net_out_bytes_per_sec.unwrap_or(self.net_out_bytes_per_sec),
        }
    }

    /// These caps where set, else those of `base` (a profile's).
    #[must_use]
    pub fn or(&self, base: &Self) -> Self {
        Self {
            cpu_shares: self.cpu_shares.or(base.cpu_shares),
            cpu_percent: self.cpu_percent.or(base.cpu_percent),
            disk_iops: self.disk_iops.or(base.disk_iops),
            disk_bytes_per_sec: self.disk_bytes_per_sec.or(base.disk_bytes_per_sec),
            net_in_bytes_per_sec: self.net_in_bytes_per_sec.or(base.net_in_bytes_per_sec),
            net_out_bytes_per_sec: self.net_out_bytes_per_sec.or(base.net_out_bytes_per_sec),
        }
    }

    /// True where any network rate is limited.
    pub const fn limits_network(&self) -> bool {
        self.net_in_bytes_per_sec.is_some() || self.net_out_bytes_per_sec.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_range_names_the_cap_and_the_range() {
        let caps = Caps { cpu_shares: Some(1), ..Caps::default() };
        assert_eq!(caps.check().unwrap_err().to_string(), "cpu-shares is 1; use 2 to 10000");
        assert!(Caps::default().check().is_ok());
    }

    #[test]
    fn a_change_touches_only_what_it_names() {
        let present = Caps { cpu_percent: Some(100), disk_iops: Some(500), ..Caps::default() };
        let change =
            CapsChange { cpu_percent: Some(None), net_in_bytes_per_sec: Some(Some(1 << 20)), ..CapsChange::default() };
        let expected = Caps { disk_iops: Some(500), net_in_bytes_per_sec: Some(1 << 20), ..Caps::default() };
        assert_eq!(present.with(&change), expected);
        assert_eq!(present.with(&CapsChange::default()), present);
    }

    #[test]
    fn a_request_overrides_its_profile() {
        let base = Caps { cpu_percent: Some(100), disk_iops: Some(500), ..Caps::default() };
        let asked = Caps { cpu_percent: Some(50), ..Caps::default() };
        let merged = asked.or(&base);
        assert_eq!((merged.cpu_percent, merged.disk_iops), (Some(50), Some(500)));
    }
}
