//! Who asks.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::id::{TeamId, TokenId, UserId};
use super::name::UserName;

/// A word of a fixed list that is not on it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word:?} is no {what}; use {list}")]
pub struct UnknownWord {
    what: &'static str,
    word: String,
    list: String,
}

/// An enum whose values are words: for the store, the wire and the command line.
macro_rules! words {
    ($name:ident, $what:literal, { $($value:ident => $word:literal),+ $(,)? }) => {
        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$value),+];

            /// The word that is stored and shown.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $word),+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = UnknownWord;

            fn from_str(text: &str) -> Result<Self, UnknownWord> {
                Self::ALL.iter().copied().find(|value| value.as_str() == text).ok_or_else(|| UnknownWord {
                    what: $what,
                    word: text.chars().take(40).collect(),
                    list: Self::ALL.iter().map(|value| value.as_str()).collect::<Vec<_>>().join(", "),
                })
            }
        }
    };
}

/// What a person may do by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Has machines of their own.
    Member,
    /// A member who also sees and starts machines of the teams that they are in.
    Teacher,
    /// Sees and steers everybody's machines.
    Operator,
    /// May do everything.
    Admin,
}

words!(Role, "role", { Member => "member", Teacher => "teacher", Operator => "operator", Admin => "admin" });

/// Where a person's role is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleSource {
    /// The configuration's lists of logins of the host, followed at each request over the socket.
    Host,
    /// An administrator of gvm.
    Set,
    /// The groups that a login provider says they are in, followed at each login.
    Login,
}

words!(RoleSource, "source of a role", { Host => "host", Set => "set", Login => "login" });

/// Why somebody keeps everything and may do nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspension {
    /// Since when.
    pub at: Timestamp,
    /// Told to them.
    pub why: String,
}

/// A part of what a person may do, to which a token can be limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Looking.
    Read,
    /// Making, changing, starting, stopping and deleting machines.
    Vm,
    /// Getting into machines: consoles, and what SSH needs to know.
    Console,
    /// The person's own keys and tokens.
    Account,
    /// What takes an operator or administrator; without it, their role counts as a teacher's.
    Admin,
}

words!(Scope, "scope", { Read => "read", Vm => "vm", Console => "console", Account => "account", Admin => "admin" });

/// What a login is good for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Scopes(BTreeSet<Scope>);

impl Scopes {
    /// Everything that the person may do.
    pub fn all() -> Self {
        Self(Scope::ALL.iter().copied().collect())
    }

    /// True where this is among them.
    pub fn has(&self, scope: Scope) -> bool {
        self.0.contains(&scope)
    }

    /// True where nothing is in these that is not in those.
    pub fn is_within(&self, wider: &Self) -> bool {
        self.0.is_subset(&wider.0)
    }

    /// One by one, in order.
    pub fn iter(&self) -> impl Iterator<Item = Scope> + '_ {
        self.0.iter().copied()
    }

    /// True for none at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Who may do something with machines may see them: else a change that was made could not be followed.
impl FromIterator<Scope> for Scopes {
    fn from_iter<T: IntoIterator<Item = Scope>>(scopes: T) -> Self {
        let mut scopes: BTreeSet<Scope> = scopes.into_iter().collect();
        if scopes.contains(&Scope::Vm) || scopes.contains(&Scope::Console) {
            scopes.insert(Scope::Read);
        }
        Self(scopes)
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<&str> = self.iter().map(Scope::as_str).collect();
        f.pad(&words.join(","))
    }
}

impl FromStr for Scopes {
    type Err = UnknownWord;

    /// Words with commas between them.
    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        text.split(',').filter(|word| !word.is_empty()).map(str::parse).collect()
    }
}

/// A service that vouches for who somebody is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Provider {
    /// The institution's OpenID Connect provider.
    Oidc,
    /// A directory.
    Ldap,
    /// The host's own logins.
    Pam,
}

words!(Provider, "login provider", { Oidc => "oidc", Ldap => "ldap", Pam => "pam" });

/// A registered person or service account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// Id.
    pub id: UserId,
    /// Login name.
    pub name: UserName,
    /// Role.
    pub role: Role,
}

/// How it is known who asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// The manager itself, or a test.
    Internal,
    /// The kernel's word on the other end of the unix socket.
    Socket,
    /// An API token.
    Token(TokenId),
    /// An SSH key or certificate that was proven to the gateway, by its fingerprint.
    SshKey(String),
    /// A login that was proven to another service: `oidc`, `ldap`, `pam`.
    Login(String),
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Internal => f.pad("internal"),
            Self::Socket => f.pad("socket"),
            Self::Token(id) => write!(f, "token {id}"),
            Self::SshKey(print) => write!(f, "ssh-key {print}"),
            Self::Login(service) => f.pad(service),
        }
    }
}

/// From where a request comes, for the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// How it is known who asks.
    pub via: Via,
    /// The client's address, where it came over a network.
    pub address: Option<IpAddr>,
    /// The request's id, which an error's answer carries as well.
    pub request: Option<Uuid>,
}

impl Origin {
    /// Not over a network, and of no request.
    pub const fn internal() -> Self {
        Self { via: Via::Internal, address: None, request: None }
    }
}

/// Whom a principal is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// A person or service account.
    User(User),
    /// The SSH gateway's process, by the uid of its service account. It may ask where a key leads, nothing else.
    Gateway,
}

/// Who asks, and how that is known. Nobody who is suspended becomes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// Whom.
    pub who: Who,
    /// The teams that they are in.
    pub teams: Vec<TeamId>,
    /// What this login is good for.
    pub scopes: Scopes,
    /// From where.
    pub origin: Origin,
}

impl Principal {
    /// A person with all of their rights.
    pub fn of(user: User) -> Self {
        Self { who: Who::User(user), teams: Vec::new(), scopes: Scopes::all(), origin: Origin::internal() }
    }

    /// The SSH gateway.
    pub fn gateway() -> Self {
        Self { who: Who::Gateway, teams: Vec::new(), scopes: Scopes::all(), origin: Origin::internal() }
    }

    /// The same in these teams.
    #[must_use]
    pub fn in_teams(self, teams: Vec<TeamId>) -> Self {
        Self { teams, ..self }
    }

    /// The same for these purposes only.
    #[must_use]
    pub fn limited_to(self, scopes: Scopes) -> Self {
        Self { scopes, ..self }
    }

    /// The same from there.
    #[must_use]
    pub fn from(self, origin: Origin) -> Self {
        Self { origin, ..self }
    }

    /// The person, where it is one.
    pub const fn user(&self) -> Option<&User> {
        match &self.who {
            Who::User(user) => Some(user),
            Who::Gateway => None,
        }
    }

    /// The role that counts: what is above a teacher only with the scope for it.
    pub fn role(&self) -> Option<Role> {
        let role = self.user()?.role;
        Some(if self.scopes.has(Scope::Admin) { role } else { role.min(Role::Teacher) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_are_written() {
        for role in Role::ALL {
            assert_eq!(role.as_str().parse::<Role>().unwrap(), *role);
        }
        let error = "root".parse::<Role>().unwrap_err().to_string();
        assert_eq!(error, "\"root\" is no role; use member, teacher, operator, admin");
    }

    #[test]
    fn a_role_is_worth_less_without_the_scope_for_it() {
        let user = User { id: UserId::generate(), name: "eve".parse().unwrap(), role: Role::Admin };
        let principal = Principal::of(user);
        assert_eq!(principal.role(), Some(Role::Admin));
        let limited = principal.limited_to([Scope::Read, Scope::Vm].into_iter().collect());
        assert_eq!(limited.role(), Some(Role::Teacher));
        assert!(limited.scopes.is_within(&Scopes::all()));
        assert!(!Scopes::all().is_within(&limited.scopes));
    }
}
