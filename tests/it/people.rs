//! People, teams, and who is out of use: over the real API and the real command line, with a real database.

mod account;
mod life;
mod many;
mod names;
mod suspended;
mod teams;

use std::process::{Command, Stdio};

use axum::Extension;
use axum::extract::ConnectInfo;
use gvm::api::client::Client;
use gvm::api::server::{self, Peer};
use gvm::auth::peercred::{Account, Peers};
use gvm::config::Config;
use gvm::model::id::UserId;
use gvm::model::principal::{Principal, Role, User};
use serde_json::{Value, json};
use tokio::net::UnixListener;

use crate::support::world::{Life, World};

/// The host's root, who is always an administrator.
const ROOT: u32 = 0;
/// Accounts that every Linux has: daemon and bin.
const MEMBER: u32 = 1;
const OTHER: u32 = 2;

/// A manager that talks to several people, each over a socket of their own.
struct House {
    _world: World,
    life: Life,
    dir: tempfile::TempDir,
}

/// How a command ended.
#[derive(Debug)]
struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

impl House {
    async fn new() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(edit: impl FnOnce(&mut Config)) -> Self {
        let mut world = World::new();
        edit(&mut world.config);
        let life = world.live_running().await;
        let peers = Peers::new(&world.config);
        let dir = tempfile::tempdir().unwrap();
        for uid in [ROOT, MEMBER, OTHER] {
            let listener = UnixListener::bind(dir.path().join(uid.to_string())).unwrap();
            let router = server::router(life.manager.clone(), peers.clone());
            let router = router.layer(Extension(ConnectInfo(Peer::of_uid(uid))));
            tokio::spawn(async move { axum::serve(listener, router).await });
        }
        Self { _world: world, life, dir }
    }

    fn client(&self, uid: u32) -> Client {
        Client::new(&self.dir.path().join(uid.to_string())).unwrap()
    }

    /// Status and body of a request.
    async fn ask(&self, uid: u32, method: &str, path: &str, body: Value) -> (u16, Value) {
        let socket = self.dir.path().join(uid.to_string());
        let http = reqwest::Client::builder().unix_socket(socket).no_proxy().build().unwrap();
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let request = http.request(method, format!("http://gvm{path}"));
        let request = if body.is_null() { request } else { request.json(&body) };
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// The body of a request that is granted.
    #[track_caller]
    fn ok(&self, uid: u32, method: &str, path: &str, body: Value) -> impl Future<Output = Value> {
        let caller = std::panic::Location::caller();
        async move {
            let (status, body) = self.ask(uid, method, path, body).await;
            assert!((200..300).contains(&status), "{caller}: {status} {body}");
            body
        }
    }

    /// Adds somebody by hand.
    async fn add(&self, name: &str) -> User {
        self.ok(ROOT, "POST", "/v1/users", json!({"name": name})).await;
        self.user(name).await
    }

    async fn user(&self, name: &str) -> User {
        self.life.store.user_by_name(&name.parse().unwrap()).await.unwrap().unwrap()
    }

    /// A host's account asks over the socket.
    async fn seen(&self, uid: u32, name: &str) -> gvm::manager::Result<Principal> {
        let account = Account::Person { uid, name: name.parse().unwrap(), role: Role::Member };
        self.life.manager.recognise(account).await
    }

    async fn id_seen(&self, uid: u32, name: &str) -> UserId {
        self.seen(uid, name).await.unwrap().user().unwrap().id
    }

    /// The command line of one of them.
    async fn gvm(&self, uid: u32, args: &[&str]) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gvm"));
        command.args(args).env_clear().env("HOME", self.dir.path()).env("PATH", "/usr/bin:/bin").env("TZ", "UTC");
        command.env("GVM_SOCKET", self.dir.path().join(uid.to_string()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(self.dir.path().to_str().unwrap(), "<dir>");
        Ran { code: output.status.code().unwrap(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    /// The newest line of the record that root sees, as `actor action target outcome: detail`.
    async fn last_record(&self) -> String {
        let rows = self.ok(ROOT, "GET", "/v1/operations?limit=1", Value::Null).await;
        let row = &rows["operations"][0];
        let word = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        format!("{} {} {} {}: {}", word("actor"), word("action"), word("target"), word("outcome"), word("detail"))
    }
}

impl Ran {
    #[track_caller]
    fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}\n{}", self.stdout, self.stderr);
        self
    }

    /// Everything on one page, for snapshots.
    fn page(&self) -> String {
        format!("exit {}\n--- stdout\n{}--- stderr\n{}", self.code, self.stdout, self.stderr)
    }
}

/// A page without what differs from run to run: ids and times.
fn steady(page: &str) -> String {
    let today = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    let line = |line: &str| match (line.starts_with("Id "), line.find(&today)) {
        (true, _) => "Id  ID".to_owned(),
        // What follows a time is kept.
        (_, Some(at)) => format!("{}TODAY{}", &line[..at], &line[at + "2026-01-01 00:00:00 UTC".len()..]),
        _ => line.to_owned(),
    };
    page.lines().map(line).collect::<Vec<_>>().join("\n")
}
