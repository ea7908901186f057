//! What every request gets on its way: an id and, where it is refused, a time to leave.
//!
//! Another's VM and one that is nobody's are refused with the same words. What was looked up until then is not the same,
//! and takes a time that can be measured over many tries. So a refusal leaves on a fixed step after its request came,
//! whatever it has cost. scripts/time-refusals.sh shows what is left to see.

use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::Instant;
use uuid::Uuid;

/// Refusals leave on multiples of it. Far longer than any look-up, short enough for a person not to see it.
const STEP: Duration = Duration::from_millis(20);

tokio::task_local! {
    /// The id of the request that this task answers.
    static REQUEST: Uuid;
}

/// The id of the request that is being answered, where one is.
pub(super) fn id() -> Option<Uuid> {
    REQUEST.try_with(|id| *id).ok()
}

/// Gives a request its id, which is in the record of what it did, in the log, and in the answer; lets a refusal wait.
pub(super) async fn attend(request: Request, next: Next) -> Response {
    let (id, came) = (Uuid::now_v7(), Instant::now());
    let mut response = REQUEST.scope(id, next.run(request)).await;
    if let Ok(value) = HeaderValue::from_str(&id.to_string()) {
        response.headers_mut().insert("x-request-id", value);
    }
    if is_levelled(response.status()) {
        tokio::time::sleep_until(came + until_step(came.elapsed())).await;
    }
    response
}

/// Refusals that could tell by their time who or what there is.
fn is_levelled(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND)
}

/// When an answer leaves that has taken so long, counted from when its request came.
fn until_step(taken: Duration) -> Duration {
    let steps = u32::try_from(taken.as_nanos().div_ceil(STEP.as_nanos())).unwrap_or(u32::MAX);
    STEP.saturating_mul(steps.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_leaves_on_the_next_step() {
        let us = Duration::from_micros;
        for (taken, leaves) in [(0, 20_000), (1, 20_000), (20_000, 20_000), (20_001, 40_000), (59_999, 60_000)] {
            assert_eq!(until_step(us(taken)), us(leaves), "{taken} us");
        }
    }

    #[test]
    fn what_is_done_never_waits() {
        for status in [200, 202, 400, 405, 409, 429, 500, 503] {
            assert!(!is_levelled(StatusCode::from_u16(status).unwrap()), "{status}");
        }
    }
}
