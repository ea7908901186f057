//! Stretches of the record, held against their hashes.

use futures_util::StreamExt as _;

use super::{COLUMNS, column, entry, fields, tip};
use crate::model::record::check::{Chain, Fault, Heads, Wrong};
use crate::model::record::{Fields, Hash};
use crate::store::{READERS, Result, Store, StoreError, int};

/// Entries that are looked through for the right one where a wrong one stands.
const SEARCHED: u64 = 1000;

/// Entries of a stretch: some milliseconds of one reader.
const STRETCH: usize = 4096;
/// Stretches at once: one reader is left to everybody else.
const AT_ONCE: usize = READERS as usize - 1;

/// What a stretch was found to be.
#[derive(Debug)]
struct Stretch {
    /// Its last entry.
    last: Chain,
    /// The hashes of the entries that were wanted, in order.
    met: Vec<(u64, Hash)>,
}

impl Store {
    /// How far the record goes, and whether its last entry is the one that its end names. What is written later is not
    /// heeded.
    ///
    /// # Errors
    /// [`StoreError`]; inside, the first entry that is missing or too many.
    pub async fn record_end(&self) -> Result<std::result::Result<Chain, Fault>> {
        // One statement is one snapshot.
        let sql = "SELECT seq, hash, (SELECT MIN(seq) FROM record) AS oldest, (SELECT MAX(seq) FROM record) AS newest
             FROM record_tip WHERE id = 1";
        let row = sqlx::query(sql).fetch_one(self.readers()).await.map_err(StoreError::Sql)?;
        let end = tip(&row)?;
        // What is no number sorts behind all numbers.
        let ends: (Option<i64>, Option<i64>) = (column(&row, 2)?, column(&row, 3).unwrap_or(Some(i64::MAX)));
        if ends.0.is_some_and(|oldest| oldest < 1) {
            return Ok(Err(Fault { seq: 0, wrong: Wrong::Inserted }));
        }
        let newest = ends.1.map_or(0, i64::unsigned_abs);
        Ok(match newest.cmp(&end.seq) {
            std::cmp::Ordering::Less => {
                Err(Fault { seq: newest.saturating_add(1), wrong: Wrong::Deleted { next: None } })
            }
            std::cmp::Ordering::Greater => Err(Fault { seq: end.seq.saturating_add(1), wrong: Wrong::Inserted }),
            std::cmp::Ordering::Equal => Ok(end),
        })
    }

    /// Holds the whole record against itself and against these heads: in stretches, several at once, each a short look
    /// of its own, so that nobody who writes is held up. What is written meanwhile is not heeded.
    ///
    /// # Errors
    /// [`StoreError`]; inside, the first entry that is wrong.
    pub async fn verify_record(&self, heads: &Heads) -> Result<std::result::Result<Chain, Fault>> {
        let end = match self.record_end().await? {
            Ok(end) => end,
            Err(fault) => match self.check_entries(Chain::START, fault.seq.saturating_sub(1), &[]).await? {
                Ok(_) => return Ok(Err(with_head(fault, heads))),
                Err(earlier) => return Ok(Err(earlier)),
            },
        };
        let wanted: Vec<u64> = heads.entries().collect();
        let (last, met) = match self.check_entries(Chain::START, end.seq, &wanted).await? {
            Ok(found) => found,
            Err(fault) => return Ok(Err(fault)),
        };
        if last != end {
            return Ok(Err(Fault { seq: end.seq, wrong: Wrong::Edited }));
        }
        let hash_of = |seq: u64| {
            let at = met.binary_search_by_key(&seq, |(seq, _)| *seq).ok()?;
            met.get(at).map(|(_, hash)| *hash)
        };
        Ok(heads.agree(Chain::START, last, hash_of).map(|()| last))
    }

    /// Checks the entries behind `first` up to `last`; gives the last one, and the hashes of those that were wanted.
    /// `wanted` is in order.
    ///
    /// # Errors
    /// [`StoreError`]; inside, the first entry that is wrong.
    pub async fn check_entries(
        &self,
        first: Chain,
        last: u64,
        wanted: &[u64],
    ) -> Result<std::result::Result<(Chain, Vec<(u64, Hash)>), Fault>> {
        let mut end = first;
        let mut met = Vec::new();
        let begins = (first.seq..last).step_by(STRETCH);
        let stretches = begins.map(|after| {
            let to = after.saturating_add(STRETCH as u64).min(last);
            let known = (after == first.seq).then_some(first.hash);
            let wanted = wanted.iter().copied().filter(|seq| (after..=to).contains(seq)).collect();
            self.check_stretch(after, to, known, wanted)
        });
        let mut checked = futures_util::stream::iter(stretches).buffered(AT_ONCE);
        while let Some(stretch) = checked.next().await {
            match stretch? {
                Ok(stretch) => {
                    end = stretch.last;
                    met.extend(stretch.met);
                }
                Err(fault) => return Ok(Err(fault)),
            }
        }
        Ok(Ok((end, met)))
    }

    /// Checks the entries behind `after` up to `last`. Where its hash is not known, the one that is stored is taken: it
    /// is checked by the stretch before. The hashing is done on a thread of its own.
    async fn check_stretch(
        &self,
        after: u64,
        last: u64,
        known: Option<Hash>,
        wanted: Vec<u64>,
    ) -> Result<std::result::Result<Stretch, Fault>> {
        let from = if known.is_some() { after.saturating_add(1) } else { after };
        let span = Span { after, last, known, wanted };
        let packed = self.packed(from, last).await;
        let (span, found) = hashing(move || {
            let lines = packed.as_ref().and_then(|packed| packed.lines());
            let found = lines.and_then(|lines| span.check(lines.iter().map(|line| Some(line.fields()))).ok());
            (span, found)
        })
        .await?;
        match found {
            Some(stretch) => Ok(Ok(stretch)),
            // Whatever it was: the rows themselves say what is wrong, if anything is.
            None => self.check_rows(from, span).await,
        }
    }

    async fn check_rows(&self, from: u64, span: Span) -> Result<std::result::Result<Stretch, Fault>> {
        let sql = format!("SELECT {COLUMNS} FROM record WHERE seq >= $1 AND seq <= $2 ORDER BY seq");
        let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(int(from)).bind(int(span.last));
        let rows = query.fetch_all(self.readers()).await.map_err(StoreError::Sql)?;
        let checked = hashing(move || span.check(rows.iter().map(|row| fields(row).ok()))).await?;
        Ok(match checked {
            Ok(stretch) => Ok(stretch),
            Err((chain, Fault { seq, wrong: Wrong::Edited })) => Err(Fault { seq, wrong: self.diagnose(chain).await? }),
            Err((chain, Fault { seq, wrong: Wrong::Deleted { next: None } })) => {
                Err(Fault { seq, wrong: Wrong::Deleted { next: self.next_entry(chain.seq).await? } })
            }
            Err((_, fault)) => Err(fault),
        })
    }

    async fn next_entry(&self, after: u64) -> Result<Option<u64>> {
        let query = sqlx::query("SELECT MIN(seq) AS next FROM record WHERE seq > $1").bind(int(after));
        let row = query.fetch_one(self.readers()).await.map_err(StoreError::Sql)?;
        Ok(column::<Option<i64>>(&row, 0).ok().flatten().map(i64::unsigned_abs))
    }

    async fn diagnose(&self, chain: Chain) -> Result<Wrong> {
        let from = chain.seq.saturating_add(1);
        let sql = format!("SELECT {COLUMNS} FROM record WHERE seq >= $1 AND seq < $2 ORDER BY seq");
        let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(int(from)).bind(int(from.saturating_add(SEARCHED)));
        let rows = query.fetch_all(self.readers()).await.map_err(StoreError::Sql)?;
        let entries: Vec<_> = rows.iter().filter_map(|row| entry(row).ok()).collect();
        Ok(chain.diagnose(&entries))
    }
}

/// A missing end is told with the head that knew of it.
fn with_head(fault: Fault, heads: &Heads) -> Fault {
    let head = heads.entries().filter(|head| *head >= fault.seq).last();
    match (&fault.wrong, head) {
        (Wrong::Deleted { next: None }, Some(head)) => Fault { wrong: Wrong::CutOff { head }, ..fault },
        _ => fault,
    }
}

/// Away from the threads that answer requests.
async fn hashing<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|e| StoreError::Sql(sqlx::Error::Io(std::io::Error::other(e))))
}

/// A stretch to check.
#[derive(Debug)]
struct Span {
    /// The entry before it.
    after: u64,
    /// Its last.
    last: u64,
    /// The hash of the entry before it.
    known: Option<Hash>,
    /// Whose hashes are wanted, in order.
    wanted: Vec<u64>,
}

impl Span {
    /// Takes the entries in order, none for one that cannot be read; the one before comes first where its hash is not
    /// known. Gives the first fault, with the chain as far as it is right.
    fn check<'a>(
        &self,
        mut entries: impl Iterator<Item = Option<(Fields<'a>, &'a str)>>,
    ) -> std::result::Result<Stretch, (Chain, Fault)> {
        let stored = |entry: Option<(Fields<'a>, &'a str)>| {
            let (fields, hash) = entry?;
            hash.parse().ok().filter(|_| fields.seq == self.after)
        };
        let hash = self.known.or_else(|| entries.next().and_then(stored));
        let Some(hash) = hash else {
            return Err((Chain::START, Fault { seq: self.after, wrong: Wrong::Unreadable }));
        };
        let mut chain = Chain { seq: self.after, hash };
        let mut met = Vec::new();
        for entry in entries {
            let seq = chain.seq.saturating_add(1);
            let Some((fields, hash)) = entry else { return Err((chain, Fault { seq, wrong: Wrong::Unreadable })) };
            chain.take(&fields, hash).map_err(|fault| (chain, fault))?;
            if self.wanted.binary_search(&chain.seq).is_ok() {
                met.push((chain.seq, chain.hash));
            }
        }
        if chain.seq < self.last {
            let seq = chain.seq.saturating_add(1);
            return Err((chain, Fault { seq, wrong: Wrong::Deleted { next: None } }));
        }
        Ok(Stretch { last: chain, met })
    }
}
