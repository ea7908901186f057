//! People and their SSH keys.

use jiff::Timestamp;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::{Result, Store, StoreError, Write, get, or_taken, parsed, time};
use crate::model::access::PublicKey;
use crate::model::id::{KeyId, TeamId, UserId};
use crate::model::name::UserName;
use crate::model::principal::{Role, User};

/// A registered key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRow {
    /// Id.
    pub id: KeyId,
    /// The key.
    pub key: PublicKey,
    /// `SHA256:...`
    pub fingerprint: String,
    /// When it was added.
    pub added_at: Timestamp,
}

fn user(row: &SqliteRow) -> Result<User> {
    Ok(User { id: parsed(row, "id")?, name: parsed(row, "name")?, role: parsed(row, "role")? })
}

impl Store {
    /// The person behind a uid of the host; made with the name and role given at the first sight. A changed
    /// role (the administrator edited the configuration) is taken over.
    ///
    /// # Errors
    /// [`StoreError::Taken`] where the name belongs to another uid.
    pub async fn ensure_user(&self, uid: u32, name: &UserName, role: Role, now: Timestamp) -> Result<User> {
        let known = sqlx::query("SELECT id, name, role FROM users WHERE uid = $1")
            .bind(i64::from(uid))
            .fetch_optional(self.readers())
            .await
            .map_err(StoreError::Sql)?;
        if let Some(row) = known {
            let known = user(&row)?;
            if known.role == role {
                return Ok(known);
            }
        }
        let mut tx = self.write().await?;
        sqlx::query(
            "INSERT INTO users (id, name, role, uid, created_at) VALUES ($1, $2, $3, $4, $5)
             ON CONFLICT (uid) DO UPDATE SET role = excluded.role",
        )
        .bind(UserId::generate().to_string())
        .bind(name.as_str())
        .bind(role.as_str())
        .bind(i64::from(uid))
        .bind(now.as_microsecond())
        .execute(&mut *tx)
        .await
        .map_err(or_taken("the user name"))?;
        let row = sqlx::query("SELECT id, name, role FROM users WHERE uid = $1")
            .bind(i64::from(uid))
            .fetch_one(&mut *tx)
            .await
            .map_err(StoreError::Sql)?;
        super::commit(tx).await?;
        user(&row)
    }

    /// A person by id.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn user(&self, id: UserId) -> Result<Option<User>> {
        self.user_where("SELECT id, name, role FROM users WHERE id = $1", id.to_string()).await
    }

    /// A person by name.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn user_by_name(&self, name: &UserName) -> Result<Option<User>> {
        self.user_where("SELECT id, name, role FROM users WHERE name = $1", name.as_str().to_owned()).await
    }

    /// The person whose key this is (kind and body).
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn user_by_key(&self, identity: &str) -> Result<Option<User>> {
        let sql = "SELECT u.id, u.name, u.role FROM users u JOIN ssh_keys k ON k.user_id = u.id WHERE k.identity = $1";
        self.user_where(sql, identity.to_owned()).await
    }

    /// True where an administrator has put this person out of use.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn is_suspended(&self, user: UserId) -> Result<bool> {
        let row = sqlx::query("SELECT 1 FROM users WHERE id = $1 AND suspended_at IS NOT NULL")
            .bind(user.to_string())
            .fetch_optional(self.readers())
            .await
            .map_err(StoreError::Sql)?;
        Ok(row.is_some())
    }

    /// The teams that a person is in.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn teams_of(&self, user: UserId) -> Result<Vec<TeamId>> {
        let rows = sqlx::query("SELECT team_id FROM team_members WHERE user_id = $1 ORDER BY team_id")
            .bind(user.to_string())
            .fetch_all(self.readers())
            .await
            .map_err(StoreError::Sql)?;
        rows.iter().map(|row| parsed(row, "team_id")).collect()
    }

    async fn user_where(&self, sql: &'static str, value: String) -> Result<Option<User>> {
        let row = sqlx::query(sql).bind(value).fetch_optional(self.readers()).await.map_err(StoreError::Sql)?;
        row.as_ref().map(user).transpose()
    }

    /// Names of all people by id.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn user_names(&self) -> Result<std::collections::HashMap<UserId, UserName>> {
        let rows =
            sqlx::query("SELECT id, name FROM users").fetch_all(self.readers()).await.map_err(StoreError::Sql)?;
        rows.iter().map(|row| Ok((parsed(row, "id")?, parsed(row, "name")?))).collect()
    }

    /// The keys of a person, oldest first.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn keys(&self, owner: UserId) -> Result<Vec<KeyRow>> {
        let rows = sqlx::query("SELECT id, identity, comment, fingerprint, created_at FROM ssh_keys WHERE user_id = $1 ORDER BY created_at, id")
            .bind(owner.to_string())
            .fetch_all(self.readers())
            .await
            .map_err(StoreError::Sql)?;
        rows.iter().map(key).collect()
    }
}

fn key(row: &SqliteRow) -> Result<KeyRow> {
    let identity: String = row.try_get("identity").map_err(StoreError::Sql)?;
    let comment: String = row.try_get("comment").map_err(StoreError::Sql)?;
    let key = format!("{identity} {comment}").parse::<PublicKey>();
    Ok(KeyRow {
        id: parsed(row, "id")?,
        key: key.map_err(|e| StoreError::Corrupt { what: "identity", problem: e.to_string() })?,
        fingerprint: get(row, "fingerprint")?,
        added_at: time(row, "created_at")?,
    })
}

/// Registers a key.
///
/// # Errors
/// [`StoreError::Taken`] where somebody has registered it.
pub async fn add_key(tx: &mut Write, owner: UserId, row: &KeyRow) -> Result<()> {
    sqlx::query("INSERT INTO ssh_keys (id, user_id, identity, comment, fingerprint, created_at) VALUES ($1, $2, $3, $4, $5, $6)")
        .bind(row.id.to_string())
        .bind(owner.to_string())
        .bind(row.key.identity())
        .bind(row.key.comment())
        .bind(&row.fingerprint)
        .bind(row.added_at.as_microsecond())
        .execute(&mut **tx)
        .await
        .map(|_| ())
        .map_err(or_taken("this key"))
}

/// Forgets a key of that person; false where there is none.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn remove_key(tx: &mut Write, owner: UserId, id: KeyId) -> Result<bool> {
    sqlx::query("DELETE FROM ssh_keys WHERE id = $1 AND user_id = $2")
        .bind(id.to_string())
        .bind(owner.to_string())
        .execute(&mut **tx)
        .await
        .map(|done| done.rows_affected() == 1)
        .map_err(StoreError::Sql)
}
