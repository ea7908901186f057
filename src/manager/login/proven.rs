//! Which user a provider means, in one transaction: known, new, or nobody that may come in.

use jiff::Timestamp;

use super::super::{Manager, ManagerError, Result};
use crate::auth::policy::{self, Action, Permit};
use crate::model::id::UserId;
use crate::model::login::{Proven, Standing};
use crate::model::name::UserName;
use crate::model::name::derive::{Derived, derive};
use crate::model::principal::{Origin, Principal, RoleSource, User, Via};
use crate::store::users::UserRow;
use crate::store::{StoreError, Write, commit, identities, teams, users};

/// Longest name for people that is kept, characters.
const MAX_FULL_NAME: usize = 120;

impl Manager {
    /// The user that a provider means. Their role and teams follow what it says of their groups.
    ///
    /// # Errors
    /// `Denied` where they may not come in.
    pub(super) async fn recognise_proven(&self, proven: &Proven, origin: &Origin) -> Result<User> {
        let now = Timestamp::now();
        let login = &self.config.login;
        let standing = login.groups.standing(&proven.groups).ok_or_else(|| {
            ManagerError::denied("you are in none of the groups that may use gvm here").hint("ask an administrator")
        })?;
        let names =
            self.free_of_accounts(derive(&proven.name, &format!("{} {}", proven.provider, proven.subject))).await?;
        let mut tx = self.store.write().await?;
        let known = identities::user_of(&mut tx, proven.provider, &proven.subject).await?;
        let is_new = known.is_none();
        let before = match known {
            Some(id) => {
                users::read(&mut tx, id).await?.ok_or_else(|| ManagerError::denied("you are no user any more"))?
            }
            None if login.add_members => newcomer(&mut tx, names, proven, now).await?,
            None => {
                return Err(ManagerError::denied("your login is known, but no user here belongs to it")
                    .hint("ask an administrator to link it: gvm user link"));
            }
        };
        refuse_suspended(&before)?;
        let after = followed(&before, &standing, proven);
        if after != before {
            users::update(&mut tx, &after).await?;
        }
        let user = after.user;
        let permit = self_permit(&user, proven, origin)?;
        if is_new {
            self.put_on_record(&mut tx, &permit, "user.add", user.name.as_str()).await?;
        }
        if user.role != before.user.role {
            let text = format!("{}: {} is {}", user.name, before.user.role, user.role);
            self.put_on_record(&mut tx, &permit, "user.role", &text).await?;
        }
        for change in follow_teams(&mut tx, user.id, &standing).await? {
            self.put_on_record(&mut tx, &permit, "team.follow", &format!("{}: {change}", user.name)).await?;
        }
        identities::note_login(&mut tx, proven.provider, &proven.subject, now).await?;
        commit(tx).await?;
        Ok(user)
    }

    /// Whoever is suspended comes in by no door.
    pub(super) async fn must_be_in_use(&self, user: UserId) -> Result<()> {
        match self.store.user_row(user).await? {
            Some(row) => refuse_suspended(&row),
            None => Err(ManagerError::denied("you are no user any more")),
        }
    }

    /// Without the plain name where it is a login of this host: that is for whoever has the account.
    async fn free_of_accounts(&self, names: Derived) -> Result<Derived> {
        let Some(plain) = &names.plain else { return Ok(names) };
        let found = self.services.peers.uid_of(plain.as_str()).await;
        let uid = found.map_err(|e| ManagerError::unavailable("cannot read the host's user database").because(e))?;
        Ok(if uid.is_some() { Derived { plain: None, ..names } } else { names })
    }
}

fn refuse_suspended(row: &UserRow) -> Result<()> {
    match &row.suspended {
        None => Ok(()),
        Some(_) => Err(ManagerError::denied("your access is suspended; your machines and data are kept")
            .hint("ask an administrator")),
    }
}

/// Makes somebody, under a name that is nobody's and looks like nobody's.
async fn newcomer(tx: &mut Write, names: Derived, proven: &Proven, now: Timestamp) -> Result<UserRow> {
    let mut name: UserName = names.unique;
    if let Some(plain) = names.plain
        && users::who_looks_like(tx, &plain).await?.is_none()
    {
        name = plain;
    }
    let row = UserRow { role_source: RoleSource::Login, ..UserRow::new(name, now) };
    users::insert(tx, &row).await.map_err(|e| match e {
        StoreError::Taken(_) => ManagerError::denied(format!("the name {} belongs to another user", row.user.name))
            .hint("ask an administrator to link your login: gvm user link"),
        other => other.into(),
    })?;
    identities::link(tx, proven.provider, &proven.subject, row.user.id, now).await?;
    Ok(row)
}

/// What a login changes: the name for people, and the role unless an administrator or the host's configuration set it.
fn followed(before: &UserRow, standing: &Standing, proven: &Proven) -> UserRow {
    let mut after = before.clone();
    let full_name = proven.full_name.chars().filter(|c| !c.is_control()).take(MAX_FULL_NAME).collect::<String>();
    if !full_name.trim().is_empty() {
        after.full_name = full_name.trim().to_owned();
    }
    if let (RoleSource::Login, Some(role)) = (before.role_source, standing.role) {
        after.user.role = role;
    }
    after
}

/// Puts them into the teams of their groups and out of the map's others; says what changed.
async fn follow_teams(tx: &mut Write, user: UserId, standing: &Standing) -> Result<Vec<String>> {
    let mut changes = Vec::new();
    for name in &standing.teams {
        match teams::by_name(tx, name).await? {
            Some(team) if teams::add_member(tx, team.id, user).await? => changes.push(format!("in {name}")),
            Some(_) => {}
            None => tracing::warn!(team = %name, "login.groups.teams names a team that is not there"),
        }
    }
    for name in &standing.other_teams {
        if let Some(team) = teams::by_name(tx, name).await?
            && teams::remove_member(tx, team.id, user).await?
        {
            changes.push(format!("not in {name}"));
        }
    }
    Ok(changes)
}

/// For the record of what a login changes of the one who logs in.
fn self_permit(user: &User, proven: &Proven, origin: &Origin) -> Result<Permit> {
    let origin = Origin { via: Via::Login(proven.provider.to_string()), ..origin.clone() };
    Ok(policy::allow(&Principal::of(user.clone()).from(origin), Action::KeyOwn)?)
}
