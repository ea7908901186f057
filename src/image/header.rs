//! Reads the headers of disk images, so that no QEMU program ever opens what it should not.
//!
//! QEMU follows references inside an image: a backing file, an external data file, the extents that a VMDK names.
//! A stranger's image that names `/etc/shadow` would be opened as us. So every import is read here first
//! ([`admit`]); only what refers to nothing outside itself is let through. Pure functions over bytes.
//!
//! Format: QEMU's `docs/interop/qcow2.txt`; magic numbers of the others from their own specifications.

use crate::model::image::DiskFormat;

/// So many bytes of the start of a file are all that is ever looked at: the largest qcow2 cluster, which holds
/// the whole header with its extensions.
pub const HEAD: usize = 2 << 20;

/// So many bytes of the end of a file: VHD and DMG have their marks there.
pub const TAIL: usize = 512;

/// Virtual disks above this size are not meant seriously (bytes).
const MAX_VIRTUAL: u64 = 64 << 40;

/// `docs/interop/qcow2.txt`: 512 bytes to 2 MiB.
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;

const MAGIC: &[u8] = b"QFI\xfb";

/// Incompatible features of version 3, by bit.
const DIRTY: u64 = 1;
const CORRUPT: u64 = 1 << 1;
const EXTERNAL_DATA: u64 = 1 << 2;
/// Compression type and extended L2 entries: they change the encoding, not where data comes from.
const HARMLESS: u64 = 1 << 3 | 1 << 4;

/// Header extension types.
const EXT_BACKING_FORMAT: u32 = 0xe279_2aca;
const EXT_DATA_FILE: u32 = 0x4441_5441;
const EXT_ENCRYPTION: u32 = 0x0537_be77;

/// Why a file is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhyRefused {
    /// It points at another file.
    #[error(
        "the image refers to another file ({what}: {name:?}); flatten it first with `qemu-img convert -O qcow2 IN OUT`"
    )]
    Refers {
        /// What kind of reference.
        what: &'static str,
        /// What it names, cut.
        name: String,
    },
    /// Encrypted.
    #[error("the image is encrypted; decrypt it first with `qemu-img convert`")]
    Encrypted,
    /// Not shut properly.
    #[error("the image is marked as {0}; mend it first with `qemu-img check -r all FILE`")]
    Unclean(&'static str),
    /// A feature that we do not know.
    #[error(
        "the image uses qcow2 features that are not known here (bits {0:#x}); write it anew with `qemu-img convert -O qcow2 IN OUT`"
    )]
    UnknownFeatures(u64),
    /// Something inside does not fit.
    #[error("the image is damaged or cut short: {0}")]
    Damaged(&'static str),
    /// A disk format that is not imported.
    #[error("this is a {0}; convert it first with `qemu-img convert -O qcow2 IN OUT`")]
    Convert(&'static str),
    /// Not a disk at all.
    #[error("this is {0}")]
    NotADisk(&'static str),
    /// Nothing known.
    #[error(
        "no disk format is recognised in it: neither qcow2 nor a raw disk with a partition table or file system; if it is a raw disk, say so (--disk-format raw)"
    )]
    Unknown,
    /// Said to be raw, but has another format's mark.
    #[error("it is said to be raw but looks like {0}; import it as what it is")]
    NotRaw(&'static str),
}

/// The header of a qcow2 image as far as we need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qcow2 {
    /// 2 or 3.
    pub version: u32,
    /// Size the guest sees, bytes.
    pub virtual_size: u64,
    /// The file it is an overlay of.
    pub backing: Option<Backing>,
    /// Incompatible feature bits.
    pub incompatible: u64,
    /// Encrypted in any way.
    pub is_encrypted: bool,
    /// The external data file that an extension names.
    pub data_file: Option<String>,
}

/// What an overlay stands on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backing {
    /// As written in the header.
    pub file: String,
    /// The format stated for it.
    pub format: Option<String>,
}

/// A file that may be given to QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Its format.
    pub format: DiskFormat,
    /// Size the guest sees, bytes.
    pub virtual_size: u64,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_be_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_be_bytes)
}

fn has(bytes: &[u8], at: usize, mark: &[u8]) -> bool {
    bytes.get(at..).is_some_and(|rest| rest.starts_with(mark))
}

/// Text out of an image for a message or a comparison; cut to what a path can be.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.get(..bytes.len().min(1023)).unwrap_or_default()).into_owned()
}

/// Decides whether QEMU may open a file, from its first [`HEAD`] and last [`TAIL`] bytes. `said` is the format that
/// the importer states; only it lets a raw disk without any mark pass.
///
/// # Errors
/// Says why not, and what to do about it.
pub fn admit(head: &[u8], tail: &[u8], file_size: u64, said: Option<DiskFormat>) -> Result<Admitted, WhyRefused> {
    if head.starts_with(MAGIC) {
        if said == Some(DiskFormat::Raw) {
            return Err(WhyRefused::NotRaw("a qcow2 image"));
        }
        let header = Qcow2::parse(head, file_size)?;
        header.must_stand_alone()?;
        return Ok(Admitted { format: DiskFormat::Qcow2, virtual_size: header.virtual_size });
    }
    if let Some(why) = other_format(head, tail) {
        return Err(match (why, said) {
            (WhyRefused::Convert(what) | WhyRefused::NotADisk(what), Some(DiskFormat::Raw)) => WhyRefused::NotRaw(what),
            (why, _) => why,
        });
    }
    if said == Some(DiskFormat::Qcow2) {
        return Err(WhyRefused::Damaged("it does not begin like a qcow2 image"));
    }
    if said.is_none() && !looks_like_a_disk(head) {
        return Err(WhyRefused::Unknown);
    }
    if file_size == 0 || !file_size.is_multiple_of(512) {
        return Err(WhyRefused::Damaged("a raw disk is a whole number of 512-byte sectors"));
    }
    if file_size > MAX_VIRTUAL {
        return Err(WhyRefused::Damaged("the disk is absurdly large"));
    }
    Ok(Admitted { format: DiskFormat::Raw, virtual_size: file_size })
}

impl Qcow2 {
    /// Reads a header. References are reported, not refused: our own overlays have one.
    ///
    /// # Errors
    /// Where it is not qcow2 of version 2 or 3, or does not fit its own file.
    pub fn parse(head: &[u8], file_size: u64) -> Result<Self, WhyRefused> {
        use WhyRefused::Damaged;
        const SHORT: WhyRefused = Damaged("the header does not fit into the file");
        if !head.starts_with(MAGIC) {
            return Err(Damaged("it does not begin like a qcow2 image"));
        }
        let word = |at| u32_at(head, at).ok_or(SHORT);
        let long = |at| u64_at(head, at).ok_or(SHORT);
        let version = word(4)?;
        let header_size = match version {
            2 => 72,
            3 => word(100)?,
            1 => return Err(WhyRefused::Convert("qcow image of version 1")),
            _ => return Err(Damaged("its version is neither 2 nor 3")),
        };
        let cluster_bits = word(20)?;
        if !CLUSTER_BITS.contains(&cluster_bits) {
            return Err(Damaged("its cluster size is out of range"));
        }
        let cluster = 1u64 << cluster_bits;
        if u64::from(header_size) > cluster || (version == 3 && header_size < 104) || header_size % 8 != 0 {
            return Err(Damaged("its header size is out of range"));
        }
        if u64::from(header_size) > file_size {
            return Err(SHORT);
        }
        let virtual_size = long(24)?;
        if virtual_size > MAX_VIRTUAL {
            return Err(Damaged("the disk is absurdly large"));
        }
        let incompatible = if version == 3 { long(72)? } else { 0 };
        let within = |offset: u64, size: u64| {
            offset.is_multiple_of(cluster) && offset.checked_add(size).is_some_and(|end| end <= file_size)
        };
        // One L1 entry covers one L2 table: cluster / 8 clusters, or half as many with extended entries.
        let entry = if incompatible & (1 << 4) == 0 { 8 } else { 16 };
        let covered = (cluster / entry).saturating_mul(cluster);
        let l1_entries = u64::from(word(36)?);
        if l1_entries < virtual_size.div_ceil(covered) {
            return Err(Damaged("its L1 table is too small for its size"));
        }
        if !within(long(40)?, l1_entries * 8) {
            return Err(Damaged("its L1 table lies outside of the file"));
        }
        if !within(long(48)?, u64::from(word(56)?).saturating_mul(cluster)) {
            return Err(Damaged("its refcount table lies outside of the file"));
        }
        if word(60)? > 0 && !within(long(64)?, 0) {
            return Err(Damaged("its snapshot table lies outside of the file"));
        }
        let mut header =
            Self { version, virtual_size, backing: None, incompatible, is_encrypted: word(32)? != 0, data_file: None };
        let backing_offset = long(8)?;
        let backing_size = word(16)?;
        if backing_offset != 0 {
            let at = usize::try_from(backing_offset).map_err(|_| SHORT)?;
            let size = usize::try_from(backing_size).unwrap_or(usize::MAX);
            let name = at.checked_add(size).and_then(|end| head.get(at..end)).ok_or(SHORT)?;
            if size > 1023 {
                return Err(Damaged("the name of its backing file is too long"));
            }
            header.backing = Some(Backing { file: text(name), format: None });
        }
        // Extensions end at a zero type, at the name of the backing file, or with the first cluster.
        let end = if backing_offset == 0 { cluster } else { cluster.min(backing_offset) };
        header.read_extensions(head, header_size, end)?;
        Ok(header)
    }

    fn read_extensions(&mut self, head: &[u8], from: u32, end: u64) -> Result<(), WhyRefused> {
        const BAD: WhyRefused = WhyRefused::Damaged("its header extensions do not fit");
        let end = usize::try_from(end).unwrap_or(usize::MAX).min(head.len());
        let area = head.get(..end).ok_or(BAD)?;
        let mut at = usize::try_from(from).map_err(|_| BAD)?;
        // A file that ends right behind its header has no extensions.
        while let Some(kind) = u32_at(area, at).filter(|kind| *kind != 0) {
            let size = usize::try_from(u32_at(area, at + 4).ok_or(BAD)?).map_err(|_| BAD)?;
            let data = (at + 8).checked_add(size).and_then(|end| area.get(at + 8..end)).ok_or(BAD)?;
            match kind {
                EXT_BACKING_FORMAT => {
                    if let Some(backing) = &mut self.backing {
                        backing.format = Some(text(data));
                    }
                }
                EXT_DATA_FILE => self.data_file = Some(text(data)),
                EXT_ENCRYPTION => self.is_encrypted = true,
                _ => {}
            }
            at = (at + 8).checked_add(size.next_multiple_of(8)).ok_or(BAD)?;
        }
        Ok(())
    }

    /// Refuses everything that makes QEMU open another file or that it could not read.
    fn must_stand_alone(&self) -> Result<(), WhyRefused> {
        let cut = |name: &str| name.chars().take(120).collect();
        if let Some(backing) = &self.backing {
            return Err(WhyRefused::Refers { what: "backing file", name: cut(&backing.file) });
        }
        if self.incompatible & EXTERNAL_DATA != 0 || self.data_file.is_some() {
            let name = self.data_file.as_deref().map_or_else(|| "unnamed".to_owned(), cut);
            return Err(WhyRefused::Refers { what: "external data file", name });
        }
        if self.is_encrypted {
            return Err(WhyRefused::Encrypted);
        }
        if self.incompatible & CORRUPT != 0 {
            return Err(WhyRefused::Unclean("corrupt"));
        }
        if self.incompatible & DIRTY != 0 {
            return Err(WhyRefused::Unclean("not closed properly"));
        }
        match self.incompatible & !(HARMLESS | DIRTY | CORRUPT | EXTERNAL_DATA) {
            0 => Ok(()),
            bits => Err(WhyRefused::UnknownFeatures(bits)),
        }
    }
}

/// Recognises what is not imported as it is.
fn other_format(head: &[u8], tail: &[u8]) -> Option<WhyRefused> {
    use WhyRefused::{Convert, NotADisk};
    const DESCRIPTOR: &[u8] = b"# Disk DescriptorFile";
    let text_start = head.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    let table: [(usize, &[u8], WhyRefused); 19] = [
        (0, b"KDMV", Convert("VMDK image")),
        (0, b"COWD", Convert("VMDK image")),
        (text_start, DESCRIPTOR, Convert("VMDK descriptor, which names other files")),
        (0x40, &[0x7f, 0x10, 0xda, 0xbe], Convert("VDI image")),
        (0, b"vhdxfile", Convert("VHDX image")),
        (0, b"conectix", Convert("VHD image")),
        (0, b"QED\0", Convert("QED image")),
        (0, b"WithoutFreeSpace", Convert("Parallels image")),
        (0, b"WithouFreSpacExt", Convert("Parallels image")),
        (0, b"OOOM", Convert("COW image")),
        (0, b"LUKS\xba\xbe", WhyRefused::Encrypted),
        (
            257,
            b"ustar",
            NotADisk(
                "a tar archive (an OVA is one); unpack it and convert the disk inside with `qemu-img convert -O qcow2 IN OUT`",
            ),
        ),
        (0, b"\x1f\x8b", NotADisk("compressed with gzip; unpack it first with `gunzip`")),
        (0, b"\xfd7zXZ\0", NotADisk("compressed with xz; unpack it first with `unxz`")),
        (0, b"\x28\xb5\x2f\xfd", NotADisk("compressed with zstd; unpack it first with `unzstd`")),
        (0, b"BZh", NotADisk("compressed with bzip2; unpack it first with `bunzip2`")),
        (0, b"PK\x03\x04", NotADisk("a zip archive; unpack it first with `unzip`")),
        (0, b"\x7fELF", NotADisk("a program")),
        (0x8001, b"CD001", NotADisk("an installation CD (ISO 9660), not a disk with an installed system")),
    ];
    for (at, mark, why) in table {
        if has(head, at, mark) {
            return Some(why);
        }
    }
    // A fixed VHD and a DMG are recognised by their last sector only.
    match tail {
        _ if has(tail, 0, b"conectix") => Some(Convert("VHD image")),
        _ if has(tail, 0, b"koly") => Some(Convert("DMG image")),
        _ => None,
    }
}

/// True for a boot sector, a GPT, or a file system without a partition table.
fn looks_like_a_disk(head: &[u8]) -> bool {
    has(head, 510, &[0x55, 0xaa])
        || has(head, 512, b"EFI PART")
        || has(head, 0x438, &[0x53, 0xef])
        || has(head, 0, b"XFSB")
        || has(head, 0x1_0040, b"_BHRfS_M")
}

#[cfg(test)]
#[path = "header_tests.rs"]
mod tests;
