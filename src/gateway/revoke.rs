//! Access that ends while a connection is open: the manager says so, and the connection is closed at once.
//!
//! ```text
//! manager ── stream of what ends ──▶ run ──▶ Roll ──▶ the connections that it concerns: goodbye
//!         ◀── is this still good? ──          (each login is on it)
//! ```
//!
//! A message can be lost: the manager was restarted, or this process was too slow for it. So whenever the stream begins
//! anew or says that something was missed, and at an interval besides, the manager is asked about each login.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::sync::Notify;

use super::Shared;
use super::conn::{Conn, Member};
use super::directory::Ending;
use crate::api::types::{EndedAccess, Identify, RevocationView};

/// Pauses between two tries to listen to the manager.
const LISTEN_PAUSES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(5)];
/// Questions about logins that are under way at once.
const ASKED_AT_ONCE: usize = 8;
/// Shown to whom it concerns.
const FAREWELL: &str = "gvm: your access was ended; ask your administrator";

/// The connections that somebody is logged in on.
#[derive(Default)]
pub(super) struct Roll {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Messages about access that ended, so far.
    heard: u64,
    next: u64,
    conns: HashMap<u64, Weak<Conn>>,
}

impl Roll {
    /// How much was heard so far: to be taken before the manager is asked who somebody is.
    pub fn heard(&self) -> u64 {
        self.state().heard
    }

    /// Puts a connection on the roll and logs `member` in, unless something was heard since `heard` was taken: the
    /// manager's answer may be older than that.
    pub fn enter(&self, heard: u64, conn: &Arc<Conn>, member: Member) -> bool {
        let mut state = self.state();
        if state.heard != heard {
            return false;
        }
        state.next += 1;
        let number = state.next;
        state.conns.insert(number, Arc::downgrade(conn));
        conn.log_in(number, member);
        true
    }

    /// Takes a connection off the roll.
    pub fn leave(&self, number: u64) {
        self.state().conns.remove(&number);
    }

    /// Everybody; what is heard from now on is newer than the answers of logins that are under way.
    fn hear(&self) -> Vec<Arc<Conn>> {
        let mut state = self.state();
        state.heard += 1;
        // Who was gone before being on the roll did not leave it.
        state.conns.retain(|_, conn| conn.strong_count() > 0);
        state.conns.values().filter_map(Weak::upgrade).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Watches over all logins for as long as the gateway serves.
pub(super) async fn run(shared: Arc<Shared>) {
    let again = Notify::new();
    tokio::join!(listen(&shared, &again), look(&shared, &again));
}

async fn listen(shared: &Shared, again: &Notify) {
    let [shortest, longest] = LISTEN_PAUSES;
    let mut pause = shortest;
    loop {
        match shared.directory.endings().await {
            Ok(mut endings) => {
                pause = shortest;
                // Whatever ended while nobody listened.
                again.notify_one();
                while let Some(ending) = endings.next().await {
                    match ending {
                        Ending::Of(revoked) => end_those(shared, &revoked),
                        Ending::Missed => again.notify_one(),
                    }
                }
                tracing::info!("the manager went away; listening again");
            }
            Err(refusal) => tracing::debug!(%refusal, "not listening to the manager"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

fn end_those(shared: &Shared, revoked: &RevocationView) {
    for conn in shared.roll.hear() {
        if conn.member().is_some_and(|member| concerns(revoked, &conn, member)) {
            end(&conn, "the manager ended it");
        }
    }
}

/// Whether a login is among what ended. A key that is registered no more does not matter to a certificate over it.
fn concerns(revoked: &RevocationView, conn: &Conn, member: &Member) -> bool {
    member.user_id == revoked.user_id
        && match revoked.what {
            EndedAccess::All => true,
            EndedAccess::Key => member.certified.is_none() && revoked.key.as_ref() == Some(&member.print),
            // They come in again where they still may.
            EndedAccess::Others => conn.reaches_others(),
        }
}

async fn look(shared: &Shared, again: &Notify) {
    loop {
        // One that comes due meanwhile is not lost: `Notify` remembers it.
        let _ = tokio::time::timeout(shared.settings.recheck, again.notified()).await;
        look_at_all(shared).await;
    }
}

/// Asks about each login whether it is still good. Where the manager does not answer they stay: that it is restarted
/// ends nobody's session.
async fn look_at_all(shared: &Shared) {
    let trust = shared.truster.current().await;
    let mut logins: HashMap<Identify, Vec<Arc<Conn>>> = HashMap::new();
    for conn in shared.roll.hear() {
        let Some(member) = conn.member() else { continue };
        match member.still(&trust) {
            Ok(()) => logins.entry(member.identify()).or_default().push(conn),
            Err(why) => end(&conn, &why.to_string()),
        }
    }
    let questions = futures_util::stream::iter(logins);
    questions.for_each_concurrent(ASKED_AT_ONCE, |(ask, conns)| look_at(shared, ask, conns)).await;
}

async fn look_at(shared: &Shared, ask: Identify, conns: Vec<Arc<Conn>>) {
    let found = match shared.directory.identify(&ask).await {
        Ok(found) => found.map(|found| found.user_id),
        Err(refusal) => return tracing::debug!(%refusal, "nobody says whether a login is still good"),
    };
    for conn in conns {
        if conn.member().is_some_and(|member| found.as_ref() != Some(&member.user_id)) {
            end(&conn, "the manager does not let them in any more");
        }
    }
}

fn end(conn: &Arc<Conn>, why: &str) {
    let _span = conn.span().entered();
    if let Some(member) = conn.member() {
        tracing::info!(user = %member.user, key = %member.print, why, "access ended");
    }
    conn.evict(FAREWELL);
}
