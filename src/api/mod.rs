//! The HTTP API: its wire types, its client, its server.
//!
//! `types`, `error` and `client` know nothing of the manager; the command line and the gateway use only them.

pub mod client;
pub mod error;
#[cfg(feature = "libvirt")]
pub mod server;
pub mod types;
