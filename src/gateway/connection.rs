//! One client connection from its first byte to its last, and the watch over it: time to log in, idleness,
//! a peer that takes nothing, the gateway's end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use russh::server::RunningSession;
use russh::{Disconnect, server};
use tokio::io::{AsyncRead, AsyncWrite};

use super::Shared;
use super::conn::Conn;
use super::handler::Door;
use super::wire::{Traffic, Wire};
use crate::gate::Permit;

/// How often a connection is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long a client may take to leave after it was told goodbye.
const FAREWELL_GRACE: Duration = Duration::from_secs(2);
/// How long a client may take no byte while some are to be sent. A stopped `ssh` looks like this.
const BLOCKED_MAX: Duration = Duration::from_secs(600);
/// How long a connection's tasks may take to end after it.
const CLEANUP_DEADLINE: Duration = Duration::from_secs(5);

/// Serves `stream` until it ends.
pub(super) async fn run<S>(shared: Arc<Shared>, stream: S, peer: SocketAddr, permit: Permit)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let started = Instant::now();
    let conn = Conn::new(Arc::clone(&shared), peer, permit, shared.kill.child_token());
    let traffic = Arc::new(Traffic::default());
    let wire = Wire::new(stream, &conn.stop, Arc::clone(&traffic));
    let door = Door::new(Arc::clone(&conn));
    let greeting = server::run_stream(Arc::clone(&shared.ssh), wire, door);
    let why = match tokio::time::timeout(shared.settings.login_grace, greeting).await {
        Ok(Ok(mut session)) => {
            conn.set_handle(session.handle());
            match watch(&conn, &mut session, &traffic, started).await {
                Ended::Itself(why) => why,
                Ended::ByUs(why) => {
                    conn.close();
                    // Its stream fails now; the session's own task must not outlive this one.
                    let _ = tokio::time::timeout(CLEANUP_DEADLINE, session).await;
                    why.to_owned()
                }
            }
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no SSH greeting".to_owned(),
    };
    conn.close();
    conn.tasks.close();
    if tokio::time::timeout(CLEANUP_DEADLINE, conn.tasks.wait()).await.is_err() {
        tracing::warn!(left = conn.tasks.len(), "tasks of a connection outlive it");
    }
    match conn.member() {
        Some(member) => tracing::info!(
            user = %member.user, login = ?member.login, channels = conn.opened(),
            seconds = started.elapsed().as_secs(), why, "logged out"
        ),
        None => tracing::debug!(why, "gone without a login"),
    }
}

/// How a session came to its end, with the reason for the log.
enum Ended {
    /// It is over.
    Itself(String),
    /// It has to go, and may still be there.
    ByUs(&'static str),
}

/// Waits for the session's end, and brings it about where it is due.
async fn watch(conn: &Arc<Conn>, session: &mut RunningSession<Door>, traffic: &Traffic, started: Instant) -> Ended {
    let settings = &conn.shared.settings;
    let grace = tokio::time::sleep_until((started + settings.login_grace).into());
    tokio::pin!(grace);
    let mut is_grace_over = false;
    let mut look = tokio::time::interval(settings.idle.map_or(LOOK_EVERY, |idle| LOOK_EVERY.min(idle / 4 + MOMENT)));
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut idle = Unchanged::new(conn.progress());
    let mut blocked = Unchanged::new(None);
    loop {
        tokio::select! {
            // What was decided goes before what may still be decided.
            biased;
            ended = &mut *session => {
                return Ended::Itself(ended.map_or_else(|error| error.to_string(), |()| "closed".to_owned()));
            }
            () = conn.leaving.cancelled() => {
                return match tokio::time::timeout(FAREWELL_GRACE, session).await {
                    Ok(_) => Ended::Itself("told to leave".to_owned()),
                    Err(_) => Ended::ByUs("told to leave"),
                };
            }
            () = &mut grace, if !is_grace_over => {
                is_grace_over = true;
                if conn.member().is_none() {
                    let text = format!("gvm: nobody logged in within {} s", settings.login_grace.as_secs());
                    conn.say_goodbye(Disconnect::ByApplication, text).await;
                }
            }
            () = conn.shared.closing.cancelled() => {
                let text = "gvm: the gateway is being stopped; connect again in a moment";
                conn.say_goodbye(Disconnect::ByApplication, text.to_owned()).await;
            }
            _ = look.tick() => {
                if blocked.since(traffic.blocked_at()) > BLOCKED_MAX && traffic.blocked_at().is_some() {
                    return Ended::ByUs("the client took nothing for too long");
                }
                let quiet = idle.since(conn.progress());
                if let Some(limit) = settings.idle
                    && quiet >= limit
                    && conn.member().is_some()
                {
                    let text = format!("gvm: nothing was sent or received for {} s", limit.as_secs());
                    conn.say_goodbye(Disconnect::ByApplication, text).await;
                }
            }
        }
    }
}

/// An interval of nothing is an error of the timer's.
const MOMENT: Duration = Duration::from_millis(10);

/// Since when something has been the same.
struct Unchanged<T> {
    value: T,
    since: Instant,
}

impl<T: PartialEq> Unchanged<T> {
    fn new(value: T) -> Self {
        Self { value, since: Instant::now() }
    }

    /// How long it has been what it is now.
    fn since(&mut self, value: T) -> Duration {
        if self.value != value {
            *self = Self::new(value);
        }
        self.since.elapsed()
    }
}
