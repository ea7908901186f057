//! Jump mode, `ssh -J gateway VM`: a stream to the guest's SSH server. What is in it is between the two ends;
//! the member logs in to the guest with their own key.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt as _;
use russh::server::{ChannelOpenHandle, Msg};
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_util::bytes::{Buf, Bytes, BytesMut};

use super::conn::{ChannelTicket, Conn};
use super::directory::Refusal;
use super::guest;
use super::handler::{CONNECT_FAILED, because};
use super::pump;
use super::target::MachineName;
use crate::api::types::GatewayMode;

/// A read while little comes; what an idle jump holds.
const READ_SMALL: usize = 8 * 1024;
/// A read while data streams in: as many full packets as a session encrypts in one go.
const READ_LARGE: usize = 256 * 1024;
/// Messages written to the guest at once.
const GATHERED_MAX: usize = 16;

/// One jump, from its request to its end.
pub(super) async fn run(
    conn: Arc<Conn>,
    machine: MachineName,
    channel: Channel<Msg>,
    reply: ChannelOpenHandle,
    _ticket: ChannelTicket,
) {
    let stream = match reach(&conn, &machine).await {
        Ok(stream) => stream,
        Err(refusal) => {
            tracing::info!(vm = %machine, code = ?refusal.code, message = %refusal, "jump refused");
            reply.reject(because(CONNECT_FAILED, refusal.line())).await;
            return;
        }
    };
    // Only now: the guest speaks first, and its greeting may not overtake the confirmation.
    reply.accept().await;
    let (from_guest, to_guest) = tokio::io::split(stream);
    let (from_client, to_client) = channel.split();
    let is_half_closed = AtomicBool::new(false);
    let down = down(&conn, from_guest, &to_client, &is_half_closed);
    let up = up(&conn, from_client, to_guest, &is_half_closed);
    tokio::pin!(down, up);
    tokio::select! {
        () = &mut up => {}
        half = &mut down => match half {
            // The guest has said everything; the client may not have.
            Half::Ended => up.await,
            Half::Closed => {}
        },
    }
    let _ = tokio::time::timeout(pump::CLOSE_DEADLINE, to_client.close()).await;
}

async fn reach(conn: &Arc<Conn>, machine: &MachineName) -> Result<Box<dyn super::dial::GuestStream>, Refusal> {
    let ask = conn.question(machine, None, GatewayMode::Jump)?;
    let target = conn.shared.directory.resolve(&ask).await?;
    conn.note_machine(&target.label);
    let stream = guest::dial(conn, &target).await?;
    let user = conn.member().map(|member| member.user.as_str()).unwrap_or_default();
    tracing::info!(%user, vm = %target.label, vm_id = %target.vm_id, mode = "jump", "connected to the machine");
    Ok(stream)
}

/// How the guest's direction came to its end.
enum Half {
    /// All was said; the client's direction goes on.
    Ended,
    /// Both directions are over.
    Closed,
}

/// Guest to client.
async fn down(
    conn: &Conn,
    mut from: impl AsyncRead + Unpin,
    to: &ChannelWriteHalf<Msg>,
    is_half_closed: &AtomicBool,
) -> Half {
    let mut buffer = BytesMut::new();
    let mut size = READ_SMALL;
    loop {
        buffer.reserve(size);
        let read = match from.read_buf(&mut buffer).await {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) => {
                tracing::debug!(%error, "the machine's end of a jump broke");
                return Half::Closed;
            }
        };
        size = if read >= size { (size * 4).min(READ_LARGE) } else { read.max(READ_SMALL).next_power_of_two() };
        conn.note_progress();
        tokio::select! {
            biased;
            sent = to.data_bytes(buffer.split().freeze()) => if sent.is_err() {
                return Half::Closed;
            },
            () = pump::is_stuck(conn) => return Half::Closed,
        }
    }
    let is_sent = to.eof().await.is_ok();
    if is_half_closed.swap(true, Ordering::AcqRel) || !is_sent { Half::Closed } else { Half::Ended }
}

/// Client to guest. After the client's end of data it still listens, for the close.
async fn up(conn: &Conn, mut from: ChannelReadHalf, mut to: impl AsyncWrite + Unpin, is_half_closed: &AtomicBool) {
    let mut gathered = Gathered::default();
    let mut next = None;
    loop {
        let message = match next.take() {
            Some(message) => message,
            None => from.wait().await,
        };
        match message {
            Some(ChannelMsg::Data { data }) => {
                conn.note_progress();
                next = gathered.fill(data, &mut from);
                tokio::select! {
                    biased;
                    sent = to.write_all_buf(&mut gathered) => if sent.is_err() {
                        return;
                    },
                    () = pump::is_stuck(conn) => return,
                }
            }
            Some(ChannelMsg::Eof) => {
                let is_sent = to.shutdown().await.is_ok();
                if is_half_closed.swap(true, Ordering::AcqRel) || !is_sent {
                    return;
                }
            }
            Some(ChannelMsg::Close) | None => return,
            Some(_) => {}
        }
    }
}

/// Data of several messages, to be written with one system call. Never more than the channel's queue held.
#[derive(Default)]
struct Gathered {
    parts: VecDeque<Bytes>,
    bytes: usize,
}

impl Gathered {
    /// Takes `first` and what else is there already; gives back the message that is no data.
    fn fill(&mut self, first: Bytes, from: &mut ChannelReadHalf) -> Option<Option<ChannelMsg>> {
        self.push(first);
        while self.parts.len() < GATHERED_MAX {
            match from.wait().now_or_never()? {
                Some(ChannelMsg::Data { data }) => self.push(data),
                Some(ChannelMsg::WindowAdjusted { .. }) => {}
                other => return Some(other),
            }
        }
        None
    }

    fn push(&mut self, data: Bytes) {
        // An empty part in front would look like the end of all.
        if !data.is_empty() {
            self.bytes += data.len();
            self.parts.push_back(data);
        }
    }
}

impl Buf for Gathered {
    fn remaining(&self) -> usize {
        self.bytes
    }

    fn chunk(&self) -> &[u8] {
        self.parts.front().map_or(&[], |part| part)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut used = 0;
        for (slice, part) in slices.iter_mut().zip(&self.parts) {
            *slice = IoSlice::new(part);
            used += 1;
        }
        used
    }

    fn advance(&mut self, mut count: usize) {
        self.bytes -= count;
        while let Some(part) = self.parts.front_mut() {
            if count < part.len() {
                part.advance(count);
                return;
            }
            count -= part.len();
            self.parts.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathered_data_is_one_buffer() {
        let mut gathered = Gathered::default();
        for part in ["first", "", "second", "third"] {
            gathered.push(Bytes::from(part));
        }
        let mut slices = [IoSlice::new(&[]); 8];
        assert_eq!((gathered.remaining(), gathered.chunks_vectored(&mut slices)), (16, 3));
        gathered.advance(7);
        assert_eq!((gathered.chunk(), gathered.remaining()), (&b"cond"[..], 9));
        gathered.advance(9);
        assert_eq!((gathered.chunk(), gathered.remaining()), (&b""[..], 0));
    }
}
