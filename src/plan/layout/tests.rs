//! Files against hosts: what every card becomes, every refusal, and the way back.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;
use crate::model::card::vgpu::{MadeVgpu, OfferedType, VgpuFramework, VgpuParent};
use crate::model::card::{CardMemory, MadeInstance, MemorySource, MigFacts, NvmlFacts, Sriov};
use crate::model::gpu::VgpuTypeName;
use crate::model::gpu::layout::LayoutFormat;
use crate::model::gpu::mig::{Geometry, Instance, MigProfile, fixtures};
use crate::model::pci::PciIds;
use crate::model::units::Mib;

fn at(bus: u8, function: u8) -> PciAddress {
    format!("0000:{bus:02x}:00.{function}").parse().unwrap()
}

fn name(text: &str) -> VgpuTypeName {
    VgpuTypeName::parse(text).unwrap()
}

fn card(bus: u8, device: u16, model: &str) -> Card {
    let card = crate::plan::inventory::tests::card(&at(bus, 0).to_string(), None);
    let ids = PciIds { device, ..card.ids };
    let nvml = Some(NvmlFacts::at(card.address));
    Card { ids, model: model.to_owned(), nvml, ..card }
}

/// With types as NVML tells them: name, most on a card, and the profile behind it.
fn with_types(mut card: Card, types: &[(&str, u32, Option<&str>)]) -> Card {
    let told = |(text, most, profile): &(&str, u32, Option<&str>)| SupportedVgpu {
        name: name(text),
        memory: None,
        most: Some(*most),
        profile: profile.map(|text| text.parse().unwrap()),
    };
    card.nvml.as_mut().unwrap().vgpu_types = types.iter().map(told).collect();
    card
}

fn with_mig(mut card: Card, geometry: Geometry, there: &[Instance]) -> Card {
    let made = |(id, instance): (u32, &Instance)| MadeInstance { id, instance: *instance, compute_instances: 1 };
    card.nvml.as_mut().unwrap().mig = Some(MigFacts {
        is_on: !there.is_empty(),
        is_on_pending: false,
        geometry: Some(geometry),
        instances: (1..).zip(there).map(made).collect(),
    });
    card
}

fn a100(bus: u8, there: &[&str]) -> Card {
    let types = [
        ("GRID A100D-4C", 20, None),
        ("GRID A100D-40C", 2, None),
        ("GRID A100D-1-10C", 7, Some("1g.10gb")),
        ("GRID A100D-1-10CME", 1, Some("1g.10gb+me")),
        ("GRID A100D-3-40C", 2, None),
    ];
    let there: Vec<Instance> = there.iter().map(|text| instance(text)).collect();
    let card = with_mig(card(bus, 0x20b2, "NVIDIA A100-SXM4-80GB"), fixtures::a100_80(), &there);
    with_types(card, &types)
}

fn l40s(bus: u8) -> Card {
    let mut card = card(bus, 0x26b9, "NVIDIA L40S");
    card.memory = Some(CardMemory { size: Mib(46068), source: MemorySource::Nvml });
    card.sriov = Some(Sriov { enabled: 0, total: 32, functions: Vec::new() });
    with_types(card, &[("NVIDIA L40S-1Q", 32, None), ("NVIDIA L40S-12Q", 4, None), ("NVIDIA L40S-12A", 4, None)])
}

/// `3g.40gb@4` of an A100-80.
fn instance(text: &str) -> Instance {
    let (profile, start) = text.split_once('@').unwrap();
    fixtures::a100_80().profile(profile.parse().unwrap()).unwrap().at(start.parse().unwrap())
}

fn words(planned: &[PlannedCard]) -> String {
    let counted = |types: &[(VgpuTypeName, u32)]| types.iter().map(|(n, c)| format!(" {c}x{n}")).collect::<String>();
    let one = |card: &PlannedCard| match &card.layout {
        CardLayout::Host => format!("{}: host", card.index),
        CardLayout::Mig { instances, vgpus } => {
            let places = instances.iter().map(|one| format!(" {one}")).collect::<String>();
            format!("{}: mig{places}{}", card.index, counted(vgpus))
        }
        CardLayout::Vgpu { types } => format!("{}: vgpu{}", card.index, counted(types)),
    };
    planned.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn told(cards: &[Card], text: &str, config: Option<&str>) -> String {
    let file = LayoutFile::read(text).unwrap();
    match layouts(&file, config, &numbered(cards)) {
        Ok(planned) => words(&planned),
        Err(why) => why.to_string(),
    }
}

fn mig(cards: &[Card], entries: &[&str]) -> String {
    let list = entries.iter().map(|entry| format!("\n    - {{{entry}}}")).collect::<String>();
    told(cards, &format!("version: v1\nmig-configs:\n  a:{list}\n"), None)
}

fn vgpu(cards: &[Card], entries: &[&str]) -> String {
    let list = entries.iter().map(|entry| format!("\n    - {{{entry}}}")).collect::<String>();
    told(cards, &format!("version: v1\nvgpu-configs:\n  a:{list}\n"), None)
}

const ON: &str = "mig-enabled: true, mig-devices";

#[test]
fn counts_become_placements() {
    let host = [a100(0x41, &[]), a100(0x42, &[]), l40s(0x61)];
    let seven = format!("devices: all, {ON}: {{1g.10gb: 7}}");
    let every = "1g.10gb@0 1g.10gb@1 1g.10gb@2 1g.10gb@3 1g.10gb@4 1g.10gb@5 1g.10gb@6";
    assert_eq!(mig(&host, &[&seven]), format!("0: mig {every}; 1: mig {every}"), "a card without MIG stays");
    assert_eq!(
        mig(&host, &[&format!("devices: [1], {ON}: {{2g.20gb: 1, 1g.10gb: 1, 3g.40gb: 1}}")]),
        "1: mig 1g.10gb@0 2g.20gb@2 3g.40gb@4"
    );
    assert_eq!(mig(&host, &["devices: all, mig-enabled: false"]), "0: host; 1: host");
    assert_eq!(mig(&host, &[&format!("devices: [0], {ON}: {{}}")]), "0: mig");
    assert_eq!(mig(&host, &["devices: [2], mig-enabled: false"]), "", "nothing is to be done");
}

/// The programs whose format it is go through the entries one after the other.
#[test]
fn of_several_entries_the_last_stands() {
    let host = [a100(0x41, &[]), a100(0x42, &[]), l40s(0x61)];
    let small = format!("device-filter: \"0x20B210DE\", devices: all, {ON}: {{3g.40gb: 2}}");
    let second = format!("devices: [1], {ON}: {{7g.80gb: 1}}");
    assert_eq!(mig(&host, &[&small, &second]), "0: mig 3g.40gb@0 3g.40gb@4; 1: mig 7g.80gb@0");
    assert_eq!(mig(&host, &[&second, &small]), "0: mig 3g.40gb@0 3g.40gb@4; 1: mig 3g.40gb@0 3g.40gb@4");
    // What does not stand is not judged, and an entry for other hosts neither.
    let silly = format!("devices: all, {ON}: {{7g.80gb: 2}}");
    let other_host = format!("device-filter: \"0x233010DE\", devices: [0, 7], {ON}: {{7g.80gb: 2}}");
    assert_eq!(
        mig(&host[..2], &[&silly, &other_host, &small]),
        "0: mig 3g.40gb@0 3g.40gb@4; 1: mig 3g.40gb@0 3g.40gb@4"
    );
    // Kept out by one filter, and taken by another entry.
    let l40s = "device-filter: \"0x26B910DE\", devices: [1, 2], mig-enabled: false";
    assert_eq!(mig(&host, &[l40s, &second]), "1: mig 7g.80gb@0");
}

#[test]
fn what_is_there_and_wanted_stays_where_it_is() {
    let host = [a100(0x41, &["1g.10gb@2", "3g.40gb@4"])];
    let check = |counts: &str| mig(&host, &[&format!("devices: [0], {ON}: {{{counts}}}")]);
    assert_eq!(check("1g.10gb: 1, 3g.40gb: 1"), "0: mig 1g.10gb@2 3g.40gb@4");
    assert_eq!(check("3g.40gb: 1"), "0: mig 3g.40gb@4");
    assert_eq!(check("1g.10gb: 2, 3g.40gb: 1"), "0: mig 1g.10gb@2 1g.10gb@3 3g.40gb@4");
    // Beside 1g at 2 there is no room for both.
    assert_eq!(check("1g.10gb: 1, 2g.20gb: 1, 4g.40gb: 1"), "0: mig 4g.40gb@0 2g.20gb@4 1g.10gb@6");
}

#[test]
fn types_are_named_as_the_driver_does_and_instances_found_behind_them() {
    let host = [a100(0x41, &[]), l40s(0x61)];
    assert_eq!(
        vgpu(&host, &["devices: [1], vgpu-devices: {L40S-12Q: 3, L40S-12A: 1}"]),
        "1: vgpu 1xL40S-12A 3xL40S-12Q"
    );
    assert_eq!(vgpu(&host, &["devices: [0], vgpu-devices: {A100D-4C: 20}"]), "0: vgpu 20xA100D-4C");
    assert_eq!(vgpu(&host, &["devices: all, vgpu-devices: {}"]), "0: host; 1: host");
    assert_eq!(
        vgpu(&host, &["devices: [0], vgpu-devices: {A100D-3-40C: 1, A100D-1-10C: 2, A100D-1-10CME: 1}"]),
        "0: mig 1g.10gb+me@0 1g.10gb@2 1g.10gb@3 3g.40gb@4 2xA100D-1-10C 1xA100D-1-10CME 1xA100D-3-40C"
    );
    // A name with spaces, which the format does not have, is told by its last word.
    let mut pro = with_types(l40s(0x62), &[("NVIDIA RTX Pro 6000 Blackwell DC-12Q", 8, None)]);
    pro.memory = None;
    assert_eq!(vgpu(&[pro], &["devices: all, vgpu-devices: {DC-12Q: 8}"]), "0: vgpu 8xRTX Pro 6000 Blackwell DC-12Q");
}

#[test]
fn every_refusal_says_what_and_where() {
    let mut vfio = a100(0x43, &[]);
    (vfio.driver, vfio.nvml) = (Some("vfio-pci".to_owned()), None);
    let mut dumb = a100(0x44, &[]);
    dumb.nvml.as_mut().unwrap().mig.as_mut().unwrap().geometry = None;
    let shared = with_types(a100(0x45, &[]), &[("NVIDIA A100D-1-2Q", 48, Some("1g.10gb"))]);
    let unknown = with_types(a100(0x46, &[]), &[("NVIDIA A100D-5-60C", 1, None)]);
    let small = with_mig(card(0x48, 0x20b7, "NVIDIA A30"), fixtures::a30_like(), &[]);
    let host = [a100(0x41, &[]), l40s(0x42), vfio, dumb, shared, unknown, with_types(l40s(0x47), &[])];
    let on = |rest: &str| mig(&host, &[&format!("{rest}}}").replace("ON", ON)]);
    let several = "version: v1\nmig-configs:\n  a: [{devices: all, mig-enabled: false}]\n  b: [{devices: all, mig-enabled: false}]\n";
    let cases = [
        told(&host, several, None),
        told(&host, several, Some("c")),
        on("devices: [0], ON: {3g.40gb: 2, 1g.10gb: 1"),
        on("devices: [0], ON: {4g.40gb: 2"),
        on("devices: [0], ON: {1g.10gb: 8"),
        on("devices: [0], ON: {1g.10gb: 32, 2g.20gb: 32, 7g.80gb: 32"),
        on("devices: [0], ON: {1g.10gb+me: 2"),
        mig(&[small], &["devices: [0], mig-enabled: true, mig-devices: {1g.6gb+me: 1, 2g.12gb+me: 1}"]),
        on("devices: [0], ON: {3g.20gb: 1"),
        on("devices: [0, 7], ON: {7g.80gb: 1"),
        on("device-filter: \"0x20B210DE\", devices: [0, 1], ON: {7g.80gb: 1"),
        on("device-filter: [\"0x233010DE\", \"0x20B710DE\"], devices: all, ON: {7g.80gb: 1"),
        on("devices: [1], ON: {1g.10gb: 1"),
        on("devices: [2], ON: {1g.10gb: 1"),
        on("devices: all, ON: {1g.10gb: 1"),
        on("devices: [3], ON: {1g.10gb: 1"),
        told(&[], several, Some("a")),
        vgpu(&host, &["devices: [1], vgpu-devices: {L40S-48Q: 1}"]),
        vgpu(&host, &["devices: [1], vgpu-devices: {L40S-12Q: 5}"]),
        vgpu(&host, &["devices: [1], vgpu-devices: {L40S-12Q: 3, L40S-12A: 2}"]),
        vgpu(&host, &["devices: [1], vgpu-devices: {L40S-12Q: 1, L40S-1Q: 1}"]),
        vgpu(&host, &["devices: [1], vgpu-devices: {L40S-1Q: 33}"]),
        vgpu(&host, &["devices: [2], vgpu-devices: {A100D-4C: 1}"]),
        vgpu(&host, &["devices: [6], vgpu-devices: {L40S-1Q: 1}"]),
        vgpu(&host, &["devices: [0], vgpu-devices: {A100D-3-40C: 2, A100D-1-10C: 1}"]),
        vgpu(&host, &["devices: [4], vgpu-devices: {A100D-1-2Q: 8}"]),
        vgpu(&host, &["devices: [5], vgpu-devices: {A100D-5-60C: 1}"]),
    ];
    let all = cases.iter().fold(String::new(), |mut text, case| {
        writeln!(text, "{case}\n").unwrap();
        text
    });
    insta::assert_snapshot!(all);
    // Without a limit of the driver's, memory and functions are what is there.
    let mut bare = with_types(l40s(0x42), &[]);
    let offered = |id: &str, text: &str| OfferedType {
        id: id.to_owned(),
        name: name(text),
        available: 1,
        memory: None,
        most: None,
    };
    let offered = vec![offered("1", "L40S-12Q"), offered("2", "L40S-1Q")];
    bare.vgpu =
        Some(VgpuParent { framework: VgpuFramework::VendorVfio, offered, made: Vec::new(), faults: Vec::new() });
    let bare = [bare];
    insta::assert_snapshot!(vgpu(&bare, &["devices: all, vgpu-devices: {L40S-12Q: 4}"]), @"0: vgpu 4xL40S-12Q");
    insta::assert_snapshot!(vgpu(&bare, &["devices: all, vgpu-devices: {L40S-12Q: 5}"]), @r#"config "a", entry 1: vgpu-devices: 5 of 12 GiB each are more than the 48 GiB of card 0"#);
    insta::assert_snapshot!(vgpu(&bare, &["devices: all, vgpu-devices: {L40S-1Q: 40}"]), @r#"config "a", entry 1: vgpu-devices: 40 vGPUs are more than the 32 virtual functions that card 0 can have"#);
}

#[test]
fn cards_are_counted_by_address_and_without_functions_or_other_makers() {
    let mut amd = card(0x10, 0x74a1, "AMD Instinct MI300X");
    amd.vendor = Vendor::Amd;
    let mut function = l40s(0x20);
    (function.address, function.physfn) = (at(0x20, 4), Some(at(0x20, 0)));
    let cards = [a100(0x41, &[]), function, amd, l40s(0x20)];
    let numbered: Vec<String> =
        numbered(&cards).iter().map(|card| format!("{} with {}", card.card.address, card.functions.len())).collect();
    assert_eq!(numbered, ["0000:20:00.0 with 1", "0000:41:00.0 with 0"]);
}

/// A host's export, and its import.
fn there_and_back(cards: &[Card], format: LayoutFormat) -> (String, Vec<PlannedCard>) {
    let numbered = numbered(cards);
    let exported: Vec<Exported> = (0..).zip(&numbered).map(|(index, card)| Exported::new(index, card)).collect();
    let (file, notes) = export(format, "current", &exported);
    let text = file.write(&notes);
    let read = LayoutFile::read(&text).unwrap();
    assert_eq!(read, file, "{text}");
    let planned = layouts(&read, None, &numbered).unwrap();
    for card in &planned {
        let mut was = exported.iter().find(|exported| exported.index == card.index).unwrap().layout.clone();
        if let (CardLayout::Mig { vgpus, .. }, LayoutFormat::MigParted) = (&mut was, format) {
            // Of which the file says in a comment that it does not have them.
            vgpus.clear();
        }
        assert_eq!(was, card.layout, "{text}");
    }
    (text, planned)
}

fn made(mut card: Card, types: &[&str]) -> Card {
    let made =
        |text: &&str| MadeVgpu { uuid: None, type_id: "1".to_owned(), name: Some(name(text)), gpu_instance: None };
    let made = types.iter().map(made).collect();
    card.vgpu = Some(VgpuParent { framework: VgpuFramework::Mdev, offered: Vec::new(), made, faults: Vec::new() });
    card
}

#[test]
fn a_host_is_written_and_read_back() {
    let cards = [
        a100(0x41, &["1g.10gb@2", "3g.40gb@4"]),
        a100(0x42, &["3g.40gb@4", "1g.10gb@0"]),
        a100(0x43, &[]),
        made(a100(0x44, &["1g.10gb@6"]), &["A100D-1-10C"]),
        made(l40s(0x61), &["L40S-12Q", "L40S-12A", "L40S-12Q"]),
        l40s(0x62),
    ];
    let (text, planned) = there_and_back(&cards, LayoutFormat::MigParted);
    insta::assert_snapshot!("export_mig_parted", text);
    assert_eq!(planned.len(), 4, "a card without MIG has nothing to be changed, and what is not said is left out");
    let (text, planned) = there_and_back(&cards, LayoutFormat::VgpuDeviceManager);
    insta::assert_snapshot!("export_vgpu_device_manager", text);
    assert_eq!(planned.len(), 4);
    let mut strange = made(l40s(0x61), &["L40S-12Q", "L40S-12A"]);
    strange.vgpu.as_mut().unwrap().made[1].name = None;
    let strange = [strange];
    let exported = [Exported::new(0, &numbered(&strange)[0])];
    let (_, notes) = export(LayoutFormat::VgpuDeviceManager, "current", &exported);
    assert_eq!(notes[1], "Card 0 (0000:61:00.0) carries vGPUs of a type without a name, which are left out: 1");
    let (file, notes) = export(LayoutFormat::VgpuDeviceManager, "current", &[]);
    let text = file.write(&notes);
    assert!(text.contains("# No card can be told") && LayoutFile::read(&text).is_err(), "{text}");
}

/// Instances as they come when each of these is laid where the planner puts it, as far as there is room.
fn lawful(geometry: &Geometry, wanted: &[(usize, usize)]) -> Vec<Instance> {
    let planner = crate::plan::mig::Planner::new(geometry.clone()).unwrap();
    let mut placed: Vec<Instance> = Vec::new();
    for (profile, start) in wanted {
        let told = &geometry.profiles()[profile % geometry.profiles().len()];
        let starts = planner.free_starts(&placed, told.name);
        if !starts.is_empty() {
            placed.push(told.at(starts[start % starts.len()]));
        }
    }
    placed.sort_by_key(|instance| instance.placement);
    placed
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// On a host that is as it was, an import of its export changes nothing; on one that was made anew, every card gets
    /// as many of each profile, wherever they lie.
    #[test]
    fn an_export_is_read_as_what_it_was(
        cards in proptest::collection::vec((0_usize..5, proptest::collection::vec((0_usize..9, 0_usize..9), 0..9)), 1..4),
    ) {
        let kinds = fixtures::all();
        let made: Vec<Card> = (0_u8..)
            .zip(&cards)
            .map(|(bus, (kind, wanted))| {
                let (model, geometry) = &kinds[*kind];
                let device = 0x2000 + u16::try_from(*kind).unwrap();
                with_mig(card(bus, device, model), geometry.clone(), &lawful(geometry, wanted))
            })
            .collect();
        let (text, planned) = there_and_back(&made, LayoutFormat::MigParted);
        prop_assert_eq!(planned.len(), made.len());
        let fresh: Vec<Card> = made
            .iter()
            .map(|card| with_mig(card.clone(), card.mig().unwrap().geometry.clone().unwrap(), &[]))
            .collect();
        let file = LayoutFile::read(&text).unwrap();
        let profiles = |layout: &CardLayout| {
            let mut names: Vec<MigProfile> = match layout {
                CardLayout::Mig { instances, .. } => instances.iter().map(|one| one.profile).collect(),
                _ => Vec::new(),
            };
            names.sort_unstable();
            names
        };
        for (one, other) in layouts(&file, None, &numbered(&fresh)).unwrap().iter().zip(&planned) {
            prop_assert_eq!((one.index, profiles(&one.layout)), (other.index, profiles(&other.layout)));
        }
    }
}
