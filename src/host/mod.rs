//! Facts of this host. Besides `gpu`, the only place that names /sys and /proc.
//!
//! Everything is read below a [`HostRoot`], so that a test can build a host of its own in a folder. Nothing here
//! changes the host; what has to be tried out is tried in a network namespace or a QEMU of its own.

pub mod accelerator;
pub mod facts;
mod kernel;
mod ports;
pub mod routes;
mod upkeep;

use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

/// Files of the kernel that are read whole are at most so long.
const MAX_SMALL: u64 = 64 << 10;

/// Lists of modules have a megabyte.
const MAX_LIST: u64 = 16 << 20;

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

    /// The text of a small file below it, trimmed; `None` where it cannot be read, is too long or is no text.
    fn read(&self, path: &str) -> Option<String> {
        self.text(path, MAX_SMALL)
    }

    /// The text of a long list below it.
    fn read_list(&self, path: &str) -> Option<String> {
        self.text(path, MAX_LIST)
    }

    fn text(&self, path: &str, max: u64) -> Option<String> {
        let bytes = self.start(path, max + 1)?;
        let is_whole = u64::try_from(bytes.len()).is_ok_and(|length| length <= max);
        let text = String::from_utf8(bytes).ok().filter(|text| is_whole && !text.contains('\0'))?;
        Some(text.trim().to_owned())
    }

    /// The first bytes of a file. A pipe or a device in its place is not waited for.
    fn start(&self, path: &str, max: u64) -> Option<Vec<u8>> {
        let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let file = std::fs::OpenOptions::new().read(true).custom_flags(flags.bits()).open(self.join(path)).ok()?;
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        file.take(max).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Names in a folder, sorted, at most so many; `None` where it cannot be listed.
    fn names(&self, path: &str, max: usize) -> Option<Vec<String>> {
        let entries = std::fs::read_dir(self.join(path)).ok()?;
        let mut names: Vec<String> =
            entries.take(max).filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort_unstable();
        Some(names)
    }

    fn exists(&self, path: &str) -> bool {
        self.join(path).exists()
    }
}

/// A host of a test's own: these files in a folder, which is there as long as the first part of the pair.
#[cfg(test)]
fn host_of(files: &[(&str, &str)]) -> (tempfile::TempDir, HostRoot) {
    let files: Vec<(&str, &[u8])> = files.iter().map(|(path, text)| (*path, text.as_bytes())).collect();
    host_of_bytes(&files)
}

/// The same with files that may be no text.
#[cfg(test)]
fn host_of_bytes(files: &[(&str, &[u8])]) -> (tempfile::TempDir, HostRoot) {
    let dir = tempfile::tempdir().unwrap();
    for (path, bytes) in files {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    let root = HostRoot::at(dir.path());
    (dir, root)
}
