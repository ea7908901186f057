//! The key that signs heads of the record: Ed25519, made at the first start, readable by its owner only.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use aws_lc_rs::encoding::AsBigEndian as _;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};

use crate::model::record::head::{Head, Key, SignedHead};

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum HeadKeyError {
    /// Cannot be read or written.
    #[error("cannot {action} the key of the record {path}")]
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
    #[error("the key of the record {path} can be read by others (mode {mode:03o}); mend it: chmod 600 {path}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It is none.
    #[error(
        "{path} is no key of the record; restore it from a backup, or move it away: then a new one is made, and heads of \
         before count as signed by another key"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// The crypto library failed.
    #[error("cannot make a key of the record: the crypto library fails")]
    Make,
}

/// The key.
pub struct HeadKey {
    pair: Ed25519KeyPair,
    public: Key,
}

impl std::fmt::Debug for HeadKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HeadKey({})", self.public)
    }
}

impl HeadKey {
    /// Reads the key at `path`, and makes it where there is none. Repeating it changes nothing.
    ///
    /// # Errors
    /// See [`HeadKeyError`].
    pub fn ensure(path: &Path) -> Result<Self, HeadKeyError> {
        match Self::read(path) {
            Err(HeadKeyError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                make(path)?;
                Self::read(path)
            }
            done => done,
        }
    }

    fn read(path: &Path) -> Result<Self, HeadKeyError> {
        let failed = |source| HeadKeyError::File { action: "read", path: path.to_owned(), source };
        let mode = fs::metadata(path).map_err(failed)?.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(HeadKeyError::Open { path: path.to_owned(), mode });
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        let damaged = || HeadKeyError::Damaged { path: path.to_owned() };
        let seed = hex::decode(text.trim()).map_err(|_| damaged())?;
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|_| damaged())?;
        let public = Key::of(pair.public_key().as_ref()).ok_or_else(damaged)?;
        Ok(Self { pair, public })
    }

    /// The public half.
    pub const fn public(&self) -> Key {
        self.public
    }

    /// Signs a head.
    pub fn sign(&self, head: Head) -> SignedHead {
        let signature = self.pair.sign(head.text().as_bytes()).as_ref().to_vec();
        SignedHead::new(head, self.public, signature)
    }
}

/// Written beside it and then linked into place, so that a key is whole or not there.
fn make(path: &Path) -> Result<(), HeadKeyError> {
    let failed = |source| HeadKeyError::File { action: "write", path: path.to_owned(), source };
    let pair = Ed25519KeyPair::generate().map_err(|_| HeadKeyError::Make)?;
    let seed = pair.seed().and_then(|seed| seed.as_be_bytes()).map_err(|_| HeadKeyError::Make)?;
    let part = path.with_extension("part");
    let _ = fs::remove_file(&part);
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part).map_err(failed)?;
    let written = writeln!(file, "{}", hex::encode(seed.as_ref())).and_then(|()| file.sync_all());
    written.and_then(|()| fs::rename(&part, path)).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::model::id::HostId;
    use crate::model::record::Hash;

    #[test]
    fn a_key_is_made_once_and_only_for_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record.key");
        let key = HeadKey::ensure(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(HeadKey::ensure(&path).unwrap().public(), key.public());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let head = Head { seq: 3, hash: Hash::START, at: jiff::Timestamp::UNIX_EPOCH, host: HostId::generate() };
        assert!(key.sign(head).is_genuine());
        let seed = fs::read_to_string(&path).unwrap();
        assert!(!format!("{key:?}").contains(seed.trim()));

        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(HeadKey::ensure(&path).unwrap_err().to_string().contains("chmod 600"));
        fs::write(&path, "no key").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(HeadKey::ensure(&path).unwrap_err().to_string().contains("is no key of the record"));
    }
}
