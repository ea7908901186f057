//! The way to a guest's SSH server. One method, so that tests lead it elsewhere and vsock can join later.

use std::fmt;
use std::io;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A connection to a guest.
pub trait GuestStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> GuestStream for S {}

/// Connects to guests.
#[async_trait]
pub trait GuestDialer: Send + Sync + fmt::Debug {
    /// A connection to `address`, the `address:port` that the manager named. The caller limits the time.
    async fn dial(&self, address: &str) -> io::Result<Box<dyn GuestStream>>;
}

/// Over TCP, on the members' network.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpDialer;

#[async_trait]
impl GuestDialer for TcpDialer {
    async fn dial(&self, address: &str) -> io::Result<Box<dyn GuestStream>> {
        // An address, never a name: the gateway asks no name server about guests.
        let address: std::net::SocketAddr =
            address.parse().map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }
}
