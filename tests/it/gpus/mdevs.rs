//! Mediated devices between machines: on cards without virtual functions, several on one card, and one on each function
//! where there are some.

use gvm::model::card::vgpu::{MadeVgpu, VgpuJob, VgpuSite};
use gvm::model::gpu::{Partition, VgpuTypeName};
use gvm::model::state::Observed;
use uuid::Uuid;

use super::*;

/// A card of 80 GiB without virtual functions.
fn mediated() -> World {
    let world = world(&[CARD]);
    world.gpus.mediate(at(CARD), &["A100D-10C", "A100D-20C", "A100D-40C"]);
    world
}

async fn made(world: &World, parent: &str) -> Vec<MadeVgpu> {
    world.gpus.functions(&[at(parent)]).await.unwrap().remove(0).vgpus
}

async fn offers(life: &Life) -> HashMap<String, u32> {
    let offers = life.manager.gpu_offers(&life.permit(Action::GpuSee)).await.unwrap();
    offers.into_iter().map(|offer| (offer.request.to_string(), offer.free)).collect()
}

/// Names of the mediated devices that a machine was given.
async fn names(life: &Life, vm: VmId) -> Vec<Uuid> {
    let row = life.store.vm(vm).await.unwrap().unwrap();
    let uuid = |partition: &Partition| partition.vgpu().unwrap().0.uuid.unwrap();
    row.placement.gpus.iter().map(uuid).collect()
}

/// The devices of a machine's domain.
fn devices(world: &World, vm: VmId) -> Vec<String> {
    let Observed::Defined(domain) = world.fake.peek(vm) else { return Vec::new() };
    domain.hostdevs
}

fn make(uuid: Uuid, of: &str) -> VgpuJob {
    let site = VgpuSite { parent: at(CARD), uuid: Some(uuid) };
    VgpuJob::Make { site, name: VgpuTypeName::parse(of).unwrap() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_has_two_mediated_devices_and_they_are_gone_after_the_stop() {
    let world = mediated();
    let life = world.live().await;
    assert_eq!(offers(&life).await["vgpu:A100D-20C"], 4);
    let two = GpuRequest::parse_list(&["vgpu:A100D-20C", "vgpu:A100D-20C"]).unwrap();
    let vm = life.create_as("train", |request| request.gpus = Some(two)).await.unwrap();
    let begun = ["ensure-gpu-bound", "ensure-disk", "ensure-seed", "define", "start", "record-started"];
    assert_eq!(life.settle(vm).await, begun);
    let uuids = names(&life, vm).await;
    assert_ne!(uuids[0], uuids[1]);
    assert_eq!(
        devices(&world, vm),
        uuids.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "in the order of leases"
    );
    let mut there: Vec<Uuid> = made(&world, CARD).await.iter().map(|made| made.uuid.unwrap()).collect();
    let mut should = uuids.clone();
    there.sort();
    should.sort();
    assert_eq!(there, should);
    assert_eq!(drivers(&world, CARD).await, HOST, "the card stays with its driver");
    assert_eq!(states(&life).await[CARD], GpuState::Divided);
    let listing = life.manager.gpus(&life.permit(Action::GpuSee)).await.unwrap();
    let carried = listing.rows[0].reasons.iter().filter(|reason| *reason == "carries A100D-20C for VM train.eve");
    assert_eq!(carried.count(), 2, "{:?}", listing.rows[0].reasons);
    // What is offered is what is left, and of one size.
    let left = offers(&life).await;
    assert_eq!((left["vgpu:A100D-20C"], left["vgpu:A100D-10C"], left["vgpu:A100D-40C"]), (2, 0, 0));
    let (kind, text) = told(create(&life, "large", "vgpu:A100D-40C").await.unwrap_err());
    assert_eq!(kind, Kind::NoCapacity);
    assert!(text.contains("it is set to profiles of 20 GiB"), "{text}");
    // Nobody is given the whole card meanwhile.
    let (_, text) = told(create(&life, "whole", "1").await.unwrap_err());
    assert!(text.contains("vGPUs are made on it: 2"), "{text}");
    // A neighbour comes and goes, and the first one's stay.
    let second = create(&life, "second", "12GiB").await.unwrap();
    life.settle(second).await;
    assert_eq!((made(&world, CARD).await.len(), offers(&life).await["vgpu:A100D-20C"]), (3, 1));
    life.power(vm, Wanted::Stop).await.unwrap();
    assert_eq!(life.settle(vm).await, ["record-off", "define", "release-gpu"]);
    let left = made(&world, CARD).await;
    assert_eq!(left.iter().map(|made| made.uuid.unwrap()).collect::<Vec<_>>(), names(&life, second).await);
    life.power(second, Wanted::DeleteNow).await.unwrap();
    life.settle(second).await;
    assert!(life.store.leases().await.unwrap().is_empty() && made(&world, CARD).await.is_empty());
    assert_eq!(offers(&life).await["vgpu:A100D-40C"], 2);
    // What comes next has other names.
    life.power(vm, Wanted::Start).await.unwrap();
    life.settle(vm).await;
    assert!(names(&life, vm).await.iter().all(|uuid| !uuids.contains(uuid)));
}

/// On cards with virtual functions each carries one.
#[tokio::test(flavor = "multi_thread")]
async fn a_virtual_function_carries_one_mediated_device() {
    const VFS: [&str; 2] = ["0000:41:01.0", "0000:41:01.1"];
    let world = world(&[CARD]);
    world.gpus.divide_mediated(at(CARD), 2, &["A100D-20C", "A100D-40C"]);
    let life = world.live().await;
    assert_eq!(offers(&life).await["vgpu:A100D-20C"], 2, "no more than there are functions");
    let (first, second) =
        (create(&life, "first", "vgpu:A100D-20C").await.unwrap(), create(&life, "second", "20GiB").await.unwrap());
    for (vm, vf) in [(first, VFS[0]), (second, VFS[1])] {
        life.settle(vm).await;
        let uuids = names(&life, vm).await;
        assert_eq!(devices(&world, vm), [uuids[0].to_string()]);
        assert_eq!(made(&world, vf).await[0].uuid, Some(uuids[0]));
        assert_eq!(states(&life).await[vf], GpuState::InUse);
    }
    let (_, text) = told(create(&life, "third", "vgpu:A100D-20C").await.unwrap_err());
    assert!(text.contains("none of its functions is free for A100D-20C"), "{text}");
    life.power(first, Wanted::Stop).await.unwrap();
    life.settle(first).await;
    assert_eq!((made(&world, VFS[0]).await.len(), made(&world, VFS[1]).await.len()), (0, 1));
    assert_eq!(states(&life).await[VFS[0]], GpuState::VirtualFunction);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_every_step_loses_and_doubles_no_mediated_device() {
    for (is_stop, most) in [(false, 7), (true, 4)] {
        for crash_after in 0..=most {
            let world = mediated();
            let (life, vm) = crashed(&world, "vgpu:A100D-40C", is_stop, crash_after).await;
            let held = life.store.leases().await.unwrap().len();
            let should = if is_stop { (VmState::Stopped, 0) } else { (VmState::Running, 1) };
            assert_eq!((life.state(vm).await.unwrap(), held), should, "stop {is_stop}, after {crash_after} steps");
            let there: Vec<Uuid> = made(&world, CARD).await.iter().map(|made| made.uuid.unwrap()).collect();
            assert_eq!(there, names(&life, vm).await, "stop {is_stop}, after {crash_after} steps");
            assert_eq!(there.len(), held, "stop {is_stop}, after {crash_after} steps");
        }
    }
}

/// Cases B-state-lost-on-reboot and B-vm-back-without-gpu: the driver forgets all; the machine has its own again, by the
/// same name, before it starts.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_driver_forgets_is_made_again_by_its_name() {
    let world = mediated();
    let life = world.live().await;
    let vm = create(&life, "train", "vgpu:A100D-20C").await.unwrap();
    life.settle(vm).await;
    let uuids = names(&life, vm).await;
    life.crash().await;
    world.fake.destroy_behind(vm);
    world.gpus.forget_vgpus();
    let life = world.live().await;
    life.settle(vm).await;
    assert_eq!(life.state(vm).await.unwrap(), VmState::Running);
    assert_eq!(made(&world, CARD).await[0].uuid, Some(uuids[0]));
    assert_eq!((names(&life, vm).await, devices(&world, vm)), (uuids.clone(), vec![uuids[0].to_string()]));
}

/// Case B-mdev-definition-shadowed: what somebody else made under a name of ours is neither used nor taken away.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_taken_by_another_type_is_an_error() {
    let world = mediated();
    let life = world.live().await;
    let vm = create(&life, "train", "vgpu:A100D-20C").await.unwrap();
    let uuid = names(&life, vm).await[0];
    world.gpus.vgpu(&make(uuid, "A100D-10C")).await.unwrap();
    reconciler::look(&life.manager, vm).await.unwrap();
    let row = life.store.vm(vm).await.unwrap().unwrap();
    let trouble = row.trouble.unwrap().message;
    assert!(trouble.contains("A100D-20C cannot be made"), "{trouble}");
    life.power(vm, Wanted::DeleteNow).await.unwrap();
    life.settle(vm).await;
    let left = made(&world, CARD).await;
    assert_eq!(left[0].name, VgpuTypeName::parse("A100D-10C"));
    assert!(life.store.leases().await.unwrap().is_empty());
}

/// Case B-cleanup-too-eager.
#[tokio::test(flavor = "multi_thread")]
async fn a_strangers_mediated_device_is_counted_and_left_alone() {
    let world = mediated();
    let life = world.live().await;
    let theirs = Uuid::from_u128(7);
    world.gpus.vgpu(&make(theirs, "A100D-20C")).await.unwrap();
    let left = offers(&life).await;
    assert_eq!((left["vgpu:A100D-20C"], left["vgpu:A100D-40C"]), (3, 0));
    let vm = create(&life, "train", "vgpu:A100D-20C").await.unwrap();
    life.settle(vm).await;
    assert_eq!(made(&world, CARD).await.len(), 2);
    life.power(vm, Wanted::DeleteNow).await.unwrap();
    life.settle(vm).await;
    assert_eq!(made(&world, CARD).await.iter().map(|made| made.uuid).collect::<Vec<_>>(), [Some(theirs)]);
}

/// One that is open is not taken away; its neighbours on the card are.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_open_waits_and_its_neighbours_do_not() {
    let world = mediated();
    let life = world.live().await;
    let (one, other) = (
        create(&life, "one", "vgpu:A100D-20C").await.unwrap(),
        create(&life, "other", "vgpu:A100D-20C").await.unwrap(),
    );
    life.settle(one).await;
    life.settle(other).await;
    let held = names(&life, one).await[0];
    world.gpus.open_mdev(held);
    life.power(other, Wanted::Stop).await.unwrap();
    life.settle(other).await;
    assert_eq!(made(&world, CARD).await.iter().map(|made| made.uuid).collect::<Vec<_>>(), [Some(held)]);
    life.power(one, Wanted::Stop).await.unwrap();
    for _ in 0..4 {
        reconciler::look(&life.manager, one).await.unwrap();
    }
    assert_eq!((made(&world, CARD).await.len(), life.store.leases().await.unwrap().len()), (1, 1));
    world.gpus.close_mdevs();
    life.settle(one).await;
    assert_eq!((made(&world, CARD).await.len(), life.store.leases().await.unwrap().len()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mediated_device_is_plugged_into_a_running_machine() {
    let world = mediated();
    let life = world.live().await;
    let vm = life.create("train").await.unwrap();
    life.settle(vm).await;
    let gpus = Some(GpuRequest::parse_list(&["vgpu:A100D-10C"]).unwrap());
    let request = gvm::manager::change::ChangeRequest { gpus, ..Default::default() };
    let permit = life.manager.permit_vm(&life.member, Action::VmChange, &vm.to_string(), false).await.unwrap();
    life.manager.change(&permit, request).await.unwrap();
    assert_eq!(life.settle(vm).await, ["ensure-gpu-bound", "attach-gpu"]);
    assert_eq!(devices(&world, vm), [names(&life, vm).await[0].to_string()]);
    life.power(vm, Wanted::Stop).await.unwrap();
    life.settle(vm).await;
    assert!(made(&world, CARD).await.is_empty() && devices(&world, vm).is_empty());
}

/// Of a mediated device nothing but its lease tells whose it is: neither another request nor a card that is out of use
/// makes a stranger's of it.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_machine_is_not_to_have_any_more_is_taken_away_before_its_start() {
    let world = mediated();
    world.gpus.show(gvm::model::card::Discovery {
        cards: vec![card(CARD), card(OTHER)],
        ..gvm::model::card::Discovery::default()
    });
    for address in [CARD, OTHER] {
        world.gpus.mediate(at(address), &["A100D-40C"]);
    }
    let life = world.live().await;
    let vm = create(&life, "train", "vgpu:A100D-40C").await.unwrap();
    life.settle(vm).await;
    let set = async |gpus: &[&str]| {
        let gpus = Some(GpuRequest::parse_list(gpus).unwrap());
        let request = gvm::manager::change::ChangeRequest { gpus, ..Default::default() };
        let permit = life.manager.permit_vm(&life.member, Action::VmChange, &vm.to_string(), false).await.unwrap();
        life.manager.change(&permit, request).await.unwrap();
    };
    // Off, and nothing given back yet.
    let off = async || {
        life.power(vm, Wanted::ForceStop).await.unwrap();
        while world.fake.peek(vm).is_active() || life.store.vm(vm).await.unwrap().unwrap().started_at.is_some() {
            reconciler::look(&life.manager, vm).await.unwrap();
        }
        assert!(!life.store.leases_of(vm).await.unwrap().is_empty() || made(&world, CARD).await.is_empty());
    };
    for gpus in [&[][..], &["vgpu:A100D-40C", "vgpu:A100D-40C"]] {
        off().await;
        set(gpus).await;
        life.power(vm, Wanted::Start).await.unwrap();
        life.settle(vm).await;
        assert_eq!(life.state(vm).await, Some(VmState::Running), "{gpus:?}");
        assert_eq!(made(&world, CARD).await.len(), gpus.len(), "{gpus:?}");
        assert_eq!((life.store.leases().await.unwrap().len(), devices(&world, vm).len()), (gpus.len(), gpus.len()));
    }
    // Its card goes out of use: what is made there goes before the machine runs elsewhere.
    off().await;
    change(&life, CARD, GpuChange::Withhold { why: "noise".to_owned() }).await.unwrap();
    life.power(vm, Wanted::Start).await.unwrap();
    life.settle(vm).await;
    assert_eq!(life.state(vm).await, Some(VmState::Running));
    assert_eq!((made(&world, CARD).await.len(), made(&world, OTHER).await.len()), (0, 2));
    assert_eq!(life.store.leases().await.unwrap().len(), 2);
}
