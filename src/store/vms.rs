//! Machines and their secrets.

use std::collections::HashSet;

use sqlx::sqlite::SqliteRow;

use super::{
    Result, Store, StoreError, Write, count, get, int, json, maybe_parsed, maybe_time, or_taken, parsed, time, to_json,
};
use crate::model::id::{TeamId, UserId, VmId};
use crate::model::name::VmName;
use crate::model::network::{GuestAddress, MacAddress};
use crate::model::units::Mib;
use crate::model::vm::{Desired, Generation, Vm};

/// The key pairs of a machine, OpenSSH format. Its `Debug` shows no private half.
#[derive(Clone, PartialEq, Eq)]
pub struct VmSecrets {
    /// The guest's SSH host key.
    pub host_key_private: String,
    /// Its public half.
    pub host_key_public: String,
    /// The key that the gateway logs in with.
    pub login_key_private: String,
    /// Its public half.
    pub login_key_public: String,
}

impl std::fmt::Debug for VmSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VmSecrets").field("host_key_public", &self.host_key_public).finish_non_exhaustive()
    }
}

fn desired(row: &SqliteRow) -> Result<Desired> {
    json::<Desired>(row, "desired")
}

fn vm(row: &SqliteRow) -> Result<Vm> {
    let trouble: Option<String> = get(row, "trouble")?;
    let restart: Option<i64> = get(row, "restart_requested")?;
    Ok(Vm {
        id: parsed(row, "id")?,
        name: parsed(row, "name")?,
        owner: parsed(row, "owner_id")?,
        team: maybe_parsed(row, "team_id")?,
        spec: json(row, "spec")?,
        desired: desired(row)?,
        generation: Generation(count(row, "generation")?),
        restart_requested: restart.and_then(|g| u64::try_from(g).ok()).map(Generation),
        is_force_stop: get::<i64>(row, "is_force_stop")? != 0,
        stop_asked_at: maybe_time(row, "stop_asked_at")?,
        started_at: maybe_time(row, "started_at")?,
        started_boot: get(row, "started_boot")?,
        placement: json(row, "placement")?,
        tags: json(row, "tags")?,
        trouble: trouble
            .map(|t| serde_json::from_str(&t))
            .transpose()
            .map_err(|e| StoreError::Corrupt { what: "trouble", problem: e.to_string() })?,
        attempts: u32::try_from(count(row, "attempts")?).unwrap_or(u32::MAX),
        next_try: maybe_time(row, "next_try")?,
        first_boot: json(row, "first_boot")?,
        created_at: time(row, "created_at")?,
        undelete_until: maybe_time(row, "undelete_until")?,
    })
}

/// Which machines to list.
#[derive(Clone, Copy, Debug, Default)]
pub struct VmFilter {
    /// Only of this owner.
    pub owner: Option<UserId>,
    /// Only those that count for this team.
    pub team: Option<TeamId>,
    /// Deleted ones too.
    pub with_deleted: bool,
    /// At most so many.
    pub limit: u32,
}

impl Store {
    /// A machine by id.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn vm(&self, id: VmId) -> Result<Option<Vm>> {
        let row =
            sqlx::query("SELECT * FROM vms WHERE id = $1").bind(id.to_string()).fetch_optional(self.readers()).await;
        row.map_err(StoreError::Sql)?.as_ref().map(vm).transpose()
    }

    /// The machine that an owner knows under a name; of deleted ones the last deleted, where they are asked for.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn vm_by_name(&self, owner: UserId, name: &VmName, with_deleted: bool) -> Result<Option<Vm>> {
        let row = sqlx::query(
            "SELECT * FROM vms WHERE owner_id = $1 AND name = $2 AND ($3 = 1 OR undelete_until IS NULL)
             ORDER BY CASE WHEN undelete_until IS NULL THEN 0 ELSE 1 END, undelete_until DESC LIMIT 1",
        )
        .bind(owner.to_string())
        .bind(name.as_str())
        .bind(i64::from(with_deleted))
        .fetch_optional(self.readers())
        .await
        .map_err(StoreError::Sql)?;
        row.as_ref().map(vm).transpose()
    }

    /// Machines in the order of their making.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn vms(&self, filter: VmFilter) -> Result<Vec<Vm>> {
        let rows = sqlx::query(
            "SELECT * FROM vms WHERE ($1 IS NULL OR owner_id = $1) AND ($2 = 1 OR undelete_until IS NULL)
               AND ($4 IS NULL OR team_id = $4) ORDER BY created_at, id LIMIT $3",
        )
        .bind(filter.owner.map(|id| id.to_string()))
        .bind(i64::from(filter.with_deleted))
        .bind(i64::from(filter.limit))
        .bind(filter.team.map(|id| id.to_string()))
        .fetch_all(self.readers())
        .await
        .map_err(StoreError::Sql)?;
        rows.iter().map(vm).collect()
    }

    /// Ids of all machines.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn vm_ids(&self) -> Result<Vec<VmId>> {
        let rows = sqlx::query("SELECT id FROM vms ORDER BY created_at")
            .fetch_all(self.readers())
            .await
            .map_err(StoreError::Sql)?;
        rows.iter().map(|row| parsed(row, "id")).collect()
    }

    /// The key pairs of a machine.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn secrets(&self, id: VmId) -> Result<Option<VmSecrets>> {
        let row = sqlx::query("SELECT * FROM vm_secrets WHERE vm_id = $1")
            .bind(id.to_string())
            .fetch_optional(self.readers())
            .await;
        row.map_err(StoreError::Sql)?
            .map(|row| {
                Ok(VmSecrets {
                    host_key_private: get(&row, "host_key_private")?,
                    host_key_public: get(&row, "host_key_public")?,
                    login_key_private: get(&row, "login_key_private")?,
                    login_key_public: get(&row, "login_key_public")?,
                })
            })
            .transpose()
    }
}

/// A machine, read under the write lock.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn read(tx: &mut Write, id: VmId) -> Result<Option<Vm>> {
    let row = sqlx::query("SELECT * FROM vms WHERE id = $1").bind(id.to_string()).fetch_optional(&mut **tx).await;
    row.map_err(StoreError::Sql)?.as_ref().map(vm).transpose()
}

/// Adds a machine with its secrets.
///
/// # Errors
/// [`StoreError::Taken`] where the owner has one of that name.
pub async fn insert(tx: &mut Write, vm: &Vm, secrets: &VmSecrets) -> Result<()> {
    sqlx::query(
        "INSERT INTO vms (id, owner_id, name, spec, placement, desired, generation, tags, first_boot, created_at,
                          image_id, mac, address, vcpus, memory_mib, disk_mib, team_id)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)",
    )
    .bind(vm.id.to_string())
    .bind(vm.owner.to_string())
    .bind(vm.name.as_str())
    .bind(to_json(&vm.spec))
    .bind(to_json(&vm.placement))
    .bind(to_json(&vm.desired))
    .bind(int(vm.generation.0))
    .bind(to_json(&vm.tags))
    .bind(to_json(&vm.first_boot))
    .bind(vm.created_at.as_microsecond())
    .bind(vm.spec.image.as_ref().map(|image| image.id.to_string()))
    .bind(vm.placement.mac.to_string())
    .bind(vm.placement.address.to_string())
    .bind(i64::from(vm.spec.vcpus))
    .bind(int(vm.spec.memory.0))
    .bind(int(vm.spec.disk.0))
    .bind(vm.team.map(|id| id.to_string()))
    .execute(&mut **tx)
    .await
    .map_err(or_taken("the name"))?;
    sqlx::query(
        "INSERT INTO vm_secrets (vm_id, host_key_private, host_key_public, login_key_private, login_key_public) VALUES ($1, $2, $3, $4, $5)",
    )
    .bind(vm.id.to_string())
    .bind(&secrets.host_key_private)
    .bind(&secrets.host_key_public)
    .bind(&secrets.login_key_private)
    .bind(&secrets.login_key_public)
    .execute(&mut **tx)
    .await
    .map(|_| ())
    .map_err(StoreError::Sql)
}

/// Writes everything of a machine that may change.
///
/// # Errors
/// [`StoreError::Taken`] where the owner has another one of that name.
pub async fn update(tx: &mut Write, vm: &Vm) -> Result<()> {
    sqlx::query(
        "UPDATE vms SET name = $1, spec = $2, placement = $3, desired = $4, generation = $5, restart_requested = $6, is_force_stop = $7,
                stop_asked_at = $8, started_at = $9, started_boot = $10, tags = $11, trouble = $12, attempts = $13, next_try = $14,
                first_boot = $15, undelete_until = $16, vcpus = $17, memory_mib = $18, disk_mib = $19, team_id = $20
         WHERE id = $21",
    )
    .bind(vm.name.as_str())
    .bind(to_json(&vm.spec))
    .bind(to_json(&vm.placement))
    .bind(to_json(&vm.desired))
    .bind(int(vm.generation.0))
    .bind(vm.restart_requested.map(|g| int(g.0)))
    .bind(i64::from(vm.is_force_stop))
    .bind(vm.stop_asked_at.map(jiff::Timestamp::as_microsecond))
    .bind(vm.started_at.map(jiff::Timestamp::as_microsecond))
    .bind(&vm.started_boot)
    .bind(to_json(&vm.tags))
    .bind(vm.trouble.as_ref().map(to_json))
    .bind(i64::from(vm.attempts))
    .bind(vm.next_try.map(jiff::Timestamp::as_microsecond))
    .bind(to_json(&vm.first_boot))
    .bind(vm.undelete_until.map(jiff::Timestamp::as_microsecond))
    .bind(i64::from(vm.spec.vcpus))
    .bind(int(vm.spec.memory.0))
    .bind(int(vm.spec.disk.0))
    .bind(vm.team.map(|id| id.to_string()))
    .bind(vm.id.to_string())
    .execute(&mut **tx)
    .await
    .map(|_| ())
    .map_err(or_taken("the name"))
}

/// A machine is to be off, and whatever was under way with it is over: what is wanted of it is decided anew.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn rest(tx: &mut Write, id: VmId) -> Result<()> {
    let Some(vm) = read(tx, id).await? else { return Ok(()) };
    if vm.desired == Desired::Absent {
        return Ok(());
    }
    let generation = Generation(vm.generation.0.saturating_add(1));
    let rested = Vm { desired: Desired::Stopped, generation, restart_requested: None, started_at: None, ..vm };
    update(tx, &rested).await
}

/// Forgets a machine; to be called only when nothing of it is left on the host.
///
/// # Errors
/// [`StoreError::InUse`] while it holds leases.
pub async fn forget(tx: &mut Write, id: VmId) -> Result<()> {
    for sql in ["DELETE FROM vm_secrets WHERE vm_id = $1", "DELETE FROM vms WHERE id = $1"] {
        sqlx::query(sql).bind(id.to_string()).execute(&mut **tx).await.map_err(or_taken("the machine"))?;
    }
    Ok(())
}

/// Addresses and cards' addresses that are in use.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn addresses(tx: &mut Write) -> Result<(HashSet<GuestAddress>, HashSet<MacAddress>)> {
    let rows = sqlx::query("SELECT address, mac FROM vms").fetch_all(&mut **tx).await.map_err(StoreError::Sql)?;
    let mut taken = (HashSet::new(), HashSet::new());
    for row in &rows {
        taken.0.insert(GuestAddress(parsed(row, "address")?));
        taken.1.insert(parsed(row, "mac")?);
    }
    Ok(taken)
}

/// The memory of all machines that should run.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn given_memory(tx: &mut Write) -> Result<Mib> {
    let row = sqlx::query(
        "SELECT COALESCE(SUM(memory_mib), 0) AS memory_mib FROM vms WHERE desired IN ('\"running\"', '\"paused\"')",
    )
    .fetch_one(&mut **tx)
    .await
    .map_err(StoreError::Sql)?;
    count(&row, "memory_mib").map(Mib)
}
