//! What becomes of somebody: another name or role, out of use and back, removed.

use jiff::Timestamp;

use super::enrol::ensure_choosable;
use super::{UserRow, gone, subject};
use crate::auth::policy::{Action, Permit};
use crate::manager::power::Wanted;
use crate::manager::revoked::Revoked;
use crate::manager::{Kind, Manager, ManagerError, Result};
use crate::model::id::UserId;
use crate::model::name::line::Line;
use crate::model::name::{TeamName, UserName};
use crate::model::principal::{Role, RoleSource, Suspension};
use crate::model::vm::Desired;
use crate::store::vms::VmFilter;
use crate::store::{StoreError, Write, commit, teams, users};

/// Machines that are looked through for stopping.
const ALL_VMS: u32 = 10_000;

/// A change of a person's role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleChange {
    /// This role, whatever the configuration says.
    Set(Role),
    /// As the configuration's lists say.
    Host,
}

/// What is changed; what is none stays as it is.
#[derive(Clone, Debug, Default)]
pub struct UserChange {
    /// Another login.
    pub name: Option<UserName>,
    /// Another role.
    pub role: Option<RoleChange>,
    /// Another name for people.
    pub full_name: Option<Line>,
    /// Another default team, or none.
    pub default_team: Option<Option<TeamName>>,
    /// The host's account was made anew, or belongs to another by now: the known number is forgotten, and the account
    /// of their name is theirs from its next sight on.
    pub has_new_account: bool,
}

impl Manager {
    /// Changes a person.
    ///
    /// # Errors
    /// Where the new name cannot be theirs, they are not in the team, or it is their own role.
    pub async fn change_user(&self, permit: &Permit, change: &UserChange) -> Result<()> {
        let mut tx = self.store.write().await?;
        let mut row = subject_row(&mut tx, permit).await?;
        let (before, old_name) = (self.role_of(&row), row.user.name.clone());
        let mut told = Vec::new();
        if let Some(name) = change.name.as_ref().filter(|name| **name != old_name) {
            if row.uid == Some(0) {
                return Err(is_root("renamed"));
            }
            ensure_choosable(&mut tx, name, Some(&row)).await?;
            told.push(format!("name {name}"));
            row.user.name = name.clone();
        }
        if let Some(role) = change.role {
            set_role(&mut row, role)?;
            told.push(format!(
                "role {}",
                if role == RoleChange::Host { "of the host" } else { row.user.role.as_str() }
            ));
        }
        if let Some(full_name) = &change.full_name {
            row.full_name = full_name.to_string();
            told.push(format!("full name {full_name}"));
        }
        if let Some(team) = &change.default_team {
            row.default_team = match team {
                Some(name) => Some(default_team(&mut tx, &row, name).await?),
                None => None,
            };
            told.push(format!("default team {}", team.as_ref().map_or("none", TeamName::as_str)));
        }
        if change.has_new_account {
            expect_account(&mut row)?;
            told.push("new account of the host".to_owned());
        }
        let after = self.role_of(&row);
        if after < before && is_oneself(permit, row.user.id) {
            return Err(ManagerError::denied("you cannot take your own role away").hint("another administrator can"));
        }
        users::update(&mut tx, &row).await?;
        self.put_on_record_with(&mut tx, permit, "user.change", old_name.as_str(), told.join(", ")).await?;
        commit(tx).await?;
        if change.has_new_account {
            // What the old account has open is no more theirs than it is.
            self.revocations.tell(Revoked::User(row.user.id));
        } else if after < before {
            self.revocations.tell(Revoked::Rights(row.user.id));
        }
        Ok(())
    }

    /// Puts a person out of use: they keep everything and may do nothing, at once. Their machines keep running.
    ///
    /// # Errors
    /// Where it is the one who asks, or the host's root.
    pub async fn suspend_user(&self, permit: &Permit, why: &Line) -> Result<()> {
        let mut tx = self.store.write().await?;
        let mut row = subject_row(&mut tx, permit).await?;
        if is_oneself(permit, row.user.id) {
            return Err(ManagerError::denied("you cannot suspend yourself").hint("another administrator can"));
        }
        if row.uid == Some(0) {
            return Err(is_root("suspended"));
        }
        if why.is_empty() {
            return Err(ManagerError::invalid("a suspension needs a reason; the person is told it").hint("--why TEXT"));
        }
        row.suspended = Some(Suspension { at: Timestamp::now(), why: why.to_string() });
        users::update(&mut tx, &row).await?;
        self.put_on_record_with(&mut tx, permit, "user.suspend", row.user.name.as_str(), why.to_string()).await?;
        commit(tx).await?;
        self.revocations.tell(Revoked::User(row.user.id));
        Ok(())
    }

    /// Lets a suspended person in again.
    ///
    /// # Errors
    /// Where they are not suspended.
    pub async fn resume_user(&self, permit: &Permit) -> Result<()> {
        let mut tx = self.store.write().await?;
        let mut row = subject_row(&mut tx, permit).await?;
        if row.suspended.take().is_none() {
            return Err(ManagerError::conflict(format!("{} is not suspended", row.user.name)));
        }
        users::update(&mut tx, &row).await?;
        self.put_on_record(&mut tx, permit, "user.resume", row.user.name.as_str()).await?;
        Ok(commit(tx).await?)
    }

    /// Forgets a person of whom nothing but the record is left.
    ///
    /// # Errors
    /// Where machines are theirs, or it is the one who asks, or the host's root.
    pub async fn remove_user(&self, permit: &Permit) -> Result<()> {
        let mut tx = self.store.write().await?;
        let row = subject_row(&mut tx, permit).await?;
        let name = &row.user.name;
        if is_oneself(permit, row.user.id) {
            return Err(ManagerError::denied("you cannot remove yourself").hint("another administrator can"));
        }
        if row.uid == Some(0) {
            return Err(is_root("removed"));
        }
        let vms = users::count_vms(&mut tx, row.user.id).await?;
        let in_use = |what: String| {
            ManagerError::conflict(format!("{name} still has {what}"))
                .hint(format!("see `gvm list --all --deleted`; or keep them without access: gvm user suspend {name}"))
        };
        if vms > 0 {
            return Err(in_use(format!("{vms} VM{}", if vms == 1 { "" } else { "s" })));
        }
        users::remove(&mut tx, row.user.id).await.map_err(|e| match e {
            StoreError::InUse => in_use("something that cannot be removed".to_owned()),
            other => other.into(),
        })?;
        self.put_on_record(&mut tx, permit, "user.remove", name.as_str()).await?;
        commit(tx).await?;
        self.revocations.tell(Revoked::User(row.user.id));
        Ok(())
    }

    /// Stops all machines of the person of the permit, each as one that asks could; gives how many.
    ///
    /// # Errors
    /// Where the one who asks may not stop them, or the store fails.
    pub async fn stop_machines_of(&self, permit: &Permit) -> Result<usize> {
        let filter = VmFilter { owner: Some(subject(permit)?), limit: ALL_VMS, ..VmFilter::default() };
        let mut stopped = 0;
        for vm in
            self.store.vms(filter).await?.iter().filter(|vm| matches!(vm.desired, Desired::Running | Desired::Paused))
        {
            let asked = self.permit_vm(permit.principal(), Action::VmPower, &vm.id.to_string(), false).await?;
            match self.power(&asked, Wanted::Stop).await {
                Ok(_) => stopped += 1,
                // It went by itself in between.
                Err(e) if matches!(e.kind, Kind::Conflict | Kind::NotFound) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(stopped)
    }
}

async fn subject_row(tx: &mut Write, permit: &Permit) -> Result<UserRow> {
    users::read(tx, subject(permit)?).await?.ok_or_else(gone)
}

fn set_role(row: &mut UserRow, change: RoleChange) -> Result<()> {
    match change {
        _ if row.uid == Some(0) => return Err(is_root("given another role")),
        RoleChange::Set(role) => (row.user.role, row.role_source) = (role, RoleSource::Set),
        RoleChange::Host => (row.user.role, row.role_source) = (Role::Member, RoleSource::Host),
    }
    Ok(())
}

fn expect_account(row: &mut UserRow) -> Result<()> {
    if row.uid == Some(0) {
        return Err(is_root("given another account"));
    }
    if row.is_service {
        return Err(ManagerError::conflict(format!("{} is a service account: it has none of the host", row.user.name)));
    }
    (row.uid, row.awaits_account) = (None, true);
    if row.role_source == RoleSource::Host {
        row.user.role = Role::Member;
    }
    Ok(())
}

async fn default_team(tx: &mut Write, row: &UserRow, name: &TeamName) -> Result<crate::model::id::TeamId> {
    let not_in = || {
        ManagerError::conflict(format!("{} is not in the team {name}", row.user.name))
            .hint(format!("gvm team add-member {name} {}", row.user.name))
    };
    let team = teams::by_name(tx, name).await?.ok_or_else(not_in)?;
    if teams::has_member(tx, team.id, row.user.id).await? { Ok(team.id) } else { Err(not_in()) }
}

fn is_oneself(permit: &Permit, user: UserId) -> bool {
    permit.user().is_some_and(|asker| asker.id == user)
}

fn is_root(what: &str) -> ManagerError {
    ManagerError::denied(format!("the host's root cannot be {what}: uid 0 is always an administrator of gvm"))
}
