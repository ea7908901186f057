//! The manager's promises, shown with a real database and real files over a hypervisor in memory.

use std::time::Duration;

use gvm::auth::policy::Action;
use gvm::hypervisor::ErrorKind;
use gvm::hypervisor::fake::{Guest, Op};
use gvm::manager::change::ChangeRequest;
use gvm::manager::power::Wanted;
use gvm::manager::{Kind, reconciler};
use gvm::model::caps::CapsChange;
use gvm::model::event::Outcome;
use gvm::model::id::VmId;
use gvm::model::state::VmState;
use gvm::model::units::{Mib, Seconds};

use crate::support::world::{Life, World, eventually};

/// Nothing of any machine is left anywhere.
async fn assert_no_leak(world: &World, life: &Life) {
    let folders: Vec<_> =
        std::fs::read_dir(world.state_dir().join("vms")).map(|d| d.flatten().collect()).unwrap_or_default();
    assert!(folders.is_empty(), "folders are left: {folders:?}");
    assert!(world.fake.host_entries("gvm").is_empty(), "address entries are left");
    assert!(life.store.vm_ids().await.unwrap().is_empty(), "rows are left");
    assert!(life.store.leases().await.unwrap().is_empty(), "leases are left");
    use gvm::hypervisor::Hypervisor;
    assert!(world.fake.observe_all().await.unwrap().is_empty(), "domains are left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_is_made_stopped_started_and_deleted() {
    let world = World::new();
    let life = world.live().await;
    let vm = life.create("dev").await.unwrap();
    assert_eq!(life.settle(vm).await, ["ensure-disk", "ensure-seed", "define", "start", "record-started"]);
    assert_eq!(life.state(vm).await, Some(VmState::Running));
    life.power(vm, Wanted::Stop).await.unwrap();
    assert_eq!(life.settle(vm).await, ["record-off"]);
    assert_eq!(life.state(vm).await, Some(VmState::Stopped));
    life.power(vm, Wanted::Start).await.unwrap();
    assert_eq!(life.settle(vm).await, ["start", "record-started"]);
    life.power(vm, Wanted::DeleteNow).await.unwrap();
    assert_eq!(life.settle(vm).await, ["force-off", "undefine", "ensure-files-gone"]);
    assert_no_leak(&world, &life).await;
    let record = life.manager.operations(&life.permit(Action::AuditSee), 10).await.unwrap();
    let told: Vec<_> = record.iter().rev().map(|row| (row.action.as_str(), row.outcome)).collect();
    let ok = Outcome::Success;
    assert_eq!(told, [("vm.create", ok), ("vm.stop", ok), ("vm.start", ok), ("vm.delete", ok)]);
}

/// Runs a story with the manager crashing after every number of steps, and gives how many points there were.
async fn crash_everywhere(story: impl AsyncFn(&World, &Life, VmId), check: impl AsyncFn(&World, &Life, VmId)) -> usize {
    for crash_after in 0..40 {
        let world = World::new();
        let life = world.live().await;
        let vm = life.create("dev").await.unwrap();
        life.settle(vm).await;
        story(&world, &life, vm).await;
        let mut did = 0;
        let mut is_over = false;
        while did < crash_after {
            match reconciler::look(&life.manager, vm).await.unwrap() {
                reconciler::Looked::Did(_) => did += 1,
                reconciler::Looked::Later(_) | reconciler::Looked::AtRest => {
                    is_over = true;
                    break;
                }
            }
        }
        life.crash().await;
        let life = world.live().await;
        life.settle(vm).await;
        check(&world, &life, vm).await;
        if is_over {
            return crash_after;
        }
    }
    panic!("the story does not end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_every_step_of_create_ends_the_same() {
    for crash_after in 0..6 {
        let world = World::new();
        let life = world.live().await;
        let vm = life.create("dev").await.unwrap();
        for _ in 0..crash_after {
            reconciler::look(&life.manager, vm).await.unwrap();
        }
        life.crash().await;
        let life = world.live().await;
        life.settle(vm).await;
        assert_eq!(life.state(vm).await, Some(VmState::Running), "after {crash_after} steps");
        assert_eq!(world.fake.count(Op::Start, vm), 1, "started once, crashed after {crash_after}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_every_step_of_stop_ends_the_same() {
    let points = crash_everywhere(
        async |_, life, vm| life.power(vm, Wanted::Stop).await.unwrap(),
        async |_, life, vm| assert_eq!(life.state(vm).await, Some(VmState::Stopped)),
    );
    assert!(points.await >= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_every_step_of_delete_leaves_nothing() {
    let points = crash_everywhere(
        async |_, life, vm| life.power(vm, Wanted::DeleteNow).await.unwrap(),
        async |world, life, _| assert_no_leak(world, life).await,
    );
    assert!(points.await >= 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_may_lose_its_reply_or_fail_once() {
    let ops = [
        Op::Define,
        Op::Start,
        Op::Shutdown,
        Op::ForceOff,
        Op::Undefine,
        Op::EnsureNetwork,
        Op::EnsureHostEntry,
        Op::EnsureHostEntryGone,
    ];
    let stories = ops.into_iter().flat_map(|op| [stumble(op, true), stumble(op, false)]);
    // Side by side: each waits out its pause after the fault.
    futures_util::future::join_all(stories).await;
}

async fn stumble(op: Op, is_lost: bool) {
    let world = World::new();
    let life = world.live().await;
    match is_lost {
        true => world.fake.lose_reply(op, 1),
        false => world.fake.fail_next(op, ErrorKind::Transient, 1),
    }
    let vm = life.create("dev").await.unwrap();
    life.settle(vm).await;
    assert_eq!(life.state(vm).await, Some(VmState::Running), "{op:?} {is_lost}");
    life.power(vm, Wanted::Stop).await.unwrap();
    life.settle(vm).await;
    assert_eq!(life.state(vm).await, Some(VmState::Stopped), "{op:?} {is_lost}");
    life.power(vm, Wanted::DeleteNow).await.unwrap();
    life.settle(vm).await;
    assert_no_leak(&world, &life).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deaf_guest_is_forced_off_after_the_grace_and_that_is_no_failure() {
    let world = World::new();
    let life = world.live().await;
    let vm = life.create("dev").await.unwrap();
    life.settle(vm).await;
    world.fake.set_guest(vm, Guest::Deaf);
    life.power(vm, Wanted::Stop).await.unwrap();
    assert_eq!(life.settle(vm).await, ["force-off", "record-off"]);
    assert_eq!(life.state(vm).await, Some(VmState::Stopped));
    life.power(vm, Wanted::Start).await.unwrap();
    life.settle(vm).await;
    life.power(vm, Wanted::ForceStop).await.unwrap();
    let asked = world.fake.asks(vm);
    assert_eq!(life.settle(vm).await, ["force-off", "record-off"]);
    assert_eq!(world.fake.asks(vm), asked, "force does not ask");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_behind_our_back_is_mended_or_accepted() {
    let world = World::new();
    let life = world.live().await;
    let vm = life.create("dev").await.unwrap();
    life.settle(vm).await;
    world.fake.destroy_behind(vm);
    assert_eq!(life.settle(vm).await, ["record-off", "start", "record-started"], "destroyed: it is started again");
    world.fake.undefine_behind(vm);
    let steps = ["record-off", "define", "start", "record-started"];
    assert_eq!(life.settle(vm).await, steps, "undefined: it is defined and started again");
    world.fake.crash(vm);
    life.settle(vm).await;
    assert_eq!(life.state(vm).await, Some(VmState::Running), "crashed: it is started again");
    world.fake.power_off_inside(vm);
    assert_eq!(life.settle(vm).await, ["accept-off"], "its own guest's wish is accepted");
    assert_eq!(life.state(vm).await, Some(VmState::Stopped));
    world.fake.start_behind(vm);
    life.settle(vm).await;
    assert_eq!(life.state(vm).await, Some(VmState::Stopped), "started behind our back: it is stopped again");
}

#[tokio::test(flavor = "multi_thread")]
async fn pause_restart_and_changes_arrive() {
    let world = World::new();
    let life = world.live().await;
    let vm = life.create("dev").await.unwrap();
    life.settle(vm).await;
    life.power(vm, Wanted::Pause).await.unwrap();
    assert_eq!(life.settle(vm).await, ["pause"]);
    assert_eq!(life.state(vm).await, Some(VmState::Paused));
    life.power(vm, Wanted::Resume).await.unwrap();
    assert_eq!(life.settle(vm).await, ["resume"]);
    life.power(vm, Wanted::Restart).await.unwrap();
    assert_eq!(life.settle(vm).await, ["record-off", "start", "record-started"]);
    let permit = life.manager.permit_vm(&life.member, Action::VmChange, "dev", false).await.unwrap();
    let caps = CapsChange { cpu_percent: Some(Some(50)), ..CapsChange::default() };
    let one = ChangeRequest { caps, vcpus: Some(2), ..ChangeRequest::default() };
    let caps = CapsChange { disk_iops: Some(Some(500)), ..CapsChange::default() };
    let other = ChangeRequest { caps, ..ChangeRequest::default() };
    let (one, other) = tokio::join!(life.manager.change(&permit, one), life.manager.change(&permit, other));
    let caps = life.manager.details(&permit).await.unwrap().vm.spec.caps;
    assert!(one.is_ok() && other.is_ok());
    assert_eq!((caps.cpu_percent, caps.disk_iops), (Some(50), Some(500)), "neither undoes the other");
    assert_eq!(life.settle(vm).await, ["apply-caps", "apply-vcpus"]);
    let request = ChangeRequest { memory: Some(Mib(512)), ..ChangeRequest::default() };
    let change = life.manager.change(&permit, request).await.unwrap();
    assert_eq!(change.notes, ["the new size takes effect at the next start: gvm restart dev"]);
    life.settle(vm).await;
    life.power(vm, Wanted::Restart).await.unwrap();
    assert_eq!(life.settle(vm).await, ["record-off", "define", "start", "record-started"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_machine_comes_back_within_its_window_and_is_purged_after_it() {
    let mut world = World::new();
    world.config.manager.undelete_seconds = 2;
    let life = world.live().await;
    let vm = life.create("dev").await.unwrap();
    life.settle(vm).await;
    life.power(vm, Wanted::Delete).await.unwrap();
    reconciler::pass(&life.manager, vm).await.unwrap();
    let again = life.create("dev").await.unwrap();
    let refused = life.power(vm, Wanted::Undelete).await.unwrap_err();
    assert_eq!((refused.kind, refused.to_string().as_str()), (Kind::Conflict, "you have another VM named dev by now"));
    life.power(again, Wanted::DeleteNow).await.unwrap();
    life.settle(again).await;
    life.power(vm, Wanted::Undelete).await.unwrap();
    life.settle(vm).await;
    assert_eq!(life.state(vm).await, Some(VmState::Stopped));
    life.power(vm, Wanted::Delete).await.unwrap();
    life.settle(vm).await;
    assert_no_leak(&world, &life).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lifetime_ends_in_a_stop_not_in_a_loss() {
    let world = World::new();
    let life = world.live().await;
    let vm = life.create_as("dev", |request| request.ttl = Some(Seconds(1))).await.unwrap();
    life.settle(vm).await;
    eventually("the lifetime is over", || async {
        life.settle(vm).await;
        life.state(vm).await == Some(VmState::Stopped)
    })
    .await;
    assert!(world.state_dir().join(format!("vms/{vm}/root.qcow2")).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_told_given_up_and_tried_anew_by_a_new_wish() {
    let mut world = World::new();
    world.config.manager.max_attempts = 2;
    let life = world.live().await;
    world.fake.fail_next(Op::Start, ErrorKind::Permanent, 2);
    let vm = life.create("dev").await.unwrap();
    life.settle(vm).await;
    assert!(matches!(life.state(vm).await, Some(VmState::Failed { .. })));
    let record = life.manager.operations(&life.permit(Action::AuditSee), 1).await.unwrap();
    assert_eq!(record[0].outcome, Outcome::Failure);
    assert!(record[0].detail.starts_with("start: "), "{}", record[0].detail);
    life.power(vm, Wanted::Start).await.unwrap();
    life.settle(vm).await;
    assert_eq!(life.state(vm).await, Some(VmState::Running));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_hypervisor_changes_nothing_and_is_waited_for() {
    let world = World::new();
    let life = world.live_running().await;
    let vm = life.create("dev").await.unwrap();
    eventually("it runs", || async { life.state(vm).await == Some(VmState::Running) }).await;
    world.fake.set_unknown(true);
    assert!(matches!(life.state(vm).await, Some(VmState::Unknown { .. })));
    life.power(vm, Wanted::Stop).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    world.fake.set_unknown(false);
    eventually("it is stopped", || async { life.state(vm).await == Some(VmState::Stopped) }).await;
    life.crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_creates_of_one_name_give_one_machine() {
    let world = World::new();
    let life = world.live().await;
    let (a, b) = tokio::join!(life.create("dev"), life.create("dev"));
    let refused = a.and(b).unwrap_err();
    assert_eq!((refused.kind, refused.to_string().as_str()), (Kind::Conflict, "you already have a VM named dev"));
    assert_eq!(life.store.vm_ids().await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clone_has_the_disk_of_its_source_and_nothing_else_of_it() {
    let world = World::new();
    let life = world.live().await;
    let vm = life.create("dev").await.unwrap();
    life.settle(vm).await;
    let permit = life.manager.permit_vm(&life.member, Action::VmChange, "dev", false).await.unwrap();
    let refused = life.manager.clone_vm(&permit, "copy".parse().unwrap()).await.unwrap_err();
    assert_eq!(refused.to_string(), "VM dev is not stopped");
    life.power(vm, Wanted::Stop).await.unwrap();
    life.settle(vm).await;
    let copy = life.manager.clone_vm(&permit, "copy".parse().unwrap()).await.unwrap().vm;
    life.settle(copy).await;
    assert_eq!(life.state(copy).await, Some(VmState::Running));
    let (a, b) = (life.store.vm(vm).await.unwrap().unwrap(), life.store.vm(copy).await.unwrap().unwrap());
    assert_ne!(a.placement.mac, b.placement.mac);
    assert_ne!(a.placement.address, b.placement.address);
    let (a, b) = (life.store.secrets(vm).await.unwrap().unwrap(), life.store.secrets(copy).await.unwrap().unwrap());
    assert_ne!(a.host_key_public, b.host_key_public);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn viewers_who_open_a_console_at_once_share_one_line() {
    let world = World::new();
    let life = world.live().await;
    let vm = life.create("dev").await.unwrap();
    life.settle(vm).await;
    let permit = life.manager.permit_vm(&life.member, Action::VmConsole, "dev", false).await.unwrap();
    let open = |can_type| life.manager.console(&permit, can_type);
    let (writer, one, two, three) = tokio::join!(open(true), open(false), open(false), open(false));
    let typing = writer.unwrap().input.unwrap();
    typing.input.send(b"hello".to_vec()).await.unwrap();
    for viewer in [one, two, three] {
        let mut viewer = viewer.unwrap();
        let heard = tokio::time::timeout(Duration::from_secs(60), viewer.output.recv()).await.unwrap();
        assert_eq!(&*heard.expect("its line goes on"), b"hello");
    }
}
