//! The API over the network: TLS, and limits on what strangers can hold.
//!
//! ```text
//!   accept -> gate (in all, in handshake, per address) -> TLS -> HTTP/1 with deadlines -> the router of the socket
//! ```
//!
//! Nothing here knows who asks: that is a token's matter, further in.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderName, HeaderValue, Request, Response, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_service::Service as _;

use super::Peer;
use super::tls::{Certificates, REFRESH_EVERY, TlsError};
use crate::config::HttpsConfig;
use crate::gate::{Complaints, Gate, Limits, Permit};

/// How long accepting waits after it failed, most likely for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long connections may go on after the listener was told to stop.
const DRAIN: Duration = Duration::from_secs(10);
/// Largest head of a request, and the most headers.
const HEAD_MAX: usize = 32 * 1024;
const HEADERS_MAX: usize = 64;
/// Read at once from one connection.
const BUFFER: usize = 64 * 1024;
/// The first byte of a TLS connection: a handshake record.
const TLS_HANDSHAKE: u8 = 0x16;
/// For a client that speaks plain HTTP to take its answer.
const PLAIN_DEADLINE: Duration = Duration::from_secs(2);
/// Said to it.
const PLAIN: &str = "this port speaks HTTPS only; write https:// in place of http://\n";
/// In the head of every answer.
const HEADERS: [(HeaderName, &str); 5] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::CACHE_CONTROL, "no-store"),
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_FRAME_OPTIONS, "DENY"),
];
/// Two years, where a public authority signed the certificate: another kind could not be replaced after it.
const HSTS: &str = "max-age=63072000";

/// A listener that is not served yet.
#[derive(Debug)]
pub struct Https {
    listener: TcpListener,
    address: SocketAddr,
    certificates: Arc<Certificates>,
    tls: Arc<ServerConfig>,
    gate: Arc<Gate>,
    handshake: Duration,
    idle: Duration,
}

/// Why there is no listener.
#[derive(Debug, thiserror::Error)]
pub enum HttpsError {
    /// The address.
    #[error("cannot listen on {address}; is https.listen taken?")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The certificate.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl Https {
    /// Listens at `address` with this certificate.
    ///
    /// # Errors
    /// [`HttpsError`].
    pub async fn bind(
        config: &HttpsConfig,
        address: SocketAddr,
        certificates: Arc<Certificates>,
    ) -> Result<Self, HttpsError> {
        let failed = |source| HttpsError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let limits = Limits {
            connections: config.max_connections,
            unauthenticated: (config.max_connections / 4).max(16),
            per_address: config.max_per_address,
            channels: 1,
        };
        Ok(Self {
            listener,
            address,
            tls: certificates.server_config()?,
            certificates,
            gate: Gate::new(limits),
            handshake: Duration::from_secs(config.handshake_seconds),
            idle: Duration::from_secs(config.idle_seconds),
        })
    }

    /// Where it listens; the port is a real one.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it shows to clients.
    pub const fn certificates(&self) -> &Arc<Certificates> {
        &self.certificates
    }

    /// Serves until `stop`; requests under way come to their end, within a deadline.
    pub async fn serve(self, router: Router, stop: CancellationToken) {
        let tasks = TaskTracker::new();
        tasks.spawn(refresh(Arc::clone(&self.certificates), stop.clone()));
        // Cut off when the time for the drain is over.
        let kill = CancellationToken::new();
        let shared = Arc::new(Shared {
            tls: Arc::clone(&self.tls),
            certificates: Arc::clone(&self.certificates),
            router,
            handshake: self.handshake,
            idle: self.idle,
            stop: stop.clone(),
            kill: kill.clone(),
        });
        self.accept_until(&shared, &tasks).await;
        drop(self.listener);
        tasks.close();
        if tokio::time::timeout(DRAIN, tasks.wait()).await.is_err() {
            tracing::warn!(cut_off = self.gate.connections(), "connections over HTTPS did not end by themselves");
            kill.cancel();
            tasks.wait().await;
        }
    }

    async fn accept_until(&self, shared: &Arc<Shared>, tasks: &TaskTracker) {
        let mut complaints = Complaints::default();
        loop {
            let accepted = tokio::select! {
                () = shared.stop.cancelled() => return,
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
            match self.gate.admit(peer.ip()) {
                Ok(permit) => {
                    let shared = Arc::clone(shared);
                    tasks.spawn(async move {
                        tokio::select! {
                            () = shared.kill.cancelled() => {}
                            () = connection(&shared, stream, peer, permit) => {}
                        }
                    });
                }
                Err(full) => complaints.say(&format!("{peer} is sent away: {full}")),
            }
        }
    }
}

#[derive(Debug)]
struct Shared {
    tls: Arc<ServerConfig>,
    certificates: Arc<Certificates>,
    router: Router,
    handshake: Duration,
    idle: Duration,
    stop: CancellationToken,
    kill: CancellationToken,
}

/// Looks for a new certificate now and then, and at SIGHUP.
async fn refresh(certificates: Arc<Certificates>, stop: CancellationToken) {
    let mut hangup = signal(SignalKind::hangup()).ok();
    let told = async |hangup: &mut Option<tokio::signal::unix::Signal>| match hangup {
        Some(hangup) => hangup.recv().await,
        None => std::future::pending().await,
    };
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(REFRESH_EVERY) => {}
            _ = told(&mut hangup) => {}
        }
        let certificates = Arc::clone(&certificates);
        // Files may lie on a slow disk.
        let _ = tokio::task::spawn_blocking(move || certificates.refresh()).await;
    }
}

/// One connection from its first byte to its end.
async fn connection(shared: &Shared, stream: TcpStream, peer: SocketAddr, permit: Permit) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no nodelay");
    }
    let shaken = tokio::time::timeout(shared.handshake, async {
        let mut first = [0];
        if stream.peek(&mut first).await? == 1 && first != [TLS_HANDSHAKE] {
            say_plainly(stream).await;
            return Ok(None);
        }
        TlsAcceptor::from(Arc::clone(&shared.tls)).accept(stream).await.map(Some)
    });
    let tls = match shaken.await {
        Ok(Ok(Some(tls))) => tls,
        Ok(Ok(None)) | Err(_) => return,
        Ok(Err(error)) => {
            tracing::debug!(%peer, %error, "no TLS");
            return;
        }
    };
    permit.authenticated();
    let io = TokioIo::new(Counted { stream: tls, _permit: permit });
    let service = hyper::service::service_fn(|request| answer(shared, peer, request));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(shared.idle)
        .max_buf_size(BUFFER)
        .max_header_size(HEAD_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(io, service)
        .with_upgrades();
    let mut served = std::pin::pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = shared.stop.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a connection over HTTPS broke");
    }
}

async fn answer(
    shared: &Shared,
    peer: SocketAddr,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, std::convert::Infallible> {
    request.extensions_mut().insert(ConnectInfo(Peer::Network(peer)));
    let mut response = shared.router.clone().call(request).await?;
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if shared.certificates.is_public() {
        headers.insert(header::STRICT_TRANSPORT_SECURITY, HeaderValue::from_static(HSTS));
    }
    Ok(response)
}

/// Tells a client without TLS what to do.
async fn say_plainly(mut stream: TcpStream) {
    let text = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{PLAIN}",
        PLAIN.len()
    );
    let told = async {
        stream.write_all(text.as_bytes()).await?;
        stream.shutdown().await?;
        // What is left unread would make a reset of the end, and the answer might be lost.
        tokio::io::copy(&mut (&mut stream).take(HEAD_MAX as u64), &mut tokio::io::sink()).await
    };
    let _ = tokio::time::timeout(PLAIN_DEADLINE, told).await;
}

/// A connection that counts for as long as somebody holds it: a console is more than its first request.
#[derive(Debug)]
struct Counted<S> {
    stream: S,
    _permit: Permit,
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
