//! The record: who did what to what. A row is written in two halves, the request before it acts and its end
//! when the effect is proven; an action without its row does not commit.

use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;

use super::{Result, Store, StoreError, Write, get, int, maybe_parsed, maybe_time, parsed, time};
use crate::model::event::{AuditEvent, Outcome};
use crate::model::id::{OpId, VmId};
use crate::model::vm::Generation;

fn event(row: &SqliteRow) -> Result<AuditEvent> {
    let word: String = get(row, "outcome")?;
    let outcome = match word.as_str() {
        "pending" => Outcome::Pending,
        "success" => Outcome::Success,
        "denied" => Outcome::Denied,
        "failure" => Outcome::Failure,
        other => return Err(StoreError::Corrupt { what: "outcome", problem: format!("{other:?} is no outcome") }),
    };
    Ok(AuditEvent {
        id: parsed(row, "id")?,
        at: time(row, "at")?,
        actor: get(row, "actor")?,
        action: get(row, "action")?,
        target: get(row, "target")?,
        vm: maybe_parsed(row, "vm_id")?,
        outcome,
        detail: get(row, "detail")?,
        finished_at: maybe_time(row, "finished_at")?,
    })
}

const COLUMNS: &str = "id, at, actor, action, target, vm_id, outcome, detail, finished_at";

impl Store {
    /// One row.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn audit_event(&self, id: OpId) -> Result<Option<AuditEvent>> {
        let query =
            sqlx::query(sqlx::AssertSqlSafe(format!("SELECT {COLUMNS} FROM audit WHERE id = $1"))).bind(id.to_string());
        let row = query.fetch_optional(self.readers()).await.map_err(StoreError::Sql)?;
        row.as_ref().map(event).transpose()
    }

    /// The newest rows, of one actor where given.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn audit_events(&self, actor: Option<&str>, limit: u32) -> Result<Vec<AuditEvent>> {
        let sql =
            format!("SELECT {COLUMNS} FROM audit WHERE $1 IS NULL OR actor = $1 ORDER BY at DESC, id DESC LIMIT $2");
        let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(actor).bind(i64::from(limit));
        let rows = query.fetch_all(self.readers()).await.map_err(StoreError::Sql)?;
        rows.iter().map(event).collect()
    }

    /// True where a request of this generation or an older one is not finished on the record.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn has_pending(&self, vm: VmId, up_to: Generation) -> Result<bool> {
        let row =
            sqlx::query("SELECT 1 FROM audit WHERE outcome = 'pending' AND vm_id = $1 AND generation <= $2 LIMIT 1")
                .bind(vm.to_string())
                .bind(int(up_to.0))
                .fetch_optional(self.readers())
                .await;
        Ok(row.map_err(StoreError::Sql)?.is_some())
    }

    /// Records something that is over already, such as a refusal, in a transaction of its own.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn record(&self, row: &AuditEvent) -> Result<()> {
        let mut tx = self.write().await?;
        begin(&mut tx, row, None).await?;
        super::commit(tx).await
    }
}

/// Writes the first half of a row (or a whole one, where it is over already).
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn begin(tx: &mut Write, row: &AuditEvent, generation: Option<Generation>) -> Result<()> {
    sqlx::query(
        "INSERT INTO audit (id, at, actor, action, target, vm_id, generation, outcome, detail, finished_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
    )
    .bind(row.id.to_string())
    .bind(row.at.as_microsecond())
    .bind(&row.actor)
    .bind(&row.action)
    .bind(&row.target)
    .bind(row.vm.map(|id| id.to_string()))
    .bind(generation.map(|g| int(g.0)))
    .bind(row.outcome.as_str())
    .bind(&row.detail)
    .bind(row.finished_at.map(Timestamp::as_microsecond))
    .execute(&mut **tx)
    .await
    .map(|_| ())
    .map_err(StoreError::Sql)
}

/// Writes the second half of all pending rows of a machine up to a generation.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn finish(
    tx: &mut Write,
    vm: VmId,
    up_to: Generation,
    outcome: Outcome,
    detail: &str,
    now: Timestamp,
) -> Result<()> {
    sqlx::query(
        "UPDATE audit SET outcome = $1, detail = $2, finished_at = $3
         WHERE outcome = 'pending' AND vm_id = $4 AND generation <= $5",
    )
    .bind(outcome.as_str())
    .bind(detail)
    .bind(now.as_microsecond())
    .bind(vm.to_string())
    .bind(int(up_to.0))
    .execute(&mut **tx)
    .await
    .map(|_| ())
    .map_err(StoreError::Sql)
}

/// Writes the second half of one row.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn finish_one(tx: &mut Write, id: OpId, outcome: Outcome, detail: &str, now: Timestamp) -> Result<()> {
    sqlx::query("UPDATE audit SET outcome = $1, detail = $2, finished_at = $3 WHERE id = $4 AND outcome = 'pending'")
        .bind(outcome.as_str())
        .bind(detail)
        .bind(now.as_microsecond())
        .bind(id.to_string())
        .execute(&mut **tx)
        .await
        .map(|_| ())
        .map_err(StoreError::Sql)
}
