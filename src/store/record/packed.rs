//! A stretch of the record as one value. Row by row, each of its values is copied under locks that all readers share,
//! which takes longer than the hashing.
//!
//! What comes out of here is exactly what is stored, or nothing: no text of a JSON document stands for two values, and a
//! value of another type than it should have is none. Who gets nothing looks at the rows themselves.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use sqlx::sqlite::SqliteRow;

use super::{COLUMNS, column};
use crate::model::record::{Fields, TEXTS};
use crate::store::{Store, int};

/// Entries as they came out of the database.
#[derive(Debug)]
pub struct Packed(SqliteRow);

impl Store {
    /// The entries of these numbers, where they can be had in this way.
    pub(super) async fn packed(&self, from: u64, to: u64) -> Option<Packed> {
        let sql = format!(
            "SELECT json_group_array(json_array({COLUMNS}))
             FROM (SELECT {COLUMNS} FROM record WHERE seq >= $1 AND seq <= $2 ORDER BY seq)"
        );
        let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(int(from)).bind(int(to));
        query.fetch_one(self.readers()).await.ok().map(Packed)
    }
}

impl Packed {
    /// The entries, in order.
    pub fn lines(&self) -> Option<Vec<Line<'_>>> {
        let text: &str = column(&self.0, 0).ok()?;
        serde_json::from_str(text).ok()
    }
}

/// One entry.
#[derive(Debug)]
pub struct Line<'a> {
    seq: u64,
    at: i64,
    texts: [Option<Text<'a>>; TEXTS.len()],
    hash: Text<'a>,
}

impl Line<'_> {
    /// What is hashed of it, and the hash that is stored with it.
    pub fn fields(&self) -> (Fields<'_>, &str) {
        let mut texts = [None; TEXTS.len()];
        for (to, from) in texts.iter_mut().zip(&self.texts) {
            *to = from.as_ref().map(|text| &*text.0);
        }
        (Fields { seq: self.seq, at: self.at, texts }, &self.hash.0)
    }
}

impl<'de> Deserialize<'de> for Line<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(LineVisitor)
    }
}

struct LineVisitor;

impl<'de> Visitor<'de> for LineVisitor {
    type Value = Line<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the values of an entry")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Line<'de>, A::Error> {
        let few = || A::Error::custom("too few values");
        let seq = values.next_element()?.ok_or_else(few)?;
        let at = values.next_element()?.ok_or_else(few)?;
        let mut texts = [const { None }; TEXTS.len()];
        for text in &mut texts {
            *text = values.next_element()?.ok_or_else(few)?;
        }
        Ok(Line { seq, at, texts, hash: values.next_element()?.ok_or_else(few)? })
    }
}

/// A text, borrowed where nothing in it is escaped.
#[derive(Debug)]
struct Text<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Owned(text.to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::model::event::{AuditEvent, Outcome};
    use crate::store::commit;
    use crate::store::record::fields;

    /// A record with these details.
    async fn record(dir: &tempfile::TempDir, details: &[&str]) -> Store {
        let store = Store::open(&dir.path().join("gvm.db")).await.unwrap();
        for detail in details {
            let event = AuditEvent::own(Timestamp::now(), "vm.start", "m.eve".to_owned(), Outcome::Failure);
            store.record(&AuditEvent { detail: (*detail).to_owned(), ..event }).await.unwrap();
        }
        store
    }

    #[tokio::test]
    async fn what_is_unpacked_is_what_is_stored() {
        let dir = tempfile::tempdir().unwrap();
        let odd = [
            "",
            "there is a user \"x\"",
            "a\nb\t\\u0041",
            "ümläut \u{2028}\u{1F980}",
            "\u{1}\u{7f}",
            "a\u{0}b",
            "null",
        ];
        let store = record(&dir, &odd).await;
        let last = u64::try_from(odd.len()).unwrap();
        let packed = store.packed(1, last).await.unwrap();
        let lines = packed.lines().unwrap();
        let sql = format!("SELECT {COLUMNS} FROM record ORDER BY seq");
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_all(store.readers()).await.unwrap();
        assert_eq!(lines.len(), rows.len());
        for (line, row) in lines.iter().zip(&rows) {
            assert_eq!(line.fields(), fields(row).unwrap());
        }
    }

    #[tokio::test]
    async fn a_value_of_another_type_is_not_unpacked() {
        for value in ["CAST('x' AS BLOB)", "CAST(x'ff' AS TEXT)"] {
            let dir = tempfile::tempdir().unwrap();
            let store = record(&dir, &["one"]).await;
            let mut tx = store.write().await.unwrap();
            let sql = format!("UPDATE record SET detail = {value}");
            sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut *tx).await.unwrap();
            commit(tx).await.unwrap();
            let packed = store.packed(1, 1).await;
            assert!(packed.as_ref().and_then(Packed::lines).is_none(), "{value}");
        }
    }
}
