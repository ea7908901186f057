//! Every operation of the API by every kind of caller, over HTTP on a real socket, against the policy's table.
//!
//! ```text
//!   route x caller --HTTP--> router --> manager on a fake hypervisor, real database
//!         \------ policy::allow, policy::allow_vm ------> what must come of it
//! ```

use std::collections::BTreeSet;

use axum::Extension;
use axum::extract::ConnectInfo;
use gvm::api::error::{ErrorBody, ErrorCode};
use gvm::api::server::{self, Peer};
use gvm::auth::peercred::{Account, Peers};
use gvm::auth::policy::{self, Action, Denied};
use gvm::model::id::VmId;
use gvm::model::principal::Principal;
use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::net::UnixListener;

use super::openapi;
use crate::support::world::{Life, World};

/// Accounts that every Linux has, so that the real look-up of logins is used. The first four are people.
pub(super) const OWNER: u32 = 1;
pub(super) const OTHER: u32 = 2;
const ADMIN: u32 = 3;
const OPERATOR: u32 = 4;
pub(super) const GATEWAY: u32 = 5;
/// A number that no account has.
const NOBODY: u32 = 4_000_000_000;

const CALLERS: [u32; 6] = [OWNER, OTHER, OPERATOR, ADMIN, GATEWAY, NOBODY];

/// What a route asks the policy.
#[derive(Clone, Copy, Debug)]
enum Ask {
    /// Nothing: it is for who is not known yet.
    Anybody,
    /// Only that the caller is somebody.
    Known,
    /// About nobody's or the caller's own things.
    Own(Action),
    /// About the machine in the path.
    Vm(Action),
    /// About the person in the path, who has nothing to do with any caller.
    User(Action),
    /// About the team in the path, in which no caller is.
    Team(Action),
}

struct Route {
    method: &'static str,
    /// As the document has it, perhaps with a query.
    path: &'static str,
    body: Value,
    ask: Ask,
    /// The answer to who may: often a refusal of another kind, because the thing is in no state for it.
    answer: u16,
}

fn route(method: &'static str, path: &'static str, body: Value, ask: Ask, answer: u16) -> Route {
    Route { method, path, body, ask, answer }
}

/// All routes. A new operation of the API fails a test below until it has its line here.
fn routes() -> Vec<Route> {
    use Action as A;
    use Ask::{Anybody, Known, Own, Team, User, Vm};
    let none = || Value::Null;
    let key = json!({"public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdZ0vJtYXQ0ZXJvZnRlc3RzYW5kbm90aGluZ2Vsc2Uh"});
    let target = json!({"public_key": key["public_key"], "vm": "dev", "mode": "jump", "peer": "192.0.2.1"});
    vec![
        route("GET", "/v1/vms", none(), Own(A::VmSee), 200),
        route("GET", "/v1/vms?all=true", none(), Own(A::VmSeeAll), 200),
        route("POST", "/v1/vms", json!({"profile": "firmware", "is_stopped": true}), Own(A::VmCreate), 202),
        route("GET", "/v1/vms/{vm}", none(), Vm(A::VmSee), 200),
        route("PATCH", "/v1/vms/{vm}", json!({"add_tags": ["x"]}), Vm(A::VmChange), 202),
        route("DELETE", "/v1/vms/{vm}", none(), Vm(A::VmDelete), 202),
        route("POST", "/v1/vms/{vm}/start", none(), Vm(A::VmPower), 202),
        route("POST", "/v1/vms/{vm}/stop", json!({}), Vm(A::VmPower), 202),
        route("POST", "/v1/vms/{vm}/restart", json!({}), Vm(A::VmPower), 202),
        route("POST", "/v1/vms/{vm}/pause", none(), Vm(A::VmPower), 409),
        route("POST", "/v1/vms/{vm}/resume", none(), Vm(A::VmPower), 409),
        route("POST", "/v1/vms/{vm}/undelete", none(), Vm(A::VmDelete), 409),
        route("POST", "/v1/vms/{vm}/clone", json!({"name": "copy"}), Vm(A::VmChange), 409),
        route("GET", "/v1/vms/{vm}/ssh", none(), Vm(A::VmSsh), 200),
        route("GET", "/v1/vms/{vm}/events", none(), Vm(A::VmSee), 200),
        route("GET", "/v1/events", none(), Own(A::VmSee), 200),
        route("GET", "/v1/vms/{vm}/logs", none(), Vm(A::VmSee), 200),
        route("GET", "/v1/vms/{vm}/console", none(), Vm(A::VmConsole), 409),
        route("GET", "/v1/vms/{vm}/console?mode=read", none(), Vm(A::VmSee), 409),
        route("GET", "/v1/profiles", none(), Own(A::ProfileSee), 200),
        route("GET", "/v1/profiles/{profile}", none(), Own(A::ProfileSee), 200),
        route("POST", "/v1/profiles/{profile}/check", json!({}), Own(A::ProfileCheck), 200),
        route("GET", "/v1/images", none(), Own(A::ImageSee), 200),
        route("POST", "/v1/images", json!({"path": "/nonexistent/x", "name": "x"}), Own(A::ImageChange), 404),
        route("DELETE", "/v1/images/{image}", none(), Own(A::ImageChange), 404),
        route("GET", "/v1/gpus", none(), Own(A::GpuSee), 200),
        route("GET", "/v1/gpus/{gpu}", none(), Own(A::GpuSee), 404),
        route("GET", "/v1/offers", none(), Own(A::GpuSee), 200),
        route("POST", "/v1/gpu-layout", json!({"text": "version: v2"}), Own(A::GpuChange), 400),
        route("GET", "/v1/gpu-layout", none(), Own(A::GpuSee), 200),
        route("GET", "/v1/gpu-plan", none(), Own(A::GpuSee), 200),
        route("POST", "/v1/dry-run", json!({"profile": "firmware"}), Own(A::VmCreate), 200),
        route("POST", "/v1/gpus/{gpu}/mode", json!({"mode": "host"}), Own(A::GpuChange), 404),
        route("POST", "/v1/gpus/{gpu}/withhold", json!({"why": "fan"}), Own(A::GpuChange), 404),
        route("POST", "/v1/gpus/{gpu}/readmit", json!({}), Own(A::GpuChange), 404),
        route("GET", "/v1/login", none(), Anybody, 200),
        // No provider is configured here.
        route("POST", "/v1/users/{user}/logins", json!({"provider": "oidc", "subject": "x"}), User(A::UserChange), 404),
        route("POST", "/v1/login/password", json!({"user": "x", "password": "x"}), Anybody, 404),
        route("POST", "/v1/login/device", none(), Anybody, 404),
        route("POST", "/v1/login/device/poll", json!({"handle": "x"}), Anybody, 404),
        route("GET", "/v1/login/oidc/start", none(), Anybody, 404),
        route("GET", "/v1/login/oidc/callback", none(), Anybody, 404),
        route("GET", "/v1/me", none(), Known, 200),
        route("GET", "/v1/keys", none(), Own(A::KeyOwn), 200),
        route("POST", "/v1/keys", json!({"public_key": "ssh-dss AAAA"}), Own(A::KeyOwn), 400),
        route("DELETE", "/v1/keys/{key}", none(), Own(A::KeyOwn), 404),
        route("GET", "/v1/tokens", none(), Own(A::TokenChange), 200),
        route("POST", "/v1/tokens", json!({"name": "a b"}), Own(A::TokenChange), 400),
        route("DELETE", "/v1/tokens/{token}", none(), Own(A::TokenChange), 404),
        route("GET", "/v1/users", none(), Own(A::UserSeeAll), 200),
        route("POST", "/v1/users", json!({"name": "root"}), Own(A::UserChange), 400),
        route("POST", "/v1/user-import", json!({"users": []}), Own(A::UserChange), 200),
        route("GET", "/v1/users/{user}", none(), User(A::UserSee), 200),
        route("PATCH", "/v1/users/{user}", json!({"full_name": "P"}), User(A::UserChange), 200),
        route("DELETE", "/v1/users/{user}", none(), User(A::UserChange), 200),
        route("POST", "/v1/users/{user}/suspend", json!({"why": "left"}), User(A::UserChange), 200),
        route("POST", "/v1/users/{user}/resume", none(), User(A::UserChange), 409),
        route("GET", "/v1/users/{user}/keys", none(), User(A::UserChange), 200),
        route("POST", "/v1/users/{user}/keys", json!({"public_key": "ssh-dss AAAA"}), User(A::UserChange), 400),
        route("DELETE", "/v1/users/{user}/keys/{key}", none(), User(A::UserChange), 404),
        route("GET", "/v1/teams", none(), Own(A::TeamSee), 200),
        route("POST", "/v1/teams", json!({"name": "none"}), Own(A::TeamChange), 400),
        route("GET", "/v1/teams/{team}", none(), Team(A::TeamSee), 200),
        route("PATCH", "/v1/teams/{team}", json!({"description": "T"}), Team(A::TeamChange), 200),
        route("DELETE", "/v1/teams/{team}", none(), Team(A::TeamChange), 200),
        route("GET", "/v1/teams/{team}/members", none(), Team(A::TeamSee), 200),
        route("PUT", "/v1/teams/{team}/members/{user}", none(), Team(A::TeamChange), 200),
        route("DELETE", "/v1/teams/{team}/members/{user}", none(), Team(A::TeamChange), 409),
        route("GET", "/v1/quota", none(), Own(A::QuotaSee), 200),
        route("GET", "/v1/users/{user}/quota", none(), User(A::QuotaSee), 200),
        route("PATCH", "/v1/users/{user}/quota", json!({"limits": {"vms": "3"}}), User(A::UserChange), 200),
        route("GET", "/v1/teams/{team}/quota", none(), Team(A::QuotaSee), 200),
        route("PATCH", "/v1/teams/{team}/quota", json!({"limits": {"gpus": null}}), Team(A::TeamChange), 200),
        route("GET", "/v1/gateway", none(), Known, 200),
        route("POST", "/v1/gateway/identify", key, Own(A::GatewayAsk), 404),
        route("POST", "/v1/gateway/target", target, Own(A::GatewayAsk), 404),
        route("POST", "/v1/gateway/announce", json!({"host_keys": [], "port": 2222}), Own(A::GatewayAsk), 200),
        route("GET", "/v1/gateway/revocations", none(), Own(A::GatewayAsk), 200),
        route("GET", "/v1/operations", none(), Own(A::AuditSee), 200),
        route("GET", "/v1/operations/{id}", none(), Own(A::AuditSee), 404),
        route("GET", "/v1/audit", none(), Own(A::AuditSee), 200),
        route("GET", "/v1/audit/export", none(), Own(A::AuditSeeAll), 200),
        route("GET", "/v1/audit/head", none(), Own(A::AuditVerify), 200),
        route("POST", "/v1/audit/verify", json!({}), Own(A::AuditVerify), 200),
        route("GET", "/v1/doctor", none(), Own(A::Doctor), 200),
        route("GET", "/v1/backup", none(), Own(A::Backup), 200),
        route("GET", "/v1/version", none(), Known, 200),
    ]
}

impl Route {
    /// The path of a request about this machine, person or team.
    fn path_for(&self, vm: &str) -> String {
        self.path
            .replace("{vm}", vm)
            .replace("{profile}", "firmware")
            .replace("{image}", "none")
            .replace("{gpu}", "0000:41:00.0")
            .replace("{key}", "SHA256:none")
            .replace("{token}", "none")
            .replace("{id}", &VmId::generate().to_string())
            .replace("{user}", vm)
            .replace("{team}", vm)
    }

    /// True where the path names a machine, a person or a team.
    fn is_about_one(&self) -> bool {
        matches!(self.ask, Ask::Vm(_) | Ask::User(_) | Ask::Team(_))
    }
}

pub(super) fn login(uid: u32) -> String {
    nix::unistd::User::from_uid(uid.into()).unwrap().unwrap_or_else(|| panic!("uid {uid} has no account here")).name
}

/// A manager that talks to everybody, each over a socket of their own.
pub(super) struct House {
    pub(super) world: World,
    life: Life,
    peers: Peers,
    dir: tempfile::TempDir,
}

impl House {
    pub(super) async fn new() -> Self {
        let mut world = World::new();
        world.config.people.admins = vec![login(ADMIN)];
        world.config.people.operators = vec![login(OPERATOR)];
        world.config.gateway.user = login(GATEWAY);
        let life = world.live().await;
        let peers = Peers::new(&world.config);
        let dir = tempfile::tempdir().unwrap();
        for uid in CALLERS {
            let listener = UnixListener::bind(dir.path().join(uid.to_string())).unwrap();
            let router = server::router(life.manager.clone(), peers.clone());
            let router = router.layer(Extension(ConnectInfo(Peer::of_uid(uid))));
            tokio::spawn(async move { axum::serve(listener, router).await });
        }
        Self { world, life, peers, dir }
    }

    async fn principal(&self, uid: u32) -> Option<Principal> {
        let account = self.peers.account(uid).await.ok()?;
        Some(self.life.manager.recognise(account).await.unwrap())
    }

    fn request(&self, uid: u32, method: &str, path: &str, body: &Value) -> RequestBuilder {
        let http = Client::builder().unix_socket(self.dir.path().join(uid.to_string())).no_proxy().build().unwrap();
        let request = http.request(Method::from_bytes(method.as_bytes()).unwrap(), format!("http://gvm{path}"));
        let request = if path.contains("/console") { as_websocket(request) } else { request };
        if body.is_null() { request } else { request.json(body) }
    }

    pub(super) async fn ask(&self, uid: u32, method: &str, path: &str, body: &Value) -> Response {
        self.request(uid, method, path, body).send().await.unwrap()
    }

    /// A machine of the owner.
    async fn machine(&self, name: &str) -> String {
        let body = json!({"profile": "firmware", "name": name});
        let answer = self.ask(OWNER, "POST", "/v1/vms", &body).await;
        assert_eq!(answer.status().as_u16(), 202, "{}", answer.text().await.unwrap());
        format!("{name}.{}", login(OWNER))
    }

    /// What a route is about: a new machine of the owner, or a new person and a team, both of that name.
    async fn subject(&self, route: &Route, name: &str) -> String {
        if matches!(route.ask, Ask::Vm(_)) {
            return self.machine(name).await;
        }
        for path in ["/v1/users", "/v1/teams"] {
            let answer = self.ask(ADMIN, "POST", path, &json!({"name": name})).await;
            assert_eq!(answer.status().as_u16(), 200, "{}", answer.text().await.unwrap());
        }
        name.to_owned()
    }

    /// What must come of a request: who may gets the route's answer.
    async fn expected(&self, route: &Route, uid: u32, vm: &str) -> u16 {
        if matches!(route.ask, Ask::Anybody) {
            return route.answer;
        }
        let Some(principal) = self.principal(uid).await else { return 403 };
        let verdict = match route.ask {
            Ask::Anybody | Ask::Known => return route.answer,
            Ask::Own(action) => policy::allow(&principal, action),
            Ask::Vm(action) => {
                let id = self.owners_machine(vm).await;
                let row = self.life.store.vm(id).await.unwrap();
                policy::allow_vm(&principal, action, row.as_ref(), vm)
            }
            Ask::User(action) => {
                let user = self.life.store.user_by_name(&vm.parse().unwrap()).await.unwrap().unwrap();
                policy::allow_user(&principal, action, Some((user.id, &[])), vm)
            }
            Ask::Team(action) => {
                let team = self.life.store.team_by_name(&vm.parse().unwrap()).await.unwrap().unwrap();
                policy::allow_team(&principal, action, Some(team.id), vm)
            }
        };
        match verdict {
            Ok(_) => route.answer,
            Err(Denied::NotAllowed { .. }) => 403,
            Err(Denied::NotFound { .. }) => 404,
        }
    }

    async fn owners_machine(&self, vm: &str) -> VmId {
        let answer = self.ask(OWNER, "GET", &format!("/v1/vms/{vm}"), &Value::Null).await;
        answer.json::<Value>().await.unwrap()["id"].as_str().unwrap().parse().unwrap()
    }
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

#[test]
fn every_operation_of_the_api_is_in_the_table() {
    let document: Value = serde_json::from_str(&server::openapi()).unwrap();
    let there: BTreeSet<String> =
        openapi::operations(&document).into_iter().map(|(path, method, _)| format!("{method} {path}")).collect();
    let listed: BTreeSet<String> =
        routes().iter().map(|r| format!("{} {}", r.method, r.path.split('?').next().unwrap())).collect();
    assert_eq!(there, listed, "operations of the API and lines of this test's table");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_caller_gets_what_the_policy_says() {
    let house = House::new().await;
    let mut wrong = Vec::new();
    let mut count = 0;
    for route in routes() {
        for uid in CALLERS {
            count += 1;
            let name = format!("m{count}");
            let vm = if route.is_about_one() { house.subject(&route, &name).await } else { String::new() };
            let expected = house.expected(&route, uid, &vm).await;
            let answer = house.ask(uid, route.method, &route.path_for(&vm), &route.body).await;
            let got = answer.status().as_u16();
            if got != expected {
                wrong.push(format!("{} {} by uid {uid}: {got}, expected {expected}", route.method, route.path));
            }
            if got >= 400 {
                let body: ErrorBody = answer.json().await.unwrap();
                if body.code.status() != got {
                    wrong.push(format!("{} {}: code {:?} with status {got}", route.method, route.path, body.code));
                }
            }
            if matches!(route.ask, Ask::Vm(_)) {
                // Out of the way, so that lists and checks stay short.
                house.ask(OWNER, "DELETE", &format!("/v1/vms/{vm}?now=true"), &Value::Null).await;
            }
        }
    }
    super::none("callers", &wrong);
    assert!(count >= 37 * 6, "{count}");
}

#[tokio::test(flavor = "multi_thread")]
async fn not_yours_and_not_there_are_the_same_answer() {
    let house = House::new().await;
    for (number, route) in routes().into_iter().filter(Route::is_about_one).enumerate() {
        let (name, owner) = (format!("x{number}"), login(OWNER));
        let is_vm = matches!(route.ask, Ask::Vm(_));
        let path = route.path_for(&if is_vm { format!("{name}.{owner}") } else { name.clone() });
        let mut before = Vec::new();
        for uid in [OTHER, GATEWAY] {
            before.push(refusal(house.ask(uid, route.method, &path, &route.body).await).await);
        }
        house.subject(&route, &name).await;
        for (uid, before) in [OTHER, GATEWAY].into_iter().zip(before) {
            let after = refusal(house.ask(uid, route.method, &path, &route.body).await).await;
            assert_eq!(before, after, "{} {path} by uid {uid}", route.method);
            assert_eq!(after.0, 404, "{} {path} by uid {uid}", route.method);
        }
        if !is_vm {
            continue;
        }
        // By its id as well, which only its owner and operators can know.
        let id = house.owners_machine(&format!("{name}.{owner}")).await;
        let other = |id: VmId| {
            let path = route.path_for(&id.to_string());
            let request = house.request(OTHER, route.method, &path, &route.body);
            async move {
                let (status, kind, body) = refusal(request.send().await.unwrap()).await;
                (status, kind, body.replace(&id.to_string(), "ID"))
            }
        };
        assert_eq!(other(id).await, other(VmId::generate()).await, "{} {}", route.method, route.path);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_changes_are_on_the_record_of_who_tried() {
    let house = House::new().await;
    let vm = house.machine("dev").await;
    for route in routes().iter().filter(|route| route.method != "GET" && route.path.contains("{vm}")) {
        house.ask(OTHER, route.method, &route.path_for(&vm), &route.body).await;
        let rows: Value = house.ask(OTHER, "GET", "/v1/operations?limit=1", &Value::Null).await.json().await.unwrap();
        let row = &rows["operations"][0];
        let told = (row["actor"].as_str().unwrap(), row["outcome"].as_str().unwrap(), row["target"].as_str().unwrap());
        assert_eq!(told, (login(OTHER).as_str(), "denied", vm.as_str()), "{} {}", route.method, route.path);
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
    let http = Client::builder().unix_socket(house.dir.path().join(OWNER.to_string())).no_proxy().build().unwrap();
    let (status, _, text) = refusal(http.get("http://gvm/v1/vms/dev/console").send().await.unwrap()).await;
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
    assert!(matches!(house.peers.account(OWNER).await.unwrap(), Account::Person { uid: OWNER, .. }));
}
