//! Functions of a card's slot as they stand at one moment, and what is wished of their drivers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::pci::PciIds;
use super::shape::ShapeJob;
use super::vgpu::{MadeVgpu, VgpuJob};
use crate::model::gpu::PciAddress;

/// Longer names no driver has: the kernel's module names end at 56.
const MAX_DRIVER: usize = 64;

/// One function, read anew and without its neighbours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionState {
    /// Where.
    pub address: PciAddress,
    /// Whether the kernel shows a device there. Where it does not, all else is empty.
    pub is_there: bool,
    /// Its numbers: whether it is still the same device.
    pub ids: Option<PciIds>,
    /// Its class; `None` where it cannot be read.
    pub class: Option<u32>,
    /// The driver that has it.
    pub driver: Option<String>,
    /// The only driver that may take it, where one is set.
    pub driver_override: Option<String>,
    /// True where the driver is one of VFIO's.
    pub is_vfio: bool,
    /// Whether it answers; why not, in plain words. Asleep counts as answering: it was not woken to be asked.
    pub answers: Result<(), String>,
    /// The number of its IOMMU group.
    pub iommu_group: Option<u32>,
    /// vGPUs that it carries.
    #[serde(default)]
    pub vgpus: Vec<MadeVgpu>,
    /// Whether a process has its VFIO device open, or that of a mediated device of it; `None` where none was seen and not
    /// all could be looked into.
    pub is_open: Option<bool>,
    /// Its mediated devices that a process was seen to have open.
    #[serde(default)]
    pub open_mdevs: Vec<Uuid>,
}

impl FunctionState {
    /// What there is to say of a place without a device.
    pub fn absent(address: PciAddress) -> Self {
        Self {
            address,
            is_there: false,
            ids: None,
            class: None,
            driver: None,
            driver_override: None,
            is_vfio: false,
            answers: Err("it is not there".to_owned()),
            iommu_group: None,
            vgpus: Vec::new(),
            is_open: Some(false),
            open_mdevs: Vec::new(),
        }
    }
}

/// A function that is to go back to the driver that it had. As a text: `0000:41:00.0=nvidia`, and `0000:41:00.0=` where
/// it had none.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Restore {
    /// Where.
    pub address: PciAddress,
    /// The driver, as it was written down before the function was taken; `None` leaves it without one.
    pub driver: Option<String>,
}

impl fmt::Display for Restore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.address, self.driver.as_deref().unwrap_or_default())
    }
}

/// Why a text is no [`Restore`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address and a driver; write for example 0000:41:00.0=nvidia")]
pub struct RestoreError(String);

impl FromStr for Restore {
    type Err = RestoreError;

    fn from_str(text: &str) -> Result<Self, RestoreError> {
        let wrong = || RestoreError(text.to_owned());
        let (address, driver) = text.split_once('=').ok_or_else(wrong)?;
        let address = address.parse().map_err(|_| wrong())?;
        if !driver.is_empty() && !is_driver_name(driver) {
            return Err(wrong());
        }
        Ok(Self { address, driver: (!driver.is_empty()).then(|| driver.to_owned()) })
    }
}

/// True where a text can be the name of a driver: one part of a path that leads nowhere else.
pub fn is_driver_name(name: &str) -> bool {
    let is_plain = |c: char| !matches!(c, '/' | '=') && !c.is_control();
    (1..=MAX_DRIVER).contains(&name.len()) && name != "." && name != ".." && name.chars().all(is_plain)
}

/// Functions that are to change their drivers, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverJob {
    /// To VFIO.
    Bind(Vec<PciAddress>),
    /// Back to their drivers.
    Restore(Vec<Restore>),
}

impl DriverJob {
    /// The functions it is about.
    pub fn addresses(&self) -> Vec<PciAddress> {
        match self {
            Self::Bind(addresses) => addresses.clone(),
            Self::Restore(all) => all.iter().map(|one| one.address).collect(),
        }
    }
}

/// What the helper does in one go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HelperJob {
    /// Functions change their drivers.
    Driver(DriverJob),
    /// A vGPU is made or taken away.
    Vgpu(VgpuJob),
    /// A card changes its shape.
    Shape(ShapeJob),
    /// A function is reset between two machines.
    ResetFunction(PciAddress),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restore_is_written_as_it_is_read() {
        for text in ["0000:41:00.0=nvidia", "10000:e1:00.1=snd_hda_intel", "0000:41:00.0="] {
            assert_eq!(text.parse::<Restore>().unwrap().to_string(), text);
        }
        assert_eq!("0000:41:00.0=".parse::<Restore>().unwrap().driver, None);
        let long = format!("0000:41:00.0={}", "n".repeat(65));
        for bad in ["0000:41:00.0", "0000:41:00.0=../x", "0000:41:00.0=..", "0000:41:00.8=nvidia", "=nvidia", &long] {
            assert!(bad.parse::<Restore>().is_err(), "{bad}");
        }
    }
}
