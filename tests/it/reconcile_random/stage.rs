//! The world that stories play in, and its promises.

use std::collections::{HashMap, HashSet};

use gvm::auth::policy;
use gvm::gpu::GpuBackend;
use gvm::hypervisor::Hypervisor;
use gvm::hypervisor::fake::Guest;
use gvm::image::disk::{self, DiskTools};
use gvm::image::layout::Layout;
use gvm::manager::change::ChangeRequest;
use gvm::manager::create::CreateRequest;
use gvm::manager::power::Wanted;
use gvm::manager::reconciler::{Looked, look};
use gvm::manager::{Kind, ManagerError};
use gvm::model::caps::CapsChange;
use gvm::model::event::Outcome;
use gvm::model::gpu::GpuLease;
use gvm::model::id::VmId;
use gvm::model::quota::QuotaKind;
use gvm::model::quota::month::Month;
use gvm::model::record::check::Heads;
use gvm::model::state::{Observed, Power, WhyPaused};
use gvm::model::units::{Mib, Seconds};
use gvm::model::vm::{Desired, Vm};
use gvm::plan::vm::Step;
use gvm::store::quotas::Holder;
use gvm::store::vms::VmFilter;
use gvm::store::{commit, vms};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::actions::{Action, requests};
use crate::support::cards::{at, host};
use crate::support::world::{Life, World, turns_of};

/// Cards of the host: fewer than machines.
const CARDS: [&str; 3] = ["0000:41:00.0", "0000:81:00.0", MEDIATED];

/// One that carries mediated devices, and goes to nobody as a whole: two of the size that is asked for.
const MEDIATED: &str = "0000:c1:00.0";

/// What the one member may hold: reached by two or three machines.
const QUOTA: [(QuotaKind, u64); 4] =
    [(QuotaKind::Vms, 4), (QuotaKind::Vcpus, 4), (QuotaKind::Memory, 384), (QuotaKind::Disk, 6 << 10)];

/// Looks that one machine may need to come to rest.
const PATIENCE: usize = 200;

pub struct Stage {
    world: World,
    life: Option<Life>,
    /// In the order of their making.
    made: Vec<VmId>,
    /// What may be wanted of each by now: its owner's last accepted wish, and what guest or clock may have made of it.
    expected: HashMap<VmId, HashSet<Desired>>,
    /// Those that ever had a lifetime: the clock may stop them.
    mortal: HashSet<VmId>,
    is_silent: bool,
}

impl Stage {
    pub async fn new() -> Self {
        let mut world = World::new_in(std::path::Path::new("/dev/shm"));
        world.gpus = host(&CARDS);
        world.gpus.mediate(at(MEDIATED), &["A100D-40C", "A100D-20C"]);
        world.config.people.quota = QUOTA.into_iter().collect();
        world.config.manager.undelete_seconds = 20;
        world.config.manager.stop_grace_seconds = 15;
        let life = world.live().await;
        Self {
            world,
            life: Some(life),
            made: Vec::new(),
            expected: HashMap::new(),
            mortal: HashSet::new(),
            is_silent: false,
        }
    }

    fn life(&self) -> &Life {
        self.life.as_ref().unwrap()
    }

    async fn live_again(&mut self) {
        self.life.take().unwrap().crash().await;
        self.life = Some(self.world.live().await);
    }

    pub async fn act(&mut self, action: &Action) {
        if let Action::Create { has_gpu, is_stopped } = *action {
            return self.create(has_gpu, is_stopped).await;
        }
        if self.made.is_empty() {
            return;
        }
        let made = self.made.clone();
        let id = |vm: usize| made[vm % made.len()];
        let fake = self.world.fake.clone();
        match *action {
            Action::Create { .. } => {}
            Action::Wish(vm, wanted) => self.wish(id(vm), wanted).await,
            Action::Clone(vm) => self.duplicate(id(vm)).await,
            Action::Resize { vm, vcpus, memory, disk } => {
                let (memory, disk) = (Some(Mib(memory)), Some(Mib(disk)));
                self.change(id(vm), ChangeRequest { vcpus: Some(vcpus), memory, disk, ..ChangeRequest::default() })
                    .await;
            }
            Action::Limit { vm, percent } => {
                let caps = CapsChange { cpu_percent: Some(Some(percent)), ..CapsChange::default() };
                self.change(id(vm), ChangeRequest { caps, ..ChangeRequest::default() }).await;
            }
            Action::Gpus { vm, count } => {
                let gpus = Some(requests(vm + usize::from(self.made.len().is_multiple_of(2)), count));
                self.change(id(vm), ChangeRequest { gpus, ..ChangeRequest::default() }).await;
            }
            Action::Live { vm, seconds } => {
                let ttl = Some((seconds > 0).then_some(Seconds(seconds)));
                self.mortal.insert(id(vm));
                self.change(id(vm), ChangeRequest { ttl, ..ChangeRequest::default() }).await;
            }
            Action::Look { vm, times } => {
                for _ in 0..times {
                    if !matches!(self.look(id(vm)).await, Looked::Did(_)) {
                        break;
                    }
                }
            }
            Action::CrashInside { vm, turns } => {
                turns_of(look(&self.life().manager, id(vm)), turns).await;
                self.live_again().await;
            }
            Action::Crash => self.live_again().await,
            Action::TimePasses { seconds } => {
                for vm in self.made.clone() {
                    self.pass_time(vm, SignedDuration::from_secs(seconds)).await;
                }
            }
            Action::Guest(vm, guest) => fake.set_guest(id(vm), guest),
            Action::PowerOffInside(vm) if self.is_on(id(vm)) => {
                fake.power_off_inside(id(vm));
                self.may_stop(id(vm));
            }
            Action::FinishShutdown(vm) if self.is_on(id(vm)) => {
                fake.finish_shutdown(id(vm));
                self.may_stop(id(vm));
            }
            Action::GuestCrashes(vm) if self.is_on(id(vm)) => fake.crash(id(vm)),
            Action::StorageFails(vm) if self.is_on(id(vm)) => fake.fail_storage(id(vm)),
            Action::DestroyedBehind(vm) => fake.destroy_behind(id(vm)),
            Action::UndefinedBehind(vm) => fake.undefine_behind(id(vm)),
            Action::StartedBehind(vm) => fake.start_behind(id(vm)),
            Action::Fails { op, kind, times } => fake.fail_next(op, kind, times),
            Action::LosesReply { op } => fake.lose_reply(op, 1),
            Action::Silence(is_silent) => {
                self.is_silent = is_silent;
                fake.set_unknown(is_silent);
            }
            _ => {}
        }
    }

    async fn look(&self, vm: VmId) -> Looked {
        let looked = look(&self.life().manager, vm).await.unwrap();
        if let Looked::Did(Step::ApplyDisk(size)) = looked {
            // What QEMU would do; the fake has no files.
            let path = Layout::new(self.world.state_dir()).vm(vm).root();
            disk::ensure_size(&DiskTools::default(), &path, size).await.unwrap();
        }
        looked
    }

    async fn wish(&mut self, vm: VmId, wanted: Wanted) {
        let done = self.life().power(vm, wanted).await;
        if done.is_ok() {
            let desired = match wanted {
                Wanted::Start | Wanted::Restart | Wanted::ForceRestart | Wanted::Resume => Desired::Running,
                Wanted::Pause => Desired::Paused,
                Wanted::Stop | Wanted::ForceStop | Wanted::Delete | Wanted::Undelete => Desired::Stopped,
                Wanted::DeleteNow => Desired::Absent,
            };
            let mut expected = HashSet::from([desired]);
            if wanted == Wanted::Delete {
                // Time may pass.
                expected.insert(Desired::Absent);
            }
            let before = self.expected.insert(vm, expected);
            if self.is_silent && before.is_some_and(|before| before.contains(&Desired::Stopped)) {
                // Nobody can tell by then which came first, the guest's own end or the wish.
                self.may_stop(vm);
            }
        }
        refused_well(done);
    }

    /// The guest has turned it off: that is its owner's wish as well.
    fn may_stop(&mut self, vm: VmId) {
        self.expected.entry(vm).or_default().insert(Desired::Stopped);
    }

    fn is_on(&self, vm: VmId) -> bool {
        self.world.fake.peek(vm).is_active()
    }

    async fn create(&mut self, has_gpu: bool, is_stopped: bool) {
        let name = format!("vm-{}", self.made.len());
        let gpus = has_gpu.then(|| requests(self.made.len(), 1));
        let edit = |request: &mut CreateRequest| (request.is_stopped, request.gpus) = (is_stopped, gpus);
        let made = self.life().create_as(&name, edit).await;
        let Ok(vm) = made else { return refused_well(made.map(|_| ())) };
        self.made.push(vm);
        self.expected.insert(vm, HashSet::from([if is_stopped { Desired::Stopped } else { Desired::Running }]));
    }

    async fn duplicate(&mut self, source: VmId) {
        let name = format!("vm-{}", self.made.len()).parse().unwrap();
        let permit = self
            .life()
            .manager
            .permit_vm(&self.life().member, policy::Action::VmChange, &source.to_string(), false)
            .await;
        let made = match permit {
            Ok(permit) => self.life().manager.clone_vm(&permit, name).await,
            Err(e) => Err(e),
        };
        match made {
            Ok(made) => {
                self.made.push(made.vm);
                self.expected.insert(made.vm, HashSet::from([Desired::Running]));
                if self.mortal.contains(&source) {
                    self.mortal.insert(made.vm);
                }
            }
            Err(e) => refused_well(Err(e)),
        }
    }

    async fn change(&self, vm: VmId, request: ChangeRequest) {
        let life = self.life();
        let permit = life.manager.permit_vm(&life.member, policy::Action::VmChange, &vm.to_string(), false).await;
        refused_well(match permit {
            Ok(permit) => life.manager.change(&permit, request).await.map(|_| ()),
            Err(e) => Err(e),
        });
    }

    /// Everything that the row knows of was so much earlier.
    async fn pass_time(&self, vm: VmId, span: SignedDuration) {
        let mut tx = self.life().store.write().await.unwrap();
        if let Some(mut row) = vms::read(&mut tx, vm).await.unwrap() {
            for at in [&mut row.next_try, &mut row.stop_asked_at, &mut row.started_at, &mut row.undelete_until] {
                *at = at.map(|at| at.checked_sub(span).unwrap());
            }
            vms::update(&mut tx, &row).await.unwrap();
        }
        commit(tx).await.unwrap();
    }

    /// The promises that hold at any moment.
    pub async fn check(&self) {
        let store = &self.life().store;
        let rows = store.vms(VmFilter { owner: None, team: None, with_deleted: true, limit: 1000 }).await.unwrap();
        let ids: HashSet<VmId> = rows.iter().map(|row| row.id).collect();
        let leases = store.leases().await.unwrap();
        assert!(leases.iter().all(|lease| ids.contains(&lease.vm)), "a lease without a machine: {leases:?}");
        let keys: HashSet<String> = leases.iter().map(|lease| lease.partition.key()).collect();
        assert_eq!(keys.len(), leases.len(), "a partition is leased twice: {leases:?}");
        let distinct = |values: Vec<String>| values.len() == values.into_iter().collect::<HashSet<_>>().len();
        assert!(distinct(rows.iter().map(|row| row.placement.address.to_string()).collect()), "an address twice");
        assert!(distinct(rows.iter().map(|row| row.placement.mac.to_string()).collect()), "a MAC twice");
        self.check_usage().await;
        for (id, observed) in self.world.fake.peek_all() {
            assert!(ids.contains(&id), "domain {id} has no row");
            if let Observed::Defined(domain) = observed {
                let held: HashSet<String> = leases.iter().filter(|lease| lease.vm == id).flat_map(functions).collect();
                let has: HashSet<String> = domain.hostdevs.iter().cloned().collect();
                assert!(has.is_subset(&held), "{id} has {has:?} and holds leases of {held:?}");
            }
        }
        let leased: HashSet<_> = leases.iter().filter_map(|lease| lease.partition.vgpu()?.0.uuid).collect();
        let left = self.mediated().await.into_iter().find(|uuid| !leased.contains(uuid));
        assert_eq!(left, None, "a mediated device without a lease");
        for folder in std::fs::read_dir(self.world.state_dir().join("vms")).into_iter().flatten().flatten() {
            let id: VmId = folder.file_name().to_str().unwrap().parse().unwrap();
            assert!(ids.contains(&id), "folder {id} has no row");
        }
    }

    async fn check_usage(&self) {
        let owner = self.life().member.user().unwrap().id;
        let now = Timestamp::now();
        let month = (Month::of(now, &TimeZone::UTC), now);
        let used = self.life().store.usage(Holder::User(owner), month).await.unwrap();
        assert!(QUOTA.iter().all(|(kind, limit)| used.get(*kind) <= *limit), "over the quota: {used:?}");
    }

    /// The faults end: everything becomes as it is wanted; then everything is deleted and nothing is left.
    pub async fn end(mut self) {
        self.world.fake.heal();
        self.is_silent = false;
        self.live_again().await;
        for vm in self.made.clone() {
            self.world.fake.set_guest(vm, Guest::Obedient);
            self.settle(vm).await;
            self.check_settled(vm).await;
        }
        self.check().await;
        self.no_open_record().await;
        for vm in self.made.clone() {
            if self.row(vm).await.is_some() {
                self.life().power(vm, Wanted::DeleteNow).await.unwrap();
                self.settle(vm).await;
            }
        }
        self.check().await;
        self.no_open_record().await;
        assert!(self.life().store.vm_ids().await.unwrap().is_empty(), "rows are left");
        assert!(self.life().store.leases().await.unwrap().is_empty(), "leases are left");
        assert!(self.mediated().await.is_empty(), "mediated devices are left");
        assert!(self.world.fake.observe_all().await.unwrap().is_empty(), "domains are left");
        assert!(self.world.fake.host_entries("gvm").is_empty(), "addresses are left");
        let folders = std::fs::read_dir(self.world.state_dir().join("vms")).into_iter().flatten();
        assert_eq!(folders.count(), 0, "folders are left");
    }

    /// Names of the mediated devices that are made.
    async fn mediated(&self) -> Vec<Uuid> {
        let states = self.world.gpus.functions(&[at(MEDIATED)]).await.unwrap();
        states.iter().flat_map(|state| &state.vgpus).filter_map(|made| made.uuid).collect()
    }

    async fn row(&self, vm: VmId) -> Option<Vm> {
        self.life().store.vm(vm).await.unwrap()
    }

    /// Looks until the machine rests; instead of waiting, time is moved. What was given up gets its wish again.
    async fn settle(&mut self, vm: VmId) {
        let mut did = Vec::new();
        for _ in 0..PATIENCE {
            match self.look(vm).await {
                Looked::Did(step) => did.push(step.name()),
                Looked::Later(at) if self.is_window(vm, at).await => return,
                Looked::Later(at) => {
                    did.push("wait");
                    let wait = at.duration_since(Timestamp::now()).max(SignedDuration::from_millis(1));
                    self.pass_time(vm, wait).await;
                }
                Looked::AtRest => {
                    let Some(row) = self.row(vm).await else { return };
                    if row.trouble.is_none() {
                        return;
                    }
                    did.push("wish again");
                    let is_without_source = row.trouble.is_some_and(|trouble| trouble.step == "ensure-disk");
                    self.wish(
                        vm,
                        match row.desired {
                            _ if is_without_source => Wanted::DeleteNow,
                            Desired::Running | Desired::Paused => Wanted::Start,
                            Desired::Stopped => Wanted::Stop,
                            Desired::Absent => Wanted::DeleteNow,
                        },
                    )
                    .await;
                }
            }
        }
        panic!("{vm} does not come to rest: {:?}\n{did:?}", self.row(vm).await);
    }

    /// True for the end of a lifetime or of an undelete window: nothing has to come before.
    async fn is_window(&self, vm: VmId, at: Timestamp) -> bool {
        let row = self.row(vm).await.unwrap();
        row.trouble.is_none() && (row.expires_at() == Some(at) || row.undelete_until == Some(at))
    }

    async fn check_settled(&self, vm: VmId) {
        let observed = self.world.fake.observe(vm).await;
        let Some(row) = self.row(vm).await else {
            assert_eq!(observed, Observed::Missing);
            assert!(self.may_be(vm, Desired::Absent), "{vm} is gone, though nobody wanted that");
            return;
        };
        assert!(self.may_be(vm, row.desired), "it should be {:?}, but is {row:?}", self.expected[&vm]);
        let power = observed.power();
        let is_as_wanted = match row.desired {
            Desired::Running => power == Some(&Power::Running),
            Desired::Paused => power == Some(&Power::Paused(WhyPaused::Asked)),
            Desired::Stopped => !observed.is_active(),
            Desired::Absent => false,
        };
        assert!(is_as_wanted, "{row:?} is {observed:?}");
        let is_done = row.restart_requested.is_none() && !row.is_force_stop && row.stop_asked_at.is_none();
        assert!(is_done, "something is left of a stop: {row:?}");
        assert_eq!(row.started_at.is_some(), observed.is_active(), "{row:?}");
        if let Observed::Defined(domain) = &observed
            && observed.is_active()
        {
            assert_eq!(domain.caps, row.spec.caps);
            let leases = self.life().store.leases_of(vm).await.unwrap();
            let held: HashSet<String> = leases.iter().flat_map(functions).collect();
            assert_eq!(domain.hostdevs.iter().cloned().collect::<HashSet<_>>(), held, "{row:?}");
            assert_eq!(leases.is_empty(), row.spec.gpus.is_empty(), "{row:?}");
        }
    }

    fn may_be(&self, vm: VmId, desired: Desired) -> bool {
        self.expected[&vm].contains(&desired) || desired == Desired::Stopped && self.mortal.contains(&vm)
    }

    async fn no_open_record(&self) {
        let permit = self.life().permit(policy::Action::AuditSee);
        let record = self.life().manager.operations(&permit, 10_000).await.unwrap();
        let open: Vec<_> = record.iter().filter(|row| row.outcome == Outcome::Pending).collect();
        assert!(open.is_empty(), "records without an end: {open:?}");
        self.life().store.verify_record(&Heads::default()).await.unwrap().unwrap();
    }
}

/// A wish may be refused, but for a reason that can be told.
fn refused_well(result: Result<(), ManagerError>) {
    if let Err(e) = result {
        assert_ne!(e.kind, Kind::Internal, "{e}");
    }
}

/// All devices of a lease.
fn functions(lease: &GpuLease) -> Vec<String> {
    lease.partition.devices().iter().map(ToString::to_string).collect()
}
