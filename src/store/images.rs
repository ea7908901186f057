//! The record of images; their files are in [`crate::image`]'s care.

use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;

use super::{Result, Store, StoreError, Write, count, json, or_taken, time, to_json};
use crate::model::id::ImageId;
use crate::model::image::Image;
use crate::model::name::ImageName;

/// An image with what the store knows beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRow {
    /// The image.
    pub image: Image,
    /// When it was imported.
    pub created_at: Timestamp,
    /// Machines that stand on it, deleted ones within their window included.
    pub used_by: u64,
}

const SELECT: &str =
    "SELECT i.body, i.created_at, (SELECT COUNT(*) FROM vms v WHERE v.image_id = i.id) AS used_by FROM images i";

fn image(row: &SqliteRow) -> Result<ImageRow> {
    Ok(ImageRow { image: json(row, "body")?, created_at: time(row, "created_at")?, used_by: count(row, "used_by")? })
}

impl Store {
    /// All images by name, newest first.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn images(&self) -> Result<Vec<ImageRow>> {
        let sql = format!("{SELECT} ORDER BY i.name, i.created_at DESC");
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_all(self.readers()).await.map_err(StoreError::Sql)?;
        rows.iter().map(image).collect()
    }

    /// The newest image of a name.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn newest_image(&self, name: &ImageName) -> Result<Option<ImageRow>> {
        let sql = format!("{SELECT} WHERE i.name = $1 ORDER BY i.created_at DESC LIMIT 1");
        self.image_where(sql, name.as_str().to_owned()).await
    }

    /// An image by id.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn image(&self, id: ImageId) -> Result<Option<ImageRow>> {
        self.image_where(format!("{SELECT} WHERE i.id = $1"), id.to_string()).await
    }

    async fn image_where(&self, sql: String, value: String) -> Result<Option<ImageRow>> {
        let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(value);
        let row = query.fetch_optional(self.readers()).await.map_err(StoreError::Sql)?;
        row.as_ref().map(image).transpose()
    }
}

/// Records an image whose files are in place.
///
/// # Errors
/// [`StoreError::Sql`].
pub async fn add_image(tx: &mut Write, image: &Image, now: Timestamp) -> Result<()> {
    sqlx::query("INSERT INTO images (id, name, body, created_at) VALUES ($1, $2, $3, $4)")
        .bind(image.id.to_string())
        .bind(image.name.as_str())
        .bind(to_json(image))
        .bind(now.as_microsecond())
        .execute(&mut **tx)
        .await
        .map(|_| ())
        .map_err(or_taken("the image id"))
}

/// Forgets an image.
///
/// # Errors
/// [`StoreError::InUse`] while a machine stands on it.
pub async fn remove_image(tx: &mut Write, id: ImageId) -> Result<()> {
    sqlx::query("DELETE FROM images WHERE id = $1")
        .bind(id.to_string())
        .execute(&mut **tx)
        .await
        .map(|_| ())
        .map_err(or_taken("the image"))
}
