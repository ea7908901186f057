use super::*;
use crate::model::gpu::GpuRequest;
use crate::model::id::{HostId, UserId, VmId};
use crate::model::image::Boot;
use crate::model::network::{GuestAddress, MacAddress};
use crate::model::state::FirstBoot;
use crate::model::vm::{Generation, Placement, Trouble, VmSpec};

const SHAPE: &str = "shape";
const BOOT_ID: &str = "boot-1";

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).unwrap()
}

fn vm(desired: Desired) -> Vm {
    Vm {
        id: VmId::generate(),
        name: "dev".parse().unwrap(),
        owner: UserId::generate(),
        team: None,
        spec: VmSpec {
            profile: "tiny".parse().unwrap(),
            image: None,
            clone_of: None,
            boot: Boot::Firmware,
            vcpus: 1,
            memory: Mib(256),
            disk: Mib(64),
            caps: Caps::default(),
            gpus: Vec::new(),
            tpm: false,
            secure_boot: false,
            graphics: false,
            ttl: None,
            guest_user: "eve".parse().unwrap(),
            user_data: None,
            profile_user_data: None,
        },
        desired,
        generation: Generation(1),
        restart_requested: None,
        is_force_stop: false,
        stop_asked_at: None,
        started_at: None,
        started_boot: None,
        placement: Placement {
            host: HostId::generate(),
            mac: MacAddress::qemu([1, 2, 3]),
            address: GuestAddress([10, 77, 0, 2].into()),
            gpus: Vec::new(),
            mmio64: None,
            huge_page: None,
        },
        tags: Vec::new(),
        trouble: None,
        attempts: 0,
        next_try: None,
        first_boot: FirstBoot::Waiting,
        created_at: at(0),
        undelete_until: None,
    }
}

fn started(desired: Desired) -> Vm {
    Vm { started_at: Some(at(0)), started_boot: Some(BOOT_ID.to_owned()), ..vm(desired) }
}

fn domain(power: Power) -> Observed {
    Observed::Defined(ObservedDomain {
        power,
        shape: SHAPE.to_owned(),
        caps: Caps::default(),
        vcpus: 1,
        max_vcpus: 4,
        memory: Mib(256),
        max_memory: Mib(256),
        is_off_by_guest: false,
        hostdevs: Vec::new(),
        is_accelerated: false,
    })
}

fn edit(observed: Observed, change: impl FnOnce(&mut ObservedDomain)) -> Observed {
    match observed {
        Observed::Defined(mut domain) => {
            change(&mut domain);
            Observed::Defined(domain)
        }
        other => other,
    }
}

const READY: Artefacts = Artefacts { has_folder: true, disk: Some(Mib(64)), has_seed: true, has_room: true };

fn check_with(vm: &Vm, observed: &Observed, artefacts: Artefacts, seconds: i64) -> String {
    check_all(vm, observed, artefacts, GpuFacts::NoLease, seconds)
}

fn check_all(vm: &Vm, observed: &Observed, artefacts: Artefacts, gpus: GpuFacts, seconds: i64) -> String {
    let facts = Facts {
        observed,
        artefacts,
        gpus,
        is_defined_as_wanted: matches!(observed, Observed::Defined(domain) if domain.shape == SHAPE),
        boot_id: BOOT_ID,
        stop_grace: SignedDuration::from_secs(60),
        max_attempts: 3,
        now: at(seconds),
    };
    match plan(vm, &facts) {
        Decision::Settled => "settled".to_owned(),
        Decision::Act(step) => step.name().to_owned(),
        Decision::Wait(until) => format!("wait {}", until.as_second() - 1_000_000),
        Decision::GiveUp(why) => format!("give up: {why}"),
    }
}

fn check(vm: &Vm, observed: &Observed) -> String {
    check_with(vm, observed, READY, 5)
}

#[test]
fn cards_are_taken_before_the_definition_and_given_back_when_it_is_off() {
    use GpuFacts::{Bound, NoLease, NotBound};
    let check = |vm: &Vm, observed: &Observed, gpus| check_all(vm, observed, READY, gpus, 5);
    let mut wanted = vm(Desired::Running);
    wanted.spec.gpus = GpuRequest::parse_list(&["1".to_owned()]).unwrap();
    let off = domain(Power::Off);
    assert_eq!(check(&wanted, &Observed::Missing, NotBound), "ensure-gpu-bound");
    assert_eq!(check(&wanted, &off, NotBound), "ensure-gpu-bound");
    assert_eq!(check(&wanted, &Observed::Missing, Bound), "define");
    assert_eq!(check(&wanted, &off, Bound), "start");
    // Never without: the step says that it holds none.
    assert_eq!(check(&wanted, &off, NoLease), "ensure-gpu-bound");
    // It asks for none any more, and what it had is not taken away yet.
    let plain = vm(Desired::Running);
    assert_eq!(check(&plain, &off, NotBound), "ensure-gpu-bound");
    assert_eq!(check(&plain, &off, NoLease), "start");
    // Off, whoever turned it off; running, nothing is given back.
    let stopped = vm(Desired::Stopped);
    assert_eq!(check(&stopped, &off, Bound), "release-gpu");
    let with_cards = edit(off.clone(), |domain| domain.shape = "with cards".to_owned());
    assert_eq!(check(&stopped, &with_cards, Bound), "define");
    assert_eq!(check(&stopped, &Observed::Missing, NotBound), "release-gpu");
    assert_eq!(check(&stopped, &domain(Power::Running), Bound), "ask-shutdown");
    assert_eq!(check(&started(Desired::Stopped), &off, Bound), "record-off");
    assert_eq!(check(&stopped, &off, NoLease), "settled");
    // Deleted: the definition goes first, the files last.
    let absent = vm(Desired::Absent);
    assert_eq!(check(&absent, &off, Bound), "undefine");
    assert_eq!(check(&absent, &Observed::Missing, NotBound), "release-gpu");
    assert_eq!(check(&absent, &Observed::Missing, NoLease), "ensure-files-gone");
}

#[test]
fn cards_are_plugged_into_a_machine_that_runs() {
    use GpuFacts::{Attached, Bound, NoLease, NotBound};
    let check = |vm: &Vm, observed: &Observed, gpus| check_all(vm, observed, READY, gpus, 5);
    let mut wanted = started(Desired::Running);
    wanted.spec.gpus = GpuRequest::parse_list(&["1".to_owned()]).unwrap();
    // Its definition does not have them yet, which is nothing to a machine that runs.
    let up = edit(domain(Power::Running), |domain| domain.shape = "without cards".to_owned());
    assert_eq!(check(&wanted, &up, NotBound), "ensure-gpu-bound");
    assert_eq!(check(&wanted, &up, Bound), "attach-gpu");
    assert_eq!(check(&wanted, &up, Attached), "settled");
    assert_eq!(check(&wanted, &up, NoLease), "settled");
    let held = Vm { desired: Desired::Paused, ..wanted.clone() };
    assert_eq!(check(&held, &domain(Power::Paused(WhyPaused::Asked)), Bound), "attach-gpu");
    // Not before its start is noted, nor while it goes off.
    assert_eq!(check(&Vm { started_at: None, ..wanted.clone() }, &up, NotBound), "record-started");
    assert_eq!(check(&wanted, &domain(Power::ShuttingDown), Bound), "wait 6");
    assert_eq!(check(&Vm { desired: Desired::Stopped, ..wanted.clone() }, &up, Bound), "ask-shutdown");
    assert_eq!(check(&Vm { restart_requested: Some(Generation(1)), ..wanted.clone() }, &up, Bound), "ask-shutdown");
    // Memory that can be plugged comes first, as it cannot be once the cards are there.
    wanted.spec.memory = Mib(512);
    let pluggable = edit(up, |domain| domain.max_memory = Mib(1024));
    assert_eq!(check(&wanted, &pluggable, Bound), "apply-memory");
    let with_card = edit(pluggable, |domain| domain.hostdevs = vec!["0000:41:00.0".to_owned()]);
    assert_eq!((check(&wanted, &with_card, Attached).as_str(), needs_restart(&wanted, &with_card)), ("settled", true));
}

#[test]
fn a_new_machine_gets_disk_seed_definition_and_start_in_that_order() {
    let vm = vm(Desired::Running);
    let nothing = Artefacts { has_room: true, ..Artefacts::default() };
    assert_eq!(check_with(&vm, &Observed::Missing, nothing, 0), "ensure-disk");
    assert_eq!(check_with(&vm, &Observed::Missing, Artefacts { has_seed: false, ..READY }, 0), "ensure-seed");
    assert_eq!(check(&vm, &Observed::Missing), "define");
    assert_eq!(check(&vm, &domain(Power::Off)), "start");
    assert_eq!(check(&vm, &domain(Power::Running)), "record-started");
    assert_eq!(check(&started(Desired::Running), &domain(Power::Running)), "settled");
}

#[test]
fn an_unreachable_hypervisor_stops_the_planner() {
    for desired in [Desired::Running, Desired::Stopped, Desired::Absent] {
        assert_eq!(check(&started(desired), &Observed::Unknown("down".to_owned())), "wait 10");
    }
}

#[test]
fn a_stop_asks_asks_again_and_forces() {
    let mut vm = started(Desired::Stopped);
    let up = domain(Power::Running);
    assert_eq!(check(&vm, &up), "ask-shutdown");
    vm.stop_asked_at = Some(at(0));
    assert_eq!(check_with(&vm, &up, READY, 3), "wait 10");
    assert_eq!(check_with(&vm, &up, READY, 10), "ask-shutdown");
    assert_eq!(check_with(&vm, &up, READY, 55), "wait 60");
    assert_eq!(check_with(&vm, &up, READY, 60), "force-off");
    vm.is_force_stop = true;
    assert_eq!(check_with(&vm, &up, READY, 1), "force-off");
    assert_eq!(check(&vm, &domain(Power::Off)), "record-off");
    assert_eq!(check(&super::tests::vm(Desired::Stopped), &domain(Power::Off)), "settled");
}

#[test]
fn a_held_guest_is_let_go_before_it_is_asked() {
    assert_eq!(check(&started(Desired::Stopped), &domain(Power::Paused(WhyPaused::Asked))), "resume");
}

#[test]
fn a_guest_that_shuts_itself_down_stays_down() {
    let off = edit(domain(Power::Off), |d| d.is_off_by_guest = true);
    assert_eq!(check(&started(Desired::Running), &off), "accept-off");
    let rebooted = Vm { started_boot: Some("boot-0".to_owned()), ..started(Desired::Running) };
    assert_eq!(check(&rebooted, &off), "record-off", "the host was rebooted meanwhile");
    assert_eq!(check(&started(Desired::Running), &domain(Power::Off)), "record-off", "destroyed behind our back");
    assert_eq!(check(&started(Desired::Running), &Observed::Missing), "record-off", "undefined behind our back");
}

#[test]
fn a_restart_stops_first() {
    let vm = Vm { restart_requested: Some(Generation(1)), ..started(Desired::Running) };
    assert_eq!(check(&vm, &domain(Power::Running)), "ask-shutdown");
    assert_eq!(check(&vm, &domain(Power::Off)), "record-off");
}

#[test]
fn pause_and_resume_are_wishes() {
    assert_eq!(check(&started(Desired::Paused), &domain(Power::Running)), "pause");
    assert_eq!(check(&started(Desired::Paused), &domain(Power::Paused(WhyPaused::Asked))), "settled");
    assert_eq!(check(&started(Desired::Running), &domain(Power::Paused(WhyPaused::Asked))), "resume");
}

#[test]
fn a_full_disk_is_waited_for() {
    let held = domain(Power::Paused(WhyPaused::StorageError));
    assert_eq!(check_with(&started(Desired::Running), &held, Artefacts { has_room: false, ..READY }, 0), "wait 5");
    assert_eq!(check(&started(Desired::Running), &held), "resume");
}

#[test]
fn deletion_removes_from_the_outside_in() {
    let vm = started(Desired::Absent);
    assert_eq!(check(&vm, &domain(Power::Running)), "force-off");
    assert_eq!(check(&vm, &domain(Power::Off)), "undefine");
    assert_eq!(check(&vm, &Observed::Missing), "ensure-files-gone");
    assert_eq!(check_with(&vm, &Observed::Missing, Artefacts::default(), 0), "forget");
}

#[test]
fn the_undelete_window_is_waited_for() {
    let vm = Vm { undelete_until: Some(at(100)), ..vm(Desired::Stopped) };
    assert_eq!(check(&vm, &domain(Power::Off)), "wait 100");
    assert_eq!(check_with(&vm, &domain(Power::Off), READY, 100), "purge");
}

#[test]
fn trouble_is_waited_out_and_then_given_up() {
    let trouble = Trouble { step: "start".to_owned(), message: "no".to_owned(), at: at(0), is_final: false };
    let mut vm = Vm { trouble: Some(trouble), attempts: 1, next_try: Some(at(50)), ..vm(Desired::Running) };
    assert_eq!(check(&vm, &domain(Power::Off)), "wait 50");
    assert_eq!(check_with(&vm, &domain(Power::Off), READY, 50), "start");
    vm.attempts = 3;
    assert_eq!(check_with(&vm, &domain(Power::Off), READY, 50), "give up: start: no");
}

#[test]
fn changes_are_made_while_it_runs_where_that_is_possible() {
    let up = domain(Power::Running);
    let with = |change: fn(&mut Vm)| {
        let mut vm = started(Desired::Running);
        change(&mut vm);
        vm
    };
    assert_eq!(check(&with(|vm| vm.spec.caps.cpu_percent = Some(50)), &up), "apply-caps");
    assert_eq!(check(&with(|vm| vm.spec.vcpus = 2), &up), "apply-vcpus");
    assert_eq!(check(&with(|vm| vm.spec.disk = Mib(128)), &up), "apply-disk");
    let larger = with(|vm| vm.spec.memory = Mib(512));
    assert_eq!((check(&larger, &up).as_str(), needs_restart(&larger, &up)), ("settled", true));
    let pluggable = edit(up, |d| d.max_memory = Mib(1024));
    assert_eq!((check(&larger, &pluggable).as_str(), needs_restart(&larger, &pluggable)), ("apply-memory", false));
}

#[test]
fn another_shape_is_defined_anew_while_off() {
    let other = edit(domain(Power::Off), |d| d.shape = "other".to_owned());
    assert_eq!(check(&vm(Desired::Running), &other), "define");
    assert_eq!(check(&vm(Desired::Stopped), &other), "define");
}

#[test]
fn a_lifetime_ends_in_a_stop() {
    let mut vm = started(Desired::Running);
    vm.spec.ttl = Some(crate::model::units::Seconds(100));
    assert_eq!(check(&vm, &domain(Power::Running)), "wait 100");
    assert_eq!(check_with(&vm, &domain(Power::Running), READY, 100), "expire");
}
