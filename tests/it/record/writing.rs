//! How entries come to be: two halves, many at once, clocks that step, crashes in between.

use gvm::manager::power::Wanted;
use gvm::model::record::Half;
use gvm::model::state::VmState;
use gvm::store::record::query::Filter;

use super::*;

async fn all(life: &Life) -> Vec<gvm::model::record::Entry> {
    let mut entries = life.store.entries(&Filter::default(), 100_000).await.unwrap();
    entries.reverse();
    entries
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_has_two_entries_that_are_never_changed() {
    let world = World::new();
    let life = world.live().await;
    let vm = life.create("dev").await.unwrap();
    let begun = all(&life).await;
    assert_eq!(begun.len(), 1);
    assert_eq!((begun[0].half.as_str(), begun[0].outcome.as_str()), (Half::Begin.as_str(), "pending"));
    life.settle(vm).await;
    let ended = all(&life).await;
    assert_eq!(ended.len(), 2);
    assert_eq!(ended[0], begun[0], "the first half stays as it is");
    assert_eq!((ended[1].half.as_str(), ended[1].outcome.as_str()), (Half::End.as_str(), "success"));
    assert_eq!((&ended[1].operation, &ended[1].actor_id), (&ended[0].operation, &ended[0].actor_id));
    assert_eq!(ended[0].actor_id, life.member.user().map(|user| user.id.to_string()));
    assert!(verify(&life, &[]).await.found.is_ok());
    // Told as one operation.
    let operations = life.manager.operations(&life.permit(Action::AuditSee), 10).await.unwrap();
    assert_eq!(operations.len(), 1);
    assert_eq!((operations[0].outcome, operations[0].finished_at.is_some()), (Outcome::Success, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_crash_left_open_is_ended_by_the_next_manager() {
    let world = World::new();
    let life = world.live().await;
    let vm = life.create("dev").await.unwrap();
    let store = life.store.clone();
    assert!(store.has_pending(vm, gvm::model::vm::Generation(1)).await.unwrap());
    life.crash().await;
    let life = world.live().await;
    assert_eq!(all(&life).await.len(), 1);
    life.settle(vm).await;
    assert_eq!(life.state(vm).await, Some(VmState::Running));
    let entries = all(&life).await;
    assert_eq!(entries.iter().map(|entry| entry.half.as_str()).collect::<Vec<_>>(), ["begin", "end"]);
    assert!(!life.store.has_pending(vm, gvm::model::vm::Generation(9)).await.unwrap());
    assert!(verify(&life, &[]).await.found.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn several_open_operations_of_a_machine_end_together_in_their_order() {
    let world = World::new();
    let life = world.live().await;
    let vm = life.create("dev").await.unwrap();
    life.power(vm, Wanted::Stop).await.unwrap();
    life.power(vm, Wanted::Start).await.unwrap();
    life.settle(vm).await;
    let entries = all(&life).await;
    let told: Vec<_> = entries.iter().map(|entry| (entry.half.as_str(), entry.action.as_str())).collect();
    assert_eq!(
        told,
        [
            ("begin", "vm.create"),
            ("begin", "vm.stop"),
            ("begin", "vm.start"),
            ("end", "vm.create"),
            ("end", "vm.stop"),
            ("end", "vm.start")
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_without_its_entry_does_not_commit() {
    let world = World::new();
    let life = world.live().await;
    write(&life, 3).await;
    // The next number is taken: no entry can be written.
    let sql =
        "INSERT INTO record SELECT 4, at, operation, half, actor, actor_id, via, address, request_id, action, target,
                   vm_id, outcome, detail, hash FROM record WHERE seq = 3";
    edit(&world, sql).await;
    let refused = life.create("dev").await.unwrap_err();
    assert!(refused.to_string().contains("entry 4 is there already; see `gvm audit verify`"), "{refused}");
    assert!(life.store.vm_ids().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_writers_at_once_make_one_chain() {
    let world = World::new();
    let life = world.live().await;
    let writers = (0..50).map(|writer| {
        let store = life.store.clone();
        async move {
            for number in 0..10 {
                store.record(&own(writer * 10 + number)).await.unwrap();
            }
        }
    });
    // Verified again and again while they write.
    let verifying = async {
        let mut last = 0;
        while last < 500 {
            let found = verify(&life, &[]).await.found.unwrap();
            assert!(found.seq >= last);
            last = found.seq;
            life.manager.sign_head().await.unwrap();
        }
    };
    tokio::join!(futures_util::future::join_all(writers), verifying);
    let entries = all(&life).await;
    assert_eq!(entries.iter().map(|entry| entry.seq).collect::<Vec<_>>(), (1..=500).collect::<Vec<u64>>());
    let mut targets: Vec<_> = entries.into_iter().map(|entry| entry.target).collect();
    targets.sort();
    targets.dedup();
    assert_eq!(targets.len(), 500, "no entry is lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_steps_back_does_not_break_the_order() {
    let world = World::new();
    let life = world.live().await;
    let times = ["2026-12-01T12:00:00Z", "2026-12-01T11:00:00Z", "1970-01-01T00:00:00Z", "2030-01-01T00:00:00Z"];
    for (number, at) in times.into_iter().enumerate() {
        let event = AuditEvent { at: at.parse().unwrap(), ..own(number) };
        life.store.record(&event).await.unwrap();
    }
    assert!(verify(&life, &[]).await.found.is_ok());
    let told: Vec<_> = life.store.operations(gvm::store::audit::Whose::Named("gvm"), 10).await.unwrap();
    let order: Vec<_> = told.iter().map(|operation| operation.target.as_str()).collect();
    assert_eq!(order, ["thing-3", "thing-2", "thing-1", "thing-0"], "by their numbers, not by the clock");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_is_signed_after_many_entries_and_a_copy_is_in_the_log() {
    let world = World::new();
    let life = world.live().await;
    life.manager.spawn_head_signing().unwrap();
    write(&life, 5).await;
    crate::support::world::eventually("a head is signed at the start", || async {
        // The first look may come before the first entry: then the next is in its time.
        life.manager.sign_head().await.unwrap();
        life.store.newest_head().await.unwrap().is_some_and(|signed| signed.head.seq == 5)
    })
    .await;
    life.crash().await;
}
