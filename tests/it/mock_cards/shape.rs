//! Cards that are divided otherwise by `gvm helper`: from nothing to a vGPU on a MIG instance, and back.

use gvm::model::card::Discovery;

use super::{CARD, FIRST, SECOND, changes, does, fails, refuses};
use crate::support::card_host::{CardHost, mounted};

fn steps(lines: &[serde_json::Value]) -> Vec<&str> {
    lines.iter().map(|line| line["step"].as_str().unwrap()).collect()
}

fn mig(host: &CardHost) -> (bool, bool) {
    host.state().cards[0].mig
}

/// The instance of NVML's by its number, as a scan finds it.
fn instance(host: &CardHost, text: &str) -> u32 {
    let found: Discovery = host.scan(&["--format", "json"]).json();
    let card = found.card(CARD.parse().unwrap()).unwrap();
    let all = &card.mig().unwrap().instances;
    let is_it = |made: &&gvm::model::card::MadeInstance| {
        format!("{}@{}", made.instance.profile, made.instance.placement) == text && made.compute_instances == 1
    };
    all.iter().find(is_it).unwrap_or_else(|| panic!("{all:?}")).id
}

/// From MIG in force to a vGPU on an instance, and to nothing again.
fn there_and_back(host: &CardHost, kind: &str) {
    assert!(changes(host, "set-functions", &[CARD, "all"]));
    assert!(!changes(host, "set-functions", &[CARD, "all"]));
    assert!(!changes(host, "set-mig", &[CARD, "on"]));
    for text in ["3g.40gb@4:4", "1g.10gb@0:1", "1g.10gb@1:1"] {
        assert!(changes(host, "make-instance", &[CARD, text]), "{text}");
        assert!(!changes(host, "make-instance", &[CARD, text]), "{text} is there");
    }
    let large = format!("{kind}-3-40C");
    assert!(changes(host, "make-vgpu", &[FIRST, &large]));
    assert!(!changes(host, "make-vgpu", &[FIRST, &large]));
    let id = instance(host, "3g.40gb@4:4");
    assert_eq!(host.device(FIRST, "nvidia/gpu_instance_id"), id.to_string());
    assert_ne!(host.device(FIRST, "nvidia/current_vgpu_type"), "0");
    // No list of the kernel's has the type any more, as its one instance is taken: NVML names it.
    let found: Discovery = host.scan(&["--format", "json"]).json();
    let vgpu = found.card(FIRST.parse().unwrap()).unwrap().vgpu.clone().unwrap();
    assert_eq!(
        (vgpu.made[0].name.as_ref().map(|name| name.as_str()), vgpu.made[0].gpu_instance),
        (Some(large.as_str()), Some(id))
    );
    let (list, small) = (host.device(SECOND, "nvidia/creatable_vgpu_types"), format!("{kind}-1-10C"));
    assert!(list.contains(&format!("NVIDIA {small}")) && !list.contains(&large), "{list}");

    // Nothing goes from under the vGPU.
    let text = refuses(host, "remove-instance", &[CARD, "3g.40gb@4:4"]);
    let why = format!("3g.40gb@4:4 is in use: {FIRST} carries a vGPU on it ({large}); remove that first");
    assert_eq!(text, format!("{CARD}: {why}"));
    assert!(refuses(host, "set-mig", &[CARD, "off"]).ends_with("has 3 MIG instances; remove them first"));
    assert!(refuses(host, "set-functions", &[CARD, "0"]).contains("carries a vGPU"));
    assert!(refuses(host, "reset", &[CARD]).contains("carries a vGPU"));
    // What is beside it may go.
    assert!(changes(host, "remove-instance", &[CARD, "1g.10gb@0:1"]));
    assert!(!changes(host, "remove-instance", &[CARD, "1g.10gb@0:1"]));
    assert_eq!(instance(host, "3g.40gb@4:4"), id);

    assert!(changes(host, "remove-vgpu", &[FIRST, &large]));
    assert!(changes(host, "remove-instance", &[CARD, "3g.40gb@4:4"]));
    assert!(changes(host, "remove-instance", &[CARD, "1g.10gb@1:1"]));
    let functions = host.state().cards[0].functions.len();
    assert_eq!(
        refuses(host, "set-mig", &[CARD, "off"]),
        format!("{CARD} has {functions} virtual functions switched on; switch them off first")
    );
    assert!(changes(host, "set-functions", &[CARD, "0"]));
}

#[test]
fn an_a100_is_walked_from_nothing_to_a_vgpu_and_back() {
    let host = mounted!(("A100-80", CARD));
    let lines = does(&host, "set-mig", &[CARD, "on"]);
    assert!(steps(&lines).ends_with(&["needs_reset", "done"]), "{lines:?}");
    assert_eq!((mig(&host), &lines.last().unwrap()["is_changed"]), ((false, true), &true.into()));
    // What is about to be called is told before.
    let calls: Vec<&str> = lines.iter().filter_map(|line| line["call"].as_str()).collect();
    assert!(calls.contains(&"switching MIG on"), "{calls:?}");
    let lines = does(&host, "set-mig", &[CARD, "on"]);
    assert_eq!(lines.last().unwrap()["is_changed"], false);
    assert!(steps(&lines).contains(&"needs_reset"));
    assert_eq!(
        refuses(&host, "make-instance", &[CARD, "3g.40gb@4:4"]),
        format!("{CARD}: MIG comes on with the card's next reset only; reset it first")
    );
    assert!(changes(&host, "reset", &[CARD]));
    assert_eq!(mig(&host), (true, true));
    there_and_back(&host, "A100D");
    assert!(steps(&does(&host, "set-mig", &[CARD, "off"])).contains(&"needs_reset"));
    assert!(changes(&host, "reset", &[CARD]));
    assert_eq!(mig(&host), (false, false));
    let card = &host.state().cards[0];
    assert!(card.instances.is_empty() && card.functions.is_empty());
}

#[test]
fn an_h100_changes_its_mode_at_once() {
    let host = mounted!(("H100", CARD));
    assert!(refuses(&host, "make-instance", &[CARD, "3g.40gb@4:4"]).ends_with("MIG is off; switch it on first"));
    assert!(!changes(&host, "remove-instance", &[CARD, "3g.40gb@4:4"]), "there is none");
    let lines = does(&host, "set-mig", &[CARD, "on"]);
    assert!(!steps(&lines).contains(&"needs_reset"), "{lines:?}");
    assert_eq!(mig(&host), (true, true));
    there_and_back(&host, "H100");
    assert!(changes(&host, "set-mig", &[CARD, "off"]));
    assert_eq!(mig(&host), (false, false));
}

/// Case B-mig-mode-pending.
#[test]
fn a_mode_that_waits_is_told_and_a_card_in_use_is_not_reset() {
    let host = mounted!(("A100-80", CARD));
    host.change(|state| {
        state.cards[0].mig = (false, true);
        state.holders.push(gvm_nvml_mock::state::Holder {
            pid: 977,
            comm: "nvidia-persistenced".to_owned(),
            node: "/dev/nvidia0".to_owned(),
        });
    });
    let held = format!("{CARD} is in use: pid 977 (nvidia-persistenced) has /dev/nvidia0 open");
    assert_eq!(refuses(&host, "reset", &[CARD]), held);
    assert_eq!(refuses(&host, "set-mig", &[CARD, "off"]), held);
    assert!(refuses(&host, "make-instance", &[CARD, "1g.10gb@0:1"]).contains("next reset only"));
    assert_eq!(mig(&host), (false, true));
    assert_eq!(host.state().cards[0].epoch, 0, "it was not reset");
    let found: Discovery = host.scan(&["--format", "json"]).json();
    let words: Vec<&str> = found.cards[0].blockers.iter().map(|blocker| blocker.text.as_str()).collect();
    assert!(words.contains(&"MIG is off and turns on with the next reset"), "{words:?}");
}

/// Case B-mig-fragmentation, as the helper sees it.
#[test]
fn an_instance_lies_where_it_was_told_to_or_nowhere() {
    let host = mounted!(("H100", CARD));
    does(&host, "set-mig", &[CARD, "on"]);
    for start in [0, 1, 5] {
        does(&host, "make-instance", &[CARD, &format!("1g.10gb@{start}:1")]);
    }
    assert_eq!(
        refuses(&host, "make-instance", &[CARD, "3g.40gb@4:4"]),
        format!("{CARD}: 1g.10gb@5:1 lies where 3g.40gb@4:4 is to go; remove it first")
    );
    assert_eq!(
        refuses(&host, "make-instance", &[CARD, "3g.40gb@2:4"]),
        format!("{CARD}: 3g.40gb cannot lie at 2:4; it may at 0:4, 4:4")
    );
    assert_eq!(
        refuses(&host, "make-instance", &[CARD, "1g.10gb+me@5:1"]),
        format!("{CARD}: 1g.10gb@5:1 lies where 1g.10gb+me@5:1 is to go; remove it first")
    );
    let text = refuses(&host, "make-instance", &[CARD, "3g.20gb@4:4"]);
    assert!(text.contains("the card has no MIG profile 3g.20gb; it has 1g.10gb, 2g.20gb, 3g.40gb"), "{text}");
    assert!(changes(&host, "make-instance", &[CARD, "2g.20gb@2:2"]));
    let starts: Vec<u32> = host.state().cards[0].instances.iter().map(|one| one.start).collect();
    assert_eq!(starts, [0, 1, 5, 2]);
    // One that lost its compute instance gets it back.
    host.change(|state| state.cards[0].instances[0].compute.clear());
    assert!(changes(&host, "make-instance", &[CARD, "1g.10gb@0:1"]));
    assert_eq!(host.state().cards[0].instances[0].compute.len(), 1);
}

#[test]
fn only_cards_with_mig_and_the_drivers_are_changed() {
    let host = mounted!(("L40S", CARD), ("A100-80", "0000:c1:00.0"));
    assert_eq!(refuses(&host, "set-mig", &[CARD, "on"]), format!("{CARD}: the card has no MIG"));
    does(&host, "set-functions", &[CARD, "all"]);
    assert!(refuses(&host, "set-mig", &[FIRST, "on"]).contains("is a virtual function"));
    host.change(|state| state.cards[1].driver = Some("vfio-pci".to_owned()));
    let text = refuses(&host, "set-mig", &["0000:c1:00.0", "on"]);
    assert!(text.ends_with("is with vfio-pci; NVML knows cards of the driver nvidia only"), "{text}");
    let ended = host.helper("make-instance", &[CARD, "3g.40gb"]);
    assert!(ended.fails(2).contains("is no MIG instance"), "a place belongs to it");
}

#[test]
fn drivers_of_virtual_functions_come_late_or_never() {
    let mut host = mounted!(("L40S", CARD));
    host.change(|state| state.cards[0].late = 10);
    assert!(changes(&host, "set-functions", &[CARD, "all"]));
    assert_eq!(host.device(FIRST, "nvidia/current_vgpu_type"), "0");
    does(&host, "set-functions", &[CARD, "0"]);
    host.change(|state| state.cards[0].late = 3_600_000);
    host.patience = std::time::Duration::from_millis(1500);
    let text = fails(&host, "set-functions", &[CARD, "all"], "failed");
    assert!(text.contains("of 32 virtual functions 32 have come within 1.5 s, and 0 of them have a driver"), "{text}");
    // A number of its own is the kernel's way, which NVIDIA's driver does not go.
    host.change(|state| state.cards[0].late = 0);
    host.patience = std::time::Duration::from_secs(5);
    does(&host, "set-functions", &[CARD, "0"]);
    let text = fails(&host, "set-functions", &[CARD, "4"], "failed");
    assert!(text.contains("sriov_numvfs: No such file or directory (ENOENT)"), "{text}");
    assert!(refuses(&host, "set-functions", &[CARD, "33"]).contains("has 32 virtual functions"));
}

/// Case B-state-lost-on-reboot: the same jobs in the same order bring everything back, and change nothing where it is.
#[test]
fn what_a_reboot_takes_is_made_again_by_the_same_jobs() {
    for (kind, vgpu, needs_mode) in [("A100-80", "A100D-2-20C", false), ("H100", "H100-2-20C", true)] {
        let host = mounted!((kind, CARD));
        let jobs: [(&str, &[&str]); 4] = [
            ("set-mig", &[CARD, "on"]),
            ("set-functions", &[CARD, "all"]),
            ("make-instance", &[CARD, "2g.20gb@2:2"]),
            ("make-vgpu", &[FIRST, vgpu]),
        ];
        does(&host, "set-mig", &[CARD, "on"]);
        does(&host, "reset", &[CARD]);
        let all =
            |host: &CardHost| -> Vec<bool> { jobs.iter().map(|(verb, words)| changes(host, verb, words)).collect() };
        assert_eq!(all(&host), [false, true, true, true], "{kind}");
        assert_eq!(all(&host), [false; 4], "{kind}");
        host.change(|state| state.cards[0].reboot());
        assert_eq!(mig(&host), (!needs_mode, !needs_mode), "{kind}");
        assert_eq!(all(&host), [needs_mode, true, true, true], "{kind}");
        assert_eq!(all(&host), [false; 4], "{kind}");
        let id = instance(&host, "2g.20gb@2:2");
        assert_eq!(host.device(FIRST, "nvidia/gpu_instance_id"), id.to_string());
    }
}
