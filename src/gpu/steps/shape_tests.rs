//! Virtual functions on trees of plain files. What the kernel would do behind a write is done when the step says that it
//! has written.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::{Progress, StepKind};
use super::*;
use crate::gpu::tree_tests::{Tree, at};

const CARD: &str = "0000:c8:00.0";
const NVIDIA: &str = "10de:26b9";

/// Of so many functions this one gets no driver by itself.
#[derive(Clone, Copy)]
enum Driver {
    All,
    NotFor(u32),
    Never,
}

/// The kernel behind a card's `sriov_numvfs`.
struct Kernel {
    root: PathBuf,
    ids: &'static str,
    driver: Driver,
}

fn vf(number: u32) -> String {
    format!("0000:c8:{:02x}.{}", (number + 4) / 8, (number + 4) % 8)
}

fn device(root: &Path, address: &str) -> PathBuf {
    root.join("sys/bus/pci/devices").join(address)
}

fn give_driver(root: &Path, address: &str) {
    std::os::unix::fs::symlink("../../../bus/pci/drivers/nvidia", device(root, address).join("driver")).unwrap();
}

impl Kernel {
    fn new(tree: &Tree, driver: Driver) -> Self {
        Self { root: tree.path(""), ids: NVIDIA, driver }
    }

    fn wrote(&self, file: &str) {
        if !file.ends_with("sriov_numvfs") {
            return;
        }
        let count: u32 = std::fs::read_to_string(self.root.join(file)).unwrap().trim().parse().unwrap();
        let there = (0..).take_while(|number| device(&self.root, &vf(*number)).exists()).count();
        // Without a way over zero the kernel answers EBUSY.
        assert!(count == 0 || there == 0, "{there} functions are on while {count} are asked for");
        for number in 0..u32::try_from(there).unwrap() {
            std::fs::remove_dir_all(device(&self.root, &vf(number))).unwrap();
            std::fs::remove_file(device(&self.root, CARD).join(format!("virtfn{number}"))).unwrap();
        }
        (0..count).for_each(|number| self.make(number));
    }

    fn make(&self, number: u32) {
        let (address, folder) = (vf(number), device(&self.root, &vf(number)));
        let (vendor, id) = self.ids.split_once(':').unwrap();
        std::fs::create_dir_all(&folder).unwrap();
        for (name, text) in [("vendor", vendor), ("device", id), ("class", "030200")] {
            std::fs::write(folder.join(name), format!("0x{text}\n")).unwrap();
        }
        std::os::unix::fs::symlink(format!("../{CARD}"), folder.join("physfn")).unwrap();
        let link = device(&self.root, CARD).join(format!("virtfn{number}"));
        std::os::unix::fs::symlink(format!("../{address}"), link).unwrap();
        match self.driver {
            Driver::NotFor(late) if late == number => {}
            Driver::Never => {}
            Driver::All | Driver::NotFor(_) => give_driver(&self.root, &address),
        }
    }
}

fn card(driver: &str) -> Tree {
    let tree = Tree::new();
    tree.device(CARD, NVIDIA, 0x03_0200, Some(driver));
    tree.attribute(CARD, "sriov_totalvfs", "6\n").attribute(CARD, "sriov_numvfs", "0\n");
    tree
}

/// What it wrote and ran, or why not.
fn run(tree: &Tree, kernel: &Kernel, count: Option<u32>) -> Result<Vec<String>, (StepKind, String)> {
    let mut did = Vec::new();
    let mut tell = |progress: &Progress| match progress {
        Progress::Write { file, value, .. } => did.push(format!("{value} > {}", file.rsplit('/').next().unwrap())),
        Progress::Run { program, .. } => did.push(program.clone()),
        Progress::Wrote { file, .. } => kernel.wrote(file),
        _ => {}
    };
    let mut steps = Steps::new(&tree.path(""), Duration::from_millis(400), &mut tell);
    let done = steps.run_shape(&ShapeJob::Functions { card: at(CARD), count }, None);
    done.map(|()| did).map_err(|error| (error.kind, error.text))
}

fn refused(outcome: Result<Vec<String>, (StepKind, String)>, kind: StepKind) -> String {
    let (told, text) = outcome.unwrap_err();
    assert_eq!(told, kind, "{text}");
    text
}

fn functions(tree: &Tree) -> usize {
    (0..).take_while(|number| device(&tree.path(""), &vf(*number)).exists()).count()
}

fn wrote(values: &[&str]) -> Result<Vec<String>, (StepKind, String)> {
    Ok(values.iter().map(|value| format!("{value} > sriov_numvfs")).collect())
}

#[test]
fn as_many_functions_as_asked_for_come_and_go() {
    let tree = card("nvidia");
    let kernel = Kernel::new(&tree, Driver::All);
    assert_eq!(run(&tree, &kernel, Some(2)), wrote(&["2"]));
    assert_eq!(run(&tree, &kernel, Some(2)), wrote(&[]), "as wished already");
    assert_eq!(run(&tree, &kernel, Some(4)), wrote(&["0", "4"]), "the kernel takes no other number before 0");
    assert_eq!(run(&tree, &kernel, None), wrote(&["0", "6"]), "all that it has");
    assert_eq!((run(&tree, &kernel, Some(0)), functions(&tree)), (wrote(&["0"]), 0));
    assert_eq!(run(&tree, &kernel, Some(0)), wrote(&[]));
}

#[test]
fn what_a_card_does_not_have_is_refused() {
    let tree = card("nvidia");
    let kernel = Kernel::new(&tree, Driver::All);
    insta::assert_snapshot!(refused(run(&tree, &kernel, Some(7)), StepKind::Refused), @"0000:c8:00.0 has 6 virtual functions");
    for junk in ["0\n", "many\n", ""] {
        tree.attribute(CARD, "sriov_totalvfs", junk);
        insta::allow_duplicates! {
            insta::assert_snapshot!(refused(run(&tree, &kernel, None), StepKind::Refused), @"0000:c8:00.0 has no virtual functions");
        }
    }
    std::fs::remove_file(tree.path(&format!("sys/bus/pci/devices/{CARD}"))).unwrap();
    insta::assert_snapshot!(refused(run(&tree, &kernel, Some(1)), StepKind::Refused), @"there is no PCI device at 0000:c8:00.0");
}

/// A function that is taken away with a vGPU on it blocks in the kernel.
#[test]
fn functions_with_vgpus_are_left_alone() {
    let tree = card("nvidia");
    let kernel = Kernel::new(&tree, Driver::All);
    run(&tree, &kernel, Some(2)).unwrap();
    tree.attribute(&vf(1), "nvidia/creatable_vgpu_types", "ID : vGPU Name\n1519 : NVIDIA EX-3Q\n");
    tree.attribute(&vf(1), "nvidia/current_vgpu_type", "1519\n");
    for count in [Some(0), Some(4), None] {
        insta::allow_duplicates! {
            insta::assert_snapshot!(refused(run(&tree, &kernel, count), StepKind::Refused), @"0000:c8:00.5 carries a vGPU (EX-3Q), so 0000:c8:00.0 is left as it is");
        }
    }
    assert_eq!((functions(&tree), run(&tree, &kernel, Some(2))), (2, wrote(&[])), "and nothing is to be done for 2");
    tree.attribute(&vf(1), "nvidia/creatable_vgpu_types", "ID : vGPU Name\n");
    insta::assert_snapshot!(refused(run(&tree, &kernel, Some(0)), StepKind::Refused), @"0000:c8:00.5 carries a vGPU (type 1519), so 0000:c8:00.0 is left as it is");
}

#[test]
fn what_somebody_has_open_is_left_alone() {
    let tree = card("nvidia");
    let kernel = Kernel::new(&tree, Driver::All);
    run(&tree, &kernel, Some(2)).unwrap();
    tree.attribute(&vf(0), "vfio-dev/vfio7/x", "");
    tree.holder(812, "qemu-system-x86", &["/dev/vfio/devices/vfio7"], "qemu -name guest=gvm-a");
    insta::assert_snapshot!(refused(run(&tree, &kernel, Some(0)), StepKind::Refused), @"0000:c8:00.0 is in use: pid 812 (qemu-system-x86, domain gvm-a) has /dev/vfio/devices/vfio7 open");
    std::fs::remove_dir_all(tree.path("proc")).unwrap();
    tree.write(&format!("proc/driver/nvidia/gpus/{CARD}/information"), "Model: X\nDevice Minor: \t 3\n");
    tree.holder(99, "dcgm-exporter", &["/dev/nvidia3"], "dcgm-exporter");
    insta::assert_snapshot!(refused(run(&tree, &kernel, None), StepKind::Refused), @"0000:c8:00.0 is in use: pid 99 (dcgm-exporter) has /dev/nvidia3 open");
    assert_eq!(functions(&tree), 2);
}

/// NVIDIA's script as far as it matters here: it makes or removes six functions with a driver each.
fn script(tree: &Tree, body: &str) {
    let devices = tree.path("sys/bus/pci/devices");
    let path = tree.path(SRIOV_MANAGE);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let text = format!("#!/bin/sh\nset -e\ncd {}\ncard={CARD}\n{body}\n", devices.display());
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// A file that was just written cannot be run as long as another test's child has it open from its fork.
fn run_script(tree: &Tree, count: Option<u32>) -> Result<Vec<String>, (StepKind, String)> {
    let kernel = Kernel::new(tree, Driver::All);
    for _ in 0..50 {
        match run(tree, &kernel, count) {
            Err((_, text)) if text.contains("Text file busy") => std::thread::sleep(Duration::from_millis(20)),
            other => return other,
        }
    }
    panic!("the script stays busy");
}

const MANAGE: &str = r#"
case "$1 $2" in
"-e $card")
  for n in 0 1 2 3; do f=0000:c8:00.$((n + 4)); mkdir -p $f; ln -s ../../../bus/pci/drivers/nvidia $f/driver; ln -s ../$f $card/virtfn$n; done
  for n in 4 5; do f=0000:c8:01.$((n - 4)); mkdir -p $f; ln -s ../../../bus/pci/drivers/nvidia $f/driver; ln -s ../$f $card/virtfn$n; done
  echo 6 >$card/sriov_numvfs ;;
"-d $card") rm -rf $card/virtfn* 0000:c8:00.[4-7] 0000:c8:01.*; echo 0 >$card/sriov_numvfs ;;
*) echo "unknown: $*" >&2; exit 9 ;;
esac"#;

/// As long as NVIDIA's driver has the card, only its own script can switch functions on.
#[test]
fn sriov_manage_is_preferred_where_it_is_there() {
    let tree = card("nvidia");
    script(&tree, MANAGE);
    assert_eq!(run_script(&tree, None), Ok(vec![format!("sriov-manage -e {CARD}")]));
    assert_eq!((functions(&tree), run_script(&tree, Some(6))), (6, wrote(&[])));
    // It knows all or nothing.
    assert_eq!(run_script(&tree, Some(2)), wrote(&["0", "2"]));
    assert_eq!(run_script(&tree, Some(0)), Ok(vec![format!("sriov-manage -d {CARD}")]));
    assert_eq!(functions(&tree), 0);
    // It is for its own driver.
    let other = card("pci-pf-stub");
    script(&other, MANAGE);
    assert_eq!(run_script(&other, None), wrote(&["6"]));
}

#[test]
fn a_script_that_fails_says_why() {
    let tree = card("nvidia");
    script(&tree, "echo first >&2; echo \"$card is in use\" >&2; exit 3");
    insta::assert_snapshot!(refused(run_script(&tree, None), StepKind::Failed), @"0000:c8:00.0: sriov-manage -e 0000:c8:00.0: exit status: 3 (0000:c8:00.0 is in use)");
    script(&tree, "echo told; exit 1");
    insta::assert_snapshot!(refused(run_script(&tree, None), StepKind::Failed), @"0000:c8:00.0: sriov-manage -e 0000:c8:00.0: exit status: 1 (told)");
    script(&tree, "exit 1");
    insta::assert_snapshot!(refused(run_script(&tree, None), StepKind::Failed), @"0000:c8:00.0: sriov-manage -e 0000:c8:00.0: exit status: 1 (it does not say why)");
    // One that says it is done and has done nothing.
    script(&tree, "exit 0");
    insta::assert_snapshot!(refused(run_script(&tree, None), StepKind::Failed), @"0000:c8:00.0: of 6 virtual functions 0 have come within 0.4 s, and 0 of them have a driver");
}

/// Drivers come to functions one after the other; sixteen took fifteen seconds.
#[test]
fn late_drivers_are_waited_for() {
    let tree = card("nvidia");
    let kernel = Kernel::new(&tree, Driver::Never);
    let root = tree.path("");
    let late = std::thread::spawn(move || {
        for number in 0..3 {
            while !device(&root, &vf(number)).join("physfn").exists() {
                std::thread::sleep(Duration::from_millis(2));
            }
            std::thread::sleep(Duration::from_millis(30));
            give_driver(&root, &vf(number));
        }
    });
    assert_eq!(run(&tree, &kernel, Some(3)), wrote(&["3"]));
    late.join().unwrap();
}

/// A function that never comes to a driver is named; a second try does not begin anew.
#[test]
fn a_function_that_never_binds_is_named() {
    let tree = card("nvidia");
    let kernel = Kernel::new(&tree, Driver::NotFor(4));
    insta::assert_snapshot!(refused(run(&tree, &kernel, None), StepKind::Failed), @"0000:c8:00.0: of 6 virtual functions 6 have come within 0.4 s, and 5 of them have a driver; 0000:c8:01.0 is without a driver");
    insta::assert_snapshot!(refused(run(&tree, &kernel, None), StepKind::Failed), @"0000:c8:00.0: of 6 virtual functions 6 have come within 0.4 s, and 5 of them have a driver; 0000:c8:01.0 is without a driver");
    give_driver(&tree.path(""), &vf(4));
    assert_eq!(run(&tree, &kernel, None), wrote(&[]));
}

#[test]
fn a_function_that_does_not_show_is_counted() {
    let tree = card("nvidia");
    let kernel = Kernel::new(&tree, Driver::All);
    run(&tree, &kernel, Some(3)).unwrap();
    std::fs::remove_file(tree.path(&format!("sys/bus/pci/devices/{CARD}/virtfn2"))).unwrap();
    insta::assert_snapshot!(refused(run(&tree, &kernel, Some(3)), StepKind::Failed), @"0000:c8:00.0: of 3 virtual functions 2 have come within 0.4 s, and 2 of them have a driver");
}

/// Those of other makers go to VFIO, and no driver of the host's need have them.
#[test]
fn functions_of_other_makers_need_no_driver() {
    let tree = Tree::new();
    tree.device(CARD, "1002:74a1", 0x12_0000, Some("gim"));
    tree.attribute(CARD, "sriov_totalvfs", "8\n").attribute(CARD, "sriov_numvfs", "0\n");
    let kernel = Kernel { ids: "1002:74b5", ..Kernel::new(&tree, Driver::Never) };
    assert_eq!((run(&tree, &kernel, None), functions(&tree)), (wrote(&["8"]), 8));
}

/// The kernel says no: it is told with its word for it.
#[test]
fn a_write_that_is_refused_is_told() {
    let tree = card("nvidia");
    let file = tree.path(&format!("sys/bus/pci/devices/{CARD}/sriov_numvfs"));
    std::fs::remove_file(&file).unwrap();
    let text = refused(run(&tree, &Kernel::new(&tree, Driver::All), Some(2)), StepKind::Failed);
    assert!(
        text.contains("writing 2 to /sys/bus/pci/devices/0000:c8:00.0/sriov_numvfs: ") && text.contains("ENOENT"),
        "{text}"
    );
}
