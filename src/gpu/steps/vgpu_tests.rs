//! The writes on trees of plain files, with a thread that answers where the kernel would.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::StepKind;
use super::*;
use crate::gpu::tree_tests::{Tree, at};

const VF: &str = "0000:c8:00.4";
const UUID: &str = "c2177883-f1bb-47f0-914d-32a22e3a8804";
const LIST: &str = "ID : vGPU Name\n1519 : NVIDIA EX-3Q\n1523 : NVIDIA EX-6Q\n";

fn name(text: &str) -> VgpuTypeName {
    VgpuTypeName::parse(text).unwrap()
}

fn job(verb: &str, site: &str, of: &str) -> VgpuJob {
    let (site, name) = (site.parse().unwrap(), name(of));
    match verb {
        "make" => VgpuJob::Make { site, name },
        _ => VgpuJob::Remove { site, name },
    }
}

/// What it wrote, or why not.
fn run(tree: &Tree, verb: &str, site: &str, of: &str) -> Result<Vec<String>, (StepKind, String)> {
    let mut wrote = Vec::new();
    let mut tell = |progress: &super::super::Progress| {
        if let super::super::Progress::Write { file, value, .. } = progress {
            wrote.push(format!("{value} > {}", file.rsplit('/').next().unwrap()));
        }
    };
    let mut steps = Steps::new(&tree.path(""), Duration::from_millis(600), &mut tell);
    let done = steps.run_vgpu(&job(verb, site, of), Some(&tree.path("no-nvml.so")));
    done.map(|()| wrote).map_err(|error| (error.kind, error.text))
}

fn refused(outcome: Result<Vec<String>, (StepKind, String)>, kind: StepKind) -> String {
    let (told, text) = outcome.unwrap_err();
    assert_eq!(told, kind, "{text}");
    text
}

/// Two virtual functions of a card.
fn functions() -> Tree {
    let tree = Tree::new();
    tree.device("0000:c8:00.0", "10de:26b9", 0x03_0200, Some("nvidia"));
    for (number, address) in [VF, "0000:c8:00.5"].into_iter().enumerate() {
        tree.device(address, "10de:26b9", 0x03_0200, Some("nvidia"));
        tree.attribute(address, "nvidia/creatable_vgpu_types", LIST);
        tree.attribute(address, "nvidia/current_vgpu_type", "0\n");
        tree.link(&format!("sys/bus/pci/devices/{address}/physfn"), "../0000:c8:00.0");
        tree.link(&format!("sys/bus/pci/devices/0000:c8:00.0/virtfn{number}"), &format!("../{address}"));
    }
    tree
}

fn current(tree: &Tree) -> String {
    let file = tree.path(&format!("sys/bus/pci/devices/{VF}/nvidia/current_vgpu_type"));
    std::fs::read_to_string(file).unwrap().trim().to_owned()
}

#[test]
fn a_function_gets_a_type_once_and_loses_it_once() {
    let tree = functions();
    assert_eq!(run(&tree, "make", VF, "EX-3Q"), Ok(vec!["1519 > current_vgpu_type".to_owned()]));
    assert_eq!(current(&tree), "1519");
    assert_eq!(run(&tree, "make", VF, "EX-3Q"), Ok(vec![]), "it is there already");
    // The driver lists nothing any more at a function that has a type.
    tree.attribute(VF, "nvidia/creatable_vgpu_types", "ID : vGPU Name\n");
    assert_eq!(run(&tree, "make", VF, "EX-3Q"), Ok(vec![]), "a neighbour knows its name");
    insta::assert_snapshot!(refused(run(&tree, "make", VF, "EX-6Q"), StepKind::Refused), @"0000:c8:00.4 carries a vGPU already (EX-3Q), so it gets no EX-6Q");
    insta::assert_snapshot!(refused(run(&tree, "remove", VF, "EX-6Q"), StepKind::Refused), @"0000:c8:00.4 carries EX-3Q by now, and not EX-6Q: it is left alone");
    assert_eq!(run(&tree, "remove", VF, "EX-3Q"), Ok(vec!["0 > current_vgpu_type".to_owned()]));
    assert_eq!(run(&tree, "remove", VF, "EX-3Q"), Ok(vec![]));
}

/// Numbers differ from driver to driver and from boot to boot: a type is found by its name each time.
#[test]
fn numbers_that_change_over_a_reboot_do_not_matter() {
    let tree = functions();
    assert_eq!(run(&tree, "make", VF, "EX-3Q"), Ok(vec!["1519 > current_vgpu_type".to_owned()]));
    // After the reboot nothing is made, and the numbers have changed places.
    for address in [VF, "0000:c8:00.5"] {
        tree.attribute(
            address,
            "nvidia/creatable_vgpu_types",
            "ID    : VGPU Name\r\n1523:NVIDIA  EX-3Q\r\n1519:EX-6Q\r\n",
        );
        tree.attribute(address, "nvidia/current_vgpu_type", "0\n");
    }
    assert_eq!(run(&tree, "make", VF, "EX-3Q"), Ok(vec!["1523 > current_vgpu_type".to_owned()]));
    assert_eq!(current(&tree), "1523");
    insta::assert_snapshot!(refused(run(&tree, "remove", VF, "EX-6Q"), StepKind::Refused), @"0000:c8:00.4 carries EX-3Q by now, and not EX-6Q: it is left alone");
    assert_eq!(run(&tree, "remove", VF, "EX-3Q"), Ok(vec!["0 > current_vgpu_type".to_owned()]));
}

#[test]
fn a_full_card_names_nothing_and_is_freed_all_the_same() {
    let tree = functions();
    run(&tree, "make", VF, "EX-3Q").unwrap();
    for address in [VF, "0000:c8:00.5"] {
        tree.attribute(address, "nvidia/creatable_vgpu_types", "ID : vGPU Name\n");
    }
    insta::assert_snapshot!(refused(run(&tree, "make", "0000:c8:00.5", "EX-3Q"), StepKind::Failed), @"0000:c8:00.5 does not offer EX-3Q now: it offers nothing at the moment");
    run(&tree, "remove", VF, "EX-3Q").unwrap();
    assert_eq!(current(&tree), "0");
}

#[test]
fn what_is_not_as_it_should_be_is_told() {
    let tree = functions();
    insta::assert_snapshot!(refused(run(&tree, "make", VF, "EX-12Q"), StepKind::Failed), @"0000:c8:00.4 does not offer EX-12Q now: it offers EX-3Q, EX-6Q");
    insta::assert_snapshot!(refused(run(&tree, "make", "0000:c8:00.0", "EX-3Q"), StepKind::Refused), @"0000:c8:00.0 is no virtual function that takes types (nvidia/current_vgpu_type)");
    insta::assert_snapshot!(refused(run(&tree, "make", "0000:c9:00.0", "EX-3Q"), StepKind::Refused), @"there is no PCI device at 0000:c9:00.0");
    tree.attribute(VF, "nvidia/current_vgpu_type", "nonsense");
    insta::assert_snapshot!(refused(run(&tree, "remove", VF, "EX-3Q"), StepKind::Failed), @"0000:c8:00.4: its type cannot be read (/sys/bus/pci/devices/0000:c8:00.4/nvidia/current_vgpu_type)");
}

/// A vGPU that a machine has is never taken away: that blocks in the kernel.
#[test]
fn what_is_open_is_left_alone() {
    let tree = functions();
    run(&tree, "make", VF, "EX-3Q").unwrap();
    tree.write(&format!("sys/bus/pci/devices/{VF}/vfio-dev/vfio7/x"), "");
    tree.holder(812, "qemu-system-x86", &["/dev/vfio/devices/vfio7"], "qemu -name guest=gvm-a");
    insta::assert_snapshot!(refused(run(&tree, "remove", VF, "EX-3Q"), StepKind::Refused), @"0000:c8:00.4 is in use: pid 812 (qemu-system-x86, domain gvm-a) has /dev/vfio/devices/vfio7 open");
    assert_eq!(current(&tree), "1519");
}

/// Does something over and over until it is dropped.
struct Kernel(std::sync::Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);

impl Kernel {
    fn new(mut step: impl FnMut() + Send + 'static) -> Self {
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                step();
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Self(stop, Some(thread))
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
        self.1.take().unwrap().join().unwrap();
    }
}

/// The driver takes a moment to let go after the machine's end.
#[test]
fn a_removal_that_is_not_taken_is_tried_again() {
    let tree = functions();
    run(&tree, "make", VF, "EX-3Q").unwrap();
    let file = tree.path(&format!("sys/bus/pci/devices/{VF}/nvidia/current_vgpu_type"));
    // Whatever is written, it shows its type again; the third time it lets go.
    let (mut denied, watched) = (0, file.clone());
    let kernel = Kernel::new(move || {
        if denied < 2 && std::fs::read_to_string(&watched).is_ok_and(|text| text == "0\n") {
            denied += 1;
            std::fs::write(&watched, "1519\n").unwrap();
        }
    });
    // A read between the write and its denial sees 0, so that it may be over sooner.
    let wrote = run(&tree, "remove", VF, "EX-3Q").unwrap();
    assert!((1..=3).contains(&wrote.len()), "{wrote:?}");
    drop(kernel);
}

// --- mediated devices ------------------------------------------------------------------------------------------------

fn parent() -> (Tree, PathBuf) {
    let tree = Tree::new();
    tree.device(VF, "10de:25b6", 0x03_0200, Some("nvidia"));
    let types = format!("sys/bus/pci/devices/{VF}/mdev_supported_types/nvidia-746");
    tree.write(&format!("{types}/name"), "NVIDIA A2-4Q\n");
    tree.write(&format!("{types}/available_instances"), "1\n");
    tree.write(&format!("{types}/create"), "");
    std::fs::create_dir_all(tree.path("sys/bus/mdev/devices")).unwrap();
    let root = tree.path("");
    (tree, root)
}

/// Makes and removes devices as the kernel does.
fn answer(root: PathBuf) -> impl FnMut() + Send + 'static {
    let device = root.join(format!("sys/bus/pci/devices/{VF}"));
    let link = root.join(format!("sys/bus/mdev/devices/{UUID}"));
    move || {
        let types = device.join("mdev_supported_types/nvidia-746");
        if std::fs::read_to_string(types.join("create")).is_ok_and(|text| text.trim() == UUID) {
            std::fs::write(types.join("create"), "").unwrap();
            std::fs::create_dir_all(device.join(UUID)).unwrap();
            std::fs::write(device.join(UUID).join("remove"), "").unwrap();
            std::os::unix::fs::symlink("../mdev_supported_types/nvidia-746", device.join(UUID).join("mdev_type"))
                .unwrap();
            std::os::unix::fs::symlink("../../../../kernel/iommu_groups/31", device.join(UUID).join("iommu_group"))
                .unwrap();
            std::os::unix::fs::symlink(device.join(UUID), &link).unwrap();
        }
        if std::fs::read_to_string(device.join(UUID).join("remove")).is_ok_and(|text| text == "1\n") {
            std::fs::remove_file(&link).unwrap();
            std::fs::remove_dir_all(device.join(UUID)).unwrap();
        }
    }
}

#[test]
fn a_mediated_device_comes_and_goes_once() {
    let (tree, root) = parent();
    let kernel = Kernel::new(answer(root));
    let site = format!("{VF}/{UUID}");
    assert_eq!(run(&tree, "make", &site, "A2-4Q"), Ok(vec![format!("{UUID} > create")]));
    assert_eq!(run(&tree, "make", &site, "A2-4Q"), Ok(vec![]), "it is there already");
    insta::assert_snapshot!(refused(run(&tree, "make", &site, "A2-8Q"), StepKind::Refused), @"there is a mediated device c2177883-f1bb-47f0-914d-32a22e3a8804 already, and it is no A2-8Q");
    insta::assert_snapshot!(refused(run(&tree, "remove", &site, "A2-8Q"), StepKind::Refused), @"the mediated device c2177883-f1bb-47f0-914d-32a22e3a8804 is no A2-8Q of 0000:c8:00.4: it is left alone");
    tree.holder(99, "qemu", &["/dev/vfio/31"], "qemu -name guest=gvm-b");
    insta::assert_snapshot!(refused(run(&tree, "remove", &site, "A2-4Q"), StepKind::Refused), @"0000:c8:00.4 is in use: pid 99 (qemu, domain gvm-b) has /dev/vfio/31 open");
    std::fs::remove_dir_all(tree.path("proc")).unwrap();
    // The node that newer kernels have of it counts as well; what its parent or a neighbour of it has open does not.
    tree.write(&format!("sys/bus/pci/devices/{VF}/{UUID}/vfio-dev/vfio7/x"), "");
    tree.holder(99, "qemu", &["/dev/vfio/devices/vfio7"], "qemu -name guest=gvm-b");
    insta::assert_snapshot!(refused(run(&tree, "remove", &site, "A2-4Q"), StepKind::Refused), @"0000:c8:00.4 is in use: pid 99 (qemu, domain gvm-b) has /dev/vfio/devices/vfio7 open");
    std::fs::remove_dir_all(tree.path("proc")).unwrap();
    tree.group(12, &[VF]);
    tree.holder(98, "qemu", &["/dev/vfio/12", "/dev/vfio/32"], "qemu -name guest=gvm-c");
    assert!(run(&tree, "remove", &site, "A2-4Q").is_ok());
    assert_eq!(run(&tree, "remove", &site, "A2-4Q"), Ok(vec![]), "it is gone already");
    drop(kernel);
}

/// Without a driver of VFIO nobody could open it; made anew by the next try it must not be.
#[test]
fn a_device_that_no_driver_takes_is_told() {
    let (tree, root) = parent();
    let site = format!("{VF}/{UUID}");
    let group = root.join(format!("sys/bus/pci/devices/{VF}/{UUID}/iommu_group"));
    let mut kernel = answer(root);
    let kernel = Kernel::new(move || {
        kernel();
        let _ = std::fs::remove_file(&group);
    });
    for _ in 0..2 {
        insta::allow_duplicates! {
            insta::assert_snapshot!(refused(run(&tree, "make", &site, "A2-4Q"), StepKind::Failed), @"0000:c8:00.4: A2-4Q c2177883-f1bb-47f0-914d-32a22e3a8804 was made, and no driver of VFIO has taken it within 0.6 s");
        }
    }
    drop(kernel);
    assert!(run(&tree, "remove", &site, "A2-4Q").is_err(), "the kernel has stopped answering");
}

/// One that is going away takes a moment to be counted as available again.
#[test]
fn what_is_available_is_read_anew_until_it_is() {
    let (tree, root) = parent();
    let left = root.join(format!("sys/bus/pci/devices/{VF}/mdev_supported_types/nvidia-746/available_instances"));
    std::fs::write(&left, "0\n").unwrap();
    let site = format!("{VF}/{UUID}");
    insta::assert_snapshot!(refused(run(&tree, "make", &site, "A2-4Q"), StepKind::Failed), @"0000:c8:00.4 makes no A2-4Q: none is available");
    let (mut kernel, mut looks) = (answer(root), 0);
    let kernel = Kernel::new(move || {
        looks += 1;
        if looks == 10 {
            std::fs::write(&left, "1\n").unwrap();
        }
        kernel();
    });
    assert_eq!(run(&tree, "make", &site, "A2-4Q"), Ok(vec![format!("{UUID} > create")]));
    drop(kernel);
}

#[test]
fn types_without_names_are_waited_for() {
    let (tree, root) = parent();
    let types = root.join(format!("sys/bus/pci/devices/{VF}/mdev_supported_types/nvidia-746"));
    std::fs::remove_file(types.join("name")).unwrap();
    let site = format!("{VF}/{UUID}");
    let text = refused(run(&tree, "make", &site, "A2-4Q"), StepKind::Failed);
    assert_eq!(text, format!("{VF} does not offer A2-4Q: it offers no type at all"));
    let (mut kernel, mut looks) = (answer(root), 0);
    let kernel = Kernel::new(move || {
        looks += 1;
        if looks == 40 {
            std::fs::write(types.join("name"), "NVIDIA A2-4Q\n").unwrap();
        }
        kernel();
    });
    assert_eq!(run(&tree, "make", &site, "A2-4Q"), Ok(vec![format!("{UUID} > create")]));
    drop(kernel);
}

#[test]
fn a_parent_that_makes_none_is_told() {
    let (tree, _) = parent();
    let site = format!("{VF}/{UUID}");
    insta::assert_snapshot!(refused(run(&tree, "make", &site, "A2-4Q"), StepKind::Failed), @"0000:c8:00.4: A2-4Q c2177883-f1bb-47f0-914d-32a22e3a8804 has not come within 0.6 s");
    assert_eq!(at(VF).function, 4);
    insta::assert_snapshot!(refused(run(&tree, "make", &site, "A2-16Q"), StepKind::Failed), @"0000:c8:00.4 does not offer A2-16Q: it offers A2-4Q");
    tree.attribute(VF, "mdev_supported_types/nvidia-746/available_instances", "0\n");
    std::fs::remove_file(tree.path(&format!("sys/bus/pci/devices/{VF}/mdev_supported_types/nvidia-746/create")))
        .unwrap();
    insta::assert_snapshot!(refused(run(&tree, "make", &site, "A2-4Q"), StepKind::Failed), @"0000:c8:00.4 makes no A2-4Q: none is available");
}
