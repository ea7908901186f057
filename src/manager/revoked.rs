//! Access that ends at once: who holds a connection open hears of it and closes it.

use tokio::sync::broadcast;

use crate::model::id::{TokenId, UserId, VmId};

/// Messages that a slow listener may leave unread; beyond that it is told that it missed some, and asks about all
/// that it holds.
const BACKLOG: usize = 256;

/// What is good no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Revoked {
    /// Everything of a person: suspended, removed, or not let in by the host any more.
    User(UserId),
    /// Some of what a person might do: another role, or a team that they are in no more. Who holds something open for
    /// them asks anew whether they may.
    Rights(UserId),
    /// One SSH key of a person, by its fingerprint.
    Key(UserId, String),
    /// One token, and what was opened with it.
    Token(TokenId),
    /// What a team might do with a machine: it counts for that team no more. Who holds it open asks anew.
    Vm(VmId),
}

/// Tells all listeners.
#[derive(Debug)]
pub struct Revocations(broadcast::Sender<Revoked>);

impl Default for Revocations {
    fn default() -> Self {
        Self(broadcast::Sender::new(BACKLOG))
    }
}

impl Revocations {
    /// To be called after the change is committed.
    pub fn tell(&self, revoked: Revoked) {
        // Nobody may be listening.
        let _ = self.0.send(revoked);
    }

    /// How many listen.
    pub fn listeners(&self) -> usize {
        self.0.receiver_count()
    }

    /// What is revoked from now on. A listener that lags has to look at everything anew.
    pub fn listen(&self) -> broadcast::Receiver<Revoked> {
        self.0.subscribe()
    }
}
