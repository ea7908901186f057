//! Full disks, and images that are not what they should be.

use std::path::Path;
use std::process::{Command, Stdio};

use gvm::api::types::{ImageList, OperationView};

use crate::support::private_host::SOON;
use crate::support::run::run;
use crate::support::site::{BOOT, CONFIG, Site, tiny};
use crate::support::skip::need_libvirt;
use crate::support::traces::{assert_bare, assert_no_trace};

/// A site whose images and disks have only so much room; the database has its own.
fn with_room(mib: u32) -> Site {
    let site = Site::new(CONFIG);
    let mount = format!(
        "cd /var/lib/gvm && mkdir -m 711 small images vms && mount -t tmpfs -o mode=711,size={mib}m small small
         cd small && mkdir -m 711 images vms && mount --bind images ../images && mount --bind vms ../vms"
    );
    site.host.sh(&mount).ok();
    site
}

fn fill(site: &Site, mib: u32) {
    site.host.sh(&format!("head -c {mib}M /dev/urandom > /var/lib/gvm/small/filler")).ok();
}

#[test]
fn a_full_disk_in_an_import_or_a_clone_is_told_and_leaves_nothing() {
    need_libvirt!();
    let site = with_room(64);
    let manager = site.serve();
    fill(&site, 50);
    let told = site.gvm(&["image", "import", tiny().to_str().unwrap()]).fails(5);
    assert!(told.contains("the host's storage is full"), "{told}");
    let left = site.host.sh("find /var/lib/gvm/images -mindepth 1").text();
    assert_eq!(left, "", "the import left something");
    assert!(site.gvm_json::<ImageList>(&["image", "list"]).images.is_empty());
    fill(&site, 1);
    site.gvm(&["image", "import", tiny().to_str().unwrap()]).ok();

    site.gvm(&["create", "dev", "--profile", "tiny", "--stopped"]).ok();
    let id = site.show("dev").id;
    // The disk gets 10 MiB of content; then there is no room for a second one.
    let disk = format!("/var/lib/gvm/vms/{id}/root.qcow2");
    site.host.sh(&format!("qemu-io -c 'write -P 0x5a 0 10M' {disk}")).ok();
    fill(&site, 28);
    let told = site.gvm(&["clone", "dev", "copy", "--timeout", "60s"]).fails(1);
    assert!(told.contains("the host's storage is full"), "{told}");
    let copy = site.show("copy");
    assert_eq!(copy.state, "failed");
    let left = site.host.sh(&format!("find /var/lib/gvm/vms/{} -type f", copy.id)).text();
    assert_eq!(left, "", "a part of the copy is left");
    fill(&site, 1);
    // It is tried again by itself.
    site.wait_for("copy", "running");
    for name in ["copy", "dev"] {
        let vm = site.show(name);
        site.gvm(&["delete", "--now", "--yes", name]).ok();
        assert_no_trace(&site, &vm);
    }
    assert_bare(&site);
    manager.stop();
}

#[test]
fn a_guest_that_meets_a_full_disk_is_held_and_goes_on_when_there_is_room() {
    need_libvirt!();
    let site = with_room(400);
    let manager = site.serve();
    site.gvm(&["image", "import", tiny().to_str().unwrap()]).ok();
    site.gvm(&["create", "dev", "--profile", "tiny"]).ok();
    fill(&site, 370);
    // The member may not write to the raw disk; root inside may.
    let write = "dd if=/dev/zero of=/dev/vda bs=1M count=40 && sync && echo wrote-all";
    let mut command = site.gvm_inside(&["ssh", "--direct", "root@dev", write]);
    let writer = std::thread::spawn(move || {
        command.stdin(Stdio::null());
        run(command, BOOT)
    });
    site.wait_for("dev", "degraded");
    assert!(site.show("dev").detail.contains("storage is full"), "{}", site.show("dev").detail);
    fill(&site, 1);
    site.wait_for("dev", "running");
    assert_eq!(writer.join().unwrap().text(), "wrote-all");
    site.gvm(&["delete", "--now", "--yes", "dev"]).ok();
    assert_bare(&site);
    manager.stop();
}

/// Makes a disk image with qemu-img.
fn qemu_img(arguments: &[&str], folder: &Path) {
    let mut command = Command::new("qemu-img");
    command.args(arguments).current_dir(folder);
    run(command, SOON).ok();
}

#[test]
fn images_that_are_not_what_they_should_be_are_refused() {
    need_libvirt!();
    let (site, manager) = Site::serving();
    let folder = site.host.dir().join("images");
    std::fs::create_dir(&folder).unwrap();
    qemu_img(&["create", "-q", "-f", "qcow2", "base.qcow2", "8M"], &folder);
    qemu_img(&["create", "-q", "-f", "qcow2", "-b", "base.qcow2", "-F", "qcow2", "overlay.qcow2"], &folder);
    qemu_img(&["create", "-q", "-f", "qcow2", "-b", "/etc/shadow", "-F", "raw", "-u", "secrets.qcow2", "8M"], &folder);
    qemu_img(&["create", "-q", "-f", "qcow2", "-o", "data_file=data.raw", "data.qcow2", "8M"], &folder);
    qemu_img(&["create", "-q", "-f", "vmdk", "other.vmdk", "8M"], &folder);
    let base = std::fs::read(folder.join("base.qcow2")).unwrap();
    std::fs::write(folder.join("truncated.qcow2"), &base[..base.len() / 2]).unwrap();
    std::fs::write(folder.join("empty.qcow2"), b"").unwrap();
    std::fs::write(folder.join("text.qcow2"), "#!/bin/sh\necho no image\n").unwrap();
    std::fs::create_dir(folder.join("folder")).unwrap();
    let check = |file: &str, more: &[&str], code: i32, words: &str| {
        let path = folder.join(file);
        let arguments = [&["image", "import", path.to_str().unwrap()], more].concat();
        let told = site.gvm(&arguments).fails(code);
        assert!(told.contains(words), "{file}: {told}");
        let last = &site.api::<gvm::api::types::OperationList>("/v1/operations?limit=1").operations[0];
        assert!(is_refusal(last, &path), "{file}: {last:?}");
    };
    let named = ["--name", "x"];
    check("overlay.qcow2", &named, 2, "another file");
    check("secrets.qcow2", &named, 2, "another file");
    check("data.qcow2", &named, 2, "another file");
    check("truncated.qcow2", &named, 2, "");
    check("empty.qcow2", &named, 2, "");
    check("text.qcow2", &named, 2, "");
    check("other.vmdk", &named, 2, "");
    check("missing.qcow2", &named, 4, "no such file");
    check("folder", &[], 2, "there is no image.toml in this folder");
    check("base.qcow2", &[], 2, "name");
    check("base.qcow2", &["--name", "x", "--sha256", &"0".repeat(64)], 2, "SHA-256");
    assert!(site.gvm_json::<ImageList>(&["image", "list"]).images.is_empty());
    assert_eq!(site.host.sh("find /var/lib/gvm/images -mindepth 1 2>/dev/null || true").text(), "");
    site.gvm(&["image", "import", folder.join("base.qcow2").to_str().unwrap(), "--name", "x"]).ok();
    site.gvm(&["image", "rm", "x"]).ok();
    assert_eq!(site.host.sh("find /var/lib/gvm/images -mindepth 1").text(), "");
    manager.stop();
}

fn is_refusal(row: &OperationView, path: &Path) -> bool {
    let is_about = path.to_str().unwrap().starts_with(row.target.trim_end_matches('"'));
    row.action == "image.import"
        && matches!(row.outcome.as_str(), "denied" | "failure")
        && !row.detail.is_empty()
        && is_about
}
