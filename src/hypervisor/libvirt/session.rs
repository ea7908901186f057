//! One thread's connection: opened when needed, dropped when dead, opened again with growing pauses.

use std::time::{Duration, Instant};

use virt::connect::Connect;

use super::error::classify;
use crate::hypervisor::{ErrorKind, HypervisorError, Result};

/// First and longest pause between two tries to connect.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));

/// Seconds between keepalive messages, and how many may stay unanswered. A frozen libvirtd is noticed after their
/// product, which frees the calls that hang in it.
const KEEPALIVE: (i32, u32) = (5, 4);

pub(super) struct Session {
    uri: String,
    conn: Option<Connect>,
    pause: Duration,
    next_try: Instant,
    last_failure: Option<HypervisorError>,
}

impl Session {
    pub(super) fn new(uri: &str) -> Self {
        Self { uri: uri.to_owned(), conn: None, pause: PAUSES.0, next_try: Instant::now(), last_failure: None }
    }

    /// The open connection. Between two tries the last failure is repeated without asking again.
    pub(super) fn connection(&mut self) -> Result<&Connect> {
        self.check();
        if self.conn.is_none() {
            self.open()?;
        }
        let closed = || HypervisorError::new(ErrorKind::Transient, "connecting to libvirt", "not connected");
        self.conn.as_ref().ok_or_else(closed)
    }

    /// Drops the connection where it is dead. Asks no daemon: the client knows whether its socket is closed.
    pub(super) fn check(&mut self) {
        if self.conn.as_ref().is_some_and(|conn| !conn.is_alive().unwrap_or(false)) {
            tracing::info!(uri = self.uri, "the connection to libvirt is lost");
            self.conn = None;
        }
    }

    fn open(&mut self) -> Result<()> {
        if let Some(failure) = self.last_failure.as_ref().filter(|_| Instant::now() < self.next_try) {
            return Err(failure.clone());
        }
        match open(&self.uri) {
            Ok(conn) => {
                self.conn = Some(conn);
                self.pause = PAUSES.0;
                self.last_failure = None;
                Ok(())
            }
            Err(failure) => {
                self.next_try = Instant::now() + self.pause;
                self.pause = PAUSES.1.min(self.pause * 2);
                self.last_failure = Some(failure.clone());
                Err(failure)
            }
        }
    }
}

/// Opens a connection with keepalive. The event loop must run, or the daemon's keepalive would end it.
pub(in crate::hypervisor) fn open(uri: &str) -> Result<Connect> {
    let doing = format!("connecting to libvirt at {uri}");
    // Our answer to a missing daemon is to try again, whatever libvirt calls it.
    let conn = Connect::open(Some(uri)).map_err(|e| {
        let error = classify(&doing, &e);
        let kind = if error.kind == ErrorKind::Permanent { error.kind } else { ErrorKind::Transient };
        HypervisorError { kind, ..error }
    })?;
    // In-process drivers have none.
    let _ = conn.set_keep_alive(KEEPALIVE.0, KEEPALIVE.1);
    Ok(conn)
}
