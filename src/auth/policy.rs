//! The one table of who may do what, and the only code that makes a [`Permit`].

use crate::model::id::{UserId, VmId};
use crate::model::name::VmName;
use crate::model::principal::{Principal, Role, User};
use crate::model::vm::Vm;

/// Everything that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Make a machine.
    VmCreate,
    /// See a machine, its log and its events.
    VmSee,
    /// See everybody's machines.
    VmSeeAll,
    /// Start, stop, restart, pause, resume.
    VmPower,
    /// Rename, resize, limits, labels, lifetime, clone.
    VmChange,
    /// Delete, undelete.
    VmDelete,
    /// Type on its console.
    VmConsole,
    /// Learn how to reach it by SSH.
    VmSsh,
    /// See profiles.
    ProfileSee,
    /// Render and validate a profile.
    ProfileCheck,
    /// See images.
    ImageSee,
    /// Import and remove images.
    ImageChange,
    /// See and change one's own keys.
    KeyOwn,
    /// See the doctor's findings.
    Doctor,
    /// See the cards and what could be asked for.
    GpuSee,
    /// Change the mode of a card, withhold it, take it back into use.
    GpuChange,
    /// See one's own operations.
    OperationSee,
    /// See everybody's operations.
    OperationSeeAll,
    /// Ask where a key leads.
    GatewayAsk,
}

impl Action {
    /// All actions, for tests that walk the table.
    pub const ALL: [Self; 19] = [
        Self::VmCreate,
        Self::VmSee,
        Self::VmSeeAll,
        Self::VmPower,
        Self::VmChange,
        Self::VmDelete,
        Self::VmConsole,
        Self::VmSsh,
        Self::ProfileSee,
        Self::ProfileCheck,
        Self::ImageSee,
        Self::ImageChange,
        Self::KeyOwn,
        Self::Doctor,
        Self::GpuSee,
        Self::GpuChange,
        Self::OperationSee,
        Self::OperationSeeAll,
        Self::GatewayAsk,
    ];

    /// What it is to do, after "may not".
    pub const fn words(self) -> &'static str {
        match self {
            Self::VmCreate => "make VMs",
            Self::VmSee => "see VMs",
            Self::VmSeeAll => "see everybody's VMs",
            Self::VmPower => "start or stop this VM",
            Self::VmChange => "change this VM",
            Self::VmDelete => "delete this VM",
            Self::VmConsole => "type on this VM's console",
            Self::VmSsh => "log in to this VM",
            Self::ProfileSee => "see profiles",
            Self::ProfileCheck => "check profiles",
            Self::ImageSee => "see images",
            Self::ImageChange => "import or remove images",
            Self::KeyOwn => "have SSH keys",
            Self::Doctor => "ask the doctor",
            Self::GpuSee => "see GPUs",
            Self::GpuChange => "change GPUs",
            Self::OperationSee => "see operations",
            Self::OperationSeeAll => "see everybody's operations",
            Self::GatewayAsk => "ask where a key leads",
        }
    }

    /// What a person of some role may do with what is theirs (or nobody's), and with what is another's.
    const fn least_role(self) -> (Option<Role>, Option<Role>) {
        match self {
            Self::VmCreate
            | Self::ProfileSee
            | Self::ImageSee
            | Self::KeyOwn
            | Self::Doctor
            | Self::GpuSee
            | Self::OperationSee => (Some(Role::Member), None),
            Self::VmSee | Self::VmPower => (Some(Role::Member), Some(Role::Operator)),
            Self::VmChange | Self::VmDelete | Self::VmConsole => (Some(Role::Member), Some(Role::Admin)),
            // Nobody logs in to another's machine through gvm.
            Self::VmSsh => (Some(Role::Member), None),
            Self::VmSeeAll | Self::OperationSeeAll => (Some(Role::Operator), None),
            // Rendering shows host paths; importing reads files of the host.
            Self::ProfileCheck | Self::ImageChange | Self::GpuChange => (Some(Role::Admin), None),
            // Beside the gateway itself, so that it can be run by root.
            Self::GatewayAsk => (Some(Role::Admin), None),
        }
    }
}

/// A refusal. "Not there" and "not yours" are the same answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// There is no such machine, or it may not be seen.
    #[error("there is no VM {0:?}")]
    NotFound(String),
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
}

/// The word for a principal in the record.
pub fn actor(principal: &Principal) -> String {
    match principal {
        Principal::User(user) => user.name.to_string(),
        Principal::Gateway => "gateway".to_owned(),
    }
}

fn has(principal: &Principal, least: Option<Role>) -> bool {
    match (principal, least) {
        (Principal::User(user), Some(least)) => user.role >= least,
        (_, None) | (Principal::Gateway, _) => false,
    }
}

/// May the principal do this with what is theirs or nobody's?
///
/// # Errors
/// [`Denied::NotAllowed`].
pub fn allow(principal: &Principal, action: Action) -> Result<Permit, Denied> {
    let is_gateway = matches!((principal, action), (Principal::Gateway, Action::GatewayAsk));
    if is_gateway || has(principal, action.least_role().0) {
        return Ok(Permit { principal: principal.clone(), action, vm: None });
    }
    Err(Denied::NotAllowed { actor: actor(principal), action })
}

/// May the principal do this with that machine? `shown` is how it was asked for; `None` means it is not there.
///
/// # Errors
/// [`Denied::NotFound`] where it may not even be seen.
pub fn allow_vm(principal: &Principal, action: Action, vm: Option<&Vm>, shown: &str) -> Result<Permit, Denied> {
    let not_found = || Denied::NotFound(shown.to_owned());
    let vm = vm.ok_or_else(not_found)?;
    let is_own = |owner: UserId| principal.user().is_some_and(|user| user.id == owner);
    let least = |action: Action| if is_own(vm.owner) { action.least_role().0 } else { action.least_role().1 };
    if has(principal, least(action)) {
        return Ok(Permit { principal: principal.clone(), action, vm: Some(vm.id) });
    }
    if has(principal, least(Action::VmSee)) {
        return Err(Denied::NotAllowed { actor: actor(principal), action });
    }
    Err(not_found())
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
    use crate::model::id::UserId;

    fn user(role: Role) -> Principal {
        Principal::User(User { id: UserId::generate(), name: "eve".parse().unwrap(), role })
    }

    #[test]
    fn the_table_is_as_it_was_agreed() {
        let mut table = String::new();
        for action in Action::ALL {
            let may = |principal: &Principal| allow(principal, action).is_ok();
            let roles = [Role::Member, Role::Teacher, Role::Operator, Role::Admin];
            let own: String = roles.iter().map(|r| if may(&user(*r)) { 'y' } else { '-' }).collect();
            let others: String =
                roles.iter().map(|r| if has(&user(*r), action.least_role().1) { 'y' } else { '-' }).collect();
            let gateway = if may(&Principal::Gateway) { 'y' } else { '-' };
            table.push_str(&format!("{:16} own {own} others {others} gateway {gateway}\n", format!("{action:?}")));
        }
        insta::assert_snapshot!(table, @r"
        VmCreate         own yyyy others ---- gateway -
        VmSee            own yyyy others --yy gateway -
        VmSeeAll         own --yy others ---- gateway -
        VmPower          own yyyy others --yy gateway -
        VmChange         own yyyy others ---y gateway -
        VmDelete         own yyyy others ---y gateway -
        VmConsole        own yyyy others ---y gateway -
        VmSsh            own yyyy others ---- gateway -
        ProfileSee       own yyyy others ---- gateway -
        ProfileCheck     own ---y others ---- gateway -
        ImageSee         own yyyy others ---- gateway -
        ImageChange      own ---y others ---- gateway -
        KeyOwn           own yyyy others ---- gateway -
        Doctor           own yyyy others ---- gateway -
        GpuSee           own yyyy others ---- gateway -
        GpuChange        own ---y others ---- gateway -
        OperationSee     own yyyy others ---- gateway -
        OperationSeeAll  own --yy others ---- gateway -
        GatewayAsk       own ---y others ---- gateway y
        ");
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
