//! Layouts: what cards are to be divided into, as one value a card and as files of many.
//!
//! ```text
//!   mig-parted's file ---------- read --+                                   +-- CardLayout of each card that is named
//!   vgpu-device-manager's file -- read --+--> LayoutFile --> plan::layout --+
//!                          <---- write --+        (configs, each of entries)
//! ```
//! The two formats are NVIDIA's and alike: named configs, each a list of entries that say which cards (by index, and by a
//! filter of PCI numbers) and what of each. They are read as their own programs read them (mig-parted and
//! vgpu-device-manager, `api/spec/v1/spec.go`): `version: v1`, `devices` always, unknown keys refused. More is refused than
//! there, where it would be a slip: what names a card twice, counts that no card has, keys twice.
//!
//! A file comes from a stranger. Its size, its depth, its nodes and what aliases make of it are bounded, so that reading it
//! costs little whatever it says.

mod read;
#[cfg(test)]
mod tests;
mod write;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::VgpuTypeName;
use super::mig::{Instance, MigProfile};
use crate::model::pci::PciIds;

/// What one card is to be divided into, between machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "layout")]
pub enum CardLayout {
    /// Not divided: no MIG, no vGPUs.
    Host,
    /// MIG is on, with just these instances.
    Mig {
        /// With their placements, by the first memory slice.
        instances: Vec<Instance>,
        /// What the instances are for, where they stand behind vGPUs: so many of each type. Empty where only instances
        /// were asked for.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        vgpus: Vec<(VgpuTypeName, u32)>,
    },
    /// MIG is off, and the card carries vGPUs that share it by time: so many of each type.
    Vgpu {
        /// By name.
        types: Vec<(VgpuTypeName, u32)>,
    },
}

impl fmt::Display for CardLayout {
    /// `mig: 3g.40gb@0, 3g.40gb@4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let typed = |(name, count): &(VgpuTypeName, u32)| format!("{count} {name}");
        let (word, parts): (_, Vec<String>) = match self {
            Self::Host => ("host", Vec::new()),
            Self::Vgpu { types } => ("vgpu", types.iter().map(typed).collect()),
            Self::Mig { instances, vgpus } => {
                ("mig", instances.iter().map(ToString::to_string).chain(vgpus.iter().map(typed)).collect())
            }
        };
        if parts.is_empty() { f.write_str(word) } else { write!(f, "{word}: {}", parts.join(", ")) }
    }
}

/// Which program's format a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayoutFormat {
    /// NVIDIA mig-parted.
    MigParted,
    /// NVIDIA vgpu-device-manager.
    VgpuDeviceManager,
}

impl LayoutFormat {
    /// The key of its configs.
    pub const fn configs_key(self) -> &'static str {
        match self {
            Self::MigParted => "mig-configs",
            Self::VgpuDeviceManager => "vgpu-configs",
        }
    }

    /// The key of what an entry makes.
    pub const fn devices_key(self) -> &'static str {
        match self {
            Self::MigParted => "mig-devices",
            Self::VgpuDeviceManager => "vgpu-devices",
        }
    }
}

impl fmt::Display for LayoutFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::MigParted => "mig-parted",
            Self::VgpuDeviceManager => "vgpu-device-manager",
        })
    }
}

/// A file: named configs, of which one is applied at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutFile {
    /// Whose format.
    pub format: LayoutFormat,
    /// The configs by name; at least one, each with at least one entry.
    pub configs: BTreeMap<String, Vec<LayoutEntry>>,
}

/// One entry of a config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutEntry {
    /// Only cards with one of these numbers; empty lets all through.
    pub filter: Vec<DeviceFilter>,
    /// Which cards of the host.
    pub devices: LayoutDevices,
    /// What each of them is to be.
    pub content: LayoutContent,
}

/// Which cards of a host an entry is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayoutDevices {
    /// Every card that the filter lets through.
    All,
    /// Those with these numbers, counted from 0 in the order of their addresses; each once.
    Indexes(Vec<u32>),
}

/// What an entry makes of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayoutContent {
    /// MIG off.
    MigOff,
    /// MIG on, with so many instances of each profile.
    Mig(Vec<(MigProfile, u32)>),
    /// So many vGPUs of each type; all of them share the card by time, or all have a MIG instance behind them.
    Vgpu(Vec<(VgpuTypeName, u32)>),
}

/// The PCI numbers of a kind of card, written device first: `0x20B210DE`, with the board's where that must be told apart
/// (`0x25B610DE:0x14A910DE`; A2 and A16 share the first).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceFilter {
    device: u16,
    vendor: u16,
    board: Option<(u16, u16)>,
}

impl DeviceFilter {
    /// Cards of this device and maker, whatever their board.
    pub const fn of(ids: &PciIds) -> Self {
        Self { device: ids.device, vendor: ids.vendor, board: None }
    }

    /// True where it lets these through.
    pub fn lets(&self, ids: &PciIds) -> bool {
        // The filter has the board's device first, the kernel its maker.
        let is_board = self.board.is_none_or(|(device, vendor)| ids.subsystem == Some((vendor, device)));
        ids.device == self.device && ids.vendor == self.vendor && is_board
    }

    /// Reads one; `None` where it is none.
    fn parse(text: &str) -> Option<Self> {
        let (card, board) = match text.split_once(':') {
            Some((card, board)) => (card, Some(pair(board)?)),
            None => (text, None),
        };
        let (device, vendor) = pair(card)?;
        Some(Self { device, vendor, board })
    }
}

/// `0x20B210DE`: two numbers of four digits.
fn pair(text: &str) -> Option<(u16, u16)> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))?;
    let is_plain = digits.len() == 8 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let (first, second) = digits.split_at_checked(4).filter(|_| is_plain)?;
    Some((u16::from_str_radix(first, 16).ok()?, u16::from_str_radix(second, 16).ok()?))
}

impl fmt::Display for DeviceFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:04X}{:04X}", self.device, self.vendor)?;
        self.board.map_or(Ok(()), |(device, vendor)| write!(f, ":0x{device:04X}{vendor:04X}"))
    }
}

/// Why a text is no layout file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutFileError {
    /// More than [`LayoutFile::MAX_SIZE`].
    #[error("the file has {0} bytes; a layout file has at most {max}, so this is probably another file", max = LayoutFile::MAX_SIZE)]
    TooLarge(usize),
    /// No YAML, or too much of it.
    #[error("line {line}, column {column}: {problem}")]
    Yaml {
        /// Counted from 1.
        line: u64,
        /// Counted from 1.
        column: u64,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// YAML that is no layout.
    #[error("{at}: {problem}")]
    Shape {
        /// Config, entry and key.
        at: String,
        /// What is wrong, and what to do.
        problem: String,
    },
}
