//! Reading an archive: nothing of it is believed before its hash is right.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::{BackupError, DATABASE, Entry, FILES_MAX, FORMAT, MANIFEST, MANIFEST_MAX, Manifest, SMALL_MAX};

/// How much is copied at once, in bytes.
const CHUNK: usize = 64 << 10;

/// An archive's files in a folder, each with the bytes that its manifest promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpacked {
    /// What the archive says of itself.
    pub manifest: Manifest,
    folder: PathBuf,
}

impl Unpacked {
    /// The file of an entry.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The entries below a folder of the archive, with the rest of their names.
    pub fn below<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = (&'a str, &'a Entry)> {
        self.manifest.files.iter().filter_map(move |entry| Some((entry.name.strip_prefix(folder)?, entry)))
    }
}

fn damaged(text: impl Into<String>) -> BackupError {
    BackupError::Damaged(text.into())
}

/// Unpacks `archive` into the folder `into`, which is to be made, and checks every byte of it.
///
/// # Errors
/// Where something is missing, too much or changed; then the folder holds what came before.
pub fn unpack(archive: &Path, into: &Path) -> Result<Unpacked, BackupError> {
    let file = File::open(archive).map_err(BackupError::file("open", archive))?;
    make_folder(into)?;
    let mut archive = tar::Archive::new(io::BufReader::with_capacity(CHUNK, file));
    let unreadable = |e: io::Error| damaged(format!("it cannot be read as a tar archive ({e})"));
    let mut entries = archive.entries().map_err(unreadable)?;
    let manifest = read_manifest(entries.next().ok_or_else(|| damaged("it is empty"))?.map_err(unreadable)?)?;
    let unpacked = Unpacked { manifest, folder: into.to_owned() };
    for promised in &unpacked.manifest.files {
        let entry = entries.next().ok_or_else(|| damaged(format!("it ends before {}", promised.name)))?;
        copy(entry.map_err(unreadable)?, promised, &unpacked.path(&promised.name))?;
    }
    if entries.next().is_some() {
        return Err(damaged("it holds more than its manifest says"));
    }
    Ok(unpacked)
}

fn make_folder(path: &Path) -> Result<(), BackupError> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(BackupError::file("make the folder", path))
}

fn read_manifest<R: Read>(entry: tar::Entry<'_, R>) -> Result<Manifest, BackupError> {
    if entry.path_bytes().as_ref() != MANIFEST.as_bytes() {
        return Err(damaged(format!("it does not begin with {MANIFEST}")));
    }
    let mut text = Vec::new();
    entry.take(MANIFEST_MAX).read_to_end(&mut text).map_err(|e| damaged(e.to_string()))?;
    // The format comes first: a later one may have other fields.
    let format = serde_json::from_slice::<serde_json::Value>(&text).ok().and_then(|v| v.get("format")?.as_u64());
    match format {
        Some(format) if format == u64::from(FORMAT) => {}
        Some(format) => return Err(BackupError::Newer(u32::try_from(format).unwrap_or(u32::MAX))),
        None => return Err(damaged("its manifest cannot be read")),
    }
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|e| damaged(format!("its manifest cannot be read ({e})")))?;
    let files = &manifest.files;
    if files.len() > FILES_MAX * 2 {
        return Err(damaged("it has too many files"));
    }
    if !files.iter().any(|entry| entry.name == DATABASE) {
        return Err(damaged("there is no database in it"));
    }
    for entry in files {
        if !super::is_name(&entry.name) || (entry.name != DATABASE && entry.size > SMALL_MAX) {
            return Err(damaged(format!("{:?} cannot be in it", entry.name)));
        }
    }
    Ok(manifest)
}

fn copy<R: Read>(mut entry: tar::Entry<'_, R>, promised: &Entry, to: &Path) -> Result<(), BackupError> {
    let name = &promised.name;
    if entry.path_bytes().as_ref() != name.as_bytes() || !entry.header().entry_type().is_file() {
        return Err(damaged(format!("{name} is not where its manifest says")));
    }
    if let Some(parent) = to.parent() {
        make_folder(parent)?;
    }
    let mode = promised.mode & 0o777;
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(to);
    let mut file = file.map_err(BackupError::file("make", to))?;
    let (mut hash, mut size, mut buffer) = (Sha256::new(), 0_u64, vec![0; CHUNK]);
    loop {
        let got = entry.read(&mut buffer).map_err(|e| damaged(format!("{name} cannot be read ({e})")))?;
        let bytes = buffer.get(..got).unwrap_or_default();
        if bytes.is_empty() {
            break;
        }
        size = size.saturating_add(u64::try_from(got).unwrap_or(u64::MAX));
        hash.update(bytes);
        file.write_all(bytes).map_err(BackupError::file("write", to))?;
    }
    if size != promised.size || hex::encode(hash.finalize()) != promised.sha256 {
        return Err(damaged(format!("{name} is not what was put in: its bytes were changed or cut")));
    }
    file.sync_all().map_err(BackupError::file("write", to))
}
