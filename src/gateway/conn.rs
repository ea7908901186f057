//! What the parts of one client connection share: who it is, what it may still open, its guest, its end.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use russh::{Disconnect, server};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use super::Shared;
use super::guest::GuestSlot;
use super::target::Login;
use crate::gate::Permit;

/// How long saying goodbye may wait for a busy session.
const FAREWELL_DEADLINE: Duration = Duration::from_secs(1);

/// Window of one channel: what one stream may have under way. It covers 2 Gbit/s at 8 ms.
pub(super) const WINDOW: u32 = 2 * 1024 * 1024;
/// Window that clients get while a channel is stuck. With less there would be no next packet, and only a packet
/// leads to more window.
pub(super) const TRICKLE: u32 = 2;

/// Who is logged in at the gateway.
#[derive(Clone, Debug)]
pub(super) struct Member {
    /// The member's login in gvm.
    pub user: String,
    /// The key that was proven, `kind base64`.
    pub key: String,
    /// The login name as it was typed.
    pub login: String,
}

/// One client connection.
pub(super) struct Conn {
    /// For the log.
    pub peer: SocketAddr,
    /// What all connections share.
    pub shared: Arc<Shared>,
    /// Ends everything of this connection.
    pub stop: CancellationToken,
    /// Asks the supervisor to end it soon: the client was told goodbye.
    pub leaving: CancellationToken,
    /// Every task of this connection.
    pub tasks: TaskTracker,
    /// The guest that this connection terminates at.
    pub guest: GuestSlot,
    handle: OnceLock<server::Handle>,
    member: OnceLock<Member>,
    permit: Mutex<Option<Permit>>,
    channels: AtomicUsize,
    opened: AtomicU64,
    progress: AtomicU64,
    stuck: AtomicUsize,
    forwards_agent: AtomicBool,
    span: tracing::Span,
}

impl Conn {
    pub fn new(shared: Arc<Shared>, peer: SocketAddr, permit: Permit, stop: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            peer,
            shared,
            stop,
            leaving: CancellationToken::new(),
            tasks: TaskTracker::new(),
            guest: GuestSlot::default(),
            handle: OnceLock::new(),
            member: OnceLock::new(),
            permit: Mutex::new(Some(permit)),
            channels: AtomicUsize::new(0),
            opened: AtomicU64::new(0),
            progress: AtomicU64::new(0),
            stuck: AtomicUsize::new(0),
            forwards_agent: AtomicBool::new(false),
            span: tracing::Span::current(),
        })
    }

    /// The span of this connection, for what does not run in one of its tasks.
    pub fn span(&self) -> tracing::Span {
        self.span.clone()
    }

    /// Runs `work` as a task that ends with the connection.
    pub fn spawn(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        let task = async move {
            stop.run_until_cancelled(work).await;
        };
        self.tasks.spawn(task.instrument(self.span.clone()));
    }

    /// Makes the session's handle known; there is only one.
    pub fn set_handle(&self, handle: server::Handle) {
        let _ = self.handle.set(handle);
    }

    /// The session's handle, once the session runs.
    pub fn handle(&self) -> Option<&server::Handle> {
        self.handle.get()
    }

    /// From now on it is this member's.
    pub fn log_in(&self, member: Member) {
        if let Some(permit) = self.permit().as_ref() {
            permit.authenticated();
        }
        let _ = self.member.set(member);
    }

    /// Who is logged in.
    pub fn member(&self) -> Option<&Member> {
        self.member.get()
    }

    /// The machine that the login name names, if it names one. Without an owner it is the member's own.
    pub fn login(&self) -> Option<Login> {
        let member = self.member()?;
        let mut login: Login = member.login.parse().ok()?;
        login.machine.owner = login.machine.owner.or_else(|| member.user.parse().ok());
        Some(login)
    }

    /// Lets one more channel in, until the ticket is dropped.
    pub fn admit_channel(self: &Arc<Self>) -> Option<ChannelTicket> {
        let limit = self.shared.settings.limits.channels;
        let admitted =
            self.channels.try_update(Ordering::AcqRel, Ordering::Acquire, |open| (open < limit).then_some(open + 1));
        admitted.ok()?;
        self.opened.fetch_add(1, Ordering::Relaxed);
        Some(ChannelTicket { conn: Arc::clone(self) })
    }

    /// Channels open now.
    pub fn channels(&self) -> usize {
        self.channels.load(Ordering::Acquire)
    }

    /// Channels opened so far.
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Data went through some channel. Keepalives do not count.
    pub fn note_progress(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// Changes whenever data goes through.
    pub fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// A channel is stuck, until the guard is dropped: its guest takes nothing.
    pub fn stall(&self) -> Stall<'_> {
        self.stuck.fetch_add(1, Ordering::AcqRel);
        Stall { conn: self }
    }

    /// The window that the client is given again. russh has one for all channels of a connection.
    pub fn window(&self) -> u32 {
        if self.stuck.load(Ordering::Acquire) > 0 { TRICKLE } else { WINDOW }
    }

    /// The client lends its agent.
    pub fn lend_agent(&self) {
        self.forwards_agent.store(true, Ordering::Relaxed);
    }

    /// Whether the client lends its agent.
    pub fn lends_agent(&self) -> bool {
        self.forwards_agent.load(Ordering::Relaxed)
    }

    /// Tells the client why the connection ends, and has it ended.
    pub async fn say_goodbye(&self, reason: Disconnect, text: String) {
        if let Some(handle) = self.handle() {
            // A session that cannot take it within the time is cut off without a word.
            let _ = tokio::time::timeout(FAREWELL_DEADLINE, handle.disconnect(reason, text, "en".to_owned())).await;
        }
        self.leaving.cancel();
    }

    /// Gives back what the connection holds of others.
    pub fn close(&self) {
        self.stop.cancel();
        self.permit().take();
    }

    fn permit(&self) -> std::sync::MutexGuard<'_, Option<Permit>> {
        self.permit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One channel of a connection.
pub(super) struct ChannelTicket {
    conn: Arc<Conn>,
}

impl Drop for ChannelTicket {
    fn drop(&mut self) {
        self.conn.channels.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A channel that is stuck.
pub(super) struct Stall<'a> {
    conn: &'a Conn,
}

impl Drop for Stall<'_> {
    fn drop(&mut self) {
        self.conn.stuck.fetch_sub(1, Ordering::AcqRel);
    }
}
