//! Facts of this host. Besides `gpu`, the only place that names /sys and /proc.
//!
//! Everything is read below a [`HostRoot`], so that a test can build a host of its own in a folder. Nothing here
//! changes the host; what has to be tried out is tried in a network namespace or a QEMU of its own.

pub mod accelerator;
pub mod facts;
pub mod routes;

use std::path::{Path, PathBuf};

/// The folder that stands for `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRoot(PathBuf);

impl Default for HostRoot {
    fn default() -> Self {
        Self("/".into())
    }
}

impl HostRoot {
    /// A root in a folder.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// A path below it; `path` begins without a slash.
    pub fn join(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.join(path)
    }

    /// Changes with every boot of the host (`/proc/sys/kernel/random/boot_id`).
    pub fn boot_id(&self) -> Option<String> {
        self.read("proc/sys/kernel/random/boot_id")
    }

    /// The CPU weight of a cgroup that nobody gave one: 100 on cgroups v2, 1024 on v1
    /// (kernel, admin-guide/cgroup-v2.rst, `cpu.weight`; cgroup-v1/cpu `cpu.shares`).
    pub fn default_cpu_weight(&self) -> u32 {
        let has_v2 = self.join("sys/fs/cgroup/cgroup.controllers").exists();
        if has_v2 { 100 } else { 1024 }
    }

    /// The text of a small file below it, trimmed; `None` where it cannot be read.
    fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.join(path)).ok().map(|text| text.trim().to_owned())
    }
}
