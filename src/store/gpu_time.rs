//! When who held which part of which card.
//!
//! A time is open exactly while a lease is there that is not being given back: it is begun and ended by looking at the
//! leases, in each transaction that changes one, so that none can be forgotten.

use jiff::Timestamp;
use sqlx::SqliteConnection;

use super::quotas::Holder;
use super::{Result, StoreError, count, maybe_time, time};
use crate::model::id::LeaseId;
use crate::model::quota::month::{HeldTime, Month};

/// Ends and begins what the leases, and the teams that their machines count for, say by now.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn note(connection: &mut SqliteConnection, now: Timestamp) -> Result<()> {
    // A clock that was set back makes no time negative.
    sqlx::query(
        "UPDATE gpu_time SET ended_at = CASE WHEN began_at > $1 THEN began_at ELSE $1 END
         WHERE ended_at IS NULL AND NOT EXISTS (
             SELECT 1 FROM gpu_leases l JOIN vms v ON v.id = l.vm_id
             WHERE l.id = gpu_time.lease_id AND l.state <> '\"sanitising\"'
               AND COALESCE(v.team_id, '') = COALESCE(gpu_time.team_id, ''))",
    )
    .bind(now.as_microsecond())
    .execute(&mut *connection)
    .await
    .map_err(StoreError::Sql)?;
    let fresh = sqlx::query_scalar::<_, String>(
        "SELECT l.id FROM gpu_leases l WHERE l.state <> '\"sanitising\"'
           AND NOT EXISTS (SELECT 1 FROM gpu_time t WHERE t.lease_id = l.id AND t.ended_at IS NULL)",
    );
    for lease in fresh.fetch_all(&mut *connection).await.map_err(StoreError::Sql)? {
        sqlx::query(
            "INSERT INTO gpu_time (id, lease_id, vm_id, owner_id, team_id, gpu_id, share_ppm, began_at)
             SELECT $1, l.id, v.id, v.owner_id, v.team_id, l.gpu_id, l.share_ppm, $2
             FROM gpu_leases l JOIN vms v ON v.id = l.vm_id WHERE l.id = $3",
        )
        .bind(LeaseId::generate().to_string())
        .bind(now.as_microsecond())
        .bind(lease)
        .execute(&mut *connection)
        .await
        .map_err(StoreError::Sql)?;
    }
    Ok(())
}

/// The times of a month in which somebody held parts of cards.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn held(connection: &mut SqliteConnection, holder: Holder, month: Month) -> Result<Vec<HeldTime>> {
    let (column, id) = holder.column();
    let sql = format!(
        "SELECT share_ppm, began_at, ended_at FROM gpu_time
         WHERE {column} = $1 AND began_at < $2 AND (ended_at IS NULL OR ended_at > $3)"
    );
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(id)
        .bind(month.end.as_microsecond())
        .bind(month.begin.as_microsecond())
        .fetch_all(connection)
        .await
        .map_err(StoreError::Sql)?;
    let held = |row| {
        Ok(HeldTime {
            share_ppm: u32::try_from(count(row, "share_ppm")?).unwrap_or(u32::MAX),
            began_at: time(row, "began_at")?,
            ended_at: maybe_time(row, "ended_at")?,
        })
    };
    rows.iter().map(held).collect()
}
