//! Why a use case says no.

use std::time::Duration;

use crate::hypervisor::{ErrorKind, HypervisorError};
use crate::model::quota::QuotaExceeded;
use crate::plan::place::WhyNot;
use crate::store::StoreError;

/// What kind of no it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value is wrong.
    Invalid,
    /// It is not known who asks.
    Unauthenticated,
    /// Not permitted.
    Denied,
    /// Over the caller's quota.
    OverQuota,
    /// Not there, or not to be seen.
    NotFound,
    /// Not in this state, or the name is taken.
    Conflict,
    /// The host has no room.
    NoCapacity,
    /// Too many or too fast; welcome again after so many seconds.
    TooMuch {
        /// Seconds.
        retry_after: u32,
    },
    /// Something that is needed does not answer.
    Unavailable,
    /// A fault.
    Internal,
}

/// A refusal or failure, as it is told to the person.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ManagerError {
    /// What kind.
    pub kind: Kind,
    /// What was wrong, with the names of the things concerned.
    pub message: String,
    /// What to do.
    pub hint: Option<String>,
    /// Cause, for the log.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// Shorthand.
pub type Result<T> = std::result::Result<T, ManagerError>;

impl ManagerError {
    fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, source: None }
    }

    /// A value is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    /// It is not known who asks.
    pub fn unauthenticated(message: impl Into<String>) -> Self {
        Self::new(Kind::Unauthenticated, message)
    }

    /// Too many or too fast. The wait is rounded up to whole seconds.
    pub fn too_much(message: impl Into<String>, wait: Duration) -> Self {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        let retry_after = u32::try_from(seconds.max(1)).unwrap_or(u32::MAX);
        Self::new(Kind::TooMuch { retry_after }, message)
    }

    /// Not permitted.
    pub fn denied(message: impl Into<String>) -> Self {
        Self::new(Kind::Denied, message)
    }

    /// Not there.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Kind::NotFound, message)
    }

    /// Not in this state, or taken.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(Kind::Conflict, message)
    }

    /// No room.
    pub fn no_capacity(message: impl Into<String>) -> Self {
        Self::new(Kind::NoCapacity, message)
    }

    /// Does not answer.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Kind::Unavailable, message)
    }

    /// With what to do about it.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// With its cause.
    #[must_use]
    pub fn because(self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { source: Some(source.into()), ..self }
    }
}

impl From<StoreError> for ManagerError {
    fn from(error: StoreError) -> Self {
        if error.is_locked() {
            return Self::unavailable("another program holds a lock on the database")
                .hint("try again; if it lasts, an administrator finds the program with `fuser` on the manager's gvm.db")
                .because(error);
        }
        let kind = match error {
            StoreError::Taken(_) | StoreError::InUse => Kind::Conflict,
            StoreError::Open { .. } | StoreError::Corrupt { .. } | StoreError::Sql(_) => Kind::Internal,
        };
        let message = match kind {
            Kind::Internal => format!("{error}: {}", root(&error)),
            _ => error.to_string(),
        };
        Self::new(kind, message).because(error)
    }
}

impl From<HypervisorError> for ManagerError {
    fn from(error: HypervisorError) -> Self {
        let kind = match error.kind {
            ErrorKind::Transient => Kind::Unavailable,
            ErrorKind::NotFound => Kind::NotFound,
            ErrorKind::Conflict => Kind::Conflict,
            ErrorKind::Invalid => Kind::Invalid,
            ErrorKind::Permanent => Kind::Internal,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<QuotaExceeded> for ManagerError {
    fn from(error: QuotaExceeded) -> Self {
        Self::new(Kind::OverQuota, error.to_string())
            .hint("delete or stop what you do not need (gvm list), or ask an administrator for a larger quota")
    }
}

impl From<WhyNot> for ManagerError {
    fn from(why: WhyNot) -> Self {
        let kind = if why.may_pass() { Kind::NoCapacity } else { Kind::Invalid };
        Self::new(kind, why.to_string())
    }
}

/// The innermost cause in words.
fn root(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

/// An error with all its causes on one line, for the log.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut inner = error.source();
    while let Some(source) = inner {
        text.push_str(": ");
        text.push_str(&source.to_string());
        inner = source.source();
    }
    text
}
