//! Files of the user: bounded reading, atomic and private writing.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::error::{CliError, CliResult};
use crate::api::error::ErrorCode;

/// The user's home folder.
///
/// # Errors
/// Where neither HOME nor the password file knows one.
pub fn home() -> CliResult<PathBuf> {
    std::env::home_dir().filter(|home| home.is_absolute()).ok_or_else(|| {
        CliError::new(ErrorCode::Internal, "your home folder is not known").hint("set HOME to an absolute path")
    })
}

/// Where gvm keeps what it can make again: `$XDG_STATE_HOME/gvm` or `~/.local/state/gvm`.
///
/// # Errors
/// As [`home`].
pub fn state_dir() -> CliResult<PathBuf> {
    let base = match std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute()) {
        Some(base) => base,
        None => home()?.join(".local/state"),
    };
    Ok(base.join("gvm"))
}

/// Reads a text file, or standard input for `-`, of at most `max` bytes.
///
/// # Errors
/// Says which file, and what is wrong with it.
pub fn read_text(path: &Path, max: u64) -> CliResult<String> {
    let fault = |error| CliError::file("cannot read", path, &error);
    let bytes = if path.as_os_str() == "-" {
        read_bounded(io::stdin().lock(), max).map_err(fault)?
    } else {
        let file = File::open(path).map_err(fault)?;
        if file.metadata().map_err(fault)?.is_dir() {
            return Err(CliError::invalid(format!("{} is a folder; give a file", path.display())));
        }
        read_bounded(file, max).map_err(fault)?
    };
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > max {
        return Err(CliError::invalid(format!("{} has more than {} KiB", path.display(), max >> 10)));
    }
    String::from_utf8(bytes).map_err(|_| CliError::invalid(format!("{} is not text in UTF-8", path.display())))
}

fn read_bounded(from: impl io::Read, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Makes a folder that only its owner may enter; one that exists is left as it is.
///
/// # Errors
/// Where it cannot be made.
pub fn ensure_private_dir(path: &Path) -> CliResult {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|error| CliError::file("cannot make the folder", path, &error))
}

/// Puts `text` in place of the file at once: a reader sees the old one or the new one. A link is followed, the
/// permissions of a file that exists are kept, a new one is its owner's only.
///
/// # Errors
/// Where it cannot be written.
pub fn write_private(path: &Path, text: &str) -> CliResult {
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    replace(&real, text).map_err(|error| CliError::file("cannot write", path, &error))
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mode = fs::metadata(path).map_or(0o600, |meta| meta.permissions().mode() & 0o777);
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}", std::process::id()));
    let temporary = path.with_file_name(temporary);
    // A leftover of an earlier process with our number is in the way of create_new.
    let _ = fs::remove_file(&temporary);
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_file_is_replaced_whole_and_keeps_its_permissions_and_its_link() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        write_private(&real, "one").unwrap();
        assert_eq!(mode(&real), 0o600);
        fs::set_permissions(&real, Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        write_private(&link, "two").unwrap();
        assert_eq!((fs::read_to_string(&real).unwrap().as_str(), mode(&real)), ("two", 0o644));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is left behind");
    }

    #[test]
    fn reading_is_bounded_and_says_what_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        fs::write(&file, "12345").unwrap();
        assert_eq!(read_text(&file, 5).unwrap(), "12345");
        for (path, max, bytes) in [(&file, 4, &b"12345"[..]), (&file, 9, &b"\xff"[..])] {
            fs::write(path, bytes).unwrap();
            assert_eq!(read_text(path, max).unwrap_err().exit_code(), 2);
        }
        assert_eq!(read_text(&dir.path().join("none"), 9).unwrap_err().exit_code(), 2);
        assert_eq!(read_text(dir.path(), 9).unwrap_err().exit_code(), 2);
    }
}
