//! The NoCloud seed: an ISO 9660 volume labelled `cidata`, byte-identical for the same input.
//!
//! Rock Ridge carries the real names; Joliet stays off (hadris-iso writes broken volume strings with it,
//! hxyulin/hadris#9). The writer stamps the present time into the volume; [`fix_times`] takes it out again.

use std::io::Cursor;
use std::path::Path;

use hadris_iso::sync::read::PathSeparator;
use hadris_iso::sync::write::options::{CreationFeatures, IsoFormatOptions};
use hadris_iso::sync::write::{InputEntry, InputMetadata, InputTree, IsoImageWriter};

use super::cloudinit::{self, SeedFile, SeedSpec};
use super::error::{ImageError, ImageErrorKind, Result};
use super::files;
use super::layout::VmFiles;

const SECTOR: usize = 2048;

/// Above this a seed is not meant seriously; user data is limited long before.
const MAX_SEED: usize = 4 << 20;

/// The time in every field, seconds since the epoch: 2000-01-01 00:00:00 UTC, so that no tool doubts it.
const FIXED_TIME: i64 = 946_684_800;

/// The same as in directory records: years since 1900, month, day, hour, minute, second, zone.
const RECORD_TIME: [u8; 7] = [100, 1, 1, 0, 0, 0, 0];

/// The same as in volume descriptors: digits, hundredths and zone.
const VOLUME_TIME: &[u8; 17] = b"2000010100000000\0";

/// Makes the machine's seed be there with this content, mode 0600. Success where it is already.
///
/// # Errors
/// `StorageFull`, or what the file system says.
pub async fn ensure_seed(spec: &SeedSpec, files: &VmFiles) -> Result<()> {
    let image = build(&cloudinit::render(spec))?;
    let (dir, path) = (files.dir().to_owned(), files.seed());
    files::blocking(format!("writing {}", path.display()), move || {
        files::ensure_dir(&dir)?;
        files::sweep_beside(&path)?;
        if has_content(&path, &image) { Ok(()) } else { files::write_private(&path, &image) }
    })
    .await
}

/// True where the file is there with exactly these bytes. A file that cannot be read is written anew.
fn has_content(path: &Path, content: &[u8]) -> bool {
    use std::io::Read as _;
    let Ok(file) = files::open_regular(path) else { return false };
    let mut found = Vec::new();
    let bound = u64::try_from(content.len()).unwrap_or(u64::MAX).saturating_add(1);
    file.take(bound).read_to_end(&mut found).is_ok() && found == content
}

/// Builds the volume.
///
/// # Errors
/// `Invalid` where the files are too large.
pub fn build(seed: &[SeedFile]) -> Result<Vec<u8>> {
    let failed = |why: String| ImageError::new(ImageErrorKind::Permanent, "building the seed", why);
    let size: usize = seed.iter().map(|file| file.content.len().next_multiple_of(SECTOR)).sum();
    if size > MAX_SEED {
        return Err(ImageError::invalid("building the seed", format!("its files are larger than {MAX_SEED} bytes")));
    }
    let time = Some(FIXED_TIME);
    let entries = seed.iter().map(|file| {
        let metadata = InputMetadata {
            mode: Some(0o400),
            uid: Some(0),
            gid: Some(0),
            created: time,
            modified: time,
            accessed: time,
        };
        let mut entry = InputEntry::file(file.name, file.content.clone());
        entry.metadata = metadata;
        entry
    });
    let tree = InputTree { path_separator: PathSeparator::ForwardSlash, entries: entries.collect() };
    let options = IsoFormatOptions {
        volume_name: "cidata".to_owned(),
        system_id: None,
        volume_set_id: None,
        publisher_id: None,
        preparer_id: None,
        application_id: Some("GVM".to_owned()),
        sector_size: SECTOR,
        features: CreationFeatures::rock_ridge(),
        path_separator: PathSeparator::ForwardSlash,
        strict_charset: false,
    };
    let target = Cursor::new(Vec::new());
    let done = IsoImageWriter::create(target, tree, options).map_err(|e| failed(e.to_string()))?;
    let mut image = done.into_inner();
    // A device is a whole number of sectors.
    image.resize(image.len().next_multiple_of(SECTOR), 0);
    fix_times(&mut image).ok_or_else(|| failed("the volume is not laid out as expected".to_owned()))?;
    Ok(image)
}

/// Overwrites every time stamp with the fixed one. `None` where the volume is not as our writer makes it: one
/// primary descriptor in sector 16 and one folder. Offsets: ECMA-119 8.4 and 9.1, RRIP 4.1.6.
fn fix_times(image: &mut [u8]) -> Option<()> {
    const DESCRIPTOR: usize = 16 * SECTOR;
    put(image, DESCRIPTOR + 813, VOLUME_TIME)?;
    put(image, DESCRIPTOR + 830, VOLUME_TIME)?;
    put(image, DESCRIPTOR + 847, b"0000000000000000\0")?;
    put(image, DESCRIPTOR + 864, VOLUME_TIME)?;
    put(image, DESCRIPTOR + 156 + 18, &RECORD_TIME)?;
    let start = word(image, DESCRIPTOR + 156 + 2)?.checked_mul(SECTOR)?;
    let end = start.checked_add(word(image, DESCRIPTOR + 156 + 10)?)?;
    let mut at = start;
    while at < end {
        let size = usize::from(*image.get(at)?);
        if size == 0 {
            // Records do not cross sectors: zeros fill the rest of this one.
            at = (at + 1).next_multiple_of(SECTOR);
            continue;
        }
        put(image, at + 18, &RECORD_TIME)?;
        let name = usize::from(*image.get(at + 32)?);
        // The name is padded so that the record's own length is even.
        fix_system_use(image, at + (33 + name).next_multiple_of(2), at + size)?;
        at += size;
    }
    Some(())
}

/// Walks the Rock Ridge entries between two offsets, and where they continue elsewhere.
fn fix_system_use(image: &mut [u8], mut at: usize, mut end: usize) -> Option<()> {
    let mut next = None;
    // Every entry has at least its 4 bytes of header.
    while at + 4 <= end {
        let size = usize::from(*image.get(at + 2)?);
        if size < 4 {
            break;
        }
        match image.get(at..at + 2)? {
            b"TF" => {
                for stamp in (at + 5..at + size).step_by(RECORD_TIME.len()) {
                    put(image, stamp, &RECORD_TIME)?;
                }
            }
            b"CE" => {
                let from = word(image, at + 4)?.checked_mul(SECTOR)?.checked_add(word(image, at + 12)?)?;
                next = Some((from, from.checked_add(word(image, at + 20)?)?));
            }
            _ => {}
        }
        at += size;
        if at + 4 > end
            && let Some(area) = next.take()
        {
            (at, end) = area;
        }
    }
    Some(())
}

fn put(image: &mut [u8], at: usize, bytes: &[u8]) -> Option<()> {
    image.get_mut(at..at.checked_add(bytes.len())?)?.copy_from_slice(bytes);
    Some(())
}

/// A little-endian number of 32 bits.
fn word(image: &[u8], at: usize) -> Option<usize> {
    let bytes = image.get(at..)?.first_chunk().copied()?;
    usize::try_from(u32::from_le_bytes(bytes)).ok()
}

#[cfg(test)]
#[path = "seed_tests.rs"]
mod tests;
