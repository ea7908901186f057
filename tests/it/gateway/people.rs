//! The gateway and a real manager over its socket: suspension, keys that are removed, certificates, a restart.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::ConnectInfo;
use gvm::api::client::Client;
use gvm::api::server::{self, Peer};
use gvm::api::types::{CertificateFacts, Identified, Identify};
use gvm::auth::peercred::Peers;
use gvm::auth::policy::Action;
use gvm::config::GatewayConfig;
use gvm::gateway::dial::TcpDialer;
use gvm::gateway::directory::{Directory, ManagerDirectory};
use gvm::gateway::{Gateway, Settings};
use gvm::model::id::UserId;
use gvm::model::principal::Suspension;
use gvm::store::{commit, users};
use jiff::Timestamp;
use tokio::io::AsyncReadExt;
use tokio::net::UnixListener;
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

use crate::support::ssh::{free_port, identity, keygen};
use crate::support::world::{Life, World, eventually};

/// root, so that no account has to be made for the gateway.
const GATEWAY: u32 = 0;

struct House {
    world: World,
    dir: tempfile::TempDir,
    port: u16,
    stop: CancellationToken,
}

impl Drop for House {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl House {
    /// A gateway that takes certificates of `ca`, in front of whatever manager listens on the socket.
    async fn new() -> Self {
        let mut world = World::new();
        let dir = tempfile::tempdir().unwrap();
        let ca = keygen(&dir.path().join("ca"), &["-t", "ed25519"]);
        keygen(&dir.path().join("key"), &["-t", "ed25519"]);
        let port = free_port();
        world.config.gateway = GatewayConfig {
            listen: ([127, 0, 0, 1], port).into(),
            host_key: dir.path().join("host"),
            user_ca: vec![ca],
            user: nix::unistd::User::from_uid(GATEWAY.into()).unwrap().unwrap().name,
            ..GatewayConfig::default()
        };
        let directory: Arc<dyn Directory> =
            Arc::new(ManagerDirectory::new(Client::new(&dir.path().join("api")).unwrap()));
        let settings = Settings::from(&world.config.gateway);
        let gateway =
            Gateway::bind(Settings { drain: Duration::ZERO, ..settings }, directory, Arc::new(TcpDialer)).await;
        let stop = CancellationToken::new();
        tokio::spawn(gateway.unwrap().serve(stop.clone()));
        Self { world, dir, port, stop }
    }

    async fn serve(&self) -> Life {
        let life = self.world.live().await;
        let socket = self.dir.path().join("api");
        let _ = std::fs::remove_file(&socket);
        let router = server::router(life.manager.clone(), Peers::new(&self.world.config));
        let router = router.layer(Extension(ConnectInfo(Peer::of_uid(GATEWAY))));
        let (listener, stop) = (UnixListener::bind(socket).unwrap(), life.manager.stopping().clone());
        tokio::spawn(async move { axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await });
        life
    }

    /// A client that is logged in and does nothing.
    fn ssh(&self, key: &str) -> Command {
        let mut client = Command::new("ssh");
        client.args(["-F", "none", "-N", "-v", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]);
        client.args(["-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none", "-o", "BatchMode=yes", "-i"]);
        client.arg(self.dir.path().join(key)).args(["-p", &self.port.to_string(), "nothing@127.0.0.1"]);
        client.env_remove("SSH_AUTH_SOCK").stdin(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        client
    }

    async fn session(&self, key: &str) -> Child {
        let mut child = self.ssh(key).spawn().unwrap();
        let text = read_until(&mut child, "Entering interactive session").await;
        assert!(text.contains("Authenticated to"), "{text}");
        child
    }

    async fn is_refused(&self, key: &str) {
        let mut child = self.ssh(key).spawn().unwrap();
        let text = read_until(&mut child, "Permission denied").await;
        assert!(text.contains("Permission denied (publickey)"), "{text}");
    }

    fn sign(&self, key: &str, arguments: &[&str]) {
        keygen(&self.dir.path().join(key), &["-t", "ed25519"]);
        let mut signing = std::process::Command::new("ssh-keygen");
        signing.args(["-q", "-I", key, "-s"]).arg(self.dir.path().join("ca")).args(arguments);
        assert!(signing.arg(self.dir.path().join(format!("{key}.pub"))).status().unwrap().success());
    }
}

/// Reads what a client says until it has said this, or is gone.
async fn read_until(child: &mut Child, wanted: &str) -> String {
    let mut text = String::new();
    let read = async {
        let mut bytes = [0; 512];
        while !text.contains(wanted) {
            let read = child.stderr.as_mut().unwrap().read(&mut bytes).await.unwrap();
            if read == 0 {
                break;
            }
            text += &String::from_utf8_lossy(&bytes[..read]);
        }
    };
    tokio::time::timeout(Duration::from_secs(20), read).await.unwrap_or_else(|_| panic!("no {wanted:?}"));
    text
}

#[track_caller]
fn lives(child: &mut Child) {
    assert!(child.try_wait().unwrap().is_none());
}

/// Waits until a client is told that its access ended; gives how long that took.
async fn ended(mut child: Child) -> Duration {
    let begun = Instant::now();
    let text = read_until(&mut child, "your access was ended").await;
    assert!(text.contains("gvm: your access was ended"), "{text}");
    begun.elapsed()
}

/// In the database alone, as if the word of it were lost.
async fn suspend(life: &Life, user: UserId) {
    let mut tx = life.store.write().await.unwrap();
    let mut row = users::read(&mut tx, user).await.unwrap().unwrap();
    row.suspended = Some(Suspension { at: Timestamp::now(), why: "left".to_owned() });
    users::update(&mut tx, &row).await.unwrap();
    commit(tx).await.unwrap();
}

async fn listened_to(life: &Life) {
    eventually("the gateway listens", || async { life.manager.revocations().listeners() > 0 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_key_and_a_suspended_user_lose_what_is_open() {
    let house = House::new().await;
    let life = house.serve().await;
    let eve = life.member.user().unwrap().clone();
    let key = identity(&house.dir.path().join("key.pub"));
    let row = life.manager.add_key(&life.permit(Action::KeyOwn), key.parse().unwrap()).await.unwrap();
    house.sign("certified", &["-n", "wheel,eve"]);
    house.is_refused("ca").await;
    let by_key = house.session("key").await;
    let mut by_certificate = house.session("certified").await;

    listened_to(&life).await;
    life.manager.remove_key(&life.permit(Action::KeyOwn), &row.fingerprint).await.unwrap();
    assert!(ended(by_key).await < Duration::from_secs(1));
    lives(&mut by_certificate);
    house.is_refused("key").await;

    // The manager goes; while it is away nobody is let go, and who is suspended then is when it is back.
    life.crash().await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    lives(&mut by_certificate);
    let other = house.world.live().await;
    suspend(&other, eve.id).await;
    other.crash().await;
    let life = house.serve().await;
    assert!(ended(by_certificate).await < Duration::from_secs(8));
    house.is_refused("certified").await;
    drop(life);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn principals_are_users_in_their_order_and_never_root() {
    let house = House::new().await;
    let life = house.serve().await;
    let now = Timestamp::now();
    let bob =
        life.store.ensure_user(4343, &"bob".parse().unwrap(), gvm::model::principal::Role::Member, now).await.unwrap();
    life.store.ensure_user(0, &"root".parse().unwrap(), gvm::model::principal::Role::Admin, now).await.unwrap();
    let client = Client::new(&house.dir.path().join("api")).unwrap();
    let ask = |principals: &[&str]| {
        let facts = CertificateFacts {
            principals: principals.iter().map(|name| (*name).to_owned()).collect(),
            key_id: "laptop\n of bob".to_owned(),
            serial: 7,
            ca: "SHA256:ca".to_owned(),
        };
        Identify { public_key: identity(&house.dir.path().join("key.pub")), certificate: Some(facts) }
    };
    let who = async |principals: &[&str]| {
        let found = client.post::<_, Identified>("/v1/gateway/identify", &ask(principals)).await;
        found.map(|found| found.user).map_err(|error| error.to_string())
    };
    let nobody = who(&["mallory"]).await.unwrap_err();
    assert_eq!(who(&["root"]).await.unwrap_err(), nobody);
    assert_eq!(who(&["Eve", "../x", ""]).await.unwrap_err(), nobody);
    assert_eq!(who(&[]).await.unwrap_err(), nobody);
    assert_eq!(who(&["root", "wheel", "bob", "eve"]).await.unwrap(), "bob");
    // A suspended user is not passed over for the next one.
    suspend(&life, bob.id).await;
    assert_eq!(who(&["bob", "eve"]).await.unwrap_err(), nobody);
}
