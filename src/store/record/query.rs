//! Questions to the record.

use jiff::Timestamp;

use super::{COLUMNS, entry};
use crate::model::id::{OpId, UserId, VmId};
use crate::model::record::Entry;
use crate::model::record::check::Chain;
use crate::store::{Result, Store, StoreError, get, int, parsed};

/// Which entries are wanted: those to which all of this applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this person, whatever they were called then.
    pub actor_id: Option<UserId>,
    /// By this name.
    pub actor: Option<String>,
    /// Begins so, such as `vm.`.
    pub action: Option<String>,
    /// To this.
    pub target: Option<String>,
    /// About this machine.
    pub vm: Option<VmId>,
    /// This outcome's word.
    pub outcome: Option<String>,
    /// Of this request, or of this operation.
    pub request: Option<OpId>,
    /// At this time or later.
    pub since: Option<Timestamp>,
    /// Before this time.
    pub until: Option<Timestamp>,
    /// With a lower number.
    pub before: Option<u64>,
}

enum Value {
    Text(String),
    Number(i64),
}

impl Filter {
    /// The conditions, each with the value of its place; `?` stands for the value's number.
    fn conditions(&self) -> Vec<(&'static str, Value)> {
        let text = |value: &String| Value::Text(value.clone());
        let begins = |start: &String| {
            let escaped = start.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
            Value::Text(format!("{escaped}%"))
        };
        let time = |at: &Timestamp| Value::Number(at.as_microsecond());
        [
            self.actor_id.map(|id| ("actor_id = ?", Value::Text(id.to_string()))),
            self.actor.as_ref().map(|name| ("actor = ?", text(name))),
            self.action.as_ref().map(|start| ("action LIKE ? ESCAPE '\\'", begins(start))),
            self.target.as_ref().map(|target| ("target = ?", text(target))),
            self.vm.map(|id| ("vm_id = ?", Value::Text(id.to_string()))),
            self.outcome.as_ref().map(|outcome| ("outcome = ?", text(outcome))),
            self.request.map(|id| ("(request_id = ? OR operation = ?)", Value::Text(id.to_string()))),
            self.since.as_ref().map(|at| ("at >= ?", time(at))),
            self.until.as_ref().map(|at| ("at < ?", time(at))),
            self.before.map(|seq| ("seq < ?", Value::Number(int(seq)))),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

impl Store {
    /// The newest entries that are wanted, newest first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn entries(&self, filter: &Filter, limit: u32) -> Result<Vec<Entry>> {
        let conditions = filter.conditions();
        let mut sql = format!("SELECT {COLUMNS} FROM record");
        for (number, (condition, _)) in (1..).zip(&conditions) {
            let word = if number == 1 { "WHERE" } else { "AND" };
            sql.push_str(&format!(" {word} {}", condition.replace('?', &format!("${number}"))));
        }
        sql.push_str(&format!(" ORDER BY seq DESC LIMIT {limit}"));
        let mut query = sqlx::query(sqlx::AssertSqlSafe(sql));
        for (_, value) in conditions {
            query = match value {
                Value::Text(text) => query.bind(text),
                Value::Number(number) => query.bind(number),
            };
        }
        let rows = query.fetch_all(self.readers()).await.map_err(StoreError::Sql)?;
        rows.iter().map(entry).collect()
    }

    /// Entries behind `after` up to `last`, in order, at most so many.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn entries_behind(&self, after: u64, last: u64, limit: u32) -> Result<Vec<Entry>> {
        let sql = format!("SELECT {COLUMNS} FROM record WHERE seq > $1 AND seq <= $2 ORDER BY seq LIMIT $3");
        let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(int(after)).bind(int(last)).bind(i64::from(limit));
        let rows = query.fetch_all(self.readers()).await.map_err(StoreError::Sql)?;
        rows.iter().map(entry).collect()
    }

    /// The entry before the first one of this time or later: what an export from then on begins behind.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn entry_before(&self, since: Timestamp) -> Result<Chain> {
        // None of this time or later: behind the last.
        let query = sqlx::query(
            "SELECT seq, hash FROM record
             WHERE seq = COALESCE((SELECT MIN(seq) - 1 FROM record WHERE at >= $1), (SELECT MAX(seq) FROM record))",
        )
        .bind(since.as_microsecond());
        let row = query.fetch_optional(self.readers()).await.map_err(StoreError::Sql)?;
        let Some(row) = row else { return Ok(Chain::START) };
        Ok(Chain { seq: get::<i64>(&row, "seq")?.unsigned_abs(), hash: parsed(&row, "hash")? })
    }
}
