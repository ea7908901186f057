//! Profiles, operations and keys that are another's look like those that are not there.

use gvm::model::id::VmId;
use serde_json::{Value, json};

use super::callers::{GATEWAY, House, OWNER, STRANGER, login, refusal};

#[tokio::test(flavor = "multi_thread")]
async fn hidden_profiles_operations_and_keys_look_like_none() {
    let house = House::new().await;
    let path = "/v1/profiles/secret";
    let before = refusal(house.ask(STRANGER, "GET", path, &Value::Null).await).await;
    let make = json!({"profile": "secret", "name": "a"});
    let before_make = refusal(house.ask(STRANGER, "POST", "/v1/vms", &make).await).await;
    let profiles = house.world.config.manager.config_dir.join("profiles");
    std::fs::create_dir_all(&profiles).unwrap();
    let profile = format!("inherits = 'firmware'\nallow = ['{}']", login(OWNER));
    std::fs::write(profiles.join("secret.toml"), profile).unwrap();
    assert_eq!(before, refusal(house.ask(STRANGER, "GET", path, &Value::Null).await).await);
    assert_eq!(before_make, refusal(house.ask(STRANGER, "POST", "/v1/vms", &make).await).await);
    assert_eq!(house.ask(OWNER, "GET", path, &Value::Null).await.status(), 200);

    let made: Value = house.ask(OWNER, "POST", "/v1/vms", &make).await.json().await.unwrap();
    let operation = made["operation"].as_str().unwrap().to_owned();
    let asked = async |id: String| {
        let (status, kind, body) =
            refusal(house.ask(STRANGER, "GET", &format!("/v1/operations/{id}"), &Value::Null).await).await;
        (status, kind, body.replace(&id, "ID"))
    };
    assert_eq!(asked(operation).await, asked(VmId::generate().to_string()).await);

    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdZ0vJtYXQ0ZXJvZnRlc3RzYW5kbm90aGluZ2Vsc2Uh";
    let print = "SHA256:F7YbSowSTz+aNLLioAXbOKSqaX5Xv5P175F2ktLfOrg";
    let path = format!("/v1/keys/{}", gvm::api::client::segment(print));
    let before = refusal(house.ask(STRANGER, "DELETE", &path, &Value::Null).await).await;
    assert_eq!(house.ask(OWNER, "POST", "/v1/keys", &json!({"public_key": key})).await.status(), 200);
    assert_eq!(before, refusal(house.ask(STRANGER, "DELETE", &path, &Value::Null).await).await);

    // The gateway, asked with the owner's key, finds the owner's machines and those of nobody else.
    let target = |vm: &str| json!({"public_key": key, "vm": vm, "mode": "jump", "peer": "192.0.2.1"});
    let ask = async |vm: &str| refusal(house.ask(GATEWAY, "POST", "/v1/gateway/target", &target(vm)).await).await.0;
    let theirs = json!({"profile": "firmware", "name": "theirs", "is_stopped": true});
    assert_eq!(house.ask(STRANGER, "POST", "/v1/vms", &theirs).await.status(), 202);
    assert_eq!(ask("a").await, 409, "it is the owner's and not up");
    assert_eq!(ask(&format!("theirs.{}", login(STRANGER))).await, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_leaves_on_a_step() {
    let house = House::new().await;
    for (asker, path) in [(STRANGER, "/v1/profiles/secret"), (STRANGER, "/v1/vms/none"), (OWNER, "/v1/nowhere")] {
        let begin = std::time::Instant::now();
        let answer = refusal(house.ask(asker, "GET", path, &Value::Null).await).await;
        let took = begin.elapsed();
        assert!(took.as_millis() >= 20, "{path} took {took:?}: {answer:?}");
    }
}
