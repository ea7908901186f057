//! Who may do what: the only code that makes a [`Permit`]. The rules themselves are one table, in [`table`].

pub mod table;

pub use self::table::Action;
use crate::model::id::{TeamId, UserId, VmId};
use crate::model::name::VmName;
use crate::model::principal::{Principal, Scope, Scopes, User, Who};
use crate::model::vm::Vm;

/// How the one who asks stands to what is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Relation {
    /// It is theirs, or nobody's.
    Own,
    /// It belongs to a team that they are in.
    Team,
    /// It is another's.
    Other,
}

impl Relation {
    /// All of them, for tests and documents that walk the table.
    pub const ALL: [Self; 3] = [Self::Own, Self::Team, Self::Other];

    /// How a principal stands to a thing of this owner and team.
    pub fn between(principal: &Principal, owner: UserId, team: Option<TeamId>) -> Self {
        if principal.user().is_some_and(|user| user.id == owner) {
            return Self::Own;
        }
        if team.is_some_and(|team| principal.teams.contains(&team)) { Self::Team } else { Self::Other }
    }
}

/// A refusal. "Not there" and "not yours" are the same answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// There is no such thing, or it may not be seen.
    #[error("there is no {kind} {shown:?}")]
    NotFound {
        /// What kind of thing.
        kind: &'static str,
        /// How it was asked for.
        shown: String,
    },
    /// They might, but not with this login.
    #[error("this login may not {}: it lacks the scope {scope}", .action.words())]
    OutOfScope {
        /// For what.
        action: Action,
        /// What it takes.
        scope: Scope,
    },
    /// It may be seen, but not this.
    #[error("{actor} may not {}; ask an administrator", .action.words())]
    NotAllowed {
        /// Who asked.
        actor: String,
        /// For what.
        action: Action,
    },
}

/// The proof that the question was asked and answered with yes.
#[derive(Clone, Debug)]
pub struct Permit {
    principal: Principal,
    action: Action,
    vm: Option<VmId>,
    user: Option<UserId>,
    team: Option<TeamId>,
}

impl Permit {
    /// Who asks.
    pub const fn principal(&self) -> &Principal {
        &self.principal
    }

    /// The person who asks; the gateway is none.
    pub const fn user(&self) -> Option<&User> {
        self.principal.user()
    }

    /// Who asks, for the record.
    pub fn actor(&self) -> String {
        actor(&self.principal)
    }

    /// What was permitted.
    pub const fn action(&self) -> Action {
        self.action
    }

    /// The machine it was permitted on; nobody looks its name up again.
    pub const fn vm(&self) -> Option<VmId> {
        self.vm
    }

    /// The person it was permitted on, where they are the object.
    pub const fn subject(&self) -> Option<UserId> {
        self.user
    }

    /// The team it was permitted on.
    pub const fn team(&self) -> Option<TeamId> {
        self.team
    }

    fn of(principal: &Principal, action: Action) -> Self {
        Self { principal: principal.clone(), action, vm: None, user: None, team: None }
    }
}

/// The word for a principal in the record.
pub fn actor(principal: &Principal) -> String {
    match &principal.who {
        Who::User(user) => user.name.to_string(),
        Who::Gateway => "gateway".to_owned(),
    }
}

/// True where the table says yes.
pub fn may(principal: &Principal, action: Action, relation: Relation) -> bool {
    let rule = action.rule();
    match principal.who {
        Who::Gateway => rule.is_for_gateway,
        Who::User(_) => {
            let least = rule.least(relation);
            principal.scopes.has(rule.scope) && least.is_some_and(|least| principal.role() >= Some(least))
        }
    }
}

fn not_allowed(principal: &Principal, action: Action, relation: Relation) -> Denied {
    let whole = principal.clone().limited_to(Scopes::all());
    if principal.user().is_some() && may(&whole, action, relation) {
        // What is above a teacher takes the scope for it, whatever else the action takes.
        let scope = action.rule().scope;
        let scope = if principal.scopes.has(scope) { Scope::Admin } else { scope };
        return Denied::OutOfScope { action, scope };
    }
    Denied::NotAllowed { actor: actor(principal), action }
}

/// May the principal do this with what is theirs or nobody's?
///
/// # Errors
/// [`Denied::NotAllowed`].
pub fn allow(principal: &Principal, action: Action) -> Result<Permit, Denied> {
    if may(principal, action, Relation::Own) {
        return Ok(Permit::of(principal, action));
    }
    Err(not_allowed(principal, action, Relation::Own))
}

/// May the principal do this with that machine? `shown` is how it was asked for; `None` means it is not there.
///
/// # Errors
/// [`Denied::NotFound`] where it may not even be seen.
pub fn allow_vm(principal: &Principal, action: Action, vm: Option<&Vm>, shown: &str) -> Result<Permit, Denied> {
    let not_found = || Denied::NotFound { kind: "VM", shown: shown.to_owned() };
    let vm = vm.ok_or_else(not_found)?;
    let relation = Relation::between(principal, vm.owner, vm.team);
    if may(principal, action, relation) {
        return Ok(Permit { vm: Some(vm.id), ..Permit::of(principal, action) });
    }
    Err(if may(principal, Action::VmSee, relation) { not_allowed(principal, action, relation) } else { not_found() })
}

/// May the principal do this with that person? `teams` are the person's; `None` means there is no such person.
///
/// # Errors
/// [`Denied::NotFound`] where the person may not even be seen.
pub fn allow_user(
    principal: &Principal,
    action: Action,
    user: Option<(UserId, &[TeamId])>,
    shown: &str,
) -> Result<Permit, Denied> {
    let not_found = || Denied::NotFound { kind: "user", shown: shown.to_owned() };
    let (id, teams) = user.ok_or_else(not_found)?;
    let shared = teams.iter().copied().find(|team| principal.teams.contains(team));
    let relation = Relation::between(principal, id, shared);
    if may(principal, action, relation) {
        return Ok(Permit { user: Some(id), ..Permit::of(principal, action) });
    }
    Err(if may(principal, Action::UserSee, relation) { not_allowed(principal, action, relation) } else { not_found() })
}

/// May the principal do this with that team? `None` means there is no such team.
///
/// # Errors
/// [`Denied::NotFound`] where the team may not even be seen.
pub fn allow_team(principal: &Principal, action: Action, team: Option<TeamId>, shown: &str) -> Result<Permit, Denied> {
    let not_found = || Denied::NotFound { kind: "team", shown: shown.to_owned() };
    let id = team.ok_or_else(not_found)?;
    let relation = if principal.teams.contains(&id) { Relation::Team } else { Relation::Other };
    if may(principal, action, relation) {
        return Ok(Permit { team: Some(id), ..Permit::of(principal, action) });
    }
    Err(if may(principal, Action::TeamSee, relation) { not_allowed(principal, action, relation) } else { not_found() })
}

/// How a machine is asked for: `NAME`, `NAME.OWNER` or an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmRef {
    /// By id.
    Id(VmId),
    /// By name, of another owner where one is named.
    Name {
        /// Its name.
        name: VmName,
        /// Its owner's login.
        owner: Option<String>,
    },
}

impl VmRef {
    /// Reads a reference; `None` where it can be none, which is the same as not being there.
    pub fn parse(text: &str) -> Option<Self> {
        if let Ok(id) = text.parse::<VmId>() {
            return Some(Self::Id(id));
        }
        let (name, owner) = match text.split_once('.') {
            Some((name, owner)) => (name, Some(owner.to_owned())),
            None => (text, None),
        };
        Some(Self::Name { name: name.parse().ok()?, owner })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::principal::Role;

    fn user(role: Role) -> Principal {
        Principal::of(User { id: UserId::generate(), name: "eve".parse().unwrap(), role })
    }

    #[test]
    fn a_team_mate_is_no_stranger_and_no_owner() {
        let (owner, team) = (UserId::generate(), TeamId::generate());
        let mate = user(Role::Teacher).in_teams(vec![team]);
        assert_eq!(Relation::between(&mate, owner, Some(team)), Relation::Team);
        assert_eq!(Relation::between(&mate, owner, None), Relation::Other);
        assert_eq!(Relation::between(&mate, mate.user().unwrap().id, Some(team)), Relation::Own);
        assert!(allow_team(&mate, Action::TeamSee, Some(team), "x").is_ok());
        let stranger = user(Role::Teacher);
        let [there, not_there] = [Some(team), None].map(|team| allow_team(&stranger, Action::TeamSee, team, "x"));
        assert_eq!(there.unwrap_err(), not_there.unwrap_err());
    }

    #[test]
    fn a_login_for_some_purposes_is_good_for_no_others() {
        let limited = user(Role::Admin).limited_to([Scope::Read].into_iter().collect());
        assert!(may(&limited, Action::VmSee, Relation::Own));
        assert!(!may(&limited, Action::VmPower, Relation::Own));
        assert!(!may(&limited, Action::VmSee, Relation::Other), "that takes the scope of administration");
        assert!(!may(&limited, Action::AuditSeeAll, Relation::Own));
    }

    #[test]
    fn references_are_names_names_with_owners_or_ids() {
        assert_eq!(VmRef::parse("dev"), Some(VmRef::Name { name: "dev".parse().unwrap(), owner: None }));
        assert_eq!(
            VmRef::parse("dev.eve"),
            Some(VmRef::Name { name: "dev".parse().unwrap(), owner: Some("eve".to_owned()) })
        );
        let id = VmId::generate();
        assert_eq!(VmRef::parse(&id.to_string()), Some(VmRef::Id(id)));
        assert_eq!(VmRef::parse("../x"), None);
    }
}
