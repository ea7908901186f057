//! Every kind that can be counted is enforced by an admission.

use gvm::model::quota::{COMING, Limit, QuotaKind};
use gvm::model::units::Mib;

use super::*;
use crate::support::cards::{at, host};
use crate::support::world::World;

const CARD: &str = "0000:41:00.0";
const DIVIDED: &str = "0000:81:00.0";

/// A limit of a kind, a machine that it has room for, and what it then has no room for.
fn attempt(kind: QuotaKind) -> (u64, CreateRequest, CreateRequest) {
    let vgpu = |name: &str| with_gpu(name, "vgpu:A100D-20C");
    match kind {
        QuotaKind::Vms => (1, small("one"), small("two")),
        QuotaKind::RunningVms => (1, up("one"), up("two")),
        QuotaKind::Vcpus => {
            (3, CreateRequest { vcpus: Some(2), ..up("one") }, CreateRequest { vcpus: Some(2), ..up("two") })
        }
        QuotaKind::Memory => (100, up("one"), up("two")),
        QuotaKind::Disk => (150, small("one"), small("two")),
        QuotaKind::Gpus => (1, vgpu("one"), with_gpu("two", "a100")),
        QuotaKind::GpuMemory => (40 << 10, vgpu("one"), with_gpu("two", "a100")),
        QuotaKind::GpuSlices => (1, vgpu("one"), vgpu("two")),
        QuotaKind::GpuHours => (1, vgpu("one"), vgpu("two")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_is_enforced() {
    for kind in QuotaKind::ALL {
        let mut world = World::new();
        world.gpus = host(&[CARD, DIVIDED]);
        world.gpus.divide(at(DIVIDED), 8, &["A100D-20C", "A100D-40C"]);
        let life = world.live().await;
        let eve = person(&life.store, "eva", &[]).await;
        let (allowed, fits, is_over) = attempt(*kind);
        // Nothing at all is to be had below it; then exactly as much as it says.
        limit(&life.store, id(&eve), &[(*kind, 0)]).await;
        let text = refused(create(&life.manager, &eve, fits.clone()).await);
        assert!(text.starts_with(&format!("over your quota of {}: ", kind.noun())), "{text}");
        limit(&life.store, id(&eve), &[(*kind, allowed)]).await;
        let first = create(&life.manager, &eve, fits).await.unwrap();
        if *kind == QuotaKind::GpuHours {
            // Four hours of a quarter.
            super::hours::hold_for(&life, first, 4).await;
        }
        let text = refused(create(&life.manager, &eve, is_over.clone()).await);
        assert!(text.starts_with(&format!("over your quota of {}: ", kind.noun())), "{text}");
        assert!(!text.contains(';'), "of no other kind: {text}");
        // Time goes on while this runs.
        let most = Limit::At(allowed).amount(*kind).unwrap() + if *kind == QuotaKind::GpuHours { 60 } else { 0 };
        assert!(used(&life.store, Holder::User(id(&eve))).await.get(*kind) <= most);
        // Nobody else's is touched, and none is none.
        let adam = person(&life.store, "adam", &[]).await;
        create(&life.manager, &adam, small("one")).await.unwrap();
        limit(&life.store, id(&eve), &[]).await;
        create(&life.manager, &eve, is_over).await.unwrap();
        // A team's limit is one as well.
        let hpc = team(&life.store, "hpc", &[(*kind, 0)], &[]).await;
        let mate = person(&life.store, "mate", &[hpc]).await;
        let text = refused(create(&life.manager, &mate, attempt(*kind).1).await);
        assert!(text.starts_with(&format!("over team hpc's quota of {}: ", kind.noun())), "{text}");
    }
}

/// Everything that the issue wants counted is a kind, or comes with its feature.
#[test]
fn every_kind_is_there_or_said_to_come() {
    let wanted = [
        "vms",
        "running_vms",
        "vcpus",
        "memory",
        "disk",
        "snapshots",
        "ports",
        "gpus",
        "gpu_memory",
        "gpu_slices",
        "gpu_hours",
    ];
    let there: Vec<&str> = QuotaKind::ALL.iter().map(|kind| kind.word()).collect();
    let coming: Vec<&str> = COMING.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(coming, ["snapshots", "ports"]);
    for kind in wanted {
        assert!(there.contains(&kind) != coming.contains(&kind), "{kind}");
    }
    assert_eq!(there.len() + coming.len(), wanted.len());
}

/// What is asked for by size alone is counted by the card that it gets; a card's memory is known only then.
#[tokio::test(flavor = "multi_thread")]
async fn a_card_counts_with_its_own_memory() {
    let mut world = World::new();
    world.gpus = host(&[CARD]);
    let life = world.live().await;
    let eve = person(&life.store, "eva", &[]).await;
    limit(&life.store, id(&eve), &[(QuotaKind::GpuMemory, 79 << 10)]).await;
    let text = refused(create(&life.manager, &eve, with_gpu("big", "1")).await);
    insta::assert_snapshot!(text, @"over your quota of GPU memory: you have 0 MiB, this asks for 80 GiB, the limit is 79 GiB: 1 GiB too much");
    assert!(life.store.leases().await.unwrap().is_empty(), "nothing is left of it");
    limit(&life.store, id(&eve), &[(QuotaKind::GpuMemory, 80 << 10), (QuotaKind::GpuSlices, 0)]).await;
    create(&life.manager, &eve, with_gpu("big", "1")).await.unwrap();
    let used = used(&life.store, Holder::User(id(&eve))).await;
    let held = [QuotaKind::Gpus, QuotaKind::GpuMemory, QuotaKind::GpuSlices].map(|kind| used.get(kind));
    assert_eq!(held, [1, 80 << 10, 0]);
    // What is full is told before what is not there: over quota, not out of cards.
    limit(&life.store, id(&eve), &[(QuotaKind::Gpus, 1), (QuotaKind::Memory, 100)]).await;
    let request = CreateRequest { memory: Some(Mib(128)), ..with_gpu("more", "1") };
    insta::assert_snapshot!(refused(create(&life.manager, &eve, request).await), @"over your quota of memory: you have 64 MiB, this asks for 128 MiB, the limit is 100 MiB: 92 MiB too much; over your quota of GPUs: you have 1, this asks for 1, the limit is 1: 1 too many");
}
