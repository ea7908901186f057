//! The connection to a directory: TCP, TLS where it is wanted, and every answer measured before anybody reads it.
//!
//! ```text
//!   directory <--TCP, TLS--> pump: size and depth of each message <--socket pair--> ldap3
//! ```
//!
//! The library reads messages of any size and any depth, each level on the stack; a directory that lies would end the
//! manager with it.

use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::LdapError;
use crate::config::LdapConfig;
use crate::model::login::endpoint::Endpoint;

/// Until a connection stands, with TLS.
const CONNECT: Duration = Duration::from_secs(5);
/// Largest message: an entry with a thousand groups is 128 KiB.
const MAX_MESSAGE: usize = 256 * 1024;
/// All answers of one login.
const MAX_ALL: usize = 1024 * 1024;
/// A search's entry has five levels.
const MAX_DEPTH: u8 = 10;
/// "Begin TLS" as message 1 (RFC 4511, 4.14).
const START_TLS: &[u8] = b"\x30\x1d\x02\x01\x01\x77\x18\x80\x161.3.6.1.4.1.1466.20037";

fn silent(doing: &str, why: &dyn std::fmt::Display) -> LdapError {
    LdapError::Directory(format!("cannot be reached ({doing}): {why}"))
}

/// Connects. Gives the end for the library, and the future that carries bytes for it: it ends only with an error.
pub async fn open(config: &LdapConfig) -> Result<(StdUnixStream, impl Future<Output = LdapError> + use<>), LdapError> {
    let connected = tokio::time::timeout(CONNECT, connect(config)).await;
    let server =
        connected.map_err(|_| silent("connecting", &format!("no answer within {} s", CONNECT.as_secs())))??;
    let (ours, theirs) = UnixStream::pair().map_err(|e| silent("a pair of sockets", &e))?;
    let theirs = theirs.into_std().map_err(|e| silent("a pair of sockets", &e))?;
    Ok((theirs, pump(server, ours)))
}

trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

async fn connect(config: &LdapConfig) -> Result<Box<dyn Wire>, LdapError> {
    let endpoint =
        Endpoint::parse(&config.url).ok_or_else(|| LdapError::Setup("login.ldap.url is no address".into()))?;
    let is_tls = endpoint.scheme == "ldaps";
    let port = endpoint.port.unwrap_or(if is_tls { 636 } else { 389 });
    let mut tcp = TcpStream::connect((endpoint.host.as_str(), port)).await.map_err(|e| silent("connecting", &e))?;
    if config.starttls {
        start_tls(&mut tcp).await?;
    }
    if !is_tls && !config.starttls {
        return Ok(Box::new(tcp));
    }
    let setup = |why: String| LdapError::Setup(why);
    let name = ServerName::try_from(endpoint.host).map_err(|e| setup(format!("login.ldap.url: {e}")))?;
    let connector = TlsConnector::from(Arc::new(trusting(config)?));
    let tls = connector.connect(name, tcp).await.map_err(|e| silent("TLS", &e))?;
    Ok(Box::new(tls))
}

/// Trusts the authorities of the file.
fn trusting(config: &LdapConfig) -> Result<ClientConfig, LdapError> {
    let path = config.ca_file.display();
    let read = CertificateDer::pem_file_iter(&config.ca_file);
    let read = read.map_err(|e| LdapError::Setup(format!("login.ldap.ca_file {path} cannot be read: {e}")))?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(read.filter_map(Result::ok));
    if roots.is_empty() {
        return Err(LdapError::Setup(format!("login.ldap.ca_file {path} holds no certificate")));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|e| LdapError::Setup(format!("TLS cannot be used: {e}")))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// Asks for TLS. The answer is read to its last byte and no further, so that nothing that was sent in the clear counts
/// as being said under TLS.
async fn start_tls(tcp: &mut TcpStream) -> Result<(), LdapError> {
    tcp.write_all(START_TLS).await.map_err(|e| silent("StartTLS", &e))?;
    let message = message(tcp).await?.ok_or_else(|| silent("StartTLS", &"it hung up"))?;
    // Sequence { 1, ExtendedResponse { success ... } }
    let is_yes = || {
        let (0x30, body, _) = element(&message)? else { return None };
        let (0x02, b"\x01", rest) = element(body)? else { return None };
        let (0x78, body, _) = element(rest)? else { return None };
        let (0x0a, b"\x00", _) = element(body)? else { return None };
        Some(())
    };
    is_yes().ok_or_else(|| LdapError::Directory("offers no TLS on this address; use ldaps://".into()))
}

/// Carries bytes both ways until an answer is out of bounds. The end of either side is passed on, not told.
async fn pump(server: Box<dyn Wire>, ours: UnixStream) -> LdapError {
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let (mut from_us, mut to_us) = ours.into_split();
    let answers = async {
        let mut all = 0_usize;
        loop {
            let message = match message(&mut from_server).await {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(why) => return why,
            };
            all = all.saturating_add(message.len());
            if all > MAX_ALL {
                return LdapError::Directory("answers with more than can be meant".into());
            }
            if to_us.write_all(&message).await.is_err() {
                break;
            }
        }
        drop(to_us);
        std::future::pending().await
    };
    let questions = async {
        let _ = tokio::io::copy(&mut from_us, &mut to_server).await;
        let _ = to_server.shutdown().await;
        std::future::pending().await
    };
    tokio::select! {
        why = answers => why,
        never = questions => never,
    }
}

/// The next whole message; none at the end.
async fn message(from: &mut (impl AsyncRead + Unpin)) -> Result<Option<Vec<u8>>, LdapError> {
    let odd = || LdapError::Directory("sent an answer that is no LDAP, or too large".into());
    let broken = |e: std::io::Error| LdapError::Directory(format!("broke the connection: {e}"));
    let mut message = vec![0; 2];
    match from.read_exact(&mut message).await {
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(e) => return Err(broken(e)),
    }
    let [0x30, length] = message.as_slice() else { return Err(odd()) };
    let length = match length.checked_sub(0x80) {
        None => usize::from(*length),
        // Of no length at all (indefinite), which LDAP forbids, or a needlessly long one.
        Some(0 | 5..) => return Err(odd()),
        Some(more) => {
            let mut bytes = vec![0; usize::from(more)];
            from.read_exact(&mut bytes).await.map_err(broken)?;
            message.extend_from_slice(&bytes);
            bytes.iter().fold(0_usize, |length, byte| length << 8 | usize::from(*byte))
        }
    };
    if length > MAX_MESSAGE {
        return Err(odd());
    }
    let begin = message.len();
    message.resize(begin + length, 0);
    from.read_exact(message.get_mut(begin..).unwrap_or_default()).await.map_err(broken)?;
    if is_sound(&message, MAX_DEPTH) { Ok(Some(message)) } else { Err(odd()) }
}

/// The first element of BER: its tag, its body and what follows it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, length], rest) = bytes.split_first_chunk::<2>()?;
    let (length, rest) = match length.checked_sub(0x80) {
        None => (usize::from(length), rest),
        Some(0 | 5..) => return None,
        Some(more) => {
            let (bytes, rest) = rest.split_at_checked(usize::from(more))?;
            (bytes.iter().fold(0_usize, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
    };
    let (body, rest) = rest.split_at_checked(length)?;
    Some((tag, body, rest))
}

/// True where all elements lie within each other, and not too deep.
fn is_sound(mut bytes: &[u8], depth: u8) -> bool {
    while !bytes.is_empty() {
        let Some((tag, body, rest)) = element(bytes) else { return false };
        let is_constructed = tag & 0x20 != 0;
        if is_constructed && (depth == 0 || !is_sound(body, depth - 1)) {
            return false;
        }
        bytes = rest;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Option<Vec<u8>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut from = bytes;
        runtime.block_on(message(&mut from)).ok().flatten()
    }

    #[test]
    fn messages_are_taken_whole_and_no_further() {
        let message = b"\x30\x0c\x02\x01\x01\x61\x07\x0a\x01\x00\x04\x00\x04\x00";
        assert_eq!(read(&[&message[..], b"rest"].concat()).unwrap(), message);
        assert_eq!(read(b""), None);
        assert!(is_sound(START_TLS, 2), "what we send is what we would take");
    }

    #[test]
    fn what_would_hurt_the_reader_is_refused() {
        let mut deep = vec![0x30, 0x00];
        for _ in 0..60 {
            deep = [&[0x30, u8::try_from(deep.len()).unwrap()], deep.as_slice()].concat();
        }
        for bad in [
            &deep[..],
            b"\x30\x80\x00\x00",
            b"\x30\x84\xff\xff\xff\xff",
            b"\x30\x85\x00\x00\x00\x00\x01\x00",
            b"\x30\x03\x30\x05\x00",
            b"\x30\x02\x02\x05",
            b"HTTP/1.1 400",
            b"\x31\x00",
        ] {
            assert_eq!(read(bad), None, "{bad:02x?}");
        }
    }
}
