//! The read side: what people see, put together from the store and the hypervisor at the moment of asking.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::{Manager, ManagerError, Result};
use crate::auth::policy::Permit;
use crate::model::caps::Caps;
use crate::model::id::{TeamId, UserId, VmId};
use crate::model::name::UserName;
use crate::model::state::{Observed, VmState};
use crate::model::vm::Vm;
use crate::plan::vm::needs_restart;
use crate::store::vms::VmFilter;

/// A machine with everything that is told of it.
#[derive(Clone, Debug)]
pub struct VmDetails {
    /// The row.
    pub vm: Vm,
    /// Owner's login.
    pub owner: String,
    /// Name of the team that it counts for.
    pub team: Option<String>,
    /// Derived state.
    pub state: VmState,
    /// In plain words what the state means just now.
    pub detail: String,
    /// Limits read back.
    pub caps_in_force: Option<Caps>,
    /// True for KVM, false for emulation, none while off.
    pub is_accelerated: Option<bool>,
    /// The guest's SSH server was seen to answer since the last start.
    pub is_reachable: bool,
    /// A change waits for a restart.
    pub needs_restart: bool,
}

/// Which machines to list.
#[derive(Clone, Copy, Debug)]
pub struct ListRequest {
    /// Deleted ones too.
    pub with_deleted: bool,
    /// At most so many.
    pub limit: u32,
}

/// How long one waits for the hypervisor, which is deaf to questions about a machine while it starts it; then rather
/// without the states.
const LOOK: Duration = Duration::from_secs(5);

impl Manager {
    /// The state of a machine that a change depends on.
    pub(super) async fn observe_for_change(&self, id: VmId) -> Observed {
        self.observe_within(id, LOOK).await
    }

    async fn observe_within(&self, id: VmId, span: Duration) -> Observed {
        let observed = tokio::time::timeout(span, self.hypervisor.observe(id)).await;
        observed.unwrap_or_else(|_| Observed::Unknown(silent(span)))
    }

    /// The machine of a permit.
    ///
    /// # Errors
    /// Where it is gone or the store fails.
    pub async fn details(&self, permit: &Permit) -> Result<VmDetails> {
        let vm = self.permitted(permit).await?;
        self.details_of(vm).await
    }

    /// The machine of a change that was just accepted.
    ///
    /// # Errors
    /// Where the store fails.
    pub async fn details_of(&self, vm: Vm) -> Result<VmDetails> {
        let owner = self.store.user(vm.owner).await?.map(|user| user.name.to_string()).unwrap_or_default();
        let team = self.team_names(std::slice::from_ref(&vm)).await?.into_values().next();
        let observed = self.observe_within(vm.id, LOOK).await;
        Ok(self.describe(vm, owner, team, &observed))
    }

    /// Names of the teams that these machines count for: mostly one or none.
    async fn team_names(&self, vms: &[Vm]) -> Result<HashMap<TeamId, String>> {
        let mut names = HashMap::new();
        for team in vms.iter().filter_map(|vm| vm.team).collect::<HashSet<_>>() {
            names.extend(self.store.team(team).await?.map(|row| (team, row.name.to_string())));
        }
        Ok(names)
    }

    /// Machines of the one who asks, of the permit's team, or everybody's with a permit for that.
    ///
    /// # Errors
    /// Where the store fails. A hypervisor that does not answer makes states unknown.
    pub async fn list(&self, permit: &Permit, request: ListRequest) -> Result<Vec<VmDetails>> {
        let owner = match (permit.action(), permit.team()) {
            (crate::auth::policy::Action::VmSeeAll, _) | (_, Some(_)) => None,
            _ => permit.user().map(|user| user.id),
        };
        let filter = VmFilter { owner, team: permit.team(), with_deleted: request.with_deleted, limit: request.limit };
        let observe_all = async {
            match tokio::time::timeout(LOOK, self.looks.all(&*self.hypervisor)).await {
                Ok(observed) => observed.map_err(|e| e.to_string()),
                Err(_) => Err(silent(LOOK)),
            }
        };
        let (rows, observed) = tokio::join!(self.store.vms(filter), observe_all);
        let rows = rows?;
        let owners = self.owners_of(permit, &rows).await?;
        let teams = self.team_names(&rows).await?;
        let team = |vm: &Vm| vm.team.and_then(|team| teams.get(&team).cloned());
        let observed = match observed {
            Ok(all) => all,
            Err(why) => {
                let why = Observed::Unknown(why);
                let describe = |vm: Vm| {
                    let owner = owners.get(&vm.owner).map(ToString::to_string).unwrap_or_default();
                    let team = team(&vm);
                    self.describe(vm, owner, team, &why)
                };
                return Ok(rows.into_iter().map(describe).collect());
            }
        };
        let describe = |vm: Vm| {
            let owner = owners.get(&vm.owner).map(ToString::to_string).unwrap_or_default();
            let seen = observed.get(&vm.id).unwrap_or(&Observed::Missing);
            let team = team(&vm);
            self.describe(vm, owner, team, seen)
        };
        Ok(rows.into_iter().map(describe).collect())
    }

    /// The names of those whose machines these are; who lists their own is known already.
    async fn owners_of(&self, permit: &Permit, rows: &[Vm]) -> Result<HashMap<UserId, UserName>> {
        let own = permit.user().filter(|user| rows.iter().all(|vm| vm.owner == user.id));
        if let Some(user) = own {
            return Ok(HashMap::from([(user.id, user.name.clone())]));
        }
        Ok(self.store.owner_names().await?)
    }

    fn describe(&self, vm: Vm, owner: String, team: Option<String>, observed: &Observed) -> VmDetails {
        let state = VmState::derive(&vm, observed);
        let detail = match &state {
            VmState::Failed { .. } => {
                vm.trouble.as_ref().map(|t| format!("{}: {}", t.step, t.message)).unwrap_or_default()
            }
            VmState::Degraded { why } | VmState::Unknown { why } => why.clone(),
            VmState::Creating | VmState::Stopping | VmState::Deleting | VmState::Pending => {
                self.watch.last(vm.id).map(|progress| progress.message).unwrap_or_default()
            }
            VmState::Running | VmState::Paused | VmState::Stopped | VmState::Deleted { .. } => String::new(),
        };
        let (caps_in_force, is_accelerated) = match observed {
            Observed::Defined(domain) => {
                (Some(domain.caps.clone()), observed.is_active().then_some(domain.is_accelerated))
            }
            Observed::Missing | Observed::Unknown(_) => (None, None),
        };
        VmDetails {
            is_reachable: observed.is_active() && self.is_reachable(&vm),
            needs_restart: needs_restart(&vm, observed),
            owner,
            team,
            state,
            detail,
            caps_in_force,
            is_accelerated,
            vm,
        }
    }

    /// The last lines of a machine's serial line.
    ///
    /// # Errors
    /// Where it cannot be read; a machine that never ran has none.
    pub async fn serial_log(&self, permit: &Permit, lines: usize) -> Result<String> {
        let vm = self.permitted(permit).await?;
        let path = self.layout.vm(vm.id).serial_log();
        let read = crate::image::serial::tail(&path).await;
        let text = read.map_err(|e| ManagerError::unavailable(e.to_string()).because(e))?;
        let all: Vec<&str> = text.lines().collect();
        let from = all.len().saturating_sub(lines);
        let mut tail = all.get(from..).unwrap_or_default().join("\n");
        if !tail.is_empty() {
            tail.push('\n');
        }
        Ok(tail)
    }
}

fn silent(span: Duration) -> String {
    format!("libvirt did not answer within {} s", span.as_secs())
}
