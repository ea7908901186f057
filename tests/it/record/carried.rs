//! A database from before there was a chain.

use gvm::model::id::OpId;
use gvm::model::vm::Generation;
use gvm::store::Store;
use gvm::store::audit::Whose;
use gvm::store::record::query::Filter;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_before_become_the_beginning_of_the_chain() {
    let world = World::new();
    let life = world.live().await;
    let eve = life.member.user().unwrap().clone();
    let vm = gvm::model::id::VmId::generate();
    life.crash().await;
    let (done, open, denied) = (OpId::generate(), OpId::generate(), OpId::generate());
    edit(
        &world,
        &format!(
            "INSERT INTO audit_unchained (id, at, actor, action, target, vm_id, generation, outcome, detail, finished_at) VALUES
             ('{done}', 1000, 'eve', 'vm.create', 'dev.eve', '{vm}', 1, 'failure', 'no room', 2000),
             ('{open}', 1500, 'eve', 'vm.start', 'dev.eve', '{vm}', 2, 'pending', '', NULL),
             ('{denied}', 1700, 'mallory', 'vm.delete', 'dev.eve', NULL, NULL, 'denied', 'no', 1700)"
        ),
    )
    .await;
    let store = Store::open(&world.state_dir().join("gvm.db")).await.unwrap();
    let mut entries = store.entries(&Filter::default(), 100).await.unwrap();
    entries.reverse();
    let told: Vec<_> =
        entries.iter().map(|e| (e.at, e.half.as_str(), e.actor.as_str(), e.outcome.as_str(), e.via.as_str())).collect();
    assert_eq!(
        told,
        [
            (1000, "begin", "eve", "pending", "carried over"),
            (2000, "end", "eve", "failure", "carried over"),
            (1500, "begin", "eve", "pending", "carried over"),
            (1700, "whole", "mallory", "denied", "carried over"),
        ]
    );
    assert_eq!(entries[0].actor_id, Some(eve.id.to_string()));
    assert_eq!(entries[3].actor_id, None);
    let own = store.operations(Whose::User(eve.id), 10).await.unwrap();
    assert_eq!(
        own.iter().map(|row| (row.id, row.outcome)).collect::<Vec<_>>(),
        [(open, Outcome::Pending), (done, Outcome::Failure)]
    );
    assert!(
        store.has_pending(vm, Generation(2)).await.unwrap() && !store.has_pending(vm, Generation(1)).await.unwrap()
    );
    store.close().await;

    // Once is enough.
    let life = world.live().await;
    assert_eq!(verify(&life, &[]).await.found.unwrap().seq, 4);
}
