use std::io::Read as _;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::*;
use crate::child::needs;
use crate::image::layout::Layout;
use crate::model::id::VmId;

struct Bench {
    _dir: tempfile::TempDir,
    layout: Layout,
    tools: DiskTools,
}

fn bench() -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::new(dir.path());
    Bench { _dir: dir, layout, tools: DiskTools::default() }
}

impl Bench {
    fn vm(&self) -> VmFiles {
        self.layout.vm(VmId::generate())
    }

    fn base(&self, name: &str, format: DiskFormat, size: Mib) -> BaseDisk {
        let path = self.layout.state_dir().join(name);
        let status = Command::new("qemu-img")
            .args(["create", "-q", "-f", format.as_str()])
            .arg(&path)
            .arg(size.bytes().to_string())
            .status();
        assert!(status.unwrap().success());
        BaseDisk { path, format, virtual_size: size }
    }
}

fn names(files: &VmFiles) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(files.dir()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn an_overlay_is_made_once_and_grows() {
    needs!("qemu-img");
    let bench = bench();
    for (name, format) in [("base.qcow2", DiskFormat::Qcow2), ("base.raw", DiskFormat::Raw)] {
        let base = bench.base(name, format, Mib(64));
        let vm = bench.vm();
        for size in [Mib(128), Mib(128), Mib(256), Mib(100)] {
            ensure_overlay(&bench.tools, Some(&base), &vm, size).await.unwrap();
        }
        let info = info(&vm.root()).unwrap();
        assert_eq!(info.virtual_size, Mib(256));
        assert_eq!(info.backing, Some((base.path.clone(), Some(format.as_str().to_owned()))));
        assert!(info.allocated < 1 << 20, "{info:?}");
        assert_eq!(names(&vm), ["root.qcow2"]);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(vm.dir()), mode(&vm.root())), (0o711, 0o600));
        let said = Command::new("qemu-img").args(["check", "-q"]).arg(vm.root()).status().unwrap();
        assert!(said.success());
    }
}

#[tokio::test]
async fn a_blank_disk_needs_no_base() {
    needs!("qemu-img");
    let bench = bench();
    let vm = bench.vm();
    for _ in 0..2 {
        ensure_overlay(&bench.tools, None, &vm, Mib(1024)).await.unwrap();
    }
    let found = info(&vm.root()).unwrap();
    assert_eq!((found.virtual_size, found.backing), (Mib(1024), None));
    let base = bench.base("b", DiskFormat::Qcow2, Mib(1));
    let error = ensure_overlay(&bench.tools, Some(&base), &vm, Mib(1024)).await.unwrap_err();
    assert_eq!(error.kind, ImageErrorKind::Conflict);
    assert!(error.message.starts_with("a disk of its own is there already"), "{error}");
}

#[tokio::test]
async fn the_time_does_not_depend_on_the_size() {
    needs!("qemu-img");
    let bench = bench();
    let base = bench.base("big", DiskFormat::Qcow2, Mib(1 << 20));
    let begun = Instant::now();
    ensure_overlay(&bench.tools, Some(&base), &bench.vm(), Mib(4 << 20)).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn wrong_requests_say_what_is_wrong() {
    needs!("qemu-img");
    let bench = bench();
    let base = bench.base("b", DiskFormat::Raw, Mib(64));
    let other = bench.base("c", DiskFormat::Raw, Mib(64));
    let vm = bench.vm();
    let small = ensure_overlay(&bench.tools, Some(&base), &vm, Mib(8)).await.unwrap_err();
    assert_eq!(small.message, "the image needs a disk of at least 64 MiB, asked for was 8 MiB");
    let gone = BaseDisk { path: bench.layout.state_dir().join("gone"), ..base.clone() };
    let missing = ensure_overlay(&bench.tools, Some(&gone), &vm, Mib(64)).await.unwrap_err();
    assert_eq!(missing.kind, ImageErrorKind::NotFound);
    ensure_overlay(&bench.tools, Some(&base), &vm, Mib(64)).await.unwrap();
    let conflict = ensure_overlay(&bench.tools, Some(&other), &vm, Mib(64)).await.unwrap_err();
    assert_eq!(conflict.kind, ImageErrorKind::Conflict);
    assert_eq!(ensure_size(&bench.tools, &bench.vm().root(), Mib(1)).await.unwrap_err().kind, ImageErrorKind::NotFound);
}

#[tokio::test]
async fn a_left_over_of_a_crash_is_removed_and_a_half_never_has_the_final_name() {
    needs!("qemu-img");
    let bench = bench();
    let vm = bench.vm();
    std::fs::create_dir_all(vm.dir()).unwrap();
    std::fs::write(vm.dir().join("root.qcow2.part-0123"), "half").unwrap();
    let failing =
        DiskTools { qemu_img: script(&bench, "echo 'No space left on device' >&2; exit 1"), ..DiskTools::default() };
    let error = ensure_overlay(&failing, None, &vm, Mib(64)).await.unwrap_err();
    assert_eq!(error.kind, ImageErrorKind::StorageFull);
    assert!(error.to_string().contains("the host's storage is full"), "{error}");
    assert!(names(&vm).is_empty(), "{:?}", names(&vm));
    // A child that dies after writing half a file.
    let half = DiskTools {
        qemu_img: script(&bench, "for last; do path=$file; file=$last; done; echo half > \"$path\"; kill -9 $$"),
        ..DiskTools::default()
    };
    assert!(ensure_overlay(&half, None, &vm, Mib(64)).await.is_err());
    assert!(names(&vm).is_empty(), "{:?}", names(&vm));
    ensure_overlay(&bench.tools, None, &vm, Mib(64)).await.unwrap();
    assert_eq!(names(&vm), ["root.qcow2"]);
}

fn script(bench: &Bench, body: &str) -> OsString {
    let path = bench.layout.state_dir().join(format!("script-{}", VmId::generate()));
    std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path.into_os_string()
}

#[tokio::test]
async fn a_clone_is_independent_and_whole() {
    needs!("qemu-img");
    let bench = bench();
    let base = bench.base("b", DiskFormat::Qcow2, Mib(64));
    let (source, target) = (bench.vm(), bench.vm());
    assert_eq!(clone_disk(&bench.tools, &source, &target).await.unwrap_err().kind, ImageErrorKind::NotFound);
    ensure_overlay(&bench.tools, Some(&base), &source, Mib(128)).await.unwrap();
    clone_disk(&bench.tools, &source, &target).await.unwrap();
    let (one, two) = (info(&source.root()).unwrap(), info(&target.root()).unwrap());
    assert_eq!((one.virtual_size, one.backing), (two.virtual_size, two.backing));
    assert_eq!(clone_disk(&bench.tools, &source, &target).await.unwrap_err().kind, ImageErrorKind::Conflict);
    ensure_gone(&source).await.unwrap();
    ensure_gone(&source).await.unwrap();
    assert!(!source.dir().exists() && target.root().exists());
}

#[tokio::test]
async fn a_disk_in_use_is_left_alone() {
    needs!("qemu-img", "qemu-io");
    let bench = bench();
    let vm = bench.vm();
    ensure_overlay(&bench.tools, None, &vm, Mib(64)).await.unwrap();
    let mut user = Command::new("qemu-io");
    user.args(["-f", "qcow2"]).arg(vm.root()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut user = user.spawn().unwrap();
    // Its prompt comes once the disk is open and locked.
    let mut prompt = [0; 8];
    user.stdout.as_mut().unwrap().read_exact(&mut prompt).unwrap();
    assert_eq!(&prompt, b"qemu-io>");
    let grown = ensure_size(&bench.tools, &vm.root(), Mib(128)).await;
    let copied = clone_disk(&bench.tools, &vm, &bench.vm()).await;
    let seen = info(&vm.root());
    user.kill().unwrap();
    user.wait().unwrap();
    for error in [grown.unwrap_err(), copied.unwrap_err()] {
        assert_eq!(error.kind, ImageErrorKind::Busy, "{error}");
    }
    assert_eq!(seen.unwrap().virtual_size, Mib(64));
}

#[tokio::test]
async fn a_link_in_place_of_the_disk_is_not_followed() {
    needs!("qemu-img");
    let bench = bench();
    let vm = bench.vm();
    std::fs::create_dir_all(vm.dir()).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", vm.root()).unwrap();
    let error = ensure_overlay(&bench.tools, None, &vm, Mib(64)).await.unwrap_err();
    assert_eq!(error.kind, ImageErrorKind::Invalid);
}
