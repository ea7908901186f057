//! What people and teams may hold. Usage is computed from live rows, never counted along.
//!
//! ```text
//!   kinds      one table: word, unit, what is counted, and when
//!   Quota      some kinds with their limit; what is not said falls back to a wider one
//!   Usage      so much of each kind: held by others of the same holder, by a machine before a change, and after it
//!   exceeded   (limits, others, before, after) -> every kind that grows beyond its limit
//! ```

mod limit;
pub mod month;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use self::limit::{Limit, LimitError, LimitSource, Quota, effective};
use super::gpu::{GpuRequest, VgpuTypeName};
use super::profile::Profile;
use super::units::Mib;
use super::vm::{Desired, VmSpec};

/// Seconds of an hour.
const HOUR: u64 = 3600;

/// In what a kind is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things.
    Count,
    /// MiB.
    Size,
    /// Hours as limits, seconds as amounts: an hour of a quarter of a card is a quarter of an hour.
    Hours,
}

/// When a machine counts for a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// From its making until it is gone, stopped and deleted ones included.
    Total,
    /// While it should run.
    Concurrent,
    /// What was held since the month began.
    Month,
}

impl Extent {
    /// For tables.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Total => "until it is gone",
            Self::Concurrent => "while it should run",
            Self::Month => "in a calendar month",
        }
    }
}

macro_rules! kinds {
    ($($name:ident $word:literal $noun:literal $unit:ident $extent:ident $counts:literal;)+) => {
        /// What is limited.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum QuotaKind {
            $(#[doc = $counts] $name,)+
        }

        impl QuotaKind {
            /// All kinds, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// Its word in the configuration and on the wire.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word),+
                }
            }

            /// What it is, after "quota of".
            pub const fn noun(self) -> &'static str {
                match self {
                    $(Self::$name => $noun),+
                }
            }

            /// In what it is counted.
            pub const fn unit(self) -> Unit {
                match self {
                    $(Self::$name => Unit::$unit),+
                }
            }

            /// When a machine counts for it.
            pub const fn extent(self) -> Extent {
                match self {
                    $(Self::$name => Extent::$extent),+
                }
            }

            /// What counts.
            pub const fn counts(self) -> &'static str {
                match self {
                    $(Self::$name => $counts),+
                }
            }
        }
    };
}

kinds! {
    Vms "vms" "virtual machines" Count Total "machines, stopped ones and those that can still be undeleted included";
    RunningVms "running_vms" "running virtual machines" Count Concurrent "machines, paused ones included";
    Vcpus "vcpus" "vCPUs" Count Concurrent "virtual CPUs";
    Memory "memory" "memory" Size Concurrent "memory";
    Disk "disk" "disk" Size Total "size of the root disks, whatever of it is written";
    Gpus "gpus" "GPUs" Count Concurrent "whole cards and parts of cards; each part is one";
    GpuMemory "gpu_memory" "GPU memory" Size Concurrent "memory of whole cards, vGPUs and MIG slices; a card that does not say its memory counts as none";
    GpuSlices "gpu_slices" "GPU slices" Count Concurrent "parts of cards: vGPUs and MIG slices";
    GpuHours "gpu_hours" "GPU hours" Hours Month "time that cards were held; a part of a card counts as that part of the time";
}

/// Kinds that come with the feature that makes them.
pub const COMING: &[(&str, &str)] =
    &[("snapshots", "with snapshots of machines"), ("ports", "with ports that are led into machines")];

impl QuotaKind {
    /// An amount of it for people.
    pub fn show(self, amount: u64) -> String {
        match self.unit() {
            Unit::Count => amount.to_string(),
            Unit::Size => Mib(amount).to_string(),
            Unit::Hours => {
                let hundredths = u128::from(amount) * 100 / u128::from(HOUR);
                let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
                format!("{} h", text.trim_end_matches('0').trim_end_matches('.'))
            }
        }
    }
}

impl fmt::Display for QuotaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// A word that is no kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not something that can be limited; use {list}", list = words())]
pub struct UnknownKind(String);

fn words() -> String {
    QuotaKind::ALL.iter().map(|kind| kind.word()).collect::<Vec<_>>().join(", ")
}

impl FromStr for QuotaKind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        let is_it = |kind: &&Self| kind.word() == text;
        Self::ALL.iter().find(is_it).copied().ok_or_else(|| UnknownKind(text.chars().take(40).collect()))
    }
}

/// The size of a machine, as far as it counts.
#[derive(Clone, Copy, Debug)]
pub struct Size<'a> {
    vcpus: u32,
    memory: Mib,
    disk: Mib,
    gpus: &'a [GpuRequest],
}

impl<'a> From<&'a VmSpec> for Size<'a> {
    fn from(spec: &'a VmSpec) -> Self {
        Self { vcpus: spec.vcpus, memory: spec.memory, disk: spec.disk, gpus: &spec.gpus }
    }
}

impl<'a> From<&'a Profile> for Size<'a> {
    fn from(profile: &'a Profile) -> Self {
        Self { vcpus: profile.vcpus, memory: profile.memory, disk: profile.disk, gpus: &profile.gpus }
    }
}

/// So much of each kind: things, MiB, seconds of a whole card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage(BTreeMap<QuotaKind, u64>);

impl Usage {
    /// How much of a kind.
    pub fn get(&self, kind: QuotaKind) -> u64 {
        self.0.get(&kind).copied().unwrap_or_default()
    }

    /// Memory, which the host's capacity is checked with too.
    pub fn memory(&self) -> Mib {
        Mib(self.get(QuotaKind::Memory))
    }

    /// Adds to a kind.
    pub fn add(&mut self, kind: QuotaKind, amount: u64) {
        if amount > 0 {
            let sum = self.0.entry(kind).or_default();
            *sum = sum.saturating_add(amount);
        }
    }

    /// Both together.
    #[must_use]
    pub fn plus(mut self, other: &Self) -> Self {
        other.0.iter().for_each(|(kind, amount)| self.add(*kind, *amount));
        self
    }

    /// What is more than that of each kind.
    #[must_use]
    pub fn beyond(&self, before: &Self) -> Self {
        let more = |kind: &QuotaKind| (*kind, self.get(*kind).saturating_sub(before.get(*kind)));
        Self(QuotaKind::ALL.iter().map(more).filter(|(_, amount)| *amount > 0).collect())
    }

    /// What a machine holds, its GPUs left aside.
    pub fn of_machine(size: Size<'_>, desired: Desired) -> Self {
        let mut usage = Self::default();
        usage.add(QuotaKind::Vms, 1);
        usage.add(QuotaKind::Disk, size.disk.0);
        if desired.is_up() {
            usage.add(QuotaKind::RunningVms, 1);
            usage.add(QuotaKind::Vcpus, size.vcpus.into());
            usage.add(QuotaKind::Memory, size.memory.0);
        }
        usage
    }

    /// Adds a partition that a machine holds which should run.
    pub fn add_partition(&mut self, is_part: bool, memory: Mib) {
        self.add(QuotaKind::Gpus, 1);
        self.add(QuotaKind::GpuSlices, u64::from(is_part));
        self.add(QuotaKind::GpuMemory, memory.0);
    }

    /// Adds that its GPUs are held from now on: it needs some of this month's time, however little.
    pub fn add_gpu_time(&mut self) {
        if self.get(QuotaKind::Gpus) > 0 {
            self.add(QuotaKind::GpuHours, 1);
        }
    }

    /// The least that a machine will hold, by its request alone: which card it gets, and so how much memory, is not
    /// known yet.
    pub fn asked(size: Size<'_>, desired: Desired) -> Self {
        let mut usage = Self::of_machine(size, desired);
        for request in size.gpus.iter().filter(|_| desired.is_up()) {
            // What is asked for by memory may be a whole card or a part.
            let (is_part, memory) = match request {
                GpuRequest::Whole(cards) => (false, cards.memory.unwrap_or_default()),
                GpuRequest::Vgpu(word) => {
                    let grade = VgpuTypeName::parse(word).and_then(|name| name.grade());
                    (true, grade.map_or(Mib(0), |grade| grade.memory))
                }
                GpuRequest::Mig(_) => (true, Mib(0)),
            };
            (0..request.count()).for_each(|_| usage.add_partition(is_part, memory));
        }
        usage.add_gpu_time();
        usage
    }
}

impl FromIterator<(QuotaKind, u64)> for Usage {
    fn from_iter<T: IntoIterator<Item = (QuotaKind, u64)>>(amounts: T) -> Self {
        let mut usage = Self::default();
        amounts.into_iter().for_each(|(kind, amount)| usage.add(kind, amount));
        usage
    }
}

/// Whose limit it is, for the one who is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Of the one who is told.
    Yours,
    /// Another's.
    User(String),
    /// A team's.
    Team(String),
}

/// One kind that is beyond its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Over {
    /// Which.
    pub kind: QuotaKind,
    /// Whose limit.
    pub whose: Whose,
    /// Held now.
    pub have: u64,
    /// Asked for.
    pub ask: u64,
    /// The limit.
    pub limit: u64,
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, whose, have, ask, limit } = self;
        let (quota, holder) = match whose {
            Whose::Yours => ("your".to_owned(), "you have".to_owned()),
            Whose::User(name) => (format!("{name}'s"), format!("{name} has")),
            Whose::Team(name) => (format!("team {name}'s"), "it has".to_owned()),
        };
        let show = |amount| kind.show(amount);
        if kind.extent() == Extent::Month {
            let (have, limit) = (show(*have), show(*limit));
            return write!(f, "over {quota} quota of {}: {holder} used {have} of {limit} this month", kind.noun());
        }
        let excess = have.saturating_add(*ask).saturating_sub(*limit);
        let too = if kind.unit() == Unit::Count { "too many" } else { "too much" };
        let (have, ask, limit, excess) = (show(*have), show(*ask), show(*limit), show(excess));
        write!(
            f,
            "over {quota} quota of {}: {holder} {have}, this asks for {ask}, the limit is {limit}: {excess} {too}",
            kind.noun()
        )
    }
}

/// Why a request is over quota: every kind that is, of everybody whose limit it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct QuotaExceeded(pub Vec<Over>);

/// The kinds of which a machine is to hold more than before, and which are then beyond their limit; `others` is what the
/// same holder has beside this machine. What does not grow is never over: nobody is hindered to stop, or to keep what
/// they have, by a limit that came later.
pub fn exceeded(whose: &Whose, quota: &Quota, others: &Usage, before: &Usage, after: &Usage) -> Vec<Over> {
    let over = |kind: &QuotaKind| {
        let limit = quota.amount(*kind)?;
        let (had, has) = (before.get(*kind), after.get(*kind));
        let is_over = has > had && others.get(*kind).saturating_add(has) > limit;
        let have = others.get(*kind).saturating_add(had);
        is_over.then(|| Over { kind: *kind, whose: whose.clone(), have, ask: has.saturating_sub(had), limit })
    };
    QuotaKind::ALL.iter().filter_map(over).collect()
}

/// The kinds as a document, Markdown.
pub fn document() -> String {
    let mut text = String::from(
        "# What can be limited\n\n\
         Made from `src/model/quota.rs` by `house::quotas`; not to be edited. Limits are of a person (their own, else what \
         their default team gives each member, else `[people.quota]`; each kind falls back by itself) and of a team, over \
         all of its machines together. See [ADR 0025](adr/0025-quotas.md).\n\n\
         | kind | unit | counts | a machine counts |\n|---|---|---|---|\n",
    );
    for kind in QuotaKind::ALL {
        let unit = match kind.unit() {
            Unit::Count => "number",
            Unit::Size => "MiB, or with a unit",
            Unit::Hours => "hours",
        };
        text.push_str(&format!("| `{kind}` | {unit} | {} | {} |\n", kind.counts(), kind.extent().words()));
    }
    text.push_str("\nNot there yet:\n\n");
    COMING.iter().for_each(|(kind, when)| text.push_str(&format!("- `{kind}` comes {when}\n")));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use QuotaKind::{GpuHours, Gpus, Memory, Vcpus, Vms};

    fn usage(amounts: &[(QuotaKind, u64)]) -> Usage {
        amounts.iter().copied().collect()
    }

    #[test]
    fn every_exceeded_kind_is_named_with_its_numbers() {
        let quota: Quota = [(Vms, 2), (Memory, 4096), (Gpus, 1)].into_iter().collect();
        let others = usage(&[(Vms, 1), (Memory, 3072), (Gpus, 1)]);
        let ask = usage(&[(Vms, 1), (Memory, 2048), (Vcpus, 64), (Gpus, 2)]);
        let mut over = exceeded(&Whose::Yours, &quota, &others, &Usage::default(), &ask);
        over.extend(exceeded(&Whose::Team("hpc".to_owned()), &quota, &others, &Usage::default(), &ask));
        insta::assert_snapshot!(QuotaExceeded(over).to_string().replace("; ", "\n"), @r"
        over your quota of memory: you have 3 GiB, this asks for 2 GiB, the limit is 4 GiB: 1 GiB too much
        over your quota of GPUs: you have 1, this asks for 2, the limit is 1: 2 too many
        over team hpc's quota of memory: it has 3 GiB, this asks for 2 GiB, the limit is 4 GiB: 1 GiB too much
        over team hpc's quota of GPUs: it has 1, this asks for 2, the limit is 1: 2 too many
        ");
    }

    #[test]
    fn what_does_not_grow_is_never_over() {
        let quota: Quota = [(Vms, 1), (Memory, 1)].into_iter().collect();
        let (others, machine) = (usage(&[(Vms, 3), (Memory, 512)]), usage(&[(Vms, 1), (Memory, 512)]));
        assert_eq!(exceeded(&Whose::Yours, &quota, &others, &machine, &machine), []);
        assert_eq!(exceeded(&Whose::Yours, &quota, &others, &machine, &usage(&[(Vms, 1)])), []);
        assert_eq!(exceeded(&Whose::Yours, &quota, &others, &Usage::default(), &machine).len(), 2);
    }

    #[test]
    fn hours_are_used_up_at_the_limit_and_not_before() {
        let quota: Quota = [(GpuHours, 100)].into_iter().collect();
        let ask = usage(&[(GpuHours, 1)]);
        let over = |used| {
            exceeded(&Whose::User("eve".to_owned()), &quota, &usage(&[(GpuHours, used)]), &Usage::default(), &ask)
        };
        assert_eq!(over(359_999), []);
        insta::assert_snapshot!(over(360_000)[0], @"over eve's quota of GPU hours: eve has used 100 h of 100 h this month");
        assert_eq!([9_000, 9_036, 3_600, 0].map(|seconds| GpuHours.show(seconds)), ["2.5 h", "2.51 h", "1 h", "0 h"]);
    }

    #[test]
    fn words_are_those_of_the_wire() {
        for kind in QuotaKind::ALL {
            assert_eq!(serde_json::to_string(kind).unwrap(), format!("\"{}\"", kind.word()));
        }
    }
}
