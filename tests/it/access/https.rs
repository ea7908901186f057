//! The listener against strangers: what they can hold, and what they are told.

use std::time::{Duration, Instant};

use gvm::api::client::{Client, ClientError};
use gvm::api::error::{ErrorBody, ErrorCode};
use gvm::api::types::{Me, VmList};
use gvm::model::fingerprint::Fingerprint;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::support::served::Served;

/// A TLS connection by hand, without a word of HTTP said.
async fn tls(served: &Served) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let stream = TcpStream::connect(served.address).await?;
    let config = crate::support::served::any_certificate();
    TlsConnector::from(config).connect("localhost".try_into().unwrap(), stream).await
}

/// Reads to the end; gives what came and how long it took.
async fn until_closed(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> (String, Duration) {
    let begun = Instant::now();
    let mut all = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut all)).await.expect("still open");
    (String::from_utf8_lossy(&all).into_owned(), begun.elapsed())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_says_who_asks_and_nothing_else_does() {
    let served = Served::new().await;
    let me: Me = served.client(&served.token).get("/v1/me").await.unwrap();
    assert_eq!((me.name.as_str(), me.role.as_str()), ("eve", "member"));
    let http = served.http();
    let url = format!("{}/v1/me", served.url());
    let without = http.get(&url).send().await.unwrap();
    assert_eq!(without.status(), 401);
    assert!(without.headers()["www-authenticate"].to_str().unwrap().starts_with("Bearer"));
    let body: ErrorBody = without.json().await.unwrap();
    assert_eq!(body.code, ErrorCode::Unauthenticated);
    assert!(body.hint.unwrap().contains("gvm login"));
    let basic = http.get(&url).basic_auth("eve", Some("x")).send().await.unwrap();
    assert_eq!(basic.status(), 401);
    let query = format!("{url}?access_token={}", served.token.text.secret().expose());
    let refused: ErrorBody = http.get(query).send().await.unwrap().json().await.unwrap();
    assert!(refused.message.contains("no place in a URL"), "{refused:?}");
    assert!(refused.hint.unwrap().contains(&format!("gvm token revoke {}", served.token.token.id)));
    let _: Me = served.client(&served.token).get("/v1/me").await.expect("nothing is revoked by itself");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_carry_strict_headers_and_no_promise_that_a_new_certificate_would_break() {
    let served = Served::new().await;
    for path in ["/v1/me", "/v1/nothing", "/v1/openapi.json"] {
        let answer = served.request("GET", path).send().await.unwrap();
        let headers = answer.headers();
        let is = |name: &str| headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default();
        assert_eq!((is("x-content-type-options"), is("cache-control")), ("nosniff", "no-store"), "{path}");
        assert!(is("content-security-policy").contains("frame-ancestors 'none'"), "{path}");
        assert_eq!((is("referrer-policy"), is("x-frame-options")), ("no-referrer", "DENY"), "{path}");
        assert!(!headers.contains_key("strict-transport-security"), "it signs itself");
        assert!(headers.contains_key("x-request-id"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_http_is_told_in_one_line() {
    let served = Served::new().await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    stream.write_all(b"GET /v1/me HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let (text, _) = until_closed(&mut stream).await;
    assert!(text.starts_with("HTTP/1.1 400") && text.contains("https://"), "{text}");
    assert_eq!(text.split("\r\n\r\n").nth(1).unwrap().lines().count(), 1, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_says_nothing_or_speaks_slowly_is_cut_off() {
    let served = Served::with(|config| (config.https.handshake_seconds, config.https.idle_seconds) = (1, 1)).await;
    let mut silent = TcpStream::connect(served.address).await.unwrap();
    let (_, took) = until_closed(&mut silent).await;
    assert!(took > Duration::from_millis(900) && took < Duration::from_secs(5), "no handshake: {took:?}");
    let mut idle = tls(&served).await.unwrap();
    let (_, took) = until_closed(&mut idle).await;
    assert!(took > Duration::from_millis(900) && took < Duration::from_secs(5), "no request: {took:?}");
    // One byte every now and then does not buy more time.
    let (mut reader, mut writer) = tokio::io::split(tls(&served).await.unwrap());
    let drip = tokio::spawn(async move {
        for byte in b"GET /v1/me HTTP/1.1\r\nhost: x\r\nx: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy" {
            if writer.write_all(&[*byte]).await.and(writer.flush().await).is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
    });
    let (_, took) = until_closed(&mut reader).await;
    assert!(took < Duration::from_secs(5), "dripping: {took:?}");
    drip.abort();
    // Between two requests as well.
    let mut kept = tls(&served).await.unwrap();
    kept.write_all(b"GET /v1/me HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let (text, took) = until_closed(&mut kept).await;
    assert!(text.starts_with("HTTP/1.1 401") && took < Duration::from_secs(5), "{text} {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_and_bodies_are_bounded() {
    let served = Served::new().await;
    let long = served.request("GET", "/v1/me").header("x-long", "y".repeat(200 << 10)).send().await;
    assert!(long.as_ref().map_or(true, |answer| answer.status() == 431), "{long:?}");
    let mut many = served.request("GET", "/v1/me");
    for number in 0..200 {
        many = many.header(format!("x-{number}"), "y");
    }
    let many = many.send().await;
    assert!(many.as_ref().map_or(true, |answer| answer.status() == 431), "{many:?}");
    let body = served.request("POST", "/v1/vms").body(vec![b' '; 300 << 10]).send().await.unwrap();
    assert_eq!(body.status(), 400);
    assert_eq!(served.request("GET", "/v1/me").send().await.unwrap().status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_limited_and_places_come_back() {
    let served = Served::with(|config| config.https.max_per_address = 3).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(tls(&served).await.unwrap());
    }
    assert!(tls(&served).await.is_err(), "the fourth is sent away");
    held.pop();
    crate::support::world::eventually("the place came back", || async { tls(&served).await.is_ok() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_waits_for_a_request_and_closes_what_is_idle() {
    let served = Served::new().await;
    let mut idle = tls(&served).await.unwrap();
    idle.write_all(b"GET /v1/me HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut head = [0; 12];
    idle.read_exact(&mut head).await.unwrap();
    let begun = Instant::now();
    served.stop.cancel();
    served.serving.await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(TcpStream::connect(served.address).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_knows_its_server_again_and_no_other() {
    let served = Served::new().await;
    let list: VmList = served.client(&served.token).get("/v1/vms").await.unwrap();
    assert!(list.vms.is_empty());
    assert_eq!(Client::fingerprint_of(&served.url()).await.unwrap(), served.pin());
    let trusting = Client::https(&served.url(), None).unwrap();
    let error = trusting.get::<Me>("/v1/me").await.unwrap_err();
    assert!(matches!(error, ClientError::Untrusted(_)), "{error:?}");
    let other = Fingerprint::of(b"another certificate");
    let token = Some(served.token.text.secret().clone());
    let client = Client::https(&served.url(), Some(other)).unwrap().with_token(token);
    match client.get::<Me>("/v1/me").await.unwrap_err() {
        ClientError::Changed { pinned, shown, .. } => assert_eq!((pinned, shown), (other, served.pin())),
        error => panic!("{error:?}"),
    }
}
