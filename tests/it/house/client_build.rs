//! A member's laptop has no libvirt: `--no-default-features` builds the same `gvm` without it.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use super::root;

/// A folder of its own, so that the usual build is left alone; the second build there takes seconds.
const TARGET: &str = "target/client";

/// The libraries of a finished program: the C library and what the compiler brings.
const EXPECTED: [&str; 4] = ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"];

/// A first build takes minutes on a small machine, so only `scripts/test.sh` asks for it.
const LONG: &str = "GVM_LONG";

#[test]
fn the_client_links_no_libvirt() {
    if std::env::var_os(LONG).is_none() {
        eprintln!("skipped house::client_build: builds gvm a second time; run it with {LONG}=1");
        return;
    }
    let begun = Instant::now();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = root().join(TARGET);
    let out = Command::new(cargo)
        .args(["build", "--offline", "--locked", "--no-default-features", "--bin", "gvm"])
        .env("CARGO_TARGET_DIR", &target)
        // Nobody looks at this one with a debugger, and it halves the time.
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .current_dir(root())
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    eprintln!("the client was built in {:.0} s", begun.elapsed().as_secs_f32());
    let gvm = target.join("debug/gvm");
    let needed = needed_libraries(&gvm);
    assert!(needed.iter().any(|name| name == "libc.so.6"), "{needed:?}");
    assert!(needed.iter().all(|name| EXPECTED.contains(&name.as_str())), "{needed:?}");

    let version = Command::new(&gvm).arg("--version").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&version.stdout).trim(), concat!("gvm ", env!("CARGO_PKG_VERSION")));
    let serve = Command::new(&gvm).arg("serve").env("GVM_CONFIG", "/dev/null").output().unwrap();
    assert!(!serve.status.success());
    let told = String::from_utf8_lossy(&serve.stderr).into_owned();
    assert!(told.contains("built without the manager"), "{told}");
}

/// The names that an ELF file of 64 bits asks the dynamic linker for (DT_NEEDED; gABI, "Dynamic Section").
fn needed_libraries(path: &Path) -> Vec<String> {
    const PT_LOAD: u64 = 1;
    const PT_DYNAMIC: u64 = 2;
    const DT_NEEDED: u64 = 1;
    const DT_STRTAB: u64 = 5;
    let bytes = std::fs::read(path).unwrap();
    let number = |at: u64, size: usize| -> u64 {
        let at = usize::try_from(at).unwrap();
        bytes[at..at + size].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    };
    assert_eq!(&bytes[..5], b"\x7fELF\x02", "{} is no ELF file of 64 bits", path.display());
    let (table, size, count) = (number(32, 8), number(54, 2), number(56, 2));
    // Type, offset in the file, address in memory, size in the file.
    let segments: Vec<_> = (0..count)
        .map(|index| table + index * size)
        .map(|at| (number(at, 4), number(at + 8, 8), number(at + 16, 8), number(at + 32, 8)))
        .collect();
    let (_, dynamic, _, length) = segments.iter().find(|(kind, ..)| *kind == PT_DYNAMIC).unwrap();
    let entries: Vec<_> =
        (0..length / 16).map(|i| (number(dynamic + i * 16, 8), number(dynamic + i * 16 + 8, 8))).collect();
    let (_, texts) = entries.iter().find(|(tag, _)| *tag == DT_STRTAB).unwrap();
    let is_there = |(kind, _, address, size): &&(u64, u64, u64, u64)| {
        *kind == PT_LOAD && (*address..address + size).contains(texts)
    };
    let (_, offset, address, _) = segments.iter().find(is_there).unwrap();
    let text = |at: u64| {
        let rest = &bytes[usize::try_from(texts - address + offset + at).unwrap()..];
        String::from_utf8(rest.iter().copied().take_while(|byte| *byte != 0).collect()).unwrap()
    };
    entries.iter().filter(|(tag, _)| *tag == DT_NEEDED).map(|(_, name)| text(*name)).collect()
}
