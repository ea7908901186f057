//! The store: what should be. The only place with SQL.
//!
//! SQLite in WAL mode. All writes go through one connection, each in a short `BEGIN IMMEDIATE` transaction, so
//! that an admission reads and writes under one lock; readers have connections of their own. No transaction is
//! ever held over a call of libvirt, a child process or the network.

pub mod audit;
pub mod backup;
pub mod gpu_time;
pub mod gpus;
pub mod identities;
pub mod images;
pub mod leases;
pub mod migrate;
pub mod quotas;
pub mod record;
pub mod teams;
pub mod tokens;
pub mod users;
pub mod vms;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteRow, SqliteSynchronous,
};
use sqlx::{Row, Sqlite, Transaction};

/// How long a statement waits for another process's lock. Twice this and the next, for the request and for the record
/// of its refusal, are less than the patience of who asks.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a caller waits for a connection; longer than a lock may be held by a stranger.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(8);
/// Readers at once.
const READERS: u32 = 4;

/// Why the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Something with this name, key or address is there already.
    #[error("{0} is taken")]
    Taken(&'static str),
    /// Something that is still needed cannot be removed.
    #[error("it is still in use")]
    InUse,
    /// The database file cannot be opened.
    #[error("cannot open the database {path}: {why}")]
    Open {
        /// The file.
        path: PathBuf,
        /// What is wrong and what to do.
        why: String,
        /// Cause.
        #[source]
        source: sqlx::Error,
    },
    /// A row does not make sense.
    #[error("the database holds a {what} that cannot be read: {problem}")]
    Corrupt {
        /// Which column.
        what: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// Another failure.
    #[error("the database failed")]
    Sql(#[source] sqlx::Error),
}

impl StoreError {
    /// True where another program, or another request, held the database for too long.
    pub fn is_locked(&self) -> bool {
        match self {
            Self::Sql(sqlx::Error::PoolTimedOut) => true,
            Self::Sql(error) => matches!(primary_code(error), Some(5 | 6)),
            _ => false,
        }
    }
}

/// Shorthand.
pub type Result<T> = std::result::Result<T, StoreError>;

/// A write transaction; rolled back unless committed.
pub type Write = Transaction<'static, Sqlite>;

/// Handle to the database.
#[derive(Clone, Debug)]
pub struct Store {
    writer: SqlitePool,
    readers: SqlitePool,
}

impl Store {
    /// Opens or makes the database and brings its schema up to date.
    ///
    /// # Errors
    /// Says in plain words where the file is read-only, damaged, locked or from a newer gvm.
    pub async fn open(path: &Path) -> Result<Self> {
        let failed = |source: sqlx::Error| StoreError::Open { path: path.to_owned(), why: explain(&source), source };
        keep_private(path);
        let options = SqliteConnectOptions::from_str("sqlite:")
            .map_err(failed)?
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // WAL with NORMAL may lose the last commits on power loss, and a lost lease is a double booking.
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(BUSY_TIMEOUT);
        let pool = |size| SqlitePoolOptions::new().max_connections(size).acquire_timeout(ACQUIRE_TIMEOUT);
        let writer = pool(1).connect_with(options.clone()).await.map_err(failed)?;
        migrate::run(&writer).await.map_err(|why| match why {
            migrate::MigrateFault::Sql(source) => failed(source),
            migrate::MigrateFault::Migrate(e) => failed(sqlx::Error::Migrate(Box::new(e))),
        })?;
        users::fill_skeletons(&writer).await.map_err(failed)?;
        // Damage in the middle is met only when its rows are; better told now than when a machine depends on it.
        let sound: String = sqlx::query_scalar("PRAGMA quick_check(1)").fetch_one(&writer).await.map_err(failed)?;
        if sound != "ok" {
            let why = format!("it is damaged ({sound}); move it away and restore it from a backup");
            return Err(StoreError::Open { path: path.to_owned(), why, source: sqlx::Error::RowNotFound });
        }
        let carried = record::carry::carry_over(&writer).await?;
        if carried > 0 {
            tracing::info!(carried, "the record has a chain from now on; what was written before is its beginning");
        }
        // A file that cannot be written is opened all the same; better told now than at the first request.
        sqlx::query("UPDATE meta SET body = body WHERE 0").execute(&writer).await.map_err(failed)?;
        let readers = pool(READERS).connect_with(options.read_only(true)).await.map_err(failed)?;
        Ok(Self { writer, readers })
    }

    /// Begins a write: waits for the one writer's place, then takes SQLite's write lock at once.
    ///
    /// # Errors
    /// [`StoreError::Sql`] where the lock is not to be had in time.
    pub async fn write(&self) -> Result<Write> {
        self.writer.begin_with("BEGIN IMMEDIATE").await.map_err(StoreError::Sql)
    }

    fn readers(&self) -> &SqlitePool {
        &self.readers
    }

    /// A value of the small name-value table.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn meta<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let row = sqlx::query("SELECT body FROM meta WHERE name = $1").bind(name).fetch_optional(self.readers()).await;
        row.map_err(StoreError::Sql)?.map(|row| json(&row, "body")).transpose()
    }

    /// Sets a value of the small name-value table in a transaction of its own.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn set_meta<T: Serialize + Sync>(&self, name: &str, value: &T) -> Result<()> {
        let mut tx = self.write().await?;
        write_meta(&mut tx, name, value).await?;
        commit(tx).await
    }

    /// Closes all connections; the write-ahead log is folded into the file.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}

/// A value of the small name-value table, read under the write lock.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn read_meta<T: DeserializeOwned>(tx: &mut Write, name: &str) -> Result<Option<T>> {
    let row = sqlx::query("SELECT body FROM meta WHERE name = $1").bind(name).fetch_optional(&mut **tx).await;
    row.map_err(StoreError::Sql)?.map(|row| json(&row, "body")).transpose()
}

/// Sets a value of the small name-value table.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn write_meta<T: Serialize + Sync>(tx: &mut Write, name: &str, value: &T) -> Result<()> {
    sqlx::query("INSERT INTO meta (name, body) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET body = excluded.body")
        .bind(name)
        .bind(to_json(value))
        .execute(&mut **tx)
        .await
        .map(|_| ())
        .map_err(StoreError::Sql)
}

/// Keys of machines are in the file: nobody but its owner reads it. SQLite gives the mode of the file to those that it
/// makes beside it. What fails here is told by the opening that follows.
fn keep_private(path: &Path) {
    use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
    let made = std::fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
    let Ok(meta) = made.and_then(|file| file.metadata()) else { return };
    if meta.permissions().mode() & 0o077 != 0 {
        let closed = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600));
        tracing::warn!(path = %path.display(), is_mended = closed.is_ok(), "others could read the database");
    }
}

/// Commits.
///
/// # Errors
/// [`StoreError::Sql`]; then nothing of the transaction happened.
pub async fn commit(tx: Write) -> Result<()> {
    tx.commit().await.map_err(StoreError::Sql)
}

/// What is wrong with the file, and what to do about it.
fn explain(error: &sqlx::Error) -> String {
    match primary_code(error) {
        Some(8) => "it is read-only; check the owner and mode of the file and its folder, and that the file system is not mounted read-only".to_owned(),
        Some(11 | 26) => "it is damaged or not a database of gvm; move it away and restore it from a backup".to_owned(),
        Some(5 | 6) => "another program holds a lock on it; find it with `fuser`".to_owned(),
        Some(13) => "the disk is full; make room".to_owned(),
        Some(14) => "the file or its folder cannot be opened; check that the folder exists and is writable".to_owned(),
        _ => match error {
            sqlx::Error::Migrate(e) => format!("its schema does not fit this gvm ({e}); use the gvm that last ran on it, or a newer one"),
            other => other.to_string(),
        },
    }
}

/// SQLite's primary result code.
fn primary_code(error: &sqlx::Error) -> Option<i32> {
    let code = error.as_database_error().and_then(|e| e.code())?;
    code.parse::<i32>().ok().map(|code| code & 0xff)
}

/// Turns a violated unique key into a word for people, and a violated reference into "in use".
fn or_taken(what: &'static str) -> impl Fn(sqlx::Error) -> StoreError {
    move |error| match error.as_database_error().map(sqlx::error::DatabaseError::kind) {
        Some(sqlx::error::ErrorKind::UniqueViolation) => StoreError::Taken(what),
        Some(sqlx::error::ErrorKind::ForeignKeyViolation) => StoreError::InUse,
        _ => StoreError::Sql(error),
    }
}

fn to_json<T: Serialize>(value: &T) -> String {
    // Our own types have string keys and no failing serialisers.
    serde_json::to_string(value).unwrap_or_default()
}

fn json<T: DeserializeOwned>(row: &SqliteRow, column: &'static str) -> Result<T> {
    let text: String = row.try_get(column).map_err(StoreError::Sql)?;
    serde_json::from_str(&text).map_err(|e| StoreError::Corrupt { what: column, problem: e.to_string() })
}

fn parsed<T: FromStr<Err: std::fmt::Display>>(row: &SqliteRow, column: &'static str) -> Result<T> {
    let text: String = row.try_get(column).map_err(StoreError::Sql)?;
    text.parse().map_err(|e: T::Err| StoreError::Corrupt { what: column, problem: e.to_string() })
}

fn maybe_parsed<T: FromStr<Err: std::fmt::Display>>(row: &SqliteRow, column: &'static str) -> Result<Option<T>> {
    match get::<Option<String>>(row, column)? {
        None => Ok(None),
        Some(_) => parsed(row, column).map(Some),
    }
}

fn get<'r, T: sqlx::Decode<'r, Sqlite> + sqlx::Type<Sqlite>>(row: &'r SqliteRow, column: &'static str) -> Result<T> {
    row.try_get(column).map_err(StoreError::Sql)
}

fn count(row: &SqliteRow, column: &'static str) -> Result<u64> {
    let value: i64 = get(row, column)?;
    u64::try_from(value).map_err(|e| StoreError::Corrupt { what: column, problem: e.to_string() })
}

/// Saturating conversion for columns; no real count comes near.
fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn time(row: &SqliteRow, column: &'static str) -> Result<Timestamp> {
    micros(column, get(row, column)?)
}

fn maybe_time(row: &SqliteRow, column: &'static str) -> Result<Option<Timestamp>> {
    get::<Option<i64>>(row, column)?.map(|value| micros(column, value)).transpose()
}

fn micros(what: &'static str, value: i64) -> Result<Timestamp> {
    Timestamp::from_microsecond(value).map_err(|e| StoreError::Corrupt { what, problem: e.to_string() })
}
