//! Images, disks and seeds: the files that machines stand on.
//!
//! ```text
//!   <state_dir>/               0711  QEMU's user passes through, nobody lists
//!     images/                  0711
//!       tmp-<random>/          0700  an import on its way; swept after a crash
//!       <ImageId>/             0711  disk.qcow2 or disk.raw, vmlinuz, initrd.img, all 0444: never written again
//!     vms/                     0711
//!       <VmId>/                0711
//!         root.qcow2           0600  overlay of an image's disk, or blank
//!         root.qcow2.part-*    0600  a disk on its way; removed by the next try
//!         seed.iso             0600  NoCloud seed; holds a private host key
//!         serial.log           0600  made by virtlogd
//! ```
//!
//! libvirt's dynamic ownership hands `root.qcow2` and `seed.iso` to QEMU's user while the machine runs, so that
//! their mode can stay 0600; the base image is shared by many machines and is read-only to everybody.
//!
//! What comes from strangers is looked at by [`header`] before any QEMU program opens it. Nothing here knows of
//! libvirt, the store or the network.

pub mod catalogue;
pub mod cloudinit;
pub mod disk;
mod error;
mod examine;
mod files;
pub mod firstboot;
pub mod header;
pub mod import;
pub mod layout;
mod manifest;
mod partition;
pub mod seed;
pub mod serial;
pub mod sshkey;
pub mod user_data;

pub use error::{ImageError, ImageErrorKind};
