//! Every way into gvm by every kind of caller, against the policy's table.
//!
//! ```text
//!   routes (the table of them) x callers --> walk: each over its own socket, or HTTPS with a token
//!   consoles, SSH by key and certificate --> ways
//!              \-- policy::allow, allow_vm, allow_user, allow_team: what must come of it
//! ```

mod alike;
mod cast;
mod faults;
mod routes;
mod walk;
mod ways;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Extension;
use axum::extract::ConnectInfo;
use gvm::api::server::https::Https;
use gvm::api::server::tls::Certificates;
use gvm::api::server::{self, Peer};
use gvm::auth::peercred::Peers;
use gvm::config::Config;
use gvm::model::principal::Origin;
use jiff::Timestamp;
use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::cast::{ADMIN, CALLERS, Caller, ELSEWHERE, MATE, OPERATOR, SUSPENDED, TEACHER};
pub(super) use self::cast::{GATEWAY, OWNER, STRANGER, login};
use crate::support::served::make_token;
use crate::support::world::{Life, World, eventually};

/// The team of owner, mate and teacher.
const CREW: &str = "crew";
/// A public key whose last letters are to be replaced.
const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdZ0vJtYXQ0ZXJvZnRlc3RzYW5kbm90aGluZ2Vs";

/// The public key of that number, under 100.
fn key(number: usize) -> String {
    format!("{KEY}c2{number:02}")
}

/// A manager that talks to everybody: to each account over a socket of its own, and over HTTPS.
pub(super) struct House {
    pub(super) world: World,
    life: Life,
    peers: Peers,
    url: String,
    clients: HashMap<Caller, Client>,
    tokens: HashMap<Caller, String>,
    dir: tempfile::TempDir,
    count: AtomicU32,
    _stop: DropGuard,
}

impl House {
    /// Machines stay as they were made: nothing drives them.
    pub(super) async fn new() -> Self {
        Self::with(|_| {}, false).await
    }

    /// With other settings; where it is running, machines are.
    async fn with(edit: impl FnOnce(&mut Config), is_running: bool) -> Self {
        let mut world = World::new();
        let config = &mut world.config;
        config.people.operators = vec![login(OPERATOR)];
        config.gateway.user = login(GATEWAY);
        config.gateway.user_ca = vec!["/nonexistent/ca.pub".into()];
        // Tests ask faster than people.
        config.manager.requests_per_second = 100_000;
        (config.https.requests_per_second, config.https.person_requests_per_second) = (100_000, 100_000);
        edit(config);
        let life = if is_running { world.live_running().await } else { world.live().await };
        let (peers, dir) = (Peers::new(&world.config), tempfile::tempdir().unwrap());
        let mut clients = HashMap::new();
        for caller in CALLERS {
            let builder = Client::builder().no_proxy();
            let client = if let Caller::Account(uid) = caller {
                let socket = dir.path().join(uid.to_string());
                let router = server::router(life.manager.clone(), peers.clone());
                let router = router.layer(Extension(ConnectInfo(Peer::of_uid(uid))));
                let listener = UnixListener::bind(&socket).unwrap();
                tokio::spawn(async move { axum::serve(listener, router).await });
                builder.unix_socket(socket)
            } else {
                // A WebSocket is one of HTTP/1.1.
                builder.tls_danger_accept_invalid_certs(true).http1_only()
            };
            clients.insert(caller, client.build().unwrap());
        }
        let stop = CancellationToken::new();
        let url = serve(&world, &life, &peers, stop.clone()).await;
        let (tokens, count) = (HashMap::new(), AtomicU32::new(0));
        let mut house = Self { world, life, peers, url, clients, tokens, dir, count, _stop: stop.drop_guard() };
        house.settle_in().await;
        house
    }

    /// Everybody comes once, and gets their role, team and token.
    async fn settle_in(&mut self) {
        for person in [ADMIN, OWNER, MATE, TEACHER, ELSEWHERE, STRANGER, OPERATOR, SUSPENDED] {
            self.ok(person, "GET", "/v1/me", &Value::Null).await;
        }
        for (team, members) in [(CREW, &[OWNER, MATE, TEACHER][..]), ("others", &[ELSEWHERE])] {
            self.team(team, members).await;
        }
        for teacher in [TEACHER, ELSEWHERE] {
            self.ok(ADMIN, "PATCH", &format!("/v1/users/{}", login(teacher)), &json!({"role": "teacher"})).await;
        }
        let kept = json!({"profile": "firmware", "name": "kept", "is_stopped": true});
        self.ok(SUSPENDED, "POST", "/v1/vms", &kept).await;
        let why = json!({"why": "unpaid"});
        self.ok(ADMIN, "POST", &format!("/v1/users/{}/suspend", login(SUSPENDED)), &why).await;
        let admin = self.principal(ADMIN).await.unwrap();
        for caller in CALLERS {
            if let Caller::Token(scope) = caller {
                let made = make_token(&self.life, &admin, scope.as_str(), Some([scope].into_iter().collect())).await;
                self.tokens.insert(caller, made.text.secret().expose().clone());
            }
        }
    }

    /// Who the manager takes a caller for; else the status that it answers.
    async fn principal(&self, caller: Caller) -> Result<gvm::model::principal::Principal, u16> {
        match caller {
            Caller::Nobody => Err(401),
            Caller::Account(uid) => {
                let account = self.peers.account(uid).await.map_err(|_| 403_u16)?;
                self.life.manager.recognise(account).await.map_err(|_| 403)
            }
            Caller::Token(_) => {
                let (token, origin) = (&self.tokens[&caller], Origin::internal());
                let login = self.life.manager.principal_of_token(token, Timestamp::now(), origin).await;
                login.map(|login| login.principal).map_err(|_| 401)
            }
        }
    }

    fn request(&self, caller: Caller, method: &str, path: &str, body: &Value) -> RequestBuilder {
        let base = if matches!(caller, Caller::Account(_)) { "http://gvm" } else { &self.url };
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = self.clients[&caller].request(method, format!("{base}{path}"));
        let request = if path.contains("/console") { as_websocket(request) } else { request };
        let request = match self.tokens.get(&caller) {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        if body.is_null() { request } else { request.json(body) }
    }

    pub(super) async fn ask(&self, caller: Caller, method: &str, path: &str, body: &Value) -> Response {
        self.request(caller, method, path, body).send().await.unwrap()
    }

    /// The body of a request that is granted.
    async fn ok(&self, caller: Caller, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.ask(caller, method, path, body).await;
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        assert!(status.is_success(), "{caller:?} {method} {path}: {status} {text}");
        serde_json::from_str(&text).unwrap()
    }

    fn name(&self) -> String {
        format!("m{}", self.count.fetch_add(1, Ordering::Relaxed))
    }

    /// A machine of that caller's, for that team.
    async fn machine(&self, owner: Caller, name: &str, team: Option<&str>) -> String {
        self.ok(owner, "POST", "/v1/vms", &json!({"profile": "firmware", "name": name, "team": team})).await;
        format!("{name}.{}", login(owner))
    }

    /// The same, once it runs.
    async fn running(&self, owner: Caller, name: &str, team: Option<&str>) -> String {
        let vm = self.machine(owner, name, team).await;
        let path = format!("/v1/vms/{vm}");
        eventually("it runs", || async { self.ok(owner, "GET", &path, &Value::Null).await["state"] == "running" })
            .await;
        vm
    }

    async fn team(&self, name: &str, members: &[Caller]) {
        self.ok(ADMIN, "POST", "/v1/teams", &json!({"name": name})).await;
        for member in members {
            self.ok(ADMIN, "PUT", &format!("/v1/teams/{name}/members/{}", login(*member)), &Value::Null).await;
        }
    }
}

/// Answers over HTTPS as well; gives the address.
async fn serve(world: &World, life: &Life, peers: &Peers, stop: CancellationToken) -> String {
    let config = &world.config;
    let certificates = Certificates::open(&config.https, &config.manager.state_dir, &config.gateway.host);
    let certificates = Arc::new(certificates.unwrap());
    let https = Https::bind(&config.https, "127.0.0.1:0".parse().unwrap(), certificates.clone()).await.unwrap();
    let url = format!("https://localhost:{}", https.address().port());
    let router = server::router_with(life.manager.clone(), peers.clone(), Some(certificates));
    tokio::spawn(https.serve(router, stop));
    url
}

fn as_websocket(request: RequestBuilder) -> RequestBuilder {
    request
        .header("connection", "upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
}

/// An error's body without what differs in every answer.
pub(super) async fn refusal(answer: Response) -> (u16, String, String) {
    let status = answer.status().as_u16();
    let kind = answer.headers()["content-type"].to_str().unwrap().to_owned();
    let text = answer.text().await.unwrap();
    let mut body: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let id = body.as_object_mut().unwrap().remove("request_id");
    assert!(id.is_some_and(|id| id.is_string()), "{text}");
    (status, kind, body.to_string())
}
