//! Builds the kernel's trees in a folder, and what is read of a whole one.

use std::path::{Path, PathBuf};

use super::{GpuOptions, HostGpus};
use crate::model::card::pci::Link;
use crate::model::card::{Card, CardMode, Discovery, Health, MemorySource, NvmlStatus};
use crate::model::gpu::PciAddress;
use crate::model::units::Mib;

/// The kernel's files below a folder of its own.
pub(super) struct Tree(tempfile::TempDir);

pub(super) fn at(text: &str) -> PciAddress {
    text.parse().unwrap()
}

impl Tree {
    pub(super) fn new() -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir_all(tree.path("sys/bus/pci/devices")).unwrap();
        tree
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    pub(super) fn write(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
        self
    }

    pub(super) fn link(&self, path: &str, target: &str) -> &Self {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
        self
    }

    /// A device right below a root, as `10de:20b5`, with a config space that answers.
    pub(super) fn device(&self, address: &str, ids: &str, class: u32, driver: Option<&str>) -> &Self {
        self.device_behind(&format!("pci{}", &address[..address.len() - 5]), address, ids, class, driver)
    }

    /// A device below others: `pci0000:40/0000:40:03.1`.
    pub(super) fn device_behind(&self, way: &str, address: &str, ids: &str, class: u32, driver: Option<&str>) -> &Self {
        let (vendor, device) = ids.split_once(':').unwrap();
        let real = format!("sys/devices/{way}/{address}");
        self.write(&format!("{real}/vendor"), format!("0x{vendor}\n"));
        self.write(&format!("{real}/device"), format!("0x{device}\n"));
        self.write(&format!("{real}/class"), format!("{class:#08x}\n"));
        self.write(&format!("{real}/config"), [0x10_u8; 64]);
        self.link(&format!("sys/bus/pci/devices/{address}"), &format!("../../../devices/{way}/{address}"));
        if let Some(driver) = driver {
            self.link(&format!("{real}/driver"), &format!("../../../bus/pci/drivers/{driver}"));
        }
        self
    }

    /// An attribute of a device.
    pub(super) fn attribute(&self, address: &str, name: &str, content: impl AsRef<[u8]>) -> &Self {
        self.write(&format!("sys/bus/pci/devices/{address}/{name}"), content)
    }

    pub(super) fn group(&self, number: u32, addresses: &[&str]) -> &Self {
        for address in addresses {
            let folder = format!("sys/kernel/iommu_groups/{number}");
            self.link(&format!("sys/bus/pci/devices/{address}/iommu_group"), &format!("../../../kernel/{folder}"));
            self.link(&format!("{folder}/devices/{address}"), &format!("../../../../bus/pci/devices/{address}"));
        }
        self
    }

    pub(super) fn holder(&self, pid: u32, comm: &str, nodes: &[&str], command: &str) -> &Self {
        self.write(&format!("proc/{pid}/comm"), format!("{comm}\n"));
        self.write(&format!("proc/{pid}/cmdline"), command.replace(' ', "\0"));
        for (number, node) in nodes.iter().enumerate() {
            self.link(&format!("proc/{pid}/fd/{number}"), node);
        }
        self
    }

    pub(super) fn options(&self) -> GpuOptions {
        let nvml = Some(self.path("no-nvml.so"));
        GpuOptions { root: self.0.path().to_owned(), nvml, ..GpuOptions::default() }
    }

    pub(super) fn look(&self) -> Discovery {
        HostGpus::new(self.options()).look()
    }

    pub(super) fn look_for(&self, address: &str) -> Card {
        self.look().card(at(address)).unwrap().clone()
    }

    pub(super) fn root(&self) -> &Path {
        self.0.path()
    }
}

#[test]
fn all_facts_of_a_card_are_read() {
    let tree = Tree::new();
    let card = "0000:41:00.0";
    tree.device_behind("pci0000:40/0000:40:03.1", card, "10de:26b9", 0x03_0200, Some("vfio-pci"))
        .device_behind("pci0000:40/0000:40:03.1", "0000:41:00.1", "10de:22ba", 0x04_0300, Some("vfio-pci"))
        .group(44, &[card, "0000:41:00.1"])
        .attribute(card, "subsystem_vendor", "0x10de\n")
        .attribute(card, "subsystem_device", "0x1851\n")
        .attribute(card, "numa_node", "1\n")
        .attribute(card, "reset_method", "flr bus\n")
        .attribute(card, "current_link_speed", "2.5 GT/s PCIe\n")
        .attribute(card, "max_link_speed", "16.0 GT/s PCIe\n")
        .attribute(card, "current_link_width", "16\n")
        .attribute(card, "max_link_width", "255\n")
        .attribute(card, "driver_override", "vfio-pci\n")
        .attribute(card, "boot_vga", "0\n")
        .attribute(card, "sriov_totalvfs", "32\n")
        .attribute(card, "sriov_numvfs", "0\n")
        .attribute(card, "power_state", "D0\n")
        .attribute(
            card,
            "resource",
            "0x00000000b8000000 0x00000000b8ffffff 0x0000000000040200\n\
             0x0000030000000000 0x0000030fffffffff 0x000000000014220c\n\
             0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
             0x0000031000000000 0x0000031001ffffff 0x000000000014220c\n",
        );
    let found = tree.look();
    assert_eq!((found.nvml.clone(), found.findings.len()), (NvmlStatus::NotAsked, 0), "{:?}", found.findings);
    let card = found.card(at(card)).unwrap();
    assert_eq!((card.model.as_str(), card.ids.to_string().as_str()), ("NVIDIA L40S", "10de:26b9"));
    assert_eq!(card.ids.subsystem, Some((0x10de, 0x1851)));
    assert_eq!(card.memory.map(|m| (m.size, m.source)), Some((Mib(46_068), MemorySource::Table)));
    assert_eq!((card.numa_node, card.mode, &card.health), (Some(1), CardMode::Passthrough, &Health::Ok));
    assert_eq!(card.reset_methods, ["flr", "bus"]);
    assert_eq!(card.link, Link { megatransfers: Some(2500), width: Some(16) });
    assert_eq!(card.link_max, Link { megatransfers: Some(16_000), width: None });
    assert_eq!(
        (card.upstream.root.as_deref(), card.upstream.bridges.as_slice()),
        (Some("pci0000:40"), [at("0000:40:03.1")].as_slice())
    );
    assert_eq!((card.siblings(), card.driver_override.as_deref()), (vec![at("0000:41:00.1")], Some("vfio-pci")));
    assert_eq!(card.sriov.as_ref().map(|sriov| (sriov.total, sriov.enabled)), Some((32, 0)));
    assert_eq!(
        card.bars.iter().map(|bar| (bar.index, bar.size)).collect::<Vec<_>>(),
        [(0, 16 << 20), (1, 64 << 30), (3, 32 << 20)]
    );
    assert_eq!(card.aperture(), (64 << 30) + (32 << 20));
    assert!(card.blockers.is_empty(), "{:?}", card.blockers);
    let text = serde_json::to_string(&found).unwrap();
    assert_eq!(serde_json::from_str::<Discovery>(&text).unwrap(), found);
}

#[test]
fn makers_and_classes_decide_what_is_a_gpu() {
    let tree = Tree::new();
    for (address, ids, class) in [
        ("0000:01:00.0", "1002:74a1", 0x12_0000), // AMD MI300X
        ("0000:02:00.0", "8086:0bda", 0x03_8000), // Intel
        ("0000:03:00.0", "1a03:2000", 0x03_0000), // the board's own screen
        ("0000:04:00.0", "10de:22a3", 0x06_8000), // NVSwitch
        ("0000:05:00.0", "10de:2330", 0x03_0200),
        ("0000:06:00.0", "10de:22ba", 0x04_0300),
        ("0000:07:00.0", "8086:0b25", 0x12_0000), // Intel accelerator for hashing
    ] {
        tree.device(address, ids, class, None);
    }
    let found = tree.look();
    let cards: Vec<String> = found.cards.iter().map(|card| format!("{} {}", card.address, card.model)).collect();
    assert_eq!(
        cards,
        ["0000:01:00.0 AMD 1002:74a1", "0000:02:00.0 Intel 8086:0bda", "0000:05:00.0 NVIDIA H100 80GB HBM3"]
    );
    assert_eq!(found.nvswitches, [at("0000:04:00.0")]);
    let words: Vec<&str> = found.cards[2].blockers.iter().map(|blocker| blocker.text.as_str()).collect();
    let missing =
        "the board has 1 NVSwitches, and gvm activates no partitions of their fabric: no fabric manager is installed";
    assert!(words.iter().any(|text| text.starts_with(missing)), "{words:?}");
    let finding = &found.findings[0].text;
    assert!(
        finding.starts_with(missing) && finding.contains("/usr/share/nvidia/nvswitch/fabricmanager.cfg"),
        "{finding}"
    );
}

#[test]
fn names_come_from_the_database_where_a_card_is_not_known() {
    let tree = Tree::new();
    tree.device("0000:01:00.0", "10de:1ff2", 0x03_0000, None).device("0000:02:00.0", "1002:744c", 0x03_0000, None);
    tree.device("0000:03:00.0", "10de:9999", 0x03_0000, None);
    tree.write(
        "usr/share/misc/pci.ids",
        "# a comment\n1002  Advanced Micro Devices, Inc. [AMD/ATI]\n\t744c  Navi 31 [Radeon RX 7900]\n\
         10de  NVIDIA Corporation\n\t1ff2  TU117GL [T400 4GB]\n\t\t1028 1613  Dell one\n\
         C 03  Display controller\n\t9999  no device\n",
    );
    let models: Vec<String> = tree.look().cards.into_iter().map(|card| card.model).collect();
    assert_eq!(models, ["NVIDIA T400 4GB", "AMD Radeon RX 7900", "NVIDIA 10de:9999"]);
}

#[test]
fn ways_to_the_processor_are_compared() {
    let tree = Tree::new();
    let below = |way: &str, address: &str| {
        tree.device_behind(way, address, "10de:20b5", 0x03_0200, None);
    };
    below("pci0000:40/0000:40:01.0/0000:41:00.0/0000:42:00.0", "0000:43:00.0");
    below("pci0000:40/0000:40:01.0/0000:41:00.0/0000:42:01.0", "0000:44:00.0");
    below("pci0000:40/0000:40:02.0", "0000:45:00.0");
    below("pci0000:80/0000:80:01.0", "0000:81:00.0");
    below("pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0", "10000:e1:00.0");
    let found = tree.look();
    let shared = |one: &str, other: &str| {
        found.card(at(one)).unwrap().upstream.shared_with(&found.card(at(other)).unwrap().upstream)
    };
    assert_eq!(shared("0000:43:00.0", "0000:44:00.0"), 3);
    assert_eq!(shared("0000:43:00.0", "0000:45:00.0"), 1);
    assert_eq!(shared("0000:43:00.0", "0000:81:00.0"), 0);
    assert_eq!(shared("10000:e1:00.0", "0000:81:00.0"), 0);
    assert_eq!(found.card(at("10000:e1:00.0")).unwrap().upstream.root.as_deref(), Some("pci10000:e0"));
}
