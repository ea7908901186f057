//! Logins that a directory judges: a real one, and some that lie.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gvm::auth::ldap::{Ldap, LdapError};
use gvm::config::LdapConfig;
use gvm::model::login::Proven;
use gvm::model::secret::Secret;
use serde_json::{Value, json};

use super::house::{House, secret};
use super::liar::{self, BIND, SEARCH, element, entry, message, result};
use super::slapd::{Slapd, certificate};
use crate::support::skip;

async fn login(config: LdapConfig, user: &str, password: &str) -> Result<Proven, LdapError> {
    Ldap::new(config).login(user, &Secret::from(password.to_owned())).await
}

fn without_id(mut body: Value) -> Value {
    body.as_object_mut().unwrap().remove("request_id");
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_directory_vouches_over_every_kind_of_connection() {
    fn here() {}
    let Some(slapd) = Slapd::start(skip::test_of(std::any::type_name_of_val(&here))) else { return };
    let starttls = LdapConfig { starttls: true, ..slapd.plain() };
    for (kind, config) in [("ldaps", slapd.config()), ("starttls", starttls), ("plain", slapd.plain())] {
        let proven = login(config, "anna", "pw of anna").await.unwrap_or_else(|e| panic!("{kind}: {e}"));
        assert_eq!((proven.name.as_str(), proven.full_name.as_str()), ("anna", "Anna Example"), "{kind}");
        assert_eq!((proven.subject.as_str(), proven.groups.len()), ("uid=anna,dc=uni,dc=example", 2), "{kind}");
    }
    let config = LdapConfig { subject_attribute: Some("sn".to_owned()), ..slapd.config() };
    assert_eq!(login(config, "ANNA", "pw of anna").await.unwrap().subject, "Example");
    // Authorities that did not sign it, and a name that is not its.
    let other = tempfile::tempdir().unwrap();
    let config = LdapConfig { ca_file: certificate(other.path()), ..slapd.config() };
    assert!(matches!(login(config, "anna", "pw of anna").await, Err(LdapError::Directory(_))));
    let config = LdapConfig { url: slapd.config().url.replace("127.0.0.1", "localhost"), ..slapd.config() };
    assert!(matches!(login(config, "anna", "pw of anna").await, Err(LdapError::Directory(_))));
    // A searcher who is refused, a base that is not there, an entry without a name: not the person's fault.
    let config = LdapConfig { bind_password_file: Some(secret(slapd.path(), "wrong", "x")), ..slapd.config() };
    assert!(matches!(login(config, "anna", "pw of anna").await, Err(LdapError::Setup(_))));
    let config = LdapConfig { base: "dc=nowhere".to_owned(), ..slapd.config() };
    assert!(matches!(login(config, "anna", "pw of anna").await, Err(LdapError::Setup(_) | LdapError::Directory(_))));
    let config = LdapConfig { name_attribute: "mail".to_owned(), ..slapd.config() };
    let error = login(config, "anna", "pw of anna").await.unwrap_err();
    assert!(error.to_string().contains("without the attribute mail"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_typed_finds_one_person_or_nobody() {
    fn here() {}
    let Some(slapd) = Slapd::start(skip::test_of(std::any::type_name_of_val(&here))) else { return };
    for (user, password) in [
        ("anna", "pw of bob"),
        ("anna", ""),
        ("", ""),
        ("", "pw of anna"),
        ("nobody", "pw of anna"),
        ("twin", "pw of twin"),
        ("*", "pw of anna"),
        ("*)(uid=*", "pw of anna"),
        ("anna)(cn=*", "pw of anna"),
        ("anna)(|(uid=*", "pw of anna"),
        ("anna\0", "pw of anna"),
        ("uid=anna,dc=uni,dc=example", "pw of anna"),
        ("\\61nna", "pw of anna"),
        (&"a".repeat(10_000), "pw of anna"),
        ("anna", &"x".repeat(10_000)),
    ] {
        let judged = login(slapd.config(), user, password).await;
        assert!(matches!(judged, Err(LdapError::Refused(_))), "{:.30} {:.30}: {judged:?}", user, password);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_log_in_with_the_directorys_password_and_refusals_are_all_alike() {
    fn here() {}
    let Some(mut slapd) = Slapd::start(skip::test_of(std::any::type_name_of_val(&here))) else { return };
    let house = House::new(|config| {
        config.login.ldap = Some(slapd.config());
        config.login.groups.operators = vec!["operators".to_owned()];
    });
    let house = house.await;
    assert_eq!(house.answer("GET", "/v1/login", &Value::Null).await.1["passwords"], json!(["ldap"]));
    let (status, session) = house.password("anna", "pw of anna").await;
    assert_eq!((status, &session["user"], &session["role"]), (200, &json!("anna"), &json!("operator")), "{session}");
    let (status, me) = house.me(session["token"].as_str().unwrap()).await;
    assert_eq!((status, &me["name"]), (200, &json!("anna")));

    let tries = [("anna", "wrong"), ("nobody", "wrong"), ("twin", "pw of twin"), ("bob", "")];
    let all = tries.iter().map(|(user, password)| async {
        let begun = Instant::now();
        let (status, body) = house.password(user, password).await;
        (status, without_id(body), begun.elapsed())
    });
    let all = futures_util::future::join_all(all).await;
    for (number, (status, body, took)) in all.iter().enumerate() {
        assert_eq!((*status, body), (401, &all[0].1), "{:?}", tries[number]);
        let millis = took.as_millis();
        assert!(millis >= 1000 && millis % 1000 < 500, "on a whole second: {:?} took {took:?}", tries[number]);
    }
    let record = house.record().await;
    assert!(record.iter().any(|(actor, outcome, _)| actor == "(nobody)" && outcome == "denied"), "{record:?}");
    assert!(!format!("{record:?}").contains("wrong"), "no password is on the record: {record:?}");

    slapd.stop();
    let begun = Instant::now();
    let (status, body) = house.password("anna", "pw of anna").await;
    assert_eq!((status, &body["code"]), (503, &json!("unavailable")), "{body}");
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_fails_too_often_waits() {
    fn here() {}
    let Some(slapd) = Slapd::start(skip::test_of(std::any::type_name_of_val(&here))) else { return };
    let house = House::new(|config| config.login.ldap = Some(slapd.config())).await;
    house.listen("192.0.2.2");
    let tries = (0..5).map(|_| house.password("bob", "wrong"));
    for (status, _) in futures_util::future::join_all(tries).await {
        assert_eq!(status, 401);
    }
    // The fifth makes a wait of one second, which is over by now; the next one makes two.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(house.password("bob", "wrong").await.0, 401);
    let body = json!({"user": "bob", "password": "pw of bob"});
    let right = house.ask("POST", "/v1/login/password", &body).await;
    assert_eq!(right.status().as_u16(), 429, "nothing is looked at while one has to wait");
    let wait: u64 = right.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    // From elsewhere the name waits as well; others there do not.
    let elsewhere = house.ask_from("192.0.2.2", "POST", "/v1/login/password", &body).await;
    assert_eq!(elsewhere.status().as_u16(), 429);
    let other = json!({"user": "anna", "password": "pw of anna"});
    assert_eq!(house.ask_from("192.0.2.2", "POST", "/v1/login/password", &other).await.status().as_u16(), 200);
    tokio::time::sleep(Duration::from_secs(wait + 1)).await;
    assert_eq!(house.ask("POST", "/v1/login/password", &body).await.status().as_u16(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_lies_is_told_and_harms_nobody() {
    type Answer = Box<liar::Lie>;
    let good = || entry("uid=anna,dc=x", &[("UID", &["anna"]), ("cn", &["Anna"])]);
    let found = move |id: u8, entries: &[Vec<u8>]| {
        let mut out: Vec<u8> = entries.iter().flat_map(|entry| message(id, entry)).collect();
        out.extend(message(id, &result(0x65, 0)));
        out
    };
    // What it answers to the search; a bind succeeds.
    let searches: Vec<(&str, Answer)> = vec![
        ("nobody", Box::new(move |id, _| found(id, &[]))),
        ("two", Box::new(move |id, _| found(id, &[good(), good()]))),
        ("too many", Box::new(|id, _| message(id, &result(0x65, 4)))),
        ("without attributes", Box::new(move |id, _| found(id, &[entry("uid=anna,dc=x", &[])]))),
        ("without a name", Box::new(move |id, _| found(id, &[entry("", &[("uid", &["anna"])])]))),
        ("a name without a value", Box::new(move |id, _| found(id, &[entry("uid=a", &[("uid", &[])])]))),
        ("elsewhere", Box::new(|id, _| message(id, &result(0x65, 10)))),
        ("an odd code", Box::new(|id, _| message(id, &result(0x65, 80)))),
        ("the end of another operation", Box::new(|id, _| message(id, &result(0x61, 0)))),
        ("an operation that there is not", Box::new(|id, _| message(id, &element(0x7f, b"")))),
        ("an entry of no parts", Box::new(|id, _| message(id, &element(0x64, b"")))),
        ("an entry of numbers", Box::new(|id, _| message(id, &element(0x64, &element(0x02, b"\x01"))))),
        ("an entry that is no text", Box::new(|id, _| message(id, &element(0x64, &element(0x04, b"\xff\xfe"))))),
        ("a message of no parts", Box::new(|_, _| element(0x30, b""))),
        ("no message", Box::new(|_, _| b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec())),
        ("zeros", Box::new(|_, _| vec![0; 5000])),
        ("a length that never comes", Box::new(|_, _| b"\x30\x84\xff\xff\xff\xff".to_vec())),
        (
            "a huge entry",
            Box::new(move |id, _| {
                found(id, &[entry("uid=anna,dc=x", &[("uid", &["anna"]), ("cn", &[&"x".repeat(2_000_000)])])])
            }),
        ),
        (
            "very deep",
            Box::new(|id, _| {
                let deep = (0..20_000)
                    .fold(Vec::new(), |inner, _| if inner.len() < 60_000 { element(0x30, &inner) } else { inner });
                message(id, &deep)
            }),
        ),
        ("a flood of entries", Box::new(move |id, _| (0..20_000).flat_map(|_| message(id, &good())).collect())),
    ];
    for (case, lie) in searches {
        let config = liar::start(Arc::new(move |id, tag| match tag {
            SEARCH => lie(id, tag),
            BIND => message(id, &result(0x61, 0)),
            _ => Vec::new(),
        }));
        let begun = Instant::now();
        let judged = login(config.await, "anna", "pw").await;
        assert!(judged.is_err(), "{case}: {judged:?}");
        assert!(begun.elapsed() < Duration::from_secs(11), "{case}: {:?}", begun.elapsed());
        let is_refusal = matches!(judged, Err(LdapError::Refused(_)));
        assert_eq!(is_refusal, ["nobody", "two", "too many"].contains(&case), "{case}: {judged:?}");
    }
    // What it answers to the password.
    for (code, is_refusal) in [(49, true), (53, true), (19, true), (1, false), (51, false), (14, false)] {
        let config = liar::start(Arc::new(move |id, tag| match tag {
            SEARCH => found(id, &[good()]),
            _ => message(id, &result(0x61, code)),
        }));
        let judged = login(config.await, "anna", "pw").await;
        assert_eq!(matches!(judged, Err(LdapError::Refused(_))), is_refusal, "{code}: {judged:?}");
        assert!(judged.is_err());
    }
    // One that says yes to everything cannot be told from an honest one: that it is the right one, TLS says.
    let config = liar::start(Arc::new(move |id, tag| match tag {
        SEARCH => found(id, &[good()]),
        _ => message(id, &result(0x61, 0)),
    }));
    assert!(login(config.await, "anna", "pw").await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_is_silent_costs_its_time_and_no_more() {
    let config = liar::start(Arc::new(|_, _| Vec::new())).await;
    let begun = Instant::now();
    let silent = login(config.clone(), "anna", "pw").await;
    let no_tls = login(LdapConfig { starttls: true, ..config }, "anna", "pw").await;
    assert!(
        matches!((&silent, &no_tls), (Err(LdapError::Directory(_)), Err(LdapError::Directory(_)))),
        "{silent:?} {no_tls:?}"
    );
    assert!(begun.elapsed() < Duration::from_secs(22), "{:?}", begun.elapsed());
    // A server that goes on in the clear where TLS was asked for.
    let config = liar::start(Arc::new(|id, _| message(id, &result(0x78, 2)))).await;
    let refused = login(LdapConfig { starttls: true, ..config }, "anna", "pw").await;
    assert!(matches!(refused, Err(LdapError::Directory(_))), "{refused:?}");
}
