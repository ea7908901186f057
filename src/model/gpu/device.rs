//! A device of the host in the form in which a machine is given it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::model::pci::PciAddress;

/// A device of the host that a machine is given. As a text: `0000:41:00.0`, and the UUID of a mediated device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum HostDevice {
    /// A PCI function, whole or virtual.
    Pci(PciAddress),
    /// A mediated device.
    Mdev(Uuid),
}

impl HostDevice {
    /// The PCI function; `None` for a mediated device.
    pub const fn pci(&self) -> Option<PciAddress> {
        match self {
            Self::Pci(address) => Some(*address),
            Self::Mdev(_) => None,
        }
    }
}

impl From<PciAddress> for HostDevice {
    fn from(address: PciAddress) -> Self {
        Self::Pci(address)
    }
}

impl fmt::Display for HostDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pci(address) => address.fmt(f),
            Self::Mdev(uuid) => uuid.fmt(f),
        }
    }
}

impl From<HostDevice> for String {
    fn from(device: HostDevice) -> Self {
        device.to_string()
    }
}

/// Why a text is no [`HostDevice`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no device of a host; write for example 0000:41:00.0, or the UUID of a mediated device")]
pub struct HostDeviceError(String);

impl FromStr for HostDevice {
    type Err = HostDeviceError;

    fn from_str(text: &str) -> Result<Self, HostDeviceError> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Pci(address));
        }
        Uuid::try_parse(text).map(Self::Mdev).map_err(|_| HostDeviceError(text.to_owned()))
    }
}

impl TryFrom<String> for HostDevice {
    type Error = HostDeviceError;

    fn try_from(text: String) -> Result<Self, HostDeviceError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The digest of a machine's shape is made of this: one with a PCI device must stay what it was.
    #[test]
    fn a_device_is_written_as_it_is_read_and_a_function_as_before() {
        for text in ["0000:41:00.0", "c2177883-f1bb-47f0-914d-32a22e3a8804"] {
            let device: HostDevice = text.parse().unwrap();
            assert_eq!(device.to_string(), text);
            assert_eq!(serde_json::to_string(&device).unwrap(), format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<HostDevice>(&format!("\"{text}\"")).unwrap(), device);
        }
        let address: PciAddress = "0000:41:00.0".parse().unwrap();
        assert_eq!(
            serde_json::to_string(&address).unwrap(),
            serde_json::to_string(&HostDevice::from(address)).unwrap()
        );
        assert!("0000:41:00".parse::<HostDevice>().is_err() && "".parse::<HostDevice>().is_err());
    }
}
