//! Images on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An image of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImageView {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// Version.
    pub version: String,
    /// Operating system word.
    pub os: String,
    /// qcow2, raw or `kernel` for images without a disk.
    pub format: String,
    /// Size that the guest sees, MiB.
    pub virtual_mib: u64,
    /// SHA-256 of the disk, or of the kernel where there is no disk.
    pub sha256: String,
    /// Machines that stand on it.
    pub used_by: u64,
    /// RFC 3339.
    pub created_at: String,
}

/// Images.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImageList {
    /// By name, newest first.
    pub images: Vec<ImageView>,
}

/// Request to import an image from files on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ImportImage {
    /// A folder with `image.toml` (from vm-images/build.sh), or a disk image file.
    pub path: String,
    /// Name; needed for a file, else taken from image.toml.
    pub name: Option<String>,
    /// Operating system word for a file.
    pub os: Option<String>,
    /// The usual login for a file.
    pub user: Option<String>,
    /// Expected SHA-256 of a file.
    pub sha256: Option<String>,
    /// qcow2 or raw, of a file whose content does not say.
    pub disk_format: Option<String>,
}
