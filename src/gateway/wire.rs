//! The stream below an SSH connection: reads ahead, and ends when its connection is ended.
//!
//! russh reads a packet's length and then its body, two system calls each; reading ahead makes that one for
//! several packets. It has no way to end a session from outside either (its tasks are detached, and a peer that
//! never closes keeps them), so the stream itself fails once the connection's token is cancelled.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Enough for keystrokes and window adjustments; what an idle connection holds.
const SMALL: usize = 4 * 1024;
/// Several full packets; held only while data streams in.
const LARGE: usize = 128 * 1024;
/// So many small reads in a row, and the large buffer is given back.
const SMALL_READS: u32 = 32;

/// What a supervisor can see of a stream.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    written: AtomicU64,
    is_blocked: AtomicBool,
}

impl Traffic {
    /// Bytes written so far, where the peer takes none at the moment.
    pub fn blocked_at(&self) -> Option<u64> {
        self.is_blocked.load(Ordering::Relaxed).then(|| self.written.load(Ordering::Relaxed))
    }
}

/// A stream with its read-ahead buffer.
pub(super) struct Wire<S> {
    stream: S,
    ahead: Box<[u8]>,
    start: usize,
    end: usize,
    /// Small reads in a row: tells whether data streams in.
    small_reads: u32,
    traffic: Arc<Traffic>,
    stop: CancellationToken,
    stop_read: Pin<Box<WaitForCancellationFutureOwned>>,
    stop_write: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<S> Wire<S> {
    /// Wraps `stream` until `stop` is cancelled.
    pub fn new(stream: S, stop: &CancellationToken, traffic: Arc<Traffic>) -> Self {
        Self {
            stream,
            ahead: Box::default(),
            start: 0,
            end: 0,
            small_reads: SMALL_READS,
            traffic,
            stop: stop.clone(),
            stop_read: Box::pin(stop.clone().cancelled_owned()),
            stop_write: Box::pin(stop.clone().cancelled_owned()),
        }
    }

    /// Moves what was read ahead into `out`.
    fn take(&mut self, out: &mut ReadBuf<'_>) -> bool {
        let held = self.ahead.get(self.start..self.end).unwrap_or_default();
        let part = held.get(..held.len().min(out.remaining())).unwrap_or_default();
        out.put_slice(part);
        self.start += part.len();
        !part.is_empty()
    }

    /// Fits the empty buffer to the traffic.
    fn resize(&mut self) {
        let wanted = if self.small_reads < SMALL_READS { LARGE } else { SMALL };
        if self.ahead.len() != wanted {
            self.ahead = vec![0; wanted].into_boxed_slice();
        }
    }
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the connection was ended by the gateway")
}

impl<S: AsyncRead + Unpin> AsyncRead for Wire<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.take(out) || out.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        // A peer that never stops sending never lets the read below wait.
        if this.stop.is_cancelled() {
            return Poll::Ready(Err(ended()));
        }
        this.resize();
        let mut ahead = ReadBuf::new(&mut this.ahead);
        match Pin::new(&mut this.stream).poll_read(cx, &mut ahead) {
            Poll::Ready(done) => {
                done?;
                let read = ahead.filled().len();
                this.small_reads = if read >= SMALL { 0 } else { this.small_reads.saturating_add(1) };
                (this.start, this.end) = (0, read);
                this.take(out);
                Poll::Ready(Ok(()))
            }
            Poll::Pending => {
                ready!(this.stop_read.as_mut().poll(cx));
                Poll::Ready(Err(ended()))
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        match Pin::new(&mut this.stream).poll_write(cx, data) {
            Poll::Ready(Ok(written)) => {
                this.traffic.written.fetch_add(written as u64, Ordering::Relaxed);
                this.traffic.is_blocked.store(false, Ordering::Relaxed);
                Poll::Ready(Ok(written))
            }
            Poll::Ready(fault) => Poll::Ready(fault),
            Poll::Pending => {
                this.traffic.is_blocked.store(true, Ordering::Relaxed);
                ready!(this.stop_write.as_mut().poll(cx));
                Poll::Ready(Err(ended()))
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn wire<S>(stream: S) -> (Wire<S>, CancellationToken) {
        let stop = CancellationToken::new();
        (Wire::new(stream, &stop, Arc::default()), stop)
    }

    #[tokio::test]
    async fn bytes_come_through_in_order_whatever_the_sizes() {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let (mut near, _stop) = wire(near);
        let sent: Vec<u8> = (0..1_000_000_u32).map(|i| (i * 31 % 251) as u8).collect();
        let copy = sent.clone();
        let writer = tokio::spawn(async move {
            let (mut reader, mut far) = tokio::io::split(far);
            for part in copy.chunks(30_011) {
                far.write_all(part).await.unwrap();
            }
            drop(far);
            let mut rest = Vec::new();
            reader.read_to_end(&mut rest).await.unwrap();
        });
        let mut got = Vec::new();
        for size in [4, 32 * 1024, 1, 200_000].into_iter().cycle() {
            let mut part = vec![0; size];
            let n = near.read(&mut part).await.unwrap();
            got.extend_from_slice(&part[..n]);
            if got.len() == sent.len() {
                break;
            }
        }
        assert!(got == sent);
        drop(near);
        writer.await.unwrap();
    }

    #[tokio::test]
    async fn a_cancelled_connection_ends_reads_and_blocked_writes() {
        let (near, _far) = tokio::io::duplex(8);
        let traffic = Arc::new(Traffic::default());
        let stop = CancellationToken::new();
        let mut near = Wire::new(near, &stop, Arc::clone(&traffic));
        let cancel = async {
            tokio::task::yield_now().await;
            assert_eq!(traffic.blocked_at(), Some(8));
            stop.cancel();
        };
        let (written, ()) = tokio::join!(near.write_all(b"more than eight bytes"), cancel);
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        assert!(near.read_u8().await.is_err());
    }
}
