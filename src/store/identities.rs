//! Whom login providers mean: their subjects, and the users that those are.

use jiff::Timestamp;

use super::{Result, StoreError, Write, or_taken, parsed};
use crate::model::id::UserId;
use crate::model::principal::Provider;

/// The user that a provider's subject is.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn user_of(tx: &mut Write, provider: Provider, subject: &str) -> Result<Option<UserId>> {
    let row = sqlx::query("SELECT user_id FROM identities WHERE provider = $1 AND subject = $2")
        .bind(provider.as_str())
        .bind(subject)
        .fetch_optional(&mut **tx)
        .await;
    row.map_err(StoreError::Sql)?.as_ref().map(|row| parsed(row, "user_id")).transpose()
}

/// This subject is that user from now on.
///
/// # Errors
/// [`StoreError::Taken`] where it is somebody already.
pub async fn link(tx: &mut Write, provider: Provider, subject: &str, user: UserId, now: Timestamp) -> Result<()> {
    sqlx::query("INSERT INTO identities (provider, subject, user_id, created_at) VALUES ($1, $2, $3, $4)")
        .bind(provider.as_str())
        .bind(subject)
        .bind(user.to_string())
        .bind(now.as_microsecond())
        .execute(&mut **tx)
        .await
        .map(|_| ())
        .map_err(or_taken("this login"))
}

/// It logged in.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn note_login(tx: &mut Write, provider: Provider, subject: &str, now: Timestamp) -> Result<()> {
    sqlx::query("UPDATE identities SET last_login_at = $1 WHERE provider = $2 AND subject = $3")
        .bind(now.as_microsecond())
        .bind(provider.as_str())
        .bind(subject)
        .execute(&mut **tx)
        .await
        .map(|_| ())
        .map_err(StoreError::Sql)
}
