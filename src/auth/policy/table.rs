//! The one table of who may do what. `docs/policy.md` is made from it.

use super::Relation;
use crate::model::principal::{Role, Scope};

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// A token without this scope may not.
    pub scope: Scope,
    /// The least role for what is one's own or nobody's.
    pub own: Option<Role>,
    /// The least role for what belongs to a team that one is in.
    pub team: Option<Role>,
    /// The least role for what is another's.
    pub other: Option<Role>,
    /// The SSH gateway's process may, and it may nothing else.
    pub is_for_gateway: bool,
}

impl Rule {
    /// The least role for a thing that one stands to so; none where nobody may.
    pub const fn least(&self, relation: Relation) -> Option<Role> {
        match relation {
            Relation::Own => self.own,
            Relation::Team => self.team,
            Relation::Other => self.other,
        }
    }
}

macro_rules! least {
    (nobody) => {
        None
    };
    ($role:ident) => {
        Some(Role::$role)
    };
}

macro_rules! for_gateway {
    () => {
        false
    };
    (gateway) => {
        true
    };
}

macro_rules! actions {
    ($($(#[$doc:meta])* $name:ident $words:literal, $scope:ident: $own:ident $team:ident $other:ident $($gateway:ident)?;)+) => {
        /// Everything that can be asked for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Action {
            $($(#[$doc])* $name,)+
        }

        impl Action {
            /// All actions, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// What it is to do, after "may not".
            pub const fn words(self) -> &'static str {
                match self {
                    $(Self::$name => $words),+
                }
            }

            /// Its line of the table.
            pub const fn rule(self) -> Rule {
                match self {
                    $(Self::$name => Rule {
                        scope: Scope::$scope,
                        own: least!($own),
                        team: least!($team),
                        other: least!($other),
                        is_for_gateway: for_gateway!($($gateway)?),
                    }),+
                }
            }
        }
    };
}

actions! {
    // What a token needs: the least role for one's own (or nobody's), for a team's, for another's.

    /// Make a machine.
    VmCreate "make VMs", Vm: Member nobody nobody;
    /// See a machine, its log and its events.
    VmSee "see VMs", Read: Member Teacher Operator;
    /// See everybody's machines.
    VmSeeAll "see everybody's VMs", Admin: Operator nobody nobody;
    /// Start, stop, restart, pause, resume.
    VmPower "start or stop this VM", Vm: Member Teacher Operator;
    /// Rename, resize, limits, labels, lifetime, clone.
    VmChange "change this VM", Vm: Member Admin Admin;
    /// Delete, undelete.
    VmDelete "delete this VM", Vm: Member Admin Admin;
    /// Type on its console.
    VmConsole "type on this VM's console", Console: Member Admin Admin;
    /// Learn how to reach it by SSH. Nobody logs in to another's machine through gvm.
    VmSsh "log in to this VM", Console: Member nobody nobody;
    /// See profiles.
    ProfileSee "see profiles", Read: Member nobody nobody;
    /// Render and validate a profile: that shows paths of the host.
    ProfileCheck "check profiles", Admin: Admin nobody nobody;
    /// See images.
    ImageSee "see images", Read: Member nobody nobody;
    /// Import and remove images: importing reads files of the host.
    ImageChange "import or remove images", Admin: Admin nobody nobody;
    /// See the doctor's findings.
    Doctor "ask the doctor", Read: Member nobody nobody;
    /// See the cards and what could be asked for.
    GpuSee "see GPUs", Read: Member nobody nobody;
    /// Change the mode of a card, withhold it, take it back into use.
    GpuChange "change GPUs", Admin: Admin nobody nobody;
    /// See and change one's own SSH keys.
    KeyOwn "have SSH keys", Account: Member nobody nobody;
    /// Make, see and revoke API tokens.
    TokenChange "manage these tokens", Account: Member nobody Admin;
    /// See a person: role, teams, whether suspended.
    UserSee "see this user", Read: Member Teacher Operator;
    /// See everybody.
    UserSeeAll "see all users", Admin: Operator nobody nobody;
    /// Add people and service accounts; change their name, role, teams, quota; suspend and remove them.
    UserChange "change users", Admin: Admin Admin Admin;
    /// See a team and who is in it.
    TeamSee "see this team", Read: Member Member Operator;
    /// See all teams.
    TeamSeeAll "see all teams", Admin: Operator nobody nobody;
    /// Add, change and remove teams.
    TeamChange "change teams", Admin: Admin Admin Admin;
    /// See what a person or team holds and may hold.
    QuotaSee "see this quota", Read: Member Teacher Operator;
    /// See one's own part of the record.
    AuditSee "see the record", Read: Member nobody nobody;
    /// See the whole record, and take it out.
    AuditSeeAll "see everybody's record", Admin: Operator nobody nobody;
    /// Check the record's chain and its signatures.
    AuditVerify "verify the record", Admin: Operator nobody nobody;
    /// Take a backup of the manager's state: it holds secrets.
    Backup "take backups", Admin: Admin nobody nobody;
    /// Ask where a key leads. An administrator may too, so that a gateway can be run by root.
    GatewayAsk "ask where a key leads", Admin: Admin nobody nobody gateway;
}

/// The table as a document, Markdown.
pub fn document() -> String {
    let mut text = String::from(
        "# Who may do what\n\n\
         Made from `src/auth/policy/table.rs` by `house::policy`; not to be edited. Each cell names the least role: a \
         teacher may what a member may, an operator what a teacher may, an administrator everything that anybody may.\n\n\
         - *own*: it is one's own, or nobody's\n\
         - *team*: it belongs to a team that one is in\n\
         - *other*: it is another's. Where one may not even see it, the answer is that it is not there\n\
         - *scope*: a token needs it. Without the scope `admin`, a role above teacher counts as teacher\n\n\
         | action | to | scope | own | team | other |\n|---|---|---|---|---|---|\n",
    );
    for action in Action::ALL {
        let rule = action.rule();
        let cell = |relation| rule.least(relation).map_or("-", Role::as_str);
        let [own, team, other] = Relation::ALL.map(cell);
        let gateway = if rule.is_for_gateway { ", the gateway" } else { "" };
        text.push_str(&format!(
            "| {action:?} | {} | {} | {own}{gateway} | {team} | {other} |\n",
            action.words(),
            rule.scope
        ));
    }
    text
}
