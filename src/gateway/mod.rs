//! The SSH gateway: an unprivileged process that asks the manager where a key leads.
//!
//! It is the one part of gvm that parses bytes of strangers before they have proven anything, so it runs apart,
//! links to no part of the manager, and knows of machines only what the manager answers over its socket.
//!
//! ```text
//!            ┌ limits ┐   ┌ auth ── directory ──▶ manager: whose key is this?
//! client ──▶ connection ──▶ handler                        where does it lead?
//!            (wire)         ├ jump ─────────────────────▶ guest's sshd   ssh -J gateway VM
//!                           └ proxy ─ pump ─ guest ─────▶ guest's sshd   ssh VM@gateway
//! ```
//!
//! - `target` what people type; `ssh` what both sides offer; `hostkey` our identity; `dial` the way to a guest
//! - `connection` one client from first byte to last; `conn` what its parts share; `handler` russh's callbacks
//! - `jump` copies a stream to the guest's SSH server; `proxy`, `pump` and `guest` log in to it and relay channels
//!
//! Rules: a callback never waits for anything slow; one task owns a channel, both halves of it; the other side is
//! opened first, then the client's channel is accepted, then the pump runs; every queue is bounded.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::api::client::{Client, ClientError};
use crate::api::types::AnnounceGateway;
use crate::config::{Config, GatewayConfig};

mod auth;
mod conn;
mod connection;
pub mod dial;
pub mod directory;
mod guest;
mod handler;
pub mod hostkey;
mod jump;
mod proxy;
mod pump;
mod ssh;
pub mod target;
mod upstream;
mod wire;

use crate::gate::{Complaints, Full, Gate, Limits};
use dial::{GuestDialer, TcpDialer};
use directory::{Directory, ManagerDirectory};
use hostkey::HostKeyError;

/// Long enough for a hiccup, short enough for the person behind the other channels.
const STALL: Duration = Duration::from_secs(60);
/// New keys at least as often, as RFC 4253, section 9, recommends.
const REKEY: Duration = Duration::from_secs(3600);
/// How long connections may go on after the gateway was told to stop.
const DRAIN: Duration = Duration::from_secs(10);
/// How long they have to leave after they were told so.
const LEAVE_DEADLINE: Duration = Duration::from_secs(5);
/// How long accepting waits after it failed, most likely for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Pauses between two tries to tell the manager about us.
const ANNOUNCE_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// What an administrator set, and what tests make shorter.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The private host key.
    pub host_key: PathBuf,
    /// How much at once.
    pub limits: Limits,
    /// Time to log in.
    pub login_grace: Duration,
    /// Time without data after which a connection is closed.
    pub idle: Option<Duration>,
    /// Time that a channel may take nothing while others of its connection wait.
    pub stall: Duration,
    /// Time after which a connection gets new keys.
    pub rekey: Duration,
    /// Time that connections have when the gateway stops.
    pub drain: Duration,
}

impl From<&GatewayConfig> for Settings {
    fn from(config: &GatewayConfig) -> Self {
        Self {
            listen: config.listen,
            host_key: config.host_key.clone(),
            limits: Limits {
                connections: config.max_connections,
                unauthenticated: config.max_unauthenticated,
                per_address: config.max_per_address,
                channels: config.max_channels,
            },
            login_grace: Duration::from_secs(config.login_grace_seconds),
            idle: (config.idle_seconds > 0).then(|| Duration::from_secs(config.idle_seconds)),
            stall: STALL,
            rekey: REKEY,
            drain: DRAIN,
        }
    }
}

/// Why the gateway does not run.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// No host key.
    #[error("the gateway has no host key")]
    HostKey(#[from] HostKeyError),
    /// The address is taken or not ours.
    #[error("cannot listen on {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// The client of the manager cannot be made.
    #[error("cannot make a client of the manager")]
    Client(#[from] ClientError),
    /// Signals cannot be received.
    #[error("cannot receive signals")]
    Signals(#[source] std::io::Error),
    /// A task of our own broke.
    #[error("reading the host key broke off")]
    Task(#[from] tokio::task::JoinError),
}

/// What all connections share.
struct Shared {
    settings: Settings,
    directory: Arc<dyn Directory>,
    dialer: Arc<dyn GuestDialer>,
    ssh: Arc<russh::server::Config>,
    /// Connections are told to leave.
    closing: CancellationToken,
    /// Connections are cut.
    kill: CancellationToken,
}

/// A gateway that listens, and serves once [`Gateway::serve`] is called.
pub struct Gateway {
    listener: TcpListener,
    address: SocketAddr,
    public_key: String,
    gate: Arc<Gate>,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Gateway {
    /// Listens, with the host key read or made.
    ///
    /// # Errors
    /// See [`GatewayError`].
    pub async fn bind(
        settings: Settings,
        directory: Arc<dyn Directory>,
        dialer: Arc<dyn GuestDialer>,
    ) -> Result<Self, GatewayError> {
        let path = settings.host_key.clone();
        let host_key = tokio::task::spawn_blocking(move || hostkey::ensure(&path)).await??;
        let fault = |source| GatewayError::Listen { address: settings.listen, source };
        let listener = TcpListener::bind(settings.listen).await.map_err(fault)?;
        let address = listener.local_addr().map_err(fault)?;
        let public_key = host_key.public_key().to_openssh().map_err(HostKeyError::Make)?;
        let shared = Shared {
            ssh: Arc::new(ssh::server_config(host_key, settings.rekey)),
            directory,
            dialer,
            closing: CancellationToken::new(),
            kill: CancellationToken::new(),
            settings,
        };
        let gate = Gate::new(shared.settings.limits);
        Ok(Self { listener, address, public_key, gate, shared: Arc::new(shared) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its public host key, `ssh-ed25519 AAAA...`.
    pub fn public_key(&self) -> &str {
        &self.public_key
    }

    /// Serves until `stop`, then lets connections end, tells those that do not to leave, and cuts off the rest.
    pub async fn serve(self, stop: CancellationToken) {
        let tasks = TaskTracker::new();
        let announcer = tasks.spawn(announce(Arc::clone(&self.shared), self.public_key.clone(), self.address));
        self.accept_until(&stop, &tasks).await;
        announcer.abort();
        drop(self.listener);
        tasks.close();
        tracing::info!(connections = self.gate.connections(), "draining");
        let is_empty = async |within| tokio::time::timeout(within, tasks.wait()).await.is_ok();
        if !is_empty(self.shared.settings.drain).await {
            self.shared.closing.cancel();
            if !is_empty(LEAVE_DEADLINE).await {
                self.shared.kill.cancel();
                is_empty(LEAVE_DEADLINE).await;
            }
        }
        tracing::info!(cut_off = self.gate.connections(), "stopped");
    }

    async fn accept_until(&self, stop: &CancellationToken, tasks: &TaskTracker) {
        let mut number: u64 = 0;
        let mut complaints = Complaints::default();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = self.listener.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    complaints.say(&format!("cannot accept a connection: {error}"));
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let permit = match self.gate.admit(peer.ip()) {
                Ok(permit) => permit,
                Err(full) => {
                    complaints.say(&format!("{peer} is sent away: {full}"));
                    send_away(&stream, full);
                    continue;
                }
            };
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "no nodelay");
            }
            number += 1;
            let span = tracing::info_span!("ssh", number, %peer);
            tasks.spawn(connection::run(Arc::clone(&self.shared), stream, peer, permit).instrument(span));
        }
    }
}

/// Says why on a line before the protocol begins, as RFC 4253, section 4.2, allows; clients show it when asked to.
fn send_away(stream: &TcpStream, full: Full) {
    // Whoever cannot take it at once does not get it.
    let _ = stream.try_write(format!("gvm: {full}\r\n").as_bytes());
}

/// Tells the manager how this gateway is reached, as often as it takes.
async fn announce(shared: Arc<Shared>, public_key: String, address: SocketAddr) {
    let gateway = AnnounceGateway { host_keys: vec![public_key], port: address.port() };
    let [mut pause, longest] = ANNOUNCE_PAUSES;
    while let Err(refusal) = shared.directory.announce(&gateway).await {
        tracing::warn!(%refusal, "not announced yet");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
    tracing::info!("announced to the manager");
}

/// Runs the gateway of this host until it is told to stop by SIGTERM or SIGINT.
///
/// # Errors
/// See [`GatewayError`].
pub async fn run(config: &Config) -> Result<(), GatewayError> {
    raise_file_limit();
    let client = Client::new(&config.manager.socket)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(GatewayError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(GatewayError::Signals)?;
    let settings = Settings::from(&config.gateway);
    let gateway = Gateway::bind(settings, Arc::new(ManagerDirectory::new(client)), Arc::new(TcpDialer)).await?;
    tracing::info!(address = %gateway.address(), host_key = gateway.public_key(), "listening");
    notify(sd_notify::NotifyState::Ready);
    let stop = CancellationToken::new();
    let told = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        notify(sd_notify::NotifyState::Stopping);
        stop.cancel();
    };
    tokio::join!(gateway.serve(stop.clone()), told);
    Ok(())
}

fn notify(state: sd_notify::NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "the service manager was not told");
    }
}

/// A connection takes two file descriptors, and the usual soft limit is 1024.
fn raise_file_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised =
        getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}
