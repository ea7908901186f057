//! Disks of machines: overlays of image disks, made in constant time whatever the image's size.
//!
//! Overlays are qcow2 with clusters of 64 KiB, without preallocation (a full-size file is what makes a create
//! slow) and without lazy refcounts (they make guest writes cheaper only with write-through caching, and cost a
//! rebuild of all refcounts at the first start after a host crash). Path and format of the backing file are
//! always stated and absolute.
//!
//! Every step may be repeated. A disk gets its final name only when it is whole.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::{ImageError, ImageErrorKind, Result};
use super::files;
use super::header::{HEAD, Qcow2};
use super::layout::VmFiles;
use crate::child::{ChildCall, ChildOutput};
use crate::model::image::DiskFormat;
use crate::model::units::Mib;

/// For steps that only write metadata: a second or two on a busy disk.
const QUICK: Duration = Duration::from_secs(60);

/// For copying a whole disk.
const COPY: Duration = Duration::from_secs(4 * 3600);

/// The programs used here.
#[derive(Clone, Debug)]
pub struct DiskTools {
    /// qemu-img, by name or absolute path.
    pub qemu_img: OsString,
    /// qemu-io, which comes with qemu-img.
    pub qemu_io: OsString,
    /// cp of GNU coreutils (reflinks and holes).
    pub cp: OsString,
}

impl Default for DiskTools {
    fn default() -> Self {
        Self { qemu_img: "qemu-img".into(), qemu_io: "qemu-io".into(), cp: "cp".into() }
    }
}

/// A disk that others stand on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseDisk {
    /// Absolute path.
    pub path: PathBuf,
    /// Its format.
    pub format: DiskFormat,
    /// Size the guest sees.
    pub virtual_size: Mib,
}

/// What a disk is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskInfo {
    /// Size the guest sees.
    pub virtual_size: Mib,
    /// Space it takes on the host, bytes.
    pub allocated: u64,
    /// What it stands on, with the format stated in its header.
    pub backing: Option<(PathBuf, Option<String>)>,
}

/// Makes the root disk at `files.root()` exist: an overlay of `base`, or blank, of `size` or larger.
///
/// Success where it is there already; a smaller one is grown. Must not be called while the machine runs.
///
/// # Errors
/// `Conflict` where a disk over something else is there, `Invalid` where `size` is smaller than the base,
/// `StorageFull`, `NotFound` where the base is missing.
pub async fn ensure_overlay(tools: &DiskTools, base: Option<&BaseDisk>, files: &VmFiles, size: Mib) -> Result<()> {
    let path = files.root();
    let doing = || format!("making the disk {}", path.display());
    if let Some(base) = base {
        files::parent(&base.path)?;
        if !base.path.is_file() {
            let message = format!("the image's disk {} is missing", base.path.display());
            return Err(ImageError::new(ImageErrorKind::NotFound, doing(), message));
        }
        if size < base.virtual_size {
            let message = format!("the image needs a disk of at least {}, asked for was {size}", base.virtual_size);
            return Err(ImageError::invalid(doing(), message));
        }
    }
    if let Some(found) = prepare(files).await? {
        must_stand_on(&found, base, &doing())?;
        return ensure_size(tools, &path, size).await;
    }
    let temp = files::temp_beside(&path)?;
    let result = match create(tools, base, &temp, size, doing()).await {
        Ok(()) => put_in_place(&temp, &path).await,
        Err(e) => Err(e),
    };
    remove_on_error(&temp, result)
}

/// Grows a disk that no machine is using. Success where it is as large already; never shrinks.
///
/// # Errors
/// `NotFound`, `Busy` where a machine runs on it, `StorageFull`.
pub async fn ensure_size(tools: &DiskTools, path: &Path, size: Mib) -> Result<()> {
    if info(path)?.virtual_size >= size {
        return Ok(());
    }
    let bytes = size.bytes().to_string();
    let args = ["resize", "-q", "-f", "qcow2", "--"].map(OsStr::new);
    let call = ChildCall::new(&tools.qemu_img, QUICK).args(args).args([path.as_os_str(), OsStr::new(&bytes)]);
    run(call, format!("growing the disk {} to {size}", path.display())).await?;
    let (doing, path) = (format!("flushing {}", path.display()), path.to_owned());
    files::blocking(doing, move || files::sync_file(&path, DISK_MODE)).await
}

/// Makes a machine's folder with everything in it be gone.
///
/// # Errors
/// Where the file system refuses.
pub async fn ensure_gone(files: &VmFiles) -> Result<()> {
    let dir = files.dir().to_owned();
    let doing = format!("removing {}", dir.display());
    let again = doing.clone();
    let remove = move || match std::fs::remove_dir_all(&dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(ImageError::io(doing, &e)),
        Ok(()) | Err(_) => Ok(()),
    };
    files::blocking(again, remove).await
}

/// Makes `target` a full, independent copy of the root disk of a *stopped* machine, over the same base. Shares
/// blocks where the file system can (reflink), keeps holes everywhere. Dropping the future ends the copy.
///
/// The caller keeps the source stopped meanwhile; a machine that runs already is noticed by QEMU's lock.
///
/// # Errors
/// `NotFound` without a source, `Busy`, `Conflict` where the target has a disk already, `StorageFull`.
pub async fn clone_disk(tools: &DiskTools, source: &VmFiles, target: &VmFiles) -> Result<()> {
    let (from, to) = (source.root(), target.root());
    let doing = format!("copying the disk {} to {}", from.display(), to.display());
    if look(&from)?.is_none() {
        return Err(ImageError::new(ImageErrorKind::NotFound, doing, "there is no disk to copy"));
    }
    if prepare(target).await?.is_some() {
        return Err(ImageError::new(ImageErrorKind::Conflict, doing, "the target has a disk already"));
    }
    // Without -U it asks for a lock that a running machine does not give away.
    let lock = ChildCall::new(&tools.qemu_img, QUICK).args(["info", "-f", "qcow2", "--"].map(OsStr::new)).args([&from]);
    run(lock, doing.clone()).await?;
    let temp = files::temp_beside(&to)?;
    let args = ["--reflink=auto", "--sparse=always", "--no-dereference", "--"].map(OsStr::new);
    let call = ChildCall::new(&tools.cp, COPY).args(args).args([&from, &temp]);
    let result = match run(call, doing).await {
        Ok(_) => put_in_place(&temp, &to).await,
        Err(e) => Err(e),
    };
    remove_on_error(&temp, result)
}

/// Reads what a disk of ours is from its header; works beside a running machine.
///
/// # Errors
/// `NotFound`, or `Invalid` where it is not a qcow2 disk.
pub fn info(path: &Path) -> Result<DiskInfo> {
    let missing = || ImageError::new(ImageErrorKind::NotFound, format!("reading {}", path.display()), "no such disk");
    look(path)?.ok_or_else(missing)
}

/// Mode of everything that belongs to one machine.
const DISK_MODE: u32 = 0o600;

async fn create(tools: &DiskTools, base: Option<&BaseDisk>, temp: &Path, size: Mib, doing: String) -> Result<()> {
    let mut call = ChildCall::new(&tools.qemu_img, QUICK).args(["create", "-q", "-f", "qcow2"]);
    call = call.args(["-o", "compat=1.1,cluster_size=65536,lazy_refcounts=off,preallocation=off"]);
    if let Some(base) = base {
        let (path, format) = (base.path.as_os_str(), OsStr::new(base.format.as_str()));
        call = call.args([OsStr::new("-b"), path, OsStr::new("-F"), format]);
    }
    let bytes = size.bytes().to_string();
    call = call.args([OsStr::new("--"), temp.as_os_str(), OsStr::new(&bytes)]);
    run(call, doing).await.map(|_| ())
}

/// Makes the machine's folder exist, clears what earlier tries left, and says what disk is there.
async fn prepare(vm: &VmFiles) -> Result<Option<DiskInfo>> {
    let (dir, path) = (vm.dir().to_owned(), vm.root());
    files::blocking(format!("looking at {}", path.display()), move || {
        files::ensure_dir(&dir)?;
        files::sweep_beside(&path)?;
        look(&path)
    })
    .await
}

/// Flushes a finished file and gives it its name.
async fn put_in_place(temp: &Path, path: &Path) -> Result<()> {
    let (temp, path) = (temp.to_owned(), path.to_owned());
    let doing = format!("naming the disk {}", path.display());
    files::blocking(doing.clone(), move || {
        files::sync_file(&temp, DISK_MODE)?;
        std::fs::rename(&temp, &path).map_err(|e| ImageError::io(doing, &e))?;
        files::sync_dir(files::parent(&path)?)
    })
    .await
}

fn remove_on_error(temp: &Path, result: Result<()>) -> Result<()> {
    if result.is_err() {
        // The failure itself is what has to be told; a left-over is removed by the next try.
        let _ = std::fs::remove_file(temp);
    }
    result
}

async fn run(call: ChildCall, doing: String) -> Result<ChildOutput> {
    match call.run().await {
        Ok(output) if output.is_success() => Ok(output),
        Ok(output) => Err(ImageError::ended(doing, &output)),
        Err(error) => Err(ImageError::child(doing, &error)),
    }
}

/// The disk at `path`, `None` where nothing is there.
fn look(path: &Path) -> Result<Option<DiskInfo>> {
    use std::os::unix::fs::MetadataExt as _;
    let doing = || format!("reading {}", path.display());
    let file = match files::open_regular(path) {
        Ok(file) => file,
        Err(e) if e.kind == ImageErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let meta = file.metadata().map_err(|e| ImageError::io(doing(), &e))?;
    let mut head = Vec::new();
    let bound = u64::try_from(HEAD).unwrap_or(u64::MAX);
    // The first cluster is all we need; our own disks have clusters of 64 KiB.
    file.take(bound.min(1 << 16)).read_to_end(&mut head).map_err(|e| ImageError::io(doing(), &e))?;
    let header = Qcow2::parse(&head, meta.len()).map_err(|why| ImageError::invalid(doing(), why.to_string()))?;
    Ok(Some(DiskInfo {
        virtual_size: Mib::from_bytes_ceil(header.virtual_size),
        allocated: meta.blocks().saturating_mul(512),
        backing: header.backing.map(|backing| (PathBuf::from(backing.file), backing.format)),
    }))
}

fn must_stand_on(found: &DiskInfo, base: Option<&BaseDisk>, doing: &str) -> Result<()> {
    let wanted = base.map(|base| (base.path.clone(), Some(base.format.as_str().to_owned())));
    if found.backing == wanted {
        return Ok(());
    }
    let shown = |backing: Option<&PathBuf>| match backing {
        Some(path) => format!("an overlay of {}", path.display()),
        None => "a disk of its own".to_owned(),
    };
    let there = shown(found.backing.as_ref().map(|(path, _)| path));
    let message = format!("{there} is there already, wanted is {}", shown(wanted.as_ref().map(|(path, _)| path)));
    Err(ImageError::new(ImageErrorKind::Conflict, doing, message))
}

#[cfg(test)]
#[path = "disk_tests.rs"]
mod tests;
