//! The gateway and the manager's API over its unix socket.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use gvm::api::client::Client;
use gvm::api::error::{ErrorBody, ErrorCode};
use gvm::api::types::{AnnounceGateway, GatewayMode, Identified, Identify, ResolveTarget, Target};
use gvm::gateway::directory::{Directory, ManagerDirectory};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

use crate::support::ssh::{World, body};

type Seen = Arc<Mutex<Vec<String>>>;

fn refuse(body: ErrorBody) -> Response {
    (StatusCode::from_u16(body.code.status()).unwrap(), Json(body)).into_response()
}

async fn identify(State(seen): State<Seen>, Json(ask): Json<Identify>) -> Response {
    seen.lock().unwrap().push(format!("identify {}", ask.public_key));
    match ask.public_key.as_str() {
        "ssh-ed25519 known" => Json(Identified { user: "alice".to_owned(), user_id: "1".to_owned() }).into_response(),
        _ => refuse(body(ErrorCode::NotFound, "no such key", None)),
    }
}

async fn target(State(seen): State<Seen>, Json(ask): Json<ResolveTarget>) -> Response {
    seen.lock().unwrap().push(serde_json::to_string(&ask).unwrap());
    if ask.vm == "off" {
        return refuse(body(ErrorCode::Conflict, "off is stopped", Some("gvm start off")));
    }
    let target = Target {
        vm_id: "1".to_owned(),
        label: format!("{}.alice", ask.vm),
        address: "10.77.0.2:22".to_owned(),
        guest_user: "debian".to_owned(),
        host_keys: vec!["ssh-ed25519 AAAA".to_owned()],
        private_key: None,
    };
    Json(target).into_response()
}

async fn announce(State(seen): State<Seen>, Json(gateway): Json<AnnounceGateway>) -> Response {
    seen.lock().unwrap().push(format!("announce {} {}", gateway.port, gateway.host_keys.join(" ")));
    Json(()).into_response()
}

fn asks(key: &str) -> Identify {
    Identify { public_key: key.to_owned(), certificate: None }
}

fn manager(socket: &Path, seen: &Seen) -> JoinHandle<()> {
    let routes = Router::new()
        .route("/v1/version", get(async || Json(())))
        .route("/v1/gateway/identify", post(identify))
        .route("/v1/gateway/target", post(target))
        .route("/v1/gateway/announce", post(announce))
        .with_state(Arc::clone(seen));
    let listener = UnixListener::bind(socket).unwrap();
    tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_manager_is_asked_over_its_socket_and_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("api.sock");
    let seen = Seen::default();
    let directory = ManagerDirectory::new(Client::new(&socket).unwrap());
    assert_eq!(directory.ready().await.unwrap_err().code, ErrorCode::Unavailable);

    let first = manager(&socket, &seen);
    directory.ready().await.unwrap();
    assert_eq!(directory.identify(&asks("ssh-ed25519 known")).await.unwrap().unwrap().user, "alice");
    assert!(directory.identify(&asks("ssh-ed25519 other")).await.unwrap().is_none());
    let mut ask = ResolveTarget {
        public_key: "ssh-ed25519 known".to_owned(),
        certificate: None,
        vm: "dev".to_owned(),
        guest_user: None,
        mode: GatewayMode::Jump,
        peer: "127.0.0.1".to_owned(),
    };
    assert_eq!(directory.resolve(&ask).await.unwrap().label, "dev.alice");
    ask.vm = "off".to_owned();
    assert_eq!(directory.resolve(&ask).await.unwrap_err().line(), "gvm: off is stopped (gvm start off)");
    let gateway = AnnounceGateway { host_keys: vec!["ssh-ed25519 AAAA".to_owned()], port: 2222 };
    directory.announce(&gateway).await.unwrap();
    assert_eq!(seen.lock().unwrap().last().unwrap(), "announce 2222 ssh-ed25519 AAAA");

    first.abort();
    let _ = first.await;
    std::fs::remove_file(&socket).unwrap();
    let _second = manager(&socket, &seen);
    // A connection that was kept open may fail once; the next question must be answered.
    let _ = directory.ready().await;
    assert_eq!(directory.identify(&asks("ssh-ed25519 known")).await.unwrap().unwrap().user, "alice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gateway_announces_itself_once_the_manager_is_there() {
    let world = World::new().await;
    let begun = std::time::Instant::now();
    while world.book.announced.lock().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let told = world.book.announced.lock().unwrap().clone().unwrap();
    assert_eq!((told.port, told.host_keys), (world.address.port(), vec![world.gateway_key.clone()]));
}

/// Everything that is logged while it lives, by anything in this process that runs on this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn logins_are_logged_and_private_keys_are_not() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    // With a single one, whichever thread comes first to a line would decide for all whether anybody wants it; those of
    // other tests have none.
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    let _guard = tracing::subscriber::set_default(subscriber);
    let world = World::new().await;
    world.ssh(&["dev@gw", "true"]).await.ok();
    world.ssh(&["-J", "gw", "dev", "true"]).await.ok();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    for wanted in [
        "logged in user=alice login=\"dev\"",
        "connected to the machine user=alice vm=dev.alice",
        "mode=\"terminate\"",
        "mode=\"jump\"",
        "logged out",
        "peer=127.0.0.1:",
    ] {
        assert!(text.contains(wanted), "no {wanted} in {text}");
    }
    let secret = std::fs::read_to_string(world.path("robot")).unwrap();
    for line in secret.lines() {
        assert!(!text.contains(line), "{line} was logged");
    }
}
