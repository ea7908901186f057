//! ID tokens and providers that are not to be believed.

use std::time::Duration;

use gvm::auth::policy::{self, Action};
use gvm::config::Config;
use gvm::manager::Kind;
use gvm::model::principal::{Principal, Provider, Role, User};
use gvm::store::{commit, teams, users};
use jiff::Timestamp;
use reqwest::Url;
use serde_json::{Value, json};

use super::forger::{Forger, Key};
use super::house::{House, URL};

/// A provider with one key, and a manager that knows it.
struct Scene {
    house: House,
    forger: Forger,
    key: Key,
    addresses: std::sync::atomic::AtomicU32,
}

impl Scene {
    async fn new(edit: impl FnOnce(&mut Config)) -> Self {
        let forger = Forger::start().await;
        let key = Key::ec();
        forger.set(|script| script.keys = vec![key.jwk("k1")]);
        let house = House::new(|config| {
            config.login.oidc = Some(forger.config());
            edit(config);
        });
        Self { house: house.await, forger, key, addresses: 1.into() }
    }

    /// Claims that are good for a nonce, changed.
    fn claims(&self, nonce: &str, change: &Value) -> Value {
        let now = Timestamp::now().as_second();
        let mut claims = json!({
            "iss": self.forger.issuer, "aud": "gvm", "sub": "s-1", "nonce": nonce, "iat": now, "exp": now + 300,
            "preferred_username": "anna",
        });
        for (name, value) in change.as_object().unwrap() {
            claims[name] = value.clone();
        }
        claims
    }

    /// A login with a browser from an address of its own; the token is made when the nonce is known.
    async fn login(&self, make: impl FnOnce(&str) -> Value) -> (u16, Value, Option<String>) {
        self.login_answered(|nonce| (200, make(nonce))).await
    }

    /// The same with the status of the provider's answer.
    async fn login_answered(&self, make: impl FnOnce(&str) -> (u16, Value)) -> (u16, Value, Option<String>) {
        let number = self.addresses.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let address = format!("198.18.{}.{}", number / 250, number % 250 + 1);
        self.house.listen(&address);
        let begun = self.house.ask_from(&address, "GET", "/v1/login/oidc/start", &Value::Null).await;
        if begun.status().as_u16() != 302 {
            let status = begun.status().as_u16();
            return (status, begun.json().await.unwrap(), None);
        }
        let to: Url = begun.headers()["location"].to_str().unwrap().parse().unwrap();
        let field = |name: &str| to.query_pairs().find(|(key, _)| key == name).unwrap().1.into_owned();
        assert_eq!(
            (field("code_challenge_method"), field("redirect_uri")),
            ("S256".into(), format!("{URL}/v1/login/oidc/callback"))
        );
        let cookie = begun.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
        self.forger.set(|script| script.token = make(&field("nonce")));
        let path = format!("http://gvm/v1/login/oidc/callback?code=c&state={}", field("state"));
        let answer = self.house.client(&address).get(path).header("cookie", cookie).send().await.unwrap();
        let status = answer.status().as_u16();
        let session = answer.headers().get_all("set-cookie").iter().find_map(|line| {
            let line = line.to_str().unwrap().strip_prefix("__Host-gvm_session=")?;
            Some(line.split(';').next().unwrap().to_owned())
        });
        let text = answer.text().await.unwrap();
        let mut body: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        if let Some(body) = body.as_object_mut() {
            body.remove("request_id");
        }
        (status, body, session)
    }

    async fn login_as(&self, change: Value) -> (u16, Value, Option<String>) {
        self.login(|nonce| json!({"id_token": self.key.token(Some("k1"), &self.claims(nonce, &change))})).await
    }

    /// Who that is in gvm.
    async fn name_of(&self, change: Value) -> String {
        let (status, body, session) = self.login_as(change.clone()).await;
        assert_eq!(status, 200, "{change}: {body}");
        self.house.me(&session.unwrap()).await.1["name"].as_str().unwrap().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_token_for_us_now_by_the_providers_key_is_believed() {
    let scene = Scene::new(|_| {}).await;
    let (rsa, ed, stranger) = (Key::rsa(), Key::ed(), Key::ec());
    scene.forger.set(|script| {
        script.keys.extend([
            rsa.jwk("rsa"),
            ed.jwk("ed"),
            json!({"kty": "oct", "kid": "oct", "k": "c2VjcmV0"}),
            json!(7),
        ]);
    });
    let key = &scene.key;
    for (signer, kid) in [(key, "k1"), (&rsa, "rsa"), (&ed, "ed")] {
        let made = scene.login(|nonce| json!({"id_token": signer.token(Some(kid), &scene.claims(nonce, &json!({})))}));
        let (status, body, session) = made.await;
        assert_eq!((status, session.is_some()), (200, true), "{kid}: {body}");
    }

    let now = Timestamp::now().as_second();
    let none = json!({});
    let mut refused = Vec::new();
    // By what it says.
    for (case, change) in [
        ("another issuer", json!({"iss": "http://127.0.0.1:1"})),
        ("another audience", json!({"aud": "other"})),
        ("one audience of several", json!({"aud": ["other", "gvm"]})),
        ("made for another", json!({"azp": "other"})),
        ("expired", json!({"exp": now - 61, "iat": now - 400})),
        ("of tomorrow: the host's clock stepped back", json!({"iat": now + 86_400, "exp": now + 90_000})),
        ("not valid yet", json!({"nbf": now + 300})),
        ("without an end", json!({"exp": null})),
        ("another nonce", json!({"nonce": "x"})),
        ("no nonce", json!({"nonce": null})),
        ("nobody", json!({"sub": ""})),
    ] {
        let (status, body, session) = scene.login_as(change).await;
        refused.push((case, status, body, session));
    }
    // By how it is signed.
    let shared = |secret: Vec<u8>| Key::Shared(secret);
    let jwk = key.jwk("k1");
    let mut head = json!({"alg": "ES256", "kid": "mine", "jwk": stranger.jwk("mine")});
    head["jku"] = json!("http://127.0.0.1:1/jwks");
    for (case, signer, head) in [
        ("alg none", &Key::Nothing, json!({"alg": "none", "kid": "k1"})),
        ("alg None", &Key::Nothing, json!({"alg": "None", "kid": "k1"})),
        ("HS256 with the public key", &shared(key.public()), json!({"alg": "HS256", "kid": "k1"})),
        ("HS256 with the RSA key", &shared(rsa.public()), json!({"alg": "HS256", "kid": "rsa"})),
        ("HS256 with the listed key", &shared(jwk.to_string().into_bytes()), json!({"alg": "HS256", "kid": "k1"})),
        ("HS256 with a listed secret", &shared(b"secret".to_vec()), json!({"alg": "HS256", "kid": "oct"})),
        ("another's key under the name of ours", &stranger, json!({"alg": "ES256", "kid": "k1"})),
        ("a key of its own in the head", &stranger, head),
        ("an unknown key", &stranger, json!({"alg": "ES256", "kid": "k9"})),
        ("another algorithm than the key's", key, json!({"alg": "ES384", "kid": "k1"})),
        ("RS256 over a key of curves", key, json!({"alg": "RS256", "kid": "k1"})),
        ("critical words", key, json!({"alg": "ES256", "kid": "k1", "crit": ["exp"], "exp": 1})),
        ("an access token", key, json!({"alg": "ES256", "kid": "k1", "typ": "at+jwt"})),
        ("without an algorithm", key, json!({"kid": "k1"})),
    ] {
        let made = scene.login(|nonce| json!({"id_token": signer.token_with(&head, &scene.claims(nonce, &none))}));
        let (status, body, session) = made.await;
        refused.push((case, status, body, session));
    }
    // By its form.
    for (case, change) in [
        ("cut", (|token: String| token[..token.len() - 4].to_owned()) as fn(String) -> String),
        ("two parts", |token| token.rsplit_once('.').unwrap().0.to_owned()),
        ("four parts", |token| format!("{token}.x")),
        ("changed", |token| token.replacen('.', ".e", 1)),
        ("huge", |token| format!("{token}{}", "A".repeat(80_000))),
        ("empty", |_| String::new()),
    ] {
        let made = scene.login(|nonce| json!({"id_token": change(key.token(Some("k1"), &scene.claims(nonce, &none)))}));
        let (status, body, session) = made.await;
        refused.push((case, status, body, session));
    }
    // By what came with it.
    let (status, body, session) = scene
        .login(|nonce| {
            let claims = scene.claims(nonce, &json!({"at_hash": "77QmUPtjPfzWtF2AnpK9RQ"}));
            json!({"id_token": key.token(Some("k1"), &claims), "access_token": "another"})
        })
        .await;
    refused.push(("another access token", status, body, session));
    let (status, body, session) = scene.login(|_| json!({"access_token": "x"})).await;
    refused.push(("no ID token", status, body, session));

    assert!(refused.len() >= 33, "{}", refused.len());
    let (_, _, first, _) = refused[0].clone();
    for (case, status, body, session) in refused {
        // One answer for all, and nothing of the reason in it.
        assert_eq!((status, &body, session), (401, &first, None), "{case}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn new_keys_are_followed_and_forged_ones_make_no_flood() {
    let scene = Scene::new(|_| {}).await;
    assert_eq!(scene.login_as(json!({})).await.0, 200);
    assert_eq!(scene.forger.asked("jwks"), 1);
    let second = Key::ec();
    scene.forger.set(|script| script.keys = vec![second.jwk("k2")]);
    let made = scene.login(|nonce| json!({"id_token": second.token(Some("k2"), &scene.claims(nonce, &json!({})))}));
    assert_eq!(made.await.0, 200, "a key that is new is asked for at once");
    assert_eq!(scene.login_as(json!({})).await.0, 401, "the old one is good no more");
    for number in 0..12 {
        let made = scene.login(
            |nonce| json!({"id_token": Key::ec().token(Some(&format!("x{number}")), &scene.claims(nonce, &json!({})))}),
        );
        assert_eq!(made.await.0, 401);
    }
    assert!(scene.forger.asked("jwks") <= 5, "{}", scene.forger.asked("jwks"));
    let made = scene.login(|nonce| json!({"id_token": second.token(Some("k2"), &scene.claims(nonce, &json!({})))}));
    assert_eq!(made.await.0, 200, "who has a good one is not held up");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_is_slow_or_odd_is_unavailable_within_its_time() {
    for (case, description) in [
        ("another issuer", json!({"issuer": "http://127.0.0.1:1"})),
        ("a slash more", json!({"issuer": "SLASH"})),
        ("tokens in the clear", json!({"token_endpoint": "http://op.example/token"})),
        ("keys in the clear", json!({"jwks_uri": "http://127.0.0.1@op.example/jwks"})),
        ("no address", json!({"authorization_endpoint": 7})),
    ] {
        let scene = Scene::new(|_| {}).await;
        let slash = format!("{}/", scene.forger.issuer);
        let text = description.to_string().replace("SLASH", &slash);
        scene.forger.set(|script| script.description = serde_json::from_str(&text).unwrap());
        let (status, body, _) = scene.login_as(json!({})).await;
        assert_eq!((status, &body["code"]), (503, &json!("unavailable")), "{case}: {body}");
    }
    let scene = Scene::new(|_| {}).await;
    for (case, status, token) in
        [("a page", 500, json!("<html>")), ("no reason", 400, json!([])), ("elsewhere", 302, json!({}))]
    {
        assert_eq!(scene.login_answered(|_| (status, token)).await.0, 503, "{case}");
    }
    assert_eq!(scene.login_answered(|_| (400, json!({"error": "invalid_grant"}))).await.0, 401, "that is a no");
    scene.forger.set(|script| script.keys = (0..9000).map(|n| scene.key.jwk(&n.to_string())).collect());
    assert_eq!(scene.login_as(json!({})).await.0, 503, "more keys than can be meant");
    scene.forger.set(|script| script.delay = Duration::from_secs(60));
    let begun = std::time::Instant::now();
    assert_eq!(scene.login_as(json!({})).await.0, 503);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn names_never_collide_and_nobody_is_taken_over() {
    let scene = Scene::new(|_| {}).await;
    let long = "a".repeat(200);
    let mut names = std::collections::BTreeMap::new();
    for (number, text) in [
        "José.Núñez@uni.example",
        "ANNA",
        "anna",
        "李雷",
        "-rf",
        "..",
        "a/b",
        &long,
        "root",
        "anna ",
        "\u{202e}anna",
        "daemon",
        "admin",
        "eve",
    ]
    .into_iter()
    .enumerate()
    {
        let who = json!({"sub": format!("s{number}"), "preferred_username": text});
        let name = scene.name_of(who.clone()).await;
        assert_eq!(scene.name_of(who).await, name, "{text}: the same person again");
        assert!(name.parse::<gvm::model::name::UserName>().is_ok());
        assert!(names.insert(name.clone(), text).is_none(), "{text}: {name} is taken");
    }
    assert_eq!(names.get("anna"), Some(&"anna"));
    // eve has an account on this host and was here before; daemon is a login of the host that was never seen.
    assert!(!names.contains_key("eve") && !names.contains_key("daemon") && !names.contains_key("root"), "{names:?}");
    let renamed = scene.name_of(json!({"sub": "s2", "preferred_username": "bob"})).await;
    assert_eq!(renamed, "anna", "another name there changes nothing here");
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_decide_who_comes_in_as_what_at_each_login() {
    let scene = Scene::new(|config| {
        let groups = &mut config.login.groups;
        groups.allowed = vec!["staff".to_owned()];
        groups.teachers = vec!["teachers".to_owned()];
        groups.teams = [("ml".to_owned(), "ml".parse().unwrap())].into();
    });
    let scene = scene.await;
    let store = &scene.house.life.store;
    let team = teams::TeamRow::new("ml".parse().unwrap(), String::new(), Timestamp::now());
    let mut tx = store.write().await.unwrap();
    teams::insert(&mut tx, &team).await.unwrap();
    commit(tx).await.unwrap();

    let (status, body, _) = scene.login_as(json!({"groups": ["students"]})).await;
    assert_eq!((status, &body["code"]), (403, &json!("denied")));
    assert!(store.user_by_name(&"anna".parse().unwrap()).await.unwrap().is_none(), "nobody was made");

    assert_eq!(scene.login_as(json!({"groups": ["staff", "teachers", "ml"]})).await.0, 200);
    let anna = store.user_by_name(&"anna".parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(anna.role, Role::Teacher);
    assert_eq!(store.teams_of(anna.id).await.unwrap(), vec![team.id]);
    assert_eq!(scene.login_as(json!({"groups": "staff"})).await.0, 200);
    let anna = store.user_by_name(&"anna".parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(anna.role, Role::Member, "who leaves a group is less with the next login");
    assert_eq!(store.teams_of(anna.id).await.unwrap(), vec![]);

    let mut tx = store.write().await.unwrap();
    let mut row = users::read(&mut tx, anna.id).await.unwrap().unwrap();
    row.suspended = Some(gvm::model::principal::Suspension { at: Timestamp::now(), why: "left".to_owned() });
    users::update(&mut tx, &row).await.unwrap();
    commit(tx).await.unwrap();
    let (status, body, session) = scene.login_as(json!({"groups": ["staff"]})).await;
    assert_eq!((status, session), (403, None));
    assert!(body["message"].as_str().unwrap().contains("suspended"), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_leave_to_add_members_only_who_is_linked_comes_in() {
    let scene = Scene::new(|config| {
        config.login.add_members = false;
        config.login.oidc.as_mut().unwrap().allowed_domains = vec!["uni.example".to_owned()];
    });
    let scene = scene.await;
    let mail = json!({"email": "anna@uni.example", "email_verified": true});
    let (status, body, _) = scene.login_as(mail.clone()).await;
    assert_eq!((status, &body["code"]), (403, &json!("denied")));
    let store = &scene.house.life.store;
    let eve = store.user_by_name(&"eve".parse().unwrap()).await.unwrap().unwrap();
    let root = User { role: Role::Admin, ..eve.clone() };
    let permit = policy::allow_user(&Principal::of(root), Action::UserChange, Some((eve.id, &[])), "eve").unwrap();
    let manager = &scene.house.life.manager;
    manager.link_login(&permit, Provider::Oidc, "s-1").await.unwrap();
    assert_eq!(manager.link_login(&permit, Provider::Oidc, "s-1").await.unwrap_err().kind, Kind::Conflict);
    assert_eq!(manager.link_login(&permit, Provider::Ldap, "uid=eve").await.unwrap_err().kind, Kind::NotFound);
    assert_eq!(scene.name_of(mail).await, "eve");
    for bad in [
        json!({"email": "anna@evil.example", "email_verified": true}),
        json!({"email": "anna@uni.example", "email_verified": false}),
        json!({"email": "anna@uni.example@evil.example", "email_verified": true}),
        json!({}),
    ] {
        assert_eq!(scene.login_as(bad.clone()).await.0, 401, "{bad}");
    }
}
