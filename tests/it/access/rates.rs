//! How fast one may ask, and how long one who fails has to wait.

use std::time::{Duration, Instant};

use gvm::api::error::{ErrorBody, ErrorCode};
use gvm::api::types::VmList;

use crate::support::served::{Served, make_token};

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_too_fast_is_told_when_to_come_again() {
    let served = Served::with(|config| config.https.person_requests_per_second = 5).await;
    let http = served.http();
    let ask = async |token: &str| {
        let request = http.get(format!("{}/v1/vms", served.url())).bearer_auth(token);
        request.send().await.unwrap()
    };
    let text = served.token.text.secret().expose();
    let mut refused = None;
    for _ in 0..12 {
        let answer = ask(text).await;
        if answer.status() == 429 {
            refused = Some(answer);
            break;
        }
        assert_eq!(answer.status(), 200);
    }
    let refused = refused.expect("ten at once and no more");
    let wait: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert_eq!(wait, 1);
    let body: ErrorBody = refused.json().await.unwrap();
    assert_eq!(body.code, ErrorCode::TooMuch);
    assert!(body.message.contains("too many requests of eve") && body.hint.is_some(), "{body:?}");
    // A second token is the same person.
    let second = make_token(&served.life, &served.life.member, "second", None).await;
    assert_eq!(ask(second.text.secret().expose()).await.status(), 429);
    // gvm's own client waits and asks again.
    let begun = Instant::now();
    let _: VmList = served.client(&served.token).get("/v1/vms").await.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(900), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_is_limited_before_anybody_is_looked_up() {
    let served = Served::with(|config| config.https.requests_per_second = 4).await;
    let http = served.http();
    let mut answers = Vec::new();
    for _ in 0..12 {
        let answer = http.get(format!("{}/v1/me", served.url())).send().await.unwrap();
        answers.push(answer.status().as_u16());
    }
    assert_eq!(answers[..4], [401; 4], "{answers:?}");
    assert!(answers.iter().filter(|status| **status == 429).count() >= 3, "{answers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_tokens_make_an_address_wait_and_good_ones_come_in_all_the_same() {
    let served = Served::new().await;
    let http = served.http();
    let ask = async |token: &str| {
        let answer = http.get(format!("{}/v1/me", served.url())).bearer_auth(token).send().await.unwrap();
        let wait = answer.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
        (answer.status().as_u16(), wait)
    };
    let mut told = Vec::new();
    for _ in 0..6 {
        told.push(ask("gvm_p_nonsense").await);
    }
    assert!(told[..5].iter().all(|(status, _)| *status == 401), "{told:?}");
    assert_eq!(told[5], (429, Some("1".to_owned())));
    assert_eq!(ask(served.token.text.secret().expose()).await.0, 200, "a neighbour's faults are not one's own");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(ask("gvm_p_nonsense").await.0, 401, "after the wait it is looked at again");
    assert_eq!(ask("gvm_p_nonsense").await, (429, Some("2".to_owned())), "and the next wait is twice as long");
}
