//! Trees of both kinds, healthy and not.

use super::super::function;
use super::super::tree_tests::{Tree, at};
use super::*;

const VF: &str = "sys/bus/pci/devices/0000:c8:00.4";

fn files(tree: &Tree) -> Files {
    Files::below(&tree.path(""))
}

fn offers(parent: &VgpuParent) -> Vec<String> {
    parent.offered.iter().map(|one| format!("{} {} x{}", one.id, one.name, one.available)).collect()
}

/// Case B-profile-list-separators.
#[test]
fn a_list_of_types_is_read_line_by_line() {
    let read = |text: &str| type_list(text).iter().map(|one| format!("{}={}", one.id, one.name)).collect::<Vec<_>>();
    assert_eq!(read("ID    : vGPU Name\n1519  : EX-3Q\n\n1523  : EX-6Q\n"), ["1519=EX-3Q", "1523=EX-6Q"]);
    assert_eq!(read("ID : VGPU NAME\r\n  1519:NVIDIA   EX-3Q \r\n"), ["1519=EX-3Q"]);
    let spaces = "1561 : NVIDIA RTX Pro 6000 Blackwell DC-1-24Q";
    assert_eq!(read(spaces), ["1561=RTX Pro 6000 Blackwell DC-1-24Q"]);
    for none in ["", "\n", "ID    : vGPU Name\n", "no colon", "0 : EX-3Q", "-1 : EX-3Q", "1519 :", "x : EX-3Q"] {
        assert!(read(none).is_empty(), "{none:?}");
    }
    // Headers in every spelling, tabs, a byte order mark, ends of lines of another system: the same list.
    for text in [
        "ID    : VGPU Name\n1519  : NVIDIA EX-3Q\n1523  : NVIDIA EX-6Q\n",
        "id:vgpu name\r\n1519:EX-3Q\r\n1523:EX-6Q",
        "\tID\t:\tvGPU Name\t\n\t1519\t:\tNVIDIA\tEX-3Q\t\n\n\t1523\t:\tGRID EX-6Q\n\n",
        "\u{feff}ID : vGPU Name\n 1519 : EX-3Q\n 1523 : EX-6Q\n",
        "vGPU types of this function:\nID : vGPU Name\n----------\n1519 : EX-3Q\n1523 : EX-6Q\n",
    ] {
        assert_eq!(read(text), ["1519=EX-3Q", "1523=EX-6Q"], "{text:?}");
    }
    // Only the first colon parts number and name, and what is no number is no type.
    assert_eq!(
        read("7 : EX: 3Q\n0x5ef : EX-3Q\n15 19 : EX-3Q\n99999999999 : EX-3Q\n+7 : EX-6Q\n"),
        ["7=EX: 3Q", "7=EX-6Q"]
    );
    let many: String = (1..=600).map(|id| format!("{id} : EX-{id}Q\n")).collect();
    assert_eq!(type_list(&many).len(), MAX_TYPES);
}

/// Case B-vendor-vfio.
#[test]
fn a_virtual_function_offers_types_or_has_one() {
    let tree = Tree::new();
    let list = "ID : vGPU Name\n1519 : EX-3Q\n1523 : EX-6Q\n";
    tree.write(&format!("{VF}/nvidia/creatable_vgpu_types"), list);
    tree.write(&format!("{VF}/nvidia/current_vgpu_type"), "0\n");
    let mut free = read(&files(&tree), VF).unwrap();
    assert_eq!(free.framework, VgpuFramework::VendorVfio);
    assert_eq!(offers(&free), ["1519 EX-3Q x1", "1523 EX-6Q x1"]);
    assert!(free.made.is_empty() && free.faults.is_empty());

    // A function with a type lists the others no more; its neighbours know its name.
    tree.write(&format!("{VF}/nvidia/creatable_vgpu_types"), "ID : vGPU Name\n");
    tree.write(&format!("{VF}/nvidia/current_vgpu_type"), "1519\n");
    tree.write(&format!("{VF}/nvidia/gpu_instance_id"), "3\n");
    let mut used = read(&files(&tree), VF).unwrap();
    assert_eq!((used.made[0].name.as_ref(), used.made[0].gpu_instance), (None, Some(3)));
    name_made([&mut free, &mut used].into_iter());
    assert_eq!(used.made[0].name, VgpuTypeName::parse("EX-3Q"));
}

#[test]
fn what_cannot_be_read_is_no_free_function() {
    let tree = Tree::new();
    tree.write(&format!("{VF}/nvidia/creatable_vgpu_types"), [0xff, 0xfe]);
    let parent = read(&files(&tree), VF).unwrap();
    assert_eq!(
        parent.faults,
        ["its list of types (creatable_vgpu_types) cannot be read", "its type (current_vgpu_type) cannot be read"]
    );
    tree.write(&format!("{VF}/nvidia/current_vgpu_type"), "nonsense");
    assert_eq!(read(&files(&tree), VF).unwrap().faults.len(), 2);
    assert_eq!(read(&files(&tree), "sys/bus/pci/devices/0000:c8:00.5"), None);
}

#[test]
fn a_parent_of_mediated_devices_offers_what_is_available_by_name() {
    let tree = Tree::new();
    let types = format!("{VF}/mdev_supported_types");
    let uuid = "c2177883-f1bb-47f0-914d-32a22e3a8804";
    let describe = |id: &str, name: &str, available: &str, description: &str| {
        tree.write(&format!("{types}/{id}/name"), name);
        tree.write(&format!("{types}/{id}/available_instances"), available);
        tree.write(&format!("{types}/{id}/description"), description);
    };
    let told = "num_heads=4, frl_config=60, framebuffer=4096M, max_resolution=7680x4320, max_instance=4\n";
    describe("nvidia-746", "NVIDIA A2-4Q\n", "1\n", told);
    describe("nvidia-747", "NVIDIA A2-8Q\n", "0\n", "");
    // Half set up: no name yet.
    tree.write(&format!("{types}/pci-575/available_instances"), "1\n");
    // A sample driver of the kernel.
    describe("mtty-2", "Dual port serial\n", "12\n", "");
    describe("nvidia-9", "NVIDIA A2-1Q\n", "many\n", "");
    tree.write(&format!("{types}/nvidia-747/devices/{uuid}/x"), "");
    tree.write(&format!("{types}/nvidia-747/devices/not-a-uuid/x"), "");
    let parent = read(&files(&tree), VF).unwrap();
    assert_eq!(parent.framework, VgpuFramework::Mdev);
    assert_eq!(offers(&parent), ["mtty-2 Dual port serial x12", "nvidia-746 A2-4Q x1", "nvidia-747 A2-8Q x0"]);
    let first = &parent.offered[1];
    assert_eq!((first.memory(), first.most), (Some(Mib(4096)), Some(4)));
    assert_eq!(parent.offered[0].memory(), None);
    let [made] = parent.made.as_slice() else { panic!("{parent:?}") };
    assert_eq!((made.uuid, made.type_id.as_str()), (Uuid::try_parse(uuid).ok(), "nvidia-747"));
    assert_eq!(made.name, VgpuTypeName::parse("A2-8Q"));
    assert_eq!(parent.faults, ["how many A2-1Q it can carry (available_instances) cannot be read"]);
}

/// Who has a mediated device open is told by its own group, and has its card open as well: nobody takes that from its
/// driver then.
#[test]
fn an_open_mediated_device_is_seen_by_its_own_group() {
    const CARD: &str = "0000:c1:00.0";
    let open = "c2177883-f1bb-47f0-914d-32a22e3a8804";
    let idle = "b0b0b0b0-f1bb-47f0-914d-32a22e3a8804";
    let tree = Tree::new();
    tree.device(CARD, "10de:1eb8", 0x03_0200, Some("nvidia")).group(12, &[CARD]);
    let folder = format!("sys/bus/pci/devices/{CARD}");
    tree.attribute(CARD, "mdev_supported_types/nvidia-222/name", "GRID T4-4Q\n");
    tree.attribute(CARD, "mdev_supported_types/nvidia-222/available_instances", "2\n");
    tree.attribute(CARD, "mdev_supported_types/nvidia-222/device_api", "vfio-pci\n");
    tree.attribute(CARD, "mdev_supported_types/ap-1/name", "no PCI device\n");
    tree.attribute(CARD, "mdev_supported_types/ap-1/device_api", "vfio-ap\n");
    for (uuid, group) in [(open, 31), (idle, 32)] {
        tree.attribute(CARD, &format!("{uuid}/remove"), "");
        tree.link(&format!("{folder}/{uuid}/iommu_group"), &format!("../../../../kernel/iommu_groups/{group}"));
        tree.link(&format!("{folder}/mdev_supported_types/nvidia-222/devices/{uuid}"), &format!("../../../{uuid}"));
        tree.link(&format!("sys/bus/mdev/devices/{uuid}"), &format!("../../pci/devices/{CARD}/{uuid}"));
    }
    let look = || {
        let mut states = [function::state(&files(&tree), at(CARD), None)];
        function::find_open(&files(&tree), &mut states);
        let [state] = states;
        (state.vgpus.len(), state.is_open, state.open_mdevs)
    };
    assert_eq!(look(), (2, Some(false), vec![]));
    let card = tree.look_for(CARD);
    assert_eq!(offers(card.vgpu.as_ref().unwrap()), ["nvidia-222 T4-4Q x2"], "QEMU takes no other kind");
    let texts = |card: &crate::model::card::Card| -> Vec<String> {
        card.blockers.iter().map(|blocker| blocker.text.clone()).collect()
    };
    assert_eq!(texts(&card), ["vGPUs are made on it: 2"]);
    tree.holder(812, "qemu-system-x86", &["/dev/vfio/31"], "qemu -name guest=gvm-a");
    assert_eq!(look(), (2, Some(true), vec![Uuid::try_parse(open).unwrap()]));
    let held = "pid 812 (qemu-system-x86, domain gvm-a) has /dev/vfio/31 open";
    assert_eq!(texts(&tree.look_for(CARD)), ["vGPUs are made on it: 2", held]);
    // The card's own group is nobody's of the mediated devices.
    std::fs::remove_dir_all(tree.path("proc")).unwrap();
    tree.holder(813, "qemu", &["/dev/vfio/12"], "qemu");
    assert_eq!(look(), (2, Some(true), vec![]));
}
