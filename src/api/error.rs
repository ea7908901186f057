//! Errors on the wire: a stable code, a sentence for people, a hint what to do.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Stable codes. A client may rely on these words and on nothing else of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request is malformed or a value is out of range.
    Invalid,
    /// It is not known who you are: there is no token, or it is not good.
    Unauthenticated,
    /// You may not do this.
    Denied,
    /// It would be over your quota.
    OverQuota,
    /// There is no such thing, or it is not yours to see.
    NotFound,
    /// The name is taken, or the thing is not in a state for this.
    Conflict,
    /// The host has not enough room for it.
    NoCapacity,
    /// The manager, libvirt or the machine does not answer now.
    Unavailable,
    /// Too large, too many, too fast.
    TooMuch,
    /// A fault of gvm or of the host.
    Internal,
}

impl ErrorCode {
    /// The HTTP status it travels with.
    pub const fn status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::Unauthenticated => 401,
            Self::Denied | Self::OverQuota => 403,
            Self::NotFound => 404,
            Self::Conflict | Self::NoCapacity => 409,
            Self::TooMuch => 429,
            Self::Internal => 500,
            Self::Unavailable => 503,
        }
    }

    /// The code that fits an HTTP status best, for answers that carry none.
    pub const fn of_status(status: u16) -> Self {
        match status {
            401 => Self::Unauthenticated,
            403 => Self::Denied,
            404 | 410 => Self::NotFound,
            409 => Self::Conflict,
            429 => Self::TooMuch,
            502..=504 => Self::Unavailable,
            400..=499 => Self::Invalid,
            _ => Self::Internal,
        }
    }

    /// The exit code of the command line.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Invalid => 2,
            Self::Unauthenticated | Self::Denied | Self::OverQuota => 3,
            Self::NotFound => 4,
            Self::Conflict | Self::NoCapacity | Self::TooMuch => 5,
            Self::Unavailable => 6,
            Self::Internal => 1,
        }
    }
}

/// The body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// Stable code.
    pub code: ErrorCode,
    /// What went wrong, with the names of the things concerned.
    pub message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Found again in the manager's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}
