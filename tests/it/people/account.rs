//! Who is added by hand and comes over the socket.

use gvm::auth::peercred::Account;
use gvm::auth::policy::{self, Action};
use gvm::manager::Kind;
use gvm::manager::access::TargetQuestion;
use gvm::model::access::PublicKey;
use gvm::model::principal::{Principal, Role};
use serde_json::{Value, json};

use super::{House, MEMBER, ROOT};

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdZ0vJtYXQ0ZXJvZnRlc3RzYW5kbm90aGluZ2Vsc2Uh";

#[tokio::test(flavor = "multi_thread")]
async fn the_hosts_account_of_the_name_is_theirs_once() {
    let house = House::new().await;
    let anna = house.add("anna").await;
    assert_eq!(house.ok(ROOT, "GET", "/v1/users/anna", Value::Null).await["has_account"], false);
    assert_eq!(house.id_seen(1000, "anna").await, anna.id, "taken over at the first sight");
    assert_eq!(house.id_seen(1000, "anna").await, anna.id);
    assert_eq!(house.ok(ROOT, "GET", "/v1/users/anna", Value::Null).await["has_account"], true);
    let error = house.seen(1001, "anna").await.unwrap_err();
    assert_eq!(error.kind, Kind::Denied, "another number of the same name inherits nothing");

    // Made anew, with an administrator's word.
    house.ok(ROOT, "PATCH", "/v1/users/anna", json!({"has_new_account": true})).await;
    assert_eq!(house.last_record().await, "root user.change anna success: new account of the host");
    assert_eq!(house.id_seen(1001, "anna").await, anna.id);
    let stranger = house.id_seen(1000, "carl").await;
    assert_ne!(stranger, anna.id, "who got her old number gets nothing of hers");

    // A service account has none, and neither has who came at the first sight.
    house.ok(ROOT, "POST", "/v1/users", json!({"name": "ci-build", "is_service": true})).await;
    assert!(house.seen(1002, "ci-build").await.is_err());
    house.id_seen(1003, "bert").await;
    assert!(house.seen(1004, "bert").await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_socket_adds_nobody_only_those_added_by_hand_come_in() {
    let house = House::with(|config| config.people.add_from_socket = false).await;
    let (status, body) = house.ask(MEMBER, "GET", "/v1/me", Value::Null).await;
    assert_eq!((status, body["message"].as_str()), (403, Some("daemon is not a member of gvm")));
    assert_eq!(body["hint"], "an administrator adds members with: gvm user add daemon");
    let anna = house.add("anna").await;
    assert_eq!(house.id_seen(1000, "anna").await, anna.id);
    assert_eq!(house.id_seen(1000, "anna").await, anna.id, "known by number from then on");
    assert!(house.seen(1001, "bert").await.is_err());
    let names = house.ok(ROOT, "GET", "/v1/users", Value::Null).await;
    assert_eq!(names["users"].as_array().unwrap().len(), 3, "anna, eve of the test's world, root: {names}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_was_set_stays_but_for_the_configurations_administrators() {
    let house = House::with(|config| config.people.admins = vec!["daemon".to_owned()]).await;
    let role = async |uid: u32, name: &str, listed: Role| {
        let account = Account::Person { uid, name: name.parse().unwrap(), role: listed };
        house.life.manager.recognise(account).await.unwrap().user().unwrap().role
    };
    house.add("anna").await;
    assert_eq!(role(1000, "anna", Role::Operator).await, Role::Operator, "the host's configuration is followed");
    assert_eq!(role(1000, "anna", Role::Member).await, Role::Member);
    house.ok(ROOT, "PATCH", "/v1/users/anna", json!({"role": "teacher"})).await;
    assert_eq!(role(1000, "anna", Role::Operator).await, Role::Teacher, "what was set counts");
    assert_eq!(role(1000, "anna", Role::Admin).await, Role::Admin, "the configuration's administrators always are");
    house.ok(ROOT, "PATCH", "/v1/users/anna", json!({"role": "host"})).await;
    assert_eq!(role(1000, "anna", Role::Operator).await, Role::Operator);

    // By whatever way they come: daemon is an administrator of the configuration, anna of the same name would be none.
    assert_eq!(house.ok(MEMBER, "GET", "/v1/me", Value::Null).await["role"], "admin");
    house.ok(ROOT, "PATCH", "/v1/users/daemon", json!({"role": "member"})).await;
    let daemon = house.user("daemon").await;
    assert_eq!(house.life.manager.principal(daemon).await.unwrap().user().unwrap().role, Role::Admin);
    let view = house.ok(ROOT, "GET", "/v1/users/daemon", Value::Null).await;
    assert_eq!((&view["role"], &view["role_source"]), (&json!("admin"), &json!("set")));
    let (status, _) = house.ask(ROOT, "PATCH", "/v1/users/root", json!({"role": "member"})).await;
    assert_eq!(status, 403, "uid 0 is always an administrator");
    let (status, body) = house.ask(ROOT, "PATCH", "/v1/users/anna", json!({"role": "king"})).await;
    assert_eq!(status, 400, "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_is_renamed_while_they_are_logged_in() {
    let house = House::new().await;
    let vm = house.life.create("dev").await.unwrap();
    house.ok(ROOT, "POST", "/v1/users/eve/keys", json!({"public_key": KEY})).await;
    let key: PublicKey = KEY.parse().unwrap();
    let gateway = policy::allow(&Principal::gateway(), Action::GatewayAsk).unwrap();
    let proven = house.life.manager.identify(&gateway, &key).await.unwrap();
    assert_eq!(proven.name.as_str(), "eve");

    house.ok(ROOT, "PATCH", "/v1/users/eve", json!({"name": "eva"})).await;
    assert_eq!(house.last_record().await, "root user.change eve success: name eva");
    // In the middle of SSH authentication: the key leads to the same person, under the new name.
    assert_eq!(house.life.manager.identify(&gateway, &key).await.unwrap().id, proven.id);
    let question = TargetQuestion {
        user: proven,
        vm: "dev".to_owned(),
        guest_user: None,
        needs_login_key: false,
        fingerprint: String::new(),
        peer: "192.0.2.1".to_owned(),
    };
    let target = house.life.manager.target(&gateway, &question).await;
    let label = match target {
        Ok(target) => target.label,
        Err(e) => {
            assert_eq!(e.kind, Kind::Conflict, "it is hers, and not up yet: {e}");
            "dev.eva".to_owned()
        }
    };
    assert_eq!(label, "dev.eva");
    // What she has open goes on, and her machine is found under the new name.
    assert!(house.life.manager.is_still_in(&house.life.member).await);
    let shown = house.ok(ROOT, "GET", "/v1/vms/dev.eva", Value::Null).await;
    assert_eq!(shown["id"], vm.to_string());
    assert_eq!(house.ask(ROOT, "GET", "/v1/vms/dev.eve", Value::Null).await.0, 404);

    // The host's name of her account leads: with the old one she is nobody, with the new one she is herself.
    let error = house.seen(crate::support::world::UID, "eve").await.unwrap_err();
    assert!(error.message.contains("as eva"), "{error}");
    assert_eq!(house.id_seen(crate::support::world::UID, "eva").await, house.user("eva").await.id);
    house.ok(MEMBER, "GET", "/v1/me", Value::Null).await;
    let (status, body) = house.ask(ROOT, "PATCH", "/v1/users/daemon", json!({"name": "dora"})).await;
    assert_eq!(status, 409);
    assert_eq!(body["hint"], "rename it on the host first: usermod --login dora daemon");
}
