//! API tokens: digests and what is told of them, never a token.

use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;

use super::{Result, Store, StoreError, Write, count, get, maybe_time, or_taken, parsed, time};
use crate::model::id::{TeamId, TokenId, UserId};
use crate::model::principal::User;
use crate::model::token::{Token, TokenKind};

/// A token and whose it is, as a request with it needs them.
#[derive(Clone, Debug)]
pub struct TokenHolder {
    /// The token.
    pub token: Token,
    /// Whose.
    pub user: User,
    /// The teams that they are in.
    pub teams: Vec<TeamId>,
    /// Out of use.
    pub is_suspended: bool,
    /// They have an account on this host.
    pub has_account: bool,
}

const COLUMNS: &str = "t.id, t.kind, t.name, t.scopes, t.created_at, t.expires_at, t.last_used_at, t.last_used_from";

fn token(row: &SqliteRow) -> Result<Token> {
    Ok(Token {
        id: parsed(row, "id")?,
        kind: parsed(row, "kind")?,
        name: get(row, "name")?,
        scopes: parsed(row, "scopes")?,
        created_at: time(row, "created_at")?,
        expires_at: time(row, "expires_at")?,
        last_used_at: maybe_time(row, "last_used_at")?,
        last_used_from: get(row, "last_used_from")?,
    })
}

fn holder(row: &SqliteRow) -> Result<TokenHolder> {
    let corrupt = |problem: String| StoreError::Corrupt { what: "team_id", problem };
    let teams: Option<String> = get(row, "teams")?;
    let teams = teams.iter().flat_map(|list| list.split(','));
    Ok(TokenHolder {
        token: token(row)?,
        user: User { id: parsed(row, "user_id")?, name: parsed(row, "user_name")?, role: parsed(row, "role")? },
        teams: teams.map(|id| id.parse().map_err(|e: uuid::Error| corrupt(e.to_string()))).collect::<Result<_>>()?,
        is_suspended: get::<Option<i64>>(row, "suspended_at")?.is_some(),
        has_account: get::<Option<i64>>(row, "uid")?.is_some(),
    })
}

impl Store {
    /// Whose token has this digest.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn token_by_digest(&self, digest: &str) -> Result<Option<TokenHolder>> {
        // One statement: it is asked at every request.
        let sql = format!(
            "SELECT {COLUMNS}, u.id AS user_id, u.name AS user_name, u.role, u.suspended_at, u.uid,
                    (SELECT group_concat(team_id, ',') FROM team_members m WHERE m.user_id = u.id) AS teams
             FROM tokens t JOIN users u ON u.id = t.user_id WHERE t.digest = $1"
        );
        let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(digest);
        let row = query.fetch_optional(self.readers()).await.map_err(StoreError::Sql)?;
        row.as_ref().map(holder).transpose()
    }

    /// The tokens of a person, oldest first.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn tokens(&self, owner: UserId) -> Result<Vec<Token>> {
        let sql = format!("SELECT {COLUMNS} FROM tokens t WHERE t.user_id = $1 ORDER BY t.created_at, t.id");
        let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(owner.to_string());
        let rows = query.fetch_all(self.readers()).await.map_err(StoreError::Sql)?;
        rows.iter().map(token).collect()
    }

    /// Whose token this is.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn token_owner(&self, id: TokenId) -> Result<Option<UserId>> {
        let query = sqlx::query("SELECT user_id FROM tokens WHERE id = $1").bind(id.to_string());
        let row = query.fetch_optional(self.readers()).await.map_err(StoreError::Sql)?;
        row.as_ref().map(|row| parsed(row, "user_id")).transpose()
    }
}

/// Adds a token. What has ended of the same person goes.
///
/// # Errors
/// [`StoreError::Taken`] where they have one of that name.
pub async fn add(tx: &mut Write, owner: UserId, token: &Token, digest: &str) -> Result<()> {
    sqlx::query("DELETE FROM tokens WHERE user_id = $1 AND expires_at <= $2")
        .bind(owner.to_string())
        .bind(token.created_at.as_microsecond())
        .execute(&mut **tx)
        .await
        .map_err(StoreError::Sql)?;
    sqlx::query(
        "INSERT INTO tokens (id, user_id, kind, name, digest, scopes, created_at, expires_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
    )
    .bind(token.id.to_string())
    .bind(owner.to_string())
    .bind(token.kind.as_str())
    .bind(&token.name)
    .bind(digest)
    .bind(token.scopes.to_string())
    .bind(token.created_at.as_microsecond())
    .bind(token.expires_at.as_microsecond())
    .execute(&mut **tx)
    .await
    .map(|_| ())
    .map_err(or_taken("the token's name"))
}

/// How many tokens of a kind a person has that are not over.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn count_of(tx: &mut Write, owner: UserId, is_session: IsSession, now: Timestamp) -> Result<u64> {
    let row = sqlx::query(
        "SELECT COUNT(*) AS n FROM tokens WHERE user_id = $1 AND (kind = 'session') = $2 AND expires_at > $3",
    )
    .bind(owner.to_string())
    .bind(i64::from(is_session == IsSession::Yes))
    .bind(now.as_microsecond())
    .fetch_one(&mut **tx)
    .await
    .map_err(StoreError::Sql)?;
    count(&row, "n")
}

/// Logins are counted apart from what people make for their programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IsSession {
    /// Logins.
    Yes,
    /// All others.
    No,
}

impl From<TokenKind> for IsSession {
    fn from(kind: TokenKind) -> Self {
        if kind == TokenKind::Session { Self::Yes } else { Self::No }
    }
}

/// Forgets the oldest login of a person; gives its id.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn remove_oldest_session(tx: &mut Write, owner: UserId) -> Result<Option<TokenId>> {
    let row = sqlx::query(
        "DELETE FROM tokens WHERE id = (SELECT id FROM tokens WHERE user_id = $1 AND kind = 'session'
         ORDER BY created_at, id LIMIT 1) RETURNING id",
    )
    .bind(owner.to_string())
    .fetch_optional(&mut **tx)
    .await
    .map_err(StoreError::Sql)?;
    row.as_ref().map(|row| parsed(row, "id")).transpose()
}

/// Forgets a token of that person; false where there is none.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn remove(tx: &mut Write, owner: UserId, id: TokenId) -> Result<bool> {
    sqlx::query("DELETE FROM tokens WHERE id = $1 AND user_id = $2")
        .bind(id.to_string())
        .bind(owner.to_string())
        .execute(&mut **tx)
        .await
        .map(|done| done.rows_affected() == 1)
        .map_err(StoreError::Sql)
}

/// Notes a use.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn note_use(tx: &mut Write, id: TokenId, at: Timestamp, from: Option<&str>) -> Result<()> {
    sqlx::query("UPDATE tokens SET last_used_at = $1, last_used_from = $2 WHERE id = $3")
        .bind(at.as_microsecond())
        .bind(from)
        .bind(id.to_string())
        .execute(&mut **tx)
        .await
        .map(|_| ())
        .map_err(StoreError::Sql)
}
