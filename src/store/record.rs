//! The record's entries and their chain. Rows are put in here, and nowhere changed or removed.
//!
//! ```text
//!   write transaction: tip (n, hash) -> entry n+1 -> tip (n+1, hash')     one writer, so no gap and no fork
//!   readers:           pages and stretches by number, each a transaction of its own: nobody is held up
//! ```

pub(super) mod carry;
pub mod check;
mod packed;
pub mod query;

use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, Sqlite};

use super::{Result, Store, StoreError, Write, int, parsed};
use crate::model::record::check::{Chain, Fault, Wrong};
use crate::model::record::head::SignedHead;
use crate::model::record::{Entry, Fields, TEXTS};

/// Columns in the order in which they are hashed, the hash last.
pub(super) const COLUMNS: &str = "seq, at, operation, half, actor, actor_id, via, address, request_id, action, target, \
                                  vm_id, outcome, detail, hash";

fn column<'r, T: sqlx::Decode<'r, Sqlite> + sqlx::Type<Sqlite>>(row: &'r SqliteRow, index: usize) -> Result<T> {
    row.try_get(index).map_err(StoreError::Sql)
}

/// What is hashed of a row, and the hash that is stored with it.
pub(super) fn fields(row: &SqliteRow) -> Result<(Fields<'_>, &str)> {
    let seq: i64 = column(row, 0)?;
    let seq = u64::try_from(seq).map_err(|e| StoreError::Corrupt { what: "seq", problem: e.to_string() })?;
    let mut texts = [None; TEXTS.len()];
    for (index, text) in texts.iter_mut().enumerate() {
        *text = column(row, index + 2)?;
    }
    Ok((Fields { seq, at: column(row, 1)?, texts }, column(row, TEXTS.len() + 2)?))
}

pub(super) fn entry(row: &SqliteRow) -> Result<Entry> {
    let (fields, hash) = fields(row)?;
    let mut texts = fields.texts.into_iter().map(|text| text.map(str::to_owned));
    let mut next = || texts.next().flatten();
    Ok(Entry {
        seq: fields.seq,
        at: fields.at,
        operation: next().unwrap_or_default(),
        half: next().unwrap_or_default(),
        actor: next().unwrap_or_default(),
        actor_id: next(),
        via: next().unwrap_or_default(),
        address: next(),
        request_id: next(),
        action: next().unwrap_or_default(),
        target: next().unwrap_or_default(),
        vm_id: next(),
        outcome: next().unwrap_or_default(),
        detail: next().unwrap_or_default(),
        hash: hash.to_owned(),
    })
}

fn tip(row: &SqliteRow) -> Result<Chain> {
    let seq: i64 = column(row, 0)?;
    let corrupt = |problem: String| StoreError::Corrupt { what: "record's end", problem };
    let seq = u64::try_from(seq).map_err(|e| corrupt(e.to_string()))?;
    Ok(Chain { seq, hash: parsed(row, "hash")? })
}

const TIP: &str = "SELECT seq, hash FROM record_tip WHERE id = 1";

/// Appends an entry, and gives its number. Whatever number and hash it has are not heeded.
///
/// # Errors
/// [`StoreError::Sql`]; [`StoreError::Corrupt`] where somebody else wrote to the record.
pub async fn append(tx: &mut Write, entry: Entry) -> Result<u64> {
    let row = sqlx::query(TIP).fetch_one(&mut **tx).await.map_err(StoreError::Sql)?;
    let last = tip(&row)?;
    let (entry, hash) = entry.behind(last.seq, &last.hash);
    let mut insert = sqlx::query(
        "INSERT INTO record (seq, at, operation, half, actor, actor_id, via, address, request_id, action, target, vm_id,
             outcome, detail, hash)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)",
    )
    .bind(int(entry.seq))
    .bind(entry.at);
    for text in entry.fields().texts {
        insert = insert.bind(text);
    }
    insert.bind(&entry.hash).execute(&mut **tx).await.map_err(|error| {
        if error.as_database_error().is_some_and(sqlx::error::DatabaseError::is_unique_violation) {
            let problem = format!("entry {} is there already; see `gvm audit verify`", entry.seq);
            return StoreError::Corrupt { what: "record", problem };
        }
        StoreError::Sql(error)
    })?;
    sqlx::query("UPDATE record_tip SET seq = $1, hash = $2 WHERE id = 1")
        .bind(int(entry.seq))
        .bind(hash.to_string())
        .execute(&mut **tx)
        .await
        .map_err(StoreError::Sql)?;
    Ok(entry.seq)
}

/// Notes that an operation has begun, and whose settling ends it.
pub(super) async fn put_pending(tx: &mut Write, operation: &str, seq: u64, vm: &str, generation: i64) -> Result<()> {
    sqlx::query("INSERT INTO record_pending (operation, seq, vm_id, generation) VALUES ($1, $2, $3, $4)")
        .bind(operation)
        .bind(int(seq))
        .bind(vm)
        .bind(generation)
        .execute(&mut **tx)
        .await
        .map(|_| ())
        .map_err(StoreError::Sql)
}

/// One entry, read under the write lock.
pub(super) async fn read(tx: &mut Write, seq: i64) -> Result<Option<Entry>> {
    let sql = format!("SELECT {COLUMNS} FROM record WHERE seq = $1");
    let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(seq).fetch_optional(&mut **tx).await;
    row.map_err(StoreError::Sql)?.as_ref().map(entry).transpose()
}

/// Keeps a signed head.
///
/// # Errors
/// [`StoreError::Taken`] where that entry has one.
pub async fn keep_head(tx: &mut Write, head: &SignedHead) -> Result<()> {
    sqlx::query("INSERT INTO record_heads (seq, head) VALUES ($1, $2)")
        .bind(int(head.head.seq))
        .bind(head.to_string())
        .execute(&mut **tx)
        .await
        .map(|_| ())
        .map_err(super::or_taken("the head of this entry"))
}

impl Store {
    /// How far the record goes.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn record_tip(&self) -> Result<Chain> {
        let row = sqlx::query(TIP).fetch_one(self.readers()).await.map_err(StoreError::Sql)?;
        tip(&row)
    }

    /// All signed heads of entries from this one on, in order; inside, the first that is none.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn record_heads(&self, from: u64) -> Result<std::result::Result<Vec<SignedHead>, Fault>> {
        let query = sqlx::query("SELECT seq, head FROM record_heads WHERE seq >= $1 ORDER BY seq").bind(int(from));
        let rows = query.fetch_all(self.readers()).await.map_err(StoreError::Sql)?;
        let mut heads = Vec::with_capacity(rows.len());
        for row in &rows {
            let seq = column::<i64>(row, 0)?.unsigned_abs();
            match parsed::<SignedHead>(row, "head") {
                Ok(signed) if signed.head.seq == seq => heads.push(signed),
                _ => return Ok(Err(Fault { seq, wrong: Wrong::BadSignature })),
            }
        }
        Ok(Ok(heads))
    }

    /// The newest signed head.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] where it is no head.
    pub async fn newest_head(&self) -> Result<Option<SignedHead>> {
        let query = sqlx::query("SELECT head FROM record_heads ORDER BY seq DESC LIMIT 1");
        let row = query.fetch_optional(self.readers()).await.map_err(StoreError::Sql)?;
        row.map(|row| parsed(&row, "head")).transpose()
    }
}
