//! A person from the first day to the last, by the command line.

use gvm::model::id::UserId;
use gvm::model::principal::Provider;
use gvm::store::{commit, identities};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{House, MEMBER, ROOT, steady};
use crate::support::world::eventually;

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdZ0vJtYXQ0ZXJvZnRlc3RzYW5kbm90aGluZ2Vsc2Uh";

#[tokio::test(flavor = "multi_thread")]
async fn the_life_of_a_user() {
    let house = House::new().await;
    let gvm = async |args: &[&str]| house.gvm(ROOT, args).await;
    gvm(&["team", "add", "ml"]).await.expect(0);
    let added = gvm(&["user", "add", "anna", "--full-name", "Anna Núñez", "--role", "teacher", "--team", "ml"]).await;
    assert_eq!(added.expect(0).stdout, "added anna\n");
    assert_eq!(house.last_record().await, "root user.add anna success: person, role teacher, team ml");
    insta::assert_snapshot!("user-show", steady(&gvm(&["user", "show", "anna"]).await.page()));
    gvm(&["user", "set", "anna", "--role", "operator", "--full-name", "Anna N."]).await.expect(0);
    assert_eq!(house.last_record().await, "root user.change anna success: role operator, full name Anna N.");
    gvm(&["user", "rename", "anna", "ann"]).await.expect(0);
    assert_eq!(gvm(&["user", "show", "anna"]).await.expect(4).code, 4);
    let suspended = gvm(&["user", "suspend", "ann", "--why", "on leave"]).await.expect(0);
    assert_eq!(suspended.stderr, "VMs that run keep running; --stop-vms stops them\n");
    // Ages depend on how busy the host is.
    let list = gvm(&["user", "list"]).await.expect(0).stdout;
    let ageless: Vec<&str> =
        list.lines().filter_map(|line| line.rsplit_once(' ')).map(|(line, _)| line.trim_end()).collect();
    insta::assert_snapshot!("user-list", ageless.join("\n"));
    assert_eq!(gvm(&["user", "list", "an"]).await.stdout.lines().count(), 2);
    insta::assert_snapshot!("user-suspended", steady(&gvm(&["user", "show", "ann"]).await.page()));
    gvm(&["user", "resume", "ann"]).await.expect(0);
    assert_eq!(gvm(&["user", "rm", "ann"]).await.expect(0).stdout, "removed ann\n");
    assert_eq!(house.last_record().await, "root user.remove ann success: ");
    gvm(&["user", "show", "ann"]).await.expect(4);
    // The name is free again, and whose it is then begins with nothing.
    let again = house.add("ann").await;
    assert_eq!(house.ok(ROOT, "GET", &format!("/v1/users/{}", again.id), Value::Null).await["teams"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_machines_is_not_removed() {
    let house = House::new().await;
    house.ok(MEMBER, "POST", "/v1/keys", json!({"public_key": KEY})).await;
    house.ok(MEMBER, "POST", "/v1/vms", json!({"profile": "firmware", "name": "dev", "is_stopped": true})).await;
    let told = house.gvm(ROOT, &["user", "rm", "daemon"]).await.expect(5);
    assert!(
        told.stderr.contains("daemon still has 1 VM") && told.stderr.contains("gvm user suspend daemon"),
        "{told:?}"
    );
    // One that can be undeleted is a machine too.
    house.ok(MEMBER, "DELETE", "/v1/vms/dev", Value::Null).await;
    house.gvm(ROOT, &["user", "rm", "daemon"]).await.expect(5);
    house.ok(MEMBER, "DELETE", "/v1/vms/dev?now=true", Value::Null).await;
    eventually("it is gone", || async { house.ask(ROOT, "DELETE", "/v1/users/daemon", Value::Null).await.0 == 200 })
        .await;
    // The record stays, and the key is free.
    let rows = house.ok(ROOT, "GET", "/v1/operations?limit=100", Value::Null).await;
    assert!(rows["operations"].as_array().unwrap().iter().any(|row| row["actor"] == "daemon"), "{rows}");
    house.ok(ROOT, "POST", "/v1/keys", json!({"public_key": KEY})).await;
    assert_eq!(house.ok(MEMBER, "GET", "/v1/me", Value::Null).await["keys"], 0, "back as somebody new");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_removed_takes_the_logins_that_led_to_them_along() {
    let house = House::new().await;
    let subject = async || {
        let mut tx = house.life.store.write().await.unwrap();
        let found = identities::user_of(&mut tx, Provider::Oidc, "s-1").await.unwrap();
        tx.rollback().await.unwrap();
        found
    };
    let link = async |user: UserId| {
        let mut tx = house.life.store.write().await.unwrap();
        identities::link(&mut tx, Provider::Oidc, "s-1", user, Timestamp::now()).await.unwrap();
        identities::note_login(&mut tx, Provider::Oidc, "s-1", Timestamp::now()).await.unwrap();
        commit(tx).await.unwrap();
    };
    let anna = house.add("anna").await;
    link(anna.id).await;
    assert_eq!(subject().await, Some(anna.id));
    house.gvm(ROOT, &["user", "rm", "anna"]).await.expect(0);
    assert_eq!(subject().await, None);
    let again = house.add("anna").await;
    assert_eq!(subject().await, None, "who has the name then has nothing of theirs");
    link(again.id).await;
    assert_eq!(subject().await, Some(again.id));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_account_has_keys_that_an_administrator_registers() {
    let house = House::with(|config| config.manager.socket_group = Some("no-such-group".to_owned())).await;
    house.ok(ROOT, "POST", "/v1/users", json!({"name": "ci-build", "is_service": true})).await;
    let file = house.dir.path().join("id.pub");
    std::fs::write(&file, KEY).unwrap();
    let added = house.gvm(ROOT, &["user", "key", "add", "ci-build", file.to_str().unwrap()]).await.expect(0);
    assert!(added.stdout.starts_with("registered ssh-ed25519 SHA256:"), "{added:?}");
    let record = house.last_record().await;
    assert!(record.starts_with("root key.add SHA256:") && record.ends_with("of ci-build"), "{record}");
    let list = house.gvm(ROOT, &["user", "key", "list", "ci-build"]).await.expect(0).stdout;
    assert!(list.contains("SHA256:"), "{list}");
    // The host has no say over who has no account there.
    let asked = json!({"public_key": KEY});
    assert_eq!(house.ok(ROOT, "POST", "/v1/gateway/identify", asked.clone()).await["user"], "ci-build");
    let print = list.lines().nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    house.gvm(ROOT, &["user", "key", "rm", "ci-build", &print]).await.expect(0);
    assert_eq!(house.ask(ROOT, "POST", "/v1/gateway/identify", asked).await.0, 404);
    // Another's keys are nobody's business.
    assert_eq!(house.ask(MEMBER, "GET", "/v1/users/ci-build/keys", Value::Null).await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_is_told_who_they_are_taken_for() {
    let house = House::new().await;
    house.ok(MEMBER, "GET", "/v1/me", Value::Null).await;
    house.ok(ROOT, "POST", "/v1/teams", json!({"name": "ml"})).await;
    house.ok(ROOT, "PUT", "/v1/teams/ml/members/daemon", Value::Null).await;
    house.ok(ROOT, "PATCH", "/v1/users/daemon", json!({"full_name": "Dae Mon"})).await;
    insta::assert_snapshot!("whoami", house.gvm(MEMBER, &["whoami"]).await.page());
    let me = house.ok(MEMBER, "GET", "/v1/me", Value::Null).await;
    assert_eq!((&me["teams"], &me["via"]), (&json!(["ml"]), &json!("socket")));
}
