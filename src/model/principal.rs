//! Who asks.

use serde::{Deserialize, Serialize};

use super::id::UserId;
use super::name::UserName;

/// What a person may do by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Has machines of their own.
    Member,
    /// A member who may also run classes.
    Teacher,
    /// Sees and steers everybody's machines.
    Operator,
    /// May do everything.
    Admin,
}

/// A registered person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// Id.
    pub id: UserId,
    /// Login name.
    pub name: UserName,
    /// Role.
    pub role: Role,
}

/// Who asks, and how that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Principal {
    /// A person.
    User(User),
    /// The SSH gateway's process, by the uid of its service account. It may ask where a key leads, nothing else.
    Gateway,
}

impl Principal {
    /// The person, where it is one.
    pub const fn user(&self) -> Option<&User> {
        match self {
            Self::User(user) => Some(user),
            Self::Gateway => None,
        }
    }
}
