//! What a look at the cards finds, by NVML and the kernel together.

use std::time::{Duration, Instant};

use gvm::gpu::{GpuBackend as _, GpuOptions, HostGpus};
use gvm::model::card::{
    Card, CardFindingKind, CardMode, Discovery, Health, HostVgpuMode, MadeInstance, NvmlFacts, NvmlStatus,
    RecoveryAction,
};
use gvm::model::gpu::mig::Geometry;
use gvm_nvml_mock::code;
use gvm_nvml_mock::kinds;
use gvm_nvml_mock::state::{Fault, Framework, State};

use super::{CARD, OTHER};
use crate::support::card_host::CardHost;

fn look(cards: &[(&str, &str)], change: impl FnOnce(&mut State)) -> Discovery {
    CardHost::plain(cards, change).gpus().look()
}

fn card<'f>(found: &'f Discovery, address: &str) -> &'f Card {
    found.card(address.parse().unwrap()).unwrap()
}

fn facts<'f>(found: &'f Discovery, address: &str) -> &'f NvmlFacts {
    card(found, address).nvml.as_ref().unwrap()
}

fn error(state: &mut State, call: &str, code: u32) {
    state.errors.insert(call.to_owned(), Fault { code, card: None, times: None });
}

/// An A100 with a 3g and a 1g, the latter without a compute instance.
fn divided(state: &mut State) {
    let card = &mut state.cards[0];
    card.mig = (true, true);
    let large = card.create(9, Some((4, 4))).unwrap();
    card.create_compute(large, 2).unwrap();
    card.create(19, Some((0, 1))).unwrap();
}

fn told(made: &MadeInstance) -> (String, u32, u32) {
    (format!("{}@{}", made.instance.profile, made.instance.placement), made.id, made.compute_instances)
}

#[tokio::test]
async fn instances_of_a_card_are_found() {
    let host = CardHost::plain(&[("A100-80", CARD), ("L40S", OTHER)], divided);
    let found = host.gpus().discover().await.unwrap();
    let mig = card(&found, CARD).mig().unwrap();
    assert!(mig.is_on && mig.is_on_pending);
    let instances: Vec<_> = mig.instances.iter().map(told).collect();
    assert_eq!(instances, [("1g.10gb@0:1".to_owned(), 7, 0), ("3g.40gb@4:4".to_owned(), 2, 1)]);
    assert_eq!(card(&found, CARD).mode, CardMode::Mig);
    // A card without MIG has no geometry, and no fault for it.
    let other = facts(&found, OTHER);
    assert_eq!((&other.mig, other.faults.len(), other.remapped.is_some()), (&None, 0, true));
}

#[tokio::test]
async fn types_of_vgpu_are_told_with_what_is_behind_them() {
    let found = look(&[("A100-80", CARD), ("T4", OTHER), ("RTX-PRO-6000", "0000:e1:00.0")], |state| {
        state.add("H200", "0000:f1:00.0").framework = Framework::None;
        state.card_mut(OTHER).unwrap().is_mixed = true;
    });
    assert_eq!([CARD, OTHER, "0000:f1:00.0"].map(|card| facts(&found, card).is_mixed), [false, true, false]);
    let a100 = facts(&found, CARD);
    assert_eq!(a100.host_vgpu, Some(HostVgpuMode::Sriov));
    assert_eq!(a100.vgpu_types.len(), kinds::kind("A100-80").types.len());
    let of = |name: &str| {
        let one = a100.vgpu_types.iter().find(|one| one.name.as_str() == name).unwrap();
        (one.memory.unwrap().0, one.most, one.profile.map(|profile| profile.to_string()))
    };
    assert_eq!(of("A100D-20C"), (20 << 10, Some(4), None));
    assert_eq!(of("A100D-3-40C"), (40 << 10, Some(2), Some("3g.40gb".to_owned())));
    assert_eq!(of("A100D-1-10CME"), (10 << 10, Some(1), Some("1g.10gb+me".to_owned())));
    let t4 = facts(&found, OTHER);
    assert_eq!((t4.host_vgpu, t4.vgpu_types.len()), (Some(HostVgpuMode::NonSriov), 5));
    let rtx = facts(&found, "0000:e1:00.0");
    let known = kinds::kind("RTX-PRO-6000").types.len();
    assert_eq!((rtx.faults.as_slice(), rtx.vgpu_types.len()), ([].as_slice(), known));
    // A driver that makes no vGPUs.
    let plain = facts(&found, "0000:f1:00.0");
    assert_eq!((plain.host_vgpu, plain.vgpu_types.len(), plain.faults.len()), (None, 0, 0));
}

#[test]
fn an_older_library_is_understood() {
    let geometry = |found: &Discovery| {
        let mig = card(found, CARD).mig().unwrap().clone();
        let mut profiles = mig.geometry.unwrap().profiles().to_vec();
        profiles.sort_by_key(|profile| profile.id);
        Geometry::of_profiles(profiles).unwrap()
    };
    for kind in ["A100-80", "A100-40", "A30"] {
        let new = look(&[(kind, CARD)], |_| ());
        let old = look(&[(kind, CARD)], |state| {
            error(state, "nvmlDeviceGetGpuInstanceProfileInfoV", code::VERSION_MISMATCH);
        });
        assert_eq!(facts(&old, CARD).faults, [""; 0], "{kind}");
        assert_eq!(geometry(&old), geometry(&new), "{kind}: names by the grammar are those that it tells now");
    }
}

#[test]
fn health_is_told_and_silence_is_no_health() {
    let found = look(&[("A100-80", CARD)], |state| {
        let card = &mut state.cards[0];
        (card.recovery, card.remapped, card.clock_reasons) = (1, Some((3, 1, true, false)), 0x01 | 0x40 | 0x08);
    });
    let told = facts(&found, CARD);
    let rows = told.remapped.unwrap();
    assert_eq!(told.recovery, Some(RecoveryAction::Reset));
    assert_eq!((rows.correctable, rows.uncorrectable, rows.is_pending, rows.has_failed), (3, 1, true, false));
    assert_eq!(told.throttled, ["it is too hot (it slows itself down)"]);
    assert_eq!(told.faults, [""; 0]);

    let calls = ["nvmlDeviceGetRemappedRows", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetFieldValues"];
    let found = look(&[("A100-80", CARD)], |state| calls.iter().for_each(|call| error(state, call, code::UNKNOWN)));
    let told = facts(&found, CARD);
    assert_eq!((told.recovery, told.remapped, told.throttled.len()), (None, None, 0));
    let faults: Vec<&str> = told.faults.iter().map(|fault| fault.split(':').next().unwrap()).collect();
    assert_eq!(faults, ["the recovery that it needs", "replaced rows of memory", "what slows it down"]);

    let found =
        look(&[("A100-80", CARD)], |state| calls.iter().for_each(|call| error(state, call, code::NOT_SUPPORTED)));
    assert_eq!(facts(&found, CARD).faults, [""; 0], "what the card cannot tell is no fault");
}

#[test]
fn geometry_that_makes_no_sense_is_a_fault() {
    let found = look(&[("A100-80", CARD)], |state| {
        error(state, "nvmlDeviceGetGpuInstancePossiblePlacements_v2", code::UNKNOWN);
    });
    let told = facts(&found, CARD);
    assert_eq!(told.mig.as_ref().unwrap().geometry, None);
    assert!(told.faults[0].starts_with("MIG placements: "), "{:?}", told.faults);
    let found = look(&[("A100-80", CARD)], |state| {
        divided(state);
        error(state, "nvmlGpuInstanceGetInfo", code::GPU_IS_LOST);
    });
    let told = facts(&found, CARD);
    assert!(told.mig.as_ref().unwrap().instances.is_empty());
    assert_eq!(told.faults, ["MIG instances: the card has fallen off the bus"]);
}

/// Case B-mig-on-but-empty.
#[test]
fn mig_without_instances_is_a_state_like_any_other() {
    let found = look(&[("A100-80", CARD), ("A100-40", OTHER)], |state| state.cards[0].mig = (true, true));
    assert_eq!(found.findings, []);
    let mig = card(&found, CARD).mig().unwrap();
    assert_eq!((mig.is_on, mig.instances.len(), card(&found, CARD).mode), (true, 0, CardMode::Mig));
    assert_eq!((card(&found, OTHER).mode, card(&found, OTHER).blockers.len()), (CardMode::Host, 0));
}

/// A library that blocks for a minute costs one deadline, and the kernel's facts stay.
#[test]
fn a_library_that_blocks_for_a_minute_is_given_up_by_name() {
    let host = CardHost::plain(&[("A100-80", CARD), ("L40S", OTHER)], |state| {
        state.latency.insert("nvmlDeviceGetGpuInstancePossiblePlacements_v2".to_owned(), 60_000);
    });
    let patience = Duration::from_secs(1);
    let gpus = HostGpus::new(GpuOptions { nvml_patience: patience, ..host.options() });
    let begin = Instant::now();
    let found = gpus.look();
    assert!(begin.elapsed() < patience * 10);
    let NvmlStatus::Failed { why } = &found.nvml else { panic!("{:?}", found.nvml) };
    assert_eq!(why, "NVML did not answer within 1 s: asking for the placements of 1g.10gb of card 0 (0000:41:00.0)");
    let kinds: Vec<_> = found.findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [CardFindingKind::NvmlFailed]);
    assert_eq!(card(&found, OTHER).health, Health::Ok, "nobody says that it was dropped");
    assert_eq!(card(&found, CARD).memory.unwrap().size.0, 81_920, "by the table of known cards");
}

#[test]
fn a_card_that_nvml_does_not_count_was_dropped() {
    let found = look(&[("A100-80", CARD), ("L40S", OTHER)], |state| state.dropped.push(OTHER.to_owned()));
    assert!(matches!(found.nvml, NvmlStatus::Ready { .. }));
    let Health::Dropped(why) = &card(&found, OTHER).health else { panic!("{:?}", card(&found, OTHER).health) };
    assert!(why.contains("NVML does not list it"), "{why}");
    assert_eq!(card(&found, CARD).health, Health::Ok);
}

#[test]
fn a_lost_card_answers_neither_kernel_nor_library() {
    let found = look(&[("A100-80", CARD), ("L40S", OTHER)], |state| state.cards[1].is_lost = true);
    assert!(matches!(card(&found, OTHER).health, Health::NoAnswer(_)), "{:?}", card(&found, OTHER).health);
    let faults: Vec<&str> = found.findings.iter().map(|finding| finding.text.as_str()).collect();
    assert_eq!(faults, ["card 1 of NVML: the card has fallen off the bus"]);
    assert_eq!(facts(&found, CARD).faults, [""; 0]);
}

/// Case B-capacity-zero-while-passthrough, of a card that was never seen with its driver.
#[test]
fn a_card_that_no_library_knows_keeps_its_name_and_its_memory() {
    let found = look(&[("RTX-PRO-6000", CARD), ("L40S", OTHER)], |state| {
        state.cards[0].driver = Some("vfio-pci".to_owned());
    });
    let passed = card(&found, CARD);
    assert_eq!((passed.mode, passed.nvml.is_none()), (CardMode::Passthrough, true));
    assert_eq!((passed.model.as_str(), passed.memory.unwrap().size.0), (kinds::kind("RTX-PRO-6000").name, 97_887));
    assert_eq!(found.findings, [], "NVML counts the other one alone, and that is right");
}

/// The program as people run it, over all kinds of cards.
#[test]
fn a_scan_shows_all_kinds_of_cards() {
    let addresses: Vec<String> = (1..).map(|bus| format!("0000:{bus:02x}:00.0")).take(kinds::all().len()).collect();
    let cards: Vec<(&str, &str)> =
        kinds::all().iter().zip(&addresses).map(|(kind, address)| (kind.key, address.as_str())).collect();
    let host = CardHost::plain(&cards, |state| {
        // The first is an A100-80.
        divided(state);
    });
    let found: Discovery = host.scan(&["--format", "json"]).json();
    assert_eq!(found.cards.len(), kinds::all().len());
    for (kind, address) in &cards {
        let (card, kind) = (card(&found, address), kinds::kind(kind));
        let told = card.nvml.as_ref().unwrap();
        assert_eq!((card.model.as_str(), told.faults.len()), (kind.name, 0), "{:?}", told.faults);
        assert_eq!((card.id().0.starts_with("GPU-"), &card.health), (true, &Health::Ok), "{address}");
        let profiles = told.mig.as_ref().and_then(|mig| mig.geometry.as_ref()).map_or(0, |it| it.profiles().len());
        assert_eq!(profiles, kind.profiles.len(), "{}", kind.key);
    }
    assert_eq!(card(&found, &addresses[0]).mig().unwrap().instances.len(), 2);
    let table = host.scan(&[]).text();
    assert!(table.contains("NVIDIA A16") && table.contains("NVIDIA A2 "), "{table}");
}
