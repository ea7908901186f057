//! What a token opens, for how long, and who may make one.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gvm::manager::tokens::TokenRequest;
use gvm::manager::{Kind, ManagerError};
use gvm::model::id::TokenId;
use gvm::model::principal::{Origin, Principal, Role, Scope, Scopes, Via};
use gvm::model::token::{TokenKind, TokenText};
use gvm::store::{commit, users};
use jiff::{SignedDuration, Timestamp};

use crate::support::served::make_token;
use crate::support::world::{Life, World, eventually};

fn scopes(of: &[Scope]) -> Scopes {
    of.iter().copied().collect()
}

async fn come(life: &Life, token: &str) -> Result<Principal, ManagerError> {
    come_at(life, token, Timestamp::now()).await
}

async fn come_at(life: &Life, token: &str, now: Timestamp) -> Result<Principal, ManagerError> {
    life.manager.principal_of_token(token, now, Origin::internal()).await.map(|login| login.principal)
}

async fn wish(life: &Life, who: &Principal, of: Option<&str>, request: TokenRequest) -> Result<TokenId, ManagerError> {
    let permit = life.manager.permit_tokens(who, of).await?;
    Ok(life.manager.create_token(&permit, request).await?.token.id)
}

fn named(name: &str) -> TokenRequest {
    TokenRequest { name: name.to_owned(), scopes: None, ttl: None }
}

async fn another(life: &Life, name: &str, role: Role, is_service: bool) -> Principal {
    let mut row = users::UserRow::new(name.parse().unwrap(), Timestamp::now());
    (row.user.role, row.is_service) = (role, is_service);
    let mut tx = life.store.write().await.unwrap();
    users::insert(&mut tx, &row).await.unwrap();
    commit(tx).await.unwrap();
    Principal::of(row.user)
}

#[tokio::test]
async fn a_token_is_its_owner_limited_to_its_scopes() {
    let world = World::new();
    let life = world.live().await;
    let made = make_token(&life, &life.member, "ci", Some(scopes(&[Scope::Read]))).await;
    let who = come(&life, made.text.secret().expose()).await.unwrap();
    assert_eq!(who.user(), life.member.user());
    assert_eq!((who.scopes.clone(), who.origin.via.clone()), (scopes(&[Scope::Read]), Via::Token(made.token.id)));
    // What a token makes is not wider than itself; one without the scope for it makes none at all.
    let account = make_token(&life, &life.member, "account", Some(scopes(&[Scope::Read, Scope::Account]))).await;
    let who = come(&life, account.text.secret().expose()).await.unwrap();
    let wide = TokenRequest { scopes: Some(scopes(&[Scope::Vm])), ..named("wide") };
    assert_eq!(wish(&life, &who, None, wide).await.unwrap_err().kind, Kind::Denied);
    wish(&life, &who, None, named("same")).await.unwrap();
    let rows = life.store.tokens(life.member.user().unwrap().id).await.unwrap();
    assert_eq!(rows.last().unwrap().scopes, scopes(&[Scope::Read, Scope::Account]));
    let reader = come(&life, made.text.secret().expose()).await.unwrap();
    assert_eq!(wish(&life, &reader, None, named("none")).await.unwrap_err().kind, Kind::Denied);
}

#[tokio::test]
async fn what_cannot_be_had_is_said() {
    let world = World::new();
    let life = world.live().await;
    let fault = async |request: TokenRequest| wish(&life, &life.member, None, request).await.unwrap_err();
    assert_eq!(fault(named("a b")).await.kind, Kind::Invalid);
    assert_eq!(fault(TokenRequest { scopes: Some(scopes(&[])), ..named("x") }).await.kind, Kind::Invalid);
    let long = TokenRequest { ttl: Some(Duration::from_secs(367 * 86_400)), ..named("x") };
    assert!(fault(long).await.to_string().contains("between 1 s and 366 days"));
    assert_eq!(fault(TokenRequest { ttl: Some(Duration::ZERO), ..named("x") }).await.kind, Kind::Invalid);
    for number in 0..64 {
        wish(&life, &life.member, None, named(&format!("t{number}"))).await.unwrap();
    }
    let full = fault(named("one-more")).await;
    assert_eq!((full.kind, full.to_string().as_str()), (Kind::Conflict, "there are 64 tokens already"));
    let permit = life.manager.permit_tokens(&life.member, None).await.unwrap();
    life.manager.revoke_token(&permit, "t0").await.unwrap();
    assert_eq!(fault(named("t1")).await.to_string(), "there is a token t1 already");
    wish(&life, &life.member, None, named("one-more")).await.unwrap();
}

#[tokio::test]
async fn everything_that_is_not_good_has_one_answer() {
    let world = World::new();
    let life = world.live().await;
    let made = make_token(&life, &life.member, "ci", None).await;
    let text = made.text.secret().expose().clone();
    let now = Timestamp::now();
    let told = |error: ManagerError| (error.kind, error.to_string(), error.hint);
    let unknown = TokenText::new(TokenKind::Personal, TokenId::generate(), &[9; 32]);
    let unknown = told(come(&life, unknown.secret().expose()).await.unwrap_err());
    let days = |count: i64| SignedDuration::from_hours(24 * count);
    let expired = told(come_at(&life, &text, now + days(91)).await.unwrap_err());
    assert_eq!((unknown.0, &unknown), (Kind::Unauthenticated, &expired));
    assert!(come_at(&life, &text, now + days(89)).await.is_ok());
    // Suspended, as long as it lasts.
    let user = life.member.user().unwrap().id;
    let suspend = async |on: bool| {
        let mut tx = life.store.write().await.unwrap();
        let mut row = users::read(&mut tx, user).await.unwrap().unwrap();
        row.suspended = on.then(|| gvm::model::principal::Suspension { at: now, why: String::new() });
        users::update(&mut tx, &row).await.unwrap();
        commit(tx).await.unwrap();
    };
    suspend(true).await;
    // Who has the token has proven whose it is, and is told why it is good for nothing.
    let (kind, words, _) = told(come(&life, &text).await.unwrap_err());
    assert_eq!((kind, words.as_str()), (Kind::Denied, "your account is suspended: "));
    suspend(false).await;
    assert!(come(&life, &text).await.is_ok());
    let permit = life.manager.permit_tokens(&life.member, None).await.unwrap();
    let mut revoked = life.manager.revocations().listen();
    life.manager.revoke_token(&permit, &made.token.id.to_string()).await.unwrap();
    assert_eq!(told(come(&life, &text).await.unwrap_err()), unknown, "at once");
    assert_eq!(revoked.try_recv().unwrap(), gvm::manager::revoked::Revoked::Token(made.token.id));
    // These never were tokens, which is told: nothing was looked up.
    let mistyped = format!("{}x", &text[..text.len() - 1]);
    assert!(come(&life, &mistyped).await.unwrap_err().to_string().contains("checksum"));
    assert_eq!(come(&life, "hunter2").await.unwrap_err().kind, Kind::Unauthenticated);
}

#[tokio::test]
async fn a_clock_that_stepped_back_is_named() {
    let world = World::new();
    let life = world.live().await;
    let made = make_token(&life, &life.member, "ci", None).await;
    let text = made.text.secret().expose();
    let early = made.token.created_at - SignedDuration::from_mins(10);
    let error = come_at(&life, text, early).await.unwrap_err();
    assert_eq!(error.kind, Kind::Unauthenticated);
    assert!(error.to_string().contains("not valid yet: it was made at"), "{error}");
    assert!(
        come_at(&life, text, made.token.created_at - SignedDuration::from_secs(50)).await.is_ok(),
        "a minute's skew"
    );
}

#[tokio::test]
async fn nobody_becomes_another_person_but_service_accounts_are_given_theirs() {
    let world = World::new();
    let life = world.live().await;
    let admin = another(&life, "root", Role::Admin, false).await;
    another(&life, "bob", Role::Member, false).await;
    let service = another(&life, "ci-bot", Role::Member, true).await;
    let error = wish(&life, &admin, Some("bob"), named("x")).await.unwrap_err();
    assert_eq!(error.kind, Kind::Denied);
    let permit = life.manager.permit_tokens(&admin, Some("ci-bot")).await.unwrap();
    let made = life.manager.create_token(&permit, named("deploy")).await.unwrap();
    assert!(made.text.secret().expose().starts_with("gvm_a_"));
    assert_eq!(come(&life, made.text.secret().expose()).await.unwrap().user(), service.user());
    // A stranger cannot tell whether there are such people; an administrator sees and revokes everybody's.
    let there = life.manager.permit_tokens(&life.member, Some("ci-bot")).await.unwrap_err().to_string();
    let not_there = life.manager.permit_tokens(&life.member, Some("nobody")).await.unwrap_err().to_string();
    assert_eq!(there.replace("ci-bot", "X"), not_there.replace("nobody", "X"));
    let own = make_token(&life, &life.member, "mine", None).await;
    let admins = life.manager.permit_tokens(&admin, None).await.unwrap();
    life.manager.revoke_token(&admins, &own.token.id.to_string()).await.unwrap();
    let eves = life.manager.permit_tokens(&life.member, None).await.unwrap();
    let error = life.manager.revoke_token(&eves, &made.token.id.to_string()).await.unwrap_err();
    assert_eq!(error.kind, Kind::NotFound);
    assert!(come(&life, made.text.secret().expose()).await.is_ok());
}

#[tokio::test]
async fn logins_are_bounded_the_oldest_goes() {
    let world = World::new();
    let life = world.live().await;
    let user = life.member.user().unwrap();
    let first = life.manager.issue_session(user, Origin::internal(), None).await.unwrap();
    assert!(first.text.secret().expose().starts_with("gvm_s_"));
    let lives = first.token.created_at.duration_until(first.token.expires_at);
    assert_eq!(lives, SignedDuration::from_hours(12));
    for _ in 0..64 {
        life.manager.issue_session(user, Origin::internal(), None).await.unwrap();
    }
    assert_eq!(come(&life, first.text.secret().expose()).await.unwrap_err().kind, Kind::Unauthenticated);
    assert_eq!(life.store.tokens(user.id).await.unwrap().len(), 64);
}

#[tokio::test(flavor = "multi_thread")]
async fn uses_are_noted_once_a_minute_and_apart_from_the_request() {
    let world = World::new();
    let life = world.live().await;
    life.manager.spawn_token_notes();
    let made = make_token(&life, &life.member, "ci", None).await;
    let user = life.member.user().unwrap().id;
    let origin = Origin { address: Some("192.0.2.7".parse().unwrap()), ..Origin::internal() };
    let now = Timestamp::now();
    let text = made.text.secret().expose().clone();
    life.manager.principal_of_token(&text, now, origin.clone()).await.unwrap();
    let used = async || life.store.tokens(user).await.unwrap()[0].clone();
    eventually("the use is noted", || async { used().await.last_used_at.is_some() }).await;
    assert_eq!(used().await.last_used_from.as_deref(), Some("192.0.2.7"));
    let first = used().await.last_used_at;
    let soon = now + SignedDuration::from_secs(30);
    life.manager.principal_of_token(&text, soon, origin.clone()).await.unwrap();
    let later = now + SignedDuration::from_secs(61);
    life.manager.principal_of_token(&text, later, origin).await.unwrap();
    eventually("the later use is noted", || async { used().await.last_used_at != first }).await;
    assert_eq!(used().await.last_used_at.unwrap().as_second(), later.as_second(), "the one between is not");
}

/// What was logged by this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn no_token_is_in_logs_in_the_record_or_in_the_database() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let served = crate::support::served::Served::new().await;
    let text = served.token.text.secret().expose().clone();
    let secret = &text[28..];
    assert_eq!(served.request("GET", "/v1/me").send().await.unwrap().status(), 200);
    assert_eq!(served.request("GET", &format!("/v1/vms?token={text}")).send().await.unwrap().status(), 400);
    assert_eq!(served.request("DELETE", &format!("/v1/tokens/{text}")).send().await.unwrap().status(), 400);
    let as_name = serde_json::json!({ "name": text });
    assert_eq!(served.request("POST", "/v1/tokens").json(&as_name).send().await.unwrap().status(), 400);
    let wrong = format!("{text}x");
    let refused = served.http().get(format!("{}/v1/me", served.url())).bearer_auth(wrong).send().await.unwrap();
    assert_eq!(refused.status(), 401);
    let body = refused.text().await.unwrap();
    assert!(!body.contains(secret), "{body}");
    tokio::time::sleep(Duration::from_millis(200)).await;
    let log = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    assert!(log.contains("gvm"), "something is logged: {log}");
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(secret)).collect();
    assert!(lines.is_empty(), "{lines:#?}");
    for event in served.life.store.operations(gvm::store::audit::Whose::Everybody, 100).await.unwrap() {
        let row = format!("{event:?}");
        assert!(!row.contains(secret), "{row}");
    }
    for file in ["gvm.db", "gvm.db-wal"] {
        let bytes = std::fs::read(served.world.state_dir().join(file)).unwrap_or_default();
        let there = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!there, "{file}");
    }
}
