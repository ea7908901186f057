//! Names that mislead: look-alikes, those of systems, those that other services give.

use std::collections::BTreeSet;

use gvm::model::name::derive::derive;
use gvm::model::name::line::Line;
use gvm::model::principal::Role;
use serde_json::{Value, json};

use super::{House, MEMBER, ROOT};

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_looks_like_anothers_is_refused_with_whose() {
    let house = House::new().await;
    for name in ["alice", "anna-b", "modern"] {
        house.add(name).await;
    }
    for (name, like) in [("a1ice", "alice"), ("anna_b", "anna-b"), ("modem", "modern"), ("allce", "alice")] {
        let (status, body) = house.ask(ROOT, "POST", "/v1/users", json!({"name": name})).await;
        let wanted = format!("the name {name} looks like the user {like}");
        assert_eq!((status, body["message"].as_str()), (409, Some(wanted.as_str())));
        let (status, body) = house.ask(ROOT, "PATCH", "/v1/users/modern", json!({"name": name})).await;
        assert_eq!(status, if like == "modern" { 200 } else { 409 }, "{body}");
        if status == 200 {
            house.ok(ROOT, "PATCH", &format!("/v1/users/{name}"), json!({"name": "modern"})).await;
        }
    }
    let (status, body) = house.ask(ROOT, "POST", "/v1/users", json!({"name": "alice"})).await;
    assert_eq!((status, body["message"].as_str()), (409, Some("there is a user alice already")));
    // The host's own accounts are let in whatever they look like: the host's administrator named them.
    let (one, two) = (house.id_seen(2001, "carol").await, house.id_seen(2002, "caro1").await);
    assert_ne!(one, two);
    let (status, _) = house.ask(ROOT, "POST", "/v1/users", json!({"name": "car0l"})).await;
    assert_eq!(status, 409);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_systems_and_no_names_are_refused_by_hand() {
    let house = House::new().await;
    house.add("anna").await;
    for name in ["root", "gvm", "gvm-gateway", "gateway", "admin", "nobody", "systemd-network", "postgres"] {
        for (method, path) in [("POST", "/v1/users"), ("PATCH", "/v1/users/anna")] {
            let (status, body) = house.ask(ROOT, method, path, json!({"name": name})).await;
            let wanted = format!("the name {name} is kept for the system");
            assert_eq!((status, body["message"].as_str()), (400, Some(wanted.as_str())));
        }
    }
    let long = "a".repeat(200);
    for name in
        ["", "ANNA", "José.Núñez@uni.example", "李雷", "-rf", "..", "a/b", "anna ", "an\u{200f}na", "\u{0}", &long]
    {
        let (status, body) = house.ask(ROOT, "POST", "/v1/users", json!({"name": name})).await;
        assert_eq!(status, 400, "{name:?}: {body}");
        assert!(body["message"].as_str().unwrap().starts_with("user name "), "{body}");
    }
    for full_name in ["two\nlines", "\u{202e}anna", &"x".repeat(201)] {
        let (status, _) = house.ask(ROOT, "PATCH", "/v1/users/anna", json!({"full_name": full_name})).await;
        assert_eq!(status, 400, "{full_name:?}");
    }
    let all = house.ok(ROOT, "GET", "/v1/users", Value::Null).await;
    let names: Vec<&str> = all["users"].as_array().unwrap().iter().map(|user| user["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["anna", "eve", "root"], "nothing was added; root is there because it asked");
    // The host's own account of such a name is no person added by hand.
    assert_eq!(house.ok(MEMBER, "GET", "/v1/me", Value::Null).await["name"], "daemon");
}

#[tokio::test(flavor = "multi_thread")]
async fn people_of_other_services_never_share_a_name() {
    let house = House::new().await;
    house.add("alice").await;
    let long = "a".repeat(200);
    let said = [
        "José.Núñez@uni.example",
        "ANNA",
        "anna",
        "anna@uni.example",
        "anna@other.example",
        "李雷",
        "-rf",
        "..",
        "a/b",
        "root",
        "anna ",
        "anna\u{200f}",
        "alice",
        "a1ice",
        "eve",
        &long,
        &long,
        "",
    ];
    let mut names = BTreeSet::new();
    for (number, hint) in said.iter().enumerate() {
        let mut tx = house.life.store.write().await.unwrap();
        let subject = format!("https://id.example {number}");
        let row = house.life.manager.enrol(&mut tx, hint, &subject, &Line::default(), Role::Member).await.unwrap();
        gvm::store::commit(tx).await.unwrap();
        let name = row.user.name.clone();
        assert!(!name.is_reserved() && name != house.user("alice").await.name, "{name}");
        assert!(names.insert(name.skeleton()), "{name} looks like another of {names:?}");
        let is_plain = *hint == "anna";
        assert_eq!(name.as_str() == *hint, is_plain, "{hint:?} {name}");
        if !is_plain && !hint.starts_with("anna@") {
            assert_eq!(name, derive(hint, &subject).unique);
        }
        // No account of the host takes them over.
        assert!(house.seen(3000, name.as_str()).await.is_err());
    }
    assert_eq!(names.len(), said.len());
}
