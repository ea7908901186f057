//! API tokens.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Request for a token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// A word for it, unique among those of its owner.
    pub name: String,
    /// `read`, `vm`, `console`, `account`, `admin`; all that the caller has where absent.
    #[serde(default)]
    pub scopes: Option<Vec<String>>,
    /// How long it lives, such as `30d`.
    #[serde(default)]
    pub ttl: Option<String>,
    /// The service account that it is for; the caller where absent.
    #[serde(default)]
    pub user: Option<String>,
}

/// What is told of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    /// Id; no secret, and part of the token.
    pub id: String,
    /// Name.
    pub name: String,
    /// personal, service or session.
    pub kind: String,
    /// What it is good for.
    pub scopes: Vec<String>,
    /// When it was made.
    pub created_at: String,
    /// When it ends.
    pub expires_at: String,
    /// When it was last used, to about a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<String>,
    /// From which address; none over the socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_from: Option<String>,
}

/// A list of tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenList {
    /// Oldest first.
    pub tokens: Vec<TokenView>,
}

/// A token that was just made.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedToken {
    /// The token itself; it is not shown again.
    pub token: String,
    /// What is told of it from now on.
    pub info: TokenView,
}

// The token must never reach a log through a derived Debug.
impl std::fmt::Debug for CreatedToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreatedToken").field("token", &"<secret>").field("info", &self.info).finish()
    }
}
