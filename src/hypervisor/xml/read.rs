//! Domain XML of libvirt (or of our own template) -> [`Description`].

use serde::Deserialize;
use uuid::Uuid;

use super::super::{ErrorKind, HypervisorError, Result};
use super::schema::{
    BandwidthXml, CapsXml, CputuneXml, DeviceXml, DiskXml, DomainXml, HostdevXml, IotuneXml, MetadataItem, RateXml,
    SizeXml,
};
use super::{CAPS_URI, CPU_PERIOD_US, VM_URI, net_average};
use crate::model::caps::Caps;
use crate::model::gpu::{HostDevice, PciAddress};
use crate::model::id::VmId;
use crate::model::state::{ObservedDomain, Power};
use crate::model::units::Mib;
use crate::model::vm::domain_name;

/// CPU weights that a cgroup has when nobody set one, on v1 and on v2 (kernel, `cgroup-v1/cpu` and `cgroup-v2`).
const DEFAULT_SHARES: [u32; 2] = [1024, 100];

/// What a description says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::hypervisor) struct Description {
    /// Whose it is: set where our metadata and its name are those of its own UUID.
    pub id: Option<VmId>,
    /// libvirt's name of it.
    pub name: String,
    /// What the port reports; its power is `Off`, which XML does not tell.
    pub observed: ObservedDomain,
    /// Its disks in order.
    pub disks: Vec<DescribedDisk>,
    /// Address of its first network card.
    pub mac: Option<String>,
    /// Versioned machine type.
    pub machine: Option<String>,
    /// True where the guest agent answers.
    pub is_agent_connected: bool,
    /// Network rates in force, libvirt's unit.
    pub net_average: (Option<u64>, Option<u64>),
    /// Limits as our metadata has them.
    pub asked_caps: Caps,
}

/// A disk of a description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::hypervisor) struct DescribedDisk {
    /// File; empty where it is no file.
    pub file: String,
    /// Device name, such as `vda`.
    pub target: String,
    /// Attached read-only.
    pub is_read_only: bool,
    iops: Option<u64>,
    bytes_per_sec: Option<u64>,
}

/// Reads a domain's description.
pub(in crate::hypervisor) fn read_domain(xml: &str) -> Result<Description> {
    let parsed: DomainXml = parse(xml)?;
    let mut disks = Vec::new();
    let mut nics = Vec::new();
    let mut hostdevs = Vec::new();
    let mut is_agent_connected = false;
    for device in parsed.devices.unwrap_or_default().items {
        match device {
            DeviceXml::Disk(disk) => disks.push(disk.described()),
            DeviceXml::Interface(nic) => nics.push(nic),
            DeviceXml::Hostdev(device) => hostdevs.extend(device.device().map(|device| device.to_string())),
            DeviceXml::Channel(channel) => {
                let target = channel.target.unwrap_or_default();
                is_agent_connected |= target.name == "org.qemu.guest_agent.0" && target.state == "connected";
            }
            DeviceXml::Other => {}
        }
    }
    let uuid = parsed.uuid.as_deref().and_then(|uuid| uuid.trim().parse::<VmId>().ok());
    let mut id = None;
    let mut shape = String::new();
    let mut asked = Caps::default();
    for item in parsed.metadata.unwrap_or_default().items {
        match item {
            MetadataItem::Vm(vm) if vm.uri == VM_URI => {
                id = vm.id.parse().ok().filter(|id| uuid == Some(*id) && parsed.name == domain_name(*id));
                shape = vm.shape;
            }
            MetadataItem::Caps(caps) if caps.uri == CAPS_URI => asked = caps.caps(),
            _ => {}
        }
    }
    let first = nics.first();
    let rate = |of: fn(&BandwidthXml) -> Option<&RateXml>| {
        first.and_then(|nic| nic.bandwidth.as_ref()).and_then(of).and_then(|rate| rate.average)
    };
    let net = (rate(|b| b.inbound.as_ref()), rate(|b| b.outbound.as_ref()));
    let cpu = parsed.cputune.unwrap_or_default();
    let caps = Caps {
        cpu_shares: shares_in_force(asked.cpu_shares, cpu.shares),
        cpu_percent: percent_in_force(&cpu),
        disk_iops: disk_in_force(&disks, asked.disk_iops, |disk| disk.iops),
        disk_bytes_per_sec: disk_in_force(&disks, asked.disk_bytes_per_sec, |disk| disk.bytes_per_sec),
        net_in_bytes_per_sec: net_in_force(first.is_some(), asked.net_in_bytes_per_sec, net.0),
        net_out_bytes_per_sec: net_in_force(first.is_some(), asked.net_out_bytes_per_sec, net.1),
    };
    let memory = parsed.memory.mib();
    let observed = ObservedDomain {
        power: Power::Off,
        shape,
        caps,
        vcpus: parsed.vcpu.as_ref().map_or(1, |vcpu| vcpu.current.unwrap_or(vcpu.max)),
        max_vcpus: parsed.vcpu.as_ref().map_or(1, |vcpu| vcpu.max),
        memory,
        max_memory: parsed.max_memory.map_or(memory, |size| size.mib()),
        is_off_by_guest: false,
        hostdevs,
        is_accelerated: parsed.kind == "kvm",
    };
    Ok(Description {
        id,
        name: parsed.name,
        observed,
        disks,
        mac: first.and_then(|nic| nic.mac.as_ref()).map(|mac| mac.address.clone()),
        machine: parsed.os.and_then(|os| os.kind).and_then(|kind| kind.machine),
        is_agent_connected,
        net_average: net,
        asked_caps: asked,
    })
}

/// The versioned machine type that libvirt's domain capabilities are about.
pub(in crate::hypervisor) fn machine_type(capabilities: &str) -> Result<String> {
    #[derive(Deserialize)]
    struct DomainCapabilitiesXml {
        machine: String,
    }
    parse::<DomainCapabilitiesXml>(capabilities).map(|capabilities| capabilities.machine)
}

/// The CPUs of a NUMA node, such as `0,1,32,33`, out of libvirt's capabilities.
pub(in crate::hypervisor) fn cpus_of_node(capabilities: &str, node: u32) -> Result<Option<String>> {
    #[derive(Deserialize)]
    struct CapabilitiesXml {
        host: HostXml,
    }
    #[derive(Deserialize)]
    struct HostXml {
        #[serde(default)]
        topology: Option<TopologyXml>,
    }
    #[derive(Deserialize)]
    struct TopologyXml {
        cells: CellsXml,
    }
    #[derive(Deserialize)]
    struct CellsXml {
        #[serde(default)]
        cell: Vec<CellXml>,
    }
    #[derive(Deserialize)]
    struct CellXml {
        #[serde(rename = "@id")]
        id: u32,
        #[serde(default)]
        cpus: Option<CpusXml>,
    }
    #[derive(Deserialize)]
    struct CpusXml {
        #[serde(default)]
        cpu: Vec<CpuXml>,
    }
    #[derive(Deserialize)]
    struct CpuXml {
        #[serde(rename = "@id")]
        id: u32,
    }
    let parsed: CapabilitiesXml = parse(capabilities)?;
    let cells = parsed.host.topology.map(|topology| topology.cells.cell).unwrap_or_default();
    let cell = cells.into_iter().find(|cell| cell.id == node);
    let cpus = cell.and_then(|cell| cell.cpus).map(|cpus| cpus.cpu).unwrap_or_default();
    let list: Vec<String> = cpus.iter().map(|cpu| cpu.id.to_string()).collect();
    Ok((!list.is_empty()).then(|| list.join(",")))
}

pub(super) fn parse<'de, T: Deserialize<'de>>(xml: &'de str) -> Result<T> {
    quick_xml::de::from_str(xml).map_err(|e| {
        let message = format!("libvirt's description is not as expected: {e}");
        HypervisorError::new(ErrorKind::Permanent, "reading a description", message)
    })
}

/// What is in force, in the words of what was asked where the two agree. A weight cannot be taken off a cgroup, only
/// set back to what it has by itself; that is read as none.
fn shares_in_force(asked: Option<u32>, is: Option<u32>) -> Option<u32> {
    is.filter(|shares| asked == Some(*shares) || !DEFAULT_SHARES.contains(shares))
}

fn percent_in_force(cpu: &CputuneXml) -> Option<u32> {
    let quota = u64::try_from(cpu.global_quota?).ok().filter(|quota| *quota > 0)?;
    let period = cpu.global_period.filter(|period| *period > 0).unwrap_or(CPU_PERIOD_US);
    u32::try_from(quota.saturating_mul(100).div_ceil(period)).ok()
}

/// A limit on disks is in force where every disk that can be written has it. With no such disk it is kept trivially.
fn disk_in_force(disks: &[DescribedDisk], asked: Option<u64>, of: fn(&DescribedDisk) -> Option<u64>) -> Option<u64> {
    let mut limits = disks.iter().filter(|disk| !disk.is_read_only).map(of);
    let Some(first) = limits.next() else { return asked };
    let weakest = limits.fold(first, |weakest, limit| Some(weakest?.max(limit?)));
    weakest.filter(|limit| *limit > 0)
}

fn net_in_force(has_nic: bool, asked: Option<u64>, average: Option<u64>) -> Option<u64> {
    if !has_nic || asked.map(net_average) == average {
        return asked;
    }
    average.filter(|average| *average > 0).map(|average| average.saturating_mul(1000))
}

impl CapsXml {
    const fn caps(&self) -> Caps {
        Caps {
            cpu_shares: self.cpu_shares,
            cpu_percent: self.cpu_percent,
            disk_iops: self.disk_iops,
            disk_bytes_per_sec: self.disk_bps,
            net_in_bytes_per_sec: self.net_in,
            net_out_bytes_per_sec: self.net_out,
        }
    }
}

impl SizeXml {
    fn mib(&self) -> Mib {
        let unit: u64 = match self.unit.as_deref().unwrap_or("KiB") {
            "b" | "bytes" => 1,
            "MiB" | "M" => 1 << 20,
            "GiB" | "G" => 1 << 30,
            _ => 1 << 10,
        };
        Mib::from_bytes_ceil(self.value.saturating_mul(unit))
    }
}

impl DiskXml {
    fn described(self) -> DescribedDisk {
        let limit = |of: fn(&IotuneXml) -> Option<u64>| self.iotune.as_ref().and_then(of).filter(|limit| *limit > 0);
        DescribedDisk {
            iops: limit(|tune| tune.total_iops_sec),
            bytes_per_sec: limit(|tune| tune.total_bytes_sec),
            is_read_only: self.readonly.is_some(),
            file: self.source.map(|source| source.file).unwrap_or_default(),
            target: self.target.map(|target| target.dev).unwrap_or_default(),
        }
    }
}

impl HostdevXml {
    fn device(&self) -> Option<HostDevice> {
        let address = self.source.as_ref()?.address.as_ref()?;
        if let Some(uuid) = &address.uuid {
            return Uuid::try_parse(uuid).ok().map(HostDevice::Mdev);
        }
        let digits = |text: &str| u32::from_str_radix(text.trim_start_matches("0x"), 16).ok();
        Some(HostDevice::Pci(PciAddress {
            domain: digits(&address.domain)?,
            bus: u8::try_from(digits(&address.bus)?).ok()?,
            slot: u8::try_from(digits(&address.slot)?).ok()?,
            function: u8::try_from(digits(&address.function)?).ok()?,
        }))
    }
}
