use std::process::Command;
use std::time::Instant;

use super::*;
use crate::child::needs;
use crate::image::ImageErrorKind;
use crate::image::catalogue::{base_disk, ensure_removed, kernel_files, sweep, verify};
use crate::model::image::Growth;

struct Bench {
    dir: tempfile::TempDir,
    layout: Layout,
    tools: DiskTools,
}

fn bench() -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::new(dir.path().join("state"));
    Bench { dir, layout, tools: DiskTools::default() }
}

impl Bench {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn qemu_img(&self, args: &[&str], name: &str, rest: &[&str]) -> PathBuf {
        let path = self.path(name);
        let out = Command::new("qemu-img").args(args).arg(&path).args(rest).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        path
    }

    async fn import(&self, change: impl FnOnce(&mut DiskImport)) -> Result<Image> {
        let mut import = DiskImport {
            file: DiskFile::Path(self.path("in")),
            name: "test".parse().unwrap(),
            version: None,
            os: "linux".to_owned(),
            user: "eve".parse().unwrap(),
            sha256: None,
            format: None,
            min_disk: Mib(0),
        };
        change(&mut import);
        import_with(self, ImportSource::Disk(import)).await
    }

    async fn refused(&self, path: &Path) -> String {
        let path = path.to_owned();
        let error = self.import(|import| import.file = DiskFile::Path(path)).await.unwrap_err();
        assert_eq!(error.kind, ImageErrorKind::Invalid, "{error}");
        assert_eq!(self.left(), [""; 0]);
        error.message
    }

    fn left(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.layout.images_dir()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

async fn import_with(bench: &Bench, source: ImportSource) -> Result<Image> {
    import(&bench.tools, &bench.layout, source, ImportLimits::default()).await
}

#[tokio::test]
async fn a_qcow2_disk_is_taken_in_and_verified() {
    needs!("qemu-img", "qemu-io", "prlimit");
    let bench = bench();
    let path = bench.qemu_img(&["create", "-q", "-f", "qcow2"], "in", &["64M"]);
    let image = bench.import(|_| {}).await.unwrap();
    let disk = image.disk.clone().unwrap();
    assert_eq!((disk.format, disk.virtual_size, image.min_disk), (DiskFormat::Qcow2, Mib(64), Mib(64)));
    assert_eq!((disk.growth, image.version.len()), (Growth::Unknown, 12));
    let base = base_disk(&bench.layout, &image).unwrap();
    let meta = std::fs::metadata(&base.path).unwrap();
    assert_eq!(meta.permissions().mode() & 0o7777, 0o444);
    let folder = std::fs::metadata(base.path.parent().unwrap()).unwrap();
    assert_eq!(folder.permissions().mode() & 0o7777, 0o711);
    assert_eq!(std::os::unix::fs::MetadataExt::nlink(&meta), 1);
    let limits = ImportLimits::default();
    verify(&bench.layout, &image, limits).await.unwrap();

    // The original is not ours: changing it changes nothing here.
    std::fs::write(&path, "gone").unwrap();
    verify(&bench.layout, &image, limits).await.unwrap();
    std::fs::set_permissions(&base.path, PermissionsExt::from_mode(0o644)).unwrap();
    std::fs::write(&base.path, "changed").unwrap();
    assert_eq!(verify(&bench.layout, &image, limits).await.unwrap_err().kind, ImageErrorKind::Invalid);
    for _ in 0..2 {
        ensure_removed(&bench.layout, image.id).await.unwrap();
    }
    assert_eq!(verify(&bench.layout, &image, limits).await.unwrap_err().kind, ImageErrorKind::NotFound);
    assert_eq!(bench.left(), [""; 0]);
}

#[tokio::test]
async fn a_raw_disk_with_a_partition_table_says_whether_it_grows() {
    needs!("qemu-img", "qemu-io", "prlimit", "sfdisk");
    let bench = bench();
    let file = File::create(bench.path("in")).unwrap();
    file.set_len(64 << 20).unwrap();
    let script = bench.path("script");
    std::fs::write(&script, "label: gpt\nsize=8M, type=U\nsize=40M, type=L\nsize=8M, type=S\n").unwrap();
    let done = Command::new("sfdisk")
        .args(["-q", "--no-reread", "--no-tell-kernel"])
        .arg(bench.path("in"))
        .stdin(File::open(&script).unwrap())
        .output()
        .unwrap();
    assert!(done.status.success());
    let raw = bench.import(|_| {}).await.unwrap();
    assert_eq!(raw.disk.as_ref().map(|d| (d.format, d.growth)), Some((DiskFormat::Raw, Growth::NotLast)));
    // The same table inside of a qcow2 image.
    let converted = bench.path("converted");
    let done = Command::new("qemu-img")
        .args(["convert", "-f", "raw", "-O", "qcow2"])
        .args([bench.path("in"), converted.clone()])
        .status();
    assert!(done.unwrap().success());
    let open = File::open(&converted).unwrap();
    let image = bench.import(|import| import.file = DiskFile::Open(open)).await.unwrap();
    assert_eq!(image.disk.map(|d| (d.format, d.growth)), Some((DiskFormat::Qcow2, Growth::NotLast)));
}

#[tokio::test]
async fn an_image_that_points_at_files_of_the_host_is_refused_before_qemu_sees_it() {
    needs!("qemu-img", "qemu-io", "prlimit");
    let mut bench = bench();
    // A program that must not be reached.
    bench.tools.qemu_img = "/bin/false".into();
    let shadow = bench.qemu_img(&["create", "-q", "-f", "qcow2", "-u", "-b", "/etc/shadow", "-F", "raw"], "a", &["1M"]);
    assert!(bench.refused(&shadow).await.contains("backing file: \"/etc/shadow\""));
    let json = r#"json:{"driver":"file","filename":"/etc/shadow"}"#;
    let json = bench.qemu_img(&["create", "-q", "-f", "qcow2", "-u", "-b", json, "-F", "raw"], "b", &["1M"]);
    assert!(bench.refused(&json).await.contains("backing file: \"json:"));
    let option = format!("data_file={},data_file_raw=on", bench.path("data").display());
    let data = bench.qemu_img(&["create", "-q", "-f", "qcow2", "-o", &option], "c", &["1M"]);
    assert!(bench.refused(&data).await.contains("external data file"));
    let secret = "secret,id=s,data=abc";
    let encrypted =
        ["create", "-q", "--object", secret, "-f", "qcow2", "-o", "encrypt.format=luks,encrypt.key-secret=s"];
    let encrypted = bench.qemu_img(&encrypted, "d", &["1M"]);
    assert!(bench.refused(&encrypted).await.contains("encrypted"));
    for (format, word) in [("vmdk", "VMDK"), ("vdi", "VDI"), ("vhdx", "VHDX"), ("vpc", "VHD"), ("qed", "QED")] {
        let path = bench.qemu_img(&["create", "-q", "-f", format], format, &["4M"]);
        assert!(bench.refused(&path).await.contains(word), "{format}");
    }
    let text = bench.path("e");
    std::fs::write(&text, "# Disk DescriptorFile\nversion=1\nRW 2048 FLAT \"/etc/passwd\" 0\n").unwrap();
    assert!(bench.refused(&text).await.contains("VMDK descriptor"));
}

#[tokio::test]
async fn only_regular_files_are_opened_and_nothing_waits_for_a_pipe() {
    let bench = bench();
    let begun = Instant::now();
    let link = bench.path("link");
    std::os::unix::fs::symlink("/etc/shadow", &link).unwrap();
    assert_eq!(bench.refused(&link).await, "it is a symbolic link; give the file itself");
    let pipe = bench.path("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for path in [&pipe, Path::new("/dev/zero"), bench.dir.path()] {
        assert_eq!(bench.refused(path).await, "it is not a regular file");
    }
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert!(bench.refused(Path::new("/etc/passwd")).await.starts_with("no disk format is recognised"));
}

#[tokio::test]
async fn damage_and_wrong_digests_are_found_and_leave_nothing() {
    needs!("qemu-img", "qemu-io", "prlimit");
    let bench = bench();
    let whole = bench.qemu_img(&["create", "-q", "-f", "qcow2", "-o", "preallocation=metadata"], "in", &["64M"]);
    let wrong = bench.import(|import| import.sha256 = Some("0".repeat(64))).await.unwrap_err();
    assert!(wrong.message.contains("expected was 0000"), "{wrong}");
    assert_eq!(bench.left(), [""; 0]);
    let bytes = std::fs::read(&whole).unwrap();
    let cut = bench.path("cut");
    std::fs::write(&cut, &bytes[..1000]).unwrap();
    assert!(bench.refused(&cut).await.contains("damaged or cut short"));
    // A reference to a cluster behind the end of the file: only qemu-img finds it.
    std::fs::write(&cut, &bytes[..400 << 10]).unwrap();
    assert!(bench.refused(&cut).await.starts_with("the image is damaged"));
    let limits = ImportLimits { max_file: 1 << 10, ..ImportLimits::default() };
    let source = bench.path("in");
    let disk = DiskImport {
        file: DiskFile::Path(source),
        name: "x".parse().unwrap(),
        version: None,
        os: "x".to_owned(),
        user: "x".parse().unwrap(),
        sha256: None,
        format: None,
        min_disk: Mib(0),
    };
    let large = import(&bench.tools, &bench.layout, ImportSource::Disk(disk), limits).await.unwrap_err();
    assert!(large.message.starts_with("the file is of"), "{large}");
}

#[tokio::test]
async fn an_import_that_is_given_up_leaves_nothing_and_a_crash_is_swept() {
    needs!("qemu-img", "qemu-io", "prlimit");
    let mut bench = bench();
    bench.qemu_img(&["create", "-q", "-f", "qcow2"], "in", &["64M"]);
    let slow = bench.path("slow");
    std::fs::write(&slow, "#!/bin/sh\nexec sleep 60\n").unwrap();
    std::fs::set_permissions(&slow, PermissionsExt::from_mode(0o755)).unwrap();
    bench.tools.cp = slow.into_os_string();
    let given_up = tokio::time::timeout(Duration::from_millis(300), bench.import(|_| {})).await;
    assert!(given_up.is_err());
    assert_eq!(bench.left(), [""; 0]);
    std::fs::create_dir(bench.layout.images_dir().join("tmp-crashed")).unwrap();
    std::fs::write(bench.layout.images_dir().join("tmp-crashed/disk.raw"), "half").unwrap();
    assert_eq!(sweep(&bench.layout).await.unwrap(), 1);
    assert_eq!(sweep(&bench.layout).await.unwrap(), 0);
}

#[tokio::test]
async fn a_folder_of_a_recipe_is_taken_in() {
    let bench = bench();
    let folder = bench.path("folder");
    std::fs::create_dir(&folder).unwrap();
    let mut kernel = vec![0; 4096];
    kernel[0x202..0x206].copy_from_slice(b"HdrS");
    std::fs::write(folder.join("vmlinuz"), &kernel).unwrap();
    std::fs::write(folder.join("initrd.img"), "initrd").unwrap();
    let digest = |name: &str| {
        use sha2::Digest as _;
        hex::encode(sha2::Sha256::digest(std::fs::read(folder.join(name)).unwrap()))
    };
    let manifest = format!(
        "name='tiny'\nversion='v1'\nos='tiny'\narch='x86_64'\nuser='gvm'\nmin_disk_mib=16\nnew_key=1\n[kernel]\n\
         file='vmlinuz'\nsha256='{}'\ninitrd='initrd.img'\ninitrd_sha256='{}'\ncmdline='console=ttyS0'\n",
        digest("vmlinuz"),
        digest("initrd.img")
    );
    std::fs::write(folder.join("image.toml"), &manifest).unwrap();
    let image = import_with(&bench, ImportSource::Folder { path: folder.clone(), name: None }).await.unwrap();
    assert_eq!((image.name.as_str(), image.min_disk, image.disk.is_none()), ("tiny", Mib(16), true));
    let found = kernel_files(&bench.layout, &image).unwrap();
    assert_eq!(std::fs::read(&found.kernel).unwrap(), kernel);
    assert_eq!(found.cmdline, "console=ttyS0");
    verify(&bench.layout, &image, ImportLimits::default()).await.unwrap();

    std::fs::remove_file(folder.join("initrd.img")).unwrap();
    std::os::unix::fs::symlink("/etc/shadow", folder.join("initrd.img")).unwrap();
    let link = import_with(&bench, ImportSource::Folder { path: folder.clone(), name: None }).await.unwrap_err();
    assert!(link.message.contains("symbolic link"), "{link}");
    std::fs::write(folder.join("vmlinuz"), "no kernel").unwrap();
    let kernel = import_with(&bench, ImportSource::Folder { path: folder, name: None }).await.unwrap_err();
    assert_eq!(kernel.message, "this is not a Linux kernel (bzImage)");
    assert_eq!(bench.left().len(), 1);
}

#[test]
fn a_path_means_a_folder_or_a_disk() {
    let bench = bench();
    let words = |name: Option<&str>, os: Option<&str>| ImportWords {
        name: name.map(|name| name.parse().unwrap()),
        os: os.map(str::to_owned),
        ..ImportWords::default()
    };
    let at = |name: &str, words| ImportSource::at_path(bench.path(name), words).map_err(|e| e.message);
    assert!(at("", words(None, None)).unwrap_err().contains("no image.toml in this folder"));
    std::fs::write(bench.path("image.toml"), "").unwrap();
    assert!(matches!(at("", words(Some("x"), None)), Ok(ImportSource::Folder { name: Some(_), .. })));
    assert!(at("", words(None, Some("x"))).unwrap_err().contains("image.toml says"));
    assert!(matches!(at("disk", words(Some("x"), None)), Ok(ImportSource::Disk(_))));
    assert!(at("disk", words(None, None)).unwrap_err().contains("needs a name"));
}
