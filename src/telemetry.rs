//! Logs.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;

/// Sends logs to standard error: text on a terminal, JSON elsewhere. `GVM_LOG` filters them, as in `gvm=debug`.
pub fn init() {
    let filter = EnvFilter::try_from_env("GVM_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // A second call, as tests make it, changes nothing.
    let _ = if io::stderr().is_terminal() { logs.try_init() } else { logs.json().try_init() };
}
