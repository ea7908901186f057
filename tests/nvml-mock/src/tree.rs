//! The kernel's files of the cards, made from the state.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crate::kinds::Family;
use crate::state::{Card, Framework, State};

/// What lies at a path below the root. Folders are there because something lies in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    Folder,
    /// Its content, and whether it can be written.
    File(Vec<u8>, bool),
    /// A file that is run.
    Program(Vec<u8>),
    Link(String),
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct Tree(pub BTreeMap<String, Node>);

const SRIOV_MANAGE: &str = r#"#!/bin/sh
# Stands for the program of NVIDIA's vGPU manager.
ctl=$(dirname "$0")/../../../ctl
printf '%s %s\n' "$1" "$2" 2>/dev/null >"$ctl/sriov-manage" || { cat "$ctl/said" >&2; exit 1; }
"#;
const NVIDIA_SMI: &str = r#"#!/bin/sh
# Stands for NVIDIA's program: --gpu-reset -i ADDRESS is all that it can.
ctl=$(dirname "$0")/../../ctl
[ "$1" = --gpu-reset ] && [ "$2" = -i ] || { echo "invalid combination of input arguments" >&2; exit 2; }
printf '%s\n' "$3" 2>/dev/null >"$ctl/reset" || { cat "$ctl/said" >&2; exit 1; }
"#;

/// Where the files of a device really lie.
pub fn real(address: &str) -> String {
    format!("sys/devices/pci{}/{address}", &address[..address.len() - 5])
}

impl Tree {
    pub fn of(state: &State) -> Self {
        let mut tree = Self::default();
        for folder in
            ["sys/bus/pci/devices", "sys/bus/mdev/devices", "sys/kernel/iommu_groups", "sys/class/iommu/dmar0"]
        {
            tree.folder(folder);
        }
        tree.file("sys/bus/pci/drivers_probe", "", true);
        for driver in ["nvidia", "vfio-pci", "pci-pf-stub"] {
            for name in ["bind", "unbind", "new_id"] {
                tree.file(&format!("sys/bus/pci/drivers/{driver}/{name}"), "", true);
            }
        }
        tree.add("usr/lib/nvidia/sriov-manage", Node::Program(SRIOV_MANAGE.into()));
        tree.add("usr/bin/nvidia-smi", Node::Program(NVIDIA_SMI.into()));
        tree.file("ctl/sriov-manage", "", true);
        tree.file("ctl/reset", "", true);
        tree.file("ctl/said", &format!("{}\n", state.said), false);
        for holder in &state.holders {
            let folder = format!("proc/{}", holder.pid);
            tree.file(&format!("{folder}/comm"), &format!("{}\n", holder.comm), false);
            tree.file(&format!("{folder}/cmdline"), &holder.comm, false);
            tree.add(&format!("{folder}/fd/3"), Node::Link(holder.node.clone()));
        }
        for (index, card) in state.cards.iter().enumerate() {
            tree.card(index, card);
        }
        tree
    }

    fn add(&mut self, path: &str, node: Node) {
        let mut from = 0;
        while let Some(at) = path[from..].find('/') {
            self.0.entry(path[..from + at].to_owned()).or_insert(Node::Folder);
            from += at + 1;
        }
        self.0.insert(path.to_owned(), node);
    }

    fn folder(&mut self, path: &str) {
        self.add(&format!("{path}/."), Node::Folder);
        self.0.remove(&format!("{path}/."));
    }

    fn file(&mut self, path: &str, content: &str, is_writable: bool) {
        self.add(path, Node::File(content.as_bytes().to_vec(), is_writable));
    }

    /// A link from one path below the root to another, as the kernel makes them: relative.
    fn link(&mut self, path: &str, target: &str) {
        let up = "../".repeat(path.matches('/').count());
        self.add(path, Node::Link(format!("{up}{target}")));
    }

    /// Lays it down as plain files, which do nothing when they are written.
    pub fn write_below(&self, root: &Path) -> io::Result<()> {
        for (path, node) in &self.0 {
            let path = root.join(path);
            match node {
                Node::Folder => std::fs::create_dir_all(path)?,
                Node::File(content, _) | Node::Program(content) => std::fs::write(path, content)?,
                Node::Link(target) => std::os::unix::fs::symlink(target, path)?,
            }
        }
        Ok(())
    }

    /// Names in a folder.
    pub fn names(&self, folder: &str) -> Vec<&str> {
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let below = self.0.range(prefix.clone()..).map(|(path, _)| path.as_str());
        let below = below.take_while(|path| path.starts_with(&prefix));
        below.map(|path| &path[prefix.len()..]).filter(|rest| !rest.contains('/')).collect()
    }

    fn card(&mut self, index: usize, card: &Card) {
        let kind = card.kind();
        let folder = real(&card.address);
        let group = 100 * (index as u32 + 1);
        self.device(&card.address, card, card.driver.as_deref(), &card.driver_override, group);
        self.file(&format!("{folder}/reset_method"), "flr bus\n", true);
        self.file(&format!("{folder}/current_link_speed"), "16.0 GT/s PCIe\n", false);
        self.file(&format!("{folder}/max_link_speed"), "16.0 GT/s PCIe\n", false);
        self.file(&format!("{folder}/current_link_width"), "16\n", false);
        self.file(&format!("{folder}/max_link_width"), "16\n", false);
        // The second BAR maps the memory, rounded up to a power of two.
        let size = (kind.memory_mib << 20).next_power_of_two();
        let window =
            format!("0x{:016x} 0x{:016x} 0x000000000014220c\n", 0x200_0000_0000_u64, 0x200_0000_0000 + size - 1);
        let unused = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n";
        let first = "0x00000000d0000000 0x00000000d0ffffff 0x0000000000040200\n";
        self.file(&format!("{folder}/resource"), &format!("{first}{window}{}", unused.repeat(11)), false);
        if kind.functions > 0 {
            self.file(&format!("{folder}/sriov_totalvfs"), &format!("{}\n", kind.functions), false);
            self.file(&format!("{folder}/sriov_numvfs"), &format!("{}\n", card.functions.len()), true);
        }
        if card.driver.as_deref() == Some("nvidia") {
            let text = format!(
                "Model: \t\t {}\nIRQ:   \t\t 64\nGPU UUID: \t {}\nBus Location: \t {}\nDevice Minor: \t {}\n",
                kind.name, card.uuid, card.address, card.minor
            );
            self.file(&format!("proc/driver/nvidia/gpus/{}/information", card.address), &text, false);
        }
        for (number, function) in card.functions.iter().enumerate() {
            let address = card.function_address(number);
            let driver = function.driver_now();
            self.device(&address, card, driver, &function.driver_override, group + number as u32 + 1);
            self.link(&format!("{folder}/virtfn{number}"), &real(&address));
            self.link(&format!("{}/physfn", real(&address)), &folder);
            if card.framework == Framework::Vendor && driver == Some("nvidia") {
                self.vendor(card, number, &real(&address));
            }
        }
        for parent in card.parents() {
            self.mediated(card, &parent, group);
        }
    }

    fn device(&mut self, address: &str, card: &Card, driver: Option<&str>, only: &str, group: u32) {
        let (kind, folder) = (card.kind(), real(address));
        let (vendor, board) = kind.subsystem;
        let class = if kind.family == Family::Turing && kind.functions > 0 { 0x03_0000 } else { 0x03_0200 };
        for (name, text) in [
            ("vendor", "0x10de\n".to_owned()),
            ("device", format!("0x{:04x}\n", kind.device)),
            ("class", format!("{class:#08x}\n")),
            ("subsystem_vendor", format!("0x{vendor:04x}\n")),
            ("subsystem_device", format!("0x{board:04x}\n")),
            ("revision", "0xa1\n".to_owned()),
            ("numa_node", "0\n".to_owned()),
            ("power_state", "D0\n".to_owned()),
        ] {
            self.file(&format!("{folder}/{name}"), &text, false);
        }
        let only = if only.is_empty() { "(null)" } else { only };
        self.file(&format!("{folder}/driver_override"), &format!("{only}\n"), true);
        let mut config = vec![if card.is_lost { 0xff } else { 0x10 }; 64];
        if address != card.address {
            // The numbers of a virtual function are its card's, and read all ones.
            config[..4].fill(0xff);
        }
        self.add(&format!("{folder}/config"), Node::File(config, false));
        self.link(&format!("sys/bus/pci/devices/{address}"), &folder);
        if let Some(driver) = driver {
            self.link(&format!("{folder}/driver"), &format!("sys/bus/pci/drivers/{driver}"));
            self.link(&format!("sys/bus/pci/drivers/{driver}/{address}"), &folder);
        }
        if driver == Some("vfio-pci") {
            self.folder(&format!("{folder}/vfio-dev/vfio{group}"));
        }
        self.link(&format!("{folder}/iommu_group"), &format!("sys/kernel/iommu_groups/{group}"));
        self.link(&format!("sys/kernel/iommu_groups/{group}/devices/{address}"), &folder);
    }

    /// Types written to virtual functions.
    fn vendor(&mut self, card: &Card, number: usize, folder: &str) {
        let function = &card.functions[number];
        let mut list = "ID    : vGPU Name\n".to_owned();
        if function.vgpu == 0 {
            for kind in card.creatable() {
                list.push_str(&format!("{:<5} : {}\n", kind.id, kind.name));
            }
        }
        let instance = function.instance.map_or_else(String::new, |id| id.to_string());
        self.file(&format!("{folder}/nvidia/creatable_vgpu_types"), &list, false);
        self.file(&format!("{folder}/nvidia/current_vgpu_type"), &format!("{}\n", function.vgpu), true);
        self.file(&format!("{folder}/nvidia/gpu_instance_id"), &format!("{instance}\n"), false);
        self.file(&format!("{folder}/nvidia/placement_id"), "0\n", false);
        self.file(&format!("{folder}/nvidia/vgpu_params"), "", true);
        // The driver gives the function to VFIO.
        self.folder(&format!("{folder}/vfio-dev/vfio{}", 500 + number));
    }

    /// Types of mediated devices.
    fn mediated(&mut self, card: &Card, parent: &str, group: u32) {
        let own = real(parent);
        for kind in &card.kind().types {
            let folder = format!("{own}/mdev_supported_types/nvidia-{}", kind.id);
            let description = format!(
                "num_heads=4, frl_config=60, framebuffer={}M, max_resolution=7680x4320, max_instance={}\n",
                kind.memory_gib << 10,
                kind.most
            );
            self.file(&format!("{folder}/name"), &format!("{}\n", kind.name), false);
            let left = card.available(parent, kind);
            self.file(&format!("{folder}/available_instances"), &format!("{left}\n"), false);
            self.file(&format!("{folder}/device_api"), "vfio-pci\n", false);
            self.file(&format!("{folder}/description"), &description, false);
            self.file(&format!("{folder}/create"), "", true);
            self.folder(&format!("{folder}/devices"));
            for mdev in card.mdevs.iter().filter(|mdev| mdev.parent == parent && mdev.vgpu == kind.id) {
                let device = format!("{own}/{}", mdev.uuid);
                self.file(&format!("{device}/remove"), "", true);
                self.link(&format!("{device}/mdev_type"), &folder);
                self.link(&format!("{device}/iommu_group"), &format!("sys/kernel/iommu_groups/{}", group + 90));
                self.link(&format!("{folder}/devices/{}", mdev.uuid), &device);
                self.link(&format!("sys/bus/mdev/devices/{}", mdev.uuid), &device);
            }
        }
    }
}
