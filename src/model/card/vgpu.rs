//! vGPUs as the kernel shows them at one function: which could be made there, and which are.
//!
//! ```text
//!   mediated devices     parent/mdev_supported_types/TYPE/{name,available_instances}, a UUID for each that is made
//!   vendor's VFIO        VF/nvidia/{creatable_vgpu_types,current_vgpu_type}, the VF itself is what a machine gets
//! ```
//! Which of the two a card has depends on card and driver, not on the kernel: hosts have both beside each other. A parent
//! is a virtual function, or on cards without them the card itself.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::model::gpu::VgpuTypeName;
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

impl VgpuFramework {
    /// In words.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Mdev => "mdev",
            Self::VendorVfio => "vendor-vfio",
        }
    }
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
