//! What stays open longer than a request ends with the right to it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;

use crate::auth::peercred::Peers;
use crate::auth::policy::Permit;
use crate::manager::Manager;
use crate::manager::revoked::Revoked;
use crate::model::principal::{Principal, Via};

/// What no message tells of, such as the end of a token's time, or who left the host's group, is found by looking so often.
const LOOK_EVERY: Duration = Duration::from_secs(60);

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

/// True while the host lets somebody use gvm who has an account there. Where its directory does not answer, nothing is
/// concluded from that.
async fn is_member(manager: &Manager, peers: &Peers, principal: &Principal) -> bool {
    let Some(user) = principal.user() else { return true };
    !manager.has_account(user.id).await.unwrap_or(false) || peers.is_member(&user.name).await.unwrap_or(true)
}

async fn holds(manager: &Manager, peers: &Peers, principal: &Principal, permit: Option<&Permit>) -> bool {
    if !manager.is_still_in(principal).await || !is_member(manager, peers, principal).await {
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
