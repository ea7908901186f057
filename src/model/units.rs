//! Quantities with their unit in the type.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A size in MiB (1 048 576 bytes): memory and disks are given in whole MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Mib(pub u64);

impl Mib {
    /// The size in bytes, saturating.
    pub const fn bytes(self) -> u64 {
        self.0.saturating_mul(1 << 20)
    }

    /// The size in KiB, the unit of libvirt's memory calls, saturating.
    pub const fn kib(self) -> u64 {
        self.0.saturating_mul(1 << 10)
    }

    /// Rounds bytes up to whole MiB.
    pub const fn from_bytes_ceil(bytes: u64) -> Self {
        Self(bytes.div_ceil(1 << 20))
    }
}

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = if self.0 >= 1 << 20 && self.0.is_multiple_of(1 << 20) {
            format!("{} TiB", self.0 >> 20)
        } else if self.0 >= 1 << 10 && self.0.is_multiple_of(1 << 10) {
            format!("{} GiB", self.0 >> 10)
        } else {
            format!("{} MiB", self.0)
        };
        f.pad(&text)
    }
}

/// Why a text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Not a number with a known unit.
    #[error(
        "{0:?} is not a size; write a whole number with a unit, such as 512M, 8G or 1T (binary units; a bare number is MiB)"
    )]
    Size(String),
    /// A span that no calendar holds.
    #[error("{0:?} is too long; at most {max} days are taken", max = MAX_DAYS)]
    LongSpan(String),
    /// Not a span of time.
    #[error("{0:?} is not a duration; write for example 90s, 30m, 8h or 7d")]
    Span(String),
}

/// The longest span that is taken: ten years.
const MAX_DAYS: u64 = 3650;

fn split_number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    Some((digits.parse().ok()?, unit.trim()))
}

impl FromStr for Mib {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || UnitError::Size(text.to_owned());
        let (number, unit) = split_number(text.trim()).ok_or_else(wrong)?;
        let shift = match unit.to_ascii_lowercase().as_str() {
            "" | "m" | "mb" | "mib" => 0,
            "g" | "gb" | "gib" => 10,
            "t" | "tb" | "tib" => 20,
            _ => return Err(wrong()),
        };
        number.checked_mul(1 << shift).map(Mib).ok_or_else(wrong)
    }
}

/// A span of time in whole seconds, as people type it: `90s`, `30m`, `8h`, `7d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seconds(pub u64);

impl Seconds {
    /// As a standard duration.
    pub const fn duration(self) -> Duration {
        Duration::from_secs(self.0)
    }
}

impl FromStr for Seconds {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || UnitError::Span(text.to_owned());
        let (number, unit) = split_number(text.trim()).ok_or_else(wrong)?;
        let factor = match unit {
            "s" => 1,
            "m" | "min" => 60,
            "h" => 3600,
            "d" => 86_400,
            _ => return Err(wrong()),
        };
        let seconds = number.checked_mul(factor).ok_or_else(wrong)?;
        match seconds <= MAX_DAYS * 86_400 {
            true => Ok(Self(seconds)),
            false => Err(UnitError::LongSpan(text.to_owned())),
        }
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            s if s > 0 && s.is_multiple_of(86_400) => format!("{}d", s / 86_400),
            s if s > 0 && s.is_multiple_of(3600) => format!("{}h", s / 3600),
            s if s > 0 && s.is_multiple_of(60) => format!("{}m", s / 60),
            s => format!("{s}s"),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_shown_in_binary_units() {
        for (text, mib) in [("512", 512), ("512M", 512), ("2G", 2048), ("2 GiB", 2048), ("1t", 1 << 20), ("0", 0)] {
            assert_eq!(text.parse::<Mib>(), Ok(Mib(mib)), "{text}");
        }
        for bad in ["", "G", "-1", "1.5G", "1k", "99999999999999999999", "18446744073709551615T"] {
            assert!(bad.parse::<Mib>().is_err(), "{bad}");
        }
        assert_eq!(Mib(2048).to_string(), "2 GiB");
        assert_eq!(Mib(1536).to_string(), "1536 MiB");
    }

    #[test]
    fn spans_are_read_and_shown() {
        for (text, seconds) in [("90s", 90), ("30m", 1800), ("8h", 28_800), ("7d", 604_800)] {
            assert_eq!(text.parse::<Seconds>(), Ok(Seconds(seconds)), "{text}");
            assert_eq!(Seconds(seconds).to_string(), text);
        }
        assert!("8".parse::<Seconds>().is_err());
    }
}
