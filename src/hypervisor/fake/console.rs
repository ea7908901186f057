//! A serial line whose guest says back what it hears.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, Join, ReadBuf, ReadHalf, SimplexStream, WriteHalf, join, simplex};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Bytes between what was written and what was read back.
const LINE_BUFFER: usize = 64 << 10;

/// The line, ended by its token: when another one is opened, or when the machine goes off.
pub(super) struct Echo {
    line: Join<ReadHalf<SimplexStream>, WriteHalf<SimplexStream>>,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
    is_closed: bool,
}

impl Echo {
    pub(super) fn new(token: CancellationToken) -> Self {
        let (reader, writer) = simplex(LINE_BUFFER);
        Self { line: join(reader, writer), closed: Box::pin(token.cancelled_owned()), is_closed: false }
    }

    fn poll_closed(&mut self, cx: &mut Context<'_>) -> bool {
        self.is_closed = self.is_closed || self.closed.as_mut().poll(cx).is_ready();
        self.is_closed
    }
}

impl fmt::Debug for Echo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Echo").field("is_closed", &self.is_closed).finish_non_exhaustive()
    }
}

impl AsyncRead for Echo {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.poll_closed(cx) {
            return Poll::Ready(Ok(()));
        }
        let result = ready!(Pin::new(&mut self.line).poll_read(cx, buf));
        Poll::Ready(result)
    }
}

impl AsyncWrite for Echo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.poll_closed(cx) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        Pin::new(&mut self.line).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.line).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.line).poll_shutdown(cx)
    }
}
