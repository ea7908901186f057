//! Writing an archive.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::{BackupError, Entry, FILES_MAX, FORMAT, MANIFEST, Manifest, SMALL_MAX};

/// Where the bytes of an entry come from.
#[derive(Debug)]
pub enum Source {
    /// A file that nobody changes meanwhile.
    Settled(PathBuf),
    /// A small file, read at once.
    Small(PathBuf),
}

enum Bytes {
    File(File),
    Memory(Vec<u8>),
}

/// An archive to be.
#[derive(Debug)]
pub struct Pack {
    host: String,
    made_at: Timestamp,
    files: Vec<(String, Source)>,
}

impl Pack {
    /// An empty one, of this host.
    pub fn new(host: String, made_at: Timestamp) -> Self {
        Self { host, made_at, files: Vec::new() }
    }

    /// Adds a file under a name.
    pub fn add(&mut self, name: impl Into<String>, source: Source) {
        self.files.push((name.into(), source));
    }

    /// Adds the regular files below a folder, each under `prefix` and its path, sorted; gives the paths of what was
    /// left out: links, devices, and files over 1 MiB.
    ///
    /// # Errors
    /// Where a folder cannot be read, or there are too many files. A folder that is not there has none.
    pub fn add_folder(
        &mut self,
        prefix: &str,
        folder: &Path,
        wanted: impl Fn(&Path) -> bool,
    ) -> Result<Vec<PathBuf>, BackupError> {
        let mut left_out = Vec::new();
        let mut folders = vec![folder.to_owned()];
        let mut found = Vec::new();
        while let Some(here) = folders.pop() {
            let entries = match std::fs::read_dir(&here) {
                Ok(entries) => entries,
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(BackupError::file("read the folder", here)(e)),
            };
            for entry in entries {
                let path = entry.map_err(BackupError::file("read the folder", &here))?.path();
                if !wanted(&path) {
                    continue;
                }
                let meta = std::fs::symlink_metadata(&path).map_err(BackupError::file("look at", &path))?;
                if meta.is_dir() {
                    folders.push(path);
                } else if meta.is_file() && meta.len() <= SMALL_MAX {
                    found.push(path);
                } else {
                    left_out.push(path);
                }
            }
            if found.len() > FILES_MAX {
                return Err(BackupError::Damaged(format!(
                    "there are more than {FILES_MAX} files in {}; move what does not belong there away",
                    folder.display()
                )));
            }
        }
        found.sort();
        for path in found {
            match path.strip_prefix(folder).ok().and_then(Path::to_str) {
                Some(rest) => self.add(format!("{prefix}{rest}"), Source::Small(path)),
                None => left_out.push(path),
            }
        }
        Ok(left_out)
    }

    /// Writes the archive.
    ///
    /// # Errors
    /// Where a file cannot be read, or `to` not be written.
    pub fn write(self, to: &Path) -> Result<(), BackupError> {
        let mut entries = Vec::new();
        let mut contents = Vec::new();
        for (name, source) in self.files {
            if !super::is_name(&name) {
                return Err(BackupError::Damaged(format!("{name:?} cannot be a name in it")));
            }
            let (entry, bytes) = look_at(name, &source)?;
            entries.push(entry);
            contents.push(bytes);
        }
        let manifest = Manifest {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            made_at: self.made_at.to_string(),
            host: self.host,
            files: entries,
        };
        let text = serde_json::to_vec_pretty(&manifest).map_err(|e| BackupError::Damaged(e.to_string()))?;
        let file = File::create(to).map_err(BackupError::file("make", to))?;
        let failed = BackupError::file("write", to);
        write_all(file, &manifest, self.made_at, &text, contents).map_err(failed)
    }
}

fn look_at(name: String, source: &Source) -> Result<(Entry, Bytes), BackupError> {
    let (Source::Settled(path) | Source::Small(path)) = source;
    let mut file = File::open(path).map_err(BackupError::file("open", path))?;
    let read = BackupError::file("read", path);
    let (mode, size, hash, bytes) = (|| {
        let mode = match source {
            // The database: it is nobody else's, whatever made its copy.
            Source::Settled(_) => 0o600,
            Source::Small(_) => file.metadata()?.permissions().mode() & 0o777,
        };
        match source {
            Source::Settled(_) => {
                let mut hash = Sha256::new();
                let size = io::copy(&mut file, &mut Hashing(&mut hash))?;
                file.rewind()?;
                Ok((mode, size, hash.finalize(), Bytes::File(file)))
            }
            Source::Small(_) => {
                let mut bytes = Vec::new();
                // One that grew since it was found small is cut, and its hash is that of what is kept.
                file.take(SMALL_MAX).read_to_end(&mut bytes)?;
                let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                Ok((mode, size, Sha256::digest(&bytes), Bytes::Memory(bytes)))
            }
        }
    })()
    .map_err(read)?;
    Ok((Entry { name, size, mode, sha256: hex::encode(hash) }, bytes))
}

/// A writer that only counts in the hash.
struct Hashing<'a>(&'a mut Sha256);

impl Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_all(file: File, manifest: &Manifest, at: Timestamp, text: &[u8], contents: Vec<Bytes>) -> io::Result<()> {
    let seconds = u64::try_from(at.as_second()).unwrap_or_default();
    let mut archive = tar::Builder::new(io::BufWriter::new(file));
    let header = |size: u64, mode: u32| {
        let mut header = tar::Header::new_gnu();
        header.set_size(size);
        header.set_mode(mode);
        header.set_mtime(seconds);
        header
    };
    archive.append_data(&mut header(u64::try_from(text.len()).unwrap_or(u64::MAX), 0o600), MANIFEST, text)?;
    for (entry, bytes) in manifest.files.iter().zip(contents) {
        let mut header = header(entry.size, entry.mode);
        match bytes {
            Bytes::File(file) => archive.append_data(&mut header, &entry.name, file.take(entry.size))?,
            Bytes::Memory(bytes) => archive.append_data(&mut header, &entry.name, bytes.as_slice())?,
        }
    }
    let file = archive.into_inner()?.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()
}
