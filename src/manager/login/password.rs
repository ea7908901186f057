//! Logins with a password: judged by a directory or by PAM, which keep it; gvm forgets it.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::super::{Kind, Manager, ManagerError, Result};
use super::{LoggedIn, busy, not_accepted, not_configured};
use crate::auth::ldap::LdapError;
use crate::auth::pam::PamError;
use crate::auth::peercred::{Account, PeerError};
use crate::model::login::Proven;
use crate::model::principal::{Origin, Provider, User};
use crate::model::secret::Secret;

/// A refusal is answered on the next whole one of these since the request came: how far a service looked does not show.
const BEAT: Duration = Duration::from_secs(1);

/// Somebody says that this is their password.
#[derive(Clone, Debug)]
pub struct PasswordTry {
    /// The login, as it was typed.
    pub user: String,
    /// The password.
    pub password: Secret<String>,
    /// Only this service is to judge; all that there are otherwise.
    pub provider: Option<Provider>,
}

/// Whom a service knows.
enum Known {
    /// By its own name for them.
    Subject(Proven),
    /// By the host's account.
    Account(User),
}

/// How a service answered.
enum Verdict {
    Known(Known),
    Refused(String),
    Unavailable(ManagerError),
}

impl Manager {
    /// Lets somebody in by a password.
    ///
    /// # Errors
    /// `Unauthenticated` where no service accepts it, the same for all reasons; `TooMuch` where too many failed before;
    /// `Unavailable` where a service could not judge; `Denied` where they are known and may not come in.
    pub async fn login_with_password(&self, wish: PasswordTry, origin: Origin) -> Result<LoggedIn> {
        let begun = Instant::now();
        let ways = self.login_ways().passwords;
        let providers: Vec<Provider> =
            ways.into_iter().filter(|one| wish.provider.is_none_or(|wanted| wanted == *one)).collect();
        if providers.is_empty() {
            return Err(not_configured("a password"));
        }
        self.may_try(origin.address, Some(&wish.user), Timestamp::now())?;
        let _slot = self.services.passwords.try_acquire().map_err(|_| busy())?;
        let mut refused = Vec::new();
        let mut unavailable = None;
        for provider in providers {
            match self.judge(provider, &wish).await {
                Verdict::Known(known) => return self.let_in(known, provider, &wish, &origin).await,
                Verdict::Refused(why) => refused.push(why),
                Verdict::Unavailable(error) => unavailable = Some(error),
            }
        }
        if !refused.is_empty() {
            self.count_failure(Some(&wish.user), wish.provider, &origin, &refused.join("; ")).await;
        }
        tokio::time::sleep_until(begun + on_the_beat(begun.elapsed())).await;
        Err(unavailable.unwrap_or_else(not_accepted))
    }

    async fn let_in(&self, known: Known, provider: Provider, wish: &PasswordTry, origin: &Origin) -> Result<LoggedIn> {
        self.login_succeeded(&wish.user);
        let user = match known {
            Known::Account(user) => user,
            Known::Subject(proven) => match self.recognise_proven(&proven, origin).await {
                Ok(user) => user,
                Err(error) => {
                    if error.kind == Kind::Denied {
                        self.count_failure(Some(&wish.user), Some(provider), origin, &error.to_string()).await;
                    }
                    return Err(error);
                }
            },
        };
        self.begin_session(user, provider, origin).await
    }

    async fn judge(&self, provider: Provider, wish: &PasswordTry) -> Verdict {
        let services = &self.services;
        match (provider, &services.ldap, &services.pam) {
            (Provider::Ldap, Some(ldap), _) => match ldap.login(&wish.user, &wish.password).await {
                Ok(proven) => Verdict::Known(Known::Subject(proven)),
                Err(LdapError::Refused(why)) => Verdict::Refused(format!("ldap: {why}")),
                Err(error) => Verdict::Unavailable(
                    ManagerError::unavailable("the directory cannot judge logins now")
                        .hint("try again; an administrator finds the reason in the manager's log")
                        .because(error),
                ),
            },
            (Provider::Pam, _, Some(pam)) => match pam.login(&wish.user, &wish.password).await {
                Ok(login) => self.account_of(&login).await,
                Err(PamError::Refused(code)) => Verdict::Refused(format!("pam: code {code}")),
                Err(error) => Verdict::Unavailable(
                    ManagerError::unavailable("this host cannot judge logins now")
                        .hint("try again; an administrator finds the reason in the manager's log")
                        .because(error),
                ),
            },
            _ => Verdict::Refused(format!("{provider}: it is not configured")),
        }
    }

    /// Who a login of the host is: the same person as over the socket, and only who may use that.
    async fn account_of(&self, login: &str) -> Verdict {
        let peers = &self.services.peers;
        let found = async {
            let Some(uid) = peers.uid_of(login).await? else { return Ok(Err("it is no account".to_owned())) };
            // The one account whose password would be worth everything is for the socket.
            if uid == 0 {
                return Ok(Err("root logs in over the socket only".to_owned()));
            }
            let Account::Person { uid, name, role } = peers.account(uid).await? else {
                return Ok(Err("it is the gateway's account".to_owned()));
            };
            let is_member = peers.is_member(&name).await?;
            Ok(if is_member {
                Ok(Account::Person { uid, name, role })
            } else {
                Err("it is not in the group".to_owned())
            })
        };
        match found.await {
            Ok(Ok(account)) => match self.user_of_account(account).await {
                Ok(user) => Verdict::Known(Known::Account(user)),
                Err(error) if error.kind == Kind::Denied => Verdict::Refused(format!("pam: {error}")),
                Err(error) => Verdict::Unavailable(error),
            },
            Ok(Err(why)) => Verdict::Refused(format!("pam: {why}")),
            Err(PeerError::Passwd(e)) => {
                Verdict::Unavailable(ManagerError::unavailable("cannot read the host's user database").because(e))
            }
            Err(error) => Verdict::Refused(format!("pam: {error}")),
        }
    }

    async fn user_of_account(&self, account: Account) -> Result<User> {
        let principal = self.recognise(account).await?;
        let user = principal.user().cloned().ok_or_else(|| ManagerError::denied("only a person logs in"))?;
        self.must_be_in_use(user.id).await?;
        Ok(user)
    }
}

/// The next whole beat; at least one.
fn on_the_beat(elapsed: Duration) -> Duration {
    let beats = elapsed.as_millis() / BEAT.as_millis() + 1;
    BEAT.saturating_mul(u32::try_from(beats).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_come_on_whole_seconds() {
        let seconds = |millis| on_the_beat(Duration::from_millis(millis)).as_secs();
        assert_eq!([seconds(0), seconds(30), seconds(999), seconds(1000), seconds(2100)], [1, 1, 1, 2, 3]);
    }
}
