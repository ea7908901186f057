//! Questions to the record over HTTP: what is found, by whom.

use gvm::api::client::ClientError;
use gvm::api::error::ErrorBody;
use gvm::api::types::{EntryList, EntryView};
use gvm::manager::record::{Filter, Login};
use gvm::model::principal::{Origin, Via};
use serde_json::{Value, json};

use super::*;

const OWNER: u32 = 1;
const OTHER: u32 = 2;
const OPERATOR: u32 = 4;

struct Asked {
    world: World,
    life: Life,
    owner: Client,
    other: Client,
    operator: Client,
    _dir: tempfile::TempDir,
}

async fn asked() -> Asked {
    let mut world = World::new();
    world.config.people.operators = vec![login(OPERATOR)];
    let life = world.live().await;
    let dir = tempfile::tempdir().unwrap();
    let owner = serve(&world, &life, dir.path(), OWNER).await;
    let other = serve(&world, &life, dir.path(), OTHER).await;
    let operator = serve(&world, &life, dir.path(), OPERATOR).await;
    Asked { world, life, owner, other, operator, _dir: dir }
}

async fn entries(client: &Client, query: &str) -> Vec<EntryView> {
    client.get::<EntryList>(&format!("/v1/audit?{query}")).await.unwrap().entries
}

async fn make(client: &Client, name: &str) {
    let body = json!({"profile": "firmware", "name": name});
    let _: Value = client.post("/v1/vms", &body).await.unwrap();
}

fn refusal(answer: Result<Value, ClientError>) -> ErrorBody {
    match answer {
        Err(ClientError::Api(body)) => body,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_request_id_of_an_error_leads_to_its_entry() {
    let asked = asked().await;
    make(&asked.owner, "dev").await;
    let vm = format!("dev.{}", login(OWNER));
    let error = refusal(asked.other.delete(&format!("/v1/vms/{vm}")).await);
    let request = error.request_id.unwrap();
    let found = entries(&asked.other, &format!("request={request}")).await;
    assert_eq!(found.len(), 1, "{found:?}");
    let entry = &found[0];
    assert_eq!(entry.request_id.as_deref(), Some(request.as_str()));
    let told = (entry.actor.as_str(), entry.action.as_str(), entry.target.as_str(), entry.outcome.as_str());
    assert_eq!(told, (login(OTHER).as_str(), "vm.delete", vm.as_str(), "denied"));
    assert_eq!((entry.via.as_str(), &entry.detail), ("socket", &error.message));
    // Those whom it concerns see it, and nobody else.
    assert_eq!(entries(&asked.operator, &format!("request={request}")).await, found);
    assert!(entries(&asked.owner, &format!("request={request}")).await.is_empty());
    // Of a change that was accepted, both halves are of its request.
    let begun = &entries(&asked.owner, "action=vm.create").await[0];
    let request = begun.request_id.clone().unwrap();
    asked.life.settle(begun.vm_id.as_ref().unwrap().parse().unwrap()).await;
    let halves = entries(&asked.owner, &format!("request={request}")).await;
    assert_eq!(halves.iter().map(|entry| entry.half.as_str()).collect::<Vec<_>>(), ["end", "begin"]);
    assert_eq!(entries(&asked.owner, &format!("request={}", begun.operation)).await, halves, "and of its operation");
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_find_what_they_ask_for() {
    let asked = asked().await;
    for name in ["one", "two", "three"] {
        make(&asked.owner, name).await;
    }
    make(&asked.other, "four").await;
    let owner = login(OWNER);
    let refused = refusal(asked.other.delete(&format!("/v1/vms/one.{owner}")).await);
    assert_eq!(refused.code.status(), 404);
    let count = async |query: &str| entries(&asked.operator, query).await.len();
    assert_eq!(count("").await, 5);
    assert_eq!(count(&format!("actor={owner}")).await, 3);
    assert_eq!(count("actor=nobody-of-that-name").await, 0);
    assert_eq!(count("action=vm.").await, 5);
    assert_eq!(count("action=vm.create").await, 4);
    assert_eq!(count("action=m.create").await, 0, "an action begins so");
    assert_eq!(count("action=%25").await, 0, "no wildcard");
    assert_eq!(count("outcome=denied").await, 1);
    assert_eq!(count(&format!("target=one.{owner}")).await, 2);
    assert_eq!(count(&format!("vm=one.{owner}")).await, 1);
    assert_eq!(count("since=2020-01-01T00:00:00Z").await, 5);
    assert_eq!(count("until=2020-01-01T00:00:00Z").await, 0);
    // Page by page, without one twice or left out.
    let mut seqs = Vec::new();
    let mut before = String::new();
    loop {
        let page: EntryList = asked.operator.get(&format!("/v1/audit?limit=2{before}")).await.unwrap();
        seqs.extend(page.entries.iter().map(|entry| entry.seq));
        let Some(next) = page.next else { break };
        before = format!("&before={next}");
    }
    assert_eq!(seqs, [5, 4, 3, 2, 1]);
    for wrong in ["outcome=maybe", "since=yesterday", "request=7", "colour=red", "before=-1"] {
        let answer = refusal(asked.operator.get(&format!("/v1/audit?{wrong}")).await);
        assert_eq!(answer.code.status(), 400, "{wrong}");
    }
    // Own entries are the most that a member finds.
    assert_eq!(entries(&asked.owner, "").await.len(), 3);
    assert!(entries(&asked.owner, &format!("actor={}", login(OTHER))).await.is_empty());
    assert_eq!(entries(&asked.owner, &format!("actor={owner}")).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_finds_their_own_entries_under_another_name_too() {
    let asked = asked().await;
    let life = &asked.life;
    life.create("dev").await.unwrap();
    edit(&asked.world, "UPDATE users SET name = 'eva' WHERE name = 'eve'").await;
    let user = User { name: "eva".parse().unwrap(), ..life.member.user().unwrap().clone() };
    let renamed = policy::allow(&Principal::of(user), Action::AuditSee).unwrap();
    let found = life.manager.entries(&renamed, Filter::default(), 10).await.unwrap();
    assert_eq!(found.iter().map(|entry| entry.actor.as_str()).collect::<Vec<_>>(), ["eve"]);
    let all = permit(Action::AuditSeeAll);
    let by = |name: &str| Filter { actor: Some(name.to_owned()), ..Filter::default() };
    assert_eq!(life.manager.entries(&all, by("eva"), 10).await.unwrap(), found, "by the name of now");
    assert_eq!(life.manager.operations(&renamed, 10).await.unwrap().len(), 1);
    // Whoever has the name now has none of it.
    let heir = User { name: "eve".parse().unwrap(), id: UserId::generate(), role: Role::Member };
    let heir = policy::allow(&Principal::of(heir), Action::AuditSee).unwrap();
    assert!(life.manager.entries(&heir, by("eve"), 10).await.unwrap().is_empty());
    assert!(life.manager.operations(&heir, 10).await.unwrap().is_empty());
    let id = life.manager.operations(&renamed, 1).await.unwrap()[0].id;
    assert!(life.manager.operation(&renamed, id).await.is_ok() && life.manager.operation(&heir, id).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn logins_are_on_the_record_with_where_they_came_from() {
    let world = World::new();
    let life = world.live().await;
    let user = life.member.user().unwrap().id;
    let origin = Origin { via: Via::Login("ldap".to_owned()), address: Some([192, 0, 2, 7].into()), request: None };
    let known = Login { name: "eve", user: Some(user), origin: origin.clone(), outcome: Outcome::Success, detail: "" };
    life.manager.record_login(known).await;
    let long = "x".repeat(5000);
    let stranger = Login {
        name: "no\nbody",
        user: None,
        origin: Origin { address: Some("2001:db8::1".parse().unwrap()), ..origin },
        outcome: Outcome::Denied,
        detail: &long,
    };
    life.manager.record_login(stranger).await;
    let all = life.store.entries(&Filter { action: Some("login".to_owned()), ..Filter::default() }, 10).await.unwrap();
    let told: Vec<_> = all
        .iter()
        .map(|entry| {
            (entry.actor.as_str(), entry.via.as_str(), entry.address.as_deref().unwrap(), entry.outcome.as_str())
        })
        .collect();
    assert_eq!(
        told,
        [("no\\nbody", "ldap", "2001:db8::1", "denied"), ("eve", "ldap", "192.0.2.7", "success")],
        "control characters of a stranger are taken out"
    );
    assert_eq!(all[0].detail.len(), 1000);
    let own = life.manager.entries(&life.permit(Action::AuditSee), Filter::default(), 10).await.unwrap();
    assert_eq!(own.len(), 1, "the person sees their own");
}
