//! The images of this host: where they lie, verify, remove. How one comes in: [`super::import`]. The record of an
//! image lives in the store; its files lie here.

use std::path::{Path, PathBuf};

use super::disk::BaseDisk;
use super::error::{ImageError, Result};
use super::import::ImportLimits;
use super::layout::Layout;
use super::{examine, files};
use crate::model::id::ImageId;
use crate::model::image::Image;

/// A kernel with what belongs to it, as absolute paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFiles {
    /// Kernel.
    pub kernel: PathBuf,
    /// Initrd.
    pub initrd: PathBuf,
    /// Arguments.
    pub cmdline: String,
}

/// Folders that are not whole yet, or no more.
pub(super) const TEMP: &str = "tmp-";

/// Where the disk of an image lies; `None` where it has none.
pub fn base_disk(layout: &Layout, image: &Image) -> Option<BaseDisk> {
    let disk = image.disk.as_ref()?;
    let path = layout.image_dir(image.id).join(&disk.file);
    Some(BaseDisk { path, format: disk.format, virtual_size: disk.virtual_size })
}

/// Where the kernel of an image lies; `None` where it has none.
pub fn kernel_files(layout: &Layout, image: &Image) -> Option<KernelFiles> {
    let kernel = image.kernel.as_ref()?;
    let dir = layout.image_dir(image.id);
    let cmdline = kernel.cmdline.clone();
    Some(KernelFiles { kernel: dir.join(&kernel.file), initrd: dir.join(&kernel.initrd), cmdline })
}

/// Reads all files of an image again and compares their digests with the record.
///
/// # Errors
/// `NotFound` where a file is missing, `Invalid` where one was changed.
pub async fn verify(layout: &Layout, image: &Image, limits: ImportLimits) -> Result<()> {
    let dir = layout.image_dir(image.id);
    let disk = image.disk.iter().map(|disk| (&disk.file, &disk.sha256));
    let kernel = image.kernel.iter().flat_map(|k| [(&k.file, &k.sha256), (&k.initrd, &k.initrd_sha256)]);
    for (name, expected) in disk.chain(kernel) {
        let path = dir.join(name);
        let doing = format!("verifying {}", path.display());
        let found = examine::digest(&files::open_regular(&path)?, limits.patience, &doing).await?;
        must_match(&doing, expected, &found)?;
    }
    Ok(())
}

/// Makes an image's files be gone. Whether a machine still stands on it is the caller's to know.
///
/// # Errors
/// Where the file system refuses.
pub async fn ensure_removed(layout: &Layout, id: ImageId) -> Result<()> {
    let (dir, trash) = (layout.image_dir(id), layout.images_dir().join(format!("{TEMP}{id}-removed")));
    let doing = format!("removing the image {id}");
    files::blocking(doing.clone(), move || {
        // In one step out of sight: a half removed image must not look like an image.
        match std::fs::rename(&dir, &trash) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(ImageError::io(doing, &e)),
            Ok(()) | Err(_) => {}
        }
        remove_tree(&trash).map_err(|e| ImageError::io(doing, &e))
    })
    .await
}

/// Removes what unfinished imports and removals left. For start-up only: it would take a running import away.
/// Returns how many there were.
///
/// # Errors
/// Where the file system refuses.
pub async fn sweep(layout: &Layout) -> Result<usize> {
    let dir = layout.images_dir();
    let doing = format!("clearing {}", dir.display());
    files::blocking(doing.clone(), move || {
        let failed = |e: std::io::Error| ImageError::io(&doing, &e);
        files::ensure_dir(&dir)?;
        let mut count = 0;
        for entry in std::fs::read_dir(&dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_name().to_string_lossy().starts_with(TEMP) {
                remove_tree(&entry.path()).map_err(failed)?;
                count += 1;
            }
        }
        Ok(count)
    })
    .await
}

pub(super) fn remove_tree(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        Ok(()) | Err(_) => Ok(()),
    }
}

pub(super) fn must_match(doing: &str, expected: &str, found: &str) -> Result<()> {
    match expected.eq_ignore_ascii_case(found) {
        true => Ok(()),
        false => {
            let message = format!("its SHA-256 is {found}, expected was {expected}; fetch it again");
            Err(ImageError::invalid(doing, message))
        }
    }
}
