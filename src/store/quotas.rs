//! What people and teams hold, and what they may: read in the transaction that admits more.

use jiff::Timestamp;
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use super::leases::share;
use super::{Result, Store, StoreError, Write, count, get, gpu_time, json, to_json};
use crate::model::gpu::Partition;
use crate::model::id::{TeamId, UserId, VmId};
use crate::model::quota::month::{Month, card_seconds};
use crate::model::quota::{Quota, QuotaKind, Usage};
use crate::model::vm::{Placement, Vm};

/// Whose machines count together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// All of a person.
    User(UserId),
    /// All that count for a team.
    Team(TeamId),
}

impl Holder {
    /// The column that tells it, of machines and of times, and its value.
    pub(super) fn column(self) -> (&'static str, String) {
        match self {
            Self::User(id) => ("owner_id", id.to_string()),
            Self::Team(id) => ("team_id", id.to_string()),
        }
    }
}

/// What somebody holds, this month's time up to now included; of all machines but one, where `except` names it.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn usage(
    connection: &mut SqliteConnection,
    holder: Holder,
    except: Option<VmId>,
    (month, now): (Month, Timestamp),
) -> Result<Usage> {
    let (column, id) = holder.column();
    let except = except.map(|id| id.to_string()).unwrap_or_default();
    let sql = format!(
        "SELECT COUNT(*) AS vms, COALESCE(SUM(disk_mib), 0) AS disk,
                COALESCE(SUM(CASE WHEN {IS_UP} THEN 1 ELSE 0 END), 0) AS running_vms,
                COALESCE(SUM(CASE WHEN {IS_UP} THEN vcpus ELSE 0 END), 0) AS vcpus,
                COALESCE(SUM(CASE WHEN {IS_UP} THEN memory_mib ELSE 0 END), 0) AS memory
         FROM vms v WHERE {column} = $1 AND id <> $2"
    );
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(&id).bind(&except);
    let row = query.fetch_one(&mut *connection).await.map_err(StoreError::Sql)?;
    let mut usage = Usage::default();
    for kind in [QuotaKind::Vms, QuotaKind::Disk, QuotaKind::RunningVms, QuotaKind::Vcpus, QuotaKind::Memory] {
        usage.add(kind, count(&row, kind.word())?);
    }
    let sql = format!(
        "SELECT v.placement, l.* FROM gpu_leases l JOIN vms v ON v.id = l.vm_id
         WHERE v.{column} = $1 AND v.id <> $2 AND {IS_UP}"
    );
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(&id).bind(&except);
    for row in query.fetch_all(&mut *connection).await.map_err(StoreError::Sql)? {
        add_lease(&mut usage, &json::<Placement>(&row, "placement")?, &row)?;
    }
    let held = gpu_time::held(connection, holder, month).await?;
    usage.add(QuotaKind::GpuHours, card_seconds(&held, month, now));
    Ok(usage)
}

/// What one machine holds, by its row as it is given, and by its leases as they are in the store.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn usage_of_vm(connection: &mut SqliteConnection, vm: &Vm) -> Result<Usage> {
    let mut usage = Usage::of_machine((&vm.spec).into(), vm.desired);
    if vm.desired.is_up() {
        let query = sqlx::query("SELECT * FROM gpu_leases WHERE vm_id = $1").bind(vm.id.to_string());
        for row in query.fetch_all(connection).await.map_err(StoreError::Sql)? {
            add_lease(&mut usage, &vm.placement, &row)?;
        }
    }
    usage.add_gpu_time();
    Ok(usage)
}

/// The same wishes of a machine count that [`crate::model::vm::Desired::is_up`] tells.
const IS_UP: &str = "v.desired IN ('\"running\"', '\"paused\"')";

/// What a machine is not to have any more, and is only being given back, does not count.
fn add_lease(usage: &mut Usage, placement: &Placement, row: &SqliteRow) -> Result<()> {
    let partition: Partition = json(row, "body")?;
    if placement.gpus.contains(&partition) {
        usage.add_partition(partition.vgpu().is_some(), share(row)?.memory);
    }
    Ok(())
}

/// What is said of a person's limits beside the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserLimits {
    /// The person's own.
    pub own: Quota,
    /// The default team, with what it gives each member.
    pub member: Option<(String, Quota)>,
}

/// The limits of a person.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn limits_of_user(connection: &mut SqliteConnection, user: UserId) -> Result<UserLimits> {
    let row = sqlx::query(
        "SELECT u.quota, t.name AS team, COALESCE(t.member_quota, '{}') AS member_quota
         FROM users u
         LEFT JOIN team_members m ON m.user_id = u.id AND m.team_id = u.default_team
         LEFT JOIN teams t ON t.id = m.team_id WHERE u.id = $1",
    )
    .bind(user.to_string())
    .fetch_optional(connection)
    .await
    .map_err(StoreError::Sql)?;
    let Some(row) = row else { return Ok(UserLimits::default()) };
    let member = match get::<Option<String>>(&row, "team")? {
        Some(team) => Some((team, json(&row, "member_quota")?)),
        None => None,
    };
    Ok(UserLimits { own: json(&row, "quota")?, member })
}

/// What is said of a team's limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TeamLimits {
    /// Its name.
    pub name: String,
    /// Of all its machines together.
    pub own: Quota,
    /// Of each member whose default team it is.
    pub member: Quota,
}

/// The limits of a team.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn limits_of_team(connection: &mut SqliteConnection, team: TeamId) -> Result<TeamLimits> {
    let row = sqlx::query("SELECT name, quota, member_quota FROM teams WHERE id = $1")
        .bind(team.to_string())
        .fetch_optional(connection)
        .await
        .map_err(StoreError::Sql)?;
    let Some(row) = row else { return Ok(TeamLimits::default()) };
    Ok(TeamLimits { name: get(&row, "name")?, own: json(&row, "quota")?, member: json(&row, "member_quota")? })
}

/// Writes a person's own limits.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn set_user(tx: &mut Write, user: UserId, quota: &Quota) -> Result<()> {
    let query = sqlx::query("UPDATE users SET quota = $2 WHERE id = $1").bind(user.to_string()).bind(to_json(quota));
    query.execute(&mut **tx).await.map(|_| ()).map_err(StoreError::Sql)
}

/// Writes a team's limits.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn set_team(tx: &mut Write, team: TeamId, limits: &TeamLimits) -> Result<()> {
    sqlx::query("UPDATE teams SET quota = $2, member_quota = $3 WHERE id = $1")
        .bind(team.to_string())
        .bind(to_json(&limits.own))
        .bind(to_json(&limits.member))
        .execute(&mut **tx)
        .await
        .map(|_| ())
        .map_err(StoreError::Sql)
}

impl Store {
    /// What somebody holds, outside of an admission.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn usage(&self, holder: Holder, month: (Month, Timestamp)) -> Result<Usage> {
        let mut connection = self.readers().acquire().await.map_err(StoreError::Sql)?;
        usage(&mut connection, holder, None, month).await
    }

    /// The limits of a person, outside of an admission.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn limits_of_user(&self, user: UserId) -> Result<UserLimits> {
        let mut connection = self.readers().acquire().await.map_err(StoreError::Sql)?;
        limits_of_user(&mut connection, user).await
    }

    /// The limits of a team, outside of an admission.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn limits_of_team(&self, team: TeamId) -> Result<TeamLimits> {
        let mut connection = self.readers().acquire().await.map_err(StoreError::Sql)?;
        limits_of_team(&mut connection, team).await
    }
}
