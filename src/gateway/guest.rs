//! The gateway's own login to a guest: one connection for each client connection, made when the first channel
//! needs it, and made anew when it broke.
//!
//! The manager names the address, the host keys that were made with the machine, and a private key for this
//! one login; the key is wiped as soon as the guest has let us in.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use russh::client::{self, AuthResult, ChannelOpenHandle, DisconnectReason, Msg, Session};
use russh::keys::{PrivateKey, PrivateKeyWithHashAlg, PublicKey, PublicKeyOrCertificate};
use russh::{Channel, ChannelId, ChannelMsg, ChannelOpenFailure, Error};
use tokio::sync::oneshot;
use zeroize::Zeroizing;

use super::conn::Conn;
use super::directory::Refusal;
use super::handler::{CONNECT_FAILED, because};
use super::target::Login;
use super::wire::Wire;
use super::{proxy, ssh};
use crate::api::error::ErrorCode;
use crate::api::types::{GatewayMode, Target};

/// How long a guest may take to accept a TCP connection.
pub(super) const DIAL_DEADLINE: Duration = Duration::from_secs(10);
/// How long key exchange and login may take; an emulated guest under load needs several seconds.
const LOGIN_DEADLINE: Duration = Duration::from_secs(60);
/// How long either side may take to answer the opening of a channel.
const OPEN_DEADLINE: Duration = Duration::from_secs(60);
/// Channels that waited for a login that failed share its failure instead of trying one after another.
const FAILURE_SHARED: Duration = Duration::from_secs(1);

/// Why a channel was not opened.
#[derive(Debug)]
pub(super) enum OpenError {
    /// The other side said no.
    Refused(ChannelOpenFailure),
    /// The other side said nothing.
    Late,
    /// The connection is gone.
    Lost,
}

impl OpenError {
    /// As the answer to whoever asked for the channel.
    pub fn into_failure(self) -> ChannelOpenFailure {
        match self {
            Self::Refused(reason) => reason,
            Self::Late => because(CONNECT_FAILED, "gvm: the other side did not answer in time"),
            Self::Lost => because(CONNECT_FAILED, "gvm: the connection to the machine broke off"),
        }
    }
}

/// Waits for `open` within the deadline. A channel that opens later is closed at once: nobody would read it, and
/// an unread channel stalls its whole connection.
pub(super) async fn opened<M>(
    conn: &Arc<Conn>,
    open: impl Future<Output = Result<Channel<M>, Error>> + Send + 'static,
) -> Result<Channel<M>, OpenError>
where
    M: From<(ChannelId, ChannelMsg)> + Send + Sync + 'static,
{
    let (give, take) = oneshot::channel();
    conn.spawn(async move {
        if let Err(Ok(late)) = give.send(open.await) {
            let _ = late.close().await;
        }
    });
    match tokio::time::timeout(OPEN_DEADLINE, take).await {
        Ok(Ok(Ok(channel))) => Ok(channel),
        Ok(Ok(Err(Error::ChannelOpenFailure(reason)))) => Err(OpenError::Refused(reason)),
        Ok(Ok(Err(_)) | Err(_)) => Err(OpenError::Lost),
        Err(_) => Err(OpenError::Late),
    }
}

/// The guest of one connection, logged in to or not.
#[derive(Default)]
pub(super) struct GuestSlot {
    /// Held by whoever logs in; the others wait for the result.
    turn: tokio::sync::Mutex<Option<(Instant, Refusal)>>,
    link: Mutex<Option<Arc<GuestLink>>>,
}

impl GuestSlot {
    /// The living connection, if there is one.
    pub fn current(&self) -> Option<Arc<GuestLink>> {
        self.slot().as_ref().filter(|link| !link.handle.is_closed()).cloned()
    }

    /// The connection, made where there is none.
    pub async fn link(&self, conn: &Arc<Conn>) -> Result<Arc<GuestLink>, Refusal> {
        let mut failure = self.turn.lock().await;
        if let Some(link) = self.current() {
            return Ok(link);
        }
        if let Some((at, refusal)) = failure.as_ref()
            && at.elapsed() < FAILURE_SHARED
        {
            return Err(refusal.clone());
        }
        match log_in(conn).await {
            Ok(link) => {
                let link = Arc::new(link);
                *self.slot() = Some(Arc::clone(&link));
                *failure = None;
                Ok(link)
            }
            Err(refusal) => {
                tracing::info!(code = ?refusal.code, message = %refusal, "not connected to the machine");
                *failure = Some((Instant::now(), refusal.clone()));
                Err(refusal)
            }
        }
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Arc<GuestLink>>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A login at a guest.
pub(super) struct GuestLink {
    handle: client::Handle<Inside>,
    /// `name.owner`, for messages.
    pub label: String,
}

impl GuestLink {
    /// A session channel.
    pub async fn open_session(self: &Arc<Self>, conn: &Arc<Conn>) -> Result<Channel<Msg>, OpenError> {
        let link = Arc::clone(self);
        opened(conn, async move { link.handle.channel_open_session().await }).await
    }

    /// A connection to a port inside.
    pub async fn open_port(
        self: &Arc<Self>,
        conn: &Arc<Conn>,
        host: &'static str,
        port: u32,
    ) -> Result<Channel<Msg>, OpenError> {
        let link = Arc::clone(self);
        // Where the client's end of the forward is, is nobody's business inside.
        opened(conn, async move { link.handle.channel_open_direct_tcpip(host, port, "127.0.0.1", 0).await }).await
    }

    /// A connection to a unix socket inside.
    pub async fn open_socket(self: &Arc<Self>, conn: &Arc<Conn>, path: String) -> Result<Channel<Msg>, OpenError> {
        let link = Arc::clone(self);
        opened(conn, async move { link.handle.channel_open_direct_streamlocal(path).await }).await
    }

    /// Listens on a port inside; gives the port where 0 was asked for.
    pub async fn tcpip_forward(&self, address: &str, port: u32) -> Result<u32, Error> {
        self.handle.tcpip_forward(address, port).await
    }

    /// Ends [`Self::tcpip_forward`].
    pub async fn cancel_tcpip_forward(&self, address: &str, port: u32) -> Result<(), Error> {
        self.handle.cancel_tcpip_forward(address, port).await
    }

    /// Listens on a unix socket inside.
    pub async fn streamlocal_forward(&self, path: &str) -> Result<(), Error> {
        self.handle.streamlocal_forward(path).await
    }

    /// Ends [`Self::streamlocal_forward`].
    pub async fn cancel_streamlocal_forward(&self, path: &str) -> Result<(), Error> {
        self.handle.cancel_streamlocal_forward(path).await
    }
}

/// Asks the manager for the machine that the login names, and logs in to it.
async fn log_in(conn: &Arc<Conn>) -> Result<GuestLink, Refusal> {
    let member = conn.member().ok_or_else(|| Refusal::new(ErrorCode::Internal, "nobody is logged in"))?;
    let login: Login = member.login.parse().map_err(|error: crate::model::name::NameError| {
        Refusal::new(ErrorCode::Invalid, format!("the login name is no machine: {error}"))
            .hint("use: ssh VM@GATEWAY, ssh VM.OWNER@GATEWAY, or the gateway as a jump host: ssh -J GATEWAY VM")
    })?;
    let guest_user = login.guest_user.map(|user| user.to_string());
    let ask = conn.question(&login.machine, guest_user, GatewayMode::Terminate)?;
    let mut target = conn.shared.directory.resolve(&ask).await?;
    conn.note_machine(&target.label);
    let secret = target.private_key.take().map(Zeroizing::new);
    let secret = secret.ok_or_else(|| odd(&target, "the manager gave no key to log in with"))?;
    let key = PrivateKey::from_openssh(secret.as_bytes()).map_err(|_| odd(&target, "the manager's key is damaged"))?;
    drop(secret);
    let link = match tokio::time::timeout(LOGIN_DEADLINE, enter(conn, &target, key)).await {
        Ok(link) => link?,
        Err(_) => return Err(silent(&target, "did not finish the SSH login in time")),
    };
    tracing::info!(
        user = %member.user, vm = %target.label, vm_id = %target.vm_id, guest_user = %target.guest_user,
        mode = "terminate", "connected to the machine"
    );
    Ok(link)
}

async fn enter(conn: &Arc<Conn>, target: &Target, key: PrivateKey) -> Result<GuestLink, Refusal> {
    let host_keys: Vec<PublicKey> = target.host_keys.iter().filter_map(|key| key.parse().ok()).collect();
    if host_keys.is_empty() {
        return Err(odd(target, "its host keys are not known"));
    }
    let stream = dial(conn, target).await?;
    let config = Arc::new(ssh::client_config(&host_keys, conn.shared.settings.rekey));
    let inside = Inside { conn: Arc::clone(conn), host_keys };
    let wire = Wire::new(stream, &conn.stop, Arc::default());
    let mut handle = client::connect_stream(config, wire, inside).await.map_err(|error| match error {
        Error::UnknownKey => {
            tracing::error!(vm = %target.label, address = %target.address, "the machine shows a foreign host key");
            Refusal::new(
                ErrorCode::Unavailable,
                format!(
                    "{} shows another host key than the one it was made with; it is not logged in to",
                    target.label
                ),
            )
            .hint("if its keys were renewed inside, put the old ones back; else something else answers in its place")
        }
        error => {
            tracing::warn!(vm = %target.label, %error, "SSH with the machine failed");
            silent(target, "broke off the SSH handshake")
        }
    })?;
    // Only an RSA key has a choice here, and never SHA-1.
    let hash = if key.algorithm().is_rsa() { Some(russh::keys::HashAlg::Sha512) } else { None };
    let key = PrivateKeyWithHashAlg::new(Arc::new(key), hash);
    match handle.authenticate_publickey(target.guest_user.as_str(), key).await {
        Ok(AuthResult::Success) => Ok(GuestLink { handle, label: target.label.clone() }),
        Ok(AuthResult::Failure { .. }) => Err(Refusal::new(
            ErrorCode::Denied,
            format!("{} does not let gvm log in as {}", target.label, target.guest_user),
        )
        .hint("jump instead, with your own key: ssh -J GATEWAY VM; or mend ~/.ssh/authorized_keys inside")),
        Err(error) => {
            tracing::warn!(vm = %target.label, %error, "login at the machine failed");
            Err(silent(target, "broke off the SSH login"))
        }
    }
}

/// A stream to the guest's SSH server.
pub(super) async fn dial(conn: &Conn, target: &Target) -> Result<Box<dyn super::dial::GuestStream>, Refusal> {
    match tokio::time::timeout(DIAL_DEADLINE, conn.shared.dialer.dial(&target.address)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => {
            tracing::info!(vm = %target.label, address = %target.address, %error, "the machine cannot be reached");
            Err(silent(target, "does not answer on its SSH port"))
        }
        Err(_) => Err(silent(target, "does not answer on its SSH port")),
    }
}

fn silent(target: &Target, what: &str) -> Refusal {
    Refusal::new(ErrorCode::Unavailable, format!("{} {what}", target.label))
        .hint("it may still be starting; look at it with: gvm show VM, gvm console VM")
}

fn odd(target: &Target, what: &str) -> Refusal {
    Refusal::new(ErrorCode::Internal, format!("{}: {what}", target.label)).hint("tell your administrator")
}

/// What a guest may ask of us: only what the client asked it for.
struct Inside {
    conn: Arc<Conn>,
    host_keys: Vec<PublicKey>,
}

impl Inside {
    fn relay(
        &self,
        open: impl Future<Output = Result<Channel<russh::server::Msg>, Error>> + Send + 'static,
        inner: Channel<Msg>,
        reply: ChannelOpenHandle,
    ) {
        // Without a ticket the reply is dropped, which refuses.
        if let Some(ticket) = self.conn.admit_channel() {
            self.conn.spawn(proxy::from_guest(Arc::clone(&self.conn), open, inner, reply, ticket));
        }
    }
}

impl client::Handler for Inside {
    type Error = Error;

    async fn check_server_key(&mut self, shown: &PublicKeyOrCertificate) -> Result<bool, Error> {
        let shown = shown.public_key();
        Ok(self.host_keys.iter().any(|key| key.key_data() == shown.key_data()))
    }

    async fn server_channel_open_forwarded_tcpip(
        &mut self,
        channel: Channel<Msg>,
        address: &str,
        port: u32,
        originator_address: &str,
        originator_port: u32,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Error> {
        if let Some(outer) = self.conn.handle().cloned() {
            let (address, origin) = (address.to_owned(), originator_address.to_owned());
            let open = async move { outer.channel_open_forwarded_tcpip(address, port, origin, originator_port).await };
            self.relay(open, channel, reply);
        }
        Ok(())
    }

    async fn server_channel_open_forwarded_streamlocal(
        &mut self,
        channel: Channel<Msg>,
        path: &str,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Error> {
        if let Some(outer) = self.conn.handle().cloned() {
            let path = path.to_owned();
            self.relay(async move { outer.channel_open_forwarded_streamlocal(path).await }, channel, reply);
        }
        Ok(())
    }

    async fn server_channel_open_agent_forward(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Error> {
        if self.conn.lends_agent()
            && let Some(outer) = self.conn.handle().cloned()
        {
            self.relay(async move { outer.channel_open_agent().await }, channel, reply);
        }
        Ok(())
    }

    // The library's defaults accept what follows; a dropped reply refuses.

    async fn server_channel_open_session(
        &mut self,
        _channel: Channel<Msg>,
        _reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Error> {
        Ok(())
    }

    async fn server_channel_open_direct_tcpip(
        &mut self,
        _channel: Channel<Msg>,
        _host: &str,
        _port: u32,
        _originator_address: &str,
        _originator_port: u32,
        _reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Error> {
        Ok(())
    }

    async fn server_channel_open_direct_streamlocal(
        &mut self,
        _channel: Channel<Msg>,
        _path: &str,
        _reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Error> {
        Ok(())
    }

    async fn server_channel_open_x11(
        &mut self,
        _channel: Channel<Msg>,
        _originator_address: &str,
        _originator_port: u32,
        _reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Error> {
        Ok(())
    }

    async fn disconnected(&mut self, reason: DisconnectReason<Error>) -> Result<(), Error> {
        if !self.conn.stop.is_cancelled() {
            self.conn.span().in_scope(|| tracing::info!(?reason, "the connection to the machine ended"));
        }
        Ok(())
    }
}
