//! How many requests in a second: of one address, of one person, of one account on the socket.

use std::hash::Hash;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota};

use super::error::ApiError;
use super::{Peer, Shared};
use crate::manager::ManagerError;
use crate::model::id::UserId;
use crate::model::network::household;
use crate::model::principal::Principal;

/// Keys that are kept before those that have been silent are dropped.
const KEPT: usize = 8192;
/// So many seconds' worth of requests may come at once.
const BURST: u32 = 2;

/// Requests in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimits {
    /// Of one address, or one IPv6 /64.
    pub address: u32,
    /// Of one person over the network.
    pub person: u32,
    /// Of one account on the socket; root and the gateway have no limit.
    pub socket: u32,
}

impl Default for RateLimits {
    fn default() -> Self {
        Self { address: 200, person: 100, socket: 1000 }
    }
}

#[derive(Debug)]
struct Limiter<K: Clone + Hash + Eq> {
    kept: DefaultKeyedRateLimiter<K>,
    clock: DefaultClock,
}

impl<K: Clone + Hash + Eq> Limiter<K> {
    fn new(per_second: u32) -> Self {
        let count = |number: u32| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::per_second(count(per_second)).allow_burst(count(per_second.saturating_mul(BURST)));
        Self { kept: DefaultKeyedRateLimiter::keyed(quota), clock: DefaultClock::default() }
    }

    fn check(&self, key: &K) -> Result<(), Duration> {
        if self.kept.len() > KEPT {
            self.kept.retain_recent();
        }
        self.kept.check_key(key).map_err(|until| until.wait_time_from(self.clock.now()))
    }
}

/// Counts requests.
#[derive(Clone, Debug)]
pub struct Rates(Arc<Limiters>);

#[derive(Debug)]
struct Limiters {
    addresses: Limiter<IpAddr>,
    people: Limiter<UserId>,
    accounts: Limiter<u32>,
}

impl Rates {
    /// Nobody has asked anything yet.
    pub fn new(limits: RateLimits) -> Self {
        Self(Arc::new(Limiters {
            addresses: Limiter::new(limits.address),
            people: Limiter::new(limits.person),
            accounts: Limiter::new(limits.socket),
        }))
    }

    fn address(&self, address: IpAddr) -> Result<(), ManagerError> {
        self.0.addresses.check(&household(address)).map_err(|wait| too_fast("your address", wait))
    }

    /// One more request of somebody who is known now.
    ///
    /// # Errors
    /// `TooMuch`.
    pub(super) fn person(&self, principal: &Principal, peer: Peer) -> Result<(), ManagerError> {
        let Some(user) = principal.user() else { return Ok(()) };
        match peer {
            Peer::Network(_) => self.0.people.check(&user.id).map_err(|wait| too_fast(user.name.as_str(), wait)),
            Peer::Unix(Some(0) | None) => Ok(()),
            Peer::Unix(Some(uid)) => self.0.accounts.check(&uid).map_err(|wait| too_fast(user.name.as_str(), wait)),
        }
    }
}

fn too_fast(who: &str, wait: Duration) -> ManagerError {
    ManagerError::too_much(format!("too many requests of {who}"), wait)
        .hint("ask less often; `gvm events` and /v1/events tell what happens without being asked")
}

/// Counts requests from the network before anything is done for them.
pub(super) async fn by_address(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let address = request.extensions().get::<ConnectInfo<Peer>>().and_then(|info| info.0.address());
    match address.map_or(Ok(()), |address| shared.rates.address(address)) {
        Ok(()) => next.run(request).await,
        Err(error) => ApiError::from(error).into_response(),
    }
}
