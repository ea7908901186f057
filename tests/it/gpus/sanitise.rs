//! What is done to a card between two machines.

use gvm::model::card::history::SanitiseWay;
use gvm::model::event::Outcome;
use gvm::store::audit::Whose;
use gvm::store::leases;

use super::health::{REMAP, actions, heard, records, running, shown, state, stopped};
use super::*;
use crate::support::own_process::run_with;
use crate::support::world::eventually;

#[tokio::test(flavor = "multi_thread")]
async fn what_was_done_between_two_machines_is_on_the_record() {
    let mut world = world(&[CARD]);
    let life = world.live().await;
    let vm = running(&life, "train").await;
    stopped(&life, vm).await;
    assert_eq!(world.gpus.sanitised(at(CARD)), [SanitiseWay::Reset]);
    let last = async |life: &Life| shown(life, CARD).await.entry.known.unwrap().history.sanitised.unwrap().words();
    assert_eq!(last(&life).await, "reset (flr)");
    // A machine that never had the card leaves nothing on it; one whose card cannot be reset has VFIO's own.
    world.gpus.edit(at(CARD), |card| card.reset_methods.clear());
    let vm = running(&life, "second").await;
    stopped(&life, vm).await;
    assert_eq!(last(&life).await, "vfio-close; not reset by gvm: 0000:41:00.0 has no way to be reset");
    assert_eq!(state(&life, CARD).await, GpuState::Free);
    // A configured command.
    life.crash().await;
    world.config.gpu.sanitise_command = vec!["/opt/scrub".to_owned(), "{address}".to_owned()];
    world.config.gpu.sanitise_seconds = Some(60);
    let life = world.live().await;
    let vm = running(&life, "third").await;
    stopped(&life, vm).await;
    let words = world.config.gpu.sanitise_command.clone();
    assert_eq!(world.gpus.sanitised(at(CARD))[1..], [SanitiseWay::Command { words, seconds: 60 }]);
    assert_eq!(last(&life).await, "command (/opt/scrub)");
    let all = records(&life).await;
    assert!(all.iter().all(|(action, outcome, _)| action == "gpu.sanitise" && *outcome == Outcome::Success), "{all:?}");
    let rows = life.store.operations(Whose::Named("gvm"), 10).await.unwrap();
    assert_eq!(rows.iter().filter(|row| row.vm == Some(vm)).count(), 1, "with the machine that had it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_is_not_sanitised_is_kept_out_of_use_until_it_is() {
    let world = world(&[CARD, OTHER]);
    let life = world.live().await;
    let vm = running(&life, "train").await;
    world.gpus.fail_next_sanitise(BindError::Failed("0000:41:00.0 does not answer 30 s after its reset".to_owned()));
    stopped(&life, vm).await;
    let card = shown(&life, CARD).await;
    assert_eq!(card.state, GpuState::Withheld);
    assert!(card.reasons[0].contains("it was not sanitised after its VM: 0000:41:00.0 does not answer"), "{card:?}");
    assert_eq!(drivers(&world, CARD).await, VFIO, "the host's driver does not get it as it is");
    let all: Vec<_> = records(&life).await.into_iter().map(|(action, outcome, _)| (action, outcome)).collect();
    assert_eq!(all, [("gpu.sanitise".to_owned(), Outcome::Failure), ("gpu.quarantine".to_owned(), Outcome::Success)]);
    // The next machine has the other one.
    let next = running(&life, "next").await;
    assert_eq!(life.store.vm(next).await.unwrap().unwrap().placement.gpus[0].address(), at(OTHER));
    // Readmitted, it is sanitised before it is free.
    change(&life, CARD, GpuChange::Readmit).await.unwrap();
    assert_eq!(state(&life, CARD).await, GpuState::Sanitising);
    assert!(create(&life, "third", "1").await.is_err());
    life.manager.spawn_gpu_watch();
    eventually("it is free", || async { state(&life, CARD).await == GpuState::Free }).await;
    assert_eq!(
        (world.gpus.sanitised(at(CARD)).len(), drivers(&world, CARD).await),
        (1, HOST.map(str::to_owned).into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn weather_and_hanging_resets_hold_up_no_machine_and_free_no_card() {
    let world = world(&[CARD]);
    let life = world.live().await;
    let vm = running(&life, "train").await;
    world.gpus.fail_next_sanitise(BindError::Transient("another change is under way".to_owned()));
    stopped(&life, vm).await;
    assert_eq!((state(&life, CARD).await, world.gpus.sanitised(at(CARD)).len()), (GpuState::Free, 1));
    let vm = running(&life, "again").await;
    world.gpus.fail_next_sanitise(BindError::Stuck("0000:41:00.0: writing 1 to reset hangs".to_owned()));
    stopped(&life, vm).await;
    assert_eq!(state(&life, CARD).await, GpuState::Stuck);
    assert_eq!(actions(&life).await, ["gpu.sanitise", "gpu.sanitise", "gpu.stuck"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_that_dies_in_a_sanitising_does_it_again() {
    let world = world(&[CARD]);
    let life = world.live().await;
    let vm = running(&life, "train").await;
    life.power(vm, Wanted::Stop).await.unwrap();
    for _ in 0..3 {
        reconciler::look(&life.manager, vm).await.unwrap();
    }
    world.gpus.hold_changes();
    let pass = reconciler::look(&life.manager, vm);
    assert!(tokio::time::timeout(std::time::Duration::from_millis(300), pass).await.is_err());
    assert_eq!(state(&life, CARD).await, GpuState::Sanitising);
    life.crash().await;
    world.gpus.recover();
    let life = world.live().await;
    assert_eq!((state(&life, CARD).await, world.gpus.sanitised(at(CARD)).len()), (GpuState::Sanitising, 0));
    life.settle(vm).await;
    assert_eq!((state(&life, CARD).await, world.gpus.sanitised(at(CARD)).len()), (GpuState::Free, 1));
}

/// Killed when the card was sanitised and that is not written down yet.
#[test]
fn a_crash_at_the_point_gpu_sanitised_sanitises_again() {
    fn here() {}
    if !cfg!(feature = "hold") {
        let test = crate::support::skip::test_of(std::any::type_name_of_val(&here));
        return crate::support::skip::say(test, "needs a build with the cargo feature hold");
    }
    let body = async {
        let world = world(&[CARD]);
        let life = world.live().await;
        let vm = running(&life, "train").await;
        life.power(vm, Wanted::Stop).await.unwrap();
        for _ in 0..3 {
            reconciler::look(&life.manager, vm).await.unwrap();
        }
        let mut life = life;
        for times in 1..=3 {
            let pass = reconciler::look(&life.manager, vm);
            assert!(tokio::time::timeout(std::time::Duration::from_millis(500), pass).await.is_err(), "it should wait");
            assert_eq!(world.gpus.sanitised(at(CARD)).len(), times);
            assert_eq!(
                (state(&life, CARD).await, drivers(&world, CARD).await),
                (GpuState::Sanitising, VFIO.map(str::to_owned).into())
            );
            assert!(create(&life, &format!("next{times}"), "1").await.is_err(), "it is nobody's");
            life.crash().await;
            life = world.live().await;
        }
    };
    let run = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(body);
    run_with(std::any::type_name_of_val(&here), &[("GVM_HOLD_AT", "gpu-sanitised")], run);
}

/// A lease may end before its card was given back: the card is sanitised all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_lost_its_lease_is_nobodys_before_it_is_sanitised() {
    for is_kept in [false, true] {
        let world = world(&[CARD]);
        let life = world.live().await;
        if is_kept {
            change(&life, CARD, GpuChange::Mode(WantedMode::Passthrough)).await.unwrap();
        }
        let vm = running(&life, "train").await;
        let mut tx = life.store.write().await.unwrap();
        leases::release(&mut tx, vm).await.unwrap();
        gvm::store::commit(tx).await.unwrap();
        assert_eq!(state(&life, CARD).await, GpuState::Sanitising);
        let (_, text) = told(create(&life, "next", "1").await.unwrap_err());
        assert!(text.contains("it is not sanitised yet after its last VM"), "{text}");
        life.manager.spawn_gpu_watch();
        eventually("it is free", || async { state(&life, CARD).await == GpuState::Free }).await;
        assert_eq!(world.gpus.sanitised(at(CARD)).len(), 1, "kept {is_kept}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn vgpus_are_destroyed_between_machines_and_that_is_on_the_record() {
    let world = world(&[CARD]);
    world.gpus.divide(at(CARD), 8, &["A100D-20C"]);
    let life = world.live().await;
    let vm = create(&life, "train", "vgpu:A100D-20C").await.unwrap();
    life.settle(vm).await;
    // Its card wants a reset: what runs goes on, nobody else is given a part of it.
    world.gpus.log(REMAP);
    let (_, text) = told(create(&life, "next", "vgpu:A100D-20C").await.unwrap_err());
    assert!(text.contains("it is out of service: Xid 63"), "{text}");
    assert!(heard(&life, vm).iter().any(|text| text.contains("wants a reset")));
    stopped(&life, vm).await;
    let last = shown(&life, CARD).await.entry.known.unwrap().history;
    assert_eq!((last.sanitised.unwrap().words().as_str(), last.used_by), ("vgpu-removed", None));
    assert_eq!(actions(&life).await, ["gpu.drain", "gpu.sanitise"]);
    assert_eq!(state(&life, CARD).await, GpuState::Draining, "no reset was made of the whole card");
}
