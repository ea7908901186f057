//! The account behind the unix socket's peer: from the kernel's word on its uid and the host's user database.
//!
//! Which registered person an account is, the manager knows ([`crate::manager`]); nothing is stored here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::config::{Config, PeopleConfig};
use crate::model::name::{NameError, UserName};
use crate::model::principal::Role;

/// How old the host's word on a member may be.
const LATELY: Duration = Duration::from_secs(5);
/// Members of whom it is kept.
const LATELY_KEPT: usize = 4096;

/// Why a peer cannot be anybody.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The host knows no such user.
    #[error("uid {0} has no name on this host; ask the administrator for an account")]
    Nameless(u32),
    /// Its name cannot be one of gvm.
    #[error("your login cannot be used with gvm")]
    Name(#[source] NameError),
    /// The host's user database failed.
    #[error("cannot read the host's user database")]
    Passwd(#[source] std::io::Error),
}

/// An account of the host, as gvm sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Account {
    /// The SSH gateway's service account.
    Gateway,
    /// A person's.
    Person {
        /// Its number.
        uid: u32,
        /// Its login.
        name: UserName,
        /// What the configuration makes of it.
        role: Role,
    },
}

/// Turns uids into accounts.
#[derive(Clone, Debug)]
pub struct Peers {
    people: PeopleConfig,
    gateway_user: String,
    socket_group: Option<String>,
    /// What the host said of members lately.
    lately: Arc<Mutex<HashMap<UserName, (bool, Instant)>>>,
}

impl Peers {
    /// With the configuration's word on admins, operators and the gateway's account.
    pub fn new(config: &Config) -> Self {
        Self {
            people: config.people.clone(),
            gateway_user: config.gateway.user.clone(),
            socket_group: config.manager.socket_group.clone(),
            lately: Arc::default(),
        }
    }

    /// True where this person may still use the socket: who has left the group comes in by no other door either.
    ///
    /// # Errors
    /// [`PeerError::Passwd`].
    pub async fn is_member(&self, name: &UserName) -> Result<bool, PeerError> {
        let Some(group) = self.socket_group.clone() else { return Ok(true) };
        let name = name.to_string();
        let looked_up = tokio::task::spawn_blocking(move || is_in_group(&name, &group)).await;
        looked_up.map_err(|_| PeerError::Passwd(std::io::ErrorKind::Interrupted.into()))?
    }

    /// The same by what the host said within the last seconds: for requests that come by the hundred.
    ///
    /// # Errors
    /// [`PeerError::Passwd`].
    pub async fn is_member_lately(&self, name: &UserName) -> Result<bool, PeerError> {
        if self.socket_group.is_none() {
            return Ok(true);
        }
        let known = self.lately().get(name).filter(|(_, at)| at.elapsed() < LATELY).map(|(answer, _)| *answer);
        if let Some(answer) = known {
            return Ok(answer);
        }
        let answer = self.is_member(name).await?;
        let mut lately = self.lately();
        if lately.len() >= LATELY_KEPT {
            lately.retain(|_, (_, at)| at.elapsed() < LATELY);
        }
        lately.insert(name.clone(), (answer, Instant::now()));
        Ok(answer)
    }

    fn lately(&self) -> MutexGuard<'_, HashMap<UserName, (bool, Instant)>> {
        self.lately.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The uid of a login of this host; none where there is no such.
    ///
    /// # Errors
    /// [`PeerError::Passwd`].
    pub async fn uid_of(&self, login: &str) -> Result<Option<u32>, PeerError> {
        let login = login.to_owned();
        let looked_up = tokio::task::spawn_blocking(move || nix::unistd::User::from_name(&login)).await;
        let found = looked_up.map_err(|_| PeerError::Passwd(std::io::ErrorKind::Interrupted.into()))?;
        Ok(found.map_err(|errno| PeerError::Passwd(errno.into()))?.map(|user| user.uid.as_raw()))
    }

    /// The login of a uid as the host has it now; none where it has no such account.
    ///
    /// # Errors
    /// [`PeerError::Passwd`].
    pub async fn login(&self, uid: u32) -> Result<Option<String>, PeerError> {
        // Directory services may take long: never on a runtime thread.
        let looked_up = tokio::task::spawn_blocking(move || nix::unistd::User::from_uid(uid.into()));
        match looked_up.await {
            Ok(Ok(found)) => Ok(found.map(|user| user.name)),
            Ok(Err(errno)) => Err(PeerError::Passwd(errno.into())),
            Err(_) => Err(PeerError::Passwd(std::io::ErrorKind::Interrupted.into())),
        }
    }

    /// The account of a uid.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn account(&self, uid: u32) -> Result<Account, PeerError> {
        let login = self.login(uid).await?.ok_or(PeerError::Nameless(uid))?;
        self.judge(uid, &login)
    }

    /// What an account of that number and name is.
    fn judge(&self, uid: u32, login: &str) -> Result<Account, PeerError> {
        if login == self.gateway_user {
            return Ok(Account::Gateway);
        }
        let role = self.people.role_of(uid, login);
        let name = login.parse().map_err(PeerError::Name)?;
        Ok(Account::Person { uid, name, role })
    }
}

/// By the host's user database; root needs no group.
fn is_in_group(login: &str, group: &str) -> Result<bool, PeerError> {
    let failed = |errno: nix::errno::Errno| PeerError::Passwd(errno.into());
    let Some(user) = nix::unistd::User::from_name(login).map_err(failed)? else { return Ok(false) };
    if user.uid.is_root() {
        return Ok(true);
    }
    let Some(group) = nix::unistd::Group::from_name(group).map_err(failed)? else { return Ok(false) };
    let Ok(login) = std::ffi::CString::new(login) else { return Ok(false) };
    let groups = nix::unistd::getgrouplist(&login, user.gid).map_err(failed)?;
    Ok(groups.contains(&group.gid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_in_a_group_is_the_hosts_word() {
        assert!(is_in_group("root", "no-such-group").unwrap(), "root needs none");
        assert!(is_in_group("daemon", "daemon").unwrap(), "by its first group");
        assert!(!is_in_group("daemon", "root").unwrap());
        assert!(!is_in_group("daemon", "no-such-group").unwrap());
        assert!(!is_in_group("no-such-login", "daemon").unwrap());
    }

    #[test]
    fn the_configuration_says_who_is_what() {
        let mut config = Config::default();
        config.people.admins = vec!["eve".to_owned()];
        config.people.operators = vec!["bob".to_owned(), "eve".to_owned()];
        let peers = Peers::new(&config);
        let role = |uid, login| match peers.judge(uid, login).unwrap() {
            Account::Person { role, .. } => Some(role),
            Account::Gateway => None,
        };
        assert_eq!(role(0, "root"), Some(Role::Admin));
        assert_eq!(role(1000, "eve"), Some(Role::Admin), "the higher one of two counts");
        assert_eq!(role(1001, "bob"), Some(Role::Operator));
        assert_eq!(role(1002, "mallory"), Some(Role::Member));
        assert_eq!(role(999, "gvm-gateway"), None);
        assert!(matches!(peers.judge(1003, "Mr X"), Err(PeerError::Name(_))));
    }
}
