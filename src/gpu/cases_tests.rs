//! Cases of the field, each with its own input; what was seen elsewhere must not be seen here.

use std::time::{Duration, Instant};

use super::nvml::Answer;
use super::tree_tests::{Tree, at};
use super::{GpuBackend as _, GpuOptions, HostGpus, join};
use crate::model::card::blockers::BlockerKind;
use crate::model::card::identity::{CardIdentity, Whereabouts};
use crate::model::card::pci::MemberRole;
use crate::model::card::{Card, CardFindingKind, CardMode, Health, MigFacts, NvmlFacts, NvmlStatus};
use crate::model::units::Mib;

fn kinds(card: &Card) -> Vec<BlockerKind> {
    card.blockers.iter().map(|blocker| blocker.kind).collect()
}

fn ready(cards: Vec<NvmlFacts>) -> Answer {
    Answer { status: NvmlStatus::Ready { driver: None }, cards, names: Vec::new(), faults: Vec::new() }
}

/// A card under VFIO, alone in its group.
fn free_card(tree: &Tree, address: &str, group: u32) {
    tree.device(address, "10de:20b5", 0x03_0200, Some("vfio-pci")).group(group, &[address]);
}

/// A-shared-iommu-group.
#[test]
fn a_disk_in_the_group_blocks_and_a_sibling_goes_along() {
    let tree = Tree::new();
    tree.device("0000:00:01.0", "8086:1901", 0x06_0400, Some("pcieport"))
        .device("0000:41:00.0", "10de:1eb8", 0x03_0000, Some("vfio-pci"))
        .device("0000:41:00.1", "10de:10f8", 0x04_0300, Some("snd_hda_intel"))
        .device("0000:42:00.0", "144d:a80a", 0x01_0802, Some("nvme"))
        .group(12, &["0000:00:01.0", "0000:41:00.0", "0000:41:00.1", "0000:42:00.0"]);
    let card = tree.look_for("0000:41:00.0");
    assert_eq!(kinds(&card), [BlockerKind::GroupMember]);
    assert_eq!(
        card.blockers[0].text,
        "IOMMU group 12 has another member: 0000:42:00.0 (nvme), NVMe disk of class 0x010802, is used by the host"
    );
    let words: Vec<String> = card.iommu.as_ref().unwrap().members.iter().map(|member| member.words()).collect();
    assert_eq!(
        words,
        [
            "0000:00:01.0 is a bridge and is ignored",
            "0000:41:00.0 (vfio-pci) is the card",
            "0000:41:00.1 (snd_hda_intel) is a sibling that can be taken along",
            "0000:42:00.0 (nvme), NVMe disk of class 0x010802, is used by the host",
        ]
    );
    assert_eq!(card.siblings(), [at("0000:41:00.1")]);
}

#[test]
fn an_idle_neighbour_blocks_nothing() {
    let tree = Tree::new();
    tree.device("0000:42:00.0", "144d:a80a", 0x01_0802, None);
    tree.device("0000:41:00.0", "10de:1eb8", 0x03_0000, Some("vfio-pci")).group(12, &["0000:41:00.0", "0000:42:00.0"]);
    let card = tree.look_for("0000:41:00.0");
    assert!(card.blockers.is_empty(), "{:?}", card.blockers);
    assert_eq!(card.iommu.unwrap().members[1].role, MemberRole::Idle);
}

/// A-identical-ids.
#[test]
fn identical_cards_are_two() {
    let tree = Tree::new();
    for (address, group) in [("0000:17:00.0", 1), ("0000:65:00.0", 2)] {
        tree.device(address, "10de:1ff2", 0x03_0000, Some("nvidia")).group(group, &[address]);
    }
    let managed = Some([at("0000:17:00.0")].into());
    let found = HostGpus::new(GpuOptions { managed, ..tree.options() }).look();
    let ids: Vec<String> = found.cards.iter().map(|card| card.id().0).collect();
    assert_eq!(ids, ["pci-0000:17:00.0", "pci-0000:65:00.0"]);
    assert!(kinds(&found.cards[0]).is_empty(), "{:?}", found.cards[0].blockers);
    assert_eq!(kinds(&found.cards[1]), [BlockerKind::Foreign]);
}

/// A-unbind-hang: what holds a card is known within two seconds.
#[test]
fn holders_and_persistence_mode_are_named() {
    let tree = Tree::new();
    free_card(&tree, "0000:41:00.0", 2);
    tree.device("0000:8a:00.0", "10de:2236", 0x03_0200, Some("nvidia"))
        .group(1, &["0000:8a:00.0"])
        .write("proc/driver/nvidia/gpus/0000:8a:00.0/information", "Model: \t\t NVIDIA A10\nDevice Minor: \t 3\n")
        .holder(812, "dcgm-exporter", &["/dev/null", "/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia3"], "dcgm-exporter")
        .holder(813, "bash", &["/dev/pts/0", "/dev/nvidia30"], "bash");
    let begin = Instant::now();
    let card = tree.look_for("0000:8a:00.0");
    assert!(begin.elapsed() < Duration::from_secs(2));
    assert_eq!(card.holders.len(), 1);
    assert_eq!(card.blockers[0].text, "pid 812 (dcgm-exporter) has /dev/nvidia3 open");
    let mut facts = NvmlFacts::at(card.address);
    facts.is_persistent = Some(true);
    let mut found = tree.look();
    assert!(join::nvml(&mut found.cards, ready(vec![facts])).is_empty());
    let found = found.judged(None);
    assert_eq!(kinds(found.card(card.address).unwrap()), [BlockerKind::Held, BlockerKind::Persistence]);
    assert!(found.card(at("0000:41:00.0")).unwrap().blockers.is_empty());
}

/// A-pci-domain.
#[test]
fn cards_outside_domain_0000_are_seen_whole() {
    let tree = Tree::new();
    free_card(&tree, "0001:d6:00.0", 1);
    free_card(&tree, "10000:e1:00.0", 2);
    tree.write("sys/bus/pci/devices/0000:d6:20.0/class", "0x030200\n");
    let found = tree.look();
    let addresses: Vec<String> = found.cards.iter().map(|card| card.address.to_string()).collect();
    assert_eq!(addresses, ["0001:d6:00.0", "10000:e1:00.0"]);
    assert_eq!((found.cards[0].address.domain, found.cards[0].address.bus), (1, 0xd6));
}

/// A-address-spelling.
#[test]
fn nvml_is_joined_by_address_and_a_card_without_a_match_is_raised() {
    let tree = Tree::new();
    tree.device("0001:c8:00.0", "10de:20b5", 0x03_0200, Some("nvidia")).group(1, &["0001:c8:00.0"]);
    tree.device("0000:42:00.0", "10de:20b5", 0x03_0200, Some("nvidia")).group(2, &["0000:42:00.0"]);
    let nvml = |address: &str, uuid: &str| {
        let mut facts = NvmlFacts::at(at(address));
        (facts.uuid, facts.memory) = (Some(uuid.to_owned()), Some(Mib(81_920)));
        facts
    };
    let mut found = tree.look();
    let answer = ready(vec![nvml("00000001:C8:00.0", "GPU-a"), nvml("00000000:99:00.0", "GPU-b")]);
    let findings = join::nvml(&mut found.cards, answer);
    let found = found.judged(None);
    let card = found.card(at("pci_0001_c8_00_0")).unwrap();
    assert_eq!((card.id().0.as_str(), &card.health), ("GPU-a", &Health::Ok));
    assert_eq!(findings.len(), 1);
    assert_eq!(
        (findings[0].kind, findings[0].text.as_str()),
        (
            CardFindingKind::NvmlUnmatched,
            "NVML lists a card at 0000:99:00.0 (GPU-b) that the kernel does not show there"
        )
    );
    // The other way round: the driver has it, NVML does not list it.
    let dropped = found.card(at("0000:42:00.0")).unwrap();
    assert!(matches!(dropped.health, Health::Dropped(_)), "{:?}", dropped.health);
    assert_eq!(kinds(dropped), [BlockerKind::Health]);
}

/// A-numa-unknown.
#[test]
fn an_unknown_numa_node_is_none() {
    let tree = Tree::new();
    for (address, node) in [("0000:01:00.0", "1\n"), ("0000:02:00.0", "-1\n"), ("0000:03:00.0", "-\n")] {
        tree.device(address, "10de:20b5", 0x03_0200, None).attribute(address, "numa_node", node);
    }
    let nodes: Vec<Option<u32>> = tree.look().cards.iter().map(|card| card.numa_node).collect();
    assert_eq!(nodes, [Some(1), None, None]);
}

/// A-large-bar-window.
#[test]
fn eight_large_cards_need_more_than_a_tebibyte() {
    let tree = Tree::new();
    tree.device("0000:01:00.0", "10de:ffff", 0x03_0200, None).attribute(
        "0000:01:00.0",
        "resource",
        "0x00000000b8000000 0x00000000b8ffffff 0x0000000000040200\n\
         0x0000020000000000 0x0000021fffffffff 0x000000000014220c\n\
         0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
         0x0000022000000000 0x0000022001ffffff 0x000000000014220c\n\
         0x0000000000001000 0x000000000000107f 0x0000000000040101\n",
    );
    let card = tree.look_for("0000:01:00.0");
    assert!(card.aperture() * 8 >= 1 << 40, "{}", card.aperture());
    assert_eq!(card.bars.len(), 3, "ports are no memory: {:?}", card.bars);
    let memory = card.memory.unwrap();
    assert_eq!((memory.size, memory.is_estimated()), (Mib(128 << 10), true));
}

/// A-card-lost-after-stop.
#[test]
fn a_card_that_does_not_answer_is_never_offered() {
    let lost = |attribute: &str, content: &[u8]| {
        let tree = Tree::new();
        free_card(&tree, "0000:41:00.0", 1);
        free_card(&tree, "0000:42:00.0", 2);
        tree.attribute("0000:41:00.0", attribute, content);
        assert!(tree.look_for("0000:42:00.0").blockers.is_empty());
        let card = tree.look_for("0000:41:00.0");
        assert_eq!(kinds(&card), [BlockerKind::Health]);
        card.blockers[0].text.clone()
    };
    assert_eq!(lost("config", &[0xff; 256]), "no answer: its config space reads 0xffff");
    let mut header = [0_u8; 64];
    header[14] = 0xff;
    assert_eq!(lost("config", &header), "no answer: its header type reads 0x7f");
    assert_eq!(lost("config", b""), "its config space cannot be read");
    assert_eq!(lost("power_state", b"error\n"), "no answer: its power state is error");
    assert_eq!(lost("power_state", b"D3cold\n"), "no answer: it is stuck in D3cold");
}

/// Hardware reads all ones where a virtual function's maker and model would be.
#[test]
fn a_virtual_function_answers_without_numbers_of_its_own() {
    let tree = Tree::new();
    free_card(&tree, "0000:41:00.0", 1);
    free_card(&tree, "0000:41:00.4", 2);
    tree.link("sys/bus/pci/devices/0000:41:00.4/physfn", "../0000:41:00.0");
    let mut header = [0_u8; 64];
    header[..4].fill(0xff);
    let read = |content: &[u8]| tree.attribute("0000:41:00.4", "config", content).look_for("0000:41:00.4").health;
    assert_eq!(read(&header), Health::Ok);
    assert!(!read(&[0xff; 64]).is_good());
    assert!(!read(b"").is_good());
}

#[test]
fn a_sleeping_card_is_not_woken() {
    let tree = Tree::new();
    free_card(&tree, "0000:41:00.0", 1);
    tree.attribute("0000:41:00.0", "power_state", "D3cold\n").attribute("0000:41:00.0", "config", [0xff; 64]);
    tree.attribute("0000:41:00.0", "power/runtime_status", "suspended\n");
    let card = tree.look_for("0000:41:00.0");
    assert_eq!((card.health, card.blockers.len()), (Health::Asleep, 0));
}

/// A-renumbered.
#[test]
fn a_card_is_known_again_at_another_address() {
    let before = Tree::new();
    free_card(&before, "0000:41:00.0", 1);
    let mut identity = CardIdentity::from(&before.look_for("0000:41:00.0"));
    identity.uuid = Some("GPU-aaaa".to_owned());

    let after = Tree::new();
    after.device("0000:41:00.0", "144d:a80a", 0x01_0802, Some("nvme"));
    free_card(&after, "0000:42:00.0", 2);
    let managed = Some([at("0000:41:00.0")].into());
    let mut found = HostGpus::new(GpuOptions { managed, ..after.options() }).look();
    let told = found.findings.iter().find(|finding| finding.kind == CardFindingKind::ManagedMissing).unwrap();
    assert_eq!(
        told.text,
        "0000:41:00.0 is on the list of managed cards and is no GPU: there is 144d:a80a of class 0x010802"
    );
    let moved = Whereabouts::Moved { to: at("0000:42:00.0") };
    assert_eq!(identity.find(&found.cards), moved);
    let mut facts = NvmlFacts::at(at("0000:42:00.0"));
    facts.uuid = Some("GPU-aaaa".to_owned());
    found.cards[0].nvml = Some(facts.clone());
    assert_eq!(identity.find(&found.cards), moved);
    // Of the same kind, and another card.
    facts.uuid = Some("GPU-bbbb".to_owned());
    found.cards[0].nvml = Some(facts);
    assert_eq!(identity.find(&found.cards), Whereabouts::Gone);
    identity.uuid = None;
    found.cards[0].nvml = None;
    let twin = Card { address: at("0000:43:00.0"), ..found.cards[0].clone() };
    found.cards.push(twin);
    let among = vec![at("0000:42:00.0"), at("0000:43:00.0")];
    assert_eq!(identity.find(&found.cards), Whereabouts::Unclear { among });
}

/// A-foreign-vfio-devices.
#[test]
fn a_card_of_somebody_elses_machine_is_shown_and_blocked() {
    let tree = Tree::new();
    free_card(&tree, "0000:c1:00.0", 7);
    free_card(&tree, "0000:c2:00.0", 8);
    free_card(&tree, "0000:c3:00.0", 9);
    tree.write("sys/bus/pci/devices/0000:c3:00.0/vfio-dev/vfio2/dev", "511:2\n");
    tree.holder(4411, "qemu-system-x86", &["/dev/vfio/vfio", "/dev/vfio/7"], "/usr/bin/qemu-system-x86_64 -m 4G");
    tree.holder(4412, "qemu-system-x86", &["/dev/vfio/8"], "qemu -name guest=gvm-0190,debug-threads=on -S");
    tree.holder(4413, "qemu-system-x86", &["/dev/vfio/devices/vfio2"], "qemu -name guest=win,debug-threads=on");
    let managed = Some([at("0000:c2:00.0"), at("0000:c3:00.0")].into());
    let found = HostGpus::new(GpuOptions { managed, ..tree.options() }).look();
    let [foreign, own, theirs] = found.cards.as_slice() else { panic!("{:?}", found.cards) };
    assert_eq!(kinds(foreign), [BlockerKind::Foreign, BlockerKind::Held]);
    assert_eq!(foreign.blockers[1].text, "pid 4411 (qemu-system-x86) has /dev/vfio/7 open");
    assert_eq!((kinds(own), own.holders[0].domain.as_deref()), (vec![BlockerKind::InMachine], Some("gvm-0190")));
    assert_eq!((kinds(theirs), theirs.holders[0].domain.as_deref()), (vec![BlockerKind::Held], Some("win")));
}

#[test]
fn modes_are_told_by_what_the_card_is_divided_into() {
    let tree = Tree::new();
    let cards = [
        ("0000:01:00.0", Some("nvidia"), CardMode::Host),
        ("0000:02:00.0", None, CardMode::Unbound),
        ("0000:03:00.0", Some("nvidia"), CardMode::Vgpu),
        ("0000:04:00.0", Some("nvidia"), CardMode::Vgpu),
        ("0000:05:00.0", Some("nvidia"), CardMode::Mig),
        ("0000:06:00.0", Some("some-vendor-vfio"), CardMode::Passthrough),
    ];
    for (address, driver, _) in cards {
        tree.device(address, "10de:20b5", 0x03_0200, driver);
    }
    tree.attribute("0000:03:00.0", "sriov_totalvfs", "20\n").attribute("0000:03:00.0", "sriov_numvfs", "20\n");
    tree.write("sys/bus/pci/devices/0000:04:00.0/mdev_supported_types/nvidia-588/name", "A10-1B\n");
    tree.write("sys/bus/pci/devices/0000:06:00.0/vfio-dev/vfio0/dev", "511:0\n");
    tree.device("0000:03:00.4", "10de:20b5", 0x03_0200, Some("nvidia"));
    tree.link("sys/bus/pci/devices/0000:03:00.4/physfn", "../0000:03:00.0");
    tree.link("sys/bus/pci/devices/0000:03:00.0/virtfn0", "../0000:03:00.4");
    let mut found = tree.look();
    let divided_up = at("0000:05:00.0");
    let mut facts = NvmlFacts::at(divided_up);
    facts.mig = Some(MigFacts { is_on: true, ..MigFacts::default() });
    found.cards.iter_mut().find(|card| card.address == divided_up).unwrap().nvml = Some(facts);
    let found = found.judged(None);
    for (address, _, mode) in cards {
        assert_eq!(found.card(at(address)).unwrap().mode, mode, "{address}");
    }
    let vf = found.card(at("0000:03:00.4")).unwrap();
    assert!(vf.is_vf() && vf.memory.is_none() && kinds(vf).contains(&BlockerKind::VirtualFunction));
    let divided = found.card(at("0000:03:00.0")).unwrap();
    assert_eq!(divided.sriov.as_ref().unwrap().functions, [at("0000:03:00.4")]);
    assert!(kinds(divided).contains(&BlockerKind::Divided));
    let mig = &found.card(at("0000:05:00.0")).unwrap().blockers;
    assert!(mig.iter().any(|blocker| blocker.text == "MIG is on and turns off with the next reset"), "{mig:?}");
}

#[test]
fn the_boot_display_and_strange_drivers_block() {
    let tree = Tree::new();
    tree.device("0000:00:02.0", "8086:3e92", 0x03_0000, Some("i915")).group(1, &["0000:00:02.0"]);
    tree.attribute("0000:00:02.0", "boot_vga", "1\n");
    tree.device("0000:01:00.0", "10de:20b5", 0x03_0200, Some("pci-pf-stub")).group(2, &["0000:01:00.0"]);
    assert_eq!(kinds(&tree.look_for("0000:00:02.0")), [BlockerKind::BootDisplay]);
    assert_eq!(kinds(&tree.look_for("0000:01:00.0")), [BlockerKind::Driver]);
}

#[tokio::test]
async fn the_port_finds_what_a_look_finds() {
    let tree = Tree::new();
    free_card(&tree, "0000:41:00.0", 1);
    let host = HostGpus::new(tree.options());
    assert_eq!(host.discover().await.unwrap(), host.look());
    assert_eq!(host.discover().await.unwrap().cards.len(), 1);
}
