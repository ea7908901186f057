//! The serial line, as a stream of bytes.
//!
//! ```text
//!   caller <--duplex pipe, bounded--> [gvm-console-r: recv] <-- libvirt stream on a connection of its own
//!                                     [gvm-console-w: send] -->
//! ```
//!
//! libvirt's calls on a stream block, and a stream's callbacks are broken in `virt`; so there are two threads for each
//! open line. Whichever side ends first ends the other: a closed pipe aborts the stream, which ends a blocked `recv`;
//! an ended stream shuts the pipe. Opening a line closes the one that was open (`VIR_DOMAIN_CONSOLE_FORCE`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use virt::stream::Stream;
use virt_sys as sys;

use super::error::Said;
use super::observe::need_active;
use super::session::open as connect;
use crate::hypervisor::{ByteStream, ErrorKind, HypervisorError, Result};
use crate::model::id::VmId;
use crate::model::vm::domain_name;

/// Lines open at once; each holds two threads and a connection of libvirtd.
const MAX_OPEN: usize = 128;

/// Bytes on their way in one direction. A guest that floods its line waits when nobody reads.
const PIPE: usize = 64 << 10;

/// Bytes of one call.
const CHUNK: usize = 16 << 10;

/// Counts open lines.
#[derive(Debug, Default)]
pub(super) struct Consoles {
    open: Arc<AtomicUsize>,
}

/// One open line in the count.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Consoles {
    /// Opens the line of a running machine.
    pub(super) async fn open(&self, uri: &str, vm: VmId, deadline: Duration) -> Result<Box<dyn ByteStream>> {
        let doing = format!("opening the console of domain {}", domain_name(vm));
        let place = Place(Arc::clone(&self.open));
        if self.open.fetch_add(1, Ordering::AcqRel) >= MAX_OPEN {
            let message = format!("{MAX_OPEN} consoles are open already");
            return Err(HypervisorError::new(ErrorKind::Transient, doing, message));
        }
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let (ready, opened) = oneshot::channel();
        let (runtime, uri, about) = (Handle::current(), uri.to_owned(), doing.clone());
        let life = move || {
            let _place = place;
            match stream(&uri, vm, &about) {
                Ok(stream) => {
                    // A caller that went away has closed its end of the pipe: the line ends at once.
                    let _ = ready.send(Ok(()));
                    bridge(&runtime, &stream, ours, &about);
                }
                Err(error) => drop(ready.send(Err(error))),
            }
        };
        let broken = |e: std::io::Error| HypervisorError::new(ErrorKind::Transient, doing.as_str(), e.to_string());
        thread::Builder::new().name("gvm-console-r".to_owned()).spawn(life).map_err(broken)?;
        match tokio::time::timeout(deadline, opened).await {
            Ok(Ok(Ok(()))) => Ok(Box::new(theirs)),
            Ok(Ok(Err(error))) => Err(error),
            Ok(Err(_)) => Err(HypervisorError::new(ErrorKind::Transient, doing, "the call broke off inside gvm")),
            Err(_) => {
                let message = format!("libvirt did not answer within {} s", deadline.as_secs_f32());
                Err(HypervisorError::new(ErrorKind::Transient, doing, message))
            }
        }
    }
}

/// The stream keeps its connection open.
fn stream(uri: &str, vm: VmId, doing: &str) -> Result<Stream> {
    let conn = connect(uri)?;
    let ours = need_active(&conn, vm, doing)?;
    let stream = Stream::new(&conn, 0).said(doing)?;
    ours.domain.open_console(None, &stream, sys::VIR_DOMAIN_CONSOLE_FORCE).said(doing)?;
    Ok(stream)
}

/// Carries bytes both ways until one side ends.
fn bridge(runtime: &Handle, stream: &Stream, pipe: DuplexStream, doing: &str) {
    let (from_caller, to_caller) = tokio::io::split(pipe);
    let ended = CancellationToken::new();
    thread::scope(|scope| {
        let sender = || send(runtime, stream, from_caller, &ended);
        if let Err(error) = thread::Builder::new().name("gvm-console-w".to_owned()).spawn_scoped(scope, sender) {
            tracing::error!(doing, %error, "no thread for a console");
            return;
        }
        receive(runtime, stream, to_caller);
        // Ends a sender that waits for the caller; one that hangs in `send` was ended with the stream.
        ended.cancel();
    });
}

/// Line to caller.
fn receive(runtime: &Handle, stream: &Stream, mut to_caller: WriteHalf<DuplexStream>) {
    let mut chunk = vec![0; CHUNK];
    // Negative lengths mean "would block" and "hole", neither of which a blocking console has.
    while let Ok(length) = stream.recv(&mut chunk) {
        let bytes = usize::try_from(length).ok().and_then(|length| chunk.get(..length)).unwrap_or_default();
        if bytes.is_empty() || runtime.block_on(to_caller.write_all(bytes)).is_err() {
            break;
        }
    }
    let _ = stream.clone().abort();
    let _ = runtime.block_on(to_caller.shutdown());
}

/// Caller to line.
fn send(runtime: &Handle, stream: &Stream, mut from_caller: ReadHalf<DuplexStream>, ended: &CancellationToken) {
    let mut chunk = vec![0; CHUNK];
    loop {
        let read = runtime.block_on(async {
            tokio::select! {
                read = from_caller.read(&mut chunk) => read.unwrap_or(0),
                () = ended.cancelled() => 0,
            }
        });
        let Some(mut rest) = chunk.get(..read).filter(|bytes| !bytes.is_empty()) else { break };
        while !rest.is_empty() {
            match stream.send(rest).map(usize::try_from) {
                Ok(Ok(sent)) if sent > 0 => rest = rest.get(sent..).unwrap_or_default(),
                _ => break,
            }
        }
        if !rest.is_empty() {
            break;
        }
    }
    // Ends a `recv` that waits for the guest.
    let _ = stream.clone().abort();
}
