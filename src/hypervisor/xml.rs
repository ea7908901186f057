//! Domain and network descriptions: written from templates, read back by quick-xml.
//!
//! ```text
//!   DomainSpec --view.rs--> values --templates/domain.xml.j2--> XML --verify.rs--> libvirt
//!   libvirt's XML --read.rs--> Description (shape, caps, sizes, devices)
//! ```
//!
//! Writing is by template only and reading is by structs only: XML of libvirt is never written back from structs,
//! which would lose what they do not know. Nothing here talks to libvirt.

mod network;
mod ports;
mod read;
mod schema;
#[cfg(test)]
mod tests;
mod verify;
mod view;

use std::io;
use std::path::PathBuf;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error as TemplateError, ErrorKind as TemplateErrorKind, UndefinedBehavior};
use serde::Serialize;

pub(super) use self::network::{HostEntry, Names, host_entry, network, read_network};
pub(super) use self::ports::free_ports;
pub(super) use self::read::{Description, cpus_of_node, machine_type, read_domain};
pub(super) use self::view::{CPU_PERIOD_US, Site, cpu_quota_us, net_average};
use super::{DomainSpec, ErrorKind, HypervisorError, Result};
use crate::model::caps::Caps;
use crate::model::gpu::HostDevice;
use crate::model::units::Mib;

/// Namespace of the element that makes a domain ours.
pub(super) const VM_URI: &str = "urn:gvm:domain:1";

/// Namespace of the element that keeps the limits as they were asked for. Apart from [`VM_URI`], because libvirt
/// replaces metadata by namespace and limits change while the rest stays.
pub(super) const CAPS_URI: &str = "urn:gvm:caps:1";

/// Prefix of [`CAPS_URI`], which libvirt wants by itself when metadata is replaced.
pub(super) const CAPS_PREFIX: &str = "gvmcaps";

/// The built-in templates by file name.
const BUILT_IN: [(&str, &str); 6] = [
    (DOMAIN, include_str!("../../templates/domain.xml.j2")),
    (NETWORK, include_str!("../../templates/network.xml.j2")),
    (HOST_ENTRY, include_str!("../../templates/host-entry.xml.j2")),
    (DIMM, include_str!("../../templates/dimm.xml.j2")),
    (HOSTDEV, include_str!("../../templates/hostdev.xml.j2")),
    (CAPS, include_str!("../../templates/caps.xml.j2")),
];

const DOMAIN: &str = "domain.xml.j2";
const NETWORK: &str = "network.xml.j2";
const HOST_ENTRY: &str = "host-entry.xml.j2";
const DIMM: &str = "dimm.xml.j2";
const HOSTDEV: &str = "hostdev.xml.j2";
const CAPS: &str = "caps.xml.j2";

/// Those that an administrator may replace.
const REPLACEABLE: [&str; 2] = [DOMAIN, NETWORK];

/// Where templates come from.
#[derive(Clone, Debug, Default)]
pub struct Templates {
    folder: Option<PathBuf>,
}

impl Templates {
    /// The built-in templates, each replaced by a file of the same name in `folder` where there is one. Files are
    /// read at every use: a change counts from the next definition on.
    pub const fn new(folder: Option<PathBuf>) -> Self {
        Self { folder }
    }

    fn source(&self, name: &'static str) -> Result<(String, String)> {
        let built_in = BUILT_IN.iter().find(|(file, _)| *file == name).map_or("", |(_, text)| text);
        let Some(folder) = self.folder.as_deref().filter(|_| REPLACEABLE.contains(&name)) else {
            return Ok((name.to_owned(), built_in.to_owned()));
        };
        let path = folder.join(name);
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok((path.display().to_string(), text)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok((name.to_owned(), built_in.to_owned())),
            Err(e) => {
                let doing = format!("reading template {}", path.display());
                Err(HypervisorError::new(ErrorKind::Permanent, doing, e.to_string()))
            }
        }
    }

    /// How the administrator's templates differ from the built-in ones, as a unified diff; empty where they do not.
    ///
    /// # Errors
    /// Where a file of the administrator cannot be read.
    pub(super) fn difference(&self) -> Result<String> {
        let mut all = String::new();
        for name in REPLACEABLE {
            let built_in = BUILT_IN.iter().find(|(file, _)| *file == name).map_or("", |(_, text)| text);
            let (shown, text) = self.source(name)?;
            let diff = similar::TextDiff::from_lines(built_in, &text);
            let diff = diff.unified_diff().header(&format!("built-in {name}"), &shown).to_string();
            all.push_str(&diff);
        }
        Ok(all)
    }

    fn render(&self, name: &'static str, values: impl Serialize) -> Result<String> {
        let (shown, text) = self.source(name)?;
        let rendered = environment().render_named_str(&shown, &text, Serde(values));
        rendered.map_err(|e| {
            let line = e.line().map(|line| format!(" line {line}")).unwrap_or_default();
            let detail = e.detail().map(|detail| format!(": {detail}")).unwrap_or_default();
            let doing = format!("filling template {shown}{line}");
            HypervisorError::new(ErrorKind::Permanent, doing, format!("{}{detail}", e.kind()))
        })
    }
}

/// Instructions of the template engine for one text; the built-in ones need some thousands. An administrator's loop
/// without an end is told, and holds nobody up.
const STEPS: u64 = 1_000_000;

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_fuel(Some(STEPS));
    // Lines that hold only a tag or a comment leave nothing behind.
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    // minijinja's own escaping is for HTML; this one is for XML text and for attributes in either quote.
    environment.set_formatter(|out, _state, value| {
        let text = value.to_string();
        let write =
            if value.is_safe() { out.write_str(&text) } else { out.write_str(&quick_xml::escape::escape(&text)) };
        write.map_err(|_| TemplateError::new(TemplateErrorKind::WriteFailure, "cannot write"))
    });
    environment
}

/// The domain's description, proven to hold the devices of the spec and nothing that its texts brought in.
pub(super) fn domain(templates: &Templates, spec: &DomainSpec, site: &Site) -> Result<String> {
    let xml = templates.render(DOMAIN, view::view(spec, site)?)?;
    let mut plain = spec.clone();
    plain.title = "plain".to_owned();
    if let super::Firmware::Kernel { cmdline, .. } = &mut plain.firmware {
        *cmdline = "plain".to_owned();
    }
    let plain_xml = templates.render(DOMAIN, view::view(&plain, site)?)?;
    verify::verify(spec, &xml, &plain_xml)?;
    Ok(xml)
}

/// A DIMM to plug.
pub(super) fn dimm(templates: &Templates, size: Mib) -> Result<String> {
    #[derive(Serialize)]
    struct View {
        size_kib: u64,
    }
    templates.render(DIMM, View { size_kib: size.kib() })
}

/// A device of the host to plug into a port.
pub(super) fn hostdev(templates: &Templates, device: HostDevice, port: u8) -> Result<String> {
    templates.render(HOSTDEV, view::plugged(device, port))
}

/// The limits as asked for, as an element for metadata; without prefix, which libvirt adds.
pub(super) fn caps(templates: &Templates, caps: &Caps) -> Result<String> {
    #[derive(Serialize)]
    struct View {
        caps: Vec<view::NamedCap>,
    }
    templates.render(CAPS, View { caps: view::named(caps) })
}

/// Refuses what XML cannot carry or would change on the way, such as line breaks in attributes.
fn plain_text<'a>(what: &str, text: &'a str) -> Result<&'a str> {
    let is_bad = |c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}');
    match text.chars().find(|c| is_bad(*c)) {
        None => Ok(text),
        Some(bad) => Err(HypervisorError::new(
            ErrorKind::Invalid,
            format!("writing {what} into a description"),
            format!("it has the character U+{:04X}, which is not text", u32::from(bad)),
        )),
    }
}
