//! Logins that another service vouches for.
//!
//! ```text
//!   password --may_try--> PAM, directory --\
//!   page     start ... callback --provider--> Proven --recognise_proven (one transaction)--> User --> session token
//!   device   start ... poll     --provider--/
//! ```
//!
//! Nobody learns from a refusal whether there is such a login, which of several services said no, or why.

mod link;
mod oidc;
mod password;
mod pending;
mod proven;

use std::sync::Mutex;

use jiff::Timestamp;
use tokio::sync::Semaphore;

pub use self::oidc::{DeviceBegun, DeviceState, PageBegun};
pub use self::password::PasswordTry;
use self::pending::Pending;
use super::tokens::NewToken;
use super::{Manager, ManagerError, Result, error};
use crate::auth::ldap::Ldap;
use crate::auth::oidc::{Oidc, PageLogin};
use crate::auth::pam::Pam;
use crate::auth::peercred::Peers;
use crate::auth::random;
use crate::config::Config;
use crate::model::event::{AuditEvent, Outcome};
use crate::model::id::OpId;
use crate::model::principal::{Origin, Provider, User, Via};
use crate::model::secret::Secret;

/// Passwords that are judged at once; each may hold a connection or a process for some seconds.
const MAX_PASSWORDS: usize = 16;
/// Questions to the provider at once.
const MAX_QUESTIONS: usize = 32;

/// The services that are configured, and logins with them that are under way.
#[derive(Debug)]
pub struct Services {
    oidc: Option<Oidc>,
    ldap: Option<Ldap>,
    pam: Option<Pam>,
    peers: Peers,
    pages: Mutex<Pending<PageWait>>,
    devices: Mutex<Pending<oidc::DeviceWait>>,
    passwords: Semaphore,
    questions: Semaphore,
}

/// A login with a browser that is under way.
#[derive(Debug)]
struct PageWait {
    login: PageLogin,
    /// What only that browser has.
    browser: Secret<String>,
}

impl Services {
    /// As configured; nothing is asked yet.
    pub fn new(config: &Config) -> Self {
        let login = &config.login;
        Self {
            oidc: login.oidc.clone().map(Oidc::new),
            ldap: login.ldap.clone().map(Ldap::new),
            pam: login.pam.clone().map(Pam::new),
            peers: Peers::new(config),
            pages: Mutex::default(),
            devices: Mutex::default(),
            passwords: Semaphore::new(MAX_PASSWORDS),
            questions: Semaphore::new(MAX_QUESTIONS),
        }
    }
}

/// Which ways to log in there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginWays {
    /// Services that take a password.
    pub passwords: Vec<Provider>,
    /// With a code that is typed elsewhere.
    pub is_device: bool,
    /// With a browser that the provider sends back.
    pub is_page: bool,
}

/// Somebody who logged in.
#[derive(Clone, Debug)]
pub struct LoggedIn {
    /// Who.
    pub user: User,
    /// Their session.
    pub session: NewToken,
}

impl Manager {
    /// Which ways to log in there are.
    pub fn login_ways(&self) -> LoginWays {
        let services = &self.services;
        let ldap = services.ldap.as_ref().map(|_| Provider::Ldap);
        let pam = services.pam.as_ref().map(|_| Provider::Pam);
        let page = services.oidc.as_ref().and_then(Oidc::redirect_uri);
        LoginWays {
            passwords: ldap.into_iter().chain(pam).collect(),
            is_device: services.oidc.is_some(),
            is_page: page.is_some(),
        }
    }

    /// A session for who was let in, and the end of their failures.
    async fn begin_session(&self, user: User, provider: Provider, origin: &Origin) -> Result<LoggedIn> {
        self.login_succeeded(user.name.as_str());
        let origin = Origin { via: Via::Login(provider.as_str().to_owned()), ..origin.clone() };
        let session = self.issue_session(&user, origin, None).await?;
        Ok(LoggedIn { user, session })
    }

    /// Counts a failed login and puts it on the record. Nothing of what was typed but the name is in it.
    async fn count_failure(&self, name: Option<&str>, provider: Option<Provider>, origin: &Origin, why: &str) {
        let now = Timestamp::now();
        self.login_failed(origin.address, name, now);
        let shown: String = name.unwrap_or("?").chars().take(64).collect();
        let row = AuditEvent {
            id: OpId::generate(),
            at: now,
            // In brackets, which no name has: a claim, not a person.
            actor: format!("({})", shown.escape_debug()),
            actor_id: None,
            origin: origin.clone(),
            action: "login".to_owned(),
            target: provider.map_or("password", Provider::as_str).to_owned(),
            vm: None,
            outcome: Outcome::Denied,
            detail: why.to_owned(),
        };
        if let Err(fault) = self.store.record(&row).await {
            tracing::error!(error = %error::chain(&fault), "cannot put a failed login on the record");
        }
    }
}

/// The answer to every login that failed.
fn not_accepted() -> ManagerError {
    ManagerError::unauthenticated("this login is not accepted")
        .hint("check name and password; `gvm login` shows which ways there are, and an administrator finds the reason on the record")
}

fn not_configured(what: &str) -> ManagerError {
    ManagerError::not_found(format!("there is no login with {what} here"))
        .hint("GET /v1/login says which ways there are")
}

fn busy() -> ManagerError {
    ManagerError::too_much("too many logins are under way", std::time::Duration::from_secs(2))
}

/// A key that nobody can guess.
fn unguessable() -> Result<String> {
    let bytes = random::bytes::<32>();
    let bytes = bytes.map_err(|e| ManagerError::unavailable("this host gives no random numbers").because(e))?;
    Ok(hex::encode(bytes))
}
