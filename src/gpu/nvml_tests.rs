//! NVML by a library of our own (`tests/fixtures/nvml/mock.c`), which the C compiler that our dependencies need anyway
//! turns into one with the faults that a test asks for; and by files that are no such library.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::*;
use crate::gpu::tree_tests::{Tree, at};
use crate::gpu::{GpuOptions, HostGpus};
use crate::model::card::{CardFindingKind, Health, MemorySource};

const PATIENCE: Duration = Duration::from_millis(500);

fn build(folder: &Path, switches: &[&str]) -> PathBuf {
    let library = folder.join("libmock.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/nvml/mock.c");
    let out = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-o"])
        .arg(&library)
        .args(switches)
        .arg(source)
        .output()
        .expect("the C compiler cc, which the build needs as well");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    library
}

/// What a library with these faults answers.
fn ask(switches: &[&str]) -> Answer {
    let folder = tempfile::tempdir().unwrap();
    NvmlReader::new(Some(build(folder.path(), switches)), PATIENCE).read()
}

fn why(answer: &Answer) -> &str {
    match &answer.status {
        NvmlStatus::Failed { why } => why,
        status => panic!("{status:?}"),
    }
}

#[test]
fn facts_come_from_the_library() {
    let answer = ask(&[]);
    assert_eq!(answer.status, NvmlStatus::Ready { driver: Some("580.95.05".to_owned()) });
    let [first, second, third] = answer.cards.as_slice() else { panic!("{answer:?}") };
    assert_eq!((first.address, second.address), (at("0000:41:00.0"), at("0001:c8:00.0")));
    assert_eq!((first.uuid.as_deref(), first.minor), (Some("GPU-00000000"), Some(4)));
    assert_eq!((first.memory, first.is_persistent), (Some(Mib(81_920)), Some(true)));
    assert_eq!(second.mig, Some(MigFacts { is_on_pending: true, ..MigFacts::default() }));
    assert_eq!((third.mig.clone(), third.faults.len()), (None, 0), "a card without MIG has no fault");
}

#[test]
fn an_absent_or_wrong_library_is_a_fact() {
    let folder = tempfile::tempdir().unwrap();
    let read = |path: PathBuf| NvmlReader::new(Some(path), PATIENCE).read();
    assert!(why(&read(folder.path().join("none.so"))).starts_with("NVML cannot be loaded: "));
    let text = folder.path().join("text.so");
    std::fs::write(&text, "no library").unwrap();
    assert!(why(&read(text)).starts_with("NVML cannot be loaded: "));
    let empty = folder.path().join("empty.c");
    std::fs::write(&empty, "int x;").unwrap();
    let library = folder.path().join("empty.so");
    assert!(Command::new("cc").arg("-shared").arg("-o").arg(&library).arg(&empty).status().unwrap().success());
    assert!(why(&read(library)).starts_with("this is no NVML that gvm can use: "));
}

#[test]
fn errors_of_initialising_are_told_in_words() {
    assert_eq!(why(&ask(&["-DINIT=9"])), "the NVIDIA driver is not loaded");
    assert_eq!(why(&ask(&["-DINIT=18"])), "NVML and the NVIDIA driver are of different versions");
    assert!(!why(&ask(&["-DINIT=999"])).is_empty());
}

#[test]
fn an_old_library_tells_what_it_can() {
    let answer = ask(&["-DOLD"]);
    assert_eq!(answer.cards.len(), 3);
    assert_eq!((answer.cards[0].memory, answer.cards[0].mig.clone(), answer.cards[0].faults.len()), (None, None, 0));
}

#[test]
fn a_card_that_is_lost_in_the_middle_spoils_no_other() {
    let answer = ask(&["-DLOST=1"]);
    assert!(matches!(answer.status, NvmlStatus::Ready { .. }));
    assert_eq!(answer.cards[1].faults[0], "name: the card has fallen off the bus");
    assert_eq!(answer.cards[2].memory, Some(Mib(81_920)));
    let answer = ask(&["-DGONE=1"]);
    assert_eq!(
        (answer.cards.len(), answer.faults.as_slice()),
        (2, ["card 1 of NVML: the card has fallen off the bus".to_owned()].as_slice())
    );
}

#[test]
fn a_call_that_hangs_costs_its_deadline_once() {
    // The library stays loaded: its folder must outlive the thread that hangs in it.
    let folder = tempfile::tempdir().unwrap().keep();
    let reader = NvmlReader::new(Some(build(&folder, &["-DHANG=1"])), PATIENCE);
    let begin = Instant::now();
    let answer = reader.read();
    assert!(begin.elapsed() >= PATIENCE);
    let expected = "NVML did not answer within 0.5 s: asking for the memory of card 1 (0001:c8:00.0)";
    assert_eq!((why(&answer), answer.cards.len()), (expected, 1));
    let begin = Instant::now();
    assert!(why(&reader.read()).starts_with("NVML does not answer: an earlier call has not come back for "));
    assert!(begin.elapsed() < PATIENCE, "nobody waits for the same fault twice");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_whole_look_joins_the_library_with_the_kernel() {
    let tree = Tree::new();
    for (address, group) in [("0000:41:00.0", 1), ("0001:c8:00.0", 2)] {
        tree.device(address, "10de:20b5", 0x03_0200, Some("nvidia")).group(group, &[address]);
    }
    tree.device("0000:42:00.0", "10de:20b5", 0x03_0200, Some("vfio-pci")).group(3, &["0000:42:00.0"]);
    tree.holder(812, "dcgm-exporter", &["/dev/nvidia4"], "dcgm-exporter");
    let library = build(tree.root(), &[]);
    let options = GpuOptions { nvml: Some(library), nvml_patience: PATIENCE, ..tree.options() };
    let found = HostGpus::new(options).look();
    let kinds: Vec<CardFindingKind> = found.findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [CardFindingKind::NvmlUnmatched]);
    let card = found.card(at("0000:41:00.0")).unwrap();
    assert_eq!((card.id().0.as_str(), card.health.clone()), ("GPU-00000000", Health::Ok));
    assert_eq!(card.memory.map(|memory| memory.source), Some(MemorySource::Nvml));
    let words: Vec<&str> = card.blockers.iter().map(|blocker| blocker.text.as_str()).collect();
    assert_eq!(words[0], "pid 812 (dcgm-exporter) has /dev/nvidia4 open");
    assert!(words[1].starts_with("persistence mode is on"));
    let other = found.card(at("0001:c8:00.0")).unwrap();
    assert_eq!(other.blockers[0].text, "MIG is off and turns on with the next reset");
    // Under VFIO nobody can be asked, and the card is no other for that.
    let third = found.card(at("0000:42:00.0")).unwrap();
    assert_eq!((third.model.as_str(), third.nvml.is_none()), ("NVIDIA A100 80GB PCIe", true));
    assert!(third.blockers.is_empty(), "{:?}", third.blockers);
}

#[test]
fn without_the_library_the_kernels_facts_stay() {
    let tree = Tree::new();
    tree.device("0000:41:00.0", "10de:20b5", 0x03_0200, Some("nvidia")).group(1, &["0000:41:00.0"]);
    let found = tree.look();
    assert_eq!(found.findings[0].kind, CardFindingKind::NvmlFailed);
    let card = &found.cards[0];
    assert_eq!((card.memory.map(|memory| memory.size), &card.health), (Some(Mib(81_920)), &Health::Ok));
}
