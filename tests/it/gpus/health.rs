//! Cards that fall ill, and how they come back.

use gvm::manager::gpus::GpuRow;
use gvm::model::card::{Card, NvmlFacts, RecoveryAction, RemappedRows};
use gvm::model::event::{Operation, Outcome};
use gvm::store::audit::Whose;

use super::*;

const LOST: &str = "NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.";
pub(super) const REMAP: &str =
    "NVRM: Xid (PCI:0000:41:00): 63, pid=1, name=x, Row Remapper: New row marked for remapping";

pub(super) async fn shown(life: &Life, address: &str) -> GpuRow {
    life.manager.gpu(&life.permit(Action::GpuSee), address).await.unwrap()
}

pub(super) async fn state(life: &Life, address: &str) -> GpuState {
    states(life).await[address]
}

/// What gvm itself did to cards, oldest first: action, outcome, detail.
pub(super) async fn records(life: &Life) -> Vec<(String, Outcome, String)> {
    let rows = life.store.operations(Whose::Named("gvm"), 1000).await.unwrap();
    let told = |row: Operation| (row.action, row.outcome, row.detail);
    let mut all: Vec<_> = rows.into_iter().filter(|row| row.action.starts_with("gpu.")).map(told).collect();
    all.reverse();
    all
}

pub(super) async fn actions(life: &Life) -> Vec<String> {
    records(life).await.into_iter().map(|(action, ..)| action).collect()
}

fn nvml(change: impl FnOnce(&mut NvmlFacts)) -> impl FnOnce(&mut Card) {
    move |card| {
        let mut facts = NvmlFacts::at(card.address);
        change(&mut facts);
        card.nvml = Some(facts);
    }
}

pub(super) async fn running(life: &Life, name: &str) -> VmId {
    let vm = create(life, name, "1").await.unwrap();
    life.settle(vm).await;
    assert_eq!(life.state(vm).await, Some(VmState::Running));
    vm
}

pub(super) async fn stopped(life: &Life, vm: VmId) {
    life.power(vm, Wanted::Stop).await.unwrap();
    life.settle(vm).await;
    assert_eq!(life.state(vm).await, Some(VmState::Stopped));
}

pub(super) fn heard(life: &Life, vm: VmId) -> Vec<String> {
    life.manager.watch().listen(Some(vm)).0.into_iter().map(|told| told.progress.message).collect()
}

/// Case A-unhealthy-forever.
#[tokio::test(flavor = "multi_thread")]
async fn a_card_off_the_bus_goes_to_no_machine_until_it_is_readmitted() {
    let world = world(&[CARD, OTHER]);
    let life = world.live().await;
    world.gpus.log("NVRM: loading NVIDIA UNIX x86_64 Kernel Module");
    world.gpus.log(LOST);
    let vm = running(&life, "train").await;
    assert_eq!(life.store.vm(vm).await.unwrap().unwrap().placement.gpus[0].address(), at(OTHER));
    let (kind, text) = told(create(&life, "next", "1").await.unwrap_err());
    assert!(
        kind == Kind::NoCapacity && text.contains("kept out of use: Xid 79: GPU has fallen off the bus."),
        "{text}"
    );
    let card = shown(&life, CARD).await;
    assert_eq!(card.state, GpuState::Withheld);
    assert!(card.since.is_some() && card.remedy.unwrap().starts_with("gvm gpu readmit 0000:41:00.0"));
    assert_eq!(actions(&life).await, ["gpu.quarantine"]);
    // A manager that starts anew reads the whole log again, and decides nothing twice.
    life.crash().await;
    let life = world.live().await;
    assert_eq!((state(&life, CARD).await, actions(&life).await.len()), (GpuState::Withheld, 1));
    change(&life, CARD, GpuChange::Readmit).await.unwrap();
    assert_eq!(state(&life, CARD).await, GpuState::Free);
    life.crash().await;
    let life = world.live().await;
    assert_eq!((state(&life, CARD).await, actions(&life).await.len()), (GpuState::Free, 1));
    let admins = life.store.operations(Whose::Everybody, 50).await.unwrap();
    assert!(admins.iter().any(|row| row.action == "gpu.readmit" && row.detail == "readmitted after its self-test"));
    // What comes after that counts, in this boot and in the next, whose numbers begin anew.
    world.gpus.log(LOST);
    assert_eq!(state(&life, CARD).await, GpuState::Withheld);
    change(&life, CARD, GpuChange::Readmit).await.unwrap();
    life.crash().await;
    world.gpus.restart_log();
    world.gpus.log(LOST);
    let life = world.live_with(|host| host.boot_id = "boot-2".to_owned()).await;
    assert_eq!((state(&life, CARD).await, actions(&life).await.len()), (GpuState::Withheld, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_applications_change_nothing_but_a_note() {
    let mut world = world(&[CARD]);
    world.config.gpu.ignore_xids = [79].into();
    let life = world.live().await;
    for number in [13, 31, 43, 45, 68, 94] {
        world.gpus.log(&format!("NVRM: Xid (PCI:0000:41:00): {number}, pid=77, name=python, Ch 00000008"));
    }
    // One that the administrator does not want to hear of, one of a card that is not here, and rubbish.
    world.gpus.log(LOST);
    world.gpus.log("NVRM: Xid (PCI:0000:99:00): 79, GPU has fallen off the bus.");
    world.gpus.log("NVRM: Xid (PCI:\u{1b}[2J:99:00): 79, \u{0}\u{fffd}");
    let card = shown(&life, CARD).await;
    assert_eq!((card.state, card.reasons.len(), card.since), (GpuState::Free, 0, None));
    assert_eq!(card.notes, ["Xid 13: Ch 00000008 (6 lines about it at once)"]);
    let vm = running(&life, "train").await;
    assert_eq!(life.store.vm(vm).await.unwrap().unwrap().placement.gpus[0].address(), at(CARD));
    world.gpus.log("NVRM: Xid (PCI:0000:41:00): 43, pid=77, name=python, Ch 00000008");
    assert_eq!(state(&life, CARD).await, GpuState::InUse);
    stopped(&life, vm).await;
    let card = shown(&life, CARD).await;
    assert_eq!((card.state, card.notes.len()), (GpuState::Free, 0), "what it had is over with its reset");
    assert_eq!(actions(&life).await, ["gpu.sanitise"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_lines_is_one_decision() {
    let world = world(&[CARD]);
    let life = world.live().await;
    for _ in 0..10_000 {
        world.gpus.log(LOST);
    }
    assert_eq!(state(&life, CARD).await, GpuState::Withheld);
    let all = records(&life).await;
    assert_eq!(all.len(), 1);
    assert!(all[0].2.contains("(10000 lines about it at once)"), "{all:?}");
    for _ in 0..10_000 {
        world.gpus.log(LOST);
    }
    assert_eq!((state(&life, CARD).await, actions(&life).await.len()), (GpuState::Withheld, 1));
    // Of another driver, in three records, with the marks of a Xid 119 before it.
    let world = super::world(&[CARD]);
    let life = world.live().await;
    world.gpus.log("NVRM: Xid (PCI:0000:41:00): 119, pid=1, name=x, Timeout after 45s of waiting for RPC response");
    assert_eq!(state(&life, CARD).await, GpuState::Draining);
    world.gpus.log("NVRM: The NVIDIA GPU 0000:41:00.0");
    assert_eq!(state(&life, CARD).await, GpuState::Draining);
    world.gpus.log("NVRM: (PCI ID: 10de:20b5) installed in this system has");
    world.gpus.log("NVRM: fallen off the bus and is not responding to commands.");
    assert_eq!(state(&life, CARD).await, GpuState::Withheld);
    assert_eq!(actions(&life).await, ["gpu.drain", "gpu.quarantine"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_wants_a_reset_keeps_its_machine_and_gets_the_reset_after_it() {
    let world = world(&[CARD]);
    let life = world.live().await;
    let vm = running(&life, "train").await;
    world.gpus.log(REMAP);
    assert_eq!(state(&life, CARD).await, GpuState::InUse);
    assert!(heard(&life, vm).iter().any(|text| text.contains("wants a reset: Xid 63: Row Remapper")));
    assert_eq!(life.state(vm).await, Some(VmState::Running));
    // A restart of its machine is not a new machine.
    life.power(vm, Wanted::Restart).await.unwrap();
    life.settle(vm).await;
    assert_eq!(life.state(vm).await, Some(VmState::Running));
    stopped(&life, vm).await;
    assert_eq!(state(&life, CARD).await, GpuState::Free);
    assert_eq!(actions(&life).await, ["gpu.drain", "gpu.sanitise"]);
    // One that cannot be reset waits for somebody who does it.
    world.gpus.edit(at(CARD), |card| card.reset_methods.clear());
    let vm = running(&life, "again").await;
    world.gpus.log(REMAP);
    stopped(&life, vm).await;
    let card = shown(&life, CARD).await;
    assert_eq!(card.state, GpuState::Draining);
    assert!(card.since.is_some() && card.remedy.as_ref().unwrap().contains("nvidia-smi --gpu-reset"), "{card:?}");
    let (_, text) = told(create(&life, "next", "1").await.unwrap_err());
    assert!(text.contains("to be reset or repaired first: Xid 63"), "{text}");
    change(&life, CARD, GpuChange::Readmit).await.unwrap();
    assert_eq!(state(&life, CARD).await, GpuState::Free);
    // A restart of the host is a reset as well.
    world.gpus.log(REMAP);
    assert_eq!(state(&life, CARD).await, GpuState::Draining);
    life.crash().await;
    world.gpus.restart_log();
    let life = world.live_with(|host| host.boot_id = "boot-2".to_owned()).await;
    assert_eq!(state(&life, CARD).await, GpuState::Free);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nvml_says_of_a_card_is_heeded_as_long_as_it_says_it() {
    let world = world(&[CARD]);
    let life = world.live().await;
    let check = async |change: fn(&mut NvmlFacts), expected: GpuState, why: &str| {
        world.gpus.edit(at(CARD), nvml(change));
        assert_eq!(state(&life, CARD).await, expected, "{why}");
        let refusal = told(create(&life, "train", "1").await.unwrap_err()).1;
        assert!(refusal.contains(why), "{refusal}");
        let test = change_refused(&life).await;
        assert!(test.contains("does not pass its self-test") && test.contains(why), "{test}");
        world.gpus.edit(at(CARD), nvml(|_| {}));
        assert_eq!(state(&life, CARD).await, GpuState::Free, "it ends with {why}");
    };
    check(|nvml| nvml.recovery = Some(RecoveryAction::Reset), GpuState::Draining, "asks for a reset").await;
    check(|nvml| nvml.recovery = Some(RecoveryAction::Reboot), GpuState::Withheld, "restart of the host").await;
    let pending = |nvml: &mut NvmlFacts| {
        nvml.remapped = Some(RemappedRows { is_pending: true, ..RemappedRows::default() });
    };
    check(pending, GpuState::Draining, "replaced at its next reset").await;
    check(|nvml| nvml.faults = vec!["memory: Unknown Error".to_owned()], GpuState::Draining, "memory: Unknown Error")
        .await;
    // Heat is worth knowing, and no reason.
    world.gpus.edit(at(CARD), nvml(|nvml| nvml.throttled = vec!["thermal slowdown".to_owned()]));
    let card = shown(&life, CARD).await;
    assert_eq!(
        (card.state, card.notes),
        (GpuState::Free, vec!["its clocks are held down: thermal slowdown".to_owned()])
    );
    // A row that could not be replaced is kept, also where nobody asks NVML any more.
    world
        .gpus
        .edit(at(CARD), nvml(|nvml| nvml.remapped = Some(RemappedRows { has_failed: true, ..Default::default() })));
    assert_eq!(state(&life, CARD).await, GpuState::Withheld);
    world.gpus.edit(at(CARD), |card| card.nvml = None);
    assert_eq!(
        (state(&life, CARD).await, actions(&life).await),
        (GpuState::Withheld, vec!["gpu.quarantine".to_owned()])
    );
    // NVML does not list it while its driver has it.
    change(&life, CARD, GpuChange::Readmit).await.unwrap();
    let dropped = gvm::model::card::Health::Dropped("the nvidia driver has it, and NVML does not list it".to_owned());
    world.gpus.edit(at(CARD), |card| card.health = dropped);
    assert_eq!(state(&life, CARD).await, GpuState::Blocked);
    assert!(change_refused(&life).await.contains("NVML does not list it"));
}

async fn change_refused(life: &Life) -> String {
    let refusal = change(life, CARD, GpuChange::Readmit).await.unwrap_err();
    assert_eq!((refusal.kind, refusal.hint.as_ref().unwrap().contains("--force")), (Kind::Conflict, true));
    refusal.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_vanishes_under_its_machine_is_told_and_kept_out_of_use() {
    let world = world(&[CARD]);
    let life = world.live().await;
    let vm = running(&life, "train").await;
    let before = world.gpus.discover().await.unwrap();
    world.gpus.vanish(at(CARD));
    life.manager.look_at_gpus().await.unwrap();
    assert!(heard(&life, vm).iter().any(|text| text.contains("vanished from the bus while a VM had it")));
    assert_eq!(
        (life.state(vm).await, actions(&life).await),
        (Some(VmState::Running), vec!["gpu.quarantine".to_owned()])
    );
    life.manager.look_at_gpus().await.unwrap();
    assert_eq!(actions(&life).await.len(), 1);
    // It is back, and nobody is given it.
    world.gpus.show(before);
    stopped(&life, vm).await;
    assert_eq!(state(&life, CARD).await, GpuState::Withheld);
    assert!(create(&life, "next", "1").await.is_err());
    change(&life, CARD, GpuChange::Readmit).await.unwrap();
    let vm = running(&life, "next").await;
    // Taken from VFIO by hand.
    world.gpus.edit(at(CARD), |card| (card.driver, card.is_vfio) = (Some("nvidia".to_owned()), false));
    life.manager.look_at_gpus().await.unwrap();
    assert!(heard(&life, vm).iter().any(|text| text.contains("taken from VFIO (nvidia)")), "{:?}", heard(&life, vm));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_of_the_host_cards_with_their_drivers_are_no_loss() {
    let world = world(&[CARD]);
    let life = world.live().await;
    let vm = running(&life, "train").await;
    life.crash().await;
    world.fake.destroy_behind(vm);
    world.gpus.show(gvm::model::card::Discovery { cards: vec![card(CARD)], ..Default::default() }.judged(None));
    let life = world.live_with(|host| host.boot_id = "boot-2".to_owned()).await;
    life.manager.look_at_gpus().await.unwrap();
    assert!(actions(&life).await.is_empty());
    life.settle(vm).await;
    assert_eq!((life.state(vm).await, actions(&life).await.len()), (Some(VmState::Running), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_is_taken_back_without_a_test_where_somebody_answers_for_it() {
    let world = world(&[CARD]);
    let life = world.live().await;
    world.gpus.log(LOST);
    world.gpus.edit(at(CARD), |card| {
        card.health = gvm::model::card::Health::NoAnswer("its config space reads 0xffff".to_owned());
    });
    assert_eq!(state(&life, CARD).await, GpuState::Withheld);
    assert!(change_refused(&life).await.contains("0000:41:00.0 does not answer: its config space reads 0xffff"));
    change(&life, CARD, GpuChange::ReadmitUntested).await.unwrap();
    assert_eq!(state(&life, CARD).await, GpuState::Blocked, "what is seen of it counts all the same");
    world.gpus.vanish(at(CARD));
    assert!(change_refused(&life).await.contains("it is not there"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_cannot_be_read_is_told_and_no_failure() {
    let world = world(&[CARD]);
    world.gpus.log(LOST);
    world.gpus.hide_log();
    let life = world.live().await;
    let listing = life.manager.gpus(&life.permit(Action::GpuSee)).await.unwrap();
    assert!(listing.findings.iter().any(|finding| finding.text.contains("kernel's log cannot be read")));
    let vm = running(&life, "train").await;
    stopped(&life, vm).await;
    let findings = life.manager.doctor(&life.permit(Action::GpuSee), None).await.unwrap();
    let finding = findings.iter().find(|finding| finding.check == "kernel-log").unwrap();
    assert!(finding.fix.as_ref().unwrap().contains("CAP_SYSLOG"), "{finding:?}");
}
