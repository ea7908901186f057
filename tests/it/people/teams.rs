//! Teams.

use gvm::model::id::VmId;
use gvm::store::{commit, vms};
use serde_json::{Value, json};

use super::{House, MEMBER, OTHER, ROOT, steady};

#[tokio::test(flavor = "multi_thread")]
async fn the_life_of_a_team() {
    let house = House::new().await;
    house.ok(MEMBER, "GET", "/v1/me", Value::Null).await;
    let gvm = async |args: &[&str]| house.gvm(ROOT, args).await.expect(0);
    gvm(&["user", "add", "anna"]).await;
    gvm(&["team", "add", "vision", "--description", "Computer vision"]).await;
    gvm(&["team", "add", "ml"]).await;
    gvm(&["team", "add-member", "vision", "anna", "daemon"]).await;
    gvm(&["team", "add-member", "ml", "anna"]).await;
    insta::assert_snapshot!("team-show", steady(&gvm(&["team", "show", "vision"]).await.page()));
    let listed = gvm(&["team", "list"]).await.stdout;
    assert!(listed.contains("ml            1") && listed.contains("vision        2  Computer vision"), "{listed}");
    let twice = house.gvm(ROOT, &["team", "add-member", "ml", "anna"]).await.expect(5);
    assert!(twice.stderr.contains("anna is in the team ml already"), "{}", twice.stderr);

    // The first is the default, until another of theirs is chosen.
    let anna = async || house.ok(ROOT, "GET", "/v1/users/anna", Value::Null).await;
    assert_eq!((&anna().await["teams"], &anna().await["default_team"]), (&json!(["ml", "vision"]), &json!("vision")));
    gvm(&["user", "set", "anna", "--default-team", "ml"]).await;
    assert_eq!(anna().await["default_team"], "ml");
    gvm(&["user", "set", "anna", "--default-team", "none"]).await;
    assert_eq!(anna().await["default_team"], Value::Null);
    gvm(&["user", "set", "anna", "--default-team", "ml"]).await;
    house.gvm(ROOT, &["user", "set", "daemon", "--default-team", "ml"]).await.expect(5);
    gvm(&["team", "rm-member", "ml", "anna"]).await;
    assert_eq!((&anna().await["teams"], &anna().await["default_team"]), (&json!(["vision"]), &Value::Null));
    assert_eq!(house.last_record().await, "root team.remove_member ml success: user anna");

    gvm(&["team", "set", "ml", "--name", "learning", "--description", "Machine learning"]).await;
    house.gvm(ROOT, &["team", "set", "learning", "--name", "vision"]).await.expect(5);
    house.gvm(ROOT, &["team", "add", "none"]).await.expect(2);
    gvm(&["team", "rm", "vision"]).await;
    assert_eq!(anna().await["teams"], json!([]));
    house.gvm(ROOT, &["team", "show", "vision"]).await.expect(4);
}

#[tokio::test(flavor = "multi_thread")]
async fn members_see_their_teams_and_nobody_elses() {
    let house = House::new().await;
    for uid in [MEMBER, OTHER] {
        house.ok(uid, "GET", "/v1/me", Value::Null).await;
    }
    for team in ["vision", "ml"] {
        house.ok(ROOT, "POST", "/v1/teams", json!({"name": team})).await;
    }
    house.ok(ROOT, "PUT", "/v1/teams/vision/members/daemon", Value::Null).await;
    let teams = house.ok(MEMBER, "GET", "/v1/teams", Value::Null).await;
    assert_eq!((&teams["teams"][0]["name"], teams["teams"].as_array().unwrap().len()), (&json!("vision"), 1));
    let members = house.ok(MEMBER, "GET", "/v1/teams/vision/members", Value::Null).await;
    assert_eq!(members["members"], json!(["daemon"]));
    assert_eq!(house.ok(MEMBER, "GET", "/v1/me", Value::Null).await["teams"], json!(["vision"]));

    // Not there and not theirs are the same answer, by name and by id.
    let id = house.ok(ROOT, "GET", "/v1/teams/ml", Value::Null).await["id"].as_str().unwrap().to_owned();
    let answer = async |shown: &str| {
        let (status, body) = house.ask(MEMBER, "GET", &format!("/v1/teams/{shown}"), Value::Null).await;
        (status, body["message"].as_str().unwrap().replace(shown, "IT"), body["hint"].clone())
    };
    assert_eq!(answer("ml").await, answer("nothing").await);
    assert_eq!(answer(&id).await, answer(&VmId::generate().to_string()).await);
    assert_eq!(house.ok(OTHER, "GET", "/v1/teams", Value::Null).await["teams"], json!([]));
    let (status, body) = house.ask(MEMBER, "PUT", "/v1/teams/vision/members/bin", Value::Null).await;
    assert_eq!((status, body["message"].as_str()), (403, Some("daemon may not change teams; ask an administrator")));

    // A teacher sees the people of their teams, and of no others.
    house.ok(ROOT, "PATCH", "/v1/users/daemon", json!({"role": "teacher"})).await;
    house.ok(ROOT, "PUT", "/v1/teams/ml/members/bin", Value::Null).await;
    house.add("anna").await;
    house.ok(ROOT, "PUT", "/v1/teams/vision/members/anna", Value::Null).await;
    assert_eq!(house.ask(MEMBER, "GET", "/v1/users/anna", Value::Null).await.0, 200);
    assert_eq!(house.ask(MEMBER, "GET", "/v1/users/bin", Value::Null).await.0, 404);
    assert_eq!(house.ask(MEMBER, "GET", "/v1/users/daemon", Value::Null).await.0, 200, "oneself");
    assert_eq!(house.ask(MEMBER, "GET", "/v1/users", Value::Null).await.0, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_team_that_machines_count_for_stays() {
    let house = House::new().await;
    house.ok(ROOT, "POST", "/v1/teams", json!({"name": "ml"})).await;
    let id = house.life.create_as("dev", |request| request.is_stopped = true).await.unwrap();
    let team = house.life.store.team_by_name(&"ml".parse().unwrap()).await.unwrap().unwrap();
    let mut tx = house.life.store.write().await.unwrap();
    let mut vm = vms::read(&mut tx, id).await.unwrap().unwrap();
    vm.team = Some(team.id);
    vms::update(&mut tx, &vm).await.unwrap();
    commit(tx).await.unwrap();
    let (status, body) = house.ask(ROOT, "DELETE", "/v1/teams/ml", Value::Null).await;
    assert_eq!((status, body["message"].as_str()), (409, Some("VMs still count for the team ml")));
}
