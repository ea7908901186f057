//! The spare ports of a running machine, out of libvirt's description.

use std::collections::BTreeSet;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::super::{ErrorKind, HypervisorError, Result};
use super::view::spare_ports;

/// Buses behind spare ports that hold nothing, whoever plugged what is in the others.
pub(in crate::hypervisor) fn free_ports(xml: &str) -> Result<Vec<u8>> {
    let mut reader = Reader::from_str(xml);
    let mut path: Vec<String> = Vec::new();
    let (mut ports, mut taken) = (BTreeSet::new(), BTreeSet::new());
    loop {
        match reader.read_event().map_err(|e| broken(&e))? {
            Event::Start(start) => {
                path.push(start.name().as_ref().to_owned());
                note(&path, &start, &mut ports, &mut taken);
            }
            Event::Empty(empty) => {
                path.push(empty.name().as_ref().to_owned());
                note(&path, &empty, &mut ports, &mut taken);
                path.pop();
            }
            Event::End(_) => {
                path.pop();
            }
            Event::Eof => break,
            _ => {}
        }
    }
    Ok(spare_ports().filter(|bus| ports.contains(bus) && !taken.contains(bus)).collect())
}

fn broken(e: &quick_xml::Error) -> HypervisorError {
    HypervisorError::new(ErrorKind::Permanent, "looking for free ports", format!("it is not XML: {e}"))
}

fn note(path: &[String], element: &BytesStart<'_>, ports: &mut BTreeSet<u8>, taken: &mut BTreeSet<u8>) {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let has = |name: &str, value: &str| attribute(element, name).as_deref() == Some(value);
    match path.as_slice() {
        ["domain", "devices", "controller"] if has("type", "pci") && has("model", "pcie-root-port") => {
            ports.extend(attribute(element, "index").and_then(|index| index.parse::<u8>().ok()));
        }
        // The guest's side of a device; the host's is inside of its source.
        ["domain", "devices", _, "address"] if has("type", "pci") => {
            let bus = attribute(element, "bus");
            taken.extend(bus.and_then(|bus| u8::from_str_radix(bus.trim_start_matches("0x"), 16).ok()));
        }
        _ => {}
    }
}

fn attribute(element: &BytesStart<'_>, name: &str) -> Option<String> {
    let found = element.try_get_attribute(name).ok().flatten()?;
    Some(AsRef::<str>::as_ref(&found.value).to_owned())
}
