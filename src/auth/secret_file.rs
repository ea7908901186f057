//! Secrets that an administrator keeps in a file of their own, read anew at each use so that they can be changed while
//! the manager runs.

use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::model::secret::Secret;

/// Longer than any secret that is typed or made.
const MAX: u64 = 4096;
/// What nobody but the owner may have: reading, writing, running for group and others.
const OTHERS: u32 = 0o077;

/// Why a secret cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// It cannot be read.
    #[error("cannot read the secret in {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// Others can read it.
    #[error("the secret in {0} can be read or changed by others than its owner; chmod 600 {0}")]
    Open(PathBuf),
    /// Nothing, or too much, or no text is in it.
    #[error("{0} holds no secret: one line of text is wanted")]
    Empty(PathBuf),
}

/// The first line of such a file.
///
/// # Errors
/// See [`SecretError`].
pub fn read(path: &Path) -> Result<Secret<String>, SecretError> {
    let failed = |source| SecretError::Read { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    // Of the file that is open, so that nobody changes it in between.
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() || meta.mode() & OTHERS != 0 {
        return Err(SecretError::Open(path.to_owned()));
    }
    let mut text = String::new();
    file.take(MAX).read_to_string(&mut text).map_err(failed)?;
    let line = text.lines().next().unwrap_or_default().to_owned();
    if line.is_empty() { Err(SecretError::Empty(path.to_owned())) } else { Ok(line.into()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_a_file_for_its_owner_alone_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        let with = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            read(&path)
        };
        assert_eq!(with("hunter2\n", 0o600).unwrap().expose(), "hunter2");
        assert_eq!(with("hunter2", 0o400).unwrap().expose(), "hunter2");
        for mode in [0o640, 0o604, 0o660] {
            assert!(matches!(with("hunter2", mode), Err(SecretError::Open(_))), "{mode:o}");
        }
        assert!(matches!(with("\n", 0o600), Err(SecretError::Empty(_))));
        assert!(matches!(read(dir.path()), Err(SecretError::Open(_))));
        assert!(matches!(read(&dir.path().join("none")), Err(SecretError::Read { .. })));
    }
}
