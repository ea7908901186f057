//! What the manager asks its helper about a login of the host, and what that answers: one line of JSON each.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Longest question, bytes.
pub const MAX_QUESTION: u64 = 8192;
/// Longest password that is handed on, bytes: PAM's own bound.
pub const MAX_PASSWORD: usize = 512;

/// Is this the password of that login? No `Debug`: it holds one.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_debug_implementations, reason = "it holds a password")]
pub struct PamQuestion {
    /// The service: which stack of modules judges.
    pub service: String,
    /// Another folder with services.
    pub confdir: Option<PathBuf>,
    /// The login.
    pub user: String,
    /// The password.
    pub password: String,
}

/// What PAM said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub enum PamAnswer {
    /// It is, and the login may be used.
    Accepted {
        /// The login, as the modules call it.
        user: String,
    },
    /// It is not, or the login may not be used.
    Refused {
        /// PAM's number for it.
        code: i32,
    },
    /// Nobody could judge.
    Failed {
        /// In words.
        why: String,
    },
}
