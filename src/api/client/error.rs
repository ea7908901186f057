//! Why a call of the API failed.

use super::place::{Place, ServerUrl};
use crate::api::error::{ErrorBody, ErrorCode};
use crate::model::fingerprint::Fingerprint;

/// Why a call of the API failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The manager answered with a refusal or failure.
    #[error("{}", .0.message)]
    Api(ErrorBody),
    /// The manager cannot be reached.
    #[error("the gvm manager does not answer on {place}")]
    Unreachable {
        /// Where.
        place: Place,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// No authority that this machine trusts signed the server's certificate.
    #[error("the certificate of {0} is not signed by an authority that this machine trusts")]
    Untrusted(ServerUrl),
    /// The server showed another certificate than the pinned one.
    #[error(
        "the server at {url} is not the one that you logged in to: its certificate has the fingerprint {shown}, not {pinned}"
    )]
    Changed {
        /// The server.
        url: ServerUrl,
        /// What is known.
        pinned: Fingerprint,
        /// What was shown.
        shown: Fingerprint,
    },
    /// The client cannot be set up.
    #[error("cannot set up TLS")]
    Setup(#[source] rustls::Error),
    /// The connection broke, or the answer did not come in time.
    #[error("the answer of the gvm manager was cut short or did not come in time")]
    Broken(#[source] reqwest::Error),
    /// The answer is not of the kind that was expected.
    #[error("the answer of the gvm manager cannot be read")]
    Garbled(#[source] serde_json::Error),
    /// A console could not be opened, for a reason that is not an answer of the manager.
    #[error("the console of the gvm manager cannot be opened: {0}")]
    Upgrade(String),
    /// A message of the stream cannot be read.
    #[error("the gvm manager sent an event that cannot be read: {0}")]
    Event(String),
}

impl ClientError {
    /// The stable code, for exit codes and decisions.
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Api(body) => body.code,
            Self::Unreachable { .. } | Self::Broken(_) | Self::Upgrade(_) => ErrorCode::Unavailable,
            Self::Untrusted(_) | Self::Changed { .. } => ErrorCode::Denied,
            Self::Garbled(_) | Self::Event(_) | Self::Setup(_) => ErrorCode::Internal,
        }
    }

    /// True where the same call may succeed in a moment: the manager is down or on its way up.
    pub const fn is_passing(&self) -> bool {
        matches!(self.code(), ErrorCode::Unavailable)
    }
}
