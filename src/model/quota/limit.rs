//! Limits, and which of several counts.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{HOUR, QuotaKind, Unit};
use crate::model::units::{Mib, UnitError};

/// Up to where, of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Without end, whatever a wider limit says.
    Unlimited,
    /// So many things, MiB, or hours.
    At(u64),
}

/// The word for no limit.
const UNLIMITED: &str = "unlimited";

/// More than anybody has of anything; in the unit of amounts every reader of JSON holds it without loss.
const MOST: u64 = 1_000_000_000_000;

/// Why a text is no limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// No number.
    #[error("{kind}: {text:?} is not a limit; write a whole number, or unlimited")]
    Number {
        /// Of what.
        kind: QuotaKind,
        /// As typed.
        text: String,
    },
    /// No size.
    #[error("{kind}: {source}")]
    Size {
        /// Of what.
        kind: QuotaKind,
        /// What is wrong.
        source: UnitError,
    },
    /// Out of all proportion.
    #[error("{0}: more than {MOST} is as good as unlimited; write that")]
    Large(QuotaKind),
}

impl Limit {
    /// Reads a limit of this kind as people write it: `3`, `64GiB`, `100` or `100h`, `unlimited`.
    ///
    /// # Errors
    /// [`LimitError`].
    pub fn parse(kind: QuotaKind, text: &str) -> Result<Self, LimitError> {
        let text = text.trim();
        if text == UNLIMITED {
            return Ok(Self::Unlimited);
        }
        let number = |digits: &str| {
            let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            let number = is_number.then(|| digits.parse().ok()).flatten();
            number.ok_or_else(|| LimitError::Number { kind, text: text.chars().take(40).collect() })
        };
        let number = match kind.unit() {
            Unit::Count => number(text)?,
            Unit::Size => text.parse::<Mib>().map_err(|source| LimitError::Size { kind, source })?.0,
            Unit::Hours => number(text.strip_suffix('h').unwrap_or(text))?,
        };
        Self::at(kind, number)
    }

    const fn at(kind: QuotaKind, number: u64) -> Result<Self, LimitError> {
        if number > MOST { Err(LimitError::Large(kind)) } else { Ok(Self::At(number)) }
    }

    /// For people, without a unit that the kind says already.
    pub fn show(self, kind: QuotaKind) -> String {
        match self.amount(kind) {
            None => UNLIMITED.to_owned(),
            Some(amount) => kind.show(amount),
        }
    }

    /// In the unit of amounts.
    pub const fn amount(self, kind: QuotaKind) -> Option<u64> {
        match (self, kind.unit()) {
            (Self::Unlimited, _) => None,
            (Self::At(number), Unit::Hours) => Some(number.saturating_mul(HOUR)),
            (Self::At(number), Unit::Count | Unit::Size) => Some(number),
        }
    }
}

/// A limit as written in JSON or TOML.
#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Number(u64),
    Text(String),
}

/// Limits of some kinds; what is not here is said by a wider quota, and where nobody says anything there is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<QuotaKind, Written>", into = "BTreeMap<QuotaKind, Written>")]
pub struct Quota(BTreeMap<QuotaKind, Limit>);

impl Quota {
    /// What it says of a kind.
    pub fn get(&self, kind: QuotaKind) -> Option<Limit> {
        self.0.get(&kind).copied()
    }

    /// The limit of a kind in the unit of amounts, where there is one.
    pub fn amount(&self, kind: QuotaKind) -> Option<u64> {
        self.get(kind)?.amount(kind)
    }

    /// Says something else of a kind, or nothing any more.
    pub fn set(&mut self, kind: QuotaKind, limit: Option<Limit>) {
        match limit {
            Some(limit) => self.0.insert(kind, limit),
            None => self.0.remove(&kind),
        };
    }

    /// What it says, in the order of the kinds.
    pub fn iter(&self) -> impl Iterator<Item = (QuotaKind, Limit)> + '_ {
        self.0.iter().map(|(kind, limit)| (*kind, *limit))
    }
}

impl FromIterator<(QuotaKind, u64)> for Quota {
    fn from_iter<T: IntoIterator<Item = (QuotaKind, u64)>>(limits: T) -> Self {
        Self(limits.into_iter().map(|(kind, limit)| (kind, Limit::At(limit))).collect())
    }
}

impl TryFrom<BTreeMap<QuotaKind, Written>> for Quota {
    type Error = LimitError;

    fn try_from(written: BTreeMap<QuotaKind, Written>) -> Result<Self, LimitError> {
        let limit = |(kind, written)| match written {
            Written::Number(number) => Limit::at(kind, number).map(|limit| (kind, limit)),
            Written::Text(text) => Limit::parse(kind, &text).map(|limit| (kind, limit)),
        };
        written.into_iter().map(limit).collect::<Result<_, _>>().map(Self)
    }
}

impl From<Quota> for BTreeMap<QuotaKind, Written> {
    fn from(quota: Quota) -> Self {
        let written = |limit| match limit {
            Limit::At(number) => Written::Number(number),
            Limit::Unlimited => Written::Text(UNLIMITED.to_owned()),
        };
        quota.0.into_iter().map(|(kind, limit)| (kind, written(limit))).collect()
    }
}

/// Who says a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitSource {
    /// The person's or the team's own quota.
    Own,
    /// What the default team gives each of its members.
    MemberOf(String),
    /// `[people.quota]` of the configuration.
    Usual,
}

impl fmt::Display for LimitSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("own"),
            Self::MemberOf(team) => write!(f, "each member of {team}"),
            Self::Usual => f.write_str("[people.quota]"),
        }
    }
}

/// The limits that count, each with who says it: of each kind the first that says something, narrowest first.
pub fn effective(narrowest_first: &[(LimitSource, &Quota)]) -> (Quota, BTreeMap<QuotaKind, LimitSource>) {
    let (mut quota, mut sources) = (Quota::default(), BTreeMap::new());
    for kind in QuotaKind::ALL {
        let mut says = narrowest_first.iter().filter_map(|(source, quota)| Some((source, quota.get(*kind)?)));
        if let Some((source, limit)) = says.next() {
            quota.set(*kind, Some(limit));
            sources.insert(*kind, source.clone());
        }
    }
    (quota, sources)
}

#[cfg(test)]
mod tests {
    use super::*;
    use QuotaKind::{Disk, GpuHours, Gpus, Memory, Vcpus, Vms};

    #[test]
    fn limits_are_read_as_people_write_them() {
        for (kind, text, limit) in [
            (Vms, "3", Limit::At(3)),
            (Vcpus, "unlimited", Limit::Unlimited),
            (Memory, "64GiB", Limit::At(65_536)),
            (Memory, "512", Limit::At(512)),
            (GpuHours, "100", Limit::At(100)),
            (GpuHours, "100h", Limit::At(100)),
            (Gpus, "0", Limit::At(0)),
        ] {
            assert_eq!(Limit::parse(kind, text), Ok(limit), "{kind} {text}");
        }
        for (kind, text) in
            [(Vms, "-1"), (Vms, "1.5"), (Vms, "+1"), (Vms, ""), (Disk, "many"), (GpuHours, "h"), (Vms, "3h")]
        {
            let error = Limit::parse(kind, text).unwrap_err().to_string();
            assert!(error.starts_with(kind.word()) && error.contains("write"), "{error}");
        }
    }

    #[test]
    fn a_quota_is_read_as_it_is_written() {
        let text = r#"{"vms":3,"vcpus":"unlimited","memory":65536,"gpu_hours":100}"#;
        let quota: Quota = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&quota).unwrap(), text);
        assert_eq!((quota.amount(Vcpus), quota.amount(GpuHours), quota.get(Disk)), (None, Some(360_000), None));
        assert_eq!(
            toml::from_str::<Quota>("vms = 3\nvcpus = 'unlimited'\nmemory = '64GiB'\ngpu_hours = 100").unwrap(),
            quota
        );
        for bad in
            [r#"{"cats":3}"#, r#"{"vms":-1}"#, r#"{"vms":"many"}"#, r#"{"vms":null}"#, r#"{"gpu_hours":1000000000001}"#]
        {
            assert!(serde_json::from_str::<Quota>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn each_kind_falls_back_by_itself() {
        let quota = |text: &str| serde_json::from_str::<Quota>(text).unwrap();
        let (own, member) = (quota(r#"{"vms":"unlimited"}"#), quota(r#"{"vms":2,"gpus":1}"#));
        let usual = quota(r#"{"vms":1,"gpus":0,"disk":5}"#);
        let team = LimitSource::MemberOf("hpc".to_owned());
        let (limits, from) =
            effective(&[(LimitSource::Own, &own), (team.clone(), &member), (LimitSource::Usual, &usual)]);
        assert_eq!([Vms, Gpus, Disk, Memory].map(|kind| limits.amount(kind)), [None, Some(1), Some(5), None]);
        let from = [Vms, Gpus, Disk, Memory].map(|kind| from.get(&kind).cloned());
        assert_eq!(from, [Some(LimitSource::Own), Some(team), Some(LimitSource::Usual), None]);
    }
}
