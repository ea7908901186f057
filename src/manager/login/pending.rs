//! Logins that are under way: between the first request and the one that ends them. In memory, bounded, each taken once.

use std::collections::HashMap;
use std::net::IpAddr;

use jiff::Timestamp;

use crate::model::network::household;

/// Logins under way at once. Beyond that the oldest is forgotten, and has to begin anew.
const CAPACITY: usize = 4096;
/// Of one network, so that nobody fills the table alone; an institution behind one address has some at once.
const PER_SOURCE: usize = 64;

/// Values by a key that nobody can guess.
#[derive(Debug)]
pub struct Pending<T>(HashMap<String, Entry<T>>);

#[derive(Debug)]
struct Entry<T> {
    value: T,
    source: Option<IpAddr>,
    since: Timestamp,
    until: Timestamp,
}

impl<T> Default for Pending<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> Pending<T> {
    /// Keeps a value until then.
    pub fn keep(&mut self, key: String, value: T, address: Option<IpAddr>, now: Timestamp, until: Timestamp) {
        self.0.retain(|_, entry| entry.until > now);
        let source = address.map(household);
        if self.0.values().filter(|entry| entry.source == source).count() >= PER_SOURCE {
            self.drop_oldest(|entry| entry.source == source);
        }
        if self.0.len() >= CAPACITY {
            self.drop_oldest(|_| true);
        }
        self.0.insert(key, Entry { value, source, since: now, until });
    }

    /// Takes a value out: nobody gets it again. With it comes its end.
    pub fn take(&mut self, key: &str, now: Timestamp) -> Option<(T, Timestamp)> {
        let entry = self.0.remove(key).filter(|entry| entry.until > now)?;
        Some((entry.value, entry.until))
    }

    fn drop_oldest(&mut self, of: impl Fn(&Entry<T>) -> bool) {
        let oldest = self.0.iter().filter(|(_, entry)| of(entry)).min_by_key(|(_, entry)| entry.since);
        if let Some(key) = oldest.map(|(key, _)| key.clone()) {
            self.0.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    #[test]
    fn each_is_taken_once_and_before_its_end() {
        let mut pending = Pending::default();
        pending.keep("a".to_owned(), 1, None, at(0), at(10));
        pending.keep("b".to_owned(), 2, None, at(0), at(10));
        assert_eq!(pending.take("a", at(9)), Some((1, at(10))));
        assert_eq!(pending.take("a", at(9)), None);
        assert_eq!(pending.take("b", at(10)), None);
    }

    #[test]
    fn nobody_fills_it_for_others() {
        let mut pending = Pending::default();
        let address = |n: u32| Some(IpAddr::from(n.to_be_bytes()));
        pending.keep("mine".to_owned(), 0, address(7), at(0), at(999));
        for n in 0..200 {
            pending.keep(format!("flood-{n}"), n, address(8), at(1), at(999));
        }
        assert_eq!(pending.0.len(), PER_SOURCE + 1);
        assert!(pending.take("mine", at(2)).is_some());
        for n in 0..5000 {
            pending.keep(format!("x-{n}"), n, address(1000 + n), at(3), at(999));
        }
        assert_eq!(pending.0.len(), CAPACITY);
    }
}
