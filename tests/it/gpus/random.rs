//! Random stories of divided cards: machines that come and go, crashes, restarts of the host, strangers who change the
//! cards beside gvm, administrators who divide them otherwise, and drivers that say no.
//!
//! Whatever happens, nothing is leased twice, what runs has its vGPU, and nothing of a stranger's is gone. When the faults
//! end, what is offered can be had, and nothing of gvm's own is left once no machine wants it.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use gvm::manager::gpus::LayoutRequest;
use gvm::manager::reconciler::Looked;
use gvm::model::card::shape::{ShapeJob, parse_instance};
use gvm::model::card::vgpu::{VgpuJob, VgpuSite};
use gvm::model::gpu::mig::fixtures::a100_80;
use gvm::model::gpu::{Partition, VgpuTypeName};
use gvm::model::state::Observed;
use gvm::model::vm::Desired;
use gvm::store::{commit, vms};
use jiff::SignedDuration;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::support::world::turns_of;

/// Stories per run; `PROPTEST_CASES` asks for more.
const CASES: u32 = 10;

/// Looks that one machine may need to come to rest.
const LOOKS: usize = 120;

/// Carries mediated devices itself.
const MEDIATED: &str = "0000:c1:00.0";

const TYPES: [&str; 6] = ["A100D-1-10C", "A100D-2-20C", "A100D-3-40C", "A100D-4-40C", "A100D-7-80C", "A100D-20C"];

const WISHES: [&[&str]; 8] = [
    &["mig:1g.10gb"],
    &["mig:1g.10gb"],
    &["mig:2g.20gb"],
    &["mig:3g.40gb"],
    &["mig:1g.10gb", "mig:2g.20gb"],
    &["vgpu:A100D-20C"],
    &["vgpu:A100D-20C", "vgpu:A100D-20C"],
    &["9GiB"],
];

const INSTANCES: [&str; 5] = ["1g.10gb@0:1", "1g.10gb@1:1", "1g.10gb@6:1", "2g.20gb@2:2", "3g.40gb@4:4"];

const FIXED: &str = "version: v1
mig-configs:
  fixed:
    - {devices: [0], mig-enabled: true, mig-devices: {3g.40gb: 1, 1g.10gb: 3}}
";

#[derive(Clone, Copy, Debug)]
enum Act {
    Create(usize),
    Wish(usize, Wanted),
    Look(usize, usize),
    CrashInside(usize, usize),
    TidyInside(usize),
    Crash,
    Reboot,
    Tidy,
    /// Divides the first card otherwise: by MIG, by MIG with a layout, into vGPUs, not at all.
    Divide(usize),
    /// A stranger makes an instance, or removes one that is idle.
    Meddle(usize, bool),
    /// A stranger makes a vGPU on one of the first card's functions.
    Occupy(usize),
    ShapeFails(bool),
    VgpuFails(usize),
}

fn act() -> impl Strategy<Value = Act> {
    let vm = 0..6_usize;
    let wish = prop::sample::select(vec![
        Wanted::Start,
        Wanted::Start,
        Wanted::Stop,
        Wanted::ForceStop,
        Wanted::Restart,
        Wanted::DeleteNow,
    ]);
    prop_oneof![
        8 => (0..WISHES.len()).prop_map(Act::Create),
        8 => (vm.clone(), wish).prop_map(|(vm, wish)| Act::Wish(vm, wish)),
        12 => (vm.clone(), 1..9_usize).prop_map(|(vm, times)| Act::Look(vm, times)),
        6 => (vm, 1..60_usize).prop_map(|(vm, turns)| Act::CrashInside(vm, turns)),
        2 => (1..40_usize).prop_map(Act::TidyInside),
        1 => Just(Act::Crash),
        2 => Just(Act::Reboot),
        4 => Just(Act::Tidy),
        1 => (0..4_usize).prop_map(Act::Divide),
        3 => (0..INSTANCES.len(), prop::bool::weighted(0.3)).prop_map(|(one, is_end)| Act::Meddle(one, is_end)),
        1 => (0..8_usize).prop_map(Act::Occupy),
        2 => any::<bool>().prop_map(Act::ShapeFails),
        2 => (0..3_usize).prop_map(Act::VgpuFails),
    ]
}

struct Stage {
    world: World,
    life: Option<Life>,
    boot: usize,
    vms: Vec<VmId>,
    /// Numbers of instances that strangers made, and functions that carry a stranger's vGPU.
    their_instances: BTreeSet<u32>,
    their_functions: BTreeSet<String>,
}

impl Stage {
    async fn new() -> Self {
        let mut world = World::new_in(std::path::Path::new("/dev/shm"));
        world.gpus = host(&[CARD, OTHER, MEDIATED]);
        world.gpus.can_divide(at(CARD), 8, &TYPES, Some(a100_80()), true);
        world.gpus.can_divide(at(OTHER), 4, &["A100D-20C", "A100D-40C"], None, false);
        world.gpus.mediate(at(MEDIATED), &["A100D-20C"]);
        let mut stage = Self {
            world,
            life: None,
            boot: 0,
            vms: Vec::new(),
            their_instances: BTreeSet::new(),
            their_functions: BTreeSet::new(),
        };
        stage.live().await;
        change(stage.life(), CARD, GpuChange::Mode(WantedMode::Mig)).await.unwrap();
        change(stage.life(), OTHER, GpuChange::Mode(WantedMode::Vgpu)).await.unwrap();
        stage
    }

    fn life(&self) -> &Life {
        self.life.as_ref().unwrap()
    }

    async fn live(&mut self) {
        if let Some(life) = self.life.take() {
            life.crash().await;
        }
        let boot = format!("boot-{}", self.boot);
        self.life = Some(self.world.live_with(|host| host.boot_id = boot).await);
        self.life().manager.restore_gpus().await;
    }

    async fn reboot(&mut self) {
        for vm in self.vms.clone() {
            self.world.fake.destroy_behind(vm);
        }
        self.world.gpus.forget_vgpus();
        self.world.gpus.restart();
        self.their_instances.clear();
        self.their_functions.clear();
        self.boot += 1;
        self.live().await;
    }

    /// Instances of the first card: number and text.
    async fn instances(&self) -> BTreeMap<u32, String> {
        let seen = self.world.gpus.discover().await.unwrap();
        // With VFIO it has none.
        let mig = seen.card(at(CARD)).unwrap().mig().cloned().unwrap_or_default();
        mig.instances.iter().map(|made| (made.id, made.instance.to_string())).collect()
    }

    /// What each function carries.
    async fn carried(&self) -> BTreeMap<String, Vec<VgpuTypeName>> {
        let seen = self.world.gpus.discover().await.unwrap();
        let made = |card: &gvm::model::card::Card| {
            let facts = card.vgpu.iter().flat_map(|facts| &facts.made);
            let of = |site: VgpuSite| site.uuid.map_or(site.parent.to_string(), |uuid| uuid.to_string());
            let parent = card.address;
            facts.map(|made| (of(VgpuSite { parent, uuid: made.uuid }), made.name.clone())).collect::<Vec<_>>()
        };
        let mut all: BTreeMap<String, Vec<VgpuTypeName>> = BTreeMap::new();
        for (at, name) in seen.cards.iter().flat_map(made) {
            all.entry(at).or_default().extend(name);
        }
        all
    }

    async fn divide(&mut self, how: usize) {
        // An administrator's word goes before what strangers have there idle.
        self.their_instances.clear();
        let done = match how {
            0 => change(self.life(), CARD, GpuChange::Mode(WantedMode::Mig)).await,
            1 => {
                let permit = gvm::auth::policy::allow(&admin(self.life()).await, Action::GpuChange).unwrap();
                let request = LayoutRequest { text: FIXED.to_owned(), config: None, is_rehearsal: false };
                self.life().manager.import_layout(&permit, request).await.map(|_| ())
            }
            2 => change(self.life(), CARD, GpuChange::Mode(WantedMode::Vgpu)).await,
            _ => change(self.life(), CARD, GpuChange::Mode(WantedMode::Host)).await,
        };
        well_refused(done);
    }

    async fn act(&mut self, act: Act) {
        let vms = self.vms.clone();
        let id = |vm: usize| (!vms.is_empty()).then(|| vms[vm % vms.len()]);
        match act {
            Act::Create(what) => {
                let gpus = GpuRequest::parse_list(WISHES[what]).unwrap();
                let name = format!("vm-{}", vms.len());
                match self.life().create_as(&name, |request| request.gpus = Some(gpus)).await {
                    Ok(vm) => self.vms.push(vm),
                    Err(e) => well_refused(Err(e)),
                }
            }
            Act::Wish(vm, wanted) => {
                if let Some(vm) = id(vm) {
                    well_refused(self.life().power(vm, wanted).await);
                }
            }
            Act::Look(vm, times) => {
                let Some(vm) = id(vm) else { return };
                for _ in 0..times {
                    if !matches!(reconciler::look(&self.life().manager, vm).await.unwrap(), Looked::Did(_)) {
                        break;
                    }
                }
            }
            Act::CrashInside(vm, turns) => {
                let Some(vm) = id(vm) else { return };
                turns_of(reconciler::look(&self.life().manager, vm), turns).await;
                self.live().await;
            }
            Act::TidyInside(turns) => {
                turns_of(self.life().manager.keep_gpus_tidy(), turns).await;
                self.live().await;
            }
            Act::Crash => self.live().await,
            Act::Reboot => self.reboot().await,
            Act::Tidy => self.life().manager.keep_gpus_tidy().await,
            Act::Divide(how) => self.divide(how).await,
            Act::Meddle(one, is_end) => {
                let (card, instance) = (at(CARD), parse_instance(INSTANCES[one]).unwrap());
                let before = self.instances().await;
                match is_end {
                    true => self.world.gpus.meddle(&ShapeJob::RemoveInstance { card, instance }),
                    false => self.world.gpus.meddle(&ShapeJob::MakeInstance { card, instance }),
                }
                let after = self.instances().await;
                self.their_instances.retain(|id| after.contains_key(id));
                self.their_instances.extend(after.keys().filter(|id| !before.contains_key(id)));
            }
            Act::Occupy(number) => {
                let vf = format!("0000:41:01.{number}");
                let before = self.carried().await;
                let job =
                    VgpuJob::Make { site: vf.parse().unwrap(), name: VgpuTypeName::parse("A100D-1-10C").unwrap() };
                let leases = self.life().store.leases().await.unwrap();
                // A stranger who takes what is leased is another story.
                let is_leased = leases.iter().any(|lease| lease.partition.address().to_string() == vf);
                let is_made = !is_leased && self.world.gpus.vgpu(&job).await.is_ok();
                if is_made && !before.contains_key(&vf) {
                    self.their_functions.insert(vf);
                }
            }
            Act::ShapeFails(is_refused) => self.world.gpus.fail_next_shape(match is_refused {
                true => BindError::Refused("somebody has it open".to_owned()),
                false => BindError::Failed("the driver says no".to_owned()),
            }),
            Act::VgpuFails(how) => self.world.gpus.fail_next_vgpu(match how {
                0 => BindError::Transient("not now".to_owned()),
                1 => BindError::Refused("somebody has it open".to_owned()),
                _ => BindError::Failed("the driver says no".to_owned()),
            }),
        }
    }

    async fn check(&self) {
        let leases = self.life().store.leases().await.unwrap();
        let sites: HashSet<String> = leases.iter().map(|lease| lease.partition.key()).collect();
        assert_eq!(sites.len(), leases.len(), "leased twice: {leases:?}");
        let carried = self.carried().await;
        for (vm, observed) in self.world.fake.peek_all() {
            let Observed::Defined(domain) = &observed else { continue };
            if !observed.is_active() {
                continue;
            }
            for device in &domain.hostdevs {
                let is_it = |lease: &&gvm::model::gpu::GpuLease| {
                    let devices = lease.partition.devices();
                    lease.vm == vm && devices.iter().any(|one| one.to_string() == *device)
                };
                let lease = leases.iter().find(is_it).unwrap_or_else(|| panic!("{vm} has {device} without a lease"));
                let Partition::Vgpu { name, .. } = &lease.partition else { continue };
                assert_eq!(carried.get(device), Some(&vec![name.clone()]), "{vm} runs without its vGPU at {device}");
            }
        }
        let instances = self.instances().await;
        let gone: Vec<&u32> = self.their_instances.iter().filter(|id| !instances.contains_key(id)).collect();
        assert!(gone.is_empty(), "a stranger's instances are gone: {gone:?} of {instances:?}");
        let gone = self.their_functions.iter().find(|function| !carried.contains_key(*function));
        assert_eq!(gone, None, "a stranger's vGPU is gone");
    }

    /// Looks until the machine rests; instead of waiting, time is moved.
    async fn settle(&self, vm: VmId) {
        let mut did = Vec::new();
        for _ in 0..LOOKS {
            match reconciler::look(&self.life().manager, vm).await.unwrap() {
                Looked::Did(step) => did.push(step.name()),
                Looked::Later(at) => {
                    did.push("wait");
                    let wait = at.duration_since(Timestamp::now()).max(SignedDuration::from_millis(1));
                    let mut tx = self.life().store.write().await.unwrap();
                    if let Some(mut row) = vms::read(&mut tx, vm).await.unwrap() {
                        for at in [&mut row.next_try, &mut row.stop_asked_at, &mut row.started_at] {
                            *at = at.map(|at| at.checked_sub(wait).unwrap());
                        }
                        vms::update(&mut tx, &row).await.unwrap();
                    }
                    commit(tx).await.unwrap();
                }
                Looked::AtRest => return,
            }
        }
        panic!("{vm} does not come to rest: {:?}\n{did:?}", self.life().store.vm(vm).await.unwrap());
    }

    /// The faults end. Every machine comes to what is wanted of it, or is refused for want of room; then all that is
    /// offered is had, and at last nothing is left.
    async fn end(mut self) {
        self.world.gpus.heal();
        self.live().await;
        for card in [CARD, OTHER, MEDIATED] {
            change(self.life(), card, GpuChange::ReadmitUntested).await.unwrap();
        }
        for vm in self.vms.clone() {
            self.settle(vm).await;
        }
        self.life().manager.keep_gpus_tidy().await;
        for vm in self.vms.clone() {
            let Some(row) = self.life().store.vm(vm).await.unwrap() else { continue };
            if row.trouble.is_some() && row.desired != Desired::Absent {
                // Who has lost his place is given another one, or told that there is none.
                if let Err(e) = self.life().power(vm, Wanted::Start).await {
                    assert!(matches!(e.kind, Kind::NoCapacity | Kind::Conflict), "{e}");
                    continue;
                }
                self.settle(vm).await;
                let row = self.life().store.vm(vm).await.unwrap().unwrap();
                assert!(
                    row.trouble.is_none(),
                    "it was given what it cannot have: {row:?}\n{:?}",
                    self.instances().await
                );
            }
        }
        self.check().await;
        self.all_that_is_offered().await;
        for vm in self.vms.clone() {
            if self.life().store.vm(vm).await.unwrap().is_some() {
                self.life().power(vm, Wanted::DeleteNow).await.unwrap();
                self.settle(vm).await;
            }
        }
        self.life().manager.keep_gpus_tidy().await;
        self.check().await;
        assert_eq!(self.life().store.leases().await.unwrap(), [], "leases are left");
        let carried: BTreeSet<String> = self.carried().await.into_keys().collect();
        assert_eq!(carried, self.their_functions, "vGPUs are left");
        let rows = self.life().store.gpus().await.unwrap();
        let row = rows.iter().find(|row| row.identity.address == at(CARD)).unwrap();
        // A stranger's vGPU may have taken one of gvm's before its machine came to it.
        if self.their_functions.is_empty() {
            assert_eq!(row.own_instances, [], "instances of gvm's own are left");
        }
        let left: Vec<String> = self.instances().await.into_values().collect();
        if let Some(gvm::model::inventory::Shape::Mig { instances: Some(wanted), .. }) =
            row.shape.as_ref().filter(|shaped| shaped.boot_id.is_some()).map(|shaped| &shaped.shape)
        {
            let missing = wanted.iter().find(|wanted| !left.contains(&wanted.to_string()));
            assert!(missing.is_none() || self.reasons().await.contains("is missing"), "{missing:?} is lost: {left:?}");
        }
    }

    async fn reasons(&self) -> String {
        let listing = self.life().manager.gpus(&self.life().permit(Action::GpuSee)).await.unwrap();
        listing.rows.iter().flat_map(|row| row.reasons.clone()).collect::<Vec<_>>().join("; ")
    }

    async fn all_that_is_offered(&mut self) {
        let offers = self.life().manager.gpu_offers(&self.life().permit(Action::GpuSee)).await.unwrap();
        for offer in offers.iter().filter(|offer| offer.free > 0) {
            let mut had = Vec::new();
            for number in 0..offer.free.min(8) {
                let gpus = vec![offer.request.clone()];
                let name = format!("offered-{}-{number}", self.vms.len());
                let vm = self.life().create_as(&name, |request| request.gpus = Some(gpus)).await;
                let vm = vm.unwrap_or_else(|e| panic!("{} of {offer:?} cannot be had: {e}", number + 1));
                self.settle(vm).await;
                let row = self.life().store.vm(vm).await.unwrap().unwrap();
                let state = self.life().state(vm).await;
                assert_eq!(state, Some(VmState::Running), "{} of {offer:?}: {:?}", number + 1, row.trouble);
                had.push(vm);
            }
            self.check().await;
            for vm in had {
                self.life().power(vm, Wanted::DeleteNow).await.unwrap();
                self.settle(vm).await;
            }
        }
    }
}

fn well_refused(result: gvm::manager::Result<()>) {
    if let Err(e) = result {
        assert_ne!(e.kind, Kind::Internal, "{e}");
    }
}

fn play(acts: &[Act]) {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(async {
        let mut stage = Stage::new().await;
        for act in acts {
            stage.act(*act).await;
            stage.check().await;
        }
        stage.end().await;
    });
}

#[test]
fn random_stories_of_divided_cards_keep_the_promises() {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(CASES);
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    TestRunner::new(config)
        .run(&prop::collection::vec(act(), 5..30), |acts| {
            play(&acts);
            Ok(())
        })
        .unwrap();
}
