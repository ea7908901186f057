use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use super::*;
use crate::child::needs;
use crate::image::cloudinit::tests::spec;
use crate::image::layout::Layout;

fn output(program: &str, args: &[&str], path: &Path) -> String {
    let out = Command::new(program).args(args).arg(path).output().unwrap();
    assert!(out.status.success(), "{program}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[tokio::test]
async fn a_seed_is_the_same_at_every_start() {
    let dir = tempfile::tempdir().unwrap();
    let files = Layout::new(dir.path()).vm(spec().vm);
    ensure_seed(&spec(), &files).await.unwrap();
    let first = std::fs::read(files.seed()).unwrap();
    let meta = std::fs::metadata(files.seed()).unwrap();
    assert_eq!(meta.permissions().mode() & 0o7777, 0o600);
    // The writer's clock has a resolution of a second.
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    ensure_seed(&spec(), &files).await.unwrap();
    assert_eq!(std::fs::metadata(files.seed()).unwrap().modified().unwrap(), meta.modified().unwrap());
    std::fs::write(files.seed(), "half").unwrap();
    ensure_seed(&spec(), &files).await.unwrap();
    assert!(std::fs::read(files.seed()).unwrap() == first, "not byte-identical");
}

#[test]
fn other_programs_read_the_volume() {
    needs!("isoinfo", "blkid");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("seed.iso");
    let seed = cloudinit::render(&spec());
    std::fs::write(&path, build(&seed).unwrap()).unwrap();
    assert_eq!(output("blkid", &["-o", "value", "-s", "LABEL", "-s", "TYPE"], &path), "cidata\niso9660\n");
    let listing = output("isoinfo", &["-R", "-l", "-i"], &path);
    insta::assert_snapshot!(listing);
    for file in &seed {
        let name = format!("/{}", file.name);
        let out = Command::new("isoinfo").args(["-R", "-x", &name, "-i"]).arg(&path).output().unwrap();
        assert!(out.stdout == file.content, "{name}");
    }
    let year = jiff::Timestamp::now().strftime("%Y").to_string();
    let facts = output("isoinfo", &["-d", "-debug", "-i"], &path);
    assert!(facts.contains("2000 01 01") && !facts.contains(&year), "{facts}");
}

#[test]
fn too_much_is_refused() {
    let file = SeedFile { name: "user-data", content: vec![b'a'; MAX_SEED + 1] };
    assert_eq!(build(&[file]).unwrap_err().kind, ImageErrorKind::Invalid);
}
