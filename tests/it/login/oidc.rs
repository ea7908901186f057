//! Logins with a real OpenID Connect provider (oidc-provider from npm, on loopback).

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gvm::config::{Config, OidcConfig};
use reqwest::Url;
use serde_json::{Value, json};

use super::browser::{Browser, Ended};
use super::house::{House, URL, secret};
use crate::support::run::kill;
use crate::support::skip;

const SECRET: &str = "a secret:with % odd+letters & more";

/// The provider's process.
pub struct Provider {
    child: Child,
    issuer: String,
    dir: tempfile::TempDir,
}

impl Provider {
    /// None where Node or the package are not there; then it is said why.
    pub fn start(test: &str) -> Option<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        if !root.join("node_modules/oidc-provider/package.json").is_file() {
            skip::say(test, "oidc-provider is not installed; scripts/setup.sh --test brings it");
            return None;
        }
        let mut command = Command::new("node");
        command
            .arg(root.join("tests/fixtures/oidc/provider.mjs"))
            .arg(SECRET)
            .arg(format!("{URL}/v1/login/oidc/callback"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("node: {e}"));
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.map_while(Result::ok).find_map(|line| Some(line.strip_prefix("READY ")?.to_owned()));
        let issuer = ready.expect("the provider ended before it was ready");
        Some(Self { child, issuer, dir: tempfile::tempdir().unwrap() })
    }

    pub fn config(&self) -> OidcConfig {
        OidcConfig {
            issuer: self.issuer.clone(),
            client_id: "gvm".to_owned(),
            client_secret_file: Some(secret(self.dir.path(), "secret", SECRET)),
            public_url: Some(URL.to_owned()),
            scopes: ["openid", "profile", "email", "groups"].map(str::to_owned).into(),
            ..OidcConfig::default()
        }
    }

    async fn house(&self, edit: impl FnOnce(&mut Config)) -> House {
        House::new(|config| {
            config.login.oidc = Some(self.config());
            edit(config);
        })
        .await
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        kill(&mut self.child);
    }
}

/// A browser's way through a login: where it comes back to, and the cookie that it has by then.
async fn come_back(house: &House, login: &str) -> (Url, String) {
    let answer = house.ask("GET", "/v1/login/oidc/start", &Value::Null).await;
    assert_eq!(answer.status().as_u16(), 302, "{}", answer.text().await.unwrap());
    let cookie = answer.headers()["set-cookie"].to_str().unwrap();
    for word in ["__Host-gvm_login=", "Secure", "HttpOnly", "SameSite=Lax", "Path=/"] {
        assert!(cookie.contains(word), "{cookie}");
    }
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let to = answer.headers()["location"].to_str().unwrap().to_owned();
    match Browser::new(login).go(&to, URL).await {
        Ended::SentTo(url) => (url, cookie),
        Ended::Page(page) => panic!("{page}"),
    }
}

async fn callback(house: &House, url: &Url, cookie: Option<&str>) -> reqwest::Response {
    let path = format!("http://gvm{}?{}", url.path(), url.query().unwrap());
    let request = house.client("192.0.2.1").get(path);
    let request = cookie.into_iter().fold(request, |request, cookie| request.header("cookie", cookie));
    request.send().await.unwrap()
}

/// The session that a callback's answer sets.
fn session(answer: &reqwest::Response) -> Option<String> {
    let cookies = answer.headers().get_all("set-cookie").iter().map(|line| line.to_str().unwrap());
    let line = cookies.filter_map(|line| line.strip_prefix("__Host-gvm_session=")).next()?;
    assert!(line.contains("; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age="), "{line}");
    line.split(';').next().map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_logs_in_and_its_code_is_good_once() {
    fn here() {}
    let Some(provider) = Provider::start(skip::test_of(std::any::type_name_of_val(&here))) else { return };
    let house = provider.house(|_| {}).await;
    let ways = house.answer("GET", "/v1/login", &Value::Null).await;
    assert_eq!(ways, (200, json!({"passwords": [], "device": true, "page": true})));

    let (url, cookie) = come_back(&house, "anna").await;
    let answer = callback(&house, &url, Some(&cookie)).await;
    assert_eq!(answer.status().as_u16(), 200);
    assert_eq!(answer.headers()["cache-control"], "no-store");
    let token = session(&answer).unwrap();
    assert!(answer.text().await.unwrap().contains("You are logged in"));
    let (status, me) = house.me(&token).await;
    assert_eq!((status, &me["name"], &me["role"]), (200, &json!("anna"), &json!("member")));

    // The browser's own cookie is a login as well, for what changes nothing; for what does only from our own page.
    let with_cookie = |method: &str, site: &str| {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let request = house.client("192.0.2.1").request(method, "http://gvm/v1/keys");
        request.header("cookie", format!("__Host-gvm_session={token}")).header("sec-fetch-site", site.to_owned())
    };
    assert_eq!(with_cookie("GET", "cross-site").send().await.unwrap().status().as_u16(), 200);
    let key = json!({"public_key": "ssh-dss AAAA"});
    assert_eq!(with_cookie("POST", "cross-site").json(&key).send().await.unwrap().status().as_u16(), 403);
    assert_eq!(with_cookie("POST", "same-origin").json(&key).send().await.unwrap().status().as_u16(), 400);

    // The same address once more, as from a history: the state is used.
    let again = callback(&house, &url, Some(&cookie)).await;
    assert_eq!(again.status().as_u16(), 401);
    assert_eq!(session(&again), None);
    // The used code under a state that is not.
    let (fresh, cookie) = come_back(&house, "anna").await;
    let code = |url: &Url| url.query_pairs().find(|(key, _)| key == "code").unwrap().1.into_owned();
    let replayed: Url = fresh.as_str().replace(&code(&fresh), &code(&url)).parse().unwrap();
    assert_eq!(callback(&house, &replayed, Some(&cookie)).await.status().as_u16(), 401);

    let record = house.record().await;
    assert_eq!(record.iter().filter(|(actor, outcome, _)| actor == "anna" && outcome == "success").count(), 1);
    assert_eq!(
        record.iter().filter(|(actor, outcome, _)| actor == "(?)" && outcome == "denied").count(),
        2,
        "{record:?}"
    );
    let all = format!("{record:?}");
    assert!(!all.contains(&token) && !all.contains(&code(&url)) && !all.contains(SECRET), "{all}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_is_the_browsers_that_began_it() {
    fn here() {}
    let Some(provider) = Provider::start(skip::test_of(std::any::type_name_of_val(&here))) else { return };
    let house = provider.house(|_| {}).await;
    for cookie in [None, Some("__Host-gvm_login=another")] {
        let (url, _) = come_back(&house, "anna").await;
        let answer = callback(&house, &url, cookie).await;
        assert_eq!((answer.status().as_u16(), session(&answer)), (401, None), "{cookie:?}");
    }
    let (url, cookie) = come_back(&house, "anna").await;
    let mut other = url.clone();
    other.query_pairs_mut().clear().append_pair("code", "x").append_pair("state", "not ours");
    assert_eq!(callback(&house, &other, Some(&cookie)).await.status().as_u16(), 401);
    assert_eq!(callback(&house, &url, Some(&cookie)).await.status().as_u16(), 200, "theirs is still good");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_logs_in_by_a_code_that_is_typed_elsewhere() {
    fn here() {}
    let Some(provider) = Provider::start(skip::test_of(std::any::type_name_of_val(&here))) else { return };
    let house = provider.house(|config| {
        config.login.groups.operators = vec!["operators".to_owned()];
    });
    let house = house.await;
    let (status, begun) = house.answer("POST", "/v1/login/device", &Value::Null).await;
    assert_eq!(status, 200, "{begun}");
    let handle = json!({"handle": begun["handle"]});
    let poll = async || house.answer("POST", "/v1/login/device/poll", &handle).await;
    let (status, answer) = poll().await;
    assert_eq!((status, &answer["state"], answer.get("session")), (200, &json!("pending"), None), "{answer}");
    let (status, answer) = poll().await;
    assert_eq!((status, &answer["state"]), (200, &json!("slow_down")), "asked again at once");

    let complete = begun["verification_uri_complete"].as_str().unwrap();
    match Browser::new("ops-eve").go(complete, URL).await {
        Ended::Page(page) => assert!(page.contains("Success"), "{page}"),
        Ended::SentTo(url) => panic!("{url}"),
    }
    tokio::time::sleep(Duration::from_secs(answer["interval"].as_u64().unwrap())).await;
    let (status, done) = poll().await;
    assert_eq!((status, &done["state"]), (200, &json!("done")), "{done}");
    let session = &done["session"];
    assert_eq!((&session["user"], &session["role"]), (&json!("ops-eve"), &json!("operator")));
    assert_eq!(house.me(session["token"].as_str().unwrap()).await.0, 200);
    assert_eq!(poll().await.0, 401, "a handle is good for one login");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_goes_away_is_told_as_that() {
    fn here() {}
    let Some(mut provider) = Provider::start(skip::test_of(std::any::type_name_of_val(&here))) else { return };
    let house = provider.house(|_| {}).await;
    let (url, cookie) = come_back(&house, "anna").await;
    kill(&mut provider.child);
    let answer = callback(&house, &url, Some(&cookie)).await;
    assert_eq!(answer.status().as_u16(), 503);
    let body: Value = answer.json().await.unwrap();
    assert_eq!(body["code"], "unavailable");
    let (status, body) = house.answer("POST", "/v1/login/device", &Value::Null).await;
    assert_eq!(status, 503, "{body}");
    assert!(!body.to_string().contains(SECRET) && !body.to_string().contains("127.0.0.1"), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_others_can_read_is_not_used() {
    fn here() {}
    use std::os::unix::fs::PermissionsExt as _;
    let Some(provider) = Provider::start(skip::test_of(std::any::type_name_of_val(&here))) else { return };
    let house = provider.house(|_| {}).await;
    let path = provider.dir.path().join("secret");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let (status, body) = house.answer("POST", "/v1/login/device", &Value::Null).await;
    assert_eq!((status, &body["code"]), (503, &json!("unavailable")));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(house.answer("POST", "/v1/login/device", &Value::Null).await.0, 200, "mended without a restart");
    std::fs::write(&path, "wrong").unwrap();
    let (status, body) = house.answer("POST", "/v1/login/device", &Value::Null).await;
    assert_eq!(status, 503, "{body}");
}
