//! Another request of a machine that exists: plugged where it runs without cards, refused where it has some.

use gvm::hypervisor::fake::Op;
use gvm::hypervisor::{ErrorKind, Hypervisor};
use gvm::manager::change::ChangeRequest;
use gvm::manager::create::AcceptedChange;
use gvm::manager::steps;
use gvm::model::state::{Observed, Power};
use gvm::plan::vm::Step;

use super::*;

const OTHER_SOUND: &str = "0000:81:00.1";

fn requests(gpus: &[&str]) -> Vec<GpuRequest> {
    let texts: Vec<String> = gpus.iter().map(|gpu| (*gpu).to_owned()).collect();
    GpuRequest::parse_list(&texts).unwrap()
}

async fn set(life: &Life, vm: VmId, gpus: &[&str]) -> gvm::manager::Result<AcceptedChange> {
    let request = ChangeRequest { gpus: Some(requests(gpus)), ..ChangeRequest::default() };
    let permit = life.manager.permit_vm(&life.member, Action::VmChange, &vm.to_string(), false).await?;
    life.manager.change(&permit, request).await
}

/// The devices that a machine has now, sorted.
fn devices(world: &World, vm: VmId) -> Vec<String> {
    let Observed::Defined(domain) = world.fake.peek(vm) else { return Vec::new() };
    let mut devices = domain.hostdevs;
    devices.sort();
    devices
}

async fn running(life: &Life, name: &str) -> VmId {
    let vm = life.create(name).await.unwrap();
    life.settle(vm).await;
    vm
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_is_plugged_into_a_running_machine_and_given_back_after_its_stop() {
    let world = world(&[CARD]);
    let life = world.live().await;
    let vm = running(&life, "train").await;
    let accepted = set(&life, vm, &["a100"]).await.unwrap();
    assert_eq!(accepted.row.placement.gpus[0].address(), at(CARD), "chosen with the intent");
    assert_eq!((accepted.notes.len(), states(&life).await[CARD]), (0, GpuState::Claimed));
    assert_eq!(life.settle(vm).await, ["ensure-gpu-bound", "attach-gpu"]);
    assert_eq!(devices(&world, vm), [CARD, SOUND]);
    assert_eq!(drivers(&world, CARD).await, VFIO);
    assert_eq!(states(&life).await[CARD], GpuState::InUse);
    let permit = life.manager.permit_vm(&life.member, Action::VmSee, &vm.to_string(), false).await.unwrap();
    let shown = life.manager.details(&permit).await.unwrap();
    assert_eq!((shown.state, shown.needs_restart), (VmState::Running, false));
    assert_eq!(shown.vm.spec.gpus, requests(&["a100"]));
    // Nobody else gets it.
    let (kind, text) = told(create(&life, "second", "1").await.unwrap_err());
    assert_eq!((kind, text.contains("in use by VM train")), (Kind::NoCapacity, true), "{text}");
    // Memory is pinned: more of it waits for a restart.
    let memory = Some(gvm::model::units::Mib(192));
    let permit = life.manager.permit_vm(&life.member, Action::VmChange, &vm.to_string(), false).await.unwrap();
    let request = ChangeRequest { memory, ..ChangeRequest::default() };
    let accepted = life.manager.change(&permit, request).await.unwrap();
    assert!(accepted.notes.iter().any(|note| note.contains("gvm restart train")), "{:?}", accepted.notes);
    assert_eq!(life.settle(vm).await, [""; 0]);
    // The next start has it in its definition; so has a restart.
    life.power(vm, Wanted::Restart).await.unwrap();
    assert_eq!(life.settle(vm).await, ["record-off", "define", "start", "record-started"]);
    assert_eq!((devices(&world, vm), world.gpus.binds(at(CARD))), (vec![CARD.to_owned(), SOUND.to_owned()], 1));
    life.power(vm, Wanted::Stop).await.unwrap();
    assert_eq!(life.settle(vm).await, ["record-off", "define", "release-gpu"]);
    assert_eq!(
        (drivers(&world, CARD).await, states(&life).await[CARD]),
        (HOST.map(str::to_owned).to_vec(), GpuState::Free)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_plugged_a_card_with_large_windows_is_told_what_may_come_of_it() {
    let mut large = card(CARD);
    large.bars = vec![gvm::model::pci::Bar { index: 1, size: 128 << 30, is_64bit: true, is_prefetchable: true }];
    let world = world(&[]);
    world.gpus.show(gvm::model::card::Discovery { cards: vec![large], ..Default::default() }.judged(None));
    let life = world.live().await;
    let vm = running(&life, "train").await;
    let notes = set(&life, vm, &["1"]).await.unwrap().notes;
    assert!(notes[0].contains("above 512 MiB") && notes[0].contains("gvm restart train"), "{notes:?}");
    life.settle(vm).await;
    life.power(vm, Wanted::Restart).await.unwrap();
    life.settle(vm).await;
    assert_eq!(life.store.vm(vm).await.unwrap().unwrap().placement.mmio64, Some(gvm::model::units::Mib(256 << 10)));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_only_plugged_is_given_back_without_a_new_definition() {
    let world = world(&[CARD]);
    let life = world.live().await;
    let vm = running(&life, "train").await;
    set(&life, vm, &["1"]).await.unwrap();
    life.settle(vm).await;
    life.power(vm, Wanted::Stop).await.unwrap();
    assert_eq!(life.settle(vm).await, ["record-off", "release-gpu"]);
    assert_eq!(drivers(&world, CARD).await, HOST);
    assert!(life.store.leases().await.unwrap().is_empty());
    life.power(vm, Wanted::Start).await.unwrap();
    assert_eq!(life.settle(vm).await, ["ensure-gpu-bound", "define", "start", "record-started"]);
    assert_eq!(devices(&world, vm), [CARD, SOUND]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_every_step_plugs_once() {
    for is_stop in [false, true] {
        for crash_after in 0..=3 {
            let world = world(&[CARD, OTHER]);
            let life = world.live().await;
            let vm = running(&life, "train").await;
            set(&life, vm, &["2xa100"]).await.unwrap();
            for _ in 0..crash_after {
                reconciler::look(&life.manager, vm).await.unwrap();
            }
            if is_stop {
                life.power(vm, Wanted::Stop).await.unwrap();
            }
            life.crash().await;
            let life = world.live().await;
            life.settle(vm).await;
            let has = if is_stop { Vec::new() } else { vec![CARD, SOUND, OTHER, OTHER_SOUND] };
            assert_eq!(devices(&world, vm), has, "stop {is_stop}, after {crash_after} steps");
            assert_eq!(life.store.leases().await.unwrap().len(), if is_stop { 0 } else { 2 });
            for card in [CARD, OTHER] {
                assert_eq!(drivers(&world, card).await, if is_stop { HOST } else { VFIO });
            }
            assert!(world.gpus.binds(at(CARD)) <= 1, "taken once");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_step_of_plugging_may_be_done_twice_and_a_lost_reply_does_no_harm() {
    let world = world(&[CARD]);
    let life = world.live().await;
    let vm = running(&life, "train").await;
    world.fake.lose_reply(Op::AttachDevices, 1);
    set(&life, vm, &["1"]).await.unwrap();
    life.settle(vm).await;
    let row = life.store.vm(vm).await.unwrap().unwrap();
    assert_eq!((row.trouble.is_none(), states(&life).await[CARD]), (true, GpuState::InUse));
    // QEMU has it open by now, which is no obstacle to itself.
    let domain = Some(row.domain_name());
    world.gpus.open(at(CARD), Holder { pid: 7, comm: "qemu".to_owned(), device: "/dev/vfio/65".to_owned(), domain });
    for step in [Step::EnsureGpuBound, Step::EnsureGpuBound, Step::AttachGpu, Step::AttachGpu] {
        steps::execute(&life.manager, &row, &step).await.unwrap();
    }
    assert_eq!((devices(&world, vm), world.gpus.binds(at(CARD))), (vec![CARD.to_owned(), SOUND.to_owned()], 1));
    assert_eq!(life.settle(vm).await, [""; 0]);
    let other = row.domain_name().replace("gvm-", "gvm-0");
    let holder = Holder { pid: 8, comm: "qemu".to_owned(), device: "/dev/vfio/65".to_owned(), domain: Some(other) };
    world.gpus.open(at(CARD), holder);
    let refused = steps::execute(&life.manager, &row, &Step::EnsureGpuBound).await.unwrap_err();
    assert!(refused.message.contains("pid 8") && !refused.message.contains("pid 7"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_machine_keeps_its_cards() {
    let world = world(&[CARD, OTHER]);
    let life = world.live().await;
    let vm = create(&life, "train", "1").await.unwrap();
    // Before it runs as well: its start may be under way.
    assert_eq!(set(&life, vm, &[]).await.unwrap_err().kind, Kind::Conflict);
    life.settle(vm).await;
    let before = life.store.vm(vm).await.unwrap().unwrap();
    for (asked, hint) in [(&[][..], "--gpu none"), (&["2xa100"], "--gpu 2xa100"), (&["a100"], "--gpu a100")] {
        let refused = set(&life, vm, asked).await.unwrap_err();
        assert_eq!(refused.kind, Kind::Conflict);
        assert!(refused.message.contains("none can be taken out of a VM that runs"), "{refused}");
        assert_eq!(refused.hint.unwrap(), format!("gvm stop train && gvm set train {hint}"));
    }
    assert_eq!(life.store.vm(vm).await.unwrap().unwrap(), before);
    // The same again is no change.
    set(&life, vm, &["1"]).await.unwrap();
    assert_eq!(life.settle(vm).await, [""; 0]);
    // While it shuts down it still has them.
    world.fake.set_guest(vm, gvm::hypervisor::fake::Guest::Lingering);
    life.power(vm, Wanted::Stop).await.unwrap();
    reconciler::look(&life.manager, vm).await.unwrap();
    assert_eq!(set(&life, vm, &[]).await.unwrap_err().kind, Kind::Conflict);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_request_leaves_everything_as_it_was() {
    let world = world(&[CARD]);
    let life = world.live().await;
    let vm = running(&life, "train").await;
    let other = create(&life, "other", "1").await.unwrap();
    life.settle(other).await;
    let before = life.store.vm(vm).await.unwrap().unwrap();
    let (kind, text) = told(set(&life, vm, &["a100"]).await.unwrap_err());
    assert_eq!((kind, text.contains("in use by VM other")), (Kind::NoCapacity, true), "{text}");
    let (kind, text) = told(set(&life, vm, &["h100"]).await.unwrap_err());
    assert_eq!(kind, Kind::Invalid, "{text}");
    world.fake.set_unknown(true);
    assert_eq!(set(&life, vm, &["a100"]).await.unwrap_err().kind, Kind::Unavailable);
    world.fake.set_unknown(false);
    assert_eq!(life.store.vm(vm).await.unwrap().unwrap(), before);
    assert_eq!((life.store.leases().await.unwrap().len(), life.settle(vm).await.len()), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_there_are_ports_for_waits_for_a_start() {
    let third = "0000:a1:00.0";
    let world = world(&[CARD, OTHER, third]);
    let life = world.live().await;
    let vm = running(&life, "train").await;
    let refused = set(&life, vm, &["3xa100"]).await.unwrap_err();
    assert!(refused.kind == Kind::Conflict && refused.message.contains("and these have 6"), "{refused}");
    life.power(vm, Wanted::Stop).await.unwrap();
    life.settle(vm).await;
    set(&life, vm, &["3xa100"]).await.unwrap();
    life.power(vm, Wanted::Start).await.unwrap();
    life.settle(vm).await;
    assert_eq!(devices(&world, vm).len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_machine_has_what_it_asks_for_from_its_next_start_on() {
    let world = world(&[CARD, OTHER]);
    let life = world.live().await;
    let vm = running(&life, "train").await;
    life.power(vm, Wanted::Stop).await.unwrap();
    life.settle(vm).await;
    assert_eq!(set(&life, vm, &["h100"]).await.unwrap_err().kind, Kind::Invalid, "never");
    set(&life, vm, &["a100"]).await.unwrap();
    assert_eq!(life.settle(vm).await, [""; 0]);
    assert!(life.store.leases().await.unwrap().is_empty(), "none before it is to run");
    life.power(vm, Wanted::Start).await.unwrap();
    assert_eq!(life.settle(vm).await, ["ensure-gpu-bound", "define", "start", "record-started"]);
    life.power(vm, Wanted::Stop).await.unwrap();
    life.settle(vm).await;
    set(&life, vm, &[]).await.unwrap();
    life.settle(vm).await;
    life.power(vm, Wanted::Start).await.unwrap();
    assert_eq!(life.settle(vm).await, ["start", "record-started"]);
    assert!(devices(&world, vm).is_empty() && life.store.leases().await.unwrap().is_empty());
}

/// `gvm stop` is back before the cards are.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_between_stop_and_return_holds_for_the_next_start() {
    for (asked, cards) in [(&[][..], 0), (&["2"], 2)] {
        for steps in 0..3 {
            let world = world(&[CARD, OTHER]);
            let life = world.live().await;
            let vm = create(&life, "train", "1").await.unwrap();
            life.settle(vm).await;
            life.power(vm, Wanted::Stop).await.unwrap();
            reconciler::look(&life.manager, vm).await.unwrap();
            assert_eq!(world.fake.peek(vm).power(), Some(&Power::Off));
            set(&life, vm, asked).await.unwrap();
            for _ in 0..steps {
                reconciler::look(&life.manager, vm).await.unwrap();
            }
            life.power(vm, Wanted::Start).await.unwrap();
            life.crash().await;
            let life = world.live().await;
            life.settle(vm).await;
            assert_eq!(life.state(vm).await, Some(VmState::Running));
            assert_eq!(devices(&world, vm).len(), 2 * cards, "{cards} cards, after {steps} steps");
            assert_eq!(life.store.leases().await.unwrap().len(), cards);
            life.power(vm, Wanted::DeleteNow).await.unwrap();
            life.settle(vm).await;
            assert!(life.store.leases().await.unwrap().is_empty());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_on_its_way_up_gets_the_card_with_its_start_or_after_it() {
    for steps in 0..6 {
        let world = world(&[CARD]);
        let life = world.live().await;
        let vm = life.create("train").await.unwrap();
        for _ in 0..steps {
            reconciler::look(&life.manager, vm).await.unwrap();
        }
        set(&life, vm, &["1"]).await.unwrap();
        life.settle(vm).await;
        assert_eq!(devices(&world, vm), [CARD, SOUND], "after {steps} steps");
        assert_eq!(
            (drivers(&world, CARD).await, states(&life).await[CARD]),
            (VFIO.map(str::to_owned).to_vec(), GpuState::InUse)
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_plug_is_tried_again_and_devices_of_others_are_left_alone() {
    let world = world(&[CARD]);
    let life = world.live().await;
    let vm = running(&life, "train").await;
    world.fake.fail_next(Op::AttachDevices, ErrorKind::Transient, 1);
    set(&life, vm, &["1"]).await.unwrap();
    life.settle(vm).await;
    assert_eq!(devices(&world, vm), [CARD, SOUND]);
    life.power(vm, Wanted::Stop).await.unwrap();
    life.settle(vm).await;
    set(&life, vm, &[]).await.unwrap();
    life.power(vm, Wanted::Start).await.unwrap();
    life.settle(vm).await;
    // Somebody plugs devices of his own.
    let mine = [1, 2, 3].map(|slot| at(&format!("0000:c1:0{slot}.0")).into());
    world.fake.attach_devices(vm, &mine).await.unwrap();
    assert_eq!(set(&life, vm, &["1"]).await.unwrap_err().kind, Kind::Conflict, "it has devices");
    assert_eq!(life.settle(vm).await, [""; 0]);
    assert_eq!(life.state(vm).await, Some(VmState::Running));
}
