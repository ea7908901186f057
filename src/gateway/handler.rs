//! russh's callbacks for one client. They decide nothing slow: a callback runs inside of the session's loop, so
//! that whatever takes time is a task of its own, one per channel, which owns the channel.
//!
//! Replies to channel requests: russh remembers one "wants a reply" per channel, the newest request's. OpenSSH
//! sends pty-req, env and shell in one go, so those before the last are answered here, at once, and only the one
//! that starts a program is answered by the guest.

use std::sync::Arc;
use std::time::Duration;

use russh::keys::Certificate;
use russh::server::{self, Auth, ChannelOpenHandle, Msg, PublicKeyOffer, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, ChannelOpenFailure, Error, Pty};
use tracing::Instrument as _;

use super::auth::KeyCheck;
use super::conn::{ChannelTicket, Conn};
use super::target::{Route, RouteError};
use super::{jump, proxy};

/// How long a request for a remote forward may hold the session up: it can only be answered in its callback.
/// That includes the way to the guest where it is the first request.
const FORWARD_DEADLINE: Duration = Duration::from_secs(20);
/// Why a certificate's holder gets no forward.
const NO_FORWARDS: &str =
    "your certificate does not permit port forwarding, and a jump is one; log in with: ssh VM@GATEWAY";
/// RFC 4254, section 5.1.
const PROHIBITED: u32 = 1;
/// RFC 4254, section 5.1.
pub(super) const CONNECT_FAILED: u32 = 2;
/// RFC 4254, section 5.1.
const SHORTAGE: u32 = 4;

/// The callbacks of one client.
pub(super) struct Door {
    conn: Arc<Conn>,
    keys: KeyCheck,
}

/// A refusal to open a channel that says why.
pub(super) fn because(code: u32, reason: impl Into<String>) -> ChannelOpenFailure {
    ChannelOpenFailure::Other { code, reason: reason.into() }
}

impl Door {
    pub fn new(conn: Arc<Conn>) -> Self {
        Self { keys: KeyCheck::new(Arc::clone(&conn)), conn }
    }

    fn no_forward(&self, error: &str) -> bool {
        self.conn.span().in_scope(|| tracing::info!(error, "forward refused"));
        false
    }

    /// Gives the handle back where the member may forward, or the refusal is sent.
    async fn may_forward(&self, reply: ChannelOpenHandle) -> Option<ChannelOpenHandle> {
        if self.conn.rights().has_forwards {
            return Some(reply);
        }
        self.no_forward(NO_FORWARDS);
        reply.reject(because(PROHIBITED, format!("gvm: {NO_FORWARDS}"))).await;
        None
    }

    /// A ticket for one more channel, or the refusal is sent.
    async fn admit(&self, reply: ChannelOpenHandle) -> Option<(ChannelTicket, ChannelOpenHandle)> {
        match self.conn.admit_channel() {
            Some(ticket) => Some((ticket, reply)),
            None => {
                let limit = self.conn.shared.settings.limits.channels;
                let reason = format!("gvm: this connection has {limit} channels already, the most there may be");
                reply.reject(because(SHORTAGE, reason)).await;
                None
            }
        }
    }
}

impl server::Handler for Door {
    type Error = Error;

    async fn authentication_banner(&mut self) -> Result<Option<String>, Error> {
        // A client with one key leaves at once when it is refused, before it could be told why.
        let state = self.conn.shared.directory.ready().await;
        Ok(state.err().map(|refusal| refusal.lines("\r\n")))
    }

    async fn auth_none(&mut self, _user: &str) -> Result<Auth, Error> {
        Ok(Auth::reject())
    }

    async fn auth_password(&mut self, _user: &str, _password: &str) -> Result<Auth, Error> {
        Ok(self.keys.failed().instrument(self.conn.span()).await)
    }

    async fn auth_keyboard_interactive<'a>(
        &'a mut self,
        _user: &str,
        _submethods: &str,
        _response: Option<server::Response<'a>>,
    ) -> Result<Auth, Error> {
        Ok(self.keys.failed().instrument(self.conn.span()).await)
    }

    async fn auth_openssh_certificate(&mut self, user: &str, certificate: &Certificate) -> Result<Auth, Error> {
        Ok(self.keys.certified(user, certificate).instrument(self.conn.span()).await)
    }

    async fn auth_publickey_offered(&mut self, _user: &str, offer: PublicKeyOffer<'_>) -> Result<Auth, Error> {
        let check = self.keys.offered(offer.public_key, offer.algorithm);
        Ok(check.instrument(self.conn.span()).await)
    }

    async fn auth_publickey(&mut self, user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, Error> {
        let check = self.keys.proven(user, key.public_key, key.algorithm);
        Ok(check.instrument(self.conn.span()).await)
    }

    async fn auth_succeeded(&mut self, session: &mut Session) -> Result<(), Error> {
        self.conn.set_handle(session.handle());
        if let Some(member) = self.conn.member() {
            let _span = self.conn.span().entered();
            let by = member.certified.as_ref().map(|by| &by.facts);
            tracing::info!(
                user = %member.user, login = ?member.login, key = %member.print,
                certificate = by.map(|by| by.key_id.escape_debug().to_string()), serial = by.map(|by| by.serial), "logged in"
            );
        }
        Ok(())
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Error> {
        if let Some((ticket, reply)) = self.admit(reply).await {
            self.conn.spawn(proxy::session(Arc::clone(&self.conn), channel, reply, ticket));
        }
        Ok(())
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        host: &str,
        port: u32,
        _originator_address: &str,
        _originator_port: u32,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Error> {
        let Some(reply) = self.may_forward(reply).await else {
            return Ok(());
        };
        let route = match Route::decide(host, port, self.conn.login().as_ref()) {
            Ok(route) => route,
            Err(error) => {
                self.conn.span().in_scope(|| tracing::info!(host, port, %error, "forward refused"));
                reply.reject(because(PROHIBITED, format!("gvm: {error}"))).await;
                return Ok(());
            }
        };
        let Some((ticket, reply)) = self.admit(reply).await else {
            return Ok(());
        };
        let conn = Arc::clone(&self.conn);
        match route {
            Route::Jump(machine) => conn.spawn(jump::run(Arc::clone(&conn), machine, channel, reply, ticket)),
            Route::Inside { host, port } => {
                let inside = proxy::Inside::Port(host, port);
                conn.spawn(proxy::forward(Arc::clone(&conn), inside, channel, reply, ticket));
            }
        }
        Ok(())
    }

    async fn channel_open_direct_streamlocal(
        &mut self,
        channel: Channel<Msg>,
        path: &str,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Error> {
        let Some(reply) = self.may_forward(reply).await else {
            return Ok(());
        };
        if self.conn.login().is_none() {
            reply.reject(because(PROHIBITED, format!("gvm: {}", RouteError::NoMachine))).await;
            return Ok(());
        }
        if let Some((ticket, reply)) = self.admit(reply).await {
            let inside = proxy::Inside::Socket(path.to_owned());
            self.conn.spawn(proxy::forward(Arc::clone(&self.conn), inside, channel, reply, ticket));
        }
        Ok(())
    }

    fn adjust_window(&mut self, _channel: ChannelId, _current: u32) -> u32 {
        self.conn.window()
    }

    async fn pty_request(
        &mut self,
        channel: ChannelId,
        _term: &str,
        _columns: u32,
        _rows: u32,
        _width: u32,
        _height: u32,
        _modes: &[(Pty, u32)],
        session: &mut Session,
    ) -> Result<(), Error> {
        // Where it may not be, `upstream` does not pass it on either.
        if self.conn.rights().has_pty { session.channel_success(channel) } else { session.channel_failure(channel) }
    }

    async fn env_request(
        &mut self,
        channel: ChannelId,
        _name: &str,
        _value: &str,
        session: &mut Session,
    ) -> Result<(), Error> {
        session.channel_success(channel)
    }

    async fn x11_request(
        &mut self,
        channel: ChannelId,
        _single_connection: bool,
        _protocol: &str,
        _cookie: &str,
        _screen: u32,
        session: &mut Session,
    ) -> Result<(), Error> {
        // Only through a jump, where X11 is between the client and the guest.
        session.channel_failure(channel)
    }

    async fn agent_request(&mut self, _channel: ChannelId, _session: &mut Session) -> Result<bool, Error> {
        if !self.conn.rights().has_agent {
            return Ok(false);
        }
        self.conn.lend_agent();
        Ok(true)
    }

    async fn tcpip_forward(&mut self, address: &str, port: &mut u32, _session: &mut Session) -> Result<bool, Error> {
        if !self.conn.rights().has_forwards {
            return Ok(self.no_forward(NO_FORWARDS));
        }
        let conn = Arc::clone(&self.conn);
        let asked = *port;
        let work = async {
            let link = conn.guest.link(&conn).await.map_err(|refusal| refusal.line())?;
            link.tcpip_forward(address, asked).await.map_err(|error| error.to_string())
        };
        match in_time(work.instrument(self.conn.span())).await {
            Ok(given) => {
                if asked == 0 {
                    *port = given;
                }
                Ok(true)
            }
            Err(error) => Ok(self.no_forward(&error)),
        }
    }

    async fn cancel_tcpip_forward(&mut self, address: &str, port: u32, _session: &mut Session) -> Result<bool, Error> {
        let Some(link) = self.conn.guest.current() else {
            return Ok(false);
        };
        let work = async { link.cancel_tcpip_forward(address, port).await.map_err(|error| error.to_string()) };
        Ok(in_time(work).await.is_ok())
    }

    async fn streamlocal_forward(&mut self, path: &str, _session: &mut Session) -> Result<bool, Error> {
        if !self.conn.rights().has_forwards {
            return Ok(self.no_forward(NO_FORWARDS));
        }
        let conn = Arc::clone(&self.conn);
        let work = async {
            let link = conn.guest.link(&conn).await.map_err(|refusal| refusal.line())?;
            link.streamlocal_forward(path).await.map_err(|error| error.to_string())
        };
        Ok(match in_time(work.instrument(self.conn.span())).await {
            Ok(()) => true,
            Err(error) => self.no_forward(&error),
        })
    }

    async fn cancel_streamlocal_forward(&mut self, path: &str, _session: &mut Session) -> Result<bool, Error> {
        let Some(link) = self.conn.guest.current() else {
            return Ok(false);
        };
        let work = async { link.cancel_streamlocal_forward(path).await.map_err(|error| error.to_string()) };
        Ok(in_time(work).await.is_ok())
    }
}

async fn in_time<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    tokio::time::timeout(FORWARD_DEADLINE, work).await.unwrap_or_else(|_| Err("the guest does not answer".to_owned()))
}
