//! Teams: groups of people with limits of their own.

use jiff::Timestamp;

use super::revoked::Revoked;
use super::{Manager, ManagerError, Result};
use crate::auth::policy::{self, Action, Permit};
use crate::model::id::TeamId;
use crate::model::name::line::Line;
use crate::model::name::{TeamName, UserName};
use crate::model::principal::Principal;
pub use crate::store::teams::TeamRow;
use crate::store::{StoreError, Write, commit, teams, users};

/// What is changed; what is none stays as it is.
#[derive(Clone, Debug, Default)]
pub struct TeamChange {
    /// Another name.
    pub name: Option<TeamName>,
    /// What it is for.
    pub description: Option<Line>,
}

impl Manager {
    /// Finds a team by name or id as they were typed, and asks whether this may be done with it.
    ///
    /// # Errors
    /// "Not there" and "not yours" are the same.
    pub async fn permit_team(&self, principal: &Principal, action: Action, shown: &str) -> Result<Permit> {
        let found = match (shown.parse::<TeamId>(), shown.parse::<TeamName>()) {
            (Ok(id), _) => self.store.team(id).await?,
            (_, Ok(name)) => self.store.team_by_name(&name).await?,
            _ => None,
        };
        Ok(policy::allow_team(principal, action, found.map(|team| team.id), shown)?)
    }

    /// All teams with the number of their members, or those of the one who asks.
    ///
    /// # Errors
    /// Where the store fails.
    pub async fn teams(&self, permit: &Permit) -> Result<Vec<(TeamRow, u64)>> {
        let of = match permit.action() {
            Action::TeamSeeAll => None,
            _ => Some(permit.user().map(|user| user.id).ok_or_else(gone)?),
        };
        Ok(self.store.teams(of).await?)
    }

    /// The team of a permit, with the number of its members.
    ///
    /// # Errors
    /// Where it is gone.
    pub async fn team(&self, permit: &Permit) -> Result<(TeamRow, u64)> {
        let row = self.store.team(id(permit)?).await?.ok_or_else(gone)?;
        let members = self.store.count_members(row.id).await?;
        Ok((row, members))
    }

    /// Members of the team of a permit, by name, those after a name.
    ///
    /// # Errors
    /// Where the store fails.
    pub async fn team_members(&self, permit: &Permit, after: &str, limit: u32) -> Result<Vec<UserName>> {
        Ok(self.store.team_members(id(permit)?, after, limit).await?)
    }

    /// Makes a team.
    ///
    /// # Errors
    /// Where there is one of that name.
    pub async fn add_team(&self, permit: &Permit, name: TeamName, description: &Line) -> Result<TeamRow> {
        ensure_choosable(&name)?;
        let row = TeamRow::new(name, description.to_string(), Timestamp::now());
        let mut tx = self.store.write().await?;
        teams::insert(&mut tx, &row).await.map_err(|e| taken(e, &row.name))?;
        self.put_on_record(&mut tx, permit, "team.add", row.name.as_str()).await?;
        commit(tx).await?;
        Ok(row)
    }

    /// Changes a team.
    ///
    /// # Errors
    /// Where the new name is another's.
    pub async fn change_team(&self, permit: &Permit, change: &TeamChange) -> Result<()> {
        let mut tx = self.store.write().await?;
        let mut row = read(&mut tx, permit).await?;
        let old_name = row.name.clone();
        let mut told = Vec::new();
        if let Some(name) = &change.name {
            ensure_choosable(name)?;
            row.name = name.clone();
            told.push(format!("name {name}"));
        }
        if let Some(description) = &change.description {
            row.description = description.to_string();
            told.push(format!("description {description}"));
        }
        teams::update(&mut tx, &row).await.map_err(|e| taken(e, &row.name))?;
        self.put_on_record_with(&mut tx, permit, "team.change", old_name.as_str(), told.join(", ")).await?;
        Ok(commit(tx).await?)
    }

    /// Dissolves a team. Its members stay; they are in it no more.
    ///
    /// # Errors
    /// Where machines count for it.
    pub async fn remove_team(&self, permit: &Permit) -> Result<()> {
        let mut tx = self.store.write().await?;
        let row = read(&mut tx, permit).await?;
        let members = teams::members(&mut tx, row.id).await?;
        teams::remove(&mut tx, row.id).await.map_err(|e| match e {
            StoreError::InUse => ManagerError::conflict(format!("VMs still count for the team {}", row.name))
                .hint("delete them first, or let them count for another team"),
            other => other.into(),
        })?;
        self.put_on_record(&mut tx, permit, "team.remove", row.name.as_str()).await?;
        commit(tx).await?;
        for member in members {
            self.revocations.tell(Revoked::Rights(member));
        }
        Ok(())
    }

    /// Puts the person of one permit into the team of the other. Their first team becomes their default.
    ///
    /// # Errors
    /// Where they are in it already.
    pub async fn add_member(&self, team: &Permit, person: &Permit) -> Result<()> {
        let mut tx = self.store.write().await?;
        let row = read(&mut tx, team).await?;
        let mut user = member(&mut tx, person).await?;
        if !teams::add_member(&mut tx, row.id, user.user.id).await? {
            return Err(ManagerError::conflict(format!("{} is in the team {} already", user.user.name, row.name)));
        }
        if user.default_team.is_none() {
            user.default_team = Some(row.id);
            users::update(&mut tx, &user).await?;
        }
        let detail = format!("user {}", user.user.name);
        self.put_on_record_with(&mut tx, team, "team.add_member", row.name.as_str(), detail).await?;
        Ok(commit(tx).await?)
    }

    /// Takes the person of one permit out of the team of the other. Machines that count for it still do.
    ///
    /// # Errors
    /// Where they are not in it.
    pub async fn remove_member(&self, team: &Permit, person: &Permit) -> Result<()> {
        let mut tx = self.store.write().await?;
        let row = read(&mut tx, team).await?;
        let user = member(&mut tx, person).await?;
        if !teams::remove_member(&mut tx, row.id, user.user.id).await? {
            return Err(ManagerError::conflict(format!("{} is not in the team {}", user.user.name, row.name)));
        }
        let detail = format!("user {}", user.user.name);
        self.put_on_record_with(&mut tx, team, "team.remove_member", row.name.as_str(), detail).await?;
        commit(tx).await?;
        self.revocations.tell(Revoked::Rights(user.user.id));
        Ok(())
    }
}

fn id(permit: &Permit) -> Result<TeamId> {
    permit.team().ok_or_else(gone)
}

async fn read(tx: &mut Write, permit: &Permit) -> Result<TeamRow> {
    teams::read(tx, id(permit)?).await?.ok_or_else(gone)
}

async fn member(tx: &mut Write, permit: &Permit) -> Result<users::UserRow> {
    let gone = || ManagerError::not_found("the user is gone").hint("see `gvm user list`");
    users::read(tx, permit.subject().ok_or_else(gone)?).await?.ok_or_else(gone)
}

fn gone() -> ManagerError {
    ManagerError::not_found("the team is gone").hint("see `gvm team list`")
}

/// Words that stand for no team where one can be named.
fn ensure_choosable(name: &TeamName) -> Result<()> {
    match name.as_str() {
        "none" | "all" | "host" => {
            Err(ManagerError::invalid(format!("the name {name} means something else")).hint("choose another"))
        }
        _ => Ok(()),
    }
}

fn taken(error: StoreError, name: &TeamName) -> ManagerError {
    match error {
        StoreError::Taken(_) => ManagerError::conflict(format!("there is a team {name} already")),
        other => other.into(),
    }
}
