//! The catalogue as people see it.

use std::path::PathBuf;

use jiff::Timestamp;

use super::{Manager, ManagerError, Result};
use crate::auth::policy::Permit;
use crate::image::ImageErrorKind;
use crate::image::catalogue::{self, DiskFile, DiskImport, ImportLimits, ImportSource};
use crate::image::disk::DiskTools;
use crate::model::id::ImageId;
use crate::model::name::{GuestUser, ImageName};
use crate::model::units::Mib;
pub use crate::store::images::ImageRow;
use crate::store::{StoreError, commit, images};

/// A request to import an image, every value parsed.
#[derive(Clone, Debug)]
pub struct ImportRequest {
    /// A folder with `image.toml`, or one disk file; which it is shows on the disk.
    pub path: PathBuf,
    /// Name; needed for a disk file.
    pub name: Option<ImageName>,
    /// Operating system word for a disk file.
    pub os: Option<String>,
    /// The usual login for a disk file.
    pub user: Option<GuestUser>,
    /// Hex SHA-256 that a disk file must have.
    pub sha256: Option<String>,
}

impl ImportRequest {
    async fn source(self) -> Result<ImportSource> {
        if !self.path.is_absolute() {
            let path = self.path.display();
            return Err(ManagerError::invalid(format!("{path} is not an absolute path on the host")));
        }
        if tokio::fs::metadata(&self.path).await.is_ok_and(|meta| meta.is_dir()) {
            return Ok(ImportSource::Folder(self.path));
        }
        let nameless = || {
            ManagerError::invalid("a disk file needs a name")
                .hint("add --name, or import a folder made by vm-images/build.sh")
        };
        Ok(ImportSource::Disk(DiskImport {
            file: DiskFile::Path(self.path),
            name: self.name.ok_or_else(nameless)?,
            version: None,
            os: self.os.unwrap_or_else(|| "linux".to_owned()),
            user: match self.user {
                Some(user) => user,
                None => "gvm".parse().map_err(|_| ManagerError::invalid("no guest user"))?,
            },
            sha256: self.sha256,
            format: None,
            min_disk: Mib(0),
        }))
    }
}

impl Manager {
    /// All images.
    ///
    /// # Errors
    /// Where the store fails.
    pub async fn images(&self, _permit: &Permit) -> Result<Vec<ImageRow>> {
        Ok(self.store.images().await?)
    }

    /// Imports an image: its files are checked, copied and put in place, then it is recorded.
    ///
    /// # Errors
    /// Where it is not what it says, refers to other files, or there is no room.
    pub async fn import_image(&self, permit: &Permit, request: ImportRequest) -> Result<ImageRow> {
        let source = request.source().await?;
        let image = catalogue::import(&DiskTools::default(), &self.layout, source, ImportLimits::default())
            .await
            .map_err(|e| {
                let text = e.to_string();
                match e.kind {
                    ImageErrorKind::NotFound => ManagerError::not_found(text),
                    ImageErrorKind::Invalid => ManagerError::invalid(text),
                    ImageErrorKind::StorageFull => ManagerError::no_capacity(text),
                    _ => ManagerError::unavailable(text),
                }
                .because(e)
            })?;
        let mut tx = self.store.write().await?;
        images::add_image(&mut tx, &image, Timestamp::now()).await?;
        self.put_on_record(&mut tx, permit, "image.import", image.name.as_str()).await?;
        commit(tx).await?;
        self.images_changed.notify_one();
        let row = self.store.image(image.id).await?;
        row.ok_or_else(|| ManagerError::not_found("the image is gone already"))
    }

    /// Removes an image by id, or the newest of a name.
    ///
    /// # Errors
    /// While a machine stands on it.
    pub async fn remove_image(&self, permit: &Permit, shown: &str) -> Result<()> {
        let not_there = || ManagerError::not_found(format!("there is no image {shown:?}")).hint("see `gvm image list`");
        let row = match (shown.parse::<ImageId>(), shown.parse::<ImageName>()) {
            (Ok(id), _) => self.store.image(id).await?,
            (_, Ok(name)) => self.store.newest_image(&name).await?,
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
