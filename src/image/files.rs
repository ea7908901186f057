//! Files and folders with their modes, written so that a crash leaves the old or the new, never a half.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::libc;

use super::error::{ImageError, ImageErrorKind, Result};

/// File system calls that take longer than this hang on a broken disk or server.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs file system calls off the runtime's threads, and stops waiting for them where they hang.
pub(super) async fn blocking<T: Send + 'static>(
    doing: String,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let late = |message: &str| ImageError::new(ImageErrorKind::Transient, doing, message);
    match tokio::time::timeout(PATIENCE, tokio::task::spawn_blocking(work)).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(late("the work was given up")),
        Err(_) => Err(late("the host's storage does not answer")),
    }
}

/// Passable for QEMU's user, not listable.
pub(super) const PASSABLE: u32 = 0o711;

/// Makes a folder exist with mode 0711, whatever the umask, and its missing parents as well. Parents that are there
/// keep their mode.
pub(super) fn ensure_dir(path: &Path) -> Result<()> {
    let doing = || format!("making the folder {}", path.display());
    if let Some(above) = path.parent().filter(|above| !above.exists()) {
        ensure_dir(above)?;
    }
    match DirBuilder::new().mode(PASSABLE).create(path) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir() => {}
        made => made.map_err(|e| ImageError::io(doing(), &e))?,
    }
    let mode = PermissionsExt::from_mode(PASSABLE);
    std::fs::set_permissions(path, mode).map_err(|e| ImageError::io(doing(), &e))
}

/// Flushes a folder's entries to the disk.
pub(super) fn sync_dir(path: &Path) -> Result<()> {
    let synced = File::open(path).and_then(|dir| dir.sync_all());
    synced.map_err(|e| ImageError::io(format!("flushing the folder {}", path.display()), &e))
}

/// Flushes a file and gives it its mode.
pub(super) fn sync_file(path: &Path, mode: u32) -> Result<()> {
    let synced = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path).and_then(|file| {
        file.set_permissions(PermissionsExt::from_mode(mode))?;
        file.sync_all()
    });
    synced.map_err(|e| ImageError::io(format!("flushing {}", path.display()), &e))
}

/// Opens a file for reading where it is a regular file, without following a link at its last part and without
/// ever waiting for a pipe's other end.
pub(super) fn open_regular(path: &Path) -> Result<File> {
    let doing = || format!("opening {}", path.display());
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(|e| {
        if e.raw_os_error() == Some(libc::ELOOP) {
            return ImageError::invalid(doing(), "it is a symbolic link; give the file itself");
        }
        ImageError::io(doing(), &e)
    })?;
    must_be_regular(&file, &doing())?;
    Ok(file)
}

/// Refuses devices, pipes, sockets and folders.
pub(super) fn must_be_regular(file: &File, doing: &str) -> Result<()> {
    let meta = file.metadata().map_err(|e| ImageError::io(doing, &e))?;
    match meta.file_type().is_file() {
        true => Ok(()),
        false => Err(ImageError::invalid(doing, "it is not a regular file")),
    }
}

/// Writes a private file (0600) under its final name in one step.
pub(super) fn write_private(path: &Path, content: &[u8]) -> Result<()> {
    let doing = || format!("writing {}", path.display());
    let temp = temp_beside(path)?;
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temp)
        .and_then(|mut file| {
            file.write_all(content)?;
            file.sync_all()
        })
        .and_then(|()| std::fs::rename(&temp, path));
    if let Err(error) = written {
        let _ = std::fs::remove_file(&temp);
        return Err(ImageError::io(doing(), &error));
    }
    sync_dir(parent(path)?)
}

/// What stands between a final name and the random end of its temporary names.
const PART: &str = ".part-";

/// A name beside `path` that nobody else uses.
pub(super) fn temp_beside(path: &Path) -> Result<PathBuf> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!("{PART}{}", uuid::Uuid::new_v4().simple()));
    Ok(parent(path)?.join(name))
}

/// Removes what earlier tries for `path` left behind.
pub(super) fn sweep_beside(path: &Path) -> Result<()> {
    let prefix = format!("{}{PART}", path.file_name().unwrap_or_default().to_string_lossy());
    let dir = parent(path)?;
    let failed = |e: std::io::Error| ImageError::io(format!("looking into {}", dir.display()), &e);
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            std::fs::remove_file(entry.path()).map_err(failed)?;
        }
    }
    Ok(())
}

/// The folder of a file.
pub(super) fn parent(path: &Path) -> Result<&Path> {
    path.parent().filter(|_| path.is_absolute()).ok_or_else(|| {
        ImageError::new(ImageErrorKind::Invalid, format!("using {}", path.display()), "the path is not absolute")
    })
}
