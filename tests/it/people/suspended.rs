//! Who is suspended loses access at once, keeps everything, and gets all of it back.

use std::time::Duration;

use futures_util::StreamExt as _;
use gvm::api::client::console::{ConsoleEvent, ConsoleMode};
use gvm::api::error::ErrorCode;
use gvm::auth::peercred::Peers;
use gvm::auth::policy::{self, Action};
use gvm::manager::revoked::Revoked;
use gvm::model::access::PublicKey;
use gvm::model::id::{TokenId, UserId, VmId};
use gvm::model::principal::{Origin, Principal, Scopes, Via};
use gvm::model::token::{Token, TokenKind};
use serde_json::{Value, json};

use super::{House, MEMBER, OTHER, ROOT};
use crate::support::world::eventually;

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdZ0vJtYXQ0ZXJvZnRlc3RzYW5kbm90aGluZ2Vsc2Uh";
const PATIENCE: Duration = Duration::from_secs(10);

/// A running machine of the member.
async fn running(house: &House, name: &str) -> String {
    house.ok(MEMBER, "POST", "/v1/vms", json!({"profile": "firmware", "name": name})).await;
    let path = format!("/v1/vms/{name}");
    eventually("it runs", || async {
        house.ok(MEMBER, "GET", &path, Value::Null).await["state"].as_str().is_some_and(|state| state == "running")
    })
    .await;
    house.ok(MEMBER, "GET", &path, Value::Null).await["id"].as_str().unwrap().to_owned()
}

/// Reads a console until the manager closes it.
async fn close_of(mut console: gvm::api::client::console::Console) -> (u16, String) {
    let read = async {
        loop {
            match console.next().await {
                ConsoleEvent::Bytes(_) => {}
                ConsoleEvent::Closed { code, reason } => return (code, reason),
                ConsoleEvent::Lost => panic!("it was cut without a word"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("the console ends")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn everything_ends_at_once_and_comes_back() {
    let house = House::new().await;
    let id = running(&house, "dev").await;
    house.ok(MEMBER, "POST", "/v1/keys", json!({"public_key": KEY})).await;
    let token = house.ok(MEMBER, "POST", "/v1/tokens", json!({"name": "laptop"})).await["token"].clone();
    let by_token = async || {
        let now = jiff::Timestamp::now();
        house.life.manager.principal_of_token(token.as_str().unwrap(), now, Origin::internal()).await
    };
    assert!(by_token().await.is_ok());
    house.ok(OTHER, "GET", "/v1/me", Value::Null).await;
    let (member, other) = (house.client(MEMBER), house.client(OTHER));
    let mut events = member.events("/v1/events").await.unwrap();
    let mut one = member.events("/v1/vms/dev/events").await.unwrap();
    let mut others = other.events("/v1/events").await.unwrap();
    let writer = member.console("dev", ConsoleMode::Write).await.unwrap();
    let reader = member.console("dev", ConsoleMode::Read).await.unwrap();

    let done = house.ok(ROOT, "POST", "/v1/users/daemon/suspend", json!({"why": "no longer enrolled"})).await;
    assert_eq!((&done["user"]["suspended"]["why"], &done["stopped_vms"]), (&json!("no longer enrolled"), &json!(0)));
    assert_eq!(house.last_record().await, "root user.suspend daemon success: no longer enrolled");

    // What was open ends.
    let ended = (4403, "your access has ended".to_owned());
    assert_eq!((close_of(writer).await, close_of(reader).await), (ended.clone(), ended));
    for stream in [&mut events, &mut one] {
        let rest = async { while stream.next().await.is_some() {} };
        tokio::time::timeout(PATIENCE, rest).await.expect("the stream ends");
    }
    // What is asked is refused, by every way, with the reason where it is them who ask.
    let refused = "your account is suspended: no longer enrolled";
    for (method, path, body) in [
        ("GET", "/v1/me", Value::Null),
        ("GET", "/v1/vms", Value::Null),
        ("POST", "/v1/vms/dev/stop", json!({})),
        ("POST", "/v1/keys", json!({"public_key": KEY})),
        ("GET", "/v1/events", Value::Null),
    ] {
        let (status, body) = house.ask(MEMBER, method, path, body).await;
        assert_eq!((status, body["message"].as_str()), (403, Some(refused)), "{method} {path}");
    }
    let denied = member.console("dev", ConsoleMode::Read).await.unwrap_err();
    assert_eq!((denied.code(), denied.to_string()), (ErrorCode::Denied, refused.to_owned()));
    let gateway = policy::allow(&Principal::gateway(), Action::GatewayAsk).unwrap();
    let key: PublicKey = KEY.parse().unwrap();
    let unknown = house.life.manager.identify(&gateway, &key.clone().into()).await.unwrap_err();
    let nobodys: PublicKey = KEY.replace("Uh", "Uk").parse().unwrap();
    let nobody = house.life.manager.identify(&gateway, &nobodys.clone().into()).await.unwrap_err();
    assert_eq!(unknown.to_string(), nobody.to_string(), "who has proven nothing is told nothing");
    let error = house.life.manager.principal(house.user("daemon").await).await.unwrap_err();
    assert_eq!(error.to_string(), refused);

    assert_eq!(by_token().await.unwrap_err().to_string(), refused, "a good token is told why it is of no use");

    // Nobody else notices, and nothing is lost.
    assert!(tokio::time::timeout(Duration::from_millis(200), others.next()).await.is_err(), "its stream stays open");
    let shown = house.ok(ROOT, "GET", &format!("/v1/vms/{id}"), Value::Null).await;
    assert_eq!((&shown["state"], &shown["owner"]), (&json!("running"), &json!("daemon")));

    house.ok(ROOT, "POST", "/v1/users/daemon/resume", Value::Null).await;
    let (status, body) = house.ask(ROOT, "POST", "/v1/users/daemon/resume", Value::Null).await;
    assert_eq!((status, body["message"].as_str()), (409, Some("daemon is not suspended")));
    assert_eq!(house.ok(MEMBER, "GET", "/v1/vms/dev", Value::Null).await["state"], "running");
    assert_eq!(house.ok(MEMBER, "GET", "/v1/keys", Value::Null).await["keys"].as_array().unwrap().len(), 1);
    assert_eq!(house.life.manager.identify(&gateway, &key.clone().into()).await.unwrap().name.as_str(), "daemon");
    assert!(by_token().await.is_ok());
    assert!(member.console("dev", ConsoleMode::Write).await.is_ok(), "the right to type was given back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn machines_are_stopped_where_that_is_asked_for() {
    let house = House::new().await;
    let id: VmId = running(&house, "dev").await.parse().unwrap();
    house.ok(MEMBER, "POST", "/v1/vms", json!({"profile": "firmware", "name": "off", "is_stopped": true})).await;
    let ran = house.gvm(ROOT, &["user", "suspend", "daemon", "--why", "unpaid", "--stop-vms"]).await.expect(0);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("suspended daemon\n", "1 VM is being stopped\n"));
    eventually("it is off", || async {
        house.ok(ROOT, "GET", &format!("/v1/vms/{id}"), Value::Null).await["state"] == "stopped"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_puts_themselves_or_root_out_of_use() {
    let house = House::with(|config| config.people.admins = vec!["daemon".to_owned()]).await;
    for uid in [MEMBER, ROOT] {
        house.ok(uid, "GET", "/v1/me", Value::Null).await;
    }
    let suspend = json!({"why": "x"});
    for (uid, who) in [(MEMBER, "daemon"), (MEMBER, "root"), (ROOT, "root")] {
        let (status, body) = house.ask(uid, "POST", &format!("/v1/users/{who}/suspend"), suspend.clone()).await;
        assert_eq!(status, 403, "{uid} {who}: {body}");
        let (status, body) = house.ask(uid, "DELETE", &format!("/v1/users/{who}"), Value::Null).await;
        assert_eq!(status, 403, "{uid} {who}: {body}");
    }
    let (status, _) = house.ask(ROOT, "POST", "/v1/users/daemon/suspend", json!({"why": " "})).await;
    assert_eq!(status, 400, "without a reason");
    // An administrator of the configuration can be suspended: root remains.
    house.ok(ROOT, "POST", "/v1/users/daemon/suspend", suspend).await;
    assert_eq!(house.ask(MEMBER, "GET", "/v1/me", Value::Null).await.0, 403);
    // Somebody's own role is not taken away by themselves.
    house.ok(ROOT, "PATCH", "/v1/users/eve", json!({"role": "admin"})).await;
    let eve = house.life.manager.principal(house.user("eve").await).await.unwrap();
    let permit = house.life.manager.permit_user(&eve, Action::UserChange, "eve").await.unwrap();
    let down = gvm::manager::people::change::UserChange {
        role: Some(gvm::manager::people::change::RoleChange::Host),
        ..Default::default()
    };
    let error = house.life.manager.change_user(&permit, &down).await.unwrap_err();
    assert_eq!(error.to_string(), "you cannot take your own role away");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn less_rights_end_what_was_opened_with_more() {
    let house = House::new().await;
    let _ = running(&house, "dev").await;
    house.ok(OTHER, "GET", "/v1/me", Value::Null).await;
    house.ok(ROOT, "PATCH", "/v1/users/bin", json!({"role": "operator"})).await;
    let operator = house.client(OTHER);
    let mut all = operator.events("/v1/events").await.unwrap();
    let console = operator.console("dev.daemon", ConsoleMode::Read).await.unwrap();
    house.ok(ROOT, "PATCH", "/v1/users/bin", json!({"full_name": "B"})).await;
    assert!(tokio::time::timeout(Duration::from_millis(200), all.next()).await.is_err(), "nothing was taken away");

    house.ok(ROOT, "PATCH", "/v1/users/bin", json!({"role": "member"})).await;
    assert_eq!(close_of(console).await.0, 4403);
    let rest = async { while all.next().await.is_some() {} };
    tokio::time::timeout(PATIENCE, rest).await.expect("the stream ends");
    assert_eq!(operator.console("dev.daemon", ConsoleMode::Read).await.unwrap_err().code(), ErrorCode::NotFound);

    // A team that they are in no more, too.
    house.ok(ROOT, "POST", "/v1/teams", json!({"name": "ml"})).await;
    house.ok(ROOT, "PUT", "/v1/teams/ml/members/bin", Value::Null).await;
    let mut own = operator.events("/v1/events").await.unwrap();
    house.ok(ROOT, "DELETE", "/v1/teams/ml/members/bin", Value::Null).await;
    let rest = async { while own.next().await.is_some() {} };
    tokio::time::timeout(PATIENCE, rest).await.expect("the stream ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_listener_that_missed_messages_looks_for_itself() {
    let house = House::new().await;
    house.ok(MEMBER, "GET", "/v1/me", Value::Null).await;
    let mut events = house.client(MEMBER).events("/v1/events").await.unwrap();
    // More messages than a listener may leave unread, none about this one, while the database knows better.
    let mut tx = house.life.store.write().await.unwrap();
    let mut row = gvm::store::users::by_name(&mut tx, &"daemon".parse().unwrap()).await.unwrap().unwrap();
    let now = jiff::Timestamp::now();
    row.suspended = Some(gvm::model::principal::Suspension { at: now, why: "x".to_owned() });
    gvm::store::users::update(&mut tx, &row).await.unwrap();
    gvm::store::commit(tx).await.unwrap();
    let rest = async { while events.next().await.is_some() {} };
    let flood = async {
        loop {
            for _ in 0..2000 {
                house.life.manager.revocations().tell(Revoked::User(UserId::generate()));
                house.life.manager.revocations().tell(Revoked::Token(TokenId::generate()));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        () = flood => unreachable!(),
        ended = tokio::time::timeout(PATIENCE, rest) => ended.expect("the stream ends"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_ends_what_came_by_it_and_nothing_else() {
    let house = House::new().await;
    let now = jiff::Timestamp::now();
    let made = Token {
        id: TokenId::generate(),
        kind: TokenKind::ALL[0],
        name: "laptop".to_owned(),
        scopes: Scopes::all(),
        created_at: now,
        expires_at: now + jiff::SignedDuration::from_hours(1),
        last_used_at: None,
        last_used_from: None,
    };
    let token = made.id;
    let mut tx = house.life.store.write().await.unwrap();
    gvm::store::tokens::add(&mut tx, house.user("eve").await.id, &made, "digest").await.unwrap();
    gvm::store::commit(tx).await.unwrap();
    assert!(house.life.store.is_token_good(token, now).await.unwrap());
    assert!(!house.life.store.is_token_good(token, made.expires_at).await.unwrap(), "its time has ended");
    let origin = |via| Origin { via, address: None, request: None };
    let eve = house.life.manager.principal(house.user("eve").await).await.unwrap();
    let by_token = eve.clone().from(origin(Via::Token(token)));
    let by_key = eve.clone().from(origin(Via::SshKey("SHA256:x".to_owned())));
    let ended = |principal: &Principal| {
        tokio::spawn(gvm::api::server::access_ended(
            house.life.manager.clone(),
            Peers::new(house.life.manager.config()),
            principal.clone(),
        ))
    };
    let (token_ends, key_ends, socket) = (ended(&by_token), ended(&by_key), ended(&eve));
    let told = house.life.manager.revocations();
    eventually("they listen", || async { told.listeners() >= 3 }).await;
    told.tell(Revoked::Token(TokenId::generate()));
    told.tell(Revoked::Key(house.user("eve").await.id, "SHA256:y".to_owned()));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!token_ends.is_finished() && !key_ends.is_finished());
    told.tell(Revoked::Token(token));
    tokio::time::timeout(PATIENCE, token_ends).await.unwrap().unwrap();
    told.tell(Revoked::Key(house.user("eve").await.id, "SHA256:x".to_owned()));
    tokio::time::timeout(PATIENCE, key_ends).await.unwrap().unwrap();
    assert!(!socket.is_finished());
    let unknown = eve.clone().from(origin(Via::Token(TokenId::generate())));
    tokio::time::timeout(PATIENCE, ended(&unknown)).await.expect("revoked before it was listened to").unwrap();
}
