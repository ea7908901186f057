//! What is refused, and what is wrong with a request, is told in one way.

use std::collections::BTreeSet;

use gvm::api::error::{ErrorBody, ErrorCode};
use serde_json::{Value, json};

use super::routes::routes;
use super::{House, OWNER, STRANGER, login, refusal};

#[tokio::test(flavor = "multi_thread")]
async fn refused_changes_are_on_the_record_of_who_tried() {
    let house = House::new().await;
    let vm = house.machine(OWNER, "dev", None).await;
    for route in routes().iter().filter(|route| route.method != "GET" && route.path.contains("{vm}")) {
        house.ask(STRANGER, route.method, &route.path_for(&vm), &route.body).await;
        let rows: Value =
            house.ask(STRANGER, "GET", "/v1/operations?limit=1", &Value::Null).await.json().await.unwrap();
        let row = &rows["operations"][0];
        let told = (row["actor"].as_str().unwrap(), row["outcome"].as_str().unwrap(), row["target"].as_str().unwrap());
        assert_eq!(told, (login(STRANGER).as_str(), "denied", vm.as_str()), "{} {}", route.method, route.path);
    }
    let all: Value = house.ask(OWNER, "GET", "/v1/operations", &Value::Null).await.json().await.unwrap();
    let actors: BTreeSet<&str> =
        all["operations"].as_array().unwrap().iter().map(|row| row["actor"].as_str().unwrap()).collect();
    assert_eq!(actors, BTreeSet::from([login(OWNER).as_str()]), "nobody sees another's operations");
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_requests_are_told_like_every_other_error() {
    let house = House::new().await;
    let check = async |method: &str, path: &str, body: &Value, status: u16, words: &str| {
        let (got, kind, text) = refusal(house.ask(OWNER, method, path, body).await).await;
        assert_eq!((got, kind.as_str()), (status, "application/json"), "{method} {path}");
        assert!(text.contains(words), "{method} {path}: {text}");
        let body: ErrorBody = serde_json::from_str(&text).unwrap();
        assert!(matches!(body.code, ErrorCode::Invalid | ErrorCode::NotFound));
    };
    check("GET", "/v1/nothing", &Value::Null, 404, "no such path").await;
    check("DELETE", "/v1/me", &Value::Null, 405, "no such method").await;
    check("GET", "/v1/vms?limit=x", &Value::Null, 400, "the query is not understood").await;
    check("GET", "/v1/vms?sort=name", &Value::Null, 400, "unknown field `sort`").await;
    check("GET", "/v1/vms/%ff", &Value::Null, 400, "the path is not understood").await;
    check("POST", "/v1/vms", &json!([1]), 400, "the request is not understood").await;
    check("POST", "/v1/vms", &json!({"profile": "firmware", "color": "red"}), 400, "unknown field `color`").await;
    check("POST", "/v1/vms", &json!({"profile": "x".repeat(300 << 10)}), 400, "the request cannot be read").await;
    check("GET", "/v1/operations/x", &Value::Null, 400, "").await;
    let plain = house.request(OWNER, "GET", "/v1/vms/dev/logs", &Value::Null);
    assert_eq!(plain.send().await.unwrap().status(), 404);
    let (status, _, text) =
        refusal(house.clients[&OWNER].get("http://gvm/v1/vms/dev/console").send().await.unwrap()).await;
    assert!(status == 400 && text.contains("this is a WebSocket"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_reach_for_something_else_are_refused() {
    let house = House::new().await;
    let long = "x".repeat(64);
    let hostile =
        ["", "../x", "a b", "a\"b", "a'b", "<a>", "a\u{1}", "a\n", "m\u{e4}x", "\u{4f60}\u{597d}", "-a", &long];
    for name in hostile {
        let body = json!({"profile": "firmware", "name": name});
        let (status, _, text) = refusal(house.ask(OWNER, "POST", "/v1/vms", &body).await).await;
        assert_eq!(status, 400, "{name:?}: {text}");
        assert!(!text.contains(char::is_control), "{text:?}");
        let path = format!("/v1/vms/{}", gvm::api::client::segment(name));
        let status = house.ask(OWNER, "DELETE", &path, &Value::Null).await.status().as_u16();
        assert!([404, 405].contains(&status), "{name:?}: {status}");
    }
    let all: Value = house.ask(OWNER, "GET", "/v1/vms?deleted=true", &Value::Null).await.json().await.unwrap();
    assert_eq!(all["vms"], json!([]));
}
