//! Rows from before there was a chain.
//!
//! They are put into the record as its first entries, in one transaction, at the first start of a gvm that has a chain:
//! `carried over` in place of how it was known who asked. The chain says of them what they were at that moment, and
//! nothing of what they were before.

use sqlx::sqlite::{SqlitePool, SqliteRow};

use super::append;
use crate::model::event::Outcome;
use crate::model::record::{Entry, Half};
use crate::store::{Result, StoreError, Write, commit, get, maybe_time, parsed};

/// Rows that are read at once.
const PAGE: i64 = 1000;
/// In place of how it was known who asked.
const VIA: &str = "carried over";

/// Takes over what there is; nothing where that was done before.
///
/// # Errors
/// [`StoreError`]; then nothing was.
pub async fn carry_over(pool: &SqlitePool) -> Result<u64> {
    let mut tx: Write = pool.begin_with("BEGIN IMMEDIATE").await.map_err(StoreError::Sql)?;
    let mut count = 0_u64;
    loop {
        let rows = sqlx::query(
            "SELECT a.id, a.at, a.actor, u.id AS actor_id, a.request_id, a.action, a.target, a.vm_id, a.generation,
                 a.outcome, a.detail, a.finished_at
             FROM audit_unchained a LEFT JOIN users u ON u.name = a.actor
             ORDER BY a.at, a.id LIMIT $1",
        )
        .bind(PAGE)
        .fetch_all(&mut *tx)
        .await
        .map_err(StoreError::Sql)?;
        if rows.is_empty() {
            break;
        }
        for row in &rows {
            take(&mut tx, row).await?;
            let remove = sqlx::query("DELETE FROM audit_unchained WHERE id = $1").bind(get::<String>(row, "id")?);
            remove.execute(&mut *tx).await.map_err(StoreError::Sql)?;
            count = count.saturating_add(1);
        }
    }
    commit(tx).await?;
    Ok(count)
}

async fn take(tx: &mut Write, row: &SqliteRow) -> Result<()> {
    let outcome: Outcome = parsed(row, "outcome")?;
    let at: i64 = get(row, "at")?;
    let end = maybe_time(row, "finished_at")?.filter(|end| end.as_microsecond() != at);
    let is_begun = end.is_some() || outcome == Outcome::Pending;
    let detail: String = get(row, "detail")?;
    let first = Entry {
        seq: 0,
        at,
        operation: get(row, "id")?,
        half: if is_begun { Half::Begin } else { Half::Whole }.as_str().to_owned(),
        actor: get(row, "actor")?,
        actor_id: get(row, "actor_id")?,
        via: VIA.to_owned(),
        address: None,
        request_id: get(row, "request_id")?,
        action: get(row, "action")?,
        target: get(row, "target")?,
        vm_id: get(row, "vm_id")?,
        outcome: if is_begun { Outcome::Pending } else { outcome }.as_str().to_owned(),
        detail: if is_begun { String::new() } else { detail.clone() },
        hash: String::new(),
    };
    let seq = append(tx, first.clone()).await?;
    if let Some(end) = end {
        append(tx, first.ended(end, outcome, &detail)).await?;
    } else if is_begun {
        let (vm, generation): (Option<String>, Option<i64>) = (get(row, "vm_id")?, get(row, "generation")?);
        if let (Some(vm), Some(generation)) = (vm, generation) {
            super::put_pending(tx, &first.operation, seq, &vm, generation).await?;
        }
    }
    Ok(())
}
