//! Somebody new: by hand, from a file, or from what another service says.

use jiff::Timestamp;

use super::UserRow;
use crate::auth::policy::Permit;
use crate::manager::{Kind, Manager, ManagerError, Result};
use crate::model::name::derive::derive;
use crate::model::name::line::Line;
use crate::model::name::{TeamName, UserName};
use crate::model::principal::{Role, RoleSource};
use crate::store::{Write, commit, teams, users};

/// People of one file.
pub const MAX_IMPORT: usize = 20_000;
/// Faults of a file that are told at once.
const MAX_PROBLEMS: usize = 100;

/// Somebody new.
#[derive(Clone, Debug)]
pub struct NewUser {
    /// Login.
    pub name: UserName,
    /// For people.
    pub full_name: Line,
    /// None follows the configuration of the host.
    pub role: Option<Role>,
    /// A program: it never has an account of the host.
    pub is_service: bool,
    /// Teams; the first is the default.
    pub teams: Vec<TeamName>,
}

/// What is wrong with one of many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportProblem {
    /// Which of them, from 0.
    pub index: usize,
    /// What is wrong.
    pub message: String,
}

impl Manager {
    /// Adds somebody. The host's account of that name is theirs from its first sight on.
    ///
    /// # Errors
    /// Where the name is kept for systems, is somebody's, or looks like somebody's.
    pub async fn add_user(&self, permit: &Permit, new: &NewUser) -> Result<UserRow> {
        let mut tx = self.store.write().await?;
        let row = self.put_new(&mut tx, permit, new).await?;
        commit(tx).await?;
        Ok(row)
    }

    /// Adds many: all of them, or nobody where something is wrong with one. A dry run adds nobody.
    ///
    /// # Errors
    /// Where there are too many, or the store fails. What is wrong with those to be added is the answer.
    pub async fn import_users(&self, permit: &Permit, new: &[NewUser], is_dry_run: bool) -> Result<Vec<ImportProblem>> {
        if new.len() > MAX_IMPORT {
            return Err(ManagerError::invalid(format!("{} people are too many at once", new.len()))
                .hint(format!("make files of at most {MAX_IMPORT}")));
        }
        let mut problems = Vec::new();
        let mut tx = self.store.write().await?;
        for (index, one) in new.iter().enumerate() {
            match self.put_new(&mut tx, permit, one).await {
                Ok(_) => {}
                Err(e) if matches!(e.kind, Kind::Internal | Kind::Unavailable) => return Err(e),
                Err(e) => problems.push(ImportProblem { index, message: e.to_string() }),
            }
            if problems.len() >= MAX_PROBLEMS {
                break;
            }
        }
        if problems.is_empty() && !is_dry_run {
            commit(tx).await?;
        }
        Ok(problems)
    }

    async fn put_new(&self, tx: &mut Write, permit: &Permit, new: &NewUser) -> Result<UserRow> {
        ensure_choosable(tx, &new.name, None).await?;
        let mut row = UserRow {
            full_name: new.full_name.to_string(),
            is_service: new.is_service,
            awaits_account: !new.is_service,
            ..UserRow::new(new.name.clone(), Timestamp::now())
        };
        if let Some(role) = new.role {
            (row.user.role, row.role_source) = (role, RoleSource::Set);
        }
        users::insert(tx, &row).await?;
        for name in &new.teams {
            let team = teams::by_name(tx, name).await?.ok_or_else(|| {
                ManagerError::not_found(format!("there is no team {name}")).hint(format!("gvm team add {name}"))
            })?;
            teams::add_member(tx, team.id, row.user.id).await?;
            row.default_team = row.default_team.or(Some(team.id));
        }
        if row.default_team.is_some() {
            users::update(tx, &row).await?;
        }
        let kind = if new.is_service { "service account" } else { "person" };
        let mut detail = vec![kind.to_owned()];
        detail.extend(new.role.map(|role| format!("role {role}")));
        detail.extend(new.teams.iter().map(|team| format!("team {team}")));
        self.put_on_record_with(tx, permit, "user.add", new.name.as_str(), detail.join(", ")).await?;
        Ok(row)
    }

    /// Makes a person of a subject of another service, within the transaction that keeps who that subject is. `hint` is
    /// the name that the service gives them; `subject` is the service and its unchanging id of them. They have no
    /// account of the host.
    ///
    /// # Errors
    /// Where the store fails; a name is always found.
    pub async fn enrol(
        &self,
        tx: &mut Write,
        hint: &str,
        subject: &str,
        full_name: &Line,
        role: Role,
    ) -> Result<UserRow> {
        let names = derive(hint, subject);
        let free = match names.plain {
            Some(plain) if users::who_looks_like(tx, &plain).await?.is_none() => plain,
            _ => names.unique,
        };
        let mut row = UserRow {
            full_name: full_name.to_string(),
            role_source: RoleSource::Set,
            ..UserRow::new(free, Timestamp::now())
        };
        row.user.role = role;
        users::insert(tx, &row).await?;
        Ok(row)
    }
}

/// A name that is chosen by hand is not kept for systems and looks like nobody's.
pub(super) async fn ensure_choosable(tx: &mut Write, name: &UserName, of: Option<&UserRow>) -> Result<()> {
    if name.is_reserved() {
        return Err(ManagerError::invalid(format!("the name {name} is kept for the system")).hint("choose another"));
    }
    match users::who_looks_like(tx, name).await? {
        Some(other) if of.is_some_and(|row| row.user.id == other.id) => Ok(()),
        Some(other) if other.name == *name => {
            Err(ManagerError::conflict(format!("there is a user {name} already")).hint(format!("gvm user show {name}")))
        }
        Some(other) => Err(ManagerError::conflict(format!("the name {name} looks like the user {}", other.name))
            .hint("choose one that is not mistaken for it")),
        None => Ok(()),
    }
}
