//! Many at once at the edge: exactly the limit is admitted.

use std::collections::{BTreeMap, HashSet};

use gvm::store::vms::VmFilter;

use super::*;
use crate::support::cards::{at, host};
use crate::support::world::World;

/// Requests at once.
const CROWD: usize = 500;

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn of_500_at_once_exactly_the_limit_is_admitted() {
    for (delay, allowed) in [(1, 37), (3_000, 1), (30_000, 12)] {
        let world = World::new();
        let life = world.live().await;
        let eve = person(&life.store, "eva", &[]).await;
        limit(&life.store, id(&eve), &[(QuotaKind::Vms, allowed)]).await;
        let results = at_once(&life, delay, (0..CROWD).map(|n| making(&eve, small(&format!("m{n}"))))).await;
        assert_eq!(accepted(&results).len() as u64, allowed, "of {CROWD} within {delay} us");
        assert_eq!(used(&life.store, Holder::User(id(&eve))).await.get(QuotaKind::Vms), allowed);
        let rows = life
            .store
            .vms(VmFilter { owner: Some(id(&eve)), team: None, with_deleted: true, limit: 1000 })
            .await
            .unwrap();
        assert_eq!(rows.len() as u64, allowed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn of_500_by_all_members_at_once_exactly_the_teams_limit_is_admitted() {
    for (delay, kind, allowed) in [(1, QuotaKind::Vms, 23), (10_000, QuotaKind::Memory, 64 * 31)] {
        let world = World::new();
        let life = world.live().await;
        let hpc = team(&life.store, "hpc", &[(kind, allowed)], &[(QuotaKind::Vms, 40)]).await;
        let mut tasks = Vec::new();
        for member in 0..10 {
            let by = person(&life.store, &format!("member-{member}x"), &[hpc]).await;
            tasks.extend((0..CROWD / 10).map(|n| making(&by, up(&format!("m{n}")))));
        }
        let results = at_once(&life, delay, tasks).await;
        let used = used(&life.store, Holder::Team(hpc)).await;
        assert_eq!(used.get(kind), allowed, "{} within {delay} us", accepted(&results).len());
        assert_eq!(used.get(QuotaKind::Vms), accepted(&results).len() as u64);
    }
}

/// Case F-same-gpu-twice: two cards of four vGPUs each, and four people who may have two and ask for five at once. The
/// manager dies between the reservation and the start, again and again. `GVM_ROUNDS` says how often.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn eight_parts_and_twenty_requests_of_people_who_may_have_two() {
    let rounds = std::env::var("GVM_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(12);
    let mut world = World::new_in(std::path::Path::new("/dev/shm"));
    world.gpus = host(&["0000:41:00.0", "0000:81:00.0"]);
    for card in ["0000:41:00.0", "0000:81:00.0"] {
        world.gpus.divide(at(card), 8, &["A100D-20C"]);
    }
    let mut life = world.live().await;
    let mut people = Vec::new();
    for number in 0..4 {
        let by = person(&life.store, &format!("asks-{number}x"), &[]).await;
        limit(&life.store, id(&by), &[(QuotaKind::Gpus, 2), (QuotaKind::GpuMemory, 40 << 10)]).await;
        people.push(by);
    }
    for round in 0..rounds {
        let asks = |by| (0..5).map(move |n| making(by, with_gpu(&format!("m{n}"), "vgpu:A100D-20C")));
        let results = at_once(&life, [1, 1_000, 20_000][round % 3], people.iter().flat_map(asks)).await;
        let kinds: BTreeMap<String, usize> = results.iter().fold(BTreeMap::new(), |mut kinds, result| {
            let kind = result.as_ref().map_or_else(|e| format!("{:?}", e.kind), |_| "admitted".to_owned());
            *kinds.entry(kind).or_default() += 1;
            kinds
        });
        let wanted = BTreeMap::from([("admitted".to_owned(), 8), ("OverQuota".to_owned(), 12)]);
        assert_eq!(kinds, wanted, "round {round}");
        for by in &people {
            assert_eq!(used(&life.store, Holder::User(id(by))).await.get(QuotaKind::Gpus), 2, "round {round}");
        }
        life.crash().await;
        life = world.live().await;
        let leases = life.store.leases().await.unwrap();
        let places: HashSet<String> = leases.iter().map(|lease| lease.partition.key()).collect();
        assert_eq!((leases.len(), places.len()), (8, 8), "a part is held twice");
        let admitted: Vec<VmId> = results.into_iter().filter_map(Result::ok).collect();
        for (number, vm) in admitted.iter().enumerate() {
            // Some come up first.
            if number % 3 == 0 {
                life.settle(*vm).await;
            }
            let owner = life.store.vm(*vm).await.unwrap().unwrap().owner;
            let by = people.iter().find(|by| id(by) == owner).unwrap();
            power(&life.manager, by, *vm, Wanted::DeleteNow).await.unwrap();
            life.settle(*vm).await;
        }
        assert!(life.store.leases().await.unwrap().is_empty(), "round {round}");
    }
}
