//! The members' network and the addresses that it hands out.

use std::path::Path;

use virt::connect::Connect;
use virt::error::ErrorNumber;
use virt::network::Network;
use virt_sys as sys;

use super::Shared;
use super::error::{Said, is};
use crate::hypervisor::xml::{self, HostEntry, Names, read_network};
use crate::hypervisor::{ErrorKind, HypervisorError, Result};
use crate::model::network::{GuestAddress, MacAddress, NetworkSpec};

/// dnsmasq ends at once where this is missing or a dangling link.
const RESOLVER: &str = "/etc/resolv.conf";

/// libvirt counts sections of a list from the end with -1: any place.
const ANY_PLACE: i32 = -1;

pub(super) fn ensure(conn: &Connect, shared: &Shared, spec: &NetworkSpec) -> Result<()> {
    let doing = format!("making network {}", spec.name);
    let (network, is_new) = match lookup(conn, &spec.name, &doing)? {
        Some(network) => {
            compare(&network, spec, &doing)?;
            (network, false)
        }
        None => {
            let names = if Path::new(RESOLVER).exists() { Names::Served } else { Names::Off };
            let xml = xml::network(&shared.templates, spec, names)?;
            (conn.define_network_xml(&xml).said(&doing)?, true)
        }
    };
    if !network.is_active().said(&doing)?
        && let Err(error) = network.create()
        // Somebody else may have been faster.
        && !network.is_active().unwrap_or(false)
    {
        if is_new {
            // What failed once would otherwise stand in the way of a corrected try.
            let _ = network.undefine();
        }
        return Err(error).said(&doing);
    }
    if !network.autostart().said(&doing)? {
        network.set_autostart(true).said(&doing)?;
    }
    Ok(())
}

fn lookup(conn: &Connect, name: &str, doing: &str) -> Result<Option<Network>> {
    match conn.lookup_network_by_name(name) {
        Ok(network) => Ok(Some(network)),
        Err(error) if is(&error, ErrorNumber::NoNetwork) => Ok(None),
        Err(error) => Err(error).said(doing),
    }
}

/// An existing network must be the wanted one; others live on it, so that it is never changed.
fn compare(network: &Network, spec: &NetworkSpec, doing: &str) -> Result<()> {
    let is = read_network(&network.xml_desc(0).said(doing)?)?;
    let wanted = (spec.subnet.gateway(), spec.subnet.prefix());
    let conflict = |message: String| Err(HypervisorError::new(ErrorKind::Conflict, doing, message));
    let way_out = format!(
        "set [network] name or subnet otherwise, or remove the old one: `virsh net-destroy {0}; virsh net-undefine {0}`",
        spec.name
    );
    if is.address != Some(wanted) {
        let has = is.address.map_or_else(|| "no address".to_owned(), |(address, prefix)| format!("{address}/{prefix}"));
        return conflict(format!("a network of this name has {has}, not {}/{}; {way_out}", wanted.0, wanted.1));
    }
    if is.bridge != spec.bridge {
        return conflict(format!(
            "a network of this name has the bridge {}, not {}; {way_out}",
            is.bridge, spec.bridge
        ));
    }
    if is.forward != "nat" {
        let has = if is.forward.is_empty() { "no way out" } else { &is.forward };
        return conflict(format!("a network of this name has {has} where nat is wanted; {way_out}"));
    }
    Ok(())
}

/// Where a change of a network goes: what is stored, and what runs.
struct Layer {
    read: u32,
    update: u32,
}

const STORED: Layer = Layer { read: sys::VIR_NETWORK_XML_INACTIVE, update: sys::VIR_NETWORK_UPDATE_AFFECT_CONFIG };
const RUNNING: Layer = Layer { read: 0, update: sys::VIR_NETWORK_UPDATE_AFFECT_LIVE };

fn layers(network: &Network, doing: &str) -> Result<Vec<Layer>> {
    Ok(if network.is_active().said(doing)? { vec![STORED, RUNNING] } else { vec![STORED] })
}

fn hosts(network: &Network, layer: &Layer, doing: &str) -> Result<Vec<HostEntry>> {
    let xml = match network.xml_desc(layer.read) {
        // In-process drivers have one layer.
        Err(error) if is(&error, ErrorNumber::InvalidArg) => network.xml_desc(0),
        xml => xml,
    };
    Ok(read_network(&xml.said(doing)?)?.hosts)
}

fn update(network: &Network, command: u32, entry: &str, layer: &Layer, doing: &str) -> Result<()> {
    let section = sys::VIR_NETWORK_SECTION_IP_DHCP_HOST;
    network.update(command, section, ANY_PLACE, entry.trim(), layer.update).map(|_| ()).said(doing)
}

pub(super) fn ensure_host_entry(
    conn: &Connect,
    shared: &Shared,
    name_of_network: &str,
    mac: MacAddress,
    address: GuestAddress,
    name: &str,
) -> Result<()> {
    let doing = format!("giving {address} to {mac} on network {name_of_network}");
    let missing = || HypervisorError::new(ErrorKind::NotFound, doing.as_str(), "there is no such network");
    let network = lookup(conn, name_of_network, &doing)?.ok_or_else(missing)?;
    let wanted = HostEntry { mac: Some(mac), address: Some(address), name: name.to_owned() };
    let entry = xml::host_entry(&shared.templates, mac, Some((address, name)))?;
    for layer in layers(&network, &doing)? {
        let hosts = hosts(&network, &layer, &doing)?;
        if hosts.contains(&wanted) {
            continue;
        }
        let is_other = |host: &&HostEntry| host.mac != Some(mac);
        let clash = |host: &&HostEntry| host.address == Some(address) || (host.name == name && !name.is_empty());
        if let Some(other) = hosts.iter().filter(is_other).find(clash) {
            let holder = other.mac.map_or_else(|| other.name.clone(), |mac| mac.to_string());
            let message = format!("{holder} has this address or name already");
            return Err(HypervisorError::new(ErrorKind::Conflict, doing, message));
        }
        let command = if hosts.iter().any(|host| host.mac == Some(mac)) {
            sys::VIR_NETWORK_UPDATE_COMMAND_MODIFY
        } else {
            sys::VIR_NETWORK_UPDATE_COMMAND_ADD_LAST
        };
        update(&network, command, &entry, &layer, &doing)?;
    }
    Ok(())
}

pub(super) fn ensure_host_entry_gone(
    conn: &Connect,
    shared: &Shared,
    name_of_network: &str,
    mac: MacAddress,
) -> Result<()> {
    let doing = format!("forgetting the address of {mac} on network {name_of_network}");
    let Some(network) = lookup(conn, name_of_network, &doing)? else { return Ok(()) };
    let entry = xml::host_entry(&shared.templates, mac, None)?;
    for layer in layers(&network, &doing)? {
        let hosts = hosts(&network, &layer, &doing)?;
        if hosts.iter().any(|host| host.mac == Some(mac)) {
            update(&network, sys::VIR_NETWORK_UPDATE_COMMAND_DELETE, &entry, &layer, &doing)?;
        }
    }
    Ok(())
}
