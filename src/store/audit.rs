//! Operations on the record: who did what to what, and how it ended. The first half is written with the change itself,
//! so that a change without its entry does not commit; the second when the effect is proven, as an entry of its own.

use jiff::Timestamp;
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use super::record::{append, put_pending, read};
use super::{Result, Store, StoreError, Write, get, int, maybe_parsed, maybe_time, parsed, time};
use crate::model::event::{AuditEvent, Operation, Outcome};
use crate::model::id::{OpId, UserId, VmId};
use crate::model::record::{Entry, Half};
use crate::model::vm::Generation;

/// Whose operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose<'a> {
    /// Everybody's.
    Everybody,
    /// This person's, whatever they were called then.
    User(UserId),
    /// Of who has this name and no id: `gvm`, `gateway`.
    Named(&'a str),
}

fn operation(row: &SqliteRow) -> Result<Operation> {
    Ok(Operation {
        id: parsed(row, "operation")?,
        at: time(row, "at")?,
        actor: get(row, "actor")?,
        action: get(row, "action")?,
        target: get(row, "target")?,
        vm: maybe_parsed(row, "vm_id")?,
        outcome: parsed(row, "outcome")?,
        detail: get(row, "detail")?,
        finished_at: maybe_time(row, "finished_at")?,
    })
}

/// First halves, each with its second where there is one.
const JOINED: &str = "SELECT b.operation, b.at, b.actor, b.action, b.target, b.vm_id,
    COALESCE(e.outcome, b.outcome) AS outcome, COALESCE(e.detail, b.detail) AS detail,
    CASE WHEN b.half = 'whole' THEN b.at ELSE e.at END AS finished_at
    FROM record b LEFT JOIN record e ON e.operation = b.operation AND e.half = 'end'
    WHERE b.half <> 'end'";

impl Store {
    /// One operation, with the id of who asked for it.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn operation(&self, id: OpId) -> Result<Option<(Operation, Option<UserId>)>> {
        let sql = format!("{} AND b.operation = $1", JOINED.replacen("b.vm_id,", "b.vm_id, b.actor_id,", 1));
        let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(id.to_string());
        let row = query.fetch_optional(self.readers()).await.map_err(StoreError::Sql)?;
        row.map(|row| Ok((operation(&row)?, maybe_parsed(&row, "actor_id")?))).transpose()
    }

    /// The newest operations.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn operations(&self, whose: Whose<'_>, limit: u32) -> Result<Vec<Operation>> {
        let (of_them, word) = match whose {
            Whose::Everybody => ("$1 = ''", String::new()),
            Whose::User(id) => ("b.actor_id = $1", id.to_string()),
            Whose::Named(name) => ("b.actor_id IS NULL AND b.actor = $1", name.to_owned()),
        };
        let sql = format!("{JOINED} AND {of_them} ORDER BY b.seq DESC LIMIT $2");
        let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(word).bind(i64::from(limit));
        let rows = query.fetch_all(self.readers()).await.map_err(StoreError::Sql)?;
        rows.iter().map(operation).collect()
    }

    /// True where a request of this generation or an older one is not finished on the record.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn has_pending(&self, vm: VmId, up_to: Generation) -> Result<bool> {
        let row = sqlx::query("SELECT 1 FROM record_pending WHERE vm_id = $1 AND generation <= $2 LIMIT 1")
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
    pub async fn record(&self, event: &AuditEvent) -> Result<()> {
        let mut tx = self.write().await?;
        begin(&mut tx, event, None).await?;
        super::commit(tx).await
    }
}

/// Puts an event on the record: its first half, or all of it where it is over already. `generation` is that of the
/// machine whose settling ends it.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn begin(tx: &mut Write, event: &AuditEvent, generation: Option<Generation>) -> Result<()> {
    let seq = append(tx, Entry::of(event)).await?;
    let (Half::Begin, Some(vm), Some(generation)) = (Half::first_of(event), event.vm, generation) else {
        return Ok(());
    };
    put_pending(tx, &event.id.to_string(), seq, &vm.to_string(), int(generation.0)).await
}

/// Writes the second half of everything pending of a machine up to a generation.
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
    let pending = sqlx::query("SELECT seq FROM record_pending WHERE vm_id = $1 AND generation <= $2 ORDER BY seq")
        .bind(vm.to_string())
        .bind(int(up_to.0))
        .fetch_all(&mut **tx)
        .await
        .map_err(StoreError::Sql)?;
    for row in pending {
        let seq: i64 = row.try_get(0).map_err(StoreError::Sql)?;
        // A first half that somebody took away has no second; `gvm audit verify` tells of it.
        if let Some(begun) = read(tx, seq).await? {
            append(tx, begun.ended(now, outcome, detail)).await?;
        }
    }
    sqlx::query("DELETE FROM record_pending WHERE vm_id = $1 AND generation <= $2")
        .bind(vm.to_string())
        .bind(int(up_to.0))
        .execute(&mut **tx)
        .await
        .map(|_| ())
        .map_err(StoreError::Sql)
}
