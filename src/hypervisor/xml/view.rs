//! The values that `templates/domain.xml.j2` is filled with, and the places of devices on the PCI bus.
//!
//! ```text
//!   port (bus)   1    2       3        4    5    6..11        12..15   16..
//!   holds        NIC  serial  balloon  rng  USB  disks 0..5   spare    GPUs, one slot each
//! ```
//!
//! Every device has its own root port with a fixed number for life. Adding a GPU moves nothing, so that the guest
//! keeps the names of its network card and disks; the spare ports take what is plugged while it runs.

use std::path::Path;

use serde::Serialize;

use super::super::{DomainSpec, ErrorKind, Firmware, HypervisorError, PLUG_PORTS, Result};
use super::{CAPS_URI, VM_URI, plain_text};
use crate::model::caps::Caps;
use crate::model::gpu::HostDevice;
use crate::model::vm::domain_name;

const NIC_BUS: u8 = 1;
const SERIAL_BUS: u8 = 2;
const BALLOON_BUS: u8 = 3;
const RNG_BUS: u8 = 4;
const USB_BUS: u8 = 5;
const DISK_BUS: u8 = 6;
/// Disks that have a port of their own.
const DISK_PORTS: u8 = 6;
/// Ports left empty for what is plugged later.
const SPARE_PORTS: u8 = PLUG_PORTS;
const SPARE_BUS: u8 = DISK_BUS + DISK_PORTS;
const GPU_BUS: u8 = SPARE_BUS + SPARE_PORTS;
/// Slots for host devices; a host with more GPUs than this gives them to more than one machine.
const GPU_PORTS: u8 = 32;
/// Ports start in this slot of the root complex; slot 1 is the graphics card's.
const FIRST_PORT_SLOT: u8 = 2;

/// Length of the period that the CPU quota is counted in, microseconds: the kernel's default.
pub(in crate::hypervisor) const CPU_PERIOD_US: u64 = 100_000;

/// DIMMs that can be plugged. libvirt counts slots, not sizes; each takes one ACPI device in the guest.
const MEMORY_SLOTS: u32 = 16;

/// What a description takes from the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::hypervisor) struct Site {
    /// Versioned machine type.
    pub machine: String,
    /// CPUs of the NUMA node that the spec names, such as `0-15,32-47`.
    pub cpuset: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct NamedCap {
    name: &'static str,
    value: u64,
}

/// The set caps with the names they have in our metadata.
pub(super) fn named(caps: &Caps) -> Vec<NamedCap> {
    let all = [
        ("cpu-shares", caps.cpu_shares.map(u64::from)),
        ("cpu-percent", caps.cpu_percent.map(u64::from)),
        ("disk-iops", caps.disk_iops),
        ("disk-bps", caps.disk_bytes_per_sec),
        ("net-in", caps.net_in_bytes_per_sec),
        ("net-out", caps.net_out_bytes_per_sec),
    ];
    all.into_iter().filter_map(|(name, value)| value.map(|value| NamedCap { name, value })).collect()
}

/// CPU quota in microseconds per [`CPU_PERIOD_US`].
pub(in crate::hypervisor) fn cpu_quota_us(percent: u32) -> u64 {
    u64::from(percent).saturating_mul(CPU_PERIOD_US / 100)
}

/// A network rate in libvirt's unit, kilobytes of 1000 bytes (what tc takes as `kbps`), rounded up so that a cap is
/// never lifted by rounding.
pub(in crate::hypervisor) const fn net_average(bytes_per_sec: u64) -> u64 {
    bytes_per_sec.div_ceil(1000)
}

#[derive(Debug, Serialize)]
struct MetadataView {
    vm_uri: &'static str,
    caps_uri: &'static str,
    caps: Vec<NamedCap>,
}

#[derive(Debug, Serialize)]
struct CapsView {
    cpu_shares: Option<u32>,
    cpu_period: u64,
    cpu_quota: Option<u64>,
    disk_iops: Option<u64>,
    disk_bytes_per_sec: Option<u64>,
    net_in: Option<u64>,
    net_out: Option<u64>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum FirmwareView<'a> {
    Uefi { secure_boot: bool },
    Kernel { kernel: &'a str, initrd: &'a str, cmdline: &'a str },
    Firmware,
}

#[derive(Debug, Serialize)]
struct PortView {
    index: u8,
    slot: String,
    function: String,
    is_first: bool,
}

#[derive(Debug, Serialize)]
struct BackingView<'a> {
    file: &'a str,
    format: &'static str,
}

#[derive(Debug, Serialize)]
struct DiskView<'a> {
    file: &'a str,
    format: &'static str,
    cache: &'static str,
    backing: Option<BackingView<'a>>,
    is_read_only: bool,
    is_capped: bool,
    is_boot: bool,
    serial: &'a str,
    target: String,
    bus: String,
}

#[derive(Debug, Serialize)]
struct NicView<'a> {
    mac: String,
    network: &'a str,
    address: String,
    is_filtered: bool,
}

/// Where the device is on the host: a mediated device has a UUID, a function the four others.
#[derive(Debug, Default, Serialize)]
pub(super) struct HostdevView {
    uuid: Option<String>,
    domain: String,
    bus: String,
    slot: String,
    function: String,
    guest_bus: String,
    guest_function: String,
    is_multifunction: bool,
    alias: String,
}

#[derive(Debug, Serialize)]
struct BusView {
    nic: String,
    serial: String,
    balloon: String,
    rng: String,
    usb: String,
}

#[derive(Debug, Serialize)]
pub(super) struct DomainView<'a> {
    domain_type: &'static str,
    name: String,
    id: String,
    title: &'a str,
    owner: &'a str,
    profile: &'a str,
    shape: String,
    metadata: MetadataView,
    memory_kib: u64,
    max_memory_kib: Option<u64>,
    memory_slots: u32,
    vcpus: u32,
    max_vcpus: u32,
    cpuset: Option<&'a str>,
    numa_node: Option<u32>,
    mmio64_mib: Option<u64>,
    huge_page_mib: Option<u64>,
    machine: &'a str,
    firmware: FirmwareView<'a>,
    caps: CapsView,
    ports: Vec<PortView>,
    bus: BusView,
    disks: Vec<DiskView<'a>>,
    nic: Option<NicView<'a>>,
    hostdevs: Vec<HostdevView>,
    graphics: bool,
    tpm: bool,
    serial_log: &'a str,
}

fn invalid<T>(message: impl Into<String>) -> Result<T> {
    Err(HypervisorError::new(ErrorKind::Invalid, "writing a domain description", message))
}

/// The values for a spec, or what about it cannot be described.
pub(super) fn view<'a>(spec: &'a DomainSpec, site: &'a Site) -> Result<DomainView<'a>> {
    if spec.vcpus == 0 || spec.vcpus > spec.max_vcpus {
        return invalid(format!("{} vCPUs of at most {}", spec.vcpus, spec.max_vcpus));
    }
    // Plugged memory would have to be pinned while the device uses what is there.
    let max_memory = spec.max_memory.filter(|max| *max > spec.memory && spec.hostdevs.is_empty());
    let slots = slots_of(&spec.hostdevs);
    let gpu_ports = u8::try_from(slots.len()).ok().filter(|count| *count <= GPU_PORTS);
    let Some(gpu_ports) = gpu_ports else {
        return invalid(format!("{} host devices; at most {GPU_PORTS} have a place", slots.len()));
    };
    let caps = &spec.caps;
    Ok(DomainView {
        domain_type: if spec.accelerator.is_kvm() { "kvm" } else { "qemu" },
        name: domain_name(spec.id),
        id: spec.id.to_string(),
        title: plain_text("the title", &spec.title)?,
        owner: plain_text("the owner", &spec.owner)?,
        profile: plain_text("the profile", &spec.profile)?,
        shape: spec.shape(),
        metadata: MetadataView { vm_uri: VM_URI, caps_uri: CAPS_URI, caps: named(caps) },
        memory_kib: spec.memory.kib(),
        max_memory_kib: max_memory.map(|max| max.kib()),
        memory_slots: MEMORY_SLOTS,
        vcpus: spec.vcpus,
        max_vcpus: spec.max_vcpus,
        cpuset: site.cpuset.as_deref(),
        numa_node: spec.numa_node,
        mmio64_mib: spec.mmio64.map(|window| window.0),
        huge_page_mib: spec.huge_page.map(|page| page.0),
        machine: &site.machine,
        firmware: firmware(&spec.firmware)?,
        caps: CapsView {
            cpu_shares: caps.cpu_shares,
            cpu_period: CPU_PERIOD_US,
            cpu_quota: caps.cpu_percent.map(cpu_quota_us),
            disk_iops: caps.disk_iops,
            disk_bytes_per_sec: caps.disk_bytes_per_sec,
            net_in: caps.net_in_bytes_per_sec.map(net_average),
            net_out: caps.net_out_bytes_per_sec.map(net_average),
        },
        ports: (1..GPU_BUS + gpu_ports).map(port).collect(),
        bus: BusView {
            nic: hex(NIC_BUS),
            serial: hex(SERIAL_BUS),
            balloon: hex(BALLOON_BUS),
            rng: hex(RNG_BUS),
            usb: hex(USB_BUS),
        },
        disks: disks(spec)?,
        nic: match &spec.nic {
            None => None,
            Some(nic) => Some(NicView {
                mac: nic.mac.to_string(),
                network: plain_text("the network", &nic.network)?,
                address: nic.address.to_string(),
                is_filtered: nic.is_filtered,
            }),
        },
        hostdevs: (GPU_BUS..)
            .zip(slots)
            .zip(0_u8..)
            .flat_map(|((bus, slot), card)| hostdevs(bus, slot, card))
            .collect(),
        graphics: spec.graphics,
        tpm: spec.tpm,
        serial_log: path("the serial log", &spec.serial_log)?,
    })
}

fn hex(number: u8) -> String {
    format!("0x{number:02x}")
}

fn port(index: u8) -> PortView {
    let place = index - 1;
    PortView {
        index,
        slot: hex(FIRST_PORT_SLOT + place / 8),
        function: format!("0x{:x}", place % 8),
        is_first: place.is_multiple_of(8),
    }
}

fn path<'a>(what: &str, path: &'a Path) -> Result<&'a str> {
    match path.to_str().filter(|_| path.is_absolute()) {
        Some(text) => plain_text(what, text),
        None => invalid(format!("the path of {what} is not absolute or not UTF-8: {}", path.display())),
    }
}

fn firmware(firmware: &Firmware) -> Result<FirmwareView<'_>> {
    Ok(match firmware {
        Firmware::Uefi { secure_boot } => FirmwareView::Uefi { secure_boot: *secure_boot },
        Firmware::Kernel { kernel, initrd, cmdline } => FirmwareView::Kernel {
            kernel: path("the kernel", kernel)?,
            initrd: path("the initrd", initrd)?,
            cmdline: plain_text("the kernel arguments", cmdline)?,
        },
        Firmware::Firmware => FirmwareView::Firmware,
    })
}

fn disks(spec: &DomainSpec) -> Result<Vec<DiskView<'_>>> {
    if spec.disks.len() > usize::from(DISK_PORTS) {
        return invalid(format!("{} disks; at most {DISK_PORTS} have a place", spec.disks.len()));
    }
    let limits_disk = spec.caps.disk_iops.is_some() || spec.caps.disk_bytes_per_sec.is_some();
    let boots_from_disk = matches!(spec.firmware, Firmware::Uefi { .. });
    let mut views = Vec::new();
    for (place, disk) in (0u8..).zip(&spec.disks) {
        let backing = match &disk.backing {
            None => None,
            Some((file, format)) => Some(BackingView { file: path("a disk's base", file)?, format: format.as_str() }),
        };
        views.push(DiskView {
            file: path("a disk", &disk.path)?,
            format: disk.format.as_str(),
            // none: what a guest writes is on the disk and not in the host's memory, where it would push out the
            // neighbours'. A seed is read once.
            cache: if disk.is_read_only { "writeback" } else { "none" },
            backing,
            is_read_only: disk.is_read_only,
            is_capped: limits_disk && !disk.is_read_only,
            is_boot: boots_from_disk && place == 0,
            serial: plain_text("a disk's serial number", &disk.serial)?,
            target: format!("vd{}", char::from(b'a' + place)),
            bus: hex(DISK_BUS + place),
        });
    }
    Ok(views)
}

/// Functions of one slot of the host stay functions of one slot of the guest, as a card and its sound are on a real
/// board; a mediated device has one to itself. The order of the slots is that of the spec.
fn slots_of(hostdevs: &[HostDevice]) -> Vec<Vec<HostDevice>> {
    let slot_of = |device: &HostDevice| device.pci().map(|pci| (pci.domain, pci.bus, pci.slot));
    let mut slots: Vec<Vec<HostDevice>> = Vec::new();
    for device in hostdevs {
        let same = |other: &HostDevice| slot_of(other).is_some() && slot_of(other) == slot_of(device);
        match slots.iter_mut().find(|slot| slot.first().is_some_and(same)) {
            Some(slot) => slot.push(*device),
            None => slots.push(vec![*device]),
        }
    }
    slots
}

/// Buses behind the ports that are left empty.
pub(super) const fn spare_ports() -> std::ops::Range<u8> {
    SPARE_BUS..GPU_BUS
}

/// A device to plug into a spare port. libvirt plugs nothing but function 0, so that functions of one slot of the host go
/// into ports of their own until the next start.
pub(super) fn plugged(device: HostDevice, bus: u8) -> HostdevView {
    let mut view = HostdevView::new(device, bus, 0);
    view.alias = format!("ua-gvm-port{bus}");
    view
}

impl HostdevView {
    fn new(device: HostDevice, bus: u8, function: u8) -> Self {
        let guest = Self { guest_bus: hex(bus), guest_function: format!("0x{function:x}"), ..Self::default() };
        match device {
            HostDevice::Pci(pci) => Self {
                domain: format!("0x{:04x}", pci.domain),
                bus: hex(pci.bus),
                slot: hex(pci.slot),
                function: format!("0x{:x}", pci.function),
                ..guest
            },
            HostDevice::Mdev(uuid) => Self { uuid: Some(uuid.to_string()), ..guest },
        }
    }
}

fn hostdevs(bus: u8, functions: Vec<HostDevice>, card: u8) -> Vec<HostdevView> {
    let is_shared = functions.len() > 1;
    let view = |(function, device): (u8, HostDevice)| HostdevView {
        is_multifunction: is_shared && function == 0,
        // libvirt takes names of ours only with this beginning; QEMU gets it as the device's id.
        alias: format!("ua-gvm-gpu{card}-{function}"),
        ..HostdevView::new(device, bus, function)
    };
    (0u8..).zip(functions).map(view).collect()
}
