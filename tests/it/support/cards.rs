//! Cards for tests of the manager.

use gvm::gpu::fake::FakeGpus;
use gvm::model::card::{Card, CardMemory, CardMode, Discovery, Health, MemorySource};
use gvm::model::pci::{Function, GroupMember, IommuGroup, Link, MemberRole, PciAddress, PciIds, Upstream, Vendor};
use gvm::model::units::Mib;

pub fn at(text: &str) -> PciAddress {
    text.parse().unwrap()
}

/// An A100 with its sound, each with the host's driver, alone in its group.
pub fn card(address: &str) -> Card {
    let address = at(address);
    let sound = PciAddress { function: 1, ..address };
    let member = |address: PciAddress, class, driver: &str, role| GroupMember {
        address,
        class: Some(class),
        driver: Some(driver.to_owned()),
        role,
    };
    let function =
        |address, class, driver: &str| Function { address, class: Some(class), driver: Some(driver.to_owned()) };
    Card {
        address,
        vendor: Vendor::Nvidia,
        ids: PciIds { vendor: 0x10de, device: 0x20b5, subsystem: None, class: 0x03_0200 },
        model: "NVIDIA A100 80GB PCIe".to_owned(),
        functions: vec![function(address, 0x03_0200, "nvidia"), function(sound, 0x04_0300, "snd_hda_intel")],
        iommu: Some(IommuGroup {
            number: u32::from(address.bus),
            members: vec![
                member(address, 0x03_0200, "nvidia", MemberRole::Card),
                member(sound, 0x04_0300, "snd_hda_intel", MemberRole::Sibling),
            ],
        }),
        numa_node: Some(0),
        bars: Vec::new(),
        memory: Some(CardMemory { size: Mib(81_920), source: MemorySource::Table }),
        reset_methods: vec!["flr".to_owned()],
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
        nvml: None,
        blockers: Vec::new(),
    }
}

/// A host with these cards.
pub fn host(addresses: &[&str]) -> FakeGpus {
    let cards = addresses.iter().map(|address| card(address)).collect();
    FakeGpus::showing(Discovery { cards, ..Discovery::default() }.judged(None))
}
