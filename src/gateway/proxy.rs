//! Terminate mode: one task per channel. It opens the other side first, then accepts, then pumps, so that a
//! program that speaks first is not cut off, and whatever the guest refuses is refused to the client.

use std::sync::Arc;
use std::time::Duration;

use russh::server::{ChannelOpenHandle, Msg};
use russh::{Channel, ChannelMsg, Error, client, server};

use super::conn::{ChannelTicket, Conn};
use super::directory::Refusal;
use super::guest::{GuestLink, OpenError, opened};
use super::handler::{CONNECT_FAILED, because};
use super::pump::{self, Kind};

/// How long a client may take to say what a session is for, where all it can get is an explanation.
const REQUEST_DEADLINE: Duration = Duration::from_secs(30);
/// How long an explanation may take to be sent.
const EXPLAIN_DEADLINE: Duration = Duration::from_secs(10);
/// Exit status of a session that never reached its machine: as of `ssh` itself when it fails.
const FAILED: u32 = 255;
/// RFC 4254, section 5.2.
pub(super) const STDERR: u32 = 1;

/// Something inside of a guest that can be connected to.
pub(super) enum Inside {
    /// A port.
    Port(&'static str, u32),
    /// A unix socket.
    Socket(String),
}

/// What a channel to the guest is for.
enum Purpose<'a> {
    Session,
    Forward(&'a Inside),
}

impl Purpose<'_> {
    async fn open(&self, conn: &Arc<Conn>, link: &Arc<GuestLink>) -> Result<Channel<client::Msg>, OpenError> {
        match self {
            Self::Session => link.open_session(conn).await,
            Self::Forward(Inside::Port(host, port)) => link.open_port(conn, host, *port).await,
            Self::Forward(Inside::Socket(path)) => link.open_socket(conn, path.clone()).await,
        }
    }
}

/// Why there is no channel to the guest.
enum NoChannel {
    /// There is no connection to it.
    Guest(Refusal),
    /// It does not want this channel.
    Channel(OpenError),
}

/// A channel to the guest. A connection that turns out to be gone is made anew, once.
async fn reach(conn: &Arc<Conn>, purpose: Purpose<'_>) -> Result<(Arc<GuestLink>, Channel<client::Msg>), NoChannel> {
    let link = conn.guest.link(conn).await.map_err(NoChannel::Guest)?;
    match purpose.open(conn, &link).await {
        Ok(channel) => return Ok((link, channel)),
        Err(OpenError::Lost) => {}
        Err(error) => return Err(NoChannel::Channel(error)),
    }
    let link = conn.guest.link(conn).await.map_err(NoChannel::Guest)?;
    let channel = purpose.open(conn, &link).await.map_err(NoChannel::Channel)?;
    Ok((link, channel))
}

/// A session channel: shell, command or subsystem.
pub(super) async fn session(conn: Arc<Conn>, outer: Channel<Msg>, reply: ChannelOpenHandle, _ticket: ChannelTicket) {
    match reach(&conn, Purpose::Session).await {
        Ok((link, inner)) => {
            reply.accept().await;
            pump::run(&conn, outer, inner, Kind::Session(&link.label)).await;
        }
        Err(NoChannel::Guest(refusal)) => {
            reply.accept().await;
            explain(&conn, outer, &refusal).await;
        }
        Err(NoChannel::Channel(error)) => reply.reject(error.into_failure()).await,
    }
}

/// A connection to something inside: `ssh -L`, `ssh -D`, `ssh -W`.
pub(super) async fn forward(
    conn: Arc<Conn>,
    inside: Inside,
    outer: Channel<Msg>,
    reply: ChannelOpenHandle,
    _ticket: ChannelTicket,
) {
    match reach(&conn, Purpose::Forward(&inside)).await {
        Ok((_, inner)) => {
            reply.accept().await;
            pump::run(&conn, outer, inner, Kind::Stream).await;
        }
        Err(NoChannel::Guest(refusal)) => reply.reject(because(CONNECT_FAILED, refusal.line())).await,
        Err(NoChannel::Channel(error)) => reply.reject(error.into_failure()).await,
    }
}

/// A channel that the guest opens towards the client: remote forwards, the agent.
pub(super) async fn from_guest(
    conn: Arc<Conn>,
    open: impl Future<Output = Result<Channel<Msg>, Error>> + Send + 'static,
    inner: Channel<client::Msg>,
    reply: client::ChannelOpenHandle,
    _ticket: ChannelTicket,
) {
    match opened(&conn, open).await {
        Ok(outer) => {
            reply.accept().await;
            pump::run(&conn, outer, inner, Kind::Stream).await;
        }
        Err(error) => reply.reject(error.into_failure()).await,
    }
}

/// Tells the person on standard error why there is no machine behind the session. Standard output stays empty:
/// sftp and rsync would take a sentence for data (field case E-noise-on-data-channels).
async fn explain(conn: &Conn, mut outer: Channel<Msg>, refusal: &Refusal) {
    let Some(handle) = conn.handle() else {
        return;
    };
    let mut newline = "\n";
    let asked = async {
        loop {
            match outer.wait().await? {
                // A terminal in raw mode does not go back to the first column by itself.
                ChannelMsg::RequestPty { .. } => newline = "\r\n",
                ChannelMsg::Exec { .. } | ChannelMsg::RequestShell { .. } | ChannelMsg::RequestSubsystem { .. } => {
                    return Some(());
                }
                ChannelMsg::Close => return None,
                _ => {}
            }
        }
    };
    if let Ok(Some(())) = tokio::time::timeout(REQUEST_DEADLINE, asked).await {
        let text = refusal.lines(newline);
        let _ = tokio::time::timeout(EXPLAIN_DEADLINE, say(handle, &outer, text)).await;
    }
    let _ = tokio::time::timeout(EXPLAIN_DEADLINE, outer.close()).await;
}

async fn say(handle: &server::Handle, outer: &Channel<Msg>, text: String) -> Result<(), Error> {
    handle.channel_success(outer.id()).await.map_err(|()| Error::SendError)?;
    outer.extended_data_bytes(STDERR, text.into_bytes()).await?;
    outer.eof().await?;
    outer.exit_status(FAILED).await
}
