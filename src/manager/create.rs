//! Admission: everything is checked and chosen before anything happens, and committed at once.

use jiff::Timestamp;

use super::quota::{Growth, QuotaLine};
use super::{Kind, Manager, ManagerError, Result, boot, gpus, steps};
use crate::auth::policy::Permit;
use crate::model::caps::Caps;
use crate::model::gpu::{GpuDevice, GpuId, GpuRequest, Partition};
use crate::model::id::{OpId, TeamId, VmId};
use crate::model::name::{ImageName, ProfileName, Tag, VmName};
use crate::model::principal::User;
use crate::model::quota::Usage;
use crate::model::state::{FirstBoot, Observed};
use crate::model::units::{Mib, Seconds};
use crate::model::vm::{Desired, Generation, Placement, Vm, VmSpec};
use crate::plan::{address, place};
use crate::store::vms::VmSecrets;
use crate::store::{StoreError, audit, commit, quotas, read_meta, teams, vms, write_meta};

/// Labels on one machine.
pub(super) const MAX_TAGS: usize = 32;
/// Where the address that was given last is kept.
const LAST_ADDRESS: &str = "last-address";
/// Names that are tried for a machine without one.
const NAME_TRIES: u32 = 1000;

/// A request to make a machine, every value parsed. What is absent comes from the profile.
#[derive(Clone, Debug)]
pub struct CreateRequest {
    /// Name; made from the profile's where absent.
    pub name: Option<VmName>,
    /// Profile.
    pub profile: ProfileName,
    /// Image.
    pub image: Option<ImageName>,
    /// Virtual CPUs.
    pub vcpus: Option<u32>,
    /// Memory.
    pub memory: Option<Mib>,
    /// Root disk.
    pub disk: Option<Mib>,
    /// GPUs; empty takes away the profile's.
    pub gpus: Option<Vec<GpuRequest>>,
    /// Limits over those of the profile.
    pub caps: Caps,
    /// Lifetime after each start.
    pub ttl: Option<Seconds>,
    /// A cloud-init document.
    pub user_data: Option<String>,
    /// Labels.
    pub tags: Vec<Tag>,
    /// The team that it counts for; the person's default one where absent.
    pub team: Option<String>,
    /// TPM.
    pub tpm: Option<bool>,
    /// Leave it off.
    pub is_stopped: bool,
}

/// What was accepted.
#[derive(Clone, Debug)]
pub struct AcceptedChange {
    /// The operation.
    pub operation: OpId,
    /// The machine.
    pub vm: VmId,
    /// Its row as it was committed; by now the machine may be gone already, where that was asked for.
    pub row: Box<Vm>,
    /// What the person should know.
    pub notes: Vec<String>,
}

/// What would be made.
#[derive(Clone, Debug)]
pub struct Rehearsal {
    /// The machine as it would be.
    pub vm: Vm,
    /// Its cards.
    pub gpus: Vec<GpuDevice>,
    /// The node that it would stay on.
    pub numa_node: Option<u32>,
    /// What its owner holds, may hold, and would hold more.
    pub quota: Vec<QuotaLine>,
    /// What the person should know.
    pub notes: Vec<String>,
}

impl Manager {
    /// Admits a new machine.
    ///
    /// # Errors
    /// Every refusal says what would have been accepted.
    pub async fn create(&self, permit: &Permit, request: CreateRequest) -> Result<AcceptedChange> {
        Ok(self.create_until(permit, request, End::Commit).await?.0)
    }

    async fn create_until(&self, permit: &Permit, request: CreateRequest, end: End) -> Result<(AcceptedChange, Usage)> {
        let user = permit.user().ok_or_else(|| ManagerError::denied("only a person can have a VM"))?.clone();
        let profile = self.profile_for(&user, &request.profile).await?;
        let image = self.image_for(&profile, request.image.as_ref()).await?;
        let mut tags: Vec<Tag> = Vec::new();
        request.tags.iter().for_each(|tag| {
            if !tags.contains(tag) {
                tags.push(tag.clone())
            }
        });
        if tags.len() > MAX_TAGS {
            return Err(ManagerError::invalid(format!("a VM has at most {MAX_TAGS} tags")));
        }
        let mut notes = Vec::new();
        let spec = self.shape(&user, &profile, image.as_ref(), &request, &mut notes)?;
        let vm_id = VmId::generate();
        let secrets = steps::make_secrets("vm").map_err(|e| ManagerError::unavailable(e.to_string()).because(e))?;
        let desired = if request.is_stopped { Desired::Stopped } else { Desired::Running };
        let team = TeamWish::Named(request.team);
        let wish = Wish { id: vm_id, name: request.name, desired, tags, team, action: "vm.create", end };
        self.admit(permit, &user, spec, wish, &secrets, notes).await
    }

    /// Does everything that making a machine would, and takes it back: what would be made, with which cards.
    ///
    /// # Errors
    /// The same refusals.
    pub async fn dry_run(&self, permit: &Permit, request: CreateRequest) -> Result<Rehearsal> {
        let (AcceptedChange { row, notes, .. }, holds) = self.create_until(permit, request, End::RollBack).await?;
        let quota = self.quota_lines(row.owner, &holds).await?;
        let ids: Vec<&GpuId> = row.placement.gpus.iter().map(Partition::gpu).collect();
        let mut gpus = self.known_devices();
        gpus.retain(|gpu| ids.contains(&&gpu.id));
        Ok(Rehearsal { numa_node: place::numa_node(&row.placement.gpus), vm: *row, gpus, quota, notes })
    }

    /// Admits a copy of a machine that is off.
    ///
    /// # Errors
    /// As [`Self::create`], and where the source is not off.
    pub async fn clone_vm(&self, permit: &Permit, name: VmName) -> Result<AcceptedChange> {
        let user = permit.user().ok_or_else(|| ManagerError::denied("only a person can have a VM"))?.clone();
        let source = self.permitted(permit).await?;
        let observed = self.observe_for_change(source.id).await;
        if let Observed::Unknown(why) = &observed {
            return Err(ManagerError::unavailable(format!("the state of VM {} is not known: {why}", source.name)));
        }
        if source.desired != Desired::Stopped || observed.is_active() {
            return Err(ManagerError::conflict(format!("VM {} is not stopped", source.name))
                .hint(format!("gvm stop {0} && gvm clone {0} {name}", source.name)));
        }
        let spec = VmSpec { clone_of: Some(source.id), ..source.spec.clone() };
        let secrets = steps::make_secrets("vm").map_err(|e| ManagerError::unavailable(e.to_string()).because(e))?;
        let wish = Wish {
            id: VmId::generate(),
            name: Some(name),
            desired: Desired::Running,
            tags: source.tags,
            team: TeamWish::As(source.team),
            action: "vm.clone",
            end: End::Commit,
        };
        Ok(self.admit(permit, &user, spec, wish, &secrets, Vec::new()).await?.0)
    }

    /// The one transaction: quota, capacity, choices, intent, record.
    async fn admit(
        &self,
        permit: &Permit,
        user: &User,
        spec: VmSpec,
        wish: Wish,
        secrets: &VmSecrets,
        notes: Vec<String>,
    ) -> Result<(AcceptedChange, Usage)> {
        // Looked at before the transaction: nothing of the host is asked inside of one.
        let seen = self.look_for(&spec.gpus).await?;
        let mut tx = self.store.write().await?;
        let running = wish.desired == Desired::Running;
        let team = match &wish.team {
            TeamWish::As(Some(team)) if teams::has_member(&mut tx, *team, user.id).await? => Some(*team),
            TeamWish::As(_) => self.team_for(&mut tx, user.id, None).await?,
            TeamWish::Named(named) => self.team_for(&mut tx, user.id, named.as_deref()).await?,
        };
        let ask = Usage::asked((&spec).into(), wish.desired);
        let before = (None, &Usage::default());
        let growth = Growth { asker: Some(user), vm: wish.id, owner: user.id, before, after: (team, &ask) };
        self.check_quota(&mut tx, growth).await?;
        self.check_capacity(&mut tx, ask.memory()).await?;
        let taken = vms::addresses(&mut tx).await?;
        let subnet = self.config.network.subnet;
        let no_address = || {
            ManagerError::no_capacity(format!("all addresses of the members' network {subnet} are in use"))
                .hint("delete VMs, or ask the administrator for a larger network.subnet")
        };
        let last = read_meta(&mut tx, LAST_ADDRESS).await?;
        let address = address::pick_address(subnet, &taken.0, last).ok_or_else(no_address)?;
        write_meta(&mut tx, LAST_ADDRESS, &address).await?;
        let chosen = match running {
            true => self.choose_gpus(&mut tx, seen.as_deref(), Some(user), &spec).await?,
            false => self.could_have_gpus(&mut tx, seen.as_deref(), Some(user), &spec).await?,
        };
        let placement = Placement {
            host: self.host().id,
            mac: address::pick_mac(wish.id, &taken.1),
            address,
            gpus: chosen.partitions.clone(),
            mmio64: chosen.mmio64,
            huge_page: None,
        };
        let name = match wish.name {
            Some(name) => name,
            None => free_name(self, user, &spec.profile).await?,
        };
        let vm = Vm {
            id: wish.id,
            name,
            owner: user.id,
            team,
            first_boot: if spec.clone_of.is_some() { FirstBoot::Waiting } else { FirstBoot::default() },
            spec,
            desired: wish.desired,
            generation: Generation(1),
            restart_requested: None,
            is_force_stop: false,
            stop_asked_at: None,
            started_at: None,
            started_boot: None,
            placement,
            tags: wish.tags,
            trouble: None,
            attempts: 0,
            next_try: None,
            created_at: Timestamp::now(),
            undelete_until: None,
        };
        vms::insert(&mut tx, &vm, secrets).await.map_err(|e| match e {
            StoreError::Taken("the name") => ManagerError::conflict(format!("you already have a VM named {}", vm.name))
                .hint("choose another name, or delete that one first"),
            other => other.into(),
        })?;
        gpus::write_leases(&mut tx, vm.id, vm.generation, &chosen).await?;
        // Only now is it known how much memory its cards have.
        let holds = quotas::usage_of_vm(&mut tx, &vm).await?;
        if !chosen.partitions.is_empty() {
            self.check_quota(&mut tx, Growth { after: (team, &holds), ..growth }).await?;
        }
        let row = Self::pending(permit, wish.action, format!("{}.{}", vm.name, user.name), Some(vm.id));
        audit::begin(&mut tx, &row, Some(vm.generation)).await?;
        if wish.end == End::Commit {
            commit(tx).await?;
            self.watch.begin(&vm, format!("{} as {}", vm.spec.profile, vm.name));
            self.look_at(vm.id);
        }
        Ok((AcceptedChange { operation: row.id, vm: vm.id, row: Box::new(vm), notes }, holds))
    }

    /// True where the guest's SSH server was seen to answer.
    pub fn is_reachable(&self, vm: &Vm) -> bool {
        boot::is_reachable(self, vm.id, vm.started_at)
    }
}

/// How an admission ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Commit,
    RollBack,
}

struct Wish {
    end: End,
    id: VmId,
    name: Option<VmName>,
    desired: Desired,
    tags: Vec<Tag>,
    team: TeamWish,
    action: &'static str,
}

/// The team that a machine is to count for.
enum TeamWish {
    /// The one that is named, else the default one.
    Named(Option<String>),
    /// That of the machine that it is a copy of, where one is in it.
    As(Option<TeamId>),
}

/// `PROFILE`, `PROFILE-2`, `PROFILE-3`, ...
async fn free_name(manager: &Manager, user: &User, profile: &ProfileName) -> Result<VmName> {
    for number in 1..=NAME_TRIES {
        let stem: String = profile.as_str().chars().take(58).collect();
        let text = if number == 1 { stem } else { format!("{stem}-{number}") };
        let Ok(name) = text.parse::<VmName>() else { continue };
        if manager.store.vm_by_name(user.id, &name, false).await?.is_none() {
            return Ok(name);
        }
    }
    Err(ManagerError { kind: Kind::Conflict, ..ManagerError::invalid("no free name found; give one") })
}
