//! Tells from a partition table whether the root file system can grow with its disk. Pure functions over bytes.
//!
//! cloud-init's growpart enlarges a partition only where it is the last one on the disk.

use crate::model::image::Growth;

const SECTOR: usize = 512;

/// So many bytes of the start of a disk hold the boot sector, the GPT header and its usual 128 entries.
pub const HEAD: usize = 34 * SECTOR;

/// More entries than this are not read.
const MAX_ENTRIES: usize = 128;

/// What a partition is for, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Says itself that it is the root (Discoverable Partitions Specification, x86-64).
    Root,
    /// A Linux file system.
    Linux,
    Lvm,
    Other,
}

#[derive(Clone, Copy, Debug)]
struct Partition {
    number: u32,
    purpose: Purpose,
    /// In sectors.
    start: u64,
    /// In sectors.
    size: u64,
}

/// GPT types in their order on the disk (the first three fields are little-endian).
const GPT_TYPES: [([u8; 16], Purpose); 3] = [
    // 4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709
    (*b"\xe3\xbc\x68\x4f\xcd\xe8\xb1\x4d\x96\xe7\xfb\xca\xf9\x84\xb7\x09", Purpose::Root),
    // 0FC63DAF-8483-4772-8E79-3D69D8477DE4
    (*b"\xaf\x3d\xc6\x0f\x83\x84\x72\x47\x8e\x79\x3d\x69\xd8\x47\x7d\xe4", Purpose::Linux),
    // E6D6D379-F507-44C2-A23C-238F2A3DF928
    (*b"\x79\xd3\xd6\xe6\x07\xf5\xc2\x44\xa2\x3c\x23\x8f\x2a\x3d\xf9\x28", Purpose::Lvm),
];

/// Looks at the first [`HEAD`] bytes of a disk. `root` is the number of the root partition where the image's maker
/// says it; else it is the one that says so itself, else the largest with a Linux file system or LVM.
pub fn growth(head: &[u8], root: Option<u32>) -> Growth {
    let partitions = match gpt(head).or_else(|| mbr(head)) {
        Some(partitions) => partitions,
        None if looks_like_a_file_system(head) => return Growth::Grows,
        None => return Growth::Unknown,
    };
    let candidates = partitions.iter().filter(|p| p.purpose != Purpose::Other);
    let found = match root {
        Some(number) => partitions.iter().find(|p| p.number == number),
        None => candidates.max_by_key(|p| (p.purpose == Purpose::Root, p.size)),
    };
    let Some(found) = found else { return Growth::Unknown };
    if found.purpose == Purpose::Lvm {
        return Growth::Lvm;
    }
    let is_last = partitions.iter().all(|p| p.start <= found.start);
    if is_last { Growth::Grows } else { Growth::NotLast }
}

fn looks_like_a_file_system(head: &[u8]) -> bool {
    head.get(0x438..).is_some_and(|rest| rest.starts_with(&[0x53, 0xef])) || head.starts_with(b"XFSB")
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_le_bytes)
}

fn gpt(head: &[u8]) -> Option<Vec<Partition>> {
    let header = head.get(SECTOR..)?;
    if !header.starts_with(b"EFI PART") {
        return None;
    }
    let first = usize::try_from(u64_at(header, 72)?).ok()?.checked_mul(SECTOR)?;
    let count = usize::try_from(u32_at(header, 80)?).ok()?.min(MAX_ENTRIES);
    let width = usize::try_from(u32_at(header, 84)?).ok().filter(|width| (128..=4096).contains(width))?;
    let mut found = Vec::new();
    for (number, index) in (1u32..).zip(0..count) {
        let entry = head.get(first.checked_add(index * width)?..)?;
        let kind: [u8; 16] = entry.first_chunk().copied()?;
        if kind == [0; 16] {
            continue;
        }
        let purpose = GPT_TYPES.iter().find(|(known, _)| *known == kind).map_or(Purpose::Other, |(_, p)| *p);
        let (start, end) = (u64_at(entry, 32)?, u64_at(entry, 40)?);
        found.push(Partition { number, purpose, start, size: end.checked_sub(start)? });
    }
    Some(found)
}

fn mbr(head: &[u8]) -> Option<Vec<Partition>> {
    if head.get(510..512)? != [0x55, 0xaa] {
        return None;
    }
    let mut found = Vec::new();
    for (number, at) in (1u32..).zip([446, 462, 478, 494]) {
        let purpose = match *head.get(at + 4)? {
            0 => continue,
            0x83 => Purpose::Linux,
            0x8e => Purpose::Lvm,
            _ => Purpose::Other,
        };
        let (start, size) = (u64::from(u32_at(head, at + 8)?), u64::from(u32_at(head, at + 12)?));
        found.push(Partition { number, purpose, start, size });
    }
    // A boot sector of a bare file system has the same mark and no entries.
    (!found.is_empty()).then_some(found)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::child::needs;

    /// A disk of 64 MiB with the table that sfdisk makes of the script.
    fn disk(script: &str) -> Vec<u8> {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(64 << 20).unwrap();
        let mut child = Command::new("sfdisk")
            .args(["-q", "--no-reread", "--no-tell-kernel"])
            .arg(file.path())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), script.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
        let mut head = vec![0; HEAD];
        std::io::Read::read_exact(&mut file.reopen().unwrap(), &mut head).unwrap();
        head
    }

    #[test]
    fn the_place_of_the_root_decides() {
        needs!("sfdisk");
        let check = |script: &str, root, expected| assert_eq!(growth(&disk(script), root), expected, "{script}");
        let (esp, swap, lvm) = ("size=8M, type=U\n", "size=4M, type=S\n", "size=16M, type=V\n");
        check(&format!("label: gpt\n{esp}size=40M, type=L\n"), None, Growth::Grows);
        check(&format!("label: gpt\n{esp}size=20M, type=L\n{swap}"), None, Growth::NotLast);
        check(&format!("label: gpt\n{esp}size=8M, type=L\n{lvm}"), None, Growth::Lvm);
        check(&format!("label: gpt\n{esp}{swap}"), None, Growth::Unknown);
        // Debian's cloud images: the root is number 1 and lies behind the others.
        let debian = "label: gpt\n1: start=40M, size=20M, type=4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709\n\
                      14: start=1M, size=3M, type=21686148-6449-6E6F-744E-656564454649\n15: start=4M, size=20M, type=U\n";
        check(debian, None, Growth::Grows);
        check(debian, Some(15), Growth::NotLast);
        check("label: dos\nsize=8M, type=83\nsize=30M, type=83\n", None, Growth::Grows);
        check("label: dos\nsize=30M, type=83\nsize=8M, type=82\n", None, Growth::NotLast);
        check("label: dos\nsize=30M, type=8e\n", None, Growth::Lvm);
    }

    #[test]
    fn a_bare_file_system_grows_and_noise_is_unknown() {
        let mut head = vec![0; HEAD];
        assert_eq!(growth(&head, None), Growth::Unknown);
        head[0x438..0x43a].copy_from_slice(&[0x53, 0xef]);
        assert_eq!(growth(&head, None), Growth::Grows);
        assert_eq!(growth(&[], None), Growth::Unknown);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(mut head in proptest::collection::vec(proptest::num::u8::ANY, 600..3000)) {
            let _ = growth(&head, None);
            head[510..520].copy_from_slice(b"\x55\xaaEFI PART");
            let _ = growth(&head, Some(1));
        }
    }
}
