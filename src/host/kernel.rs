//! What the kernel has for giving devices to machines. Only looked at: nothing is loaded, bound or let go.

use std::time::{Duration, Instant};

use super::HostRoot;
use crate::model::host::kernel::{CpuVendor, Framebuffer, GpuService, Iommu, KernelFacts, ModuleState};

/// Entries of a folder of the kernel's that are counted; the largest hosts have some thousand groups.
const MAX_NAMES: usize = 1 << 16;

/// Looking through the names of all processes takes milliseconds.
const PATIENCE: Duration = Duration::from_millis(500);

/// The first CPU's lines hold its vendor.
const CPU_LINES: u64 = 4096;

/// The kernel's arguments that matter, by their names.
const FLAGS: [&str; 9] = [
    "intel_iommu",
    "amd_iommu",
    "iommu",
    "pcie_acs_override",
    "vfio-pci.ids",
    "vfio_pci.ids",
    "video",
    "hugepagesz",
    "hugepages",
];

/// Platform drivers of the screen that the firmware left behind.
const SCREENS: [&str; 3] = ["efi-framebuffer", "simple-framebuffer", "vesa-framebuffer"];

/// Units that keep cards open: the unit, its processes' names (the kernel keeps 15 bytes), what it leaves in `/run`.
const SERVICES: [(&str, &[&str], &[&str]); 3] = [
    ("nvidia-persistenced", &["nvidia-persiste"], &["run/nvidia-persistenced/socket"]),
    ("nvidia-dcgm", &["nv-hostengine", "dcgm-exporter"], &["run/nvhostengine.pid", "run/nvidia-hostengine/socket"]),
    ("nvidia-fabricmanager", &["nv-fabricmanage"], &["run/nvidia-fabricmanager/socket"]),
];

/// A variable of UEFI: four bytes of attributes, then its value.
const SECURE_BOOT: &str = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// The fabric manager's settings, in its two places.
const FABRIC: [&str; 2] = ["etc/nvidia-fabricmanager/fabricmanager.cfg", "usr/share/nvidia/nvswitch/fabricmanager.cfg"];

/// Reads everything.
pub(super) fn read(root: &HostRoot) -> KernelFacts {
    let cpu = cpu_vendor(root);
    KernelFacts {
        cpu,
        kvm: cpu.kvm_module().map_or(ModuleState::Unknown, |name| module(root, name)),
        iommu: iommu(root),
        flags: flags(&root.read("proc/cmdline").unwrap_or_default()),
        vfio_pci: module(root, "vfio_pci"),
        has_vfio_node: root.exists("dev/vfio/vfio"),
        has_iommufd: root.exists("dev/iommu"),
        framebuffers: framebuffers(root),
        consoles: consoles(root),
        has_nouveau: root.exists("sys/module/nouveau"),
        has_nvidia: root.exists("sys/module/nvidia"),
        has_secure_boot: root.start(SECURE_BOOT, 8).and_then(|bytes| bytes.get(4).map(|value| *value == 1)),
        services: services(root),
        fabric_mode: FABRIC.iter().find_map(|path| fabric_mode(&root.read(path)?)),
    }
}

fn cpu_vendor(root: &HostRoot) -> CpuVendor {
    let start = root.start("proc/cpuinfo", CPU_LINES).unwrap_or_default();
    let text = String::from_utf8_lossy(&start);
    let vendor = text.lines().find_map(|line| line.strip_prefix("vendor_id")?.split_once(':'));
    match vendor.map(|(_, name)| name.trim()) {
        Some("GenuineIntel") => CpuVendor::Intel,
        Some("AuthenticAMD" | "HygonGenuine") => CpuVendor::Amd,
        _ => CpuVendor::Other,
    }
}

/// How the kernel has a module. Names of modules have `_`, those of their files `-` or `_`.
fn module(root: &HostRoot, name: &str) -> ModuleState {
    if root.exists(&format!("sys/module/{name}")) {
        return ModuleState::Loaded;
    }
    let release = root.read("proc/sys/kernel/osrelease").unwrap_or_default();
    if release.is_empty() {
        return ModuleState::Unknown;
    }
    let list = |file: &str| root.read_list(&format!("lib/modules/{release}/{file}"));
    let file = |line: &str| line.split(".ko").next()?.rsplit('/').next().map(|file| file.replace('-', "_"));
    // A line of modules.dep names the module before its colon, and what it needs behind.
    let has = |text: &str| text.lines().filter_map(|line| file(line.split(':').next()?)).any(|file| file == name);
    match (list("modules.builtin"), list("modules.dep")) {
        (None, None) => ModuleState::Unknown,
        (Some(built_in), _) if has(&built_in) => ModuleState::BuiltIn,
        (_, Some(loadable)) if has(&loadable) => ModuleState::Loadable,
        // Half an answer is none.
        (_, None) => ModuleState::Unknown,
        (_, Some(_)) => ModuleState::Missing,
    }
}

fn iommu(root: &HostRoot) -> Option<Iommu> {
    // Without the folder above nothing can be said.
    root.names("sys/class", 1)?;
    let count = |path: &str| root.names(path, MAX_NAMES).map_or(0, |names| names.len());
    Some(Iommu { units: count("sys/class/iommu"), groups: count("sys/kernel/iommu_groups") })
}

fn flags(cmdline: &str) -> Vec<String> {
    // Behind `--` come arguments of the first process.
    let own = cmdline.split_whitespace().take_while(|word| *word != "--");
    own.filter(|word| word.split('=').next().is_some_and(|name| FLAGS.contains(&name))).map(str::to_owned).collect()
}

fn framebuffers(root: &HostRoot) -> Vec<Framebuffer> {
    let mut found = Vec::new();
    for driver in SCREENS {
        let folder = format!("sys/bus/platform/drivers/{driver}");
        let devices = root.names(&folder, MAX_NAMES).unwrap_or_default();
        let is_device = |name: &String| name.rsplit_once('.').is_some_and(|(_, number)| number.parse::<u32>().is_ok());
        let unbind = std::path::Path::new("/").join(&folder).join("unbind");
        let bound = devices.into_iter().filter(is_device);
        found.extend(bound.map(|device| Framebuffer { device, unbind: unbind.clone() }));
    }
    found
}

/// Bound text consoles on a frame buffer, by the switch that lets go.
fn consoles(root: &HostRoot) -> Vec<std::path::PathBuf> {
    let folder = "sys/class/vtconsole";
    let is_on_screen = |name: &String| {
        let word = |file: &str| root.read(&format!("{folder}/{name}/{file}")).unwrap_or_default();
        word("bind") == "1" && word("name").contains("frame buffer")
    };
    let consoles = root.names(folder, MAX_NAMES).unwrap_or_default();
    let path = |name: String| std::path::Path::new("/").join(folder).join(name).join("bind");
    consoles.into_iter().filter(is_on_screen).map(path).collect()
}

/// By their processes, else by what they have in `/run`: others' processes may be hidden from the manager.
fn services(root: &HostRoot) -> Vec<GpuService> {
    let begin = Instant::now();
    let mut pids: Vec<Option<u32>> = vec![None; SERVICES.len()];
    let all = root.names("proc", MAX_NAMES).unwrap_or_default();
    for pid in all.iter().filter_map(|name| name.parse::<u32>().ok()) {
        if begin.elapsed() > PATIENCE {
            break;
        }
        let Some(comm) = root.read(&format!("proc/{pid}/comm")) else { continue };
        for (slot, _) in pids.iter_mut().zip(SERVICES).filter(|(_, (_, comms, _))| comms.contains(&comm.as_str())) {
            slot.get_or_insert(pid);
        }
    }
    let found = SERVICES
        .iter()
        .zip(pids)
        .filter(|((.., traces), pid)| pid.is_some() || traces.iter().any(|trace| root.exists(trace)));
    found.map(|((unit, ..), pid)| GpuService { unit: (*unit).to_owned(), pid }).collect()
}

fn fabric_mode(text: &str) -> Option<u32> {
    text.lines().find_map(|line| line.trim().strip_prefix("FABRIC_MODE=")?.trim().parse().ok())
}

#[cfg(test)]
#[path = "kernel_tests.rs"]
mod tests;
