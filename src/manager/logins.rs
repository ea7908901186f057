//! Who fails to log in has to wait: for bad tokens, passwords and keys alike, on every listener.

use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;

use super::{Manager, ManagerError, Result, lock};
use crate::model::backoff::{Backoff, Source};

/// The failures that are remembered.
#[derive(Debug, Default)]
pub struct Logins(Mutex<Backoff>);

impl Manager {
    /// Before a password or a code is looked at: must this address, or whoever tries this name, wait?
    ///
    /// # Errors
    /// `TooMuch` with the time to wait. Such a try is not to be counted as a failure.
    pub fn may_try(&self, address: Option<IpAddr>, name: Option<&str>, now: Timestamp) -> Result<()> {
        let failures = lock(&self.logins.0);
        let longest = sources(address, name).filter_map(|source| failures.wait(&source, now)).max();
        longest.map_or(Ok(()), |wait| {
            let wait = Duration::try_from(wait).unwrap_or_default();
            Err(ManagerError::too_much("too many logins failed", wait)
                .hint(format!("try again in {} s", wait.as_secs() + 1)))
        })
    }

    /// A login failed.
    pub fn login_failed(&self, address: Option<IpAddr>, name: Option<&str>, now: Timestamp) {
        let mut failures = lock(&self.logins.0);
        for source in sources(address, name) {
            failures.failed(source, now);
        }
    }

    /// A login of that name succeeded. Failures of its address stay: its owner may try the names of others.
    pub fn login_succeeded(&self, name: &str) {
        lock(&self.logins.0).succeeded(&Source::name(name));
    }
}

fn sources(address: Option<IpAddr>, name: Option<&str>) -> impl Iterator<Item = Source> {
    address.map(Source::address).into_iter().chain(name.map(Source::name))
}
