//! Numbered, append-only migrations. An edited one is refused by sqlx's checksum.

use std::borrow::Cow;

use sqlx::SqlStr;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::sqlite::SqlitePool;

/// Why the schema could not be brought up to date.
#[derive(Debug)]
pub enum MigrateFault {
    /// The database failed.
    Sql(sqlx::Error),
    /// The schema does not fit.
    Migrate(sqlx::migrate::MigrateError),
}

fn all() -> Vec<Migration> {
    let numbered = [
        (1, "init", include_str!("../../migrations/0001_init.sql")),
        (2, "gpus", include_str!("../../migrations/0002_gpus.sql")),
        (3, "vgpu_types", include_str!("../../migrations/0003_vgpu_types.sql")),
        (4, "gpu_shape", include_str!("../../migrations/0004_gpu_shape.sql")),
        (5, "gpu_health", include_str!("../../migrations/0005_gpu_health.sql")),
        (6, "people", include_str!("../../migrations/0006_people.sql")),
        (7, "tokens", include_str!("../../migrations/0007_tokens.sql")),
        (8, "audit", include_str!("../../migrations/0008_audit.sql")),
        (9, "gpu_time", include_str!("../../migrations/0009_gpu_time.sql")),
        (10, "identities", include_str!("../../migrations/0010_identities.sql")),
    ];
    numbered
        .into_iter()
        .map(|(number, name, sql)| {
            Migration::new(number, Cow::Borrowed(name), MigrationType::Simple, SqlStr::from_static(sql), false)
        })
        .collect()
}

/// The newest version that this gvm knows.
pub fn newest() -> i64 {
    all().iter().map(|migration| migration.version).max().unwrap_or_default()
}

/// Applies what is missing.
///
/// # Errors
/// [`MigrateFault`].
pub async fn run(pool: &SqlitePool) -> Result<(), MigrateFault> {
    Migrator::with_migrations(all()).run(pool).await.map_err(|e| match e {
        sqlx::migrate::MigrateError::Execute(e) => MigrateFault::Sql(e),
        other => MigrateFault::Migrate(other),
    })
}
