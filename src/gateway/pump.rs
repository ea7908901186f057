//! Moves one channel's traffic between client and guest, both ways at once, word for word.
//!
//! ```text
//!            outer (server side)                    inner (client side)
//! client ──▶ read half ──▶ upstream ──────────────▶ write half ──▶ guest
//! client ◀── write half ◀───────────────── down() ◀─ read half ◀── guest
//! ```
//!
//! Each direction keeps the order in which things arrived: data, end of data, exit status, close. Neither stops
//! at the end of data or at the exit status, only at the close. A side that takes nothing blocks its direction
//! of this channel; because russh delivers a connection's messages one by one, it soon blocks the connection,
//! so a channel that is stuck while others wait is closed after a while.
//!
//! One thing is held back: the end of a program's output, until its exit status is known. A client that has ended
//! its input answers the end of the output with a close, and russh confirms a close at once, after which a later
//! exit status could not be sent any more.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Error, client, server};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::conn::Conn;
use super::proxy::STDERR;
use super::upstream;

/// How long the guest may take to start a program.
const START_DEADLINE: Duration = Duration::from_secs(60);
/// How long a client may keep a channel on which it was refused its program.
const REFUSED_LINGER: Duration = Duration::from_secs(5);
/// How long the end of a program's output waits for its exit status, where the client may still send input.
const STATUS_DEADLINE: Duration = Duration::from_secs(2);
/// How long the last messages of a channel may wait for their session.
pub(super) const CLOSE_DEADLINE: Duration = Duration::from_secs(10);
/// Requests of one channel that wait for the guest's answer; a client that asks on regardless is cut off.
const ASKED_MAX: usize = 16;

/// What kind of channel it is.
#[derive(Clone, Copy)]
pub(super) enum Kind<'a> {
    /// A program runs at the other end, on the machine with this label.
    Session(&'a str),
    /// Bytes only.
    Stream,
}

/// Why a pump ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The client closed the channel, or is gone.
    Client,
    /// The guest closed the channel.
    Guest,
    /// The connection to the guest is gone.
    GuestLost,
    /// One side took nothing for too long.
    Stalled,
    /// The guest did not say whether the program runs.
    Unanswered,
    /// The guest refused the program, and the client did not close the channel.
    Refused,
    /// The client asks without waiting for answers.
    TooMuch,
}

/// A request whose answer the guest owes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// A terminal.
    Pty,
    /// A program.
    Start,
}

/// What the two directions know of each other: the requests that wait for an answer, in order, and whether the
/// client has ended its input.
#[derive(Default)]
pub(super) struct Asked {
    queue: Mutex<VecDeque<Ask>>,
    is_input_over: AtomicBool,
    started: Notify,
    answered: Notify,
    is_refused: AtomicBool,
}

impl Asked {
    /// The client has sent all of its input.
    pub fn end_input(&self) {
        self.is_input_over.store(true, Ordering::Relaxed);
    }

    fn is_input_over(&self) -> bool {
        self.is_input_over.load(Ordering::Relaxed)
    }

    /// A request goes to the guest.
    pub fn ask(&self, ask: Ask) -> Result<(), End> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.len() >= ASKED_MAX {
            return Err(End::TooMuch);
        }
        queue.push_back(ask);
        if ask == Ask::Start {
            self.started.notify_one();
        }
        Ok(())
    }

    fn answer(&self) -> Option<Ask> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Ends when an answer is overdue, or a refusal was not followed by the client's close.
    async fn watch(&self) -> End {
        loop {
            let started = self.started.notified();
            if !self.is_refused.load(Ordering::Relaxed) {
                started.await;
            } else if tokio::time::timeout(REFUSED_LINGER, started).await.is_err() {
                return End::Refused;
            }
            if tokio::time::timeout(START_DEADLINE, self.answered.notified()).await.is_err() {
                return End::Unanswered;
            }
        }
    }
}

/// Towards the client.
type Outer = ChannelWriteHalf<server::Msg>;
/// Towards the guest.
pub(super) type Inner = ChannelWriteHalf<client::Msg>;

/// Pumps until one side closes the channel, then closes the other.
pub(super) async fn run(conn: &Conn, outer: Channel<server::Msg>, inner: Channel<client::Msg>, kind: Kind<'_>) {
    let Some(handle) = conn.handle() else {
        return;
    };
    let (mut from_client, outer) = outer.split();
    let (mut from_guest, inner) = inner.split();
    let asked = Asked::default();
    let end = {
        let up = upstream::run(conn, &mut from_client, &inner, &asked);
        let down = down(conn, &mut from_guest, &outer, handle, kind, &asked);
        tokio::pin!(up, down);
        tokio::select! {
            end = &mut down => end,
            end = asked.watch() => end,
            end = &mut up => match end {
                // What the guest had sent before it went is still on its way to the client.
                End::GuestLost => down.await,
                end => end,
            },
        }
    };
    tracing::debug!(channel = %outer.id(), ?end, "channel ends");
    let _ = tokio::time::timeout(CLOSE_DEADLINE, finish(&end, kind, handle, &outer, &inner)).await;
}

async fn finish(end: &End, kind: Kind<'_>, handle: &server::Handle, outer: &Outer, inner: &Inner) -> Result<(), Error> {
    let note = match (end, kind) {
        (End::GuestLost, Kind::Session(label)) => Some(format!("gvm: the connection to {label} broke off\r\n")),
        (End::Unanswered, Kind::Session(label)) => {
            // The client asked something, and is owed an answer before the close.
            let _ = handle.channel_failure(outer.id()).await;
            Some(format!("gvm: {label} did not start the program in time\r\n"))
        }
        _ => None,
    };
    if let Some(note) = note {
        outer.extended_data_bytes(STDERR, note.into_bytes()).await?;
    }
    // Closing what is closed already does nothing.
    let closed = outer.close().await;
    inner.close().await.and(closed)
}

/// The end of a program's output, seen and not yet passed on.
enum HeldEof {
    No,
    /// Until then the exit status may come first.
    Until(Instant),
}

/// Guest to client.
async fn down(
    conn: &Conn,
    from: &mut ChannelReadHalf,
    to: &Outer,
    handle: &server::Handle,
    kind: Kind<'_>,
    asked: &Asked,
) -> End {
    let id = to.id();
    let gone = |()| Error::SendError;
    let mut has_status = matches!(kind, Kind::Stream);
    let mut held = HeldEof::No;
    loop {
        let message = match held {
            HeldEof::Until(limit) if !asked.is_input_over() => {
                match tokio::time::timeout_at(limit, from.wait()).await {
                    Ok(message) => message,
                    Err(_) if asked.is_input_over() => continue,
                    Err(_) => {
                        held = HeldEof::No;
                        has_status = true;
                        if to.eof().await.is_err() {
                            return End::Client;
                        }
                        continue;
                    }
                }
            }
            _ => from.wait().await,
        };
        let Some(message) = message else {
            return End::GuestLost;
        };
        let sent = match message {
            ChannelMsg::Data { data } => {
                conn.note_progress();
                match patiently(conn, to.data_bytes(data)).await {
                    Ok(sent) => sent,
                    Err(end) => return end,
                }
            }
            ChannelMsg::ExtendedData { data, ext } => {
                conn.note_progress();
                match patiently(conn, to.extended_data_bytes(ext, data)).await {
                    Ok(sent) => sent,
                    Err(end) => return end,
                }
            }
            ChannelMsg::Eof if has_status => to.eof().await,
            ChannelMsg::Eof => {
                held = HeldEof::Until(Instant::now() + STATUS_DEADLINE);
                Ok(())
            }
            ChannelMsg::ExitStatus { exit_status } => {
                has_status = true;
                to.exit_status(exit_status).await
            }
            ChannelMsg::ExitSignal { signal_name, core_dumped, error_message, lang_tag } => {
                has_status = true;
                let sent = handle.exit_signal_request(id, signal_name, core_dumped, error_message, lang_tag);
                sent.await.map_err(gone)
            }
            ChannelMsg::XonXoff { client_can_do } => handle.xon_xoff_request(id, client_can_do).await.map_err(gone),
            ChannelMsg::Success => match asked.answer() {
                Some(Ask::Start) => {
                    asked.is_refused.store(false, Ordering::Relaxed);
                    asked.answered.notify_one();
                    handle.channel_success(id).await.map_err(gone)
                }
                _ => Ok(()),
            },
            ChannelMsg::Failure => match asked.answer() {
                Some(Ask::Start) => {
                    asked.is_refused.store(true, Ordering::Relaxed);
                    asked.answered.notify_one();
                    handle.channel_failure(id).await.map_err(gone)
                }
                Some(Ask::Pty) => {
                    let note = "gvm: the machine refused a terminal\r\n";
                    to.extended_data_bytes(STDERR, note.as_bytes()).await
                }
                None => Ok(()),
            },
            ChannelMsg::Close => return End::Guest,
            _ => Ok(()),
        };
        if sent.is_err() {
            return End::Client;
        }
        if has_status && matches!(held, HeldEof::Until(_)) {
            held = HeldEof::No;
            if to.eof().await.is_err() {
                return End::Client;
            }
        }
    }
}

/// Waits for room on the other side for as long as nobody else is kept waiting by it.
pub(super) async fn is_stuck(conn: &Conn) {
    loop {
        tokio::time::sleep(conn.shared.settings.stall).await;
        if conn.channels() > 1 {
            tracing::info!("a channel that takes nothing is closed, because it holds the others up");
            return;
        }
    }
}

async fn patiently(conn: &Conn, send: impl Future<Output = Result<(), Error>>) -> Result<Result<(), Error>, End> {
    tokio::select! {
        biased;
        sent = send => Ok(sent),
        () = is_stuck(conn) => Err(End::Stalled),
    }
}
