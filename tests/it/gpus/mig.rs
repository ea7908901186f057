//! MIG between machines: an administrator's mode, instances on demand, a fixed layout, a restart of the host, and others
//! who change the card beside gvm.

use gvm::model::card::shape::{ShapeJob, parse_instance};
use gvm::model::gpu::mig::fixtures::a100_80;

use super::*;

const VF: &str = "0000:41:01.0";
const TYPES: [&str; 7] =
    ["A100D-1-10C", "A100D-2-20C", "A100D-3-40C", "A100D-4-40C", "A100D-7-80C", "A100D-20C", "A100D-40C"];

/// A card that can be divided, and is not. MIG changes at its next reset, as on Ampere.
fn dividable(cards: &[&str]) -> World {
    let world = world(cards);
    cards.iter().for_each(|card| world.gpus.can_divide(at(card), 8, &TYPES, Some(a100_80()), true));
    world
}

async fn mode(life: &Life, mode: WantedMode) -> gvm::manager::Result<()> {
    change(life, CARD, GpuChange::Mode(mode)).await
}

/// A host with a card in mode mig.
async fn divided() -> (World, Life) {
    let world = dividable(&[CARD]);
    let life = world.live().await;
    mode(&life, WantedMode::Mig).await.unwrap();
    (world, life)
}

/// The instances of the card, sorted.
async fn instances(world: &World) -> Vec<String> {
    let seen = world.gpus.discover().await.unwrap();
    let mig = seen.card(at(CARD)).unwrap().mig().unwrap().clone();
    let mut all: Vec<String> = mig.instances.iter().map(|made| made.instance.to_string()).collect();
    all.sort();
    all
}

/// The instance behind each function's vGPU.
async fn stands(world: &World) -> Vec<u32> {
    let seen = world.gpus.discover().await.unwrap();
    let facts = seen.cards.iter().filter_map(|card| card.vgpu.as_ref());
    facts.flat_map(|facts| &facts.made).filter_map(|made| made.gpu_instance).collect()
}

async fn free(life: &Life) -> HashMap<String, u32> {
    let offers = life.manager.gpu_offers(&life.permit(Action::GpuSee)).await.unwrap();
    offers.into_iter().map(|offer| (offer.request.to_string(), offer.free)).collect()
}

async fn reasons(life: &Life) -> String {
    let listing = life.manager.gpus(&life.permit(Action::GpuSee)).await.unwrap();
    listing.rows.iter().find(|row| row.entry.address() == Some(at(CARD))).unwrap().reasons.join("; ")
}

async fn is_clean(life: &Life) -> bool {
    let row = life.store.gpus().await.unwrap().remove(0);
    row.own_instances.is_empty() && life.store.leases().await.unwrap().is_empty()
}

#[tokio::test(flavor = "multi_thread")]
async fn slices_are_made_when_they_are_wanted_and_gone_after_the_stop() {
    let (world, life) = divided().await;
    let offered = free(&life).await;
    let counts =
        ["mig:1g.10gb", "mig:2g.20gb", "mig:3g.40gb", "mig:7g.80gb", "vgpu:A100D-20C"].map(|what| offered[what]);
    assert_eq!(counts, [7, 3, 2, 1, 0]);
    let first = create(&life, "first", "mig:3g.40gb").await.unwrap();
    life.settle(first).await;
    assert_eq!(life.state(first).await.unwrap(), VmState::Running);
    let gvm::model::state::Observed::Defined(domain) = world.fake.peek(first) else { panic!("no domain") };
    assert_eq!(domain.hostdevs, [VF], "the virtual function");
    assert_eq!(instances(&world).await, ["3g.40gb@4"], "4g has its room still");
    assert_eq!((free(&life).await["mig:4g.40gb"], free(&life).await["mig:7g.80gb"]), (1, 0));
    // By size: the smallest that has it; by the type's name as well.
    let small = create(&life, "small", "9GiB").await.unwrap();
    let named = create(&life, "named", "vgpu:A100D-2-20C").await.unwrap();
    life.settle(small).await;
    life.settle(named).await;
    assert_eq!(instances(&world).await.len(), 3);
    assert_eq!(stands(&world).await.len(), 3, "each on its own");
    let (kind, text) = told(create(&life, "large", "mig:7g.80gb").await.unwrap_err());
    assert_eq!(kind, Kind::NoCapacity);
    insta::assert_snapshot!(text);
    for vm in [first, small, named] {
        life.power(vm, Wanted::DeleteNow).await.unwrap();
        life.settle(vm).await;
    }
    assert_eq!(instances(&world).await, [""; 0]);
    life.manager.keep_gpus_tidy().await;
    assert!(is_clean(&life).await);
    assert_eq!(free(&life).await["mig:7g.80gb"], 1);
}

/// Case B-mig-fragmentation: what is refused for where things lie, is said to be so, and what would mend it.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_says_whose_move_would_make_room() {
    let (world, life) = divided().await;
    // Somebody beside gvm has put it badly; a machine of ours takes it, as it is of the right profile.
    world.gpus.meddle(&ShapeJob::MakeInstance { card: at(CARD), instance: parse_instance("1g.10gb@0:1").unwrap() });
    let vm = create(&life, "first", "mig:1g.10gb").await.unwrap();
    life.settle(vm).await;
    assert_eq!(instances(&world).await, ["1g.10gb@0"], "the idle one was used");
    let (kind, text) = told(create(&life, "large", "mig:4g.40gb").await.unwrap_err());
    assert_eq!(kind, Kind::NoCapacity);
    assert!(text.contains("move VM first"), "{text}");
    life.power(vm, Wanted::DeleteNow).await.unwrap();
    life.settle(vm).await;
    life.manager.keep_gpus_tidy().await;
    assert_eq!(instances(&world).await, ["1g.10gb@0"], "what others made stays");
    let (_, text) = told(create(&life, "large", "mig:4g.40gb").await.unwrap_err());
    assert!(text.contains("remove the idle 1g.10gb@0"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_every_step_loses_and_doubles_no_instance() {
    for (is_stop, most) in [(false, 7), (true, 4)] {
        for crash_after in 0..=most {
            let world = dividable(&[CARD]);
            let life = world.live().await;
            mode(&life, WantedMode::Mig).await.unwrap();
            life.crash().await;
            let (life, vm) = crashed(&world, "mig:2g.20gb", is_stop, crash_after).await;
            life.manager.keep_gpus_tidy().await;
            let held = life.store.leases().await.unwrap().len();
            let should = if is_stop { (VmState::Stopped, 0) } else { (VmState::Running, 1) };
            assert_eq!((life.state(vm).await.unwrap(), held), should, "stop {is_stop}, after {crash_after} steps");
            assert_eq!(instances(&world).await.len(), held, "stop {is_stop}, after {crash_after} steps");
        }
    }
}

/// Case B-state-lost-on-reboot, and B-vm-back-without-gpu: mode, functions, instance and vGPU come before the machine.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_host_is_made_good_before_machines_start() {
    let (world, life) = divided().await;
    let vm = create(&life, "train", "mig:3g.40gb").await.unwrap();
    life.settle(vm).await;
    life.crash().await;
    world.fake.destroy_behind(vm);
    world.gpus.restart();
    let life = world.live_with(|host| host.boot_id = "boot-2".to_owned()).await;
    life.manager.restore_gpus().await;
    life.settle(vm).await;
    assert_eq!(life.state(vm).await.unwrap(), VmState::Running);
    assert_eq!((instances(&world).await.len(), stands(&world).await.len()), (1, 1));
    assert!(!reasons(&life).await.contains("is not divided as it should be"), "{}", reasons(&life).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_does_not_come_back_keeps_no_other_from_it() {
    let world = dividable(&[CARD, OTHER]);
    let life = world.live().await;
    for card in [CARD, OTHER] {
        change(&life, card, GpuChange::Mode(WantedMode::Vgpu)).await.unwrap();
    }
    life.crash().await;
    world.gpus.restart();
    world.gpus.fail_next_shape(BindError::Failed("sriov-manage said no".to_owned()));
    let life = world.live_with(|host| host.boot_id = "boot-2".to_owned()).await;
    life.manager.restore_gpus().await;
    let shown = states(&life).await;
    let both = [shown[CARD], shown[OTHER]];
    assert!(both.contains(&GpuState::Withheld) && both.contains(&GpuState::Divided), "{both:?}");
    let vm = create(&life, "train", "vgpu:A100D-40C").await.unwrap();
    life.settle(vm).await;
    assert_eq!(life.state(vm).await.unwrap(), VmState::Running);
}

/// Two managers of MIG at once: what the other does is told, and not undone.
#[tokio::test(flavor = "multi_thread")]
async fn what_others_change_is_told_and_not_fought() {
    let (world, life) = divided().await;
    world.gpus.meddle(&ShapeJob::MakeInstance { card: at(CARD), instance: parse_instance("4g.40gb@0:4").unwrap() });
    assert_eq!((free(&life).await["mig:4g.40gb"], free(&life).await["mig:7g.80gb"]), (1, 0));
    world.gpus.meddle(&ShapeJob::Functions { card: at(CARD), count: Some(0) });
    assert!(reasons(&life).await.contains("switching on all virtual functions of 0000:41:00.0 is missing"));
    life.crash().await;
    let life = world.live().await;
    life.manager.restore_gpus().await;
    assert!(reasons(&life).await.contains("is missing"), "in the same boot nothing is done again by itself");
    mode(&life, WantedMode::Mig).await.unwrap();
    assert!(!reasons(&life).await.contains("is missing"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_in_use_is_not_divided_otherwise() {
    let (_world, life) = divided().await;
    let vm = create(&life, "train", "mig:1g.10gb").await.unwrap();
    life.settle(vm).await;
    for other in [WantedMode::Vgpu, WantedMode::Host, WantedMode::Passthrough] {
        let (kind, text) = told(mode(&life, other).await.unwrap_err());
        assert_eq!((kind, text.contains("held by VM train")), (Kind::Conflict, true), "{text}");
    }
    life.power(vm, Wanted::DeleteNow).await.unwrap();
    life.settle(vm).await;
    life.manager.keep_gpus_tidy().await;
    mode(&life, WantedMode::Host).await.unwrap();
    assert_eq!(states(&life).await[CARD], GpuState::Free);
    let (_, text) = told(create(&life, "none", "mig:1g.10gb").await.unwrap_err());
    assert!(text.contains("A bare MIG instance is no PCI device"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_fails_is_told_and_not_remembered() {
    let world = dividable(&[CARD]);
    let life = world.live().await;
    world.gpus.fail_next_shape(BindError::Failed("the driver says no".to_owned()));
    let (kind, text) = told(mode(&life, WantedMode::Vgpu).await.unwrap_err());
    assert_eq!((kind, text.contains("the driver says no")), (Kind::Conflict, true), "{text}");
    assert_eq!(life.store.gpus().await.unwrap()[0].shape, None);
    assert_eq!(states(&life).await[CARD], GpuState::Free);
}

/// What the driver would not take away is gone once the card is readmitted, and the instance behind it.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_left_of_a_machine_is_taken_away_after_the_readmission() {
    let (world, life) = divided().await;
    let vm = create(&life, "train", "mig:3g.40gb").await.unwrap();
    life.settle(vm).await;
    world.gpus.fail_next_vgpu(BindError::Failed("the driver says no".to_owned()));
    life.power(vm, Wanted::DeleteNow).await.unwrap();
    life.settle(vm).await;
    assert_eq!(states(&life).await[CARD], GpuState::Withheld);
    life.manager.keep_gpus_tidy().await;
    assert_eq!((instances(&world).await.len(), stands(&world).await.len()), (1, 1), "nothing is done to it meanwhile");
    change(&life, CARD, GpuChange::ReadmitUntested).await.unwrap();
    life.manager.keep_gpus_tidy().await;
    life.manager.keep_gpus_tidy().await;
    assert_eq!((instances(&world).await.len(), stands(&world).await.len()), (0, 0));
    assert!(is_clean(&life).await);
}
