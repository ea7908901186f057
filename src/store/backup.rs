//! A copy of the database at one moment, and what is in such a copy.

use std::path::Path;

use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};

use super::{Result, Store, StoreError, explain, migrate, parsed};
use crate::model::id::VmId;

/// What a copy holds, for people who wonder whether it is the right one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// People and service accounts.
    pub users: u64,
    /// Machines.
    pub vms: Vec<VmId>,
    /// Images.
    pub images: u64,
}

impl Store {
    /// Writes the database as it stands at this moment into a new file. Writers go on meanwhile.
    ///
    /// # Errors
    /// Where the file is there already, or there is no room.
    pub async fn copy_to(&self, to: &Path) -> Result<()> {
        let path = to.to_str().ok_or(StoreError::Corrupt { what: "path", problem: "it is no text".to_owned() })?;
        sqlx::query("VACUUM INTO $1").bind(path).execute(self.readers()).await.map(|_| ()).map_err(StoreError::Sql)
    }
}

/// Looks through a copy without changing it: is it sound, does its schema fit, what is in it?
///
/// # Errors
/// Says what is wrong with it.
pub async fn examine(path: &Path) -> Result<Contents> {
    let failed = |source: sqlx::Error| StoreError::Open { path: path.to_owned(), why: explain(&source), source };
    let options = SqliteConnectOptions::new().filename(path).read_only(true).immutable(true);
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.map_err(failed)?;
    let contents = look_through(&pool, path).await;
    pool.close().await;
    contents
}

async fn look_through(pool: &SqlitePool, path: &Path) -> Result<Contents> {
    let wrong = |why: String| StoreError::Open { path: path.to_owned(), why, source: sqlx::Error::RowNotFound };
    let failed = |source: sqlx::Error| StoreError::Open { path: path.to_owned(), why: explain(&source), source };
    let sound: String = sqlx::query_scalar("PRAGMA integrity_check(1)").fetch_one(pool).await.map_err(failed)?;
    if sound != "ok" {
        return Err(wrong(format!("it is damaged ({sound})")));
    }
    let loose = sqlx::query("PRAGMA foreign_key_check").fetch_all(pool).await.map_err(failed)?;
    if !loose.is_empty() {
        return Err(wrong(format!("{} rows point to rows that are not there", loose.len())));
    }
    let newest: i64 = sqlx::query_scalar("SELECT COALESCE(MAX(version), 0) FROM _sqlx_migrations")
        .fetch_one(pool)
        .await
        .map_err(|_| wrong("it is no database of gvm".to_owned()))?;
    if newest > migrate::newest() {
        return Err(wrong(format!(
            "its schema ({newest}) is newer than this gvm's ({}); use the gvm that made it, or a newer one",
            migrate::newest()
        )));
    }
    let count = async |sql: &'static str| -> Result<u64> {
        let count: i64 = sqlx::query_scalar(sql).fetch_one(pool).await.map_err(failed)?;
        Ok(u64::try_from(count).unwrap_or_default())
    };
    let rows = sqlx::query("SELECT id FROM vms ORDER BY created_at, id").fetch_all(pool).await.map_err(failed)?;
    Ok(Contents {
        users: count("SELECT COUNT(*) FROM users").await?,
        vms: rows.iter().map(|row| parsed(row, "id")).collect::<Result<_>>()?,
        images: count("SELECT COUNT(*) FROM images").await?,
    })
}
