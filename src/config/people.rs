//! `[people]`: who administers, and what a member may hold.

use serde::{Deserialize, Serialize};

use crate::model::principal::Role;
use crate::model::quota::Quota;

/// The zone that needs no data of the host.
pub const UTC: &str = "UTC";

/// People.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PeopleConfig {
    /// Logins of the host with the role admin, beside root; they have it whatever was set with `gvm user set`.
    pub admins: Vec<String>,
    /// Logins of the host with the role operator: they see everybody's machines and may start and stop them.
    pub operators: Vec<String>,
    /// Whoever may use the socket is a member at the first sight. Without it only who was added with `gvm user add`.
    pub add_from_socket: bool,
    /// What every member may hold where neither they nor their team have limits of their own.
    pub quota: Quota,
    /// The zone in which months of GPU hours begin, such as `Europe/Madrid`.
    pub zone: String,
}

impl Default for PeopleConfig {
    fn default() -> Self {
        Self {
            admins: Vec::new(),
            operators: Vec::new(),
            add_from_socket: true,
            quota: Quota::default(),
            zone: UTC.to_owned(),
        }
    }
}

impl PeopleConfig {
    /// The role that the lists give an account of the host.
    pub fn role_of(&self, uid: u32, login: &str) -> Role {
        let is_in = |list: &[String]| list.iter().any(|name| name == login);
        match uid {
            0 => Role::Admin,
            _ if is_in(&self.admins) => Role::Admin,
            _ if is_in(&self.operators) => Role::Operator,
            _ => Role::Member,
        }
    }
}
