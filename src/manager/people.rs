//! People and service accounts: who they are, what they may, and who is out of use.

use super::{Manager, ManagerError, Result};
use crate::auth::policy::{self, Action, Permit};
use crate::model::id::{TeamId, UserId};
use crate::model::principal::Principal;
pub use crate::store::users::UserRow;

impl Manager {
    /// Finds a person by name or id as they were typed, and asks whether this may be done with them.
    ///
    /// # Errors
    /// "Not there" and "not yours" are the same.
    pub async fn permit_user(&self, principal: &Principal, action: Action, shown: &str) -> Result<Permit> {
        let found = match (shown.parse::<UserId>(), shown.parse()) {
            (Ok(id), _) => self.store.user(id).await?,
            (_, Ok(name)) => self.store.user_by_name(&name).await?,
            _ => None,
        };
        // Asked for nobody's teams as well: who is not there takes as long as who may not be seen.
        let teams = self.store.teams_of(found.as_ref().map_or_else(UserId::generate, |user| user.id)).await?;
        let user = found.as_ref().map(|user| (user.id, teams.as_slice()));
        Ok(policy::allow_user(principal, action, user, shown)?)
    }

    /// Finds a team by name or id as they were typed, and asks whether this may be done with it.
    ///
    /// # Errors
    /// "Not there" and "not yours" are the same.
    pub async fn permit_team(&self, principal: &Principal, action: Action, shown: &str) -> Result<Permit> {
        let found = match (shown.parse::<TeamId>(), shown.parse()) {
            (Ok(id), _) => self.store.team(id).await?,
            (_, Ok(name)) => self.store.team_by_name(&name).await?,
            _ => None,
        };
        Ok(policy::allow_team(principal, action, found.map(|team| team.id), shown)?)
    }

    /// Everything of the person of a permit.
    ///
    /// # Errors
    /// Where they are gone.
    pub async fn person(&self, permit: &Permit) -> Result<UserRow> {
        let id = permit.subject().ok_or_else(gone)?;
        self.store.user_row(id).await?.ok_or_else(gone)
    }
}

fn gone() -> ManagerError {
    ManagerError::not_found("the user is gone").hint("see `gvm user list`")
}
