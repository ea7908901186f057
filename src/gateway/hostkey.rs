//! The gateway's own host key: Ed25519, made at the first start, readable by its owner only.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use russh::keys::ssh_key::LineEnding;
use russh::keys::{Algorithm, PrivateKey};

/// Why there is no host key.
#[derive(Debug, thiserror::Error)]
pub enum HostKeyError {
    /// Cannot be read or written.
    #[error("cannot {action} the host key {path}")]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// Others may read it.
    #[error("the host key {path} can be read by others (mode {mode:03o}); mend it: chmod 600 {path}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Not a private key.
    #[error("{path} is not a private key in OpenSSH's format without a passphrase")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: russh::keys::ssh_key::Error,
    },
    /// A key could not be made.
    #[error("cannot make a host key")]
    Make(#[source] russh::keys::ssh_key::Error),
}

/// Reads the host key at `path`, and makes it where there is none. Repeating it changes nothing.
///
/// # Errors
/// See [`HostKeyError`].
pub fn ensure(path: &Path) -> Result<PrivateKey, HostKeyError> {
    match read(path) {
        Err(HostKeyError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            make(path)?;
            read(path)
        }
        done => done,
    }
}

fn read(path: &Path) -> Result<PrivateKey, HostKeyError> {
    let fault = |source| HostKeyError::File { action: "read", path: path.to_owned(), source };
    let file = File::open(path).map_err(fault)?;
    let mode = file.metadata().map_err(fault)?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(HostKeyError::Open { path: path.to_owned(), mode });
    }
    let text = io::read_to_string(file).map_err(fault)?;
    let key =
        PrivateKey::from_openssh(&text).map_err(|source| HostKeyError::Damaged { path: path.to_owned(), source })?;
    if key.is_encrypted() {
        let source = russh::keys::ssh_key::Error::Encrypted;
        return Err(HostKeyError::Damaged { path: path.to_owned(), source });
    }
    Ok(key)
}

fn make(path: &Path) -> Result<(), HostKeyError> {
    let key = PrivateKey::random(&mut russh::keys::key::safe_rng(), Algorithm::Ed25519).map_err(HostKeyError::Make)?;
    let text = key.to_openssh(LineEnding::LF).map_err(HostKeyError::Make)?;
    write(path, text.as_bytes()).map_err(|source| HostKeyError::File { action: "write", path: path.to_owned(), source })
}

/// Puts `text` at `path` whole or not at all; a file that came into being meanwhile wins.
fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(folder)?;
    let draft = path.with_extension(format!("new-{}", std::process::id()));
    // A draft of an earlier process with our number is of no use to anybody.
    match fs::remove_file(&draft) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let done = file.write_all(text).and_then(|()| file.sync_all()).and_then(|()| match fs::hard_link(&draft, path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        done => done,
    });
    fs::remove_file(&draft)?;
    done?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deeper/host_ed25519");
        let first = ensure(&path).unwrap();
        assert_eq!(first.algorithm(), Algorithm::Ed25519);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(ensure(&path).unwrap().public_key(), first.public_key());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "a draft was left");
    }

    #[test]
    fn a_key_that_others_can_read_or_that_is_none_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        ensure(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(ensure(&path).unwrap_err().to_string().contains("chmod 600"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "garbage").unwrap();
        assert!(matches!(ensure(&path), Err(HostKeyError::Damaged { .. })));
    }
}
