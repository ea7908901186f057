//! Names of cards from the PCI ID database (`pci.ids`), where the host has one.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use super::files::{self, Files};
use crate::model::card::pci::{PciIds, Vendor};

/// Where distributions keep it: Debian and Ubuntu, then Fedora and its kin.
const PLACES: [&str; 2] = ["usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids"];

/// It has less than 2 MiB; more is not it.
const MAX_SIZE: u64 = 8 << 20;

/// Longer lines are none of its.
const MAX_LINE: usize = 1024;

/// The names of some kinds of card. The file is read once and not kept: it is large, and looked into rarely.
pub(super) fn look_up(files: &Files, place: Option<&Path>, wanted: &[PciIds]) -> HashMap<(u16, u16), String> {
    let mut places: Vec<PathBuf> = place.map(Path::to_owned).into_iter().collect();
    if places.is_empty() {
        places.extend(PLACES.map(|place| files.path(place)));
    }
    let Some(file) = places.iter().find_map(|place| files::open(place)) else { return HashMap::new() };
    let mut names = HashMap::new();
    let mut vendor = None;
    let mut reader = BufReader::new(file.take(MAX_SIZE));
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return names,
            Ok(_) => {}
        }
        let Ok(text) = std::str::from_utf8(&line) else { continue };
        if text.len() > MAX_LINE || text.starts_with("\t\t") || text.starts_with('#') {
            continue;
        }
        let device = text.strip_prefix('\t');
        let entry = device.unwrap_or(text).trim_end();
        let number = entry.get(..4).and_then(|id| u16::from_str_radix(id, 16).ok());
        let (Some(number), Some(name)) = (number, entry.get(4..).map(str::trim).filter(|name| !name.is_empty())) else {
            // Device classes at the file's end are no devices of the last vendor.
            vendor = vendor.filter(|_| device.is_some());
            continue;
        };
        match (device, vendor) {
            (None, _) => vendor = Some(number),
            (Some(_), Some(vendor)) if wanted.iter().any(|ids| (ids.vendor, ids.device) == (vendor, number)) => {
                names.insert((vendor, number), with_maker(vendor, name));
            }
            _ => {}
        }
    }
}

/// `GA100 [A100 PCIe 80GB]` of NVIDIA is `NVIDIA A100 PCIe 80GB`.
fn with_maker(vendor: u16, name: &str) -> String {
    let bracket = name.rsplit_once('[').and_then(|(_, rest)| rest.strip_suffix(']')).filter(|name| !name.is_empty());
    let name = bracket.unwrap_or(name);
    match Vendor::from_id(vendor) {
        Some(maker) => format!("{maker} {name}"),
        None => name.to_owned(),
    }
}
