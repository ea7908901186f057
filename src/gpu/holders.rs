//! Who has a card open: a search through the open files of all processes, bounded in time and number.
//!
//! | node | belongs to |
//! |---|---|
//! | `/dev/nvidiaN` | the card whose minor is N, by NVML or the driver's `/proc/driver/nvidia` |
//! | `/dev/dri/cardN`, `/dev/dri/renderDN` | the card with this name in its `drm` folder |
//! | `/dev/snd/...` | the audio function with these names in its `sound` folder |
//! | `/dev/vfio/N` | every card of IOMMU group N |
//! | `/dev/vfio/devices/vfioN` | the card with this name in its `vfio-dev` folder |
//!
//! A mediated device has a group and a node of its own, and belongs to the card that carries it as well.
//!
//! Nodes that are nobody's in particular (`/dev/nvidiactl`, `/dev/nvidia-uvm`) hold the driver and no card.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::files::Files;
use crate::model::card::{Card, Holder};
use crate::model::gpu::PciAddress;

/// The whole search. A claim wants its answer within two seconds.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Open files that are looked at; a busy host has some hundred thousand.
const MAX_FILES: usize = 2_000_000;

/// More processes than a kernel has by default.
const MAX_PROCESSES: usize = 4_194_304;

/// As the kernel writes the name of a mediated device.
const UUID_LENGTH: usize = 36;

/// Where all mediated devices are.
const MDEVS: &str = "sys/bus/mdev/devices";

/// Nodes of one kind that a card may have.
const MAX_NODES: usize = 64;

/// Entries of a device's folder: its files, and its mediated devices.
const MAX_ENTRIES: usize = 4096;

/// A command line of QEMU has some KiB.
const MAX_COMMAND_LINE: usize = 256 << 10;

/// What the search came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Search {
    /// Who was found: the number that its node stands for, and the holder.
    pub(super) found: Vec<(usize, Holder)>,
    /// Why there may be more holders, where it is so.
    pub(super) incomplete: Option<String>,
}

/// Nodes to look for, each with the numbers of what it belongs to.
#[derive(Debug, Default)]
pub(super) struct Nodes(HashMap<String, Vec<usize>>);

impl Nodes {
    pub(super) fn add(&mut self, owner: usize, nodes: impl IntoIterator<Item = String>) {
        for node in nodes {
            self.0.entry(node).or_default().push(owner);
        }
    }

    /// Those by which VFIO gives it away.
    pub(super) fn add_vfio(&mut self, owner: usize, files: &Files, address: PciAddress, group: Option<u32>) {
        let all = nodes_of(files, address, group, None);
        self.add(owner, all.into_iter().filter(|node| node.starts_with("/dev/vfio/")));
    }

    /// Those of a mediated device.
    pub(super) fn add_mdev(&mut self, owner: usize, files: &Files, uuid: Uuid) {
        self.add(owner, nodes_of_mdev(files, &format!("{MDEVS}/{uuid}")));
    }

    /// Those of a function: its own and, where it has one, its group's.
    pub(super) fn add_function(&mut self, owner: usize, files: &Files, address: PciAddress, group: Option<u32>) {
        self.add(owner, nodes_of(files, address, group, nvidia_minor(files, address)));
    }
}

/// Fills in the holders of all cards.
pub(super) fn search(files: &Files, cards: &mut [Card]) -> Search {
    let mut nodes = Nodes::default();
    for (index, card) in cards.iter().enumerate() {
        let minor = card.nvml.as_ref().and_then(|nvml| nvml.minor).or_else(|| nvidia_minor(files, card.address));
        let group = card.iommu.as_ref().map(|group| group.number);
        nodes.add(index, nodes_of(files, card.address, group, minor));
    }
    let search = look_for(files, &nodes);
    for (index, holder) in &search.found {
        if let Some(card) = cards.get_mut(*index) {
            card.holders.push(holder.clone());
        }
    }
    for card in cards.iter_mut() {
        card.holders.sort();
    }
    // A card without nodes is held by nobody, whoever could not be looked into.
    for index in nodes.0.values().flatten().filter(|_| search.incomplete.is_some()) {
        if let Some(card) = cards.get_mut(*index) {
            card.is_holders_complete = false;
        }
    }
    search
}

/// Looks through the open files of all processes.
pub(super) fn look_for(files: &Files, nodes: &Nodes) -> Search {
    let mut search = Search::default();
    if nodes.0.is_empty() {
        return search;
    }
    let begin = Instant::now();
    let (mut seen, mut denied) = (0_usize, 0_usize);
    let pids = files.names("proc", MAX_PROCESSES).unwrap_or_default();
    for pid in pids.iter().filter_map(|name| name.parse::<u32>().ok()) {
        let entries = match std::fs::read_dir(files.path(&format!("proc/{pid}/fd"))) {
            Ok(entries) => entries,
            Err(error) => {
                // A process that ended meanwhile holds nothing.
                denied += usize::from(error.kind() == ErrorKind::PermissionDenied);
                continue;
            }
        };
        for entry in entries.filter_map(Result::ok) {
            seen += 1;
            let target = match std::fs::read_link(entry.path()) {
                Ok(target) => target,
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    // Root without CAP_SYS_PTRACE may list the numbers and not see what they stand for.
                    denied += 1;
                    break;
                }
                Err(_) => continue,
            };
            let Some(target) = target.to_str() else { continue };
            for owner in nodes.0.get(target).into_iter().flatten() {
                let one = (*owner, holder(files, pid, target));
                if !search.found.contains(&one) {
                    search.found.push(one);
                }
            }
        }
        if seen > MAX_FILES || begin.elapsed() > PATIENCE {
            search.incomplete = Some(format!("the search for holders was given up after {seen} open files"));
            break;
        }
    }
    if denied > 0 {
        search.incomplete.get_or_insert(format!("{denied} processes may not be looked into (not allowed)"));
    }
    search
}

fn nodes_of(files: &Files, address: PciAddress, group: Option<u32>, minor: Option<u32>) -> Vec<String> {
    let device = format!("sys/bus/pci/devices/{address}");
    let children = |folder: &str, prefixes: &[&str]| {
        let names = files.names(&format!("{device}/{folder}"), MAX_NODES).unwrap_or_default();
        let is_node = |name: &String| prefixes.iter().any(|prefix| name.starts_with(prefix)) && !name.contains('-');
        names.into_iter().filter(is_node).collect::<Vec<_>>()
    };
    let mut nodes = Vec::new();
    nodes.extend(minor.map(|minor| format!("/dev/nvidia{minor}")));
    nodes.extend(children("drm", &["card", "renderD"]).into_iter().map(|name| format!("/dev/dri/{name}")));
    for sound in children("sound", &["card"]) {
        let own = children(&format!("sound/{sound}"), &["control", "pcm", "hw"]);
        nodes.extend(own.into_iter().map(|name| format!("/dev/snd/{name}")));
    }
    nodes.extend(children("vfio-dev", &["vfio"]).into_iter().map(|name| format!("/dev/vfio/devices/{name}")));
    let inside = files.names(&device, MAX_ENTRIES).unwrap_or_default();
    for mdev in inside.iter().filter(|name| name.len() == UUID_LENGTH && Uuid::try_parse(name).is_ok()) {
        nodes.extend(nodes_of_mdev(files, &format!("{device}/{mdev}")));
    }
    // The group's node is there only under VFIO; that of a free group costs nothing to look for.
    nodes.extend(group.map(|number| format!("/dev/vfio/{number}")));
    nodes
}

/// Those of the mediated device whose folder this is: its own, and that of the group that the kernel makes for it alone.
fn nodes_of_mdev(files: &Files, folder: &str) -> Vec<String> {
    let own = files.names(&format!("{folder}/vfio-dev"), MAX_NODES).unwrap_or_default();
    let own = own.into_iter().filter(|name| name.starts_with("vfio")).map(|name| format!("/dev/vfio/devices/{name}"));
    let group = files.link_name(&format!("{folder}/iommu_group"));
    own.chain(group.map(|number| format!("/dev/vfio/{number}"))).collect()
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
