//! People and their SSH keys.

use jiff::Timestamp;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::{Result, Store, StoreError, Write, count, get, maybe_parsed, maybe_time, or_taken, parsed, time};
use crate::model::access::PublicKey;
use crate::model::id::{KeyId, TeamId, UserId};
use crate::model::name::UserName;
use crate::model::principal::{Role, RoleSource, Suspension, User};

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

/// Everything that is kept of a person or service account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserRow {
    /// Who it is. The role is the stored one; see [`RoleSource`].
    pub user: User,
    /// The uid that the host's account of that name had when it was first seen; none for who has no account.
    pub uid: Option<u32>,
    /// For people.
    pub full_name: String,
    /// A program rather than a person.
    pub is_service: bool,
    /// Out of use.
    pub suspended: Option<Suspension>,
    /// Where the role is from.
    pub role_source: RoleSource,
    /// The host's account of that name may take this over at its first sight.
    pub awaits_account: bool,
    /// The team that machines count for where none is named.
    pub default_team: Option<TeamId>,
    /// Limits in place of the usual ones; JSON.
    pub quota: String,
    /// When it was added.
    pub created_at: Timestamp,
}

impl UserRow {
    /// Somebody new, as little as possible being said.
    pub fn new(name: UserName, now: Timestamp) -> Self {
        Self {
            user: User { id: UserId::generate(), name, role: Role::Member },
            uid: None,
            full_name: String::new(),
            is_service: false,
            suspended: None,
            role_source: RoleSource::Host,
            awaits_account: false,
            default_team: None,
            quota: "{}".to_owned(),
            created_at: now,
        }
    }
}

/// A part of all people, by name.
#[derive(Clone, Debug, Default)]
pub struct UserFilter {
    /// Only names that begin so.
    pub prefix: String,
    /// Only names after this one.
    pub after: String,
    /// At most so many.
    pub limit: u32,
}

const COLUMNS: &str = "id, name, role, uid, full_name, is_service, suspended_at, suspended_why, role_source, \
                       awaits_account, default_team, quota, created_at";

fn user(row: &SqliteRow) -> Result<User> {
    Ok(User { id: parsed(row, "id")?, name: parsed(row, "name")?, role: parsed(row, "role")? })
}

fn user_row(row: &SqliteRow) -> Result<UserRow> {
    let uid: Option<i64> = get(row, "uid")?;
    let why: Option<String> = get(row, "suspended_why")?;
    Ok(UserRow {
        user: user(row)?,
        uid: uid.and_then(|uid| u32::try_from(uid).ok()),
        full_name: get(row, "full_name")?,
        is_service: get::<i64>(row, "is_service")? != 0,
        suspended: maybe_time(row, "suspended_at")?.map(|at| Suspension { at, why: why.unwrap_or_default() }),
        role_source: parsed(row, "role_source")?,
        awaits_account: get::<i64>(row, "awaits_account")? != 0,
        default_team: maybe_parsed(row, "default_team")?,
        quota: get(row, "quota")?,
        created_at: time(row, "created_at")?,
    })
}

impl Store {
    /// The person behind a uid of the host; made with the name and role given at the first sight, where nobody was
    /// added by hand who waits for the account of that name. A changed role (the administrator edited the
    /// configuration) is taken over, unless it was set by hand.
    ///
    /// # Errors
    /// [`StoreError::Taken`] where the name belongs to another uid.
    pub async fn ensure_user(&self, uid: u32, name: &UserName, role: Role, now: Timestamp) -> Result<User> {
        let known = self.user_row_by_uid(uid).await?;
        if let Some(known) = known.filter(|row| row.user.role == role || row.role_source == RoleSource::Set) {
            return Ok(known.user);
        }
        let mut tx = self.write().await?;
        let row = match by_uid(&mut tx, uid).await? {
            Some(known) => Some(known),
            None => by_name(&mut tx, name).await?.filter(|row| row.awaits_account),
        };
        let row = match row {
            Some(mut row) => {
                (row.uid, row.awaits_account) = (Some(uid), false);
                if row.role_source == RoleSource::Host {
                    row.user.role = role;
                }
                update(&mut tx, &row).await?;
                row
            }
            None => {
                let mut row = UserRow { uid: Some(uid), ..UserRow::new(name.clone(), now) };
                row.user.role = role;
                insert(&mut tx, &row).await?;
                row
            }
        };
        super::commit(tx).await?;
        Ok(row.user)
    }

    /// True where somebody is known by this uid, or was added by hand and waits for the account of that name.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn is_expected(&self, uid: u32, name: &UserName) -> Result<bool> {
        let sql = "SELECT 1 FROM users WHERE uid = $1 OR name = $2 AND awaits_account = 1";
        let row = sqlx::query(sql).bind(i64::from(uid)).bind(name.as_str()).fetch_optional(self.readers()).await;
        Ok(row.map_err(StoreError::Sql)?.is_some())
    }

    /// Everything of a person, by id.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn user_row(&self, id: UserId) -> Result<Option<UserRow>> {
        self.user_row_where("id = $1", id.to_string()).await
    }

    async fn user_row_by_uid(&self, uid: u32) -> Result<Option<UserRow>> {
        self.user_row_where("uid = CAST($1 AS BIGINT)", uid.to_string()).await
    }

    async fn user_row_where(&self, is: &str, value: String) -> Result<Option<UserRow>> {
        let sql = format!("SELECT {COLUMNS} FROM users WHERE {is}");
        let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(value);
        let row = query.fetch_optional(self.readers()).await.map_err(StoreError::Sql)?;
        row.as_ref().map(user_row).transpose()
    }

    /// People by name.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn user_rows(&self, filter: &UserFilter) -> Result<Vec<UserRow>> {
        // No letter of a name comes after z; a bound of the index rather than a pattern.
        let sql =
            format!("SELECT {COLUMNS} FROM users WHERE name >= $1 AND name < $2 AND name > $3 ORDER BY name LIMIT $4");
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(&filter.prefix)
            .bind(format!("{}{{", filter.prefix))
            .bind(&filter.after)
            .bind(i64::from(filter.limit))
            .fetch_all(self.readers())
            .await
            .map_err(StoreError::Sql)?;
        rows.iter().map(user_row).collect()
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

    async fn user_where(&self, sql: &'static str, value: String) -> Result<Option<User>> {
        let row = sqlx::query(sql).bind(value).fetch_optional(self.readers()).await.map_err(StoreError::Sql)?;
        row.as_ref().map(user).transpose()
    }

    /// Names by id of all who have machines.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn owner_names(&self) -> Result<std::collections::HashMap<UserId, UserName>> {
        let query = sqlx::query("SELECT id, name FROM users WHERE id IN (SELECT owner_id FROM vms)");
        let rows = query.fetch_all(self.readers()).await.map_err(StoreError::Sql)?;
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

async fn read_where(tx: &mut Write, is: &str, value: String) -> Result<Option<UserRow>> {
    let sql = format!("SELECT {COLUMNS} FROM users WHERE {is}");
    let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(value).fetch_optional(&mut **tx).await;
    row.map_err(StoreError::Sql)?.as_ref().map(user_row).transpose()
}

async fn by_uid(tx: &mut Write, uid: u32) -> Result<Option<UserRow>> {
    read_where(tx, "uid = CAST($1 AS BIGINT)", uid.to_string()).await
}

/// Everything of a person by name, under the write lock.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn by_name(tx: &mut Write, name: &UserName) -> Result<Option<UserRow>> {
    read_where(tx, "name = $1", name.as_str().to_owned()).await
}

/// Everything of a person, under the write lock.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn read(tx: &mut Write, id: UserId) -> Result<Option<UserRow>> {
    read_where(tx, "id = $1", id.to_string()).await
}

/// Who has this name, or one that looks like it.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn who_looks_like(tx: &mut Write, name: &UserName) -> Result<Option<User>> {
    let row = sqlx::query("SELECT id, name, role FROM users WHERE skeleton = $1 OR name = $2 LIMIT 1")
        .bind(name.skeleton())
        .bind(name.as_str())
        .fetch_optional(&mut **tx)
        .await;
    row.map_err(StoreError::Sql)?.as_ref().map(user).transpose()
}

/// The name's look, where nobody else has it. An account of the host is let in all the same: its name is not gvm's
/// choice.
async fn free_skeleton(tx: &mut Write, row: &UserRow) -> Result<Option<String>> {
    let skeleton = row.user.name.skeleton();
    let other = sqlx::query("SELECT 1 FROM users WHERE skeleton = $1 AND id <> $2")
        .bind(&skeleton)
        .bind(row.user.id.to_string())
        .fetch_optional(&mut **tx)
        .await
        .map_err(StoreError::Sql)?;
    Ok(other.is_none().then_some(skeleton))
}

/// Registers somebody.
///
/// # Errors
/// [`StoreError::Taken`] where the name or uid is somebody's.
pub async fn insert(tx: &mut Write, row: &UserRow) -> Result<()> {
    let skeleton = free_skeleton(tx, row).await?;
    let sql = format!(
        "INSERT INTO users ({COLUMNS}, skeleton) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
    );
    bound(sqlx::query(sqlx::AssertSqlSafe(sql)), row, skeleton)
        .execute(&mut **tx)
        .await
        .map(|_| ())
        .map_err(or_taken("the user name"))
}

/// Writes everything of a person anew.
///
/// # Errors
/// [`StoreError::Taken`] where the name is another's.
pub async fn update(tx: &mut Write, row: &UserRow) -> Result<()> {
    let skeleton = free_skeleton(tx, row).await?;
    let sql = "UPDATE users SET name = $2, role = $3, uid = $4, full_name = $5, is_service = $6, suspended_at = $7, \
               suspended_why = $8, role_source = $9, awaits_account = $10, default_team = $11, quota = $12, \
               created_at = $13, skeleton = $14 WHERE id = $1";
    bound(sqlx::query(sql), row, skeleton).execute(&mut **tx).await.map(|_| ()).map_err(or_taken("the user name"))
}

type Statement = sqlx::query::Query<'static, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>;

fn bound(statement: Statement, row: &UserRow, skeleton: Option<String>) -> Statement {
    let suspended = row.suspended.as_ref();
    statement
        .bind(row.user.id.to_string())
        .bind(row.user.name.to_string())
        .bind(row.user.role.as_str())
        .bind(row.uid.map(i64::from))
        .bind(row.full_name.clone())
        .bind(i64::from(row.is_service))
        .bind(suspended.map(|suspension| suspension.at.as_microsecond()))
        .bind(suspended.map(|suspension| suspension.why.clone()))
        .bind(row.role_source.as_str())
        .bind(i64::from(row.awaits_account))
        .bind(row.default_team.map(|team| team.to_string()))
        .bind(row.quota.clone())
        .bind(row.created_at.as_microsecond())
        .bind(skeleton)
}

/// How many machines are a person's, deleted ones that can come back among them.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn count_vms(tx: &mut Write, id: UserId) -> Result<u64> {
    let sql = "SELECT COUNT(*) AS vms FROM vms WHERE owner_id = $1";
    let row = sqlx::query(sql).bind(id.to_string()).fetch_one(&mut **tx).await.map_err(StoreError::Sql)?;
    count(&row, "vms")
}

/// Forgets a person with their keys and memberships.
///
/// # Errors
/// [`StoreError::InUse`] where something is still theirs.
pub async fn remove(tx: &mut Write, id: UserId) -> Result<()> {
    for sql in [
        "DELETE FROM ssh_keys WHERE user_id = $1",
        "DELETE FROM tokens WHERE user_id = $1",
        "DELETE FROM identities WHERE user_id = $1",
        "DELETE FROM team_members WHERE user_id = $1",
        "DELETE FROM users WHERE id = $1",
    ] {
        sqlx::query(sql).bind(id.to_string()).execute(&mut **tx).await.map_err(or_taken("the user"))?;
    }
    Ok(())
}

/// Gives names their look that were registered before there was one.
pub(super) async fn fill_skeletons(pool: &sqlx::sqlite::SqlitePool) -> std::result::Result<(), sqlx::Error> {
    let rows = sqlx::query("SELECT id, name FROM users WHERE skeleton IS NULL ORDER BY created_at, id")
        .fetch_all(pool)
        .await?;
    for row in rows {
        let (id, name): (String, String) = (row.try_get("id")?, row.try_get("name")?);
        // What cannot be read is told by who reads it.
        let Ok(name) = name.parse::<UserName>() else { continue };
        let sql =
            "UPDATE users SET skeleton = $1 WHERE id = $2 AND NOT EXISTS (SELECT 1 FROM users WHERE skeleton = $1)";
        sqlx::query(sql).bind(name.skeleton()).bind(id).execute(pool).await?;
    }
    Ok(())
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
