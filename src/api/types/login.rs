//! Logins that another service vouches for.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Which ways to log in there are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LoginWaysView {
    /// Services that take a password: `ldap`, `pam`.
    pub passwords: Vec<String>,
    /// With a code that is typed in a browser elsewhere: `POST /v1/login/device`.
    pub device: bool,
    /// With a browser alone: `GET /v1/login/oidc/start`.
    pub page: bool,
}

/// Request to log in with a password.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PasswordLogin {
    /// The login.
    pub user: String,
    /// The password.
    #[schema(format = Password)]
    pub password: String,
    /// Only this service is to judge: `ldap` or `pam`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

impl fmt::Debug for PasswordLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PasswordLogin {{ user: {:?}, password: <secret> }}", self.user)
    }
}

/// Who logged in, with the token to come back with. It is shown this once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionView {
    /// The name in gvm.
    pub user: String,
    /// Role.
    pub role: String,
    /// Send it as `authorization: Bearer TOKEN`.
    #[schema(format = Password)]
    pub token: String,
    /// When it ends.
    pub expires_at: String,
}

impl fmt::Debug for SessionView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionView {{ user: {:?}, token: <secret>, expires_at: {:?} }}", self.user, self.expires_at)
    }
}

/// A login with a code was begun.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceLoginView {
    /// What to ask with: `POST /v1/login/device/poll`. Good until the end, and for one login.
    pub handle: String,
    /// What the person is to type.
    pub user_code: String,
    /// Where.
    pub verification_uri: String,
    /// The same with the code in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification_uri_complete: Option<String>,
    /// Seconds between two questions.
    pub interval: u64,
    /// Seconds until it is too late.
    pub expires_in: u64,
}

impl fmt::Debug for DeviceLoginView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceLoginView {{ handle: <secret>, user_code: {:?} }}", self.user_code)
    }
}

/// Request to link a login of a provider to a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkLogin {
    /// `oidc` or `ldap`.
    pub provider: String,
    /// What the ID token calls `sub`, or the entry's name in the directory.
    pub subject: String,
}

/// How far is this login?
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PollDevice {
    /// As it was given.
    pub handle: String,
}

impl fmt::Debug for PollDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PollDevice { handle: <secret> }")
    }
}

/// So far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceAnswer {
    /// How far.
    pub state: DeviceWord,
    /// Seconds to wait before the next question.
    pub interval: u64,
    /// The session, once it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionView>,
}

/// How far a login with a code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeviceWord {
    /// The person has not answered.
    Pending,
    /// The same, and it was asked too soon.
    SlowDown,
    /// They are in.
    Done,
}
