//! How an image comes into the catalogue.
//!
//! ```text
//!   open -> own header parser -> copy to tmp-<id>/ -> digest -> parser and qemu-img on the copy
//!        -> flush -> rename to <id>/
//! ```
//!
//! The copy is a reflink where the file system can, never a hard link: whoever gave the file may go on writing to
//! it. A crash leaves nothing but `tmp-*`, which [`super::catalogue::sweep`] removes at start-up.
//!
//! A path is opened with our rights. Paths come from administrators only; for a member, the front door opens the
//! file with the member's rights and hands it over as [`DiskFile::Open`].

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::catalogue::{TEMP, must_match, remove_tree};
use super::disk::DiskTools;
use super::error::{ImageError, Result};
use super::header::Admitted;
use super::layout::Layout;
use super::manifest::{self, DiskPart, KernelPart, Manifest};
use super::{examine, files};
use crate::child::ChildCall;
use crate::model::id::ImageId;
use crate::model::image::{DiskFormat, Growth, Image, ImageDisk, ImageKernel};
use crate::model::name::{GuestUser, ImageName};
use crate::model::units::Mib;

/// Images never change.
const FILE_MODE: u32 = 0o444;

const KERNEL: &str = "vmlinuz";
const INITRD: &str = "initrd.img";

/// What an image is made of.
#[derive(Debug)]
pub enum ImportSource {
    /// A folder that a recipe of `vm-images/` made, with `image.toml` in it.
    Folder {
        /// The folder.
        path: PathBuf,
        /// Another name than the one in `image.toml`.
        name: Option<ImageName>,
    },
    /// One disk file.
    Disk(DiskImport),
}

/// One disk file and what is said about it.
#[derive(Debug)]
pub struct DiskImport {
    /// The file.
    pub file: DiskFile,
    /// Name in the catalogue.
    pub name: ImageName,
    /// Version; by default the first 12 digits of the digest.
    pub version: Option<String>,
    /// Operating system word.
    pub os: String,
    /// The usual login.
    pub user: GuestUser,
    /// Hex SHA-256 that the file must have.
    pub sha256: Option<String>,
    /// Stated format; only with it a raw disk without any mark is taken.
    pub format: Option<DiskFormat>,
    /// The smallest disk that works; at least the size of this one.
    pub min_disk: Mib,
}

/// What an administrator may say beside a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportWords {
    /// Name in the catalogue; needed for a disk file.
    pub name: Option<ImageName>,
    /// Operating system word; `linux` by default.
    pub os: Option<String>,
    /// The usual login; by default the word `gvm`.
    pub user: Option<GuestUser>,
    /// Hex SHA-256 that a disk file must have.
    pub sha256: Option<String>,
    /// Format of a disk file; needed only for a raw one without any mark.
    pub format: Option<DiskFormat>,
}

impl ImportSource {
    /// What a path of an administrator means: a folder of a recipe, or a disk file.
    ///
    /// # Errors
    /// `Invalid` where a disk file has no name, or words are given that belong to `image.toml`.
    pub fn at_path(path: PathBuf, words: ImportWords) -> Result<Self> {
        let invalid = |why: &str| Err(ImageError::invalid(format!("importing {}", path.display()), why));
        if path.is_dir() {
            let name = words.name.clone();
            return match (
                ImportWords { name: None, ..words } == ImportWords::default(),
                path.join("image.toml").exists(),
            ) {
                (_, false) => {
                    invalid("there is no image.toml in this folder; name a folder of vm-images, or a disk file")
                }
                (true, true) => Ok(Self::Folder { path, name }),
                (false, true) => invalid("its image.toml says system, user, digests and format; leave them out"),
            };
        }
        let Some(name) = words.name else { return invalid("a disk file needs a name in the catalogue (--name)") };
        let user = match words.user {
            Some(user) => user,
            None => match "gvm".parse() {
                Ok(user) => user,
                Err(e) => return invalid(&format!("{e}")),
            },
        };
        Ok(Self::Disk(DiskImport {
            file: DiskFile::Path(path),
            name,
            version: None,
            os: words.os.unwrap_or_else(|| "linux".to_owned()),
            user,
            sha256: words.sha256,
            format: words.format,
            min_disk: Mib(0),
        }))
    }
}

/// A file to import.
#[derive(Debug)]
pub enum DiskFile {
    /// By path, opened with our rights: for administrators. Links, devices and pipes are refused.
    Path(PathBuf),
    /// Opened by somebody else for reading.
    Open(File),
}

/// What an import may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportLimits {
    /// Bytes of one file.
    pub max_file: u64,
    /// Time for copying or reading one file.
    pub patience: Duration,
}

impl Default for ImportLimits {
    fn default() -> Self {
        Self { max_file: 1 << 40, patience: Duration::from_secs(4 * 3600) }
    }
}

/// Takes an image into the catalogue and returns its record. Importing the same content twice gives two images.
///
/// # Errors
/// `Invalid` with what is wrong and how to mend it; `NotFound`; `StorageFull`.
pub async fn import(tools: &DiskTools, layout: &Layout, source: ImportSource, limits: ImportLimits) -> Result<Image> {
    let id = ImageId::generate();
    let place = Place::make(layout, id).await?;
    let import = Import { tools, limits, place: &place };
    let image = match source {
        ImportSource::Folder { path, name } => {
            let image = import.folder(id, &path).await?;
            Image { name: name.unwrap_or_else(|| image.name.clone()), ..image }
        }
        ImportSource::Disk(disk) => import.single(id, disk).await?,
    };
    place.keep().await?;
    Ok(image)
}

/// The temporary folder of an import; removed with what is in it unless it was kept.
struct Place {
    temp: PathBuf,
    last: PathBuf,
}

impl Place {
    async fn make(layout: &Layout, id: ImageId) -> Result<Self> {
        let (dir, temp) = (layout.images_dir(), layout.images_dir().join(format!("{TEMP}{id}")));
        let place = Self { temp: temp.clone(), last: layout.image_dir(id) };
        files::blocking(format!("making {}", temp.display()), move || {
            files::ensure_dir(&dir)?;
            files::ensure_dir(&temp)?;
            let closed = std::fs::set_permissions(&temp, PermissionsExt::from_mode(0o700));
            closed.map_err(|e| ImageError::io(format!("closing {}", temp.display()), &e))
        })
        .await?;
        Ok(place)
    }

    /// Gives the folder its final name; everything in it is on the disk before.
    async fn keep(self) -> Result<()> {
        let (temp, last) = (self.temp.clone(), self.last.clone());
        let doing = format!("naming the image {}", last.display());
        files::blocking(doing.clone(), move || {
            files::ensure_dir(&temp)?;
            files::sync_dir(&temp)?;
            std::fs::rename(&temp, &last).map_err(|e| ImageError::io(doing, &e))?;
            files::sync_dir(files::parent(&last)?)
        })
        .await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // After `keep` it is not there. A failure leaves it to the sweep at start-up.
        let _ = remove_tree(&self.temp);
    }
}

/// One import on its way.
struct Import<'a> {
    tools: &'a DiskTools,
    limits: ImportLimits,
    place: &'a Place,
}

/// What is known of a disk once it lies in the temporary folder.
struct Taken {
    format: DiskFormat,
    virtual_size: Mib,
    sha256: String,
    file: String,
}

impl Import<'_> {
    async fn folder(&self, id: ImageId, folder: &Path) -> Result<Image> {
        let doing = format!("importing {}", folder.display());
        let invalid = |why: String| ImageError::invalid(&doing, why);
        let mut text = String::new();
        let manifest = files::open_regular(&folder.join(manifest::FILE))?;
        let read = manifest.take(manifest::MAX_SIZE).read_to_string(&mut text);
        read.map_err(|e| ImageError::io(&doing, &e))?;
        let manifest = Manifest::parse(&text).map_err(invalid)?;
        let kernel = match &manifest.kernel {
            Some(part) => Some(self.kernel(folder, part).await?),
            None => None,
        };
        let disk = match &manifest.disk {
            Some(part) => Some(self.disk_part(folder, part).await?),
            None => None,
        };
        let least = disk.as_ref().map_or(Mib(0), |disk| disk.virtual_size);
        Ok(Image {
            id,
            name: manifest.name,
            version: manifest.version,
            os: manifest.os,
            user: manifest.user,
            min_disk: Mib(manifest.min_disk_mib).max(least),
            disk,
            kernel,
        })
    }

    async fn single(&self, id: ImageId, disk: DiskImport) -> Result<Image> {
        let doing = format!("importing the image {}", disk.name);
        let invalid = |why: String| ImageError::invalid(&doing, why);
        manifest::check_word("os", &disk.os).map_err(invalid)?;
        disk.version.as_deref().map_or(Ok(()), |text| manifest::check_word("version", text)).map_err(invalid)?;
        disk.sha256.as_deref().map_or(Ok(()), manifest::check_digest).map_err(invalid)?;
        let file = match disk.file {
            DiskFile::Path(path) => files::open_regular(&path)?,
            DiskFile::Open(file) => file,
        };
        files::must_be_regular(&file, &doing)?;
        let (taken, copy, admitted) = self.disk(&file, disk.format, disk.sha256.as_deref(), &doing).await?;
        let growth = examine::growth(self.tools, &copy, admitted, None).await;
        let version = taken.sha256.get(..12).unwrap_or_default().to_owned();
        Ok(Image {
            id,
            name: disk.name,
            version: disk.version.unwrap_or(version),
            os: disk.os,
            user: disk.user,
            min_disk: disk.min_disk.max(taken.virtual_size),
            disk: Some(taken.record(growth)),
            kernel: None,
        })
    }

    async fn kernel(&self, folder: &Path, part: &KernelPart) -> Result<ImageKernel> {
        let doing = format!("importing the kernel {}", folder.join(&part.file).display());
        let kernel = files::open_regular(&folder.join(&part.file))?;
        let mut head = [0; 0x206];
        // A shorter file leaves zeros, which are no kernel either.
        let _ = kernel.read_at(&mut head, 0);
        manifest::check_kernel(&head).map_err(|why| ImageError::invalid(&doing, why.to_string()))?;
        self.copy(&kernel, KERNEL, Some(&part.sha256), &doing).await?;
        let initrd = files::open_regular(&folder.join(&part.initrd))?;
        let doing = format!("importing the initrd {}", folder.join(&part.initrd).display());
        self.copy(&initrd, INITRD, Some(&part.initrd_sha256), &doing).await?;
        Ok(ImageKernel {
            file: KERNEL.to_owned(),
            sha256: part.sha256.to_ascii_lowercase(),
            initrd: INITRD.to_owned(),
            initrd_sha256: part.initrd_sha256.to_ascii_lowercase(),
            cmdline: part.cmdline.clone(),
        })
    }

    async fn disk_part(&self, folder: &Path, part: &DiskPart) -> Result<ImageDisk> {
        let doing = format!("importing the disk {}", folder.join(&part.file).display());
        let file = files::open_regular(&folder.join(&part.file))?;
        let (taken, copy, admitted) = self.disk(&file, Some(part.format), Some(&part.sha256), &doing).await?;
        Manifest::must_fit(part, taken.virtual_size).map_err(|why| ImageError::invalid(&doing, why))?;
        let growth = examine::growth(self.tools, &copy, admitted, part.root_partition).await;
        Ok(taken.record(growth))
    }

    /// Takes a disk into the folder: looked at before the copy, so that a bad one costs nothing, and again after
    /// it, because the original may have changed meanwhile.
    async fn disk(
        &self,
        source: &File,
        said: Option<DiskFormat>,
        sha256: Option<&str>,
        doing: &str,
    ) -> Result<(Taken, File, Admitted)> {
        let first = examine::admit(source, said, doing)?;
        let file = format!("disk.{}", first.format.as_str());
        let (copy, sha256) = self.copy(source, &file, sha256, doing).await?;
        let admitted = examine::admit(&copy, Some(first.format), doing)?;
        examine::check(self.tools, &copy, admitted, doing).await?;
        let taken = Taken { format: admitted.format, virtual_size: examine::whole(admitted), sha256, file };
        Ok((taken, copy, admitted))
    }

    /// Copies an open file into the folder, compares its digest and flushes it. Returns the copy and its digest.
    async fn copy(&self, source: &File, name: &str, sha256: Option<&str>, doing: &str) -> Result<(File, String)> {
        let failed = |e: std::io::Error| ImageError::io(doing, &e);
        let size = source.metadata().map_err(failed)?.len();
        if size > self.limits.max_file {
            let (size, most) = (Mib::from_bytes_ceil(size), Mib(self.limits.max_file >> 20));
            return Err(ImageError::invalid(doing, format!("the file is of {size}; at most {most} is allowed")));
        }
        let target = self.place.temp.join(name);
        let call = ChildCall::new(&self.tools.cp, self.limits.patience)
            .args(["--reflink=auto", "--sparse=always", "--", "/dev/fd/0"])
            .args([&target])
            .stdin(source.try_clone().map_err(failed)?);
        let output = call.run().await.map_err(|e| ImageError::child(doing, &e))?;
        if !output.is_success() {
            return Err(ImageError::ended(doing, &output));
        }
        let copy = files::open_regular(&target)?;
        let found = examine::digest(&copy, self.limits.patience, doing).await?;
        if let Some(expected) = sha256 {
            must_match(doing, expected, &found)?;
        }
        files::blocking(doing.to_owned(), move || files::sync_file(&target, FILE_MODE)).await?;
        Ok((copy, found))
    }
}

impl Taken {
    fn record(self, growth: Growth) -> ImageDisk {
        ImageDisk { file: self.file, format: self.format, sha256: self.sha256, virtual_size: self.virtual_size, growth }
    }
}

#[cfg(test)]
#[path = "import_tests.rs"]
mod tests;
