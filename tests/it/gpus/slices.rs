//! vGPUs between machines: admission, making, taking away, and what goes wrong with it.

use gvm::model::card::vgpu::MadeVgpu;

use super::*;

/// The first three of a card's virtual functions.
const VFS: [&str; 3] = ["0000:41:01.0", "0000:41:01.1", "0000:41:01.2"];

/// A card of 80 GiB with eight virtual functions.
fn divided() -> World {
    let world = world(&[CARD]);
    world.gpus.divide(at(CARD), 8, &["A100D-10C", "A100D-20C", "A100D-40C"]);
    world
}

async fn made(world: &World) -> Vec<Vec<MadeVgpu>> {
    let states = world.gpus.functions(&VFS.map(at)).await.unwrap();
    states.into_iter().map(|state| state.vgpus).collect()
}

/// How many vGPUs the first three functions carry.
async fn counts(world: &World) -> Vec<usize> {
    made(world).await.iter().map(Vec::len).collect()
}

async fn offers(life: &Life) -> HashMap<String, u32> {
    let offers = life.manager.gpu_offers(&life.permit(Action::GpuSee)).await.unwrap();
    offers.into_iter().map(|offer| (offer.request.to_string(), offer.free)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_has_a_vgpu_and_it_is_gone_after_the_stop() {
    let world = divided();
    let life = world.live().await;
    assert_eq!(offers(&life).await["vgpu:A100D-20C"], 4);
    let vm = create(&life, "train", "vgpu:A100D-20C").await.unwrap();
    let begun = ["ensure-gpu-bound", "ensure-disk", "ensure-seed", "define", "start", "record-started"];
    assert_eq!(life.settle(vm).await, begun);
    assert_eq!(counts(&world).await, [1, 0, 0]);
    let gvm::model::state::Observed::Defined(domain) = world.fake.peek(vm) else { panic!("no domain") };
    assert_eq!(domain.hostdevs, [VFS[0]], "the virtual function, and nothing of the card");
    assert_eq!(drivers(&world, CARD).await, HOST, "the card stays with its driver");
    let shown = states(&life).await;
    assert_eq!(
        (shown[CARD], shown[VFS[0]], shown[VFS[1]]),
        (GpuState::Divided, GpuState::InUse, GpuState::VirtualFunction)
    );
    // What is offered is what is left, and of one size.
    let left = offers(&life).await;
    assert_eq!((left["vgpu:A100D-20C"], left["vgpu:A100D-40C"]), (3, 0));
    let (kind, text) = told(create(&life, "large", "vgpu:A100D-40C").await.unwrap_err());
    assert_eq!(kind, Kind::NoCapacity);
    assert!(text.contains("it is set to profiles of 20 GiB"), "{text}");
    // The whole card is not to be had meanwhile.
    let (_, text) = told(create(&life, "whole", "1").await.unwrap_err());
    assert!(text.contains("8 virtual functions of it are switched on"), "{text}");
    // A size gets the smallest that has it; here only one size goes.
    let second = create(&life, "second", "12GiB").await.unwrap();
    life.settle(second).await;
    assert_eq!(counts(&world).await, [1, 1, 0]);
    life.power(vm, Wanted::Stop).await.unwrap();
    assert_eq!(life.settle(vm).await, ["record-off", "define", "release-gpu"]);
    assert_eq!(counts(&world).await, [0, 1, 0]);
    life.power(second, Wanted::DeleteNow).await.unwrap();
    life.settle(second).await;
    assert!(life.store.leases().await.unwrap().is_empty());
    assert_eq!((counts(&world).await, offers(&life).await["vgpu:A100D-40C"]), (vec![0, 0, 0], 2));
}

/// Case B-leak-on-failed-start.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_again_and_again_leaves_nothing_behind() {
    let world = divided();
    let life = world.live().await;
    for number in 0..5 {
        world.gpus.fail_next_vgpu(BindError::Failed("the driver says no".to_owned()));
        let vm = create(&life, &format!("broken-{number}"), "vgpu:A100D-40C").await.unwrap();
        life.settle(vm).await;
        assert_eq!(life.state(vm).await.unwrap(), VmState::Running, "the second try");
        life.power(vm, Wanted::DeleteNow).await.unwrap();
        life.settle(vm).await;
    }
    assert_eq!(counts(&world).await, [0, 0, 0]);
    assert_eq!(offers(&life).await["vgpu:A100D-40C"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_every_step_loses_and_doubles_no_vgpu() {
    for (is_stop, most) in [(false, 7), (true, 4)] {
        for crash_after in 0..=most {
            let world = divided();
            let (life, vm) = crashed(&world, "vgpu:A100D-40C", is_stop, crash_after).await;
            let held = life.store.leases().await.unwrap().len();
            let should = if is_stop { (VmState::Stopped, 0) } else { (VmState::Running, 1) };
            assert_eq!((life.state(vm).await.unwrap(), held), should, "stop {is_stop}, after {crash_after} steps");
            assert_eq!(counts(&world).await, [held, 0, 0], "stop {is_stop}, after {crash_after} steps");
        }
    }
}

/// Case B-state-lost-on-reboot: the driver forgets all types; the machine gets its own again before it starts.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_driver_forgets_is_made_again() {
    let world = divided();
    let life = world.live().await;
    let vm = create(&life, "train", "vgpu:A100D-20C").await.unwrap();
    life.settle(vm).await;
    let before = life.store.leases().await.unwrap();
    life.crash().await;
    world.fake.destroy_behind(vm);
    world.gpus.forget_vgpus();
    let life = world.live().await;
    life.settle(vm).await;
    assert_eq!(life.state(vm).await.unwrap(), VmState::Running);
    assert_eq!(counts(&world).await, [1, 0, 0]);
    assert_eq!(life.store.leases().await.unwrap()[0].partition, before[0].partition);
}

/// Case B-cleanup-too-eager: what is made and not ours is shown, counted and left alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_strangers_vgpu_is_left_alone() {
    let world = divided();
    let life = world.live().await;
    let make = |vf: &str| gvm::model::card::vgpu::VgpuJob::Make {
        site: vf.parse().unwrap(),
        name: gvm::model::gpu::VgpuTypeName::parse("A100D-40C").unwrap(),
    };
    world.gpus.vgpu(&make(VFS[0])).await.unwrap();
    assert_eq!(offers(&life).await["vgpu:A100D-40C"], 1);
    let vm = create(&life, "train", "vgpu:A100D-40C").await.unwrap();
    life.settle(vm).await;
    assert_eq!(counts(&world).await, [1, 1, 0]);
    life.power(vm, Wanted::DeleteNow).await.unwrap();
    life.settle(vm).await;
    assert_eq!(counts(&world).await, [1, 0, 0], "only our own went");
    let listing = life.manager.gpus(&life.permit(Action::GpuSee)).await.unwrap();
    let row = listing.rows.iter().find(|row| row.entry.address() == Some(at(VFS[0]))).unwrap();
    assert!(row.reasons.contains(&"carries A100D-40C".to_owned()), "{:?}", row.reasons);
}

/// A vGPU that is still open after the machine's end is not cleared: that would block in the kernel.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_still_open_is_taken_away_later() {
    let world = divided();
    let life = world.live().await;
    let vm = create(&life, "train", "vgpu:A100D-40C").await.unwrap();
    life.settle(vm).await;
    let device = "/dev/vfio/devices/vfio9".to_owned();
    world.gpus.open(at(VFS[0]), Holder { pid: 9, comm: "qemu".to_owned(), device, domain: None });
    life.power(vm, Wanted::Stop).await.unwrap();
    for _ in 0..4 {
        reconciler::look(&life.manager, vm).await.unwrap();
    }
    assert_eq!((counts(&world).await, life.store.leases().await.unwrap().len()), (vec![1, 0, 0], 1));
    world.gpus.close(at(VFS[0]));
    life.settle(vm).await;
    assert_eq!((counts(&world).await, life.store.leases().await.unwrap().len()), (vec![0, 0, 0], 0));
}
