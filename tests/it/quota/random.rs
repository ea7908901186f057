//! Random stories of several people and teams never exceed a limit, and usage is what the rows say.

use std::collections::HashSet;

use gvm::manager::reconciler::{Looked, look};
use gvm::model::gpu::LeaseState;
use gvm::model::id::VmId;
use gvm::model::units::Mib;
use gvm::store::gpu_time;
use gvm::store::vms::VmFilter;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::support::cards::{at, host};
use crate::support::world::World;

#[derive(Clone, Debug)]
enum Act {
    Create { by: usize, team: Option<usize>, gpu: usize, is_stopped: bool },
    Power { vm: usize, wanted: Wanted },
    Resize { vm: usize, memory: u64, disk: u64 },
    Gpus { vm: usize, gpu: usize },
    Move { vm: usize, team: usize },
    Clone { vm: usize },
    Look { vm: usize },
    Limit { by: usize, kind: usize, limit: Option<u64> },
    Crash,
}

const GPUS: [&str; 4] = ["none", "vgpu:A100D-20C", "vgpu:A100D-40C", "a100"];
const TEAMS: [&str; 2] = ["hpc", "bio"];
const PEOPLE: usize = 3;

/// Limits that stories reach.
const OF_TEAM: [(QuotaKind, u64); 5] = [
    (QuotaKind::Vms, 5),
    (QuotaKind::RunningVms, 3),
    (QuotaKind::Memory, 320),
    (QuotaKind::Gpus, 2),
    (QuotaKind::GpuMemory, 100 << 10),
];
const OF_MEMBER: [(QuotaKind, u64); 6] = [
    (QuotaKind::Vms, 4),
    (QuotaKind::Vcpus, 2),
    (QuotaKind::Disk, 600),
    (QuotaKind::Gpus, 2),
    (QuotaKind::GpuSlices, 1),
    (QuotaKind::Memory, 200),
];

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let wanted = prop::sample::select(vec![
        Wanted::Start,
        Wanted::Start,
        Wanted::Stop,
        Wanted::ForceStop,
        Wanted::Restart,
        Wanted::Pause,
        Wanted::Resume,
        Wanted::Delete,
        Wanted::DeleteNow,
        Wanted::Undelete,
    ]);
    let vm = 0..8usize;
    let one = prop_oneof![
        5 => (0..PEOPLE, prop::option::of(0..2usize), 0..GPUS.len(), any::<bool>())
            .prop_map(|(by, team, gpu, is_stopped)| Act::Create { by, team, gpu, is_stopped }),
        6 => (vm.clone(), wanted).prop_map(|(vm, wanted)| Act::Power { vm, wanted }),
        2 => (vm.clone(), 1..4u64, 1..4u64).prop_map(|(vm, m, d)| Act::Resize { vm, memory: m * 64, disk: d * 100 }),
        2 => (vm.clone(), 0..GPUS.len()).prop_map(|(vm, gpu)| Act::Gpus { vm, gpu }),
        2 => (vm.clone(), 0..2usize).prop_map(|(vm, team)| Act::Move { vm, team }),
        1 => vm.clone().prop_map(|vm| Act::Clone { vm }),
        6 => vm.prop_map(|vm| Act::Look { vm }),
        1 => (0..PEOPLE, 0..QuotaKind::ALL.len(), prop::option::of(0..3u64))
            .prop_map(|(by, kind, limit)| Act::Limit { by, kind, limit }),
        1 => Just(Act::Crash),
    ];
    prop::collection::vec(one, 10..60)
}

struct Story {
    world: World,
    life: Option<Life>,
    people: Vec<Principal>,
    teams: Vec<TeamId>,
    made: Vec<VmId>,
    admitted: usize,
    refused: usize,
}

impl Story {
    async fn new() -> Self {
        let mut world = World::new_in(std::path::Path::new("/dev/shm"));
        world.gpus = host(&["0000:41:00.0", "0000:81:00.0", "0000:c1:00.0"]);
        world.gpus.mediate(at("0000:c1:00.0"), &["A100D-40C", "A100D-20C"]);
        let life = world.live().await;
        let mut teams = Vec::new();
        for name in TEAMS {
            teams.push(team(&life.store, name, &OF_TEAM, &OF_MEMBER).await);
        }
        let people = vec![
            person(&life.store, "eva", &[teams[0], teams[1]]).await,
            person(&life.store, "adam", &[teams[0]]).await,
            person(&life.store, "zoe", &[teams[1], teams[0]]).await,
        ];
        Self { world, life: Some(life), people, teams, made: Vec::new(), admitted: 0, refused: 0 }
    }

    fn life(&self) -> &Life {
        self.life.as_ref().unwrap()
    }

    async fn owner(&self, vm: VmId) -> Option<&Principal> {
        let owner = self.life().store.vm(vm).await.unwrap()?.owner;
        self.people.iter().find(|person| id(person) == owner)
    }

    async fn act(&mut self, act: &Act) {
        let pick = |vm: usize| self.made.get(vm % self.made.len().max(1)).copied();
        let gpus = |gpu: usize| GpuRequest::parse_list(&[GPUS[gpu]]).unwrap();
        let manager = self.life().manager.clone();
        let done = match act {
            Act::Create { by, team, gpu, is_stopped } => {
                let name = format!("vm-{}", self.made.len());
                let team = team.map(|team| TEAMS[team].to_owned());
                let request = CreateRequest { team, gpus: Some(gpus(*gpu)), is_stopped: *is_stopped, ..small(&name) };
                let made = create(&manager, &self.people[*by], request).await;
                self.made.extend(made.as_ref().ok());
                made.map(|_| ())
            }
            Act::Crash => {
                self.life.take().unwrap().crash().await;
                self.life = Some(self.world.live().await);
                return;
            }
            Act::Limit { by, kind, limit: new } => {
                let kind = QuotaKind::ALL[*kind];
                let limits: Vec<_> = new.iter().map(|limit| (kind, *limit)).collect();
                return limit(&self.life().store, id(&self.people[*by]), &limits).await;
            }
            Act::Power { vm, .. }
            | Act::Resize { vm, .. }
            | Act::Gpus { vm, .. }
            | Act::Move { vm, .. }
            | Act::Clone { vm }
            | Act::Look { vm } => {
                let Some(vm) = pick(*vm) else { return };
                let Some(by) = self.owner(vm).await.cloned() else { return };
                match act {
                    Act::Power { wanted, .. } => power(&manager, &by, vm, *wanted).await,
                    Act::Resize { memory, disk, .. } => {
                        let (memory, disk) = (Some(Mib(*memory)), Some(Mib(*disk)));
                        change(&manager, &by, vm, ChangeRequest { memory, disk, ..nothing() }).await
                    }
                    Act::Gpus { gpu, .. } => {
                        change(&manager, &by, vm, ChangeRequest { gpus: Some(gpus(*gpu)), ..nothing() }).await
                    }
                    Act::Move { team, .. } => {
                        change(&manager, &by, vm, ChangeRequest { team: Some(TEAMS[*team].to_owned()), ..nothing() })
                            .await
                    }
                    Act::Clone { .. } => {
                        let name = format!("vm-{}", self.made.len()).parse().unwrap();
                        let permit = manager.permit_vm(&by, Action::VmChange, &vm.to_string(), false).await;
                        match permit {
                            Ok(permit) => {
                                let made = manager.clone_vm(&permit, name).await;
                                self.made.extend(made.as_ref().ok().map(|made| made.vm));
                                made.map(|_| ())
                            }
                            Err(e) => Err(e),
                        }
                    }
                    _ => {
                        for _ in 0..8 {
                            if !matches!(look(&manager, vm).await.unwrap(), Looked::Did(_)) {
                                break;
                            }
                        }
                        return;
                    }
                }
            }
        };
        match done {
            Ok(()) => self.admitted += 1,
            Err(e) => {
                assert_ne!(e.kind, Kind::Internal, "{e}");
                self.refused += usize::from(e.kind == Kind::OverQuota);
            }
        }
    }

    /// What somebody holds, by the rows alone.
    async fn counted(&self, is_theirs: impl Fn(&gvm::model::vm::Vm) -> bool) -> Usage {
        let store = &self.life().store;
        let mut usage = Usage::default();
        let leases = store.leases().await.unwrap();
        let rows = store.vms(VmFilter { owner: None, team: None, with_deleted: true, limit: 1000 }).await.unwrap();
        for vm in rows.iter().filter(|vm| is_theirs(vm)) {
            usage = usage.plus(&Usage::of_machine((&vm.spec).into(), vm.desired));
            let held: HashSet<_> = vm.placement.gpus.iter().filter(|_| vm.desired.is_up()).collect();
            for lease in leases.iter().filter(|lease| lease.vm == vm.id && held.contains(&lease.partition)) {
                usage.add_partition(lease.partition.vgpu().is_some(), lease.share.memory);
            }
        }
        usage
    }

    /// Nobody grew beyond a limit; who was beyond one that came later did not grow.
    async fn check(&self, before: &[(Holder, Usage)]) {
        for (holder, was) in before {
            let is = used(&self.life().store, *holder).await;
            let counted = match holder {
                Holder::User(user) => self.counted(|vm| vm.owner == *user).await,
                Holder::Team(team) => self.counted(|vm| vm.team == Some(*team)).await,
            };
            let quota = self.limits(*holder).await;
            for kind in QuotaKind::ALL.iter().filter(|kind| **kind != QuotaKind::GpuHours) {
                assert_eq!(is.get(*kind), counted.get(*kind), "{kind} of {holder:?}");
                let most = quota.amount(*kind).unwrap_or(u64::MAX).max(was.get(*kind));
                assert!(is.get(*kind) <= most, "{kind} of {holder:?}: {} with {quota:?}", is.get(*kind));
            }
        }
    }

    /// A time is open exactly while a lease is there that is not being given back.
    async fn check_times(&self) {
        let store = &self.life().store;
        let leases = store.leases().await.unwrap();
        let ever = Month { begin: Timestamp::MIN, end: Timestamp::MAX };
        for person in &self.people {
            let mut tx = store.write().await.unwrap();
            let times = gpu_time::held(&mut tx, Holder::User(id(person)), ever).await.unwrap();
            drop(tx);
            let mut held = 0;
            for lease in leases.iter().filter(|lease| lease.state != LeaseState::Sanitising) {
                let owner = store.vm(lease.vm).await.unwrap().unwrap().owner;
                held += usize::from(owner == id(person));
            }
            assert_eq!(times.iter().filter(|time| time.ended_at.is_none()).count(), held);
            assert!(times.iter().all(|time| time.ended_at.is_none_or(|end| end >= time.began_at)));
        }
    }

    async fn limits(&self, holder: Holder) -> Quota {
        match holder {
            Holder::Team(team) => self.life().store.limits_of_team(team).await.unwrap().own,
            Holder::User(user) => {
                let limits = self.life().store.limits_of_user(user).await.unwrap();
                let mut quota = limits.member.unwrap().1;
                limits.own.iter().for_each(|(kind, limit)| quota.set(kind, Some(limit)));
                quota
            }
        }
    }

    async fn holders(&self) -> Vec<(Holder, Usage)> {
        let mut all = Vec::new();
        let people = self.people.iter().map(|person| Holder::User(id(person)));
        for holder in people.chain(self.teams.iter().map(|team| Holder::Team(*team))) {
            all.push((holder, used(&self.life().store, holder).await));
        }
        all
    }
}

#[test]
fn random_stories_never_exceed_a_limit() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let cases = std::env::var("GVM_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(40);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let (admitted, refused) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let outcome = runner.run(&acts(), |acts| {
        runtime.block_on(async {
            let mut story = Story::new().await;
            for act in &acts {
                let before = story.holders().await;
                story.act(act).await;
                story.check(&before).await;
                story.check_times().await;
            }
            admitted.set(admitted.get() + story.admitted);
            refused.set(refused.get() + story.refused);
        });
        Ok(())
    });
    outcome.unwrap();
    println!("{cases} stories: {} accepted, {} over quota", admitted.get(), refused.get());
    assert!(admitted.get() > 0 && refused.get() > 0);
}
