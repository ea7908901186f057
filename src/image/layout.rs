//! Where everything lies below the state folder. Names come from ids, never from people.

use std::path::{Path, PathBuf};

use crate::model::id::{ImageId, VmId};

/// The folders below the state folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    state_dir: PathBuf,
}

impl Layout {
    /// For an absolute state folder.
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self { state_dir: state_dir.into() }
    }

    /// The state folder.
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// All images.
    pub fn images_dir(&self) -> PathBuf {
        self.state_dir.join("images")
    }

    /// One image.
    pub fn image_dir(&self, id: ImageId) -> PathBuf {
        self.images_dir().join(id.to_string())
    }

    /// All machines.
    pub fn vms_dir(&self) -> PathBuf {
        self.state_dir.join("vms")
    }

    /// One machine's files.
    pub fn vm(&self, id: VmId) -> VmFiles {
        VmFiles { dir: self.vms_dir().join(id.to_string()) }
    }
}

/// The files of one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmFiles {
    dir: PathBuf,
}

impl VmFiles {
    /// The machine's folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its root disk, always qcow2.
    pub fn root(&self) -> PathBuf {
        self.dir.join("root.qcow2")
    }

    /// Its seed.
    pub fn seed(&self) -> PathBuf {
        self.dir.join("seed.iso")
    }

    /// The record of its serial line.
    pub fn serial_log(&self) -> PathBuf {
        self.dir.join("serial.log")
    }
}
