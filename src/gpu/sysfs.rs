//! PCI devices as the kernel shows them. Read-only: nothing here resets, rescans, binds or wakes a card.
//!
//! ```text
//!   sys/bus/pci/devices/*  --class--> displays of NVIDIA, AMD, Intel --> Card (facts of sysfs only)
//!                          \--------> NVSwitches
//! ```
//!
//! Of all other devices only the class is read, and that only once; a host may have thousands (virtual functions).

use std::collections::BTreeMap;

use super::fabric;
use super::files::Files;
use super::{share, vgpu};
use crate::model::card::pci::{
    Bar, Function, GroupMember, IommuGroup, Link, MemberRole, PciIds, Upstream, Vendor, is_bridge,
};
use crate::model::card::vgpu::VgpuParent;
use crate::model::card::{Card, CardFinding, CardFindingKind, CardMode, Health, Sriov};
use crate::model::gpu::PciAddress;

/// Folder of all devices.
const DEVICES: &str = "sys/bus/pci/devices";

/// More devices than the largest machines have; what is beyond is told and not looked at.
const MAX_DEVICES: usize = 65_536;

/// More members than any group of a working host.
const MAX_MEMBERS: usize = 4096;

/// The part of config space that says who is there.
const CONFIG_HEADER: usize = 64;

/// Class of NVSwitches, with NVIDIA as their maker.
const NVSWITCH: u32 = 0x06_8000;

/// Drivers of VFIO by name. A kernel that makes a `vfio-dev` folder shows the others as well.
const VFIO_DRIVERS: [&str; 4] = ["vfio-pci", "nvgrace-gpu-vfio-pci", "mlx5_vfio_pci", "xe-vfio-pci"];

/// What is found below a root.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Cards with what sysfs says of them, by address.
    pub(super) cards: Vec<Card>,
    /// NVSwitches.
    pub(super) nvswitches: Vec<PciAddress>,
    /// What somebody should know.
    pub(super) findings: Vec<CardFinding>,
}

/// What is known of slots, by their function 0, in which a change hangs in the kernel.
pub(super) type Hanging = BTreeMap<PciAddress, String>;

/// Reads all cards; of those in which a change hangs only what can be read without waiting for it.
pub(super) fn read(files: &Files, hanging: &Hanging) -> Found {
    let mut found = Found::default();
    let Some(names) = files.names(DEVICES, MAX_DEVICES) else {
        let text = "the kernel shows no PCI devices (/sys/bus/pci/devices cannot be listed)".to_owned();
        found.findings.push(CardFinding { kind: CardFindingKind::NoPci, address: None, text });
        return found;
    };
    if names.len() >= MAX_DEVICES {
        let text = format!("there are {MAX_DEVICES} PCI devices or more; those beyond are not looked at");
        found.findings.push(CardFinding { kind: CardFindingKind::TooMany, address: None, text });
    }
    // Only the kernel's own spelling can be looked up again.
    let canonical = |name: &String| name.parse::<PciAddress>().ok().filter(|address| address.to_string() == *name);
    let mut devices: Vec<PciAddress> = names.iter().filter_map(canonical).collect();
    devices.sort_unstable();
    for &address in &devices {
        let hangs = hanging.get(&slot(address)).map(String::as_str);
        let device = Device { files, address, hangs };
        let Some(class) = device.class() else { continue };
        if !matches!(class >> 16, 0x03 | 0x12) && class != NVSWITCH {
            continue;
        }
        let Some(vendor) = device.files.id(&device.at("vendor")) else {
            let text = format!("{address} is a device of class {class:#08x} whose maker cannot be read");
            found.findings.push(CardFinding { kind: CardFindingKind::Unreadable, address: Some(address), text });
            continue;
        };
        let Some(vendor) = Vendor::from_id(vendor) else { continue };
        if class == NVSWITCH && vendor == Vendor::Nvidia {
            found.nvswitches.push(address);
        }
        if !vendor.is_gpu(class) {
            continue;
        }
        match device.card(vendor, &devices) {
            Some(card) => {
                if card.bars.is_empty() && device.files.exists(&device.at("resource")) && !card.is_vf() {
                    let text = format!("{address}: its memory windows (resource) cannot be made sense of");
                    found.findings.push(CardFinding {
                        kind: CardFindingKind::Unreadable,
                        address: Some(address),
                        text,
                    });
                }
                found.cards.push(card);
            }
            None => {
                let text = format!("{address} is a GPU of {vendor} whose device number cannot be read");
                found.findings.push(CardFinding { kind: CardFindingKind::Unreadable, address: Some(address), text });
            }
        }
    }
    name_made(&mut found.cards);
    share::tell(files, &mut found.cards, |address| hanging.contains_key(&slot(address)));
    if !found.nvswitches.is_empty() {
        let (count, missing) = (found.nvswitches.len(), fabric::read(files).missing());
        let text =
            format!("the board has {count} NVSwitches, and gvm activates no partitions of their fabric: {missing}");
        found.findings.push(CardFinding { kind: CardFindingKind::NvSwitch, address: None, text });
    }
    found
}

/// The functions of one card name each other's types.
fn name_made(cards: &mut [Card]) {
    let owner = |card: &Card| card.physfn.unwrap_or(card.address);
    let mut owners: Vec<PciAddress> = cards.iter().filter(|card| card.vgpu.is_some()).map(owner).collect();
    owners.sort_unstable();
    owners.dedup();
    for of in owners {
        vgpu::name_made(cards.iter_mut().filter(|card| owner(card) == of).filter_map(|card| card.vgpu.as_mut()));
    }
}

/// What is at an address, in the words of a finding.
pub(super) fn what_is_at(files: &Files, address: PciAddress) -> String {
    let device = Device::at_rest(files, address);
    let id = |name: &str| files.id(&device.at(name)).map(|id| format!("{id:04x}"));
    match (id("vendor"), id("device"), device.class()) {
        (Some(vendor), Some(number), Some(class)) => format!("{vendor}:{number} of class {class:#08x}"),
        _ => "nothing".to_owned(),
    }
}

/// A slot by its function 0.
pub(super) const fn slot(address: PciAddress) -> PciAddress {
    PciAddress { function: 0, ..address }
}

/// One device's files.
///
/// A write to `unbind` or `bind` that hangs does so with the device's lock in its hand. Some files cannot be read without
/// that lock (`driver_override`, `sriov_numvfs`), or may wait for the device to wake (`config`, the link's speed):
/// whoever reads them hangs as well, and cannot be killed. Of a device that `hangs`, they are not read.
pub(super) struct Device<'a> {
    pub(super) files: &'a Files,
    pub(super) address: PciAddress,
    pub(super) hangs: Option<&'a str>,
}

impl<'a> Device<'a> {
    /// One in which nothing is known to hang.
    pub(super) const fn at_rest(files: &'a Files, address: PciAddress) -> Self {
        Self { files, address, hangs: None }
    }

    pub(super) fn is_there(&self) -> bool {
        self.files.exists(&format!("{DEVICES}/{}", self.address))
    }

    pub(super) fn ids(&self) -> Option<PciIds> {
        let id = |name: &str| self.files.id(&self.at(name));
        let subsystem = id("subsystem_vendor").zip(id("subsystem_device"));
        Some(PciIds { vendor: id("vendor")?, device: id("device")?, subsystem, class: self.class()? })
    }

    pub(super) fn is_gpu(&self) -> bool {
        let vendor = self.files.id(&self.at("vendor")).and_then(Vendor::from_id);
        vendor.zip(self.class()).is_some_and(|(vendor, class)| vendor.is_gpu(class))
    }

    pub(super) fn is_vf(&self) -> bool {
        std::fs::symlink_metadata(self.files.path(&self.at("physfn"))).is_ok()
    }

    /// A virtual function that goes to a machine as it is; see [`Card::is_part`].
    pub(super) fn is_part(&self) -> bool {
        let vendor = self.files.id(&self.at("vendor")).and_then(Vendor::from_id);
        self.is_vf() && matches!(vendor, Some(Vendor::Amd | Vendor::Intel))
    }

    pub(super) fn is_boot_display(&self) -> bool {
        self.text("boot_vga").as_deref() == Some("1")
    }

    pub(super) fn enabled_vfs(&self) -> u32 {
        if self.hangs.is_some() { 0 } else { self.count("sriov_numvfs").unwrap_or(0) }
    }

    pub(super) fn driver_override(&self) -> Option<String> {
        if self.hangs.is_some() {
            return None;
        }
        self.text("driver_override").filter(|name| name != "(null)")
    }

    pub(super) fn group_number(&self) -> Option<u32> {
        self.files.link_name(&self.at("iommu_group"))?.parse().ok()
    }

    fn at(&self, name: &str) -> String {
        format!("{DEVICES}/{}/{name}", self.address)
    }

    fn text(&self, name: &str) -> Option<String> {
        self.files.text(&self.at(name)).filter(|text| !text.is_empty())
    }

    fn count(&self, name: &str) -> Option<u32> {
        self.files.number(&self.at(name)).and_then(|number| u32::try_from(number).ok())
    }

    pub(super) fn class(&self) -> Option<u32> {
        self.count("class").filter(|class| *class <= 0xff_ffff)
    }

    pub(super) fn driver(&self) -> Option<String> {
        self.files.link_name(&self.at("driver"))
    }

    pub(super) fn is_vfio(&self) -> bool {
        let is_named = self.driver().is_some_and(|driver| VFIO_DRIVERS.contains(&driver.as_str()));
        is_named || self.files.exists(&self.at("vfio-dev"))
    }

    fn card(&self, vendor: Vendor, devices: &[PciAddress]) -> Option<Card> {
        let ids = self.ids()?;
        Some(Card {
            address: self.address,
            vendor,
            ids,
            model: format!("{vendor} {ids}"),
            functions: self.functions(devices),
            iommu: self.iommu(),
            numa_node: self.text("numa_node").and_then(|node| node.parse().ok()),
            bars: self.text("resource").map(|text| bars(&text)).unwrap_or_default(),
            memory: None,
            reset_methods: match self.hangs {
                Some(_) => Vec::new(),
                None => words(&self.text("reset_method").unwrap_or_default()),
            },
            link: self.link("current"),
            link_max: self.link("max"),
            driver: self.driver(),
            driver_override: self.driver_override(),
            is_vfio: self.is_vfio(),
            physfn: self.files.link_name(&self.at("physfn")).and_then(|name| name.parse().ok()),
            sriov: self.sriov(),
            vgpu: self.vgpu(),
            is_boot_display: self.is_boot_display(),
            holders: Vec::new(),
            is_holders_complete: true,
            is_persistent: None,
            mode: CardMode::Unbound,
            health: self.health(),
            upstream: self.upstream(),
            nvml: None,
            blockers: Vec::new(),
        })
    }

    /// The vGPUs that it can carry and carries.
    pub(super) fn vgpu(&self) -> Option<VgpuParent> {
        if self.hangs.is_some() {
            return None;
        }
        vgpu::read(self.files, &format!("{DEVICES}/{}", self.address))
    }

    /// All functions of the slot, of those that are there.
    fn functions(&self, devices: &[PciAddress]) -> Vec<Function> {
        let from = devices.partition_point(|device| *device < slot(self.address));
        let same = devices.get(from..).unwrap_or_default().iter();
        let same = same.take_while(|device| slot(**device) == slot(self.address));
        let function = |address: &PciAddress| {
            let device = Device { files: self.files, address: *address, hangs: self.hangs };
            Function { address: *address, class: device.class(), driver: device.driver() }
        };
        same.map(function).collect()
    }

    fn iommu(&self) -> Option<IommuGroup> {
        let number = self.group_number()?;
        let folder = format!("sys/kernel/iommu_groups/{number}/devices");
        let names = self.files.names(&folder, MAX_MEMBERS).unwrap_or_default();
        let mut addresses: Vec<PciAddress> = names.iter().filter_map(|name| name.parse().ok()).collect();
        // A list without the card would be no list of its group; the card is a member in any case.
        addresses.push(self.address);
        addresses.sort_unstable();
        addresses.dedup();
        let members = addresses.into_iter().map(|address| self.member(address)).collect();
        Some(IommuGroup { number, members })
    }

    fn member(&self, address: PciAddress) -> GroupMember {
        let device = Device::at_rest(self.files, address);
        let (class, driver) = (device.class(), device.driver());
        let same_slot = slot(address) == slot(self.address);
        let is_free = driver.is_none() || driver.as_deref() == Some("pci-stub") || device.is_vfio();
        let role = match class {
            _ if address == self.address => MemberRole::Card,
            Some(class) if is_bridge(class) => MemberRole::Bridge,
            _ if same_slot => MemberRole::Sibling,
            _ if is_free => MemberRole::Idle,
            _ => MemberRole::Blocking,
        };
        GroupMember { address, class, driver, role }
    }

    fn link(&self, which: &str) -> Link {
        if self.hangs.is_some() {
            return Link::default();
        }
        // `16.0 GT/s PCIe`, `Unknown`; a width of 0 or 255 is none.
        let speed = self.text(&format!("{which}_link_speed"));
        let giga = speed.and_then(|text| {
            let (whole, tenth) = text.split_whitespace().next()?.split_once('.')?;
            let (whole, tenth) = (whole.parse::<u32>().ok()?, tenth.parse::<u32>().ok().filter(|tenth| *tenth < 10)?);
            whole.checked_mul(1000)?.checked_add(tenth * 100)
        });
        let width = self.count(&format!("{which}_link_width")).filter(|width| (1..=32).contains(width));
        Link { megatransfers: giga, width }
    }

    fn sriov(&self) -> Option<Sriov> {
        let total = self.count("sriov_totalvfs").filter(|total| *total > 0)?;
        let enabled = self.enabled_vfs();
        let function = |number: u32| self.files.link_name(&self.at(&format!("virtfn{number}")))?.parse().ok();
        let functions = (0..enabled.min(total)).filter_map(function).collect();
        Some(Sriov { enabled, total, functions })
    }

    pub(super) fn health(&self) -> Health {
        if let Some(why) = self.hangs {
            return Health::Unknown(why.to_owned());
        }
        let power = self.text("power_state");
        match power.as_deref() {
            Some("error") => return Health::NoAnswer("its power state is error".to_owned()),
            // "unknown" is how a function begins that no driver has switched on yet: its config space says more.
            Some("D3cold") if self.text("power/runtime_status").as_deref() == Some("suspended") => {
                // Reading its config space would wake it.
                return Health::Asleep;
            }
            Some("D3cold") => return Health::NoAnswer("it is stuck in D3cold".to_owned()),
            _ => {}
        }
        match self.files.start(&self.at("config"), CONFIG_HEADER).as_deref() {
            // Of a virtual function the numbers read 0xffff always: they are its card's (PCIe SR-IOV, 9.3.4.1).
            Some(header)
                if self.is_vf() && header.len() == CONFIG_HEADER && header.iter().any(|byte| *byte != 0xff) =>
            {
                Health::Ok
            }
            Some([0xff, 0xff, ..]) => Health::NoAnswer("its config space reads 0xffff".to_owned()),
            Some(header) if header.get(14).is_some_and(|kind| kind & 0x7f == 0x7f) => {
                Health::NoAnswer("its header type reads 0x7f".to_owned())
            }
            Some(header) if header.len() == CONFIG_HEADER => Health::Ok,
            _ => Health::Unknown("its config space cannot be read".to_owned()),
        }
    }

    /// From where the device's link leads: `../../../devices/pci0000:40/0000:40:03.1/0000:41:00.0`.
    fn upstream(&self) -> Upstream {
        let target = std::fs::read_link(self.files.path(&format!("{DEVICES}/{}", self.address))).unwrap_or_default();
        let mut way = Upstream::default();
        for part in target.iter().filter_map(|part| part.to_str()) {
            if part.strip_prefix("pci").is_some_and(|rest| rest.contains(':')) {
                way.root = Some(part.to_owned());
            } else if let Ok(bridge) = part.parse::<PciAddress>() {
                way.bridges.push(bridge);
            }
        }
        way.bridges.retain(|bridge| *bridge != self.address);
        way
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// The first six lines of `resource`: start, end and flags of each BAR.
fn bars(text: &str) -> Vec<Bar> {
    const MEMORY: u64 = 0x200;
    const PREFETCH: u64 = 0x2000;
    const WIDE: u64 = 0x10_0000;
    // An unused BAR is all zero, which would be one byte; PCI has none below 16.
    const SMALLEST: u64 = 16;
    let hex = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let bar = |(index, line): (u8, &str)| {
        let mut numbers = line.split_whitespace().map(hex);
        let (start, end, flags) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let size = end.checked_sub(start)?.checked_add(1)?;
        let (is_64bit, is_prefetchable) = (flags & WIDE != 0, flags & PREFETCH != 0);
        (size >= SMALLEST && flags & MEMORY != 0).then_some(Bar { index, size, is_64bit, is_prefetchable })
    };
    (0..6).zip(text.lines()).filter_map(bar).collect()
}
