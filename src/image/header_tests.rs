use proptest::prelude::*;

use super::*;

/// A small sound version 3 header over a file of `clusters` clusters of 64 KiB.
fn sound() -> Vec<u8> {
    let mut bytes = vec![0; 4 << 16];
    bytes[..4].copy_from_slice(MAGIC);
    put32(&mut bytes, 4, 3);
    put32(&mut bytes, 20, 16);
    put64(&mut bytes, 24, 1 << 30);
    put32(&mut bytes, 36, 2);
    put64(&mut bytes, 40, 3 << 16);
    put64(&mut bytes, 48, 1 << 16);
    put32(&mut bytes, 56, 1);
    put32(&mut bytes, 96, 4);
    put32(&mut bytes, 100, 104);
    bytes
}

fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

fn put64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

fn check(bytes: &[u8], said: Option<DiskFormat>) -> Result<Admitted, WhyRefused> {
    let head = &bytes[..bytes.len().min(HEAD)];
    let tail = &bytes[bytes.len().saturating_sub(TAIL)..];
    admit(head, tail, bytes.len() as u64, said)
}

fn with(change: impl FnOnce(&mut Vec<u8>)) -> Result<Admitted, WhyRefused> {
    let mut bytes = sound();
    change(&mut bytes);
    check(&bytes, None)
}

fn with_backing(name: &str) -> Result<Admitted, WhyRefused> {
    with(|bytes| {
        put64(bytes, 8, 512);
        put32(bytes, 16, u32::try_from(name.len()).unwrap());
        bytes[512..512 + name.len()].copy_from_slice(name.as_bytes());
    })
}

#[test]
fn a_sound_image_is_admitted() {
    assert_eq!(check(&sound(), None), Ok(Admitted { format: DiskFormat::Qcow2, virtual_size: 1 << 30 }));
    assert_eq!(check(&sound(), Some(DiskFormat::Raw)), Err(WhyRefused::NotRaw("a qcow2 image")));
}

#[test]
fn references_to_other_files_are_refused() {
    for name in ["/etc/shadow", "json:{\"driver\":\"host_device\",\"filename\":\"/dev/sda\"}", "nbd://10.0.0.1/x", ""] {
        let refused = with_backing(name).unwrap_err();
        assert_eq!(refused, WhyRefused::Refers { what: "backing file", name: name.to_owned() });
    }
    let data = "/dev/sda";
    let external = |bits: u64, named: bool| {
        with(|bytes| {
            put64(bytes, 72, bits);
            if named {
                put32(bytes, 104, EXT_DATA_FILE);
                put32(bytes, 108, u32::try_from(data.len()).unwrap());
                bytes[112..120].copy_from_slice(data.as_bytes());
            }
        })
        .unwrap_err()
    };
    let refers = |name: &str| WhyRefused::Refers { what: "external data file", name: name.to_owned() };
    assert_eq!(external(EXTERNAL_DATA, true), refers("/dev/sda"));
    assert_eq!(external(EXTERNAL_DATA, false), refers("unnamed"));
    assert_eq!(external(0, true), refers("/dev/sda"));
}

#[test]
fn what_cannot_be_read_as_it_stands_is_refused() {
    assert_eq!(with(|b| put32(b, 32, 1)), Err(WhyRefused::Encrypted));
    assert_eq!(with(|b| put32(b, 32, 2)), Err(WhyRefused::Encrypted));
    assert_eq!(with(|b| put64(b, 72, DIRTY)), Err(WhyRefused::Unclean("not closed properly")));
    assert_eq!(with(|b| put64(b, 72, CORRUPT)), Err(WhyRefused::Unclean("corrupt")));
    assert_eq!(with(|b| put64(b, 72, 1 << 40)), Err(WhyRefused::UnknownFeatures(1 << 40)));
    // Extended L2 entries halve what one table covers.
    let harmless = |l1| {
        with(|b| {
            put64(b, 72, HARMLESS);
            put32(b, 36, l1);
        })
    };
    assert_eq!(harmless(3), Err(WhyRefused::Damaged("its L1 table is too small for its size")));
    assert!(harmless(4).is_ok());
    assert_eq!(with(|b| put32(b, 4, 1)), Err(WhyRefused::Convert("qcow image of version 1")));
}

#[test]
fn what_does_not_fit_is_damaged() {
    let damaged = |change: &dyn Fn(&mut Vec<u8>)| match with(|b| change(b)) {
        Err(WhyRefused::Damaged(what)) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(damaged(&|b| put32(b, 4, 9)), "its version is neither 2 nor 3");
    assert_eq!(damaged(&|b| put32(b, 20, 63)), "its cluster size is out of range");
    assert_eq!(damaged(&|b| put32(b, 100, 0x7fff_fff8)), "its header size is out of range");
    assert_eq!(damaged(&|b| put64(b, 24, u64::MAX)), "the disk is absurdly large");
    assert_eq!(damaged(&|b| put64(b, 24, 1 << 34)), "its L1 table is too small for its size");
    assert_eq!(damaged(&|b| put64(b, 40, 9 << 16)), "its L1 table lies outside of the file");
    assert_eq!(damaged(&|b| put64(b, 40, !0xffff)), "its L1 table lies outside of the file");
    assert_eq!(damaged(&|b| put32(b, 56, u32::MAX)), "its refcount table lies outside of the file");
    assert_eq!(damaged(&|b| b.truncate(2 << 16)), "its L1 table lies outside of the file");
    assert_eq!(damaged(&|b| b.truncate(60)), "the header does not fit into the file");
    assert_eq!(damaged(&|b| b.truncate(4)), "the header does not fit into the file");
    assert_eq!(damaged(&|b| put64(b, 8, u64::MAX)), "the header does not fit into the file");
    assert_eq!(damaged(&|b| put64(b, 104, u64::from(u32::MAX) | 5 << 32)), "its header extensions do not fit");
}

#[test]
fn other_formats_are_named_with_the_way_out() {
    let refused = |at: usize, mark: &[u8]| {
        let mut bytes = vec![0; 64 << 10];
        bytes[at..at + mark.len()].copy_from_slice(mark);
        check(&bytes, None).unwrap_err().to_string()
    };
    let descriptor = b"# Disk DescriptorFile\nversion=1\nRW 2048 FLAT \"/etc/passwd\" 0\n";
    assert!(refused(0, descriptor).starts_with("this is a VMDK descriptor, which names other files; convert it first"));
    assert!(refused(0, b"KDMV").contains("VMDK"));
    assert!(refused(0x40, &[0x7f, 0x10, 0xda, 0xbe]).contains("VDI"));
    assert!(refused(0, b"vhdxfile").contains("VHDX"));
    assert!(refused((64 << 10) - 512, b"conectix").contains("VHD"));
    assert!(refused(257, b"ustar").contains("OVA"));
    assert!(refused(0, b"\xfd7zXZ\0").contains("unxz"));
    assert!(refused(0x8001, b"CD001").contains("installation CD"));
    assert!(refused(100, b"x").starts_with("no disk format is recognised"));
}

#[test]
fn raw_disks_need_a_mark_or_a_word() {
    let mut bytes = vec![0; 1 << 20];
    assert_eq!(check(&bytes, None), Err(WhyRefused::Unknown));
    assert!(check(&bytes, Some(DiskFormat::Raw)).is_ok());
    bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
    assert_eq!(check(&bytes, None), Ok(Admitted { format: DiskFormat::Raw, virtual_size: 1 << 20 }));
    bytes.push(0);
    assert!(matches!(check(&bytes, None), Err(WhyRefused::Damaged(_))));
    bytes[..4].copy_from_slice(b"KDMV");
    assert_eq!(check(&bytes, Some(DiskFormat::Raw)), Err(WhyRefused::NotRaw("VMDK image")));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..700), size in any::<u64>()) {
        let _ = admit(&bytes, &bytes, size, None);
        let mut with_magic = MAGIC.to_vec();
        with_magic.extend_from_slice(&bytes);
        let _ = admit(&with_magic, &bytes, size, None);
    }

    #[test]
    fn no_change_of_a_sound_header_makes_it_panic_or_refer(
        at in 0usize..200, value in any::<u64>(), second in 0usize..200, other in any::<u32>(),
    ) {
        let mut bytes = sound();
        put64(&mut bytes, at, value);
        put32(&mut bytes, second, other);
        if check(&bytes, None).is_ok_and(|admitted| admitted.format == DiskFormat::Qcow2) {
            prop_assert_eq!(u64_at(&bytes, 8), Some(0));
            prop_assert_eq!(u64_at(&bytes, 72).unwrap() & EXTERNAL_DATA, 0);
        }
    }
}
