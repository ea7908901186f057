use super::*;
use crate::model::card::function::Restore;
use crate::model::card::{CardMemory, Health, Holder, NvmlFacts};
use crate::model::gpu::Service;
use crate::model::pci::{Function, IommuGroup, Link, MemberRole, PciIds, Upstream, Vendor};

fn at(text: &str) -> PciAddress {
    text.parse().unwrap()
}

pub(in crate::plan) fn now(hours: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + hours * 3600).unwrap()
}

pub(in crate::plan) fn card(address: &str, uuid: Option<&str>) -> Card {
    let address = at(address);
    let nvml = uuid.map(|uuid| NvmlFacts {
        uuid: Some(uuid.to_owned()),
        name: Some("NVIDIA A100 80GB PCIe".to_owned()),
        ..NvmlFacts::at(address)
    });
    let own =
        GroupMember { address, class: Some(0x03_0200), driver: Some("nvidia".to_owned()), role: MemberRole::Card };
    Card {
        address,
        vendor: Vendor::Nvidia,
        ids: PciIds { vendor: 0x10de, device: 0x20b5, subsystem: None, class: 0x03_0200 },
        model: "NVIDIA A100 80GB PCIe".to_owned(),
        functions: vec![Function { address, class: Some(0x03_0200), driver: Some("nvidia".to_owned()) }],
        iommu: Some(IommuGroup { number: u32::from(address.bus), members: vec![own] }),
        numa_node: Some(1),
        bars: Vec::new(),
        memory: Some(CardMemory { size: Mib(81_920), source: MemorySource::Nvml }),
        reset_methods: Vec::new(),
        link: Link::default(),
        link_max: Link::default(),
        driver: Some("nvidia".to_owned()),
        driver_override: None,
        is_vfio: false,
        physfn: None,
        sriov: None,
        vgpu: None,
        is_boot_display: false,
        holders: Vec::new(),
        is_holders_complete: true,
        is_persistent: None,
        mode: CardMode::Host,
        health: Health::Ok,
        upstream: Upstream::default(),
        nvml,
        blockers: Vec::new(),
    }
}

/// The same card with VFIO, where NVML has no word on it.
fn bound(address: &str) -> Card {
    Card {
        driver: Some("vfio-pci".to_owned()),
        is_vfio: true,
        mode: CardMode::Passthrough,
        model: "GA100 [A100 PCIe 80GB]".to_owned(),
        memory: None,
        ..card(address, None)
    }
}

fn rows(found: &Recognised) -> Vec<KnownGpu> {
    found.entries.iter().filter_map(|entry| entry.known.clone()).collect()
}

#[test]
fn a_card_keeps_id_name_and_memory_when_it_goes_to_vfio() {
    let first = recognise(&[], &[card("0000:41:00.0", Some("GPU-aaaa"))], "boot", now(0));
    assert_eq!(first.changed.len(), 1);
    let known = rows(&first);
    assert_eq!((known[0].id.0.as_str(), known[0].memory), ("GPU-aaaa", Some(Mib(81_920))));
    let second = recognise(&known, &[bound("0000:41:00.0")], "boot", now(0));
    assert!(second.changed.is_empty(), "a look writes nothing: {:?}", second.changed);
    let device = &devices(&second.entries, &HashSet::new(), Eyes::Host)[0];
    assert_eq!(
        (device.id.0.as_str(), device.model.as_str(), device.memory),
        ("GPU-aaaa", "NVIDIA A100 80GB PCIe", Mib(81_920))
    );
    // Seen first under VFIO, and later by NVML: the id stays, the UUID is learned.
    let known = rows(&recognise(&[], &[bound("0000:41:00.0")], "boot", now(0)));
    let later = recognise(&known, &[card("0000:41:00.0", Some("GPU-aaaa"))], "boot", now(0));
    assert_eq!(rows(&later)[0].id.0, "pci-0000:41:00.0");
    assert_eq!(later.changed[0].identity.uuid.as_deref(), Some("GPU-aaaa"));
}

/// Case A-renumbered.
#[test]
fn a_card_that_moved_is_known_by_its_uuid_and_only_proposed_without_one() {
    let known = rows(&recognise(&[], &[card("0000:41:00.0", Some("GPU-aaaa"))], "boot", now(0)));
    let moved = recognise(&known, &[card("0000:42:00.0", Some("GPU-aaaa"))], "boot", now(0));
    assert_eq!(moved.entries.len(), 1);
    assert_eq!((moved.entries[0].id.0.as_str(), moved.entries[0].address()), ("GPU-aaaa", Some(at("0000:42:00.0"))));
    let unsure = recognise(&known, &[bound("0000:42:00.0")], "boot", now(0));
    let gone = unsure.entries.iter().find(|entry| entry.card.is_none()).unwrap();
    assert_eq!(gone.id.0, "GPU-aaaa");
    assert_eq!(gone.whereabouts, Some(Whereabouts::Moved { to: at("0000:42:00.0") }));
    assert!(devices(&unsure.entries, &HashSet::new(), Eyes::Host).iter().all(|device| device.id.0 != "GPU-aaaa"));
    // Another kind of card in the old place is another card.
    let mut other = bound("0000:41:00.0");
    other.ids.device = 0x1eb8;
    let found = recognise(&known, &[other], "boot", now(0));
    assert_eq!(found.entries.iter().filter(|entry| entry.card.is_some()).count(), 1);
    assert_eq!(found.changed[0].id.0, "pci-0000:41:00.0");
}

#[test]
fn two_cards_never_share_an_id() {
    let first = rows(&recognise(&[], &[bound("0000:41:00.0")], "boot", now(0)));
    let mut other = bound("0000:41:00.0");
    other.ids.device = 0x1eb8;
    let second = recognise(&first, &[other], "boot", now(0));
    let ids: Vec<&str> = second.entries.iter().map(|entry| entry.id.0.as_str()).collect();
    assert_eq!(ids, ["pci-0000:41:00.0-2", "pci-0000:41:00.0"]);
    assert!(second.entries[1].card.is_none());
    // Equal cards stay apart.
    let both = [bound("0000:17:00.0"), bound("0000:65:00.0")];
    let known = rows(&recognise(&[], &both, "boot", now(0)));
    assert!(recognise(&known, &both, "boot", now(0)).changed.is_empty());
}

#[test]
fn what_hung_is_free_after_a_restart_and_what_is_quarantined_is_not() {
    let mut known = rows(&recognise(&[], &[bound("0000:41:00.0"), bound("0000:42:00.0")], "boot", now(0)));
    known[0].withheld = Some(Withheld::Stuck { why: "unbinding".to_owned(), at: now(0), boot_id: "boot".to_owned() });
    known[1].withheld = Some(Withheld::Quarantined { why: "no answer".to_owned(), at: now(0) });
    known[1].former = vec![Restore { address: at("0000:42:00.0"), driver: Some("nvidia".to_owned()) }];
    let cards = [bound("0000:41:00.0"), bound("0000:42:00.0")];
    let service = |boot: &str| {
        let found = recognise(&known, &cards, boot, now(0));
        devices(&found.entries, &HashSet::new(), Eyes::Host).iter().map(|d| d.service.clone()).collect::<Vec<_>>()
    };
    let quarantined = Service::Quarantined("no answer".to_owned());
    assert_eq!(service("boot"), [Service::Stuck("unbinding".to_owned()), quarantined.clone()]);
    assert_eq!(service("another boot"), [Service::Good, quarantined]);
    assert_eq!(recognise(&known, &cards, "another boot", now(2)).changed.len(), 2, "the time is to the hour");
}

fn blocked(kind: BlockerKind, text: &str) -> Blocker {
    Blocker { kind, text: text.to_owned() }
}

#[test]
fn what_members_may_not_know_is_not_told() {
    let mut held = card("0000:41:00.0", None);
    held.blockers = vec![blocked(BlockerKind::Held, "pid 812 (dcgm-exporter) has /dev/nvidia3 open")];
    let found = recognise(&[], &[held], "boot", now(0));
    let text = |eyes| devices(&found.entries, &HashSet::new(), eyes)[0].blocked.clone().unwrap();
    assert_eq!(text(Eyes::Host), "pid 812 (dcgm-exporter) has /dev/nvidia3 open");
    assert_eq!(text(Eyes::Member), "a process of the host has it open (an administrator sees which)");
}

/// Cases A-foreign-vfio-devices and A-shared-iommu-group.
#[test]
fn foreign_cards_groups_and_machines_of_ours_are_told_apart() {
    let mut foreign = card("0000:c1:00.0", None);
    foreign.blockers = vec![blocked(BlockerKind::Foreign, "it is not on the list of cards that gvm manages")];
    let mut running = bound("0000:41:00.0");
    running.blockers = vec![blocked(BlockerKind::InMachine, "pid 9 (qemu, domain gvm-1) has /dev/vfio/1 open")];
    let domain = Some("gvm-1".to_owned());
    running.holders = vec![Holder { pid: 9, comm: "qemu".to_owned(), device: "/dev/vfio/1".to_owned(), domain }];
    // Two cards of one group, and a disk of the host in it.
    let (mut one, two) = (card("0000:51:00.0", None), card("0000:52:00.0", None));
    let member = |address: &str, class| GroupMember {
        address: at(address),
        class: Some(class),
        driver: Some("nvidia".to_owned()),
        role: MemberRole::Blocking,
    };
    one.iommu.as_mut().unwrap().members.extend([member("0000:52:00.0", 0x03_0200), member("0000:53:00.0", 0x01_0802)]);
    one.blockers = vec![blocked(BlockerKind::GroupMember, "IOMMU group 81 has another member")];
    let cards = [running, one, two, foreign];
    let found = recognise(&[], &cards, "boot", now(0));
    let leased = HashSet::from([GpuId("pci-0000:41:00.0".to_owned())]);
    let found_devices = devices(&found.entries, &leased, Eyes::Host);
    let [running, one, two, foreign] = found_devices.as_slice() else { panic!("{found_devices:?}") };
    assert_eq!(running.blocked, None, "its lease says who has it");
    assert!(devices(&found.entries, &HashSet::new(), Eyes::Host)[0].blocked.is_some(), "a machine without a lease");
    assert_eq!(one.blocked, None);
    assert_eq!(one.blockers.iter().map(|member| member.address).collect::<Vec<_>>(), [at("0000:53:00.0")]);
    assert!(two.blockers.is_empty() && foreign.is_foreign && foreign.blocked.is_none());
    let mates = functions(cards.iter());
    assert_eq!(obstacles(&cards[1], &mates, None).len(), 1);
    assert!(obstacles(&cards[2], &mates, None).is_empty());
    let of = |own| obstacles(&cards[0], &mates, own).len();
    assert_eq!((of(None), of(Some("gvm-2")), of(Some("gvm-1"))), (1, 1, 0), "its own machine may have it");
}

/// Case B-capacity-zero-while-passthrough: what was known of a card counts while nobody can be asked, and what never was
/// known is not 0.
#[test]
fn a_card_with_vfio_has_the_memory_that_it_had() {
    let mut seen = card("0000:41:00.0", Some("GPU-aaaa"));
    seen.memory = Some(CardMemory { size: Mib(96 << 10), source: MemorySource::Nvml });
    let known = rows(&recognise(&[], &[seen], "boot", now(0)));
    let away = recognise(&known, &[bound("0000:41:00.0")], "boot", now(1));
    assert_eq!(away.entries[0].memory(), Some(Mib(96 << 10)));
    assert_eq!(devices(&away.entries, &HashSet::new(), Eyes::Host)[0].memory, Mib(96 << 10));
    assert_eq!(recognise(&[], &[bound("0000:41:00.0")], "boot", now(1)).entries[0].memory(), None);
}

/// Case B-one-size-per-card: its driver lists only what there is room for, so that the others would be forgotten.
#[test]
fn types_that_a_card_has_no_room_for_are_remembered() {
    use crate::model::card::vgpu::{MadeVgpu, OfferedType, VgpuFramework};
    let name = |text: &str| VgpuTypeName::parse(text).unwrap();
    let listing = |types: &[&str], made: Option<&str>| {
        let offered = types.iter().map(|text| OfferedType {
            id: "7".to_owned(),
            name: name(text),
            available: 1,
            memory: None,
            most: None,
        });
        let made = made.map(|text| MadeVgpu {
            uuid: None,
            type_id: "7".to_owned(),
            name: Some(name(text)),
            gpu_instance: None,
        });
        let facts = VgpuParent {
            framework: VgpuFramework::VendorVfio,
            offered: offered.collect(),
            made: made.into_iter().collect(),
            faults: Vec::new(),
        };
        let whole = card("0000:41:00.0", None);
        let function = Card { vgpu: Some(facts), physfn: Some(whole.address), ..card("0000:41:01.0", None) };
        [whole, function]
    };
    let see = |known: &[KnownGpu], cards: &[Card]| rows(&recognise(known, cards, "boot", now(0)));
    let types = |rows: &[KnownGpu]| rows[0].vgpu_types.iter().map(ToString::to_string).collect::<Vec<_>>();
    let first = see(&[], &listing(&["L40S-12Q", "L40S-24Q"], None));
    assert_eq!(types(&first), ["L40S-12Q", "L40S-24Q"]);
    let full = see(&first, &listing(&["L40S-12Q"], Some("L40S-12Q")));
    assert_eq!(types(&full), ["L40S-12Q", "L40S-24Q"]);
    // With VFIO, or with functions that are switched off, nothing is listed.
    assert_eq!(types(&see(&full, &[bound("0000:41:00.0")])), ["L40S-12Q", "L40S-24Q"]);
    // Another driver has others.
    assert_eq!(types(&see(&full, &listing(&["L40S-8Q"], None))), ["L40S-8Q"]);
}
