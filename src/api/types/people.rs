//! People, service accounts and teams.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::caps::given;

/// Who the manager takes the caller for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Me {
    /// Login.
    pub name: String,
    /// member, teacher, operator, admin or gateway.
    pub role: String,
    /// Registered keys.
    pub keys: u64,
    /// For people.
    #[serde(default)]
    pub full_name: String,
    /// Names of one's teams.
    #[serde(default)]
    pub teams: Vec<String>,
    /// The team that machines count for where none is named.
    #[serde(default)]
    pub default_team: Option<String>,
    /// What this login is good for: read, vm, console, account, admin.
    #[serde(default)]
    pub scopes: Vec<String>,
    /// How it is known who asks: socket, a token, an SSH key, a login of another service.
    #[serde(default)]
    pub via: String,
}

/// A person or service account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UserView {
    /// Id; stays through every change of name.
    pub id: String,
    /// Login.
    pub name: String,
    /// For people.
    pub full_name: String,
    /// The role that counts: member, teacher, operator or admin.
    pub role: String,
    /// Where the role is from: `host` (the configuration) or `set` (an administrator).
    pub role_source: String,
    /// A program rather than a person.
    pub is_service: bool,
    /// An account of the host is known to be theirs.
    pub has_account: bool,
    /// Out of use.
    pub suspended: Option<SuspensionView>,
    /// Names of their teams.
    pub teams: Vec<String>,
    /// The team that their machines count for where none is named.
    pub default_team: Option<String>,
    /// RFC 3339.
    pub created_at: String,
}

/// Since when somebody may do nothing, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SuspensionView {
    /// RFC 3339.
    pub at: String,
    /// Told to them.
    pub why: String,
}

/// A page of people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UserList {
    /// By name.
    pub users: Vec<UserView>,
    /// There are more: ask again with `after` set to this.
    #[serde(default)]
    pub next: Option<String>,
}

/// Request to add a person or service account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddUser {
    /// Login: 1 to 32 of a-z, 0-9, - and _; the host's account of that name is theirs.
    pub name: String,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub full_name: String,
    /// member, teacher, operator or admin; absent follows the host's configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// A program: it has tokens and keys, and never an account of the host.
    #[serde(default)]
    pub is_service: bool,
    /// Teams; the first is the default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub teams: Vec<String>,
}

/// Request to add many at once: all or nobody.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportUsers {
    /// At most 20,000.
    pub users: Vec<AddUser>,
    /// Only say what is wrong.
    #[serde(default)]
    pub is_dry_run: bool,
}

/// What came of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImportReport {
    /// How many were added: all, or none.
    pub added: u64,
    /// What is wrong; the first hundred faults.
    pub problems: Vec<ImportProblemView>,
}

/// What is wrong with one of those to be added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImportProblemView {
    /// Which of them, from 0.
    pub index: u64,
    /// In plain words.
    pub message: String,
}

/// Request to change a person. What is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ChangeUser {
    /// Another login.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// member, teacher, operator or admin; `host` follows the host's configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_name: Option<String>,
    /// One of their teams; `null` for none.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub default_team: Option<Option<String>>,
    /// The host's account was made anew: its number is learned at its next sight.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_new_account: bool,
}

/// Request to put a person out of use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SuspendUser {
    /// Told to them.
    pub why: String,
    /// Stop their machines too.
    #[serde(default)]
    pub stop_vms: bool,
}

/// A person who was suspended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Suspended {
    /// The person.
    pub user: UserView,
    /// Machines of theirs that are being stopped; the others keep running.
    pub stopped_vms: u64,
}

/// A team.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TeamView {
    /// Id; stays through every change of name.
    pub id: String,
    /// Name.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// How many are in it.
    pub members: u64,
    /// RFC 3339.
    pub created_at: String,
}

/// Teams.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TeamList {
    /// By name.
    pub teams: Vec<TeamView>,
}

/// A page of the members of a team.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemberList {
    /// Logins by name.
    pub members: Vec<String>,
    /// There are more: ask again with `after` set to this.
    #[serde(default)]
    pub next: Option<String>,
}

/// Request to make a team.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddTeam {
    /// Name: 1 to 32 of a-z, 0-9, - and _.
    pub name: String,
    /// What it is for.
    #[serde(default)]
    pub description: String,
}

/// Request to change a team. What is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ChangeTeam {
    /// Another name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}
