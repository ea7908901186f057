//! How many connections at once: in all, before authentication, and from one address; and how often that is told.
//!
//! A leaf: every listener counts by it, and it knows none of them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::model::network::household;

/// Strangers must not be able to fill the log.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);

/// The limits of a listener.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// In all.
    pub connections: usize,
    /// Not yet authenticated, or not yet through the handshake.
    pub unauthenticated: usize,
    /// From one address.
    pub per_address: usize,
    /// Channels at once on one connection, where it has channels.
    pub channels: usize,
}

/// Why a connection is not let in; the text is sent to the client in clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// In all.
    #[error("this server has as many connections as it takes; try again later")]
    Connections,
    /// Not yet authenticated.
    #[error("too many logins are going on here; try again in a moment")]
    Unauthenticated,
    /// From one address.
    #[error("too many connections from your address")]
    Address,
}

#[derive(Debug, Default)]
struct Counts {
    connections: usize,
    unauthenticated: usize,
    addresses: HashMap<IpAddr, usize>,
}

/// Counts the connections.
#[derive(Debug)]
pub struct Gate {
    limits: Limits,
    counts: Mutex<Counts>,
}

impl Gate {
    /// A gate that nobody has passed.
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, counts: Mutex::default() })
    }

    /// Lets a connection from `address` in, until its permit is dropped.
    ///
    /// # Errors
    /// Says which limit is reached.
    pub fn admit(self: &Arc<Self>, address: IpAddr) -> Result<Permit, Full> {
        let address = household(address);
        let mut counts = self.counts();
        if counts.connections >= self.limits.connections {
            return Err(Full::Connections);
        }
        if counts.unauthenticated >= self.limits.unauthenticated {
            return Err(Full::Unauthenticated);
        }
        if counts.addresses.get(&address).is_some_and(|held| *held >= self.limits.per_address) {
            return Err(Full::Address);
        }
        counts.connections += 1;
        counts.unauthenticated += 1;
        *counts.addresses.entry(address).or_default() += 1;
        Ok(Permit { gate: Arc::clone(self), address, is_authenticated: AtomicBool::new(false) })
    }

    /// Connections now.
    pub fn connections(&self) -> usize {
        self.counts().connections
    }

    // The counts are numbers: a panic elsewhere while they were held leaves them right.
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One admitted connection.
#[derive(Debug)]
pub struct Permit {
    gate: Arc<Gate>,
    address: IpAddr,
    is_authenticated: AtomicBool,
}

impl Permit {
    /// From now on it counts as authenticated.
    pub fn authenticated(&self) {
        if !self.is_authenticated.swap(true, Ordering::AcqRel) {
            let mut counts = self.gate.counts();
            counts.unauthenticated = counts.unauthenticated.saturating_sub(1);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.authenticated();
        let mut counts = self.gate.counts();
        counts.connections = counts.connections.saturating_sub(1);
        if let Some(held) = counts.addresses.get_mut(&self.address) {
            *held = held.saturating_sub(1);
            if *held == 0 {
                counts.addresses.remove(&self.address);
            }
        }
    }
}

/// Warnings that strangers can provoke, a few at a time.
#[derive(Debug, Default)]
pub struct Complaints {
    last: Option<Instant>,
    withheld: u64,
}

impl Complaints {
    /// Logs it, unless there was one a moment ago.
    pub fn say(&mut self, text: &str) {
        if self.last.is_some_and(|last| last.elapsed() < COMPLAIN_EVERY) {
            self.withheld += 1;
            return;
        }
        tracing::warn!(withheld = self.withheld, "{text}");
        *self = Self { last: Some(Instant::now()), withheld: 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(connections: usize, unauthenticated: usize, per_address: usize) -> Arc<Gate> {
        Gate::new(Limits { connections, unauthenticated, per_address, channels: 1 })
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn each_limit_holds_and_is_given_back() {
        let small = gate(2, 9, 9);
        let first = small.admit(ip("10.0.0.1")).unwrap();
        let _second = small.admit(ip("10.0.0.2")).unwrap();
        assert_eq!(small.admit(ip("10.0.0.3")).unwrap_err(), Full::Connections);
        drop(first);
        assert!(small.admit(ip("10.0.0.3")).is_ok());

        let shy = gate(9, 1, 9);
        let first = shy.admit(ip("10.0.0.1")).unwrap();
        assert_eq!(shy.admit(ip("10.0.0.2")).unwrap_err(), Full::Unauthenticated);
        first.authenticated();
        first.authenticated();
        let _second = shy.admit(ip("10.0.0.2")).unwrap();
        drop(first);
        assert_eq!(shy.admit(ip("10.0.0.3")).unwrap_err(), Full::Unauthenticated);
    }

    #[test]
    fn addresses_are_counted_by_household() {
        let narrow = gate(9, 9, 1);
        let _held = narrow.admit(ip("2001:db8::1")).unwrap();
        assert_eq!(narrow.admit(ip("2001:db8::ffff")).unwrap_err(), Full::Address);
        assert!(narrow.admit(ip("2001:db8:0:1::1")).is_ok());
        let _mapped = narrow.admit(ip("::ffff:10.0.0.1")).unwrap();
        assert_eq!(narrow.admit(ip("10.0.0.1")).unwrap_err(), Full::Address);
        assert_eq!(narrow.connections(), 2);
    }
}
