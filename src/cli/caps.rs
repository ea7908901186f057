//! Limits as they are typed, and what is sent for them.

use std::str::FromStr;

use clap::Args;

use crate::api::types::{CapsPatch, CapsView};

/// Limits at create; what is absent comes from the profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Limits")]
pub struct CapArgs {
    /// CPU time in percent of one core: 150 is one and a half cores
    #[arg(long, visible_alias = "cap-cpu-percent", value_name = "PERCENT")]
    cpu_percent: Option<u32>,
    /// Weight against other machines when CPUs are short, 2 to 10000
    #[arg(long, value_name = "WEIGHT")]
    cpu_shares: Option<u32>,
    /// Disk operations per second
    #[arg(long, value_name = "N")]
    disk_iops: Option<u64>,
    /// Disk bytes per second, such as 50M
    #[arg(long, value_name = "RATE")]
    disk_bps: Option<ByteRate>,
    /// Network bytes per second into the machine, such as 10M
    #[arg(long, value_name = "RATE")]
    net_in: Option<ByteRate>,
    /// Network bytes per second out of the machine, such as 10M
    #[arg(long, value_name = "RATE")]
    net_out: Option<ByteRate>,
}

/// Limits to change; `none` lifts one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Limits (none lifts one)")]
pub struct LimitArgs {
    /// CPU time in percent of one core: 150 is one and a half cores
    #[arg(long, visible_alias = "cap-cpu-percent", value_name = "PERCENT")]
    cpu_percent: Option<Limit<u32>>,
    /// Weight against other machines when CPUs are short, 2 to 10000
    #[arg(long, value_name = "WEIGHT")]
    cpu_shares: Option<Limit<u32>>,
    /// Disk operations per second
    #[arg(long, value_name = "N")]
    disk_iops: Option<Limit<u64>>,
    /// Disk bytes per second, such as 50M
    #[arg(long, value_name = "RATE")]
    disk_bps: Option<Limit<ByteRate>>,
    /// Network bytes per second into the machine, such as 10M
    #[arg(long, value_name = "RATE")]
    net_in: Option<Limit<ByteRate>>,
    /// Network bytes per second out of the machine, such as 10M
    #[arg(long, value_name = "RATE")]
    net_out: Option<Limit<ByteRate>>,
}

impl CapArgs {
    /// The limits to send.
    pub fn view(&self) -> CapsView {
        let bytes = |rate: &Option<ByteRate>| rate.as_ref().map(|rate| rate.0);
        CapsView {
            cpu_shares: self.cpu_shares,
            cpu_percent: self.cpu_percent,
            disk_iops: self.disk_iops,
            disk_bytes_per_sec: bytes(&self.disk_bps),
            net_in_bytes_per_sec: bytes(&self.net_in),
            net_out_bytes_per_sec: bytes(&self.net_out),
        }
    }
}

impl LimitArgs {
    /// True where no limit is to change.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The changes to send.
    pub fn patch(&self) -> CapsPatch {
        let bytes = |limit: &Option<Limit<ByteRate>>| limit.map(|limit| limit.value().map(|rate| rate.0));
        CapsPatch {
            cpu_shares: self.cpu_shares.map(Limit::value),
            cpu_percent: self.cpu_percent.map(Limit::value),
            disk_iops: self.disk_iops.map(Limit::value),
            disk_bytes_per_sec: bytes(&self.disk_bps),
            net_in_bytes_per_sec: bytes(&self.net_in),
            net_out_bytes_per_sec: bytes(&self.net_out),
        }
    }
}

/// A limit as typed to `gvm set`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit<T> {
    /// `none`
    Lift,
    /// A value.
    Value(T),
}

impl<T> Limit<T> {
    /// The value; none where it is lifted.
    fn value(self) -> Option<T> {
        match self {
            Self::Lift => None,
            Self::Value(value) => Some(value),
        }
    }
}

impl<T: FromStr> FromStr for Limit<T>
where
    T::Err: std::fmt::Display,
{
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" {
            return Ok(Self::Lift);
        }
        text.parse().map(Self::Value).map_err(|e: T::Err| format!("{e} (or none)"))
    }
}

/// Bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRate(pub u64);

impl FromStr for ByteRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || format!("{text:?} is not a rate; write bytes per second such as 500K, 50M or 1G (binary units)");
        let amount = text.trim().trim_end_matches("/s");
        let end = amount.find(|c: char| !c.is_ascii_digit()).unwrap_or(amount.len());
        let (digits, unit) = amount.split_at(end);
        let shift = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            _ => return Err(wrong()),
        };
        let number: u64 = digits.parse().map_err(|_| wrong())?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_binary_units() {
        for (text, bytes) in [("4096", 4096), ("500K", 500 << 10), ("50M/s", 50 << 20), ("1GiB", 1 << 30)] {
            assert_eq!(text.parse::<ByteRate>(), Ok(ByteRate(bytes)), "{text}");
        }
        for bad in ["", "M", "1.5M", "-1", "1T", "99999999999G"] {
            assert!(bad.parse::<ByteRate>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_change_names_what_it_touches_and_none_lifts() {
        let change = LimitArgs {
            cpu_percent: Some("none".parse().unwrap()),
            net_in: Some("10M".parse().unwrap()),
            ..LimitArgs::default()
        };
        let sent = serde_json::to_string(&change.patch()).unwrap();
        assert_eq!(sent, r#"{"cpu_percent":null,"net_in_bytes_per_sec":10485760}"#);
        assert_eq!(serde_json::from_str::<CapsPatch>(&sent).unwrap(), change.patch());
    }

    #[test]
    fn a_limit_is_a_number_or_none() {
        assert!("x".parse::<Limit<u32>>().unwrap_err().ends_with("(or none)"));
    }
}
