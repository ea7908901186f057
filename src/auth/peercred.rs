//! The person behind the unix socket's peer: from the kernel's word on its uid.

use jiff::Timestamp;

use crate::config::Config;
use crate::model::name::{NameError, UserName};
use crate::model::principal::{Principal, Role};
use crate::store::{Store, StoreError};

/// Why a peer cannot be a principal.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The host knows no such user.
    #[error("uid {0} has no name on this host; ask the administrator for an account")]
    Nameless(u32),
    /// Its name cannot be one of gvm.
    #[error("your login cannot be used with gvm")]
    Name(#[source] NameError),
    /// The store failed.
    #[error("cannot look up who you are")]
    Store(#[source] StoreError),
    /// The host's user database failed.
    #[error("cannot read the host's user database")]
    Passwd(#[source] std::io::Error),
}

/// Turns uids into principals.
#[derive(Clone, Debug)]
pub struct Peers {
    admins: Vec<String>,
    gateway_user: String,
    store: Store,
}

impl Peers {
    /// With the configuration's word on admins and on the gateway's account.
    pub fn new(config: &Config, store: Store) -> Self {
        Self { admins: config.people.admins.clone(), gateway_user: config.gateway.user.clone(), store }
    }

    /// The principal of a uid; a person is registered at the first sight.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn principal(&self, uid: u32) -> Result<Principal, PeerError> {
        // Directory services may take long: never on a runtime thread.
        let looked_up = tokio::task::spawn_blocking(move || nix::unistd::User::from_uid(uid.into()));
        let account = match looked_up.await {
            Ok(Ok(account)) => account.ok_or(PeerError::Nameless(uid))?,
            Ok(Err(errno)) => return Err(PeerError::Passwd(errno.into())),
            Err(_) => return Err(PeerError::Passwd(std::io::ErrorKind::Interrupted.into())),
        };
        if account.name == self.gateway_user {
            return Ok(Principal::Gateway);
        }
        let role = match uid {
            0 => Role::Admin,
            _ if self.admins.contains(&account.name) => Role::Admin,
            _ => Role::Member,
        };
        let name: UserName = account.name.parse().map_err(PeerError::Name)?;
        self.store.ensure_user(uid, &name, role, Timestamp::now()).await.map(Principal::User).map_err(PeerError::Store)
    }
}
