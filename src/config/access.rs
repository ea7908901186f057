//! `[https]` and `[tokens]`: the way in from other machines.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The API over the network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HttpsConfig {
    /// Where it listens; absent means nowhere.
    pub listen: Option<SocketAddr>,
    /// The certificate with its chain, PEM; absent means one that signs itself.
    pub certificate: Option<PathBuf>,
    /// Its private key, PEM.
    pub key: Option<PathBuf>,
    /// The names that clients reach it by; absent means the gateway's host.
    pub names: Vec<String>,
    /// Connections at once.
    pub max_connections: usize,
    /// Connections at once from one address.
    pub max_per_address: usize,
    /// Seconds for the TLS handshake.
    pub handshake_seconds: u64,
    /// Seconds from one answer to the whole head of the next request.
    pub idle_seconds: u64,
    /// Requests in a second from one address.
    pub requests_per_second: u32,
    /// Requests in a second of one person.
    pub person_requests_per_second: u32,
}

impl Default for HttpsConfig {
    fn default() -> Self {
        Self {
            listen: None,
            certificate: None,
            key: None,
            names: Vec::new(),
            max_connections: 1024,
            max_per_address: 128,
            handshake_seconds: 10,
            idle_seconds: 30,
            requests_per_second: 200,
            person_requests_per_second: 100,
        }
    }
}

/// API tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TokensConfig {
    /// Days that a token lives where nothing else is asked for.
    pub default_days: u64,
    /// Days that a token may live.
    pub max_days: u64,
    /// Hours that a login lives.
    pub session_hours: u64,
}

impl Default for TokensConfig {
    fn default() -> Self {
        Self { default_days: 90, max_days: 366, session_hours: 12 }
    }
}
