//! Everything that makes usage grow, at once: starts, sizes, moves, creates. Deletes and undeletes among them.

use gvm::model::units::Mib;

use super::*;
use crate::support::world::World;

/// Machines of one person that are off.
async fn machines(life: &Life, by: &Principal, count: usize) -> Vec<VmId> {
    let mut all = Vec::new();
    for n in 0..count {
        all.push(create(&life.manager, by, small(&format!("s{n}"))).await.unwrap());
    }
    all
}

fn powering(by: &Principal, vm: VmId, wanted: Wanted) -> Task<()> {
    let by = by.clone();
    Box::new(move |manager| Box::pin(async move { power(&manager, &by, vm, wanted).await }))
}

fn changing(by: &Principal, vm: VmId, request: ChangeRequest) -> Task<()> {
    let by = by.clone();
    Box::new(move |manager| Box::pin(async move { change(&manager, &by, vm, request).await }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn of_many_starts_at_once_exactly_the_limit_is_admitted() {
    for delay in [1, 5_000] {
        let world = World::new();
        let life = world.live().await;
        let eve = person(&life.store, "eva", &[]).await;
        let all = machines(&life, &eve, 40).await;
        limit(&life.store, id(&eve), &[(QuotaKind::RunningVms, 7)]).await;
        let results = at_once(&life, delay, all.iter().map(|vm| powering(&eve, *vm, Wanted::Start))).await;
        assert_eq!(accepted(&results).len(), 7, "within {delay} us");
        // A start of what should run already is no growth.
        for (vm, result) in all.iter().zip(&results) {
            assert_eq!(power(&life.manager, &eve, *vm, Wanted::Start).await.is_ok(), result.is_ok());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn of_many_larger_sizes_at_once_exactly_what_fits_is_admitted() {
    let world = World::new();
    let life = world.live().await;
    let eve = person(&life.store, "eva", &[]).await;
    let mut all = Vec::new();
    for n in 0..20 {
        all.push(create(&life.manager, &eve, up(&format!("m{n}"))).await.unwrap());
    }
    // 20 machines of 64 MiB; room for 5 more of 64.
    limit(&life.store, id(&eve), &[(QuotaKind::Memory, 25 * 64), (QuotaKind::Disk, 20 * 100 + 350)]).await;
    let larger = ChangeRequest { memory: Some(Mib(128)), ..nothing() };
    let results = at_once(&life, 2_000, all.iter().map(|vm| changing(&eve, *vm, larger.clone()))).await;
    assert_eq!(accepted(&results).len(), 5);
    let wider = ChangeRequest { disk: Some(Mib(200)), ..nothing() };
    let results = at_once(&life, 2_000, all.iter().map(|vm| changing(&eve, *vm, wider.clone()))).await;
    assert_eq!(accepted(&results).len(), 3);
    let used = used(&life.store, Holder::User(id(&eve))).await;
    assert_eq!((used.get(QuotaKind::Memory), used.get(QuotaKind::Disk)), (25 * 64, 2300));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn machines_that_move_into_a_team_at_once_stay_within_its_limit() {
    let world = World::new();
    let life = world.live().await;
    let (hpc, bio) =
        (team(&life.store, "hpc", &[], &[]).await, team(&life.store, "bio", &[(QuotaKind::Vms, 9)], &[]).await);
    let eve = person(&life.store, "eva", &[hpc, bio]).await;
    let all = machines(&life, &eve, 30).await;
    let to_bio = ChangeRequest { team: Some("bio".to_owned()), ..nothing() };
    let results = at_once(&life, 2_000, all.iter().map(|vm| changing(&eve, *vm, to_bio.clone()))).await;
    assert_eq!(accepted(&results).len(), 9);
    assert_eq!(used(&life.store, Holder::Team(bio)).await.get(QuotaKind::Vms), 9);
}

/// Creates, starts, stops, pauses, resumes, deletes and undeletes of two members and their team at once, with restarts of
/// the manager in between: usage is computed from rows, so that no order of them drifts.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn everything_at_once_stays_within_the_limits() {
    const TEAM: [(QuotaKind, u64); 3] = [(QuotaKind::Vms, 14), (QuotaKind::RunningVms, 6), (QuotaKind::Memory, 7 * 64)];
    const EACH: [(QuotaKind, u64); 2] = [(QuotaKind::RunningVms, 4), (QuotaKind::Vms, 9)];
    let world = World::new();
    let mut life = world.live().await;
    let hpc = team(&life.store, "hpc", &TEAM, &EACH).await;
    let people = [person(&life.store, "eva", &[hpc]).await, person(&life.store, "adam", &[hpc]).await];
    let mut most = 0;
    for round in 0..6 {
        let mut tasks: Vec<Task<()>> = Vec::new();
        for by in &people {
            let filter = gvm::store::vms::VmFilter { owner: Some(id(by)), team: None, with_deleted: true, limit: 100 };
            for (n, vm) in life.store.vms(filter).await.unwrap().into_iter().enumerate() {
                let wishes =
                    [Wanted::Start, Wanted::Stop, Wanted::Delete, Wanted::Undelete, Wanted::Restart, Wanted::Resume];
                tasks.push(powering(by, vm.id, wishes[(n + round) % wishes.len()]));
                tasks.push(powering(by, vm.id, wishes[(n * 5 + round + 3) % wishes.len()]));
                let request = ChangeRequest { memory: Some(Mib(64 + 64 * (n as u64 % 2))), ..nothing() };
                tasks.push(changing(by, vm.id, request));
            }
            for n in 0..8 {
                let (by, request) =
                    (by.clone(), CreateRequest { is_stopped: n % 3 == 0, ..up(&format!("r{round}n{n}")) });
                tasks.push(Box::new(move |manager| {
                    Box::pin(async move { create(&manager, &by, request).await.map(|_| ()) })
                }));
            }
        }
        let results = at_once(&life, 3_000, tasks).await;
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            // A machine that is deleted meanwhile is not there for a change.
            assert!(matches!(error.kind, Kind::OverQuota | Kind::Conflict | Kind::NotFound), "{error}");
        }
        let before = used(&life.store, Holder::Team(hpc)).await;
        assert!(TEAM.iter().all(|(kind, limit)| before.get(*kind) <= *limit), "round {round}: {before:?}");
        for by in &people {
            let used = used(&life.store, Holder::User(id(by))).await;
            assert!(EACH.iter().all(|(kind, limit)| used.get(*kind) <= *limit), "round {round}: {used:?}");
        }
        most = most.max(before.get(QuotaKind::RunningVms));
        life.crash().await;
        life = world.live().await;
        assert_eq!(used(&life.store, Holder::Team(hpc)).await, before, "after a restart");
    }
    assert_eq!(most, 6, "the limit is reached");
}

/// Deleted, a machine is counted until it is gone, so that its return needs no room.
#[tokio::test(flavor = "multi_thread")]
async fn an_undelete_needs_no_room_and_a_stop_gives_some_at_once() {
    let world = World::new();
    let life = world.live().await;
    let eve = person(&life.store, "eva", &[]).await;
    limit(&life.store, id(&eve), &[(QuotaKind::Vms, 2), (QuotaKind::RunningVms, 1)]).await;
    let one = create(&life.manager, &eve, up("one")).await.unwrap();
    power(&life.manager, &eve, one, Wanted::Delete).await.unwrap();
    // It should not run any more, though it still does.
    let two = create(&life.manager, &eve, up("two")).await.unwrap();
    insta::assert_snapshot!(refused(create(&life.manager, &eve, small("three")).await), @"over your quota of virtual machines: you have 2, this asks for 1, the limit is 2: 1 too many");
    power(&life.manager, &eve, one, Wanted::Undelete).await.unwrap();
    refused(power(&life.manager, &eve, one, Wanted::Start).await);
    life.settle(two).await;
    // Paused, it is one that should run.
    power(&life.manager, &eve, two, Wanted::Pause).await.unwrap();
    refused(power(&life.manager, &eve, one, Wanted::Start).await);
    power(&life.manager, &eve, two, Wanted::Resume).await.unwrap();
    power(&life.manager, &eve, two, Wanted::Stop).await.unwrap();
    power(&life.manager, &eve, one, Wanted::Start).await.unwrap();
    refused(power(&life.manager, &eve, two, Wanted::Restart).await);
}
