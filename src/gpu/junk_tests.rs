//! Trees that no kernel makes: looking ends, quickly, and what cannot be read is said or left out.

use super::tree_tests::{Tree, at};
use crate::model::card::{CardFindingKind, Health, NvmlStatus};

const CARD: &str = "0000:41:00.0";

/// All attributes that are read of a card.
const ATTRIBUTES: [&str; 15] = [
    "subsystem_vendor",
    "subsystem_device",
    "numa_node",
    "resource",
    "reset_method",
    "current_link_speed",
    "current_link_width",
    "max_link_speed",
    "max_link_width",
    "driver_override",
    "boot_vga",
    "sriov_totalvfs",
    "sriov_numvfs",
    "power_state",
    "power/runtime_status",
];

fn card() -> Tree {
    let tree = Tree::new();
    tree.device(CARD, "10de:20b5", 0x03_0200, Some("vfio-pci")).group(1, &[CARD]);
    tree
}

#[test]
fn junk_in_attributes_is_no_value() {
    let huge = vec![b'7'; 3 << 20];
    let deep = "0x".to_owned() + &"f".repeat(4000);
    let junk: [&[u8]; 9] = [
        b"",
        b"\n",
        b"\0\0\0\0",
        b"\xff\xfe\x80binary",
        &huge,
        deep.as_bytes(),
        b"0xffffffffffffffff 0xffffffffffffffff 0xffffffffffffffff\n",
        b"18446744073709551616",
        "\u{202e}ein Wert \u{1b}[31m".as_bytes(),
    ];
    for content in junk {
        let tree = card();
        for name in ATTRIBUTES {
            tree.attribute(CARD, name, content);
        }
        let found = tree.look();
        let card = found.card(at(CARD)).unwrap();
        assert_eq!((card.numa_node, card.ids.subsystem, card.bars.len()), (None, None, 0), "{card:?}");
        assert_eq!((card.is_boot_display, card.sriov.is_none()), (false, true), "{card:?}");
        assert!(card.reset_methods.len() < 10);
    }
}

#[test]
fn folders_pipes_and_loops_in_place_of_files_hold_nobody_up() {
    for name in ["class", "vendor", "device", "config", "resource", "power_state"] {
        let tree = card();
        let path = tree.path(&format!("sys/bus/pci/devices/{CARD}/{name}"));
        for kind in ["folder", "pipe", "loop"] {
            let _ = std::fs::remove_file(&path);
            let _ = std::fs::remove_dir(&path);
            match kind {
                "folder" => std::fs::create_dir(&path).unwrap(),
                "pipe" => nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap(),
                _ => std::os::unix::fs::symlink(&path, &path).unwrap(),
            }
            let found = tree.look();
            let is_known = !["class", "vendor", "device"].contains(&name);
            assert_eq!(found.cards.len(), usize::from(is_known), "{name} as a {kind}");
            // Without a class nobody can tell that it is a GPU.
            let said = found.findings.iter().any(|finding| finding.kind == CardFindingKind::Unreadable);
            // A link to itself is as good as no file.
            let is_told = ["vendor", "device"].contains(&name) || name == "resource" && kind != "loop";
            assert_eq!(said, is_told, "{name} as a {kind}");
        }
    }
}

#[test]
fn a_config_space_that_cannot_be_read_is_not_taken_for_health() {
    let tree = card();
    std::fs::remove_file(tree.path(&format!("sys/bus/pci/devices/{CARD}/config"))).unwrap();
    let card = tree.look_for(CARD);
    assert!(matches!(card.health, Health::Unknown(_)) && !card.blockers.is_empty());
}

#[test]
fn names_that_are_no_addresses_are_passed_over() {
    let tree = card();
    for name in ["0000:41:00.0 ", "0000:41:00.0.0", "virtio0", "0000:4A:00.0", "\u{fffd}", "41:00.0"] {
        tree.write(&format!("sys/bus/pci/devices/{name}/class"), "0x030200\n");
    }
    assert_eq!(tree.look().cards.len(), 1);
}

#[test]
fn a_group_that_lacks_the_card_or_leads_nowhere_is_still_its_group() {
    let tree = Tree::new();
    tree.device(CARD, "10de:20b5", 0x03_0200, Some("vfio-pci"));
    tree.link(&format!("sys/bus/pci/devices/{CARD}/iommu_group"), "../../../kernel/iommu_groups/9");
    let group = tree.look_for(CARD).iommu.unwrap();
    assert_eq!((group.number, group.members.len()), (9, 1));
    let tree = Tree::new();
    tree.device(CARD, "10de:20b5", 0x03_0200, Some("vfio-pci"));
    tree.link(&format!("sys/bus/pci/devices/{CARD}/iommu_group"), "somewhere");
    assert_eq!(tree.look_for(CARD).iommu, None);
}

#[test]
fn nothing_at_all_is_told() {
    let tree = Tree::new();
    assert_eq!((tree.look().cards.len(), tree.look().findings.len()), (0, 0));
    std::fs::remove_dir_all(tree.path("sys")).unwrap();
    let found = tree.look();
    assert_eq!(found.findings[0].kind, CardFindingKind::NoPci);
    assert_eq!(found.nvml, NvmlStatus::NotAsked);
}

#[test]
fn processes_come_and_go_and_may_be_strange() {
    let tree = card();
    tree.holder(7, "", &["/dev/vfio/1"], "");
    tree.write("proc/8/fd", "a file").write("proc/self/fd/0", "x").write("proc/99999999999999/fd/0", "x");
    tree.write("proc/9/comm", vec![0xff; 9000]).link("proc/9/fd/3", "/dev/vfio/1");
    let names: Vec<String> = tree.look_for(CARD).holders.iter().map(|holder| holder.words()).collect();
    assert_eq!(names, ["pid 7 (unknown) has /dev/vfio/1 open", "pid 9 (unknown) has /dev/vfio/1 open"]);
}

/// Files that change, and devices that vanish, while they are read.
#[test]
fn a_tree_that_changes_meanwhile_never_breaks_a_look() {
    let tree = card();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (root, mut turn) = (tree.root().join("sys/devices/pci0000:41"), 0_usize);
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                turn += 1;
                let _ = std::fs::rename(root.join(CARD), root.join("gone"));
                let _ = std::fs::write(root.join("gone/numa_node"), "1\n".repeat(turn % 4000));
                let _ = std::fs::rename(root.join("gone"), root.join(CARD));
            }
        });
        for _ in 0..200 {
            for card in tree.look().cards {
                assert_eq!(card.address, at(CARD));
                assert!(card.numa_node.is_none_or(|node| node == 1));
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
