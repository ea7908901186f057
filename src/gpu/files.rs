//! The kernel's small files, read with care: whatever lies there - nothing, a folder, a pipe that nobody writes to,
//! something huge or binary - reading ends, and says only whether there is a text.
//!
//! Everything is opened for reading alone. `O_NONBLOCK` keeps a pipe or a device from holding us up; the kernel's
//! own attributes do not care about it.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

/// An attribute is at most a page.
const MAX_ATTRIBUTE: usize = 4096;

/// The folder that stands for `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Files(PathBuf);

impl Files {
    pub(super) fn below(root: &Path) -> Self {
        Self(root.to_owned())
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// The text of an attribute, trimmed; `None` where there is none of a sensible size.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        let bytes = self.whole(path, MAX_ATTRIBUTE)?;
        let text = std::str::from_utf8(&bytes).ok()?.trim();
        (!text.contains('\0')).then(|| text.to_owned())
    }

    /// A number in decimal, or with `0x` before it in hex.
    pub(super) fn number(&self, path: &str) -> Option<u64> {
        let text = self.text(path)?;
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        }
    }

    /// A number in hex of 16 bits, such as `0x10de`.
    pub(super) fn id(&self, path: &str) -> Option<u16> {
        self.number(path).and_then(|number| u16::try_from(number).ok())
    }

    /// A file that is no longer than so many bytes.
    pub(super) fn whole(&self, path: &str, max: usize) -> Option<Vec<u8>> {
        let bytes = self.start(path, max.saturating_add(1))?;
        (bytes.len() <= max).then_some(bytes)
    }

    /// The first so many bytes of a file.
    pub(super) fn start(&self, path: &str, max: usize) -> Option<Vec<u8>> {
        start_of(&self.path(path), max)
    }

    /// The last part of what a link points to.
    pub(super) fn link_name(&self, path: &str) -> Option<String> {
        let target = std::fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Names in a folder, at most so many; `None` where it cannot be listed.
    pub(super) fn names(&self, path: &str, max: usize) -> Option<Vec<String>> {
        let entries = std::fs::read_dir(self.path(path)).ok()?;
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
        Some(entries.take(max).filter_map(name).collect())
    }
}

/// The first so many bytes of a file.
pub(super) fn start_of(path: &Path, max: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(u64::try_from(max).ok()?).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Opens a regular file for reading.
pub(super) fn open(path: &Path) -> Option<File> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path).ok()?;
    file.metadata().ok()?.is_file().then_some(file)
}
