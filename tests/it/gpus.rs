//! Cards between machines: admission, taking, giving back, and what goes wrong with it. A real database, and cards and
//! machines in memory.

mod cases;
mod health;
mod layout;
mod mdevs;
mod mig;
mod parts;
mod plug;
mod random;
mod sanitise;
mod slices;
mod truth;

use std::collections::HashMap;

use gvm::auth::policy::Action;
use gvm::gpu::{BindError, GpuBackend};
use gvm::manager::gpus::{GpuChange, GpuState, WantedMode};
use gvm::manager::power::Wanted;
use gvm::manager::{Kind, ManagerError, reconciler};
use gvm::model::card::Holder;
use gvm::model::gpu::{GpuRequest, LeaseState};
use gvm::model::id::VmId;
use gvm::model::principal::{Principal, Role};
use gvm::model::state::VmState;
use gvm::model::units::Mib;
use jiff::Timestamp;

use crate::support::cards::{at, card, host};
use crate::support::world::{Life, World};

const CARD: &str = "0000:41:00.0";
const SOUND: &str = "0000:41:00.1";
const OTHER: &str = "0000:81:00.0";

fn world(addresses: &[&str]) -> World {
    let mut world = World::new();
    world.gpus = host(addresses);
    world
}

async fn create(life: &Life, name: &str, gpu: &str) -> gvm::manager::Result<VmId> {
    let gpus = GpuRequest::parse_list(&[gpu.to_owned()]).unwrap();
    life.create_as(name, |request| request.gpus = Some(gpus)).await
}

/// Functions with their drivers.
async fn drivers(world: &World, address: &str) -> Vec<String> {
    let functions = [at(address), at(&address.replace(".0", ".1"))];
    let states = world.gpus.functions(&functions).await.unwrap();
    states.into_iter().map(|state| state.driver.unwrap_or_default()).collect()
}

async fn states(life: &Life) -> HashMap<String, GpuState> {
    let listing = life.manager.gpus(&life.permit(Action::GpuSee)).await.unwrap();
    listing.rows.iter().map(|row| (row.entry.address().unwrap().to_string(), row.state)).collect()
}

async fn admin(life: &Life) -> Principal {
    let user = life.store.ensure_user(1, &"root".parse().unwrap(), Role::Admin, Timestamp::now()).await.unwrap();
    Principal::of(user)
}

async fn change(life: &Life, gpu: &str, change: GpuChange) -> gvm::manager::Result<()> {
    let permit = gvm::auth::policy::allow(&admin(life).await, Action::GpuChange).unwrap();
    life.manager.change_gpu(&permit, gpu, &change).await
}

fn told(error: ManagerError) -> (Kind, String) {
    (error.kind, error.to_string())
}

const HOST: [&str; 2] = ["nvidia", "snd_hda_intel"];
const VFIO: [&str; 2] = ["vfio-pci", "vfio-pci"];

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_has_the_whole_card_and_the_host_has_it_back_after_the_stop() {
    let world = world(&[CARD]);
    let life = world.live().await;
    let vm = create(&life, "train", "a100").await.unwrap();
    let begun = ["ensure-gpu-bound", "ensure-disk", "ensure-seed", "define", "start", "record-started"];
    assert_eq!(life.settle(vm).await, begun);
    assert_eq!(drivers(&world, CARD).await, VFIO);
    let leases = life.store.leases().await.unwrap();
    assert_eq!((leases.len(), leases[0].state), (1, LeaseState::Attached));
    assert_eq!(states(&life).await[CARD], GpuState::InUse);
    let row = life.store.vm(vm).await.unwrap().unwrap();
    assert_eq!(row.placement.gpus[0].address(), at(CARD));
    // Another one is refused with the reason, and with what would help.
    let (kind, text) = told(create(&life, "second", "1").await.unwrap_err());
    assert_eq!(kind, Kind::NoCapacity);
    assert!(text.contains("0000:41:00.0 NVIDIA A100 80GB PCIe, 80 GiB: in use by VM train"), "{text}");
    assert!(life.store.vm_ids().await.unwrap().len() == 1);
    life.power(vm, Wanted::Stop).await.unwrap();
    assert_eq!(life.settle(vm).await, ["record-off", "define", "release-gpu"]);
    assert_eq!(drivers(&world, CARD).await, HOST);
    assert!(life.store.leases().await.unwrap().is_empty());
    assert_eq!(states(&life).await[CARD], GpuState::Free);
    let second = create(&life, "second", "1").await.unwrap();
    life.settle(second).await;
    // The first one asks again and is told who has it.
    let (kind, text) = told(life.power(vm, Wanted::Start).await.unwrap_err());
    assert_eq!((kind, text.contains("in use by VM second")), (Kind::NoCapacity, true), "{text}");
    life.power(second, Wanted::DeleteNow).await.unwrap();
    assert_eq!(life.settle(second).await, ["force-off", "undefine", "release-gpu", "ensure-files-gone"]);
    life.power(vm, Wanted::Start).await.unwrap();
    assert_eq!(life.settle(vm).await, ["ensure-gpu-bound", "define", "start", "record-started"]);
    // A restart keeps the card.
    let binds = world.gpus.binds(at(CARD));
    life.power(vm, Wanted::Restart).await.unwrap();
    assert_eq!(life.settle(vm).await, ["record-off", "start", "record-started"]);
    assert_eq!(world.gpus.binds(at(CARD)), binds);
}

/// A machine whose manager died after so many steps of its start or its stop, settled by the next one.
async fn crashed(world: &World, gpu: &str, is_stop: bool, steps: usize) -> (Life, VmId) {
    let life = world.live().await;
    let vm = create(&life, "train", gpu).await.unwrap();
    if is_stop {
        life.settle(vm).await;
        life.power(vm, Wanted::Stop).await.unwrap();
    }
    for _ in 0..steps {
        reconciler::look(&life.manager, vm).await.unwrap();
    }
    life.crash().await;
    let life = world.live().await;
    life.settle(vm).await;
    (life, vm)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_every_step_loses_and_doubles_no_lease() {
    for (is_stop, most) in [(false, 7), (true, 4)] {
        for crash_after in 0..=most {
            let world = world(&[CARD]);
            let (life, vm) = crashed(&world, "1", is_stop, crash_after).await;
            let held = life.store.leases().await.unwrap().len();
            let should = if is_stop { (VmState::Stopped, 0, HOST) } else { (VmState::Running, 1, VFIO) };
            let is = (life.state(vm).await.unwrap(), held);
            assert_eq!(is, (should.0, should.1), "stop {is_stop}, after {crash_after} steps");
            assert_eq!(drivers(&world, CARD).await, should.2, "stop {is_stop}, after {crash_after} steps");
            assert_eq!(world.gpus.binds(at(CARD)), 1, "taken once");
            assert_eq!(world.gpus.restores(at(SOUND)), usize::from(is_stop), "given back once");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_that_dies_while_the_kernel_works_finds_its_way() {
    for is_stop in [false, true] {
        let world = world(&[CARD]);
        let life = world.live().await;
        let vm = create(&life, "train", "1").await.unwrap();
        if is_stop {
            life.settle(vm).await;
            life.power(vm, Wanted::Stop).await.unwrap();
            for _ in 0..3 {
                reconciler::look(&life.manager, vm).await.unwrap();
            }
        }
        world.gpus.hold_changes();
        let pass = reconciler::look(&life.manager, vm);
        let late = tokio::time::timeout(std::time::Duration::from_millis(300), pass).await;
        assert!(late.is_err(), "it should hang in the kernel");
        life.crash().await;
        world.gpus.recover();
        let life = world.live().await;
        life.settle(vm).await;
        assert_eq!(drivers(&world, CARD).await, if is_stop { HOST } else { VFIO });
        assert_eq!(life.store.leases().await.unwrap().len(), usize::from(!is_stop));
    }
}

/// Case A-card-lost-after-stop.
#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_does_not_answer_after_a_stop_is_kept_out_of_use() {
    let world = world(&[CARD, OTHER]);
    let life = world.live().await;
    let vm = create(&life, "train", "1").await.unwrap();
    life.settle(vm).await;
    world.gpus.lose_at_restore(at(CARD));
    life.power(vm, Wanted::Stop).await.unwrap();
    life.settle(vm).await;
    assert_eq!(life.state(vm).await, Some(VmState::Stopped), "the machine is not held up by its card");
    assert!(life.store.leases().await.unwrap().is_empty());
    assert_eq!(states(&life).await[CARD], GpuState::Withheld);
    // The next one gets the other card, after a restart of the manager as well.
    life.crash().await;
    let life = world.live().await;
    let next = create(&life, "next", "1").await.unwrap();
    life.settle(next).await;
    assert_eq!(life.store.vm(next).await.unwrap().unwrap().placement.gpus[0].address(), at(OTHER));
    let (_, text) = told(create(&life, "third", "1").await.unwrap_err());
    assert!(text.contains("kept out of use: no answer after its VM was done"), "{text}");
    // Readmitted without a test, it counts by what can be seen of it.
    assert_eq!(change(&life, CARD, GpuChange::Readmit).await.unwrap_err().kind, Kind::Conflict);
    change(&life, CARD, GpuChange::ReadmitUntested).await.unwrap();
    assert_eq!(states(&life).await[CARD], GpuState::Blocked);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stuck_card_is_out_of_use_and_everything_else_goes_on() {
    let world = world(&[CARD, OTHER]);
    let life = world.live().await;
    world.gpus.stick(at(CARD));
    let vm = create(&life, "train", "1").await.unwrap();
    life.settle(vm).await;
    let trouble = life.store.vm(vm).await.unwrap().unwrap().trouble.unwrap();
    assert!(trouble.is_final && trouble.message.contains("is stuck"), "{trouble:?}");
    assert_eq!(states(&life).await[CARD], GpuState::Stuck);
    // Started again it is given the other card.
    life.power(vm, Wanted::Start).await.unwrap();
    life.settle(vm).await;
    assert_eq!(life.state(vm).await, Some(VmState::Running));
    assert_eq!(life.store.vm(vm).await.unwrap().unwrap().placement.gpus[0].address(), at(OTHER));
    assert_eq!(states(&life).await[CARD], GpuState::Stuck);
    let refusal = change(&life, CARD, GpuChange::Readmit).await.unwrap_err();
    assert_eq!(refusal.kind, Kind::Conflict);
}

/// Cases A-unbind-hang and A-foreign-vfio-devices.
#[tokio::test(flavor = "multi_thread")]
async fn a_held_card_is_refused_and_its_holder_named_to_those_who_may_know() {
    let world = world(&[CARD]);
    let life = world.live().await;
    let holder = Holder { pid: 812, comm: "dcgm-exporter".to_owned(), device: "/dev/nvidia3".to_owned(), domain: None };
    world.gpus.open(at(CARD), holder);
    let (_, text) = told(create(&life, "train", "1").await.unwrap_err());
    assert!(text.contains("a process of the host has it open") && !text.contains("812"), "{text}");
    let refusal = change(&life, CARD, GpuChange::Mode(WantedMode::Passthrough)).await.unwrap_err();
    assert!(refusal.to_string().contains("pid 812 (dcgm-exporter) has /dev/nvidia3 open"), "{refusal}");
    assert_eq!(world.gpus.binds(at(CARD)), 0, "nothing was touched");
    world.gpus.close(at(CARD));
    create(&life, "train", "1").await.unwrap();
    // Somebody takes it between the admission and the start: named, tried again, and nothing is touched.
    let holder = Holder { pid: 9, comm: "Xorg".to_owned(), device: "/dev/dri/card1".to_owned(), domain: None };
    world.gpus.open(at(CARD), holder);
    let vm = life.store.vm_ids().await.unwrap()[0];
    reconciler::look(&life.manager, vm).await.unwrap();
    let trouble = life.store.vm(vm).await.unwrap().unwrap().trouble.unwrap();
    assert!(trouble.message.contains("pid 9 (Xorg)") && !trouble.is_final, "{trouble:?}");
    world.gpus.close(at(CARD));
    life.settle(vm).await;
    assert_eq!(life.state(vm).await, Some(VmState::Running));
}

#[tokio::test(flavor = "multi_thread")]
async fn mode_passthrough_keeps_the_card_with_vfio_and_mode_host_gives_it_back() {
    let world = world(&[CARD]);
    let life = world.live().await;
    change(&life, CARD, GpuChange::Mode(WantedMode::Passthrough)).await.unwrap();
    assert_eq!(drivers(&world, CARD).await, VFIO);
    let vm = create(&life, "train", "1").await.unwrap();
    life.settle(vm).await;
    let (kind, text) = told(change(&life, CARD, GpuChange::Mode(WantedMode::Host)).await.unwrap_err());
    assert_eq!((kind, text.contains("held by VM train")), (Kind::Conflict, true), "{text}");
    life.power(vm, Wanted::Stop).await.unwrap();
    life.settle(vm).await;
    assert_eq!(drivers(&world, CARD).await, VFIO, "it stays with VFIO");
    change(&life, CARD, GpuChange::Mode(WantedMode::Host)).await.unwrap();
    assert_eq!(drivers(&world, CARD).await, HOST);
    assert_eq!((world.gpus.binds(at(CARD)), world.gpus.restores(at(CARD))), (1, 1));
    // What was with VFIO before gvm came has no other driver to go back to.
    let mut old = card(OTHER);
    (old.driver, old.is_vfio) = (Some("vfio-pci".to_owned()), true);
    old.functions[0].driver = Some("vfio-pci".to_owned());
    old.functions[1].driver = Some("vfio-pci".to_owned());
    let discovery = gvm::model::card::Discovery { cards: vec![card(CARD), old], ..Default::default() };
    world.gpus.show(discovery.judged(None));
    let refusal = change(&life, OTHER, GpuChange::Mode(WantedMode::Host)).await.unwrap_err();
    assert!(refusal.to_string().contains("was with vfio-pci when gvm first saw it"), "{refusal}");
    assert_eq!(change(&life, "0000:77:00.0", GpuChange::Readmit).await.unwrap_err().kind, Kind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_bind_is_tried_again_and_a_failed_return_is_kept_out_of_use() {
    let world = world(&[CARD]);
    let life = world.live().await;
    world.gpus.fail_next_bind(BindError::Failed("0000:41:00.1: EBUSY".to_owned()));
    let vm = create(&life, "train", "1").await.unwrap();
    life.settle(vm).await;
    assert_eq!(life.state(vm).await, Some(VmState::Running));
    world.gpus.fail_next_restore(BindError::Failed("0000:41:00.0: nvidia did not come back".to_owned()));
    life.power(vm, Wanted::Stop).await.unwrap();
    life.settle(vm).await;
    assert_eq!(states(&life).await[CARD], GpuState::Withheld);
    let gpu = life.manager.gpu(&life.permit(Action::GpuSee), CARD).await.unwrap();
    assert!(gpu.reasons.iter().any(|why| why.contains("nvidia did not come back")), "{:?}", gpu.reasons);
}

/// Case A-memory-admission-bypassed: 64 GiB, 8 of them the host's, 40 given to machines with cards, 24 more asked for.
#[tokio::test(flavor = "multi_thread")]
async fn memory_counts_for_machines_with_cards_as_for_all() {
    let world = world(&[CARD, OTHER]);
    let life = world.live_with(|host| host.capacity.reserve = Mib(8 << 10)).await;
    let create = async |name: &str, gib: u64| {
        let gpus = GpuRequest::parse_list(&["1".to_owned()]).unwrap();
        life.create_as(name, |request| (request.gpus, request.memory) = (Some(gpus), Some(Mib(gib << 10)))).await
    };
    create("large", 40).await.unwrap();
    let (kind, text) = told(create("more", 24).await.unwrap_err());
    assert_eq!((kind, text.contains("has 16 GiB of memory free")), (Kind::NoCapacity, true), "{text}");
    assert_eq!(states(&life).await[OTHER], GpuState::Free);
    create("less", 16).await.unwrap();
    assert_eq!(states(&life).await[OTHER], GpuState::Claimed);
}

/// Case A-renumbered, and cards that are pulled out.
#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_is_gone_is_shown_with_its_machine_and_never_taken_for_another() {
    let world = world(&[CARD]);
    let life = world.live().await;
    let vm = create(&life, "train", "1").await.unwrap();
    // It moves between admission and start.
    world
        .gpus
        .show(gvm::model::card::Discovery { cards: vec![card("0000:42:00.0")], ..Default::default() }.judged(None));
    life.settle(vm).await;
    let trouble = life.store.vm(vm).await.unwrap().unwrap().trouble.unwrap();
    assert!(trouble.message.contains("the one card like it is at 0000:42:00.0"), "{trouble:?}");
    assert_eq!(world.gpus.binds(at("0000:42:00.0")), 0);
    let gone = life.manager.gpu(&life.permit(Action::GpuSee), CARD).await.unwrap();
    assert_eq!((gone.state, gone.vm.as_deref()), (GpuState::Gone, Some("train.eve")));
    life.power(vm, Wanted::Start).await.unwrap();
    life.settle(vm).await;
    assert_eq!(life.state(vm).await, Some(VmState::Running));
    // Pulled out while it runs, the machine can still be stopped and deleted.
    world.gpus.vanish(at("0000:42:00.0"));
    life.power(vm, Wanted::DeleteNow).await.unwrap();
    life.settle(vm).await;
    assert!(life.store.leases().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_tells_the_card_and_leaves_nothing() {
    let world = world(&[CARD, OTHER]);
    let life = world.live().await;
    let request = |gpu: &str| gvm::manager::create::CreateRequest {
        gpus: Some(GpuRequest::parse_list(&[gpu.to_owned()]).unwrap()),
        name: None,
        profile: "firmware".parse().unwrap(),
        image: None,
        vcpus: None,
        memory: None,
        disk: None,
        caps: Default::default(),
        ttl: None,
        user_data: None,
        tags: Vec::new(),
        team: None,
        tpm: None,
        is_stopped: false,
    };
    let permit = life.permit(Action::VmCreate);
    let run = life.manager.dry_run(&permit, request("2xa100:same-node")).await.unwrap();
    assert_eq!(run.gpus.iter().map(|gpu| gpu.bdf.to_string()).collect::<Vec<_>>(), [CARD, OTHER]);
    assert_eq!(run.numa_node, Some(0));
    assert_eq!(life.manager.dry_run(&permit, request("3")).await.unwrap_err().kind, Kind::Invalid);
    assert!(life.store.vm_ids().await.unwrap().is_empty() && life.store.leases().await.unwrap().is_empty());
    let offers = life.manager.gpu_offers(&life.permit(Action::GpuSee)).await.unwrap();
    assert_eq!((offers.len(), offers[0].free, offers[0].total), (1, 2, 2));
}
