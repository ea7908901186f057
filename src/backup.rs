//! The file of a backup: a tar archive that begins with what must be in it.
//!
//! ```text
//!   manifest.json          format, gvm's version, when, of which host; name, size, mode and SHA-256 of each file
//!   gvm.db                 the database as it stood at one moment
//!   state/NAME             keys and other small files beside it
//!   config/PATH            /etc/gvm
//!   gateway/host_key       the SSH gateway's identity
//! ```
//!
//! Disks and images are not in it. It holds secrets: who has it can be any machine, and the gateway.

mod read;
mod write;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use self::read::{Unpacked, unpack};
pub use self::write::{Pack, Source};

/// The archive's first entry.
const MANIFEST: &str = "manifest.json";
/// The database's entry.
pub const DATABASE: &str = "gvm.db";
/// The folder of the files beside the database.
pub const STATE: &str = "state/";
/// The folder of the configuration.
pub const CONFIG: &str = "config/";
/// The gateway's host key.
pub const GATEWAY_KEY: &str = "gateway/host_key";
/// The form of archives that this gvm writes and reads.
const FORMAT: u32 = 1;
/// Largest manifest, in bytes.
const MANIFEST_MAX: u64 = 4 << 20;
/// Largest file but for the database, in bytes.
pub const SMALL_MAX: u64 = 1 << 20;
/// Files in one archive.
pub const FILES_MAX: usize = 2000;

/// What must be in an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The form of the archive.
    pub format: u32,
    /// The gvm that made it.
    pub version: String,
    /// When, RFC 3339.
    pub made_at: String,
    /// The host's id.
    pub host: String,
    /// Its files, in their order.
    pub files: Vec<Entry>,
}

/// One file of an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its name in the archive.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Unix mode, permission bits.
    pub mode: u32,
    /// SHA-256 of its bytes, hexadecimal.
    pub sha256: String,
}

/// Why a backup could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// A file could not be read or written.
    #[error("cannot {what} {}: {source}", .path.display())]
    File {
        /// What was being done.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// It is no backup, or not whole.
    #[error("this is no whole backup of gvm: {0}")]
    Damaged(String),
    /// It is from a later gvm.
    #[error("this backup has format {0}, which this gvm does not know; use the gvm that made it, or a newer one")]
    Newer(u32),
}

impl BackupError {
    fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { what, path, source }
    }
}

/// True for a name that an entry may have: below one of the folders, and out of none of them.
fn is_name(name: &str) -> bool {
    let is_known = name == DATABASE
        || name == GATEWAY_KEY
        || [STATE, CONFIG].iter().any(|folder| name.strip_prefix(folder).is_some_and(|rest| !rest.is_empty()));
    is_known && name.len() <= 1000 && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_nowhere_else() {
        for good in ["gvm.db", "state/audit.key", "config/profiles/a.toml", "gateway/host_key"] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "state/", "/etc/passwd", "state/../x", "config//x", "config/./x", "gvm.db/x", "gateway/x", "x"]
        {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
