//! Who has a card open: a search through the open files of all processes, bounded in time and number.
//!
//! | node | belongs to |
//! |---|---|
//! | `/dev/nvidiaN` | the card whose minor is N, by NVML or the driver's `/proc/driver/nvidia` |
//! | `/dev/dri/cardN`, `/dev/dri/renderDN` | the card with this name in its `drm` folder |
//! | `/dev/vfio/N` | every card of IOMMU group N |
//! | `/dev/vfio/devices/vfioN` | the card with this name in its `vfio-dev` folder |
//!
//! Nodes that are nobody's in particular (`/dev/nvidiactl`, `/dev/nvidia-uvm`) hold the driver and no card.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::files::Files;
use crate::model::card::{Card, Holder};
use crate::model::gpu::PciAddress;

/// The whole search. A claim wants its answer within two seconds.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Open files that are looked at; a busy host has some hundred thousand.
const MAX_FILES: usize = 2_000_000;

/// More processes than a kernel has by default.
const MAX_PROCESSES: usize = 4_194_304;

/// Nodes of one kind that a card may have.
const MAX_NODES: usize = 64;

/// A command line of QEMU has some KiB.
const MAX_COMMAND_LINE: usize = 256 << 10;

/// What the search came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Search {
    /// Why there may be more holders, where it is so.
    pub(super) incomplete: Option<String>,
}

/// Fills in the holders of all cards.
pub(super) fn search(files: &Files, cards: &mut [Card]) -> Search {
    let mut nodes: HashMap<String, Vec<usize>> = HashMap::new();
    for (index, card) in cards.iter().enumerate() {
        for node in nodes_of(files, card) {
            nodes.entry(node).or_default().push(index);
        }
    }
    if nodes.is_empty() {
        return Search::default();
    }
    let begin = Instant::now();
    let (mut seen, mut denied) = (0_usize, 0_usize);
    let mut incomplete = None;
    let pids = files.names("proc", MAX_PROCESSES).unwrap_or_default();
    for pid in pids.iter().filter_map(|name| name.parse::<u32>().ok()) {
        let entries = match std::fs::read_dir(files.path(&format!("proc/{pid}/fd"))) {
            Ok(entries) => entries,
            Err(error) => {
                // A process that ended meanwhile holds nothing.
                denied += usize::from(error.kind() == std::io::ErrorKind::PermissionDenied);
                continue;
            }
        };
        for entry in entries.filter_map(Result::ok) {
            seen += 1;
            let Ok(target) = std::fs::read_link(entry.path()) else { continue };
            let Some(target) = target.to_str() else { continue };
            for index in nodes.get(target).into_iter().flatten() {
                let holder = holder(files, pid, target);
                if let Some(card) = cards.get_mut(*index).filter(|card| !card.holders.contains(&holder)) {
                    card.holders.push(holder);
                }
            }
        }
        if seen > MAX_FILES || begin.elapsed() > PATIENCE {
            incomplete = Some(format!("the search for holders was given up after {seen} open files"));
            break;
        }
    }
    if denied > 0 {
        incomplete.get_or_insert(format!("{denied} processes may not be looked into (not allowed)"));
    }
    for card in cards.iter_mut() {
        card.holders.sort();
    }
    // A card without nodes is held by nobody, whoever could not be looked into.
    for index in nodes.values().flatten().filter(|_| incomplete.is_some()) {
        if let Some(card) = cards.get_mut(*index) {
            card.is_holders_complete = false;
        }
    }
    Search { incomplete }
}

/// The device nodes by which a card is held.
fn nodes_of(files: &Files, card: &Card) -> Vec<String> {
    let device = format!("sys/bus/pci/devices/{}", card.address);
    let children = |folder: &str, prefixes: &[&str]| {
        let names = files.names(&format!("{device}/{folder}"), MAX_NODES).unwrap_or_default();
        let is_node = |name: &String| prefixes.iter().any(|prefix| name.starts_with(prefix)) && !name.contains('-');
        names.into_iter().filter(is_node).collect::<Vec<_>>()
    };
    let mut nodes = Vec::new();
    if let Some(minor) = card.nvml.as_ref().and_then(|nvml| nvml.minor).or_else(|| nvidia_minor(files, card.address)) {
        nodes.push(format!("/dev/nvidia{minor}"));
    }
    nodes.extend(children("drm", &["card", "renderD"]).into_iter().map(|name| format!("/dev/dri/{name}")));
    nodes.extend(children("vfio-dev", &["vfio"]).into_iter().map(|name| format!("/dev/vfio/devices/{name}")));
    // The group's node is there only under VFIO; that of a free group costs nothing to look for.
    nodes.extend(card.iommu.as_ref().map(|group| format!("/dev/vfio/{}", group.number)));
    nodes
}

/// The number in `/dev/nvidiaN` as the driver tells it.
pub(super) fn nvidia_minor(files: &Files, address: PciAddress) -> Option<u32> {
    let text = files.text(&format!("proc/driver/nvidia/gpus/{address}/information"))?;
    text.lines().find_map(|line| line.strip_prefix("Device Minor:"))?.trim().parse().ok()
}

fn holder(files: &Files, pid: u32, device: &str) -> Holder {
    let comm = files.text(&format!("proc/{pid}/comm")).unwrap_or_default();
    let domain = device.starts_with("/dev/vfio/").then(|| domain_of(files, pid)).flatten();
    Holder { pid, comm: if comm.is_empty() { "unknown".to_owned() } else { comm }, device: device.to_owned(), domain }
}

/// The name that libvirt gives to QEMU: `-name guest=NAME,debug-threads=on`.
fn domain_of(files: &Files, pid: u32) -> Option<String> {
    let line = files.start(&format!("proc/{pid}/cmdline"), MAX_COMMAND_LINE)?;
    let mut arguments = line.split(|byte| *byte == 0).filter_map(|argument| std::str::from_utf8(argument).ok());
    arguments.find(|argument| *argument == "-name")?;
    let name = arguments.next()?.split(',').find_map(|part| part.strip_prefix("guest="))?;
    (!name.is_empty()).then(|| name.to_owned())
}
