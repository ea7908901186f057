//! The field's cases of group B with their inputs, where no other test has them.

use gvm::hypervisor::ErrorKind;
use gvm::hypervisor::fake::Op;
use gvm::model::card::vgpu::{VgpuJob, VgpuSite};
use gvm::model::gpu::{VgpuPolicy, VgpuTypeName};
use gvm::model::state::Observed;
use uuid::Uuid;

use super::*;

async fn free(life: &Life, what: &str) -> u32 {
    let offers = life.manager.gpu_offers(&life.permit(Action::GpuSee)).await.unwrap();
    offers.into_iter().find(|offer| offer.request.to_string() == what).map_or(0, |offer| offer.free)
}

/// Case B-leak-on-failed-start: three are available, and a start fails after the vGPU was made, five times.
#[tokio::test(flavor = "multi_thread")]
async fn five_failed_starts_leave_no_mediated_device() {
    let world = world(&[CARD]);
    world.gpus.mediate(at(CARD), &["A100D-26C"]);
    let life = world.live().await;
    assert_eq!(free(&life, "vgpu:A100D-26C").await, 3);
    let vm = create(&life, "train", "vgpu:A100D-26C").await.unwrap();
    let made = async || world.gpus.functions(&[at(CARD)]).await.unwrap().remove(0).vgpus.len();
    for attempt in 0..5 {
        world.fake.fail_next(Op::Start, ErrorKind::Permanent, 1);
        if attempt > 0 {
            life.power(vm, Wanted::Start).await.unwrap();
        }
        life.settle(vm).await;
        assert!(made().await <= 1, "attempt {attempt}");
    }
    life.power(vm, Wanted::ForceStop).await.unwrap();
    life.settle(vm).await;
    assert_eq!((made().await, free(&life, "vgpu:A100D-26C").await), (0, 3));
}

/// Case B-cleanup-too-eager: A is recorded and its machine is gone; B is unknown; C is recorded and somebody has it open.
#[tokio::test(flavor = "multi_thread")]
async fn of_three_mediated_devices_only_the_own_one_that_nobody_has_goes() {
    let world = world(&[CARD]);
    world.gpus.mediate(at(CARD), &["A100D-20C"]);
    let life = world.live().await;
    let mut own = Vec::new();
    for name in ["a", "c"] {
        let vm = create(&life, name, "vgpu:A100D-20C").await.unwrap();
        life.settle(vm).await;
        let site = life.store.leases_of(vm).await.unwrap()[0].partition.vgpu().unwrap().0;
        own.push((vm, site.uuid.unwrap()));
    }
    let foreign = Uuid::from_u128(11);
    let site = VgpuSite { parent: at(CARD), uuid: Some(foreign) };
    let name = VgpuTypeName::parse("A100D-20C").unwrap();
    world.gpus.vgpu(&VgpuJob::Make { site, name }).await.unwrap();
    world.gpus.open_mdev(own[1].1);
    life.crash().await;
    let life = world.live().await;
    for (vm, _) in &own {
        world.fake.destroy_behind(*vm);
        life.power(*vm, Wanted::DeleteNow).await.unwrap();
        for _ in 0..6 {
            reconciler::look(&life.manager, *vm).await.unwrap();
        }
    }
    life.manager.keep_gpus_tidy().await;
    let mut left: Vec<Uuid> =
        world.gpus.functions(&[at(CARD)]).await.unwrap()[0].vgpus.iter().filter_map(|made| made.uuid).collect();
    let mut should = vec![foreign, own[1].1];
    left.sort();
    should.sort();
    assert_eq!(left, should);
}

/// Case B-vm-back-without-gpu: the record says that it has a card, and the machine runs without.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_runs_without_its_card_is_not_well() {
    let world = world(&[CARD]);
    let life = world.live().await;
    let vm = create(&life, "train", "1").await.unwrap();
    life.settle(vm).await;
    world.fake.lose_devices(vm);
    assert_eq!(states(&life).await[CARD], GpuState::InUse, "a card with a lease is never idle");
    life.settle(vm).await;
    let Observed::Defined(domain) = world.fake.peek(vm) else { panic!("no domain") };
    assert_eq!((domain.hostdevs.len(), life.store.leases().await.unwrap().len()), (2, 1));
}

/// Case B-helper-missing: gvm needs no `mdevctl`, so that its absence disables nothing.
#[tokio::test(flavor = "multi_thread")]
async fn no_program_is_needed_for_mediated_devices() {
    let world = world(&[CARD, OTHER]);
    world.gpus.mediate(at(CARD), &["A100D-20C"]);
    let life = world.live().await;
    for (name, asked) in [("part", "vgpu:A100D-20C"), ("whole", "1")] {
        let vm = create(&life, name, asked).await.unwrap();
        life.settle(vm).await;
        assert_eq!(life.state(vm).await, Some(VmState::Running), "{name}");
    }
    let code = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let named = walk(&code).into_iter().find(|file| {
        let text = std::fs::read_to_string(file).unwrap();
        text.contains("\"mdevctl\"") || text.contains("/mdevctl")
    });
    assert_eq!(named, None, "a file that runs mdevctl");
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

/// Case B-spread-over-parents: who configures the manager says which.
#[tokio::test(flavor = "multi_thread")]
async fn machines_are_packed_on_cards_or_spread_over_them() {
    for (policy, cards) in [(VgpuPolicy::Pack, 1), (VgpuPolicy::Spread, 2)] {
        let mut world = world(&[CARD, OTHER]);
        world.config.gpu.vgpu_policy = policy;
        [CARD, OTHER].iter().for_each(|card| world.gpus.mediate(at(card), &["A100D-20C"]));
        let life = world.live().await;
        for name in ["one", "two"] {
            create(&life, name, "vgpu:A100D-20C").await.unwrap();
        }
        let leases = life.store.leases().await.unwrap();
        let used: std::collections::HashSet<_> = leases.iter().map(|lease| lease.partition.gpu().clone()).collect();
        assert_eq!(used.len(), cards, "{policy:?}");
    }
}
