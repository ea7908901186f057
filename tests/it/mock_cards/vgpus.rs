//! vGPUs that `gvm helper` makes and takes away, by both frameworks.

use gvm::model::card::Discovery;
use gvm::model::card::vgpu::VgpuFramework;
use gvm_nvml_mock::state::{Fault, Framework};

use super::{CARD, FIRST, OTHER, SECOND, changes, does, fails, refuses};
use crate::support::card_host::mounted;

const UUID: &str = "c2177883-f1bb-47f0-914d-32a22e3a8804";
const TWIN: &str = "0a9d0b56-3a05-4c5e-8a26-2fd6e0e2a111";

/// Cases B-vendor-vfio and B-one-size-per-card, as the kernel shows them.
#[test]
fn a_vgpu_is_a_type_written_to_a_virtual_function() {
    let host = mounted!(("L40S", CARD));
    does(&host, "set-functions", &[CARD, "all"]);
    assert!(changes(&host, "make-vgpu", &[FIRST, "L40S-12Q"]));
    let found: Discovery = host.scan(&["--format", "json"]).json();
    let of = |address: &str| found.card(address.parse().unwrap()).unwrap().vgpu.clone().unwrap();
    let (first, second) = (of(FIRST), of(SECOND));
    assert_eq!((first.framework, first.offered.len()), (VgpuFramework::VendorVfio, 0));
    assert_eq!(first.made[0].name.as_ref().unwrap().as_str(), "L40S-12Q", "by its neighbours' list");
    let names: Vec<&str> = second.offered.iter().map(|offered| offered.name.as_str()).collect();
    assert_eq!((names.as_slice(), second.made.len()), (["L40S-12Q", "L40S-12A"].as_slice(), 0));
    // NVML's list says what the card could have, whatever it carries.
    let types = &found.card(CARD.parse().unwrap()).unwrap().nvml.as_ref().unwrap().vgpu_types;
    assert_eq!(types.len(), 12);

    let text = fails(&host, "make-vgpu", &[SECOND, "L40S-8Q"], "failed");
    assert_eq!(text, format!("{SECOND} does not offer L40S-8Q now: it offers L40S-12Q, L40S-12A"));
    let text = refuses(&host, "make-vgpu", &[FIRST, "L40S-12A"]);
    assert_eq!(text, format!("{FIRST} carries a vGPU already (L40S-12Q), so it gets no L40S-12A"));
    for address in [SECOND, "0000:41:00.6", "0000:41:00.7"] {
        assert!(changes(&host, "make-vgpu", &[address, "L40S-12A"]), "{address}");
    }
    let text = fails(&host, "make-vgpu", &["0000:41:01.0", "L40S-12Q"], "failed");
    assert!(text.ends_with("it offers nothing at the moment"), "{text}");
    assert!(refuses(&host, "set-functions", &[CARD, "0"]).contains("carries a vGPU"));
}

#[test]
fn a_vgpu_that_was_in_use_is_let_go_of_after_some_tries() {
    let mut host = mounted!(("L40S", CARD));
    does(&host, "set-functions", &[CARD, "all"]);
    host.change(|state| state.cards[0].refusals = 3);
    does(&host, "make-vgpu", &[FIRST, "L40S-12Q"]);
    let lines = does(&host, "remove-vgpu", &[FIRST, "L40S-12Q"]);
    let writes = lines.iter().filter(|line| line["step"] == "write").count();
    assert_eq!((writes, host.device(FIRST, "nvidia/current_vgpu_type").as_str()), (4, "0"));
    host.change(|state| state.cards[0].refusals = 1000);
    does(&host, "make-vgpu", &[FIRST, "L40S-12Q"]);
    host.patience = std::time::Duration::from_secs(1);
    let text = fails(&host, "remove-vgpu", &[FIRST, "L40S-12Q"], "failed");
    assert!(text.contains("was not freed within 1 s") && text.contains("EBUSY"), "{text}");
    assert!(refuses(&host, "remove-vgpu", &[FIRST, "L40S-8Q"]).contains("left alone"));
}

/// Somebody else was faster between our look and our write.
#[test]
fn errors_of_the_write_are_told_in_words() {
    let host = mounted!(("L40S", CARD));
    does(&host, "set-functions", &[CARD, "all"]);
    for (errno, expected) in [
        (nix::errno::Errno::EPERM, "it has a type already, says the driver (EPERM)"),
        (nix::errno::Errno::EIO, "not enough memory is left on its card (EIO)"),
    ] {
        let fault = Fault { code: errno as u32, card: None, times: None };
        host.change(|state| state.errors.insert("current_vgpu_type".to_owned(), fault));
        let text = fails(&host, "make-vgpu", &[FIRST, "L40S-12Q"], "failed");
        assert_eq!(text, format!("{FIRST} does not become L40S-12Q: {expected}"));
    }
}

#[test]
fn a_vgpu_is_a_mediated_device_of_the_card_or_of_its_functions() {
    let host = mounted!(("T4", OTHER), ("A100-80", CARD));
    host.change(|state| state.cards[1].framework = Framework::Mdev);
    let on_card = format!("{OTHER}/{UUID}");
    assert!(changes(&host, "make-vgpu", &[&on_card, "T4-4Q"]));
    assert!(!changes(&host, "make-vgpu", &[&on_card, "T4-4Q"]));
    assert!(refuses(&host, "make-vgpu", &[&on_card, "T4-8Q"]).contains("it is no T4-8Q"));
    let text = fails(&host, "make-vgpu", &[&format!("{OTHER}/{TWIN}"), "T4-8Q"], "failed");
    assert_eq!(text, format!("{OTHER} makes no T4-8Q: none is available"));
    assert!(changes(&host, "remove-vgpu", &[&on_card, "T4-4Q"]));
    assert!(host.state().cards[0].mdevs.is_empty());

    does(&host, "set-mig", &[CARD, "on"]);
    does(&host, "reset", &[CARD]);
    does(&host, "set-functions", &[CARD, "all"]);
    does(&host, "make-instance", &[CARD, "2g.20gb@2:2"]);
    let on_function = format!("{FIRST}/{UUID}");
    assert!(changes(&host, "make-vgpu", &[&on_function, "A100D-2-20C"]));
    let found: Discovery = host.scan(&["--format", "json"]).json();
    let vgpu = found.card(FIRST.parse().unwrap()).unwrap().vgpu.clone().unwrap();
    assert_eq!((vgpu.framework, vgpu.made.len()), (VgpuFramework::Mdev, 1));
    // Which instance it is on is not in its files, so none is taken.
    let text = refuses(&host, "remove-instance", &[CARD, "2g.20gb@2:2"]);
    assert!(text.contains("the driver does not say on which instance"), "{text}");
    assert!(changes(&host, "remove-vgpu", &[&on_function, "A100D-2-20C"]));
    assert!(changes(&host, "remove-instance", &[CARD, "2g.20gb@2:2"]));
}

/// Case B-overcounted-slots, as card and driver tell it: how many fit is no number of virtual functions.
#[test]
fn virtual_functions_are_more_than_what_fits() {
    let host = mounted!(("L40S", CARD));
    does(&host, "set-functions", &[CARD, "all"]);
    let look = || -> Discovery { host.scan(&["--format", "json"]).json() };
    let offering = |found: &Discovery, name: &str| {
        let vgpus = found.cards.iter().filter(|card| card.is_vf()).filter_map(|card| card.vgpu.as_ref());
        vgpus.filter(|vgpu| vgpu.offered.iter().any(|offered| offered.name.as_str() == name)).count()
    };
    let most = |found: &Discovery, name: &str| {
        let nvml = found.card(CARD.parse().unwrap()).unwrap().nvml.clone().unwrap();
        nvml.vgpu_types.iter().find(|one| one.name.as_str() == name).unwrap().most
    };
    let found = look();
    assert_eq!((offering(&found, "L40S-2Q"), most(&found, "L40S-2Q")), (32, Some(24)));
    assert_eq!((offering(&found, "L40S-48Q"), most(&found, "L40S-48Q")), (32, Some(1)));
    does(&host, "make-vgpu", &[SECOND, "L40S-48Q"]);
    let found = look();
    assert_eq!((offering(&found, "L40S-48Q"), offering(&found, "L40S-2Q")), (0, 0));
    let made = found.card(SECOND.parse().unwrap()).unwrap().vgpu.clone().unwrap().made;
    assert_eq!(made[0].name.as_ref().unwrap().as_str(), "L40S-48Q", "NVML names what no list has any more");
    // Done again it is nothing, and another is told what is there.
    assert!(!changes(&host, "make-vgpu", &[SECOND, "L40S-48Q"]));
    assert!(refuses(&host, "remove-vgpu", &[SECOND, "L40S-2Q"]).contains("carries L40S-48Q by now"));
    assert!(changes(&host, "remove-vgpu", &[SECOND, "L40S-48Q"]));
}
