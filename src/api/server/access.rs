//! What stays open longer than a request ends with the right to it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;

use crate::auth::peercred::Peers;
use crate::auth::policy::Permit;
use crate::manager::revoked::Revoked;
use crate::manager::{Manager, ManagerError};
use crate::model::principal::{Principal, User, Via};

/// What no message tells of, such as the end of a token's time, or who left the host's group, is found by looking so often.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// What somebody is told whom the host does not let use gvm any more.
pub(super) fn not_a_member(user: &User) -> ManagerError {
    ManagerError::denied(format!("{} is not in the group of gvm's members any more", user.name))
        .hint("ask your administrator")
}

/// What a message means for one principal.
enum Verdict {
    /// It is about another.
    Other,
    /// It has to be looked at.
    Unsure,
    /// It is over.
    Over,
}

fn verdict(revoked: &Revoked, principal: &Principal, permit: Option<&Permit>) -> Verdict {
    let is = |id| principal.user().is_some_and(|user| user.id == id);
    let came_by = &principal.origin.via;
    match revoked {
        Revoked::User(id) if is(*id) => Verdict::Over,
        Revoked::Rights(id) if is(*id) => Verdict::Unsure,
        Revoked::Token(token) if *came_by == Via::Token(*token) => Verdict::Over,
        Revoked::Key(id, print) if is(*id) && *came_by == Via::SshKey(print.clone()) => Verdict::Over,
        Revoked::Vm(id) if permit.and_then(Permit::vm) == Some(*id) => Verdict::Unsure,
        Revoked::User(_) | Revoked::Rights(_) | Revoked::Token(_) | Revoked::Key(..) | Revoked::Vm(_) => Verdict::Other,
    }
}

/// Waits until the principal is not let in any more as they were when they came.
pub async fn ended(manager: Arc<Manager>, peers: Peers, principal: Principal) {
    wait(manager, peers, principal, None).await;
}

/// The same, or until the machine of the permit is not for them any more: it may count for another team.
pub(super) async fn ended_on(manager: Arc<Manager>, peers: Peers, permit: Permit) {
    wait(manager, peers, permit.principal().clone(), Some(permit)).await;
}

/// True where the host still lets this person use gvm. Who has no account of the host is let in by gvm alone.
///
/// # Errors
/// `Unavailable` where the host's directory or the store does not answer.
pub(super) async fn is_member(manager: &Manager, peers: &Peers, user: &User) -> Result<bool, ManagerError> {
    if !manager.has_account(user.id).await? {
        return Ok(true);
    }
    peers.is_member(&user.name).await.map_err(|e| ManagerError::unavailable(e.to_string()).because(e))
}

async fn holds(manager: &Manager, peers: &Peers, principal: &Principal, permit: Option<&Permit>) -> bool {
    if !manager.is_still_in(principal).await {
        return false;
    }
    // Where the directory does not answer, nothing is concluded from that.
    if let Some(user) = principal.user()
        && !is_member(manager, peers, user).await.unwrap_or(true)
    {
        return false;
    }
    let Some((permit, vm)) = permit.and_then(|permit| Some((permit, permit.vm()?))) else { return true };
    manager.permit_vm(principal, permit.action(), &vm.to_string(), true).await.is_ok()
}

async fn wait(manager: Arc<Manager>, peers: Peers, principal: Principal, permit: Option<Permit>) {
    let mut told = manager.revocations().listen();
    // Between coming in and listening it may have ended, and a listener that lags missed something.
    while holds(&manager, &peers, &principal, permit.as_ref()).await {
        loop {
            let Ok(message) = tokio::time::timeout(LOOK_EVERY, told.recv()).await else { break };
            match message {
                Ok(revoked) => match verdict(&revoked, &principal, permit.as_ref()) {
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
