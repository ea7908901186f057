//! The second line against texts that reach into the description, and against templates that forget a device.
//!
//! Escaping is the first line. Here the finished XML is parsed again: it must have the devices of the spec, name,
//! UUID and metadata of the machine, and the same elements as with harmless texts in place of the free ones.

use quick_xml::Reader;
use quick_xml::events::Event;

use super::super::{DomainSpec, ErrorKind, HypervisorError, Result};
use super::read::read_domain;
use crate::model::vm::domain_name;

pub(super) fn verify(spec: &DomainSpec, xml: &str, plain_xml: &str) -> Result<()> {
    let refuse = |message: String| {
        Err(HypervisorError::new(
            ErrorKind::Permanent,
            format!("checking the description of {}", domain_name(spec.id)),
            format!("{message}; look at the template domain.xml.j2"),
        ))
    };
    let (elements, plain_elements) = (elements(xml)?, elements(plain_xml)?);
    if elements != plain_elements {
        return refuse("its title or kernel arguments would change its structure".to_owned());
    }
    let count = |name: &str| elements.iter().filter(|path| **path == format!("/domain/devices/{name}")).count();
    for (what, is, should) in [
        ("disk", count("disk"), spec.disks.len()),
        ("interface", count("interface"), usize::from(spec.nic.is_some())),
        ("hostdev", count("hostdev"), spec.hostdevs.len()),
        ("tpm", count("tpm"), usize::from(spec.tpm)),
        ("graphics", count("graphics"), usize::from(spec.graphics)),
    ] {
        if is != should {
            return refuse(format!("it has {is} <{what}> and should have {should}"));
        }
    }
    let read = read_domain(xml)?;
    if read.id != Some(spec.id) {
        return refuse("it carries another name, UUID or metadata than the machine's".to_owned());
    }
    let observed = &read.observed;
    if observed.shape != spec.shape() || observed.caps != spec.caps {
        return refuse("its metadata or limits are not the machine's".to_owned());
    }
    if (observed.vcpus, observed.memory) != (spec.vcpus, spec.memory) {
        return refuse("its vCPUs or memory are not the machine's".to_owned());
    }
    let mut hostdevs: Vec<String> = spec.hostdevs.iter().map(ToString::to_string).collect();
    hostdevs.sort();
    let mut read_hostdevs = observed.hostdevs.clone();
    read_hostdevs.sort();
    if read_hostdevs != hostdevs {
        return refuse("its host devices are not the machine's".to_owned());
    }
    let files: Vec<&str> = spec.disks.iter().filter_map(|disk| disk.path.to_str()).collect();
    if read.disks.iter().map(|disk| disk.file.as_str()).ne(files) {
        return refuse("its disks are not the machine's".to_owned());
    }
    Ok(())
}

/// The path of every element, in order.
fn elements(xml: &str) -> Result<Vec<String>> {
    let broken = |e: &dyn std::fmt::Display| {
        HypervisorError::new(ErrorKind::Permanent, "reading a description back", format!("it is not XML: {e}"))
    };
    let mut reader = Reader::from_str(xml);
    let mut path = String::new();
    let mut paths = Vec::new();
    loop {
        match reader.read_event().map_err(|e| broken(&e))? {
            Event::Start(start) => {
                path.push('/');
                path.push_str(start.name().as_ref());
                paths.push(path.clone());
            }
            Event::Empty(empty) => {
                paths.push(format!("{path}/{}", empty.name().as_ref()));
            }
            Event::End(_) => path.truncate(path.rfind('/').unwrap_or(0)),
            Event::DocType(_) | Event::PI(_) => return Err(broken(&"it has instructions for a processor")),
            Event::Eof => return Ok(paths),
            _ => {}
        }
    }
}
