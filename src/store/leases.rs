//! Leases of GPU partitions. No row means free; the schema itself refuses a second holder. Whatever changes here is noted
//! in the times that cards were held, in the same transaction.

use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;

use super::{Result, Store, StoreError, Write, count, gpu_time, int, json, or_taken, parsed, to_json};
use crate::model::gpu::{GpuLease, GpuShare, LeaseState, Partition};
use crate::model::id::{LeaseId, VmId};
use crate::model::units::Mib;
use crate::model::vm::Generation;

fn lease(row: &SqliteRow) -> Result<GpuLease> {
    Ok(GpuLease {
        id: parsed(row, "id")?,
        partition: json(row, "body")?,
        share: share(row)?,
        vm: parsed(row, "vm_id")?,
        generation: Generation(count(row, "generation")?),
        state: json(row, "state")?,
    })
}

/// How much of its card a lease's row holds.
pub(super) fn share(row: &SqliteRow) -> Result<GpuShare> {
    let ppm = u32::try_from(count(row, "share_ppm")?).unwrap_or(GpuShare::WHOLE_PPM);
    Ok(GpuShare { ppm, memory: Mib(count(row, "memory_mib")?) })
}

impl Store {
    /// All leases.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn leases(&self) -> Result<Vec<GpuLease>> {
        let rows = sqlx::query(ALL).fetch_all(self.readers()).await.map_err(StoreError::Sql)?;
        rows.iter().map(lease).collect()
    }

    /// The leases of one machine.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn leases_of(&self, vm: VmId) -> Result<Vec<GpuLease>> {
        let rows = sqlx::query("SELECT * FROM gpu_leases WHERE vm_id = $1 ORDER BY id");
        let rows = rows.bind(vm.to_string()).fetch_all(self.readers()).await.map_err(StoreError::Sql)?;
        rows.iter().map(lease).collect()
    }
}

const ALL: &str = "SELECT * FROM gpu_leases ORDER BY id";

/// All leases, within a transaction.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn read(tx: &mut Write) -> Result<Vec<GpuLease>> {
    let rows = sqlx::query(ALL).fetch_all(&mut **tx).await.map_err(StoreError::Sql)?;
    rows.iter().map(lease).collect()
}

/// Claims a partition.
///
/// # Errors
/// [`StoreError::Taken`] where it, or the card in another way, is held.
pub async fn claim(tx: &mut Write, lease: &GpuLease, now: Timestamp) -> Result<()> {
    let gpu = &lease.partition.gpu().0;
    let kind = lease.partition.use_kind();
    sqlx::query("INSERT INTO gpu_use (gpu_id, kind) VALUES ($1, $2) ON CONFLICT (gpu_id) DO NOTHING")
        .bind(gpu)
        .bind(kind)
        .execute(&mut **tx)
        .await
        .map_err(StoreError::Sql)?;
    let inserted = sqlx::query(
        "INSERT INTO gpu_leases (id, gpu_id, kind, partition_key, body, vm_id, generation, state, memory_mib, share_ppm)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
    )
    .bind(lease.id.to_string())
    .bind(gpu)
    .bind(kind)
    .bind(lease.partition.key())
    .bind(to_json(&lease.partition))
    .bind(lease.vm.to_string())
    .bind(int(lease.generation.0))
    .bind(to_json(&lease.state))
    .bind(int(lease.share.memory.0))
    .bind(i64::from(lease.share.ppm))
    .execute(&mut **tx)
    .await;
    match inserted.map_err(or_taken("the GPU")) {
        // The card is in use in the other way: (gpu_id, kind) has no row to refer to.
        Err(StoreError::InUse) => Err(StoreError::Taken("the GPU")),
        Err(other) => Err(other),
        Ok(_) => gpu_time::note(tx, now).await,
    }
}

/// Moves all leases of a machine to a state.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn set_state(tx: &mut Write, vm: VmId, state: LeaseState, now: Timestamp) -> Result<()> {
    sqlx::query("UPDATE gpu_leases SET state = $1 WHERE vm_id = $2")
        .bind(to_json(&state))
        .bind(vm.to_string())
        .execute(&mut **tx)
        .await
        .map_err(StoreError::Sql)?;
    gpu_time::note(tx, now).await
}

/// Moves one lease to a state.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn set_state_of(tx: &mut Write, lease: LeaseId, state: LeaseState, now: Timestamp) -> Result<()> {
    sqlx::query("UPDATE gpu_leases SET state = $1 WHERE id = $2")
        .bind(to_json(&state))
        .bind(lease.to_string())
        .execute(&mut **tx)
        .await
        .map_err(StoreError::Sql)?;
    gpu_time::note(tx, now).await
}

/// Writes anew what a lease holds; its key stays.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn set_partition(tx: &mut Write, lease: LeaseId, partition: &Partition) -> Result<()> {
    sqlx::query("UPDATE gpu_leases SET body = $1 WHERE id = $2")
        .bind(to_json(partition))
        .bind(lease.to_string())
        .execute(&mut **tx)
        .await
        .map(|_| ())
        .map_err(StoreError::Sql)
}

/// Gives up all leases of a machine; to be called only on proof that its domain is gone.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn release(tx: &mut Write, vm: VmId, now: Timestamp) -> Result<()> {
    sqlx::query("DELETE FROM gpu_leases WHERE vm_id = $1")
        .bind(vm.to_string())
        .execute(&mut **tx)
        .await
        .map_err(StoreError::Sql)?;
    free_unused(tx).await?;
    gpu_time::note(tx, now).await
}

/// Gives up one lease; to be called only on proof that nobody uses what it holds.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn release_one(tx: &mut Write, lease: LeaseId, now: Timestamp) -> Result<()> {
    sqlx::query("DELETE FROM gpu_leases WHERE id = $1")
        .bind(lease.to_string())
        .execute(&mut **tx)
        .await
        .map_err(StoreError::Sql)?;
    free_unused(tx).await?;
    gpu_time::note(tx, now).await
}

async fn free_unused(tx: &mut Write) -> Result<()> {
    // A card without leases is free to be used in either way again.
    sqlx::query("DELETE FROM gpu_use WHERE NOT EXISTS (SELECT 1 FROM gpu_leases l WHERE l.gpu_id = gpu_use.gpu_id)")
        .execute(&mut **tx)
        .await
        .map(|_| ())
        .map_err(StoreError::Sql)
}
