//! The parts of libvirt's domain XML that are read, as serde sees them. Everything else is skipped.
//!
//! Lists of mixed elements are `$value` lists of an enum with a last, ignored kind: libvirt may put any element
//! anywhere. Elements of our metadata carry their namespace as an attribute; serde goes by the local name alone.

use serde::Deserialize;

#[derive(Debug, Deserialize)]
pub(super) struct DomainXml {
    #[serde(rename = "@type")]
    pub kind: String,
    pub name: String,
    #[serde(default)]
    pub uuid: Option<String>,
    #[serde(default)]
    pub metadata: Option<MetadataXml>,
    pub memory: SizeXml,
    #[serde(default, rename = "maxMemory")]
    pub max_memory: Option<SizeXml>,
    #[serde(default)]
    pub vcpu: Option<VcpuXml>,
    #[serde(default)]
    pub cputune: Option<CputuneXml>,
    #[serde(default)]
    pub os: Option<OsXml>,
    #[serde(default)]
    pub devices: Option<DevicesXml>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct MetadataXml {
    #[serde(default, rename = "$value")]
    pub items: Vec<MetadataItem>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum MetadataItem {
    Vm(VmXml),
    Caps(CapsXml),
    #[serde(other)]
    Other,
}

#[derive(Debug, Deserialize)]
pub(super) struct VmXml {
    #[serde(default, rename = "@xmlns:gvm")]
    pub uri: String,
    #[serde(default, rename = "@id")]
    pub id: String,
    #[serde(default, rename = "@shape")]
    pub shape: String,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct CapsXml {
    #[serde(default, rename = "@xmlns:gvmcaps")]
    pub uri: String,
    #[serde(default, rename = "@cpu-shares")]
    pub cpu_shares: Option<u32>,
    #[serde(default, rename = "@cpu-percent")]
    pub cpu_percent: Option<u32>,
    #[serde(default, rename = "@disk-iops")]
    pub disk_iops: Option<u64>,
    #[serde(default, rename = "@disk-bps")]
    pub disk_bps: Option<u64>,
    #[serde(default, rename = "@net-in")]
    pub net_in: Option<u64>,
    #[serde(default, rename = "@net-out")]
    pub net_out: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct SizeXml {
    #[serde(default, rename = "@unit")]
    pub unit: Option<String>,
    #[serde(rename = "$text")]
    pub value: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct VcpuXml {
    #[serde(default, rename = "@current")]
    pub current: Option<u32>,
    #[serde(rename = "$text")]
    pub max: u32,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct CputuneXml {
    #[serde(default)]
    pub shares: Option<u32>,
    #[serde(default)]
    pub global_period: Option<u64>,
    #[serde(default)]
    pub global_quota: Option<i64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct OsXml {
    #[serde(default, rename = "type")]
    pub kind: Option<OsTypeXml>,
}

#[derive(Debug, Deserialize)]
pub(super) struct OsTypeXml {
    #[serde(default, rename = "@machine")]
    pub machine: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct DevicesXml {
    #[serde(default, rename = "$value")]
    pub items: Vec<DeviceXml>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum DeviceXml {
    Disk(DiskXml),
    Interface(InterfaceXml),
    Hostdev(HostdevXml),
    Channel(ChannelXml),
    #[serde(other)]
    Other,
}

#[derive(Debug, Deserialize)]
pub(super) struct DiskXml {
    #[serde(default)]
    pub source: Option<DiskSourceXml>,
    #[serde(default)]
    pub target: Option<TargetXml>,
    #[serde(default)]
    pub readonly: Option<EmptyXml>,
    #[serde(default)]
    pub iotune: Option<IotuneXml>,
}

#[derive(Debug, Deserialize)]
pub(super) struct EmptyXml {}

#[derive(Debug, Deserialize)]
pub(super) struct DiskSourceXml {
    #[serde(default, rename = "@file")]
    pub file: String,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct TargetXml {
    #[serde(default, rename = "@dev")]
    pub dev: String,
    #[serde(default, rename = "@name")]
    pub name: String,
    #[serde(default, rename = "@state")]
    pub state: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct IotuneXml {
    #[serde(default)]
    pub total_bytes_sec: Option<u64>,
    #[serde(default)]
    pub total_iops_sec: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct InterfaceXml {
    #[serde(default)]
    pub mac: Option<MacXml>,
    #[serde(default)]
    pub bandwidth: Option<BandwidthXml>,
}

#[derive(Debug, Deserialize)]
pub(super) struct MacXml {
    #[serde(rename = "@address")]
    pub address: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct BandwidthXml {
    #[serde(default)]
    pub inbound: Option<RateXml>,
    #[serde(default)]
    pub outbound: Option<RateXml>,
}

#[derive(Debug, Deserialize)]
pub(super) struct RateXml {
    #[serde(default, rename = "@average")]
    pub average: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct HostdevXml {
    #[serde(default)]
    pub source: Option<HostdevSourceXml>,
}

#[derive(Debug, Deserialize)]
pub(super) struct HostdevSourceXml {
    #[serde(default)]
    pub address: Option<HostAddressXml>,
}

/// Of a PCI function, or of a mediated device, which has a UUID and nothing else.
#[derive(Debug, Deserialize)]
pub(super) struct HostAddressXml {
    #[serde(default, rename = "@uuid")]
    pub uuid: Option<String>,
    #[serde(default, rename = "@domain")]
    pub domain: String,
    #[serde(default, rename = "@bus")]
    pub bus: String,
    #[serde(default, rename = "@slot")]
    pub slot: String,
    #[serde(default, rename = "@function")]
    pub function: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct ChannelXml {
    #[serde(default)]
    pub target: Option<TargetXml>,
}
