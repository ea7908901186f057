//! vGPUs as the kernel shows them at one function: which could be made there, and which are.
//!
//! ```text
//!   mediated devices     parent/mdev_supported_types/TYPE/{name,available_instances}, a UUID for each that is made
//!   vendor's VFIO        VF/nvidia/{creatable_vgpu_types,current_vgpu_type}, the VF itself is what a machine gets
//! ```
//! Which of the two a card has depends on card and driver, not on the kernel: hosts have both beside each other. A parent
//! is a virtual function, or on cards without them the card itself.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::model::gpu::VgpuTypeName;
use crate::model::pci::PciAddress;
use crate::model::units::Mib;

/// How vGPUs are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VgpuFramework {
    /// Mediated devices.
    Mdev,
    /// Types written to virtual functions, which stay on their driver.
    VendorVfio,
}

/// A type that could be made at a parent now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedType {
    /// What the kernel calls it: `nvidia-746`, `1145`. Good for this moment only.
    pub id: String,
    /// Its name.
    pub name: VgpuTypeName,
    /// How many more, if nothing else of the card were in the way.
    pub available: u32,
    /// Its framebuffer, where the kernel tells it.
    #[serde(default)]
    pub memory: Option<Mib>,
    /// At most so many on a card, where the kernel tells it.
    #[serde(default)]
    pub most: Option<u32>,
}

impl OfferedType {
    /// Its framebuffer: as told, else as named.
    pub fn memory(&self) -> Option<Mib> {
        self.name.grade().map(|grade| grade.memory).or(self.memory)
    }
}

/// A vGPU that was made at a parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeVgpu {
    /// Of a mediated device.
    #[serde(default)]
    pub uuid: Option<Uuid>,
    /// What the kernel calls its type.
    pub type_id: String,
    /// The type's name; a function that has a type need not list it any more.
    #[serde(default)]
    pub name: Option<VgpuTypeName>,
    /// The MIG instance behind it.
    #[serde(default)]
    pub gpu_instance: Option<u32>,
}

/// What one function can carry, and carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VgpuParent {
    /// In which way.
    pub framework: VgpuFramework,
    /// What could be made now.
    pub offered: Vec<OfferedType>,
    /// What is.
    pub made: Vec<MadeVgpu>,
    /// What could not be read, in plain words. A parent with faults is given to nobody.
    #[serde(default)]
    pub faults: Vec<String>,
}

/// Where a vGPU is: a function that has a type, or a mediated device of a function. As a text: `0000:c8:00.4`, and
/// `0000:c8:00.4/UUID`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct VgpuSite {
    /// The function that carries it.
    pub parent: PciAddress,
    /// Of a mediated device.
    #[serde(default)]
    pub uuid: Option<Uuid>,
}

impl fmt::Display for VgpuSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.uuid {
            Some(uuid) => write!(f, "{}/{uuid}", self.parent),
            None => write!(f, "{}", self.parent),
        }
    }
}

/// Why a text is no [`VgpuSite`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no place of a vGPU; write for example 0000:c8:00.4, or 0000:c8:00.4/UUID for a mediated device")]
pub struct VgpuSiteError(String);

impl FromStr for VgpuSite {
    type Err = VgpuSiteError;

    fn from_str(text: &str) -> Result<Self, VgpuSiteError> {
        let wrong = || VgpuSiteError(text.to_owned());
        let (parent, uuid) = match text.split_once('/') {
            Some((parent, uuid)) => (parent, Some(Uuid::try_parse(uuid).map_err(|_| wrong())?)),
            None => (text, None),
        };
        Ok(Self { parent: parent.parse().map_err(|_| wrong())?, uuid })
    }
}

/// What is to be done with a vGPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VgpuJob {
    /// Make it. What is there already and of this type is left as it is.
    Make {
        /// Where.
        site: VgpuSite,
        /// Of which type; its number is looked up when it is made.
        name: VgpuTypeName,
    },
    /// Take it away, if it is of this type.
    Remove {
        /// Where.
        site: VgpuSite,
        /// Of which type it was made.
        name: VgpuTypeName,
    },
}

impl VgpuJob {
    /// Where.
    pub const fn site(&self) -> VgpuSite {
        match self {
            Self::Make { site, .. } | Self::Remove { site, .. } => *site,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_written_as_it_is_read() {
        for text in ["0000:c8:00.4", "10000:e1:00.1/c2177883-f1bb-47f0-914d-32a22e3a8804"] {
            assert_eq!(text.parse::<VgpuSite>().unwrap().to_string(), text);
        }
        for bad in ["", "0000:c8:00.4/", "0000:c8:00.4/../x", "c8", "/c2177883-f1bb-47f0-914d-32a22e3a8804"] {
            let error = bad.parse::<VgpuSite>().unwrap_err().to_string();
            assert!(error.contains("is no place of a vGPU"), "{error}");
        }
    }
}
