//! How long one who fails to log in has to wait.
//!
//! Failures are counted by what they come from or aim at: an address, a user's name. A few are free; after that each
//! makes the wait twice as long. The table is bounded: what has been quiet goes first, then what failed least. The
//! newcomer takes over the count of what had to go, so that nobody gets rid of a count by filling the table.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use jiff::{SignedDuration, Timestamp};

use super::network::household;

/// What failures are counted by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// The network that they come from: one IPv4 address or one IPv6 /64.
    Address(IpAddr),
    /// The name that they aim at, whether there is such a user or not.
    Name(String),
}

impl Source {
    /// The network of this address.
    pub fn address(address: IpAddr) -> Self {
        Self::Address(household(address))
    }

    /// A user's name as it was typed; only its beginning counts.
    pub fn name(name: &str) -> Self {
        Self::Name(name.chars().take(64).collect::<String>().to_lowercase())
    }
}

/// How much is forgiven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The failure that makes the first wait.
    pub free: u32,
    /// The first wait.
    pub first: SignedDuration,
    /// The longest wait.
    pub longest: SignedDuration,
    /// So long without a failure, and all are forgotten.
    pub quiet: SignedDuration,
    /// Sources that are remembered at once.
    pub capacity: usize,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            free: 5,
            first: SignedDuration::from_secs(1),
            longest: SignedDuration::from_mins(15),
            quiet: SignedDuration::from_hours(1),
            capacity: 16_384,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    failures: u32,
    last: Timestamp,
}

/// The table.
#[derive(Clone, Debug, Default)]
pub struct Backoff {
    rules: Rules,
    entries: HashMap<Source, Entry>,
    by_time: BTreeSet<(Timestamp, Source)>,
    by_count: BTreeSet<(u32, Timestamp, Source)>,
}

impl Backoff {
    /// An empty one.
    pub fn new(rules: Rules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// How long this source has to wait from now, where it has to. A try before that is to be refused unseen, and not
    /// to be counted.
    pub fn wait(&self, source: &Source, now: Timestamp) -> Option<SignedDuration> {
        let entry = self.entries.get(source)?;
        if self.is_quiet(entry.last, now) {
            return None;
        }
        let delay = self.delay(entry.failures)?;
        // Where the clock stepped back, no longer than the delay itself.
        let left = now.duration_until(entry.last).saturating_add(delay).min(delay);
        left.is_positive().then_some(left)
    }

    /// It failed once more.
    pub fn failed(&mut self, source: Source, now: Timestamp) {
        let before = match self.take(&source) {
            Some(entry) if self.is_quiet(entry.last, now) => 0,
            Some(entry) => entry.failures,
            None => self.make_room(now),
        };
        let entry = Entry { failures: before.saturating_add(1), last: now };
        self.by_time.insert((now, source.clone()));
        self.by_count.insert((entry.failures, now, source.clone()));
        self.entries.insert(source, entry);
    }

    /// It succeeded: its failures are forgotten. Not to be told of an address, whose owner may have one good login and
    /// try the names of others.
    pub fn succeeded(&mut self, source: &Source) {
        self.take(source);
    }

    /// Sources that are remembered.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True where nobody failed.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn is_quiet(&self, last: Timestamp, now: Timestamp) -> bool {
        last.duration_until(now) >= self.rules.quiet
    }

    fn delay(&self, failures: u32) -> Option<SignedDuration> {
        let over = failures.checked_sub(self.rules.free)?;
        let factor = 1_i32.checked_shl(over.min(30)).unwrap_or(i32::MAX);
        Some(self.rules.first.saturating_mul(factor).min(self.rules.longest))
    }

    fn take(&mut self, source: &Source) -> Option<Entry> {
        let entry = self.entries.remove(source)?;
        self.by_time.remove(&(entry.last, source.clone()));
        self.by_count.remove(&(entry.failures, entry.last, source.clone()));
        Some(entry)
    }

    /// Lets one go where the table is full; gives the count that the newcomer takes over.
    fn make_room(&mut self, now: Timestamp) -> u32 {
        if self.entries.len() < self.rules.capacity {
            return 0;
        }
        let oldest =
            self.by_time.first().filter(|(last, _)| self.is_quiet(*last, now)).map(|(_, source)| source.clone());
        if let Some(oldest) = oldest {
            self.take(&oldest);
            return 0;
        }
        let lightest = self.by_count.first().map(|(_, _, source)| source.clone());
        lightest.and_then(|source| self.take(&source)).map_or(0, |entry| entry.failures)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn seconds(backoff: &Backoff, source: &Source, now: i64) -> i64 {
        backoff.wait(source, at(now)).map_or(0, |wait| wait.as_secs())
    }

    #[test]
    fn waits_double_after_five_failures_up_to_a_quarter_of_an_hour() {
        let mut backoff = Backoff::default();
        let eve = Source::name("eve");
        let mut waits = Vec::new();
        for _ in 0..18 {
            backoff.failed(eve.clone(), at(0));
            waits.push(seconds(&backoff, &eve, 0));
        }
        assert_eq!(waits, [0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900, 900, 900]);
        assert_eq!(seconds(&backoff, &eve, 899), 1);
        assert_eq!(seconds(&backoff, &eve, 900), 0);
        assert_eq!(seconds(&backoff, &Source::name("bob"), 0), 0);
        assert_eq!(seconds(&backoff, &Source::name("EVE"), 0), 900, "names that differ in case are one");
        backoff.succeeded(&eve);
        assert!(backoff.is_empty());
    }

    #[test]
    fn quiet_time_forgives_and_a_clock_that_steps_back_locks_nobody_out() {
        let mut backoff = Backoff::default();
        let eve = Source::address("2001:db8::1".parse().unwrap());
        for _ in 0..9 {
            backoff.failed(eve.clone(), at(0));
        }
        assert_eq!(seconds(&backoff, &eve, -100_000), 16);
        assert_eq!(seconds(&backoff, &Source::address("2001:db8::2".parse().unwrap()), 0), 16, "one household");
        backoff.failed(eve.clone(), at(3600));
        assert_eq!(seconds(&backoff, &eve, 3600), 0, "counted from one again");
    }

    #[test]
    fn filling_the_table_does_not_clear_an_entry() {
        let mut backoff = Backoff::new(Rules { capacity: 8, ..Rules::default() });
        let eve = Source::name("eve");
        for _ in 0..10 {
            backoff.failed(eve.clone(), at(0));
        }
        for n in 0..40 {
            backoff.failed(Source::name(&format!("x{n}")), at(n));
        }
        assert_eq!(backoff.len(), 8);
        assert!(seconds(&backoff, &eve, 0) > 0, "lighter ones went first");
        // Everybody as heavy as she is: she is evicted at last, and comes back with the weight of what goes for her.
        for n in 0..2000 {
            backoff.failed(Source::name(&format!("y{n}")), at(40));
        }
        backoff.failed(eve.clone(), at(41));
        assert!(seconds(&backoff, &eve, 41) > 0);
    }

    proptest! {
        /// The two indices always say what the table says, and no count is lower than the failures that were seen.
        #[test]
        fn nobody_is_counted_too_low(steps in proptest::collection::vec((0_u8..12, 0_i64..30), 1..300)) {
            let mut backoff = Backoff::new(Rules { capacity: 5, ..Rules::default() });
            let mut seen: HashMap<u8, u32> = HashMap::new();
            let mut now = 0;
            for (who, pause) in steps {
                now += pause;
                let source = Source::name(&who.to_string());
                backoff.failed(source.clone(), at(now));
                *seen.entry(who).or_default() += 1;
                prop_assert!(backoff.len() <= 5);
                prop_assert_eq!(backoff.by_time.len(), backoff.len());
                prop_assert_eq!(backoff.by_count.len(), backoff.len());
                if now < 3600 {
                    prop_assert!(backoff.entries[&source].failures >= seen[&who]);
                }
            }
        }
    }
}
