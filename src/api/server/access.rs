//! What stays open longer than a request ends with the right to it.

use std::sync::Arc;

use tokio::sync::broadcast::error::RecvError;

use crate::manager::Manager;
use crate::manager::revoked::Revoked;
use crate::model::principal::{Principal, Via};

/// What a message means for one principal.
enum Verdict {
    /// It is about another.
    Other,
    /// It has to be looked at.
    Unsure,
    /// It is over.
    Over,
}

fn verdict(revoked: &Revoked, principal: &Principal) -> Verdict {
    let is = |id| principal.user().is_some_and(|user| user.id == id);
    let came_by = &principal.origin.via;
    match revoked {
        Revoked::User(id) if is(*id) => Verdict::Over,
        Revoked::Rights(id) if is(*id) => Verdict::Unsure,
        Revoked::Token(token) if *came_by == Via::Token(*token) => Verdict::Over,
        Revoked::Key(id, print) if is(*id) && *came_by == Via::SshKey(print.clone()) => Verdict::Over,
        Revoked::User(_) | Revoked::Rights(_) | Revoked::Token(_) | Revoked::Key(..) => Verdict::Other,
    }
}

/// Waits until the principal is not let in any more as they were when they came.
pub async fn ended(manager: Arc<Manager>, principal: Principal) {
    let mut told = manager.revocations().listen();
    // Between coming in and listening it may have ended, and a listener that lags missed something.
    while manager.is_still_in(&principal).await {
        loop {
            match told.recv().await {
                Ok(revoked) => match verdict(&revoked, &principal) {
                    Verdict::Other => {}
                    Verdict::Unsure => break,
                    Verdict::Over => return,
                },
                Err(RecvError::Lagged(_)) => break,
                Err(RecvError::Closed) => return,
            }
        }
    }
}
