//! Logins that another service vouches for: what it says of a person, and what follows from that.

pub mod endpoint;
pub mod id_token;
pub mod pam;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::name::TeamName;
use super::principal::{Provider, Role};

/// Longest name, subject or group that is taken from a provider, bytes.
pub const MAX_WORD: usize = 512;
/// Groups of one person that are looked at.
pub const MAX_GROUPS: usize = 1000;

/// What a provider has vouched for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proven {
    /// Who vouches.
    pub provider: Provider,
    /// Whom the provider means: its own name for the person, which is never given to another.
    pub subject: String,
    /// What the person is called there; the name in gvm is derived from it.
    pub name: String,
    /// The name for people, perhaps empty.
    pub full_name: String,
    /// The groups that the person is in there.
    pub groups: Vec<String>,
}

/// What groups of a provider mean for gvm.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GroupMap {
    /// Only who is in one of them may log in; empty means everybody whom the provider knows.
    pub allowed: Vec<String>,
    /// Their members are teachers.
    pub teachers: Vec<String>,
    /// Their members are operators.
    pub operators: Vec<String>,
    /// Their members are administrators.
    pub admins: Vec<String>,
    /// Group to team: who logs in is in the teams of their groups, and in none of these otherwise.
    pub teams: BTreeMap<String, TeamName>,
}

/// What a person's groups make of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The role; none where the map has no word on roles.
    pub role: Option<Role>,
    /// Teams to be in.
    pub teams: Vec<TeamName>,
    /// Teams of the map not to be in.
    pub other_teams: Vec<TeamName>,
}

impl GroupMap {
    /// What these groups make of a person; none where they may not log in. Upper and lower case are the same, as
    /// directories have it.
    pub fn standing(&self, groups: &[String]) -> Option<Standing> {
        let has = |wanted: &String| groups.iter().any(|group| group.eq_ignore_ascii_case(wanted));
        if !self.allowed.is_empty() && !self.allowed.iter().any(has) {
            return None;
        }
        let lists = [(&self.admins, Role::Admin), (&self.operators, Role::Operator), (&self.teachers, Role::Teacher)];
        let is_silent = lists.iter().all(|(list, _)| list.is_empty());
        let highest = lists.into_iter().find(|(list, _)| list.iter().any(has)).map_or(Role::Member, |(_, role)| role);
        let mut teams: Vec<TeamName> =
            self.teams.iter().filter(|(group, _)| has(group)).map(|(_, team)| team.clone()).collect();
        teams.sort();
        teams.dedup();
        let mut other_teams: Vec<TeamName> =
            self.teams.values().filter(|team| !teams.contains(team)).cloned().collect();
        other_teams.sort();
        other_teams.dedup();
        Some(Standing { role: (!is_silent).then_some(highest), teams, other_teams })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(list: &[&str]) -> Vec<String> {
        list.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn groups_give_the_highest_role_and_exactly_their_teams() {
        let team = |name: &str| name.parse::<TeamName>().unwrap();
        let map = GroupMap {
            allowed: words(&["staff", "students"]),
            operators: words(&["ops"]),
            admins: words(&["cn=Root,dc=x"]),
            teams: [("ml", "ml"), ("vision", "vision"), ("ml-old", "ml")]
                .map(|(group, name)| (group.to_owned(), team(name)))
                .into(),
            ..GroupMap::default()
        };
        assert_eq!(map.standing(&words(&["ops"])), None, "not in a group that may log in");
        let standing = map.standing(&words(&["Staff", "ops", "CN=root,DC=x", "ml-old"])).unwrap();
        assert_eq!(standing.role, Some(Role::Admin));
        assert_eq!((standing.teams, standing.other_teams), (vec![team("ml")], vec![team("vision")]));
        assert_eq!(map.standing(&words(&["students"])).unwrap().role, Some(Role::Member), "who leaves a group is less");
    }

    #[test]
    fn a_map_without_roles_leaves_them_alone() {
        let standing = GroupMap::default().standing(&[]).unwrap();
        assert_eq!(standing, Standing { role: None, teams: Vec::new(), other_teams: Vec::new() });
    }
}
