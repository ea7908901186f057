//! A socket that answers with canned wire types: for what the command line shows and sends, never for the real
//! path from end to end.

use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts as _, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};

/// What one visit of a console does.
#[derive(Clone)]
pub enum Visit {
    /// Refused before the upgrade.
    Refuse(u16, &'static str),
    /// Says something, then sends back what it is sent.
    Echo(&'static str),
    /// Says something, then closes.
    Close(&'static str, u16, &'static str),
}

#[derive(Clone)]
enum Answer {
    Json(u16, Value),
    Text(String),
    Events(Vec<(u64, Value)>),
}

#[derive(Default)]
struct Canned {
    answers: HashMap<String, Vec<Answer>>,
    visits: Vec<Visit>,
    requests: Vec<String>,
}

type Shared = Arc<Mutex<Canned>>;

/// A socket with its answers, and a home folder for the command line.
pub struct Fake {
    dir: tempfile::TempDir,
    shared: Shared,
    runtime: Option<tokio::runtime::Runtime>,
}

/// How a command ended.
#[derive(Debug)]
#[must_use]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Fake {
    /// Listens, with a registered key and nothing else.
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("home")).unwrap();
        let mut fake = Self { dir, shared: Shared::default(), runtime: None };
        fake.listen();
        fake.json("GET /v1/me", 200, json!({"name": "alice", "role": "member", "keys": 1}));
        fake.json("GET /v1/keys", 200, json!({"keys": []}));
        fake
    }

    /// Listens anew after [`Self::stop`].
    pub fn listen(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let socket = self.socket();
        let _ = std::fs::remove_file(&socket);
        let listener = {
            let _inside = runtime.enter();
            tokio::net::UnixListener::bind(socket).unwrap()
        };
        let app = Router::new().fallback(answer).with_state(Arc::clone(&self.shared));
        runtime.spawn(async move { axum::serve(listener, app).await });
        self.runtime = Some(runtime);
    }

    /// Breaks every connection and stops to listen.
    pub fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("api.sock")
    }

    pub fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// Answers `METHOD /path` with JSON. Several calls for one request are answered in turn, the last one for good.
    pub fn json(&self, request: &str, status: u16, body: Value) {
        self.answer(request, Answer::Json(status, body));
    }

    pub fn text(&self, request: &str, body: &str) {
        self.answer(request, Answer::Text(body.to_owned()));
    }

    /// A stream of events, each after so many milliseconds; it stays open.
    pub fn events(&self, request: &str, events: Vec<(u64, Value)>) {
        self.answer(request, Answer::Events(events));
    }

    /// What the next visits of the console do; the last one for good.
    pub fn visits(&self, visits: &[Visit]) {
        self.shared.lock().unwrap().visits = visits.to_vec();
    }

    fn answer(&self, request: &str, answer: Answer) {
        self.shared.lock().unwrap().answers.entry(request.to_owned()).or_default().push(answer);
    }

    /// Forgets the answers to a request.
    pub fn forget(&self, request: &str) {
        self.shared.lock().unwrap().answers.remove(request);
    }

    /// What was asked so far, as `METHOD /path?query body`.
    pub fn requests(&self, prefix: &str) -> Vec<String> {
        self.shared.lock().unwrap().requests.iter().filter(|request| request.starts_with(prefix)).cloned().collect()
    }

    /// Puts a program in front of the real one of that name.
    pub fn program(&self, name: &str, script: &str) {
        let bin = self.dir.path().join("bin");
        std::fs::create_dir_all(&bin).unwrap();
        let path = bin.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// The command line, cut off from the environment.
    pub fn gvm(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gvm"));
        command.args(args).env_clear().env("HOME", self.home()).env("GVM_SOCKET", self.socket()).env("TZ", "UTC");
        command.env("PATH", format!("{}:/usr/bin:/bin", self.dir.path().join("bin").display()));
        command.env("RUST_BACKTRACE", "0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        self.ran(self.gvm(args).output().unwrap())
    }

    pub fn ran(&self, output: Output) -> Ran {
        Ran { code: output.status.code(), stdout: self.normal(&output.stdout), stderr: self.normal(&output.stderr) }
    }

    /// Text without what differs from run to run.
    pub fn normal(&self, bytes: &[u8]) -> String {
        let text = String::from_utf8_lossy(bytes).replace(self.dir.path().to_str().unwrap(), "<dir>");
        let mut out = String::new();
        for line in text.split_inclusive('\n') {
            match (line.rfind(" ("), line.rfind(" s)")) {
                (Some(from), Some(to)) if line[from + 2..to].parse::<f64>().is_ok() => {
                    out.push_str(&format!("{} (T s){}", &line[..from], &line[to + 3..]));
                }
                _ => out.push_str(line),
            }
        }
        out
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Ran {
    /// Everything on one page, for snapshots.
    pub fn page(&self) -> String {
        format!("exit {}\n--- stdout\n{}--- stderr\n{}", self.code.unwrap_or(-1), self.stdout, self.stderr)
    }

    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}", self.page());
        self
    }
}

async fn answer(State(shared): State<Shared>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().unwrap().to_string();
    if parts.uri.path().ends_with("/console") {
        let visit = {
            let mut canned = shared.lock().unwrap();
            canned.requests.push(format!("GET {path}"));
            if canned.visits.len() > 1 { canned.visits.remove(0) } else { canned.visits[0].clone() }
        };
        if let Visit::Refuse(status, code) = visit {
            let body = json!({"code": code, "message": "bob types there", "hint": null});
            return (StatusCode::from_u16(status).unwrap(), axum::Json(body)).into_response();
        }
        let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &()).await.unwrap();
        return upgrade.on_upgrade(move |socket| visit_console(socket, visit));
    }
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let answer = {
        let mut canned = shared.lock().unwrap();
        canned
            .requests
            .push(format!("{} {path} {}", parts.method, String::from_utf8_lossy(&body)).trim_end().to_owned());
        let exact = format!("{} {path}", parts.method);
        let general = format!("{} {}", parts.method, parts.uri.path());
        let key = if canned.answers.contains_key(&exact) { exact } else { general };
        match canned.answers.get_mut(&key) {
            Some(answers) if answers.len() > 1 => Some(answers.remove(0)),
            Some(answers) => answers.first().cloned(),
            None => None,
        }
    };
    match answer {
        None => {
            let body = json!({"code": "not_found", "message": format!("nothing at {path}")});
            (StatusCode::NOT_FOUND, axum::Json(body)).into_response()
        }
        Some(Answer::Json(status, body)) => (StatusCode::from_u16(status).unwrap(), axum::Json(body)).into_response(),
        Some(Answer::Text(text)) => text.into_response(),
        Some(Answer::Events(events)) => {
            let stream = futures_util::stream::iter(events).then(|(wait, event)| async move {
                tokio::time::sleep(Duration::from_millis(wait)).await;
                let name = if event == json!("lagged") { "lagged" } else { "progress" };
                Ok::<_, std::io::Error>(Bytes::from(format!("event: {name}\ndata: {event}\n\n")))
            });
            let body = Body::from_stream(stream.chain(futures_util::stream::pending()));
            ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response()
        }
    }
}

async fn visit_console(socket: WebSocket, visit: Visit) {
    let (mut to, mut from) = socket.split();
    match visit {
        Visit::Refuse(..) => {}
        Visit::Echo(hello) => {
            to.send(Message::Binary(hello.into())).await.unwrap();
            while let Some(Ok(message)) = from.next().await {
                if let Message::Binary(bytes) = message {
                    to.send(Message::Binary(bytes)).await.unwrap();
                }
            }
        }
        Visit::Close(hello, code, reason) => {
            to.send(Message::Binary(hello.into())).await.unwrap();
            to.send(Message::Close(Some(CloseFrame { code, reason: reason.into() }))).await.unwrap();
        }
    }
}

/// A machine in a state.
pub fn vm(state: &str) -> Value {
    json!({
        "id": "0192f0c1-2b3c-7d4e-8f50-111213141516", "name": "dev", "owner": "alice", "state": state, "detail": "",
        "profile": "debian", "image": "debian", "cpus": 2, "memory_mib": 2048, "disk_mib": 10240, "gpus": [],
        "address": "10.77.0.12", "mac": "52:54:00:00:00:0c", "guest_user": "debian", "first_boot": "waiting",
        "is_reachable": state == "running", "accelerator": "kvm", "caps": {"disk_iops": 500, "cpu_percent": 100},
        "tags": [], "needs_restart": false, "created_at": "2026-11-30T12:00:00Z", "generation": 1
    })
}

/// A value with some fields changed.
pub fn with(mut value: Value, changes: Value) -> Value {
    for (key, change) in changes.as_object().unwrap() {
        value[key] = change.clone();
    }
    value
}

pub const VM: &str = "/v1/vms/0192f0c1-2b3c-7d4e-8f50-111213141516";

pub fn accepted(state: &str) -> Value {
    json!({"operation": "op-1", "vm": vm(state), "notes": []})
}

pub fn operation(outcome: &str, detail: &str) -> Value {
    json!({"id": "op-1", "at": "2026-11-30T12:00:00Z", "actor": "alice", "action": "vm.create", "target": "alice/dev",
           "outcome": outcome, "detail": detail})
}

pub fn event(stage: &str, message: &str, state: &str) -> Value {
    json!({"vm_id": "0192f0c1-2b3c-7d4e-8f50-111213141516", "vm": "dev", "at": format!("2026-11-30T12:00:00Z{stage}"),
           "stage": stage, "message": message, "state": state})
}

pub fn ssh_info() -> Value {
    json!({
        "vm": "dev", "owner": "alice", "guest_user": "debian", "host_keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5guest"],
        "address": "10.77.0.12",
        "gateway": {"host": "localhost", "port": 2222, "host_keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5gateway"]}
    })
}

/// Names of the files of a folder.
pub fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Permission bits of a file.
pub fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}
