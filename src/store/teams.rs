//! Teams and who is in them.

use std::collections::HashMap;

use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;

use super::{Result, Store, StoreError, Write, count, get, or_taken, parsed, time};
use crate::model::id::{TeamId, UserId};
use crate::model::name::{TeamName, UserName};

/// A team.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TeamRow {
    /// Id.
    pub id: TeamId,
    /// Name.
    pub name: TeamName,
    /// One line.
    pub description: String,
    /// Limits of all its machines together; JSON.
    pub quota: String,
    /// Limits of each of its members; JSON.
    pub member_quota: String,
    /// When it was made.
    pub created_at: Timestamp,
}

impl TeamRow {
    /// A new one, without limits.
    pub fn new(name: TeamName, description: String, now: Timestamp) -> Self {
        let none = || "{}".to_owned();
        Self { id: TeamId::generate(), name, description, quota: none(), member_quota: none(), created_at: now }
    }
}

/// The teams of several people.
pub type TeamsByUser = HashMap<UserId, Vec<(TeamId, TeamName)>>;

const COLUMNS: &str = "t.id, t.name, t.description, t.quota, t.member_quota, t.created_at";

fn team(row: &SqliteRow) -> Result<TeamRow> {
    Ok(TeamRow {
        id: parsed(row, "id")?,
        name: parsed(row, "name")?,
        description: get(row, "description")?,
        quota: get(row, "quota")?,
        member_quota: get(row, "member_quota")?,
        created_at: time(row, "created_at")?,
    })
}

impl Store {
    /// A team by id.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn team(&self, id: TeamId) -> Result<Option<TeamRow>> {
        self.team_where("t.id = $1", id.to_string()).await
    }

    /// A team by name.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn team_by_name(&self, name: &TeamName) -> Result<Option<TeamRow>> {
        self.team_where("t.name = $1", name.as_str().to_owned()).await
    }

    async fn team_where(&self, is: &str, value: String) -> Result<Option<TeamRow>> {
        let sql = format!("SELECT {COLUMNS} FROM teams t WHERE {is}");
        let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(value);
        let row = query.fetch_optional(self.readers()).await.map_err(StoreError::Sql)?;
        row.as_ref().map(team).transpose()
    }

    /// All teams by name, or those of one person, each with the number of its members.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn teams(&self, of: Option<UserId>) -> Result<Vec<(TeamRow, u64)>> {
        let sql = format!(
            "SELECT {COLUMNS}, (SELECT COUNT(*) FROM team_members m WHERE m.team_id = t.id) AS members FROM teams t
             WHERE $1 IS NULL OR t.id IN (SELECT team_id FROM team_members WHERE user_id = $1) ORDER BY t.name"
        );
        let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(of.map(|user| user.to_string()));
        let rows = query.fetch_all(self.readers()).await.map_err(StoreError::Sql)?;
        rows.iter().map(|row| Ok((team(row)?, count(row, "members")?))).collect()
    }

    /// How many are in a team.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn count_members(&self, team: TeamId) -> Result<u64> {
        let query =
            sqlx::query("SELECT COUNT(*) AS members FROM team_members WHERE team_id = $1").bind(team.to_string());
        count(&query.fetch_one(self.readers()).await.map_err(StoreError::Sql)?, "members")
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

    /// Names of the teams of all people between two names, both included; each person's by name.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn team_names(&self, first: &UserName, last: &UserName) -> Result<TeamsByUser> {
        let sql = "SELECT u.id, t.id AS team_id, t.name FROM users u JOIN team_members m ON m.user_id = u.id
                   JOIN teams t ON t.id = m.team_id WHERE u.name >= $1 AND u.name <= $2 ORDER BY t.name";
        let query = sqlx::query(sql).bind(first.as_str()).bind(last.as_str());
        let rows = query.fetch_all(self.readers()).await.map_err(StoreError::Sql)?;
        let mut teams = TeamsByUser::new();
        for row in &rows {
            teams.entry(parsed(row, "id")?).or_default().push((parsed(row, "team_id")?, parsed(row, "name")?));
        }
        Ok(teams)
    }

    /// Members of a team by name, those after a name.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn team_members(&self, team: TeamId, after: &str, limit: u32) -> Result<Vec<UserName>> {
        let sql = "SELECT u.name FROM team_members m JOIN users u ON u.id = m.user_id
                   WHERE m.team_id = $1 AND u.name > $2 ORDER BY u.name LIMIT $3";
        let query = sqlx::query(sql).bind(team.to_string()).bind(after).bind(i64::from(limit));
        let rows = query.fetch_all(self.readers()).await.map_err(StoreError::Sql)?;
        rows.iter().map(|row| parsed(row, "name")).collect()
    }
}

async fn read_where(tx: &mut Write, is: &str, value: String) -> Result<Option<TeamRow>> {
    let sql = format!("SELECT {COLUMNS} FROM teams t WHERE {is}");
    let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(value).fetch_optional(&mut **tx).await;
    row.map_err(StoreError::Sql)?.as_ref().map(team).transpose()
}

/// A team, under the write lock.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn read(tx: &mut Write, id: TeamId) -> Result<Option<TeamRow>> {
    read_where(tx, "t.id = $1", id.to_string()).await
}

/// A team by name, under the write lock.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn by_name(tx: &mut Write, name: &TeamName) -> Result<Option<TeamRow>> {
    read_where(tx, "t.name = $1", name.as_str().to_owned()).await
}

/// Makes a team.
///
/// # Errors
/// [`StoreError::Taken`] where the name is another's.
pub async fn insert(tx: &mut Write, row: &TeamRow) -> Result<()> {
    let sql =
        "INSERT INTO teams (id, name, description, quota, member_quota, created_at) VALUES ($1, $2, $3, $4, $5, $6)";
    write(tx, sql, row).await
}

/// Writes everything of a team anew.
///
/// # Errors
/// [`StoreError::Taken`] where the name is another's.
pub async fn update(tx: &mut Write, row: &TeamRow) -> Result<()> {
    let sql =
        "UPDATE teams SET name = $2, description = $3, quota = $4, member_quota = $5, created_at = $6 WHERE id = $1";
    write(tx, sql, row).await
}

async fn write(tx: &mut Write, sql: &'static str, row: &TeamRow) -> Result<()> {
    sqlx::query(sql)
        .bind(row.id.to_string())
        .bind(row.name.as_str())
        .bind(&row.description)
        .bind(&row.quota)
        .bind(&row.member_quota)
        .bind(row.created_at.as_microsecond())
        .execute(&mut **tx)
        .await
        .map(|_| ())
        .map_err(or_taken("the team name"))
}

/// Puts a person into a team; false where they are in it already.
///
/// # Errors
/// [`StoreError::InUse`] where one of them is not there.
pub async fn add_member(tx: &mut Write, team: TeamId, user: UserId) -> Result<bool> {
    let sql = "INSERT INTO team_members (team_id, user_id) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    let done = sqlx::query(sql).bind(team.to_string()).bind(user.to_string()).execute(&mut **tx).await;
    Ok(done.map_err(or_taken("the membership"))?.rows_affected() == 1)
}

/// Takes a person out of a team, which is their default team no more; false where they are not in it.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn remove_member(tx: &mut Write, team: TeamId, user: UserId) -> Result<bool> {
    let both = |sql: &'static str| sqlx::query(sql).bind(team.to_string()).bind(user.to_string());
    let sql = "UPDATE users SET default_team = NULL WHERE default_team = $1 AND id = $2";
    both(sql).execute(&mut **tx).await.map_err(StoreError::Sql)?;
    let sql = "DELETE FROM team_members WHERE team_id = $1 AND user_id = $2";
    let done = both(sql).execute(&mut **tx).await.map_err(StoreError::Sql)?;
    Ok(done.rows_affected() == 1)
}

/// True where the person is in the team.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn has_member(tx: &mut Write, team: TeamId, user: UserId) -> Result<bool> {
    let sql = "SELECT 1 FROM team_members WHERE team_id = $1 AND user_id = $2";
    let row = sqlx::query(sql).bind(team.to_string()).bind(user.to_string()).fetch_optional(&mut **tx).await;
    Ok(row.map_err(StoreError::Sql)?.is_some())
}

/// Who is in a team, under the write lock.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn members(tx: &mut Write, team: TeamId) -> Result<Vec<UserId>> {
    let sql = "SELECT user_id FROM team_members WHERE team_id = $1 ORDER BY user_id";
    let rows = sqlx::query(sql).bind(team.to_string()).fetch_all(&mut **tx).await.map_err(StoreError::Sql)?;
    rows.iter().map(|row| parsed(row, "user_id")).collect()
}

/// Forgets a team; its members are in it no more.
///
/// # Errors
/// [`StoreError::InUse`] where machines count for it.
pub async fn remove(tx: &mut Write, id: TeamId) -> Result<()> {
    for sql in [
        "UPDATE users SET default_team = NULL WHERE default_team = $1",
        "DELETE FROM team_members WHERE team_id = $1",
        "DELETE FROM teams WHERE id = $1",
    ] {
        sqlx::query(sql).bind(id.to_string()).execute(&mut **tx).await.map_err(or_taken("the team"))?;
    }
    Ok(())
}
