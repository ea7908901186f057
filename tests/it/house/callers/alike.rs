//! "Not yours" and "not there" are the same answer.

use gvm::auth::policy::Denied;
use gvm::model::id::VmId;
use reqwest::Response;
use serde_json::{Value, json};

use super::cast::{ADMIN, CALLERS, Caller, ELSEWHERE, GATEWAY, OWNER, STRANGER, login};
use super::routes::{Ask, Route, routes};
use super::walk::Whose;
use super::{CREW, House, key, refusal};

impl House {
    /// All who may not know that there is such a thing.
    async fn unseeing(&self, route: &Route, shown: &str) -> Vec<Caller> {
        let mut found = Vec::new();
        for caller in CALLERS {
            let sees = match self.principal(caller).await {
                Err(_) => false,
                Ok(who) => !matches!(self.verdict(&who, route.ask, shown).await, Err(Denied::NotFound { .. })),
            };
            if !sees {
                found.push(caller);
            }
        }
        found
    }

    /// The id of what a route is about.
    async fn id_of(&self, route: &Route, shown: &str) -> String {
        let kind = match route.ask {
            Ask::Vm(_) => "vms",
            Ask::User(_) => "users",
            _ => "teams",
        };
        let view = self.ok(ADMIN, "GET", &format!("/v1/{kind}/{shown}"), &Value::Null).await;
        view["id"].as_str().unwrap().to_owned()
    }

    /// The refusal of a question about this, which stands as WORD in it.
    async fn refused(&self, caller: Caller, route: &Route, shown: &str) -> (u16, String, String) {
        let answer = self.ask(caller, route.method, &route.path_for(shown), &route.body).await;
        let (status, kind, body) = refusal(answer).await;
        (status, kind, body.replace(shown, "WORD"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn not_yours_and_not_there_are_the_same_answer() {
    let house = House::new().await;
    let mut count = 0;
    for route in routes().into_iter().filter(Route::is_about_one) {
        let name = house.name();
        let shown = if matches!(route.ask, Ask::Vm(_)) { format!("{name}.{}", login(OWNER)) } else { name.clone() };
        let mut before = Vec::new();
        for caller in CALLERS {
            before.push((caller, house.refused(caller, &route, &shown).await));
        }
        assert_eq!(house.subject(route.ask, Whose::Crew, &name).await, shown);
        let id = house.id_of(&route, &shown).await;
        let unseeing = house.unseeing(&route, &shown).await;
        assert!([STRANGER, ELSEWHERE, GATEWAY].iter().all(|caller| unseeing.contains(caller)), "{unseeing:?}");
        for caller in unseeing {
            let there = house.refused(caller, &route, &shown).await;
            assert!(
                before.contains(&(caller, there.clone())),
                "{} {} by {caller:?}: {there:?}",
                route.method,
                route.path
            );
            let no_id = VmId::generate().to_string();
            let by_id = house.refused(caller, &route, &id).await;
            assert_eq!(
                by_id,
                house.refused(caller, &route, &no_id).await,
                "{} {} by {caller:?}",
                route.method,
                route.path
            );
            if house.principal(caller).await.is_ok() {
                assert_eq!((there.0, by_id.0), (404, 404), "{} {} by {caller:?}", route.method, route.path);
            }
            count += 1;
        }
    }
    assert!(count > 36 * 8, "{count}");
}

/// An answer without what differs in every one.
async fn told(answer: Response, word: &str) -> (u16, String) {
    let status = answer.status().as_u16();
    let mut body: Value = answer.json().await.unwrap();
    body.as_object_mut().unwrap().remove("request_id");
    (status, body.to_string().replace(word, "WORD"))
}

/// Things that no path of the API is about by itself: tokens, keys, parts of the record, teams to count for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_keys_and_the_record_of_others_look_like_none() {
    let house = House::new().await;
    let owner = login(OWNER);
    let made = json!({"profile": "firmware", "name": "dev", "team": CREW, "is_stopped": true});
    let operation = house.ok(OWNER, "POST", "/v1/vms", &made).await["operation"].as_str().unwrap().to_owned();
    let token = house.ok(OWNER, "POST", "/v1/tokens", &json!({"name": "laptop"})).await["info"]["id"].clone();
    house.ok(OWNER, "POST", "/v1/keys", &json!({"public_key": key(1)})).await;
    let keys = house.ok(OWNER, "GET", "/v1/keys", &Value::Null).await;
    let key = keys["keys"][0]["id"].as_str().unwrap();
    let entries = house.ok(OWNER, "GET", &format!("/v1/audit?request={operation}"), &Value::Null).await;
    assert!(!entries["entries"].as_array().unwrap().is_empty(), "{entries}");
    let (token, nothing) = (token.as_str().unwrap(), VmId::generate().to_string());
    let vm = format!("dev.{owner}");
    let none = Value::Null;
    let by_path = [
        ("GET", "/v1/tokens?user=WORD", owner.as_str(), "nobody"),
        ("DELETE", "/v1/tokens/laptop?user=WORD", &owner, "nobody"),
        ("DELETE", "/v1/tokens/WORD", token, &nothing),
        ("DELETE", "/v1/tokens/WORD", "laptop", "other"),
        ("DELETE", "/v1/keys/WORD", key, &nothing),
        ("GET", "/v1/audit?vm=WORD", &vm, "none.nobody"),
        ("GET", "/v1/audit?request=WORD", &operation, &nothing),
        ("GET", "/v1/audit?actor=WORD", &owner, "nobody"),
        ("GET", "/v1/audit?target=WORD", &vm, "none.nobody"),
        ("GET", "/v1/operations/WORD", &operation, &nothing),
    ];
    let named = |what: &str, word: &str| match what {
        "token" => ("/v1/tokens", json!({"name": "x", "user": word})),
        _ => ("/v1/vms", json!({"profile": "firmware", "name": "x", "team": word})),
    };
    for caller in [STRANGER, ELSEWHERE, GATEWAY, super::SUSPENDED, Caller::Nobody] {
        for (method, path, there, not_there) in &by_path {
            let ask = async |word: &str| {
                told(house.ask(caller, method, &path.replace("WORD", word), &none).await, word).await
            };
            let (there, not_there) = (ask(there).await, ask(not_there).await);
            assert_eq!(there, not_there, "{method} {path} by {caller:?}");
            assert!(there.0 >= 400 || there.1.contains("\"entries\":[]"), "{method} {path} by {caller:?}: {there:?}");
        }
        for (what, there, not_there) in [("token", owner.as_str(), "nobody"), ("team", CREW, "none-such")] {
            let ask = async |word: &str| {
                let (path, body) = named(what, word);
                told(house.ask(caller, "POST", path, &body).await, word).await
            };
            let (there, not_there) = (ask(there).await, ask(not_there).await);
            assert_eq!(there, not_there, "{what} by {caller:?}");
            assert!(there.0 >= 400, "{what} by {caller:?}: {there:?}");
        }
    }
    let entries = house.ok(OWNER, "GET", "/v1/tokens", &Value::Null).await;
    assert_eq!(entries["tokens"].as_array().unwrap().len(), 1, "nothing was revoked");
    let all = house.ok(ADMIN, "GET", &format!("/v1/audit?request={operation}"), &Value::Null).await;
    assert!(!all["entries"].as_array().unwrap().is_empty(), "who may sees it");
}
