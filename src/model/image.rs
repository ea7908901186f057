//! Images: what a machine's disk is cloned from.

use serde::{Deserialize, Serialize};

use super::id::ImageId;
use super::name::{GuestUser, ImageName};
use super::units::Mib;

/// How a machine boots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Boot {
    /// UEFI firmware loads the image's own boot loader.
    #[default]
    Uefi,
    /// QEMU loads the image's kernel and initrd directly.
    Kernel,
    /// SeaBIOS with its text on the serial line and no system at all; used by tests of the life cycle.
    Firmware,
}

/// The formats a disk image may have. Always stated to QEMU, never guessed by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskFormat {
    /// QEMU copy-on-write, version 2 or 3.
    Qcow2,
    /// Plain bytes.
    Raw,
}

impl DiskFormat {
    /// The name that QEMU and libvirt use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Qcow2 => "qcow2",
            Self::Raw => "raw",
        }
    }
}

/// The disk part of an image. File names are relative to the image's folder in the catalogue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageDisk {
    /// File name.
    pub file: String,
    /// Format found by content at import.
    pub format: DiskFormat,
    /// Hex SHA-256 of the file.
    pub sha256: String,
    /// Size the guest sees.
    pub virtual_size: Mib,
    /// Whether a larger disk gives a larger root file system.
    #[serde(default)]
    pub growth: Growth,
}

/// What becomes of the root file system on a disk that is larger than its image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Growth {
    /// Not found out.
    #[default]
    Unknown,
    /// It is the last partition, or has no partition table: cloud-init grows it.
    Grows,
    /// Another partition lies behind it: it keeps its size.
    NotLast,
    /// It lies in an LVM volume: somebody has to extend that inside the machine.
    Lvm,
}

impl Growth {
    /// What to tell who asks for a larger disk, where there is something to tell.
    pub const fn warning(self) -> Option<&'static str> {
        match self {
            Self::Unknown | Self::Grows => None,
            Self::NotLast => {
                Some("the root partition of this image is not its last one: a larger disk does not enlarge it")
            }
            Self::Lvm => {
                Some("the root of this image lies in LVM: enlarge it inside the machine with pvresize and lvextend")
            }
        }
    }
}

/// The kernel part of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageKernel {
    /// Kernel file name.
    pub file: String,
    /// Hex SHA-256 of the kernel.
    pub sha256: String,
    /// Initrd file name.
    pub initrd: String,
    /// Hex SHA-256 of the initrd.
    pub initrd_sha256: String,
    /// Kernel arguments.
    pub cmdline: String,
}

/// One version of an image in the catalogue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Its id, also its folder's name.
    pub id: ImageId,
    /// Its name; several versions may share it, the newest is used for new machines.
    pub name: ImageName,
    /// Version text from the recipe or the import.
    pub version: String,
    /// Operating system word, such as `debian12`, `ubuntu24.04`, `tiny`.
    pub os: String,
    /// The usual login.
    pub user: GuestUser,
    /// The smallest disk that works.
    pub min_disk: Mib,
    /// Its disk, absent for images that live in their initrd.
    pub disk: Option<ImageDisk>,
    /// Its kernel, for direct boot.
    pub kernel: Option<ImageKernel>,
}

impl Image {
    /// True where the other is this one under another id.
    pub fn is_same_content(&self, other: &Self) -> bool {
        *self == Self { id: self.id, ..other.clone() }
    }
}
