//! People and service accounts: who they are, what they may, and who is out of use.
//!
//! ```text
//!   added by hand, or seen on the socket --> member <--> suspended
//!                                              \--> removed, once no machine is theirs
//! ```

pub mod change;
pub mod enrol;

use jiff::Timestamp;

use super::{Manager, ManagerError, Result};
use crate::auth::policy::{self, Action, Permit};
use crate::model::id::{TeamId, UserId};
use crate::model::name::{TeamName, UserName};
use crate::model::principal::{Principal, Role, RoleSource, Via, Who};
pub use crate::store::users::{UserFilter, UserRow};

/// Somebody with everything that is told of them.
#[derive(Clone, Debug)]
pub struct Person {
    /// The row; its role is the stored one.
    pub row: UserRow,
    /// The role that counts.
    pub role: Role,
    /// Their teams, by name.
    pub teams: Vec<(TeamId, TeamName)>,
}

impl Person {
    /// The name of their default team.
    pub fn default_team(&self) -> Option<&TeamName> {
        let default = self.row.default_team?;
        self.teams.iter().find(|(id, _)| *id == default).map(|(_, name)| name)
    }
}

/// The role that counts for somebody to whom the configuration gives the role `listed`; none where it says nothing
/// about them. A role that was set by hand counts alone, but for the configuration's administrators: nobody can be
/// locked out of the host's own file.
pub(super) fn role(source: RoleSource, stored: Role, listed: Option<Role>) -> Role {
    match (source, listed) {
        (RoleSource::Host, listed) => listed.unwrap_or(stored),
        (RoleSource::Set | RoleSource::Login, Some(Role::Admin)) => Role::Admin,
        (RoleSource::Set | RoleSource::Login, _) => stored,
    }
}

/// What somebody is told who is out of use, once they have proven who they are.
pub(super) fn suspended(why: &str) -> ManagerError {
    ManagerError::denied(format!("your account is suspended: {why}"))
        .hint("your machines and files are kept; ask your administrator")
}

impl Manager {
    /// Finds a person by name or id as they were typed, and asks whether this may be done with them.
    ///
    /// # Errors
    /// "Not there" and "not yours" are the same.
    pub async fn permit_user(&self, principal: &Principal, action: Action, shown: &str) -> Result<Permit> {
        let found = match (shown.parse::<UserId>(), shown.parse::<UserName>()) {
            (Ok(id), _) => self.store.user(id).await?,
            (_, Ok(name)) => self.store.user_by_name(&name).await?,
            _ => None,
        };
        // Asked for nobody's teams as well: who is not there takes as long as who may not be seen.
        let teams = self.store.teams_of(found.as_ref().map_or_else(UserId::generate, |user| user.id)).await?;
        let user = found.as_ref().map(|user| (user.id, teams.as_slice()));
        Ok(policy::allow_user(principal, action, user, shown)?)
    }

    /// The role that counts for somebody who is known by something else than the host's socket. The lists of the
    /// configuration are about accounts of the host, and about nobody else of the same name.
    pub(super) fn role_of(&self, row: &UserRow) -> Role {
        let listed = row.uid.map(|uid| self.config.people.role_of(uid, row.user.name.as_str()));
        role(row.role_source, row.user.role, listed)
    }

    /// True where an account of the host is known to be this person's: then the host has a say in who comes in.
    ///
    /// # Errors
    /// Where the store fails.
    pub async fn has_account(&self, id: UserId) -> Result<bool> {
        Ok(self.store.user_row(id).await?.is_some_and(|row| row.uid.is_some()))
    }

    /// True while everything still holds that a principal was let in with: they are registered, not suspended, have the
    /// role and the teams that they had, and the token is good that they came with.
    pub async fn is_still_in(&self, principal: &Principal) -> bool {
        let Who::User(user) = &principal.who else { return true };
        // Where it cannot be known it is not so: who asks again is told why.
        let Ok(Some(row)) = self.store.user_row(user.id).await else { return false };
        let Ok(teams) = self.store.teams_of(user.id).await else { return false };
        if let Via::Token(id) = principal.origin.via
            && !self.store.is_token_good(id, Timestamp::now()).await.unwrap_or(false)
        {
            return false;
        }
        row.suspended.is_none()
            && self.role_of(&row) >= user.role
            && principal.teams.iter().all(|team| teams.contains(team))
    }

    /// The person of a permit.
    ///
    /// # Errors
    /// Where they are gone.
    pub async fn person(&self, permit: &Permit) -> Result<Person> {
        let row = self.store.user_row(subject(permit)?).await?.ok_or_else(gone)?;
        self.person_of(row).await
    }

    /// The one who asks, with the number of their keys; who they are is no secret to them, whatever they may.
    ///
    /// # Errors
    /// Where it is no person, or one who is gone.
    pub async fn myself(&self, principal: &Principal) -> Result<(Person, usize)> {
        let user = principal.user().ok_or_else(gone)?;
        let row = self.store.user_row(user.id).await?.ok_or_else(gone)?;
        let keys = self.store.keys(user.id).await?.len();
        Ok((Person { role: user.role, ..self.person_of(row).await? }, keys))
    }

    async fn person_of(&self, row: UserRow) -> Result<Person> {
        let mut teams = self.store.team_names(&row.user.name, &row.user.name).await?;
        let teams = teams.remove(&row.user.id).unwrap_or_default();
        Ok(Person { role: self.role_of(&row), row, teams })
    }

    /// People by name.
    ///
    /// # Errors
    /// Where the store fails.
    pub async fn people(&self, _permit: &Permit, filter: &UserFilter) -> Result<Vec<Person>> {
        let rows = self.store.user_rows(filter).await?;
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(Vec::new()) };
        let mut teams = self.store.team_names(&first.user.name, &last.user.name).await?;
        let person = |row: UserRow| {
            let teams = teams.remove(&row.user.id).unwrap_or_default();
            Person { role: self.role_of(&row), row, teams }
        };
        Ok(rows.into_iter().map(person).collect())
    }
}

fn subject(permit: &Permit) -> Result<UserId> {
    permit.subject().ok_or_else(gone)
}

fn gone() -> ManagerError {
    ManagerError::not_found("the user is gone").hint("see `gvm user list`")
}
