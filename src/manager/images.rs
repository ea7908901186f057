//! The catalogue as people see it.

use std::path::PathBuf;

use jiff::Timestamp;

use super::{Manager, ManagerError, Result};
use crate::auth::policy::Permit;
use crate::image::catalogue;
use crate::image::disk::DiskTools;
pub use crate::image::import::ImportWords;
use crate::image::import::{ImportLimits, ImportSource, import};
use crate::image::{ImageError, ImageErrorKind};
use crate::model::id::ImageId;
use crate::model::name::ImageName;
pub use crate::store::images::ImageRow;
use crate::store::{StoreError, commit, images};

fn refused(error: ImageError) -> ManagerError {
    let text = error.to_string();
    let told = match error.kind {
        ImageErrorKind::NotFound => ManagerError::not_found(text),
        ImageErrorKind::Invalid => ManagerError::invalid(text),
        ImageErrorKind::StorageFull => ManagerError::no_capacity(text),
        _ => ManagerError::unavailable(text),
    };
    told.because(error)
}

impl Manager {
    /// All images.
    ///
    /// # Errors
    /// Where the store fails.
    pub async fn images(&self, _permit: &Permit) -> Result<Vec<ImageRow>> {
        Ok(self.store.images().await?)
    }

    /// Imports an image: its files are checked, copied and put in place, then it is recorded. What is there already
    /// is not taken twice.
    ///
    /// # Errors
    /// Where it is not what it says, refers to other files, or there is no room.
    pub async fn import_image(&self, permit: &Permit, path: PathBuf, words: ImportWords) -> Result<ImageRow> {
        let source = ImportSource::at_path(path, words).map_err(refused)?;
        let imported = import(&DiskTools::default(), &self.layout, source, ImportLimits::default()).await;
        let image = imported.map_err(refused)?;
        if let Some(same) = self.store.images().await?.into_iter().find(|row| row.image.is_same_content(&image)) {
            let removed = catalogue::ensure_removed(&self.layout, image.id).await;
            removed.map_err(|e| ManagerError::unavailable(e.to_string()).because(e))?;
            return Ok(same);
        }
        let mut tx = self.store.write().await?;
        images::add_image(&mut tx, &image, Timestamp::now()).await?;
        self.put_on_record(&mut tx, permit, "image.import", image.name.as_str()).await?;
        commit(tx).await?;
        self.images_changed.notify_one();
        let row = self.store.image(image.id).await?;
        row.ok_or_else(|| ManagerError::not_found("the image is gone already"))
    }

    /// Removes an image by id, or by its name where there is one version of it.
    ///
    /// # Errors
    /// While a machine stands on it, or where a name means several.
    pub async fn remove_image(&self, permit: &Permit, shown: &str) -> Result<()> {
        let not_there = || ManagerError::not_found(format!("there is no image {shown:?}")).hint("see `gvm image list`");
        let row = match (shown.parse::<ImageId>(), shown.parse::<ImageName>()) {
            (Ok(id), _) => self.store.image(id).await?,
            (_, Ok(name)) => {
                let mut named = self.store.images().await?.into_iter().filter(|row| row.image.name == name);
                let (first, others) = (named.next(), named.count());
                if others > 0 {
                    return Err(ManagerError::conflict(format!("there are {} versions of image {name}", others + 1))
                        .hint("say which by its id; see `gvm image list`"));
                }
                first
            }
            _ => None,
        };
        let image = row.ok_or_else(not_there)?.image;
        let mut tx = self.store.write().await?;
        images::remove_image(&mut tx, image.id).await.map_err(|e| match e {
            StoreError::InUse => ManagerError::conflict(format!("VMs stand on image {}", image.name))
                .hint("delete them first, the deleted ones with `gvm delete --now`"),
            other => other.into(),
        })?;
        self.put_on_record(&mut tx, permit, "image.remove", image.name.as_str()).await?;
        commit(tx).await?;
        // The row went first: a crash here leaves a folder that nobody refers to, which the start sweeps.
        let removed = catalogue::ensure_removed(&self.layout, image.id).await;
        removed.map_err(|e| ManagerError::unavailable(e.to_string()).because(e))
    }
}
