//! Networks and their DHCP entries.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::super::Result;
use super::{HOST_ENTRY, NETWORK, Templates, plain_text, read};
use crate::model::network::{GuestAddress, MacAddress, NetworkSpec};

/// What a network's description says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::hypervisor) struct DescribedNetwork {
    /// Bridge device.
    pub bridge: String,
    /// The host's address and the prefix, of the first IPv4 block.
    pub address: Option<(Ipv4Addr, u8)>,
    /// Forward mode, such as `nat`; empty for an isolated one.
    pub forward: String,
    /// What it hands out by name of the card.
    pub hosts: Vec<HostEntry>,
}

/// One DHCP entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::hypervisor) struct HostEntry {
    /// Card.
    pub mac: Option<MacAddress>,
    /// Address.
    pub address: Option<GuestAddress>,
    /// Name.
    pub name: String,
}

#[derive(Debug, Deserialize)]
struct NetworkXml {
    #[serde(default)]
    forward: Option<ForwardXml>,
    #[serde(default)]
    bridge: Option<BridgeXml>,
    #[serde(default)]
    ip: Vec<IpXml>,
}

#[derive(Debug, Deserialize)]
struct ForwardXml {
    #[serde(default, rename = "@mode")]
    mode: String,
}

#[derive(Debug, Deserialize)]
struct BridgeXml {
    #[serde(default, rename = "@name")]
    name: String,
}

#[derive(Debug, Deserialize)]
struct IpXml {
    #[serde(default, rename = "@family")]
    family: String,
    #[serde(default, rename = "@address")]
    address: Option<String>,
    #[serde(default, rename = "@netmask")]
    netmask: Option<Ipv4Addr>,
    #[serde(default, rename = "@prefix")]
    prefix: Option<u8>,
    #[serde(default)]
    dhcp: Option<DhcpXml>,
}

#[derive(Debug, Default, Deserialize)]
struct DhcpXml {
    #[serde(default, rename = "$value")]
    items: Vec<DhcpItem>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum DhcpItem {
    Host(HostXml),
    #[serde(other)]
    Other,
}

#[derive(Debug, Deserialize)]
struct HostXml {
    #[serde(default, rename = "@mac")]
    mac: String,
    #[serde(default, rename = "@ip")]
    ip: String,
    #[serde(default, rename = "@name")]
    name: String,
}

/// Whether a network answers questions for names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hypervisor) enum Names {
    /// Its own names, and others by the host's resolver.
    Served,
    /// None: the host has no resolver, without which dnsmasq would not start.
    Off,
}

/// The description of a network.
pub(in crate::hypervisor) fn network(templates: &Templates, spec: &NetworkSpec, names: Names) -> Result<String> {
    #[derive(Serialize)]
    struct View<'a> {
        name: &'a str,
        bridge: &'a str,
        gateway: String,
        prefix: u8,
        has_resolver: bool,
    }
    let view = View {
        name: plain_text("the network's name", &spec.name)?,
        bridge: plain_text("the bridge's name", &spec.bridge)?,
        gateway: spec.subnet.gateway().to_string(),
        prefix: spec.subnet.prefix(),
        has_resolver: names == Names::Served,
    };
    templates.render(NETWORK, view)
}

/// A DHCP entry; only the card for one that is to be removed.
pub(in crate::hypervisor) fn host_entry(
    templates: &Templates,
    mac: MacAddress,
    answer: Option<(GuestAddress, &str)>,
) -> Result<String> {
    #[derive(Serialize)]
    struct View<'a> {
        mac: String,
        name: Option<&'a str>,
        address: Option<String>,
    }
    let name = match answer {
        Some((_, name)) => Some(plain_text("a host name", name)?),
        None => None,
    };
    let address = answer.map(|(address, _)| address.to_string());
    templates.render(HOST_ENTRY, View { mac: mac.to_string(), name, address })
}

/// Reads a network's description.
pub(in crate::hypervisor) fn read_network(xml: &str) -> Result<DescribedNetwork> {
    let parsed: NetworkXml = read::parse(xml)?;
    let ip = parsed.ip.into_iter().find(|ip| ip.family.is_empty() || ip.family == "ipv4");
    let address = ip.as_ref().and_then(|ip| {
        let mask = |mask: Ipv4Addr| u8::try_from(u32::from(mask).leading_ones()).ok();
        Some((ip.address.as_deref()?.parse().ok()?, ip.prefix.or_else(|| ip.netmask.and_then(mask))?))
    });
    let items = ip.and_then(|ip| ip.dhcp).unwrap_or_default().items;
    let host = |item| match item {
        DhcpItem::Host(host) => Some(HostEntry {
            mac: host.mac.parse().ok(),
            address: host.ip.parse().ok().map(GuestAddress),
            name: host.name,
        }),
        DhcpItem::Other => None,
    };
    Ok(DescribedNetwork {
        bridge: parsed.bridge.map(|bridge| bridge.name).unwrap_or_default(),
        address,
        forward: parsed.forward.map(|forward| forward.mode).unwrap_or_default(),
        hosts: items.into_iter().filter_map(host).collect(),
    })
}
