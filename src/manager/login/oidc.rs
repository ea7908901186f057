//! Logins with the institution's provider: by a browser that comes back, or by a code that is typed elsewhere.

use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::SemaphorePermit;

use super::super::{Kind, Manager, ManagerError, Result, lock};
use super::{LoggedIn, PageWait, busy, not_accepted, not_configured, unguessable};
use crate::auth::oidc::{DeviceLogin, DevicePoll, Oidc, OidcError, PageLogin};
use crate::model::login::Proven;
use crate::model::principal::{Origin, Provider};
use crate::model::secret::Secret;

/// A person finds their password in that time.
const PAGE_TIME: Duration = Duration::from_secs(600);
/// What a provider's "slow down" adds to the pause (RFC 8628, 3.5).
const SLOWER: Duration = Duration::from_secs(5);

/// A login with a browser was begun.
#[derive(Clone, Debug)]
pub struct PageBegun {
    /// Where the browser is to go.
    pub location: String,
    /// What only this browser is to have, and has to bring back.
    pub browser: Secret<String>,
}

/// A login with a code was begun.
#[derive(Clone, Debug)]
pub struct DeviceBegun {
    /// What the client asks with.
    pub handle: Secret<String>,
    /// What the person is to type, and where.
    pub login: DeviceLogin,
}

/// How far a login with a code is.
#[derive(Clone, Debug)]
pub enum DeviceState {
    /// The person has not answered; ask again after so long.
    Pending(Duration),
    /// The same, and it was asked too soon.
    SlowDown(Duration),
    /// They are in.
    Done(Box<LoggedIn>),
}

/// A login with a code that is under way.
#[derive(Debug)]
pub(super) struct DeviceWait {
    code: Secret<String>,
    interval: Duration,
    next: Timestamp,
}

impl Manager {
    fn oidc(&self) -> Result<&Oidc> {
        self.services.oidc.as_ref().ok_or_else(|| not_configured("an OpenID Connect provider"))
    }

    fn question(&self) -> Result<SemaphorePermit<'_>> {
        self.services.questions.try_acquire().map_err(|_| busy())
    }

    /// Begins a login with a browser.
    ///
    /// # Errors
    /// Where there is none, or the provider does not answer.
    pub async fn begin_page(&self, origin: &Origin) -> Result<PageBegun> {
        let oidc = self.oidc()?;
        if oidc.redirect_uri().is_none() {
            return Err(not_configured("a browser alone"));
        }
        let _slot = self.question()?;
        let (state, browser) = (unguessable()?, Secret::from(unguessable()?));
        let login = PageLogin { verifier: unguessable()?.into(), nonce: unguessable()?.into() };
        let location = oidc.begin_page(&login, &state).await.map_err(explain)?;
        let now = Timestamp::now();
        let wait = PageWait { login, browser: browser.clone() };
        lock(&self.services.pages).keep(state, wait, origin.address, now, after(now, PAGE_TIME));
        Ok(PageBegun { location, browser })
    }

    /// The browser is back. A state is taken once, whatever comes of it; `browser` is what it brings back of
    /// [`PageBegun::browser`], and `code` is none where the provider said no.
    ///
    /// # Errors
    /// `Unauthenticated` for all reasons but a provider that does not answer.
    pub async fn finish_page(
        &self,
        state: &str,
        code: Option<&str>,
        browser: Option<&str>,
        origin: &Origin,
    ) -> Result<LoggedIn> {
        let oidc = self.oidc()?;
        self.may_try(origin.address, None, Timestamp::now())?;
        let _slot = self.question()?;
        let wait = lock(&self.services.pages).take(state, Timestamp::now());
        let proven = async {
            let (wait, _) = wait.ok_or("the state is unknown, used or too old")?;
            // Else somebody could log another's browser in as themselves.
            if browser != Some(wait.browser.expose().as_str()) {
                return Err("the state is another browser's".into());
            }
            let code = code.ok_or("the provider sent no code")?;
            oidc.redeem_page(&wait.login, code, Timestamp::now()).await.map_err(Fault::from)
        };
        match proven.await {
            Ok(proven) => self.let_proven_in(&proven, origin).await,
            Err(fault) => Err(self.refuse(fault, origin).await),
        }
    }

    /// Begins a login with a code.
    ///
    /// # Errors
    /// Where there is none, or the provider does not answer.
    pub async fn begin_device(&self, origin: &Origin) -> Result<DeviceBegun> {
        let oidc = self.oidc()?;
        let _slot = self.question()?;
        let login = oidc.begin_device().await.map_err(explain)?;
        let (handle, now) = (unguessable()?, Timestamp::now());
        let wait = DeviceWait { code: login.device_code.clone(), interval: login.interval, next: now };
        let until = after(now, login.expires_in);
        lock(&self.services.devices).keep(handle.clone(), wait, origin.address, now, until);
        Ok(DeviceBegun { handle: handle.into(), login })
    }

    /// Asks how far it is. Only one question with a handle is under way at once, and none after its end.
    ///
    /// # Errors
    /// `Unauthenticated` where the handle is not good, or the login was refused.
    pub async fn poll_device(&self, handle: &str, origin: &Origin) -> Result<DeviceState> {
        let oidc = self.oidc()?;
        self.may_try(origin.address, None, Timestamp::now())?;
        let _slot = self.question()?;
        let now = Timestamp::now();
        let Some((mut wait, until)) = lock(&self.services.devices).take(handle, now) else {
            return Err(self.refuse("the handle is unknown, used or too old".into(), origin).await);
        };
        let keep = |wait: DeviceWait| {
            lock(&self.services.devices).keep(handle.to_owned(), wait, origin.address, now, until);
        };
        if now < wait.next {
            let interval = wait.interval;
            keep(wait);
            return Ok(DeviceState::SlowDown(interval));
        }
        let polled = oidc.poll_device(&wait.code, now).await;
        if matches!(polled, Ok(DevicePoll::SlowDown)) {
            wait.interval = wait.interval.saturating_add(SLOWER);
        }
        let interval = wait.interval;
        wait.next = after(Timestamp::now(), interval.saturating_sub(Duration::from_millis(500)));
        match polled {
            Ok(DevicePoll::Pending) => {
                keep(wait);
                Ok(DeviceState::Pending(interval))
            }
            Ok(DevicePoll::SlowDown) => {
                keep(wait);
                Ok(DeviceState::SlowDown(interval))
            }
            Ok(DevicePoll::Done(proven)) => Ok(DeviceState::Done(Box::new(self.let_proven_in(&proven, origin).await?))),
            Err(error @ OidcError::Provider(_)) => {
                // It may be back for the next question.
                keep(wait);
                Err(explain(error))
            }
            Err(error) => Err(self.refuse(Fault::from(error), origin).await),
        }
    }

    async fn let_proven_in(&self, proven: &Proven, origin: &Origin) -> Result<LoggedIn> {
        match self.recognise_proven(proven, origin).await {
            Ok(user) => self.begin_session(user, Provider::Oidc, origin).await,
            Err(error) => {
                if error.kind == Kind::Denied {
                    self.count_failure(Some(&proven.name), Some(Provider::Oidc), origin, &error.to_string()).await;
                }
                Err(error)
            }
        }
    }

    /// Counts what is a failure of who asks, and gives the answer to it.
    async fn refuse(&self, fault: Fault, origin: &Origin) -> ManagerError {
        match fault {
            Fault::Ours(error) => explain(error),
            Fault::Theirs(why) => {
                self.count_failure(None, Some(Provider::Oidc), origin, &why).await;
                not_accepted()
            }
        }
    }
}

/// Whose fault it is that nobody is known.
enum Fault {
    Ours(OidcError),
    Theirs(String),
}

impl From<OidcError> for Fault {
    fn from(error: OidcError) -> Self {
        match error {
            OidcError::Refused(_) | OidcError::Token(_) | OidcError::NotOurs(_) => Self::Theirs(error.to_string()),
            OidcError::Provider(_) | OidcError::Setup(_) | OidcError::Secret(_) => Self::Ours(error),
        }
    }
}

impl From<&str> for Fault {
    fn from(why: &str) -> Self {
        Self::Theirs(why.to_owned())
    }
}

fn explain(error: OidcError) -> ManagerError {
    let text = match error {
        OidcError::Setup(_) | OidcError::Secret(_) => "the login provider is not set up right",
        _ => "the login provider does not answer as it should",
    };
    ManagerError::unavailable(text)
        .hint("try again; an administrator finds the reason in the manager's log")
        .because(error)
}

fn after(now: Timestamp, time: Duration) -> Timestamp {
    now.saturating_add(time).unwrap_or(Timestamp::MAX)
}
