//! What can go wrong with files, and how it is told.

use crate::child::{ChildError, ChildOutput};

/// What kind of failure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageErrorKind {
    /// The file or the request itself is wrong; the same request fails again.
    Invalid,
    /// A needed file is not there.
    NotFound,
    /// Something else stands where ours should be.
    Conflict,
    /// The file is in use by a running machine.
    Busy,
    /// The host's storage has no room.
    StorageFull,
    /// It may work later.
    Transient,
    /// It will not work until somebody changes the host.
    Permanent,
}

/// A failed step on an image, a disk or a seed.
#[derive(Debug, thiserror::Error)]
#[error("{doing}: {message}")]
pub struct ImageError {
    /// What kind.
    pub kind: ImageErrorKind,
    /// What was being done, and to what.
    pub doing: String,
    /// Cause in plain words.
    pub message: String,
}

/// Shorthand.
pub(super) type Result<T> = std::result::Result<T, ImageError>;

/// Said for ENOSPC and EDQUOT, whoever reports them.
const FULL: &str = "the host's storage is full; free space there or ask the administrator";

impl ImageError {
    /// An error in our own words.
    pub(super) fn new(kind: ImageErrorKind, doing: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind, doing: doing.into(), message: message.into() }
    }

    /// The file or request is wrong.
    pub(super) fn invalid(doing: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(ImageErrorKind::Invalid, doing, message)
    }

    /// A failed system call.
    pub(super) fn io(doing: impl Into<String>, error: &std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let (kind, message) = match error.kind() {
            Io::StorageFull | Io::QuotaExceeded => (ImageErrorKind::StorageFull, FULL.to_owned()),
            Io::NotFound => (ImageErrorKind::NotFound, "no such file".to_owned()),
            Io::PermissionDenied => (ImageErrorKind::Permanent, "permission denied".to_owned()),
            Io::ReadOnlyFilesystem => (ImageErrorKind::Permanent, "the file system is read-only".to_owned()),
            _ => (ImageErrorKind::Transient, error.to_string()),
        };
        Self::new(kind, doing, message)
    }

    /// A child program that gave no answer.
    pub(super) fn child(doing: impl Into<String>, error: &ChildError) -> Self {
        let kind = match error {
            ChildError::Missing(_) => ImageErrorKind::Permanent,
            ChildError::Io { .. } | ChildError::Deadline { .. } | ChildError::TooMuch(_) => ImageErrorKind::Transient,
        };
        let cause = std::error::Error::source(error).map(|e| format!(": {e}")).unwrap_or_default();
        Self::new(kind, doing, format!("{error}{cause}"))
    }

    /// A child program that ended with an error.
    pub(super) fn ended(doing: impl Into<String>, output: &ChildOutput) -> Self {
        let said = &output.stderr;
        let (kind, message) = if ["No space left on device", "Disk quota exceeded"].iter().any(|t| said.contains(t)) {
            (ImageErrorKind::StorageFull, FULL.to_owned())
        } else if said.contains("lock") && said.contains("another process") {
            (ImageErrorKind::Busy, "the disk is in use by a running machine; stop it first".to_owned())
        } else {
            (ImageErrorKind::Transient, output.complaint())
        };
        Self::new(kind, doing, message)
    }
}
