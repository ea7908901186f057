//! The main story with `tiny`, as a member lives it.

use std::time::Duration;

use gvm::api::types::{OperationList, VmView};

use super::member::Member;
use crate::support::run::until;
use crate::support::site::BOOT;
use crate::support::skip::need_libvirt;
use crate::support::traces::{assert_bare, assert_no_trace, qemus, starts};

#[test]
fn a_member_makes_a_machine_logs_in_and_changes_it() {
    need_libvirt!();
    let alice = Member::with_image("tiny");
    let made = alice.gvm(&["create", "dev", "--profile", "tiny", "--tag", "course"]).ok();
    for stage in ["disk", "seed", "start", "first boot", "its SSH server answers"] {
        assert!(made.stderr.contains(stage), "stage {stage}: {}", made.stderr);
    }
    assert!(
        made.stdout.contains("dev is ready: tiny, 1 CPU") && made.stdout.contains("gvm ssh dev"),
        "{}",
        made.stdout
    );
    assert!(alice.inside("dev", "uname -a").starts_with("Linux dev "));
    assert_eq!(alice.inside("dev", "id -un"), "alice");
    assert_eq!(alice.gvm(&["ssh", "dev", "exit 7"]).code, 7);
    clients(&alice);
    console(&alice);
    changes(&alice);
    who_leaves_the_group_comes_in_no_more(&alice);
    let vm = alice.site.show("dev.alice");
    alice.gvm(&["delete", "--now", "--yes", "dev"]).ok();
    assert_no_trace(&alice.site, &vm);
    assert_bare(&alice.site);
    alice.stop();
}

/// The real clients, by jump (`dev.gvm`) and by login at the gateway (`dev@localhost`), without a question.
fn clients(alice: &Member) {
    alice.gvm(&["ssh-config", "--write"]).ok();
    alice.sh("head -c 300000 /dev/urandom > data; sha256sum < data > sum").ok();
    for (host, port) in [("dev.gvm", ""), ("dev@localhost", "-o Port=2222")] {
        let script = format!(
            "options='-o BatchMode=yes {port}'
             test \"$(ssh $options {host} hostname)\" = dev
             ssh $options {host} 'cat > by-ssh' < data
             scp -q $options data {host}:by-scp
             echo 'put data by-sftp' | sftp -q -b - $options {host} > /dev/null
             rsync -e \"ssh $options\" data {host}:by-rsync
             for way in ssh scp sftp rsync; do
               ssh $options {host} sha256sum < /dev/null by-$way | cut -d' ' -f1 | cmp - <(cut -d' ' -f1 sum)
             done
             scp -q $options {host}:by-scp back-scp
             echo 'get by-sftp back-sftp' | sftp -q -b - $options {host} > /dev/null
             rsync -e \"ssh $options\" {host}:by-rsync back-rsync
             for way in scp sftp rsync; do cmp data back-$way; done
             ssh $options {host} 'rm by-*'; rm back-*"
        );
        let ended = alice.sh(&script).ok();
        assert_eq!(ended.stderr, "", "{host}: nobody is asked or warned");
    }
    let copied = alice.gvm(&["scp", "data", "dev:here"]).ok();
    assert!(!copied.stderr.contains("authenticity"), "{}", copied.stderr);
    assert_eq!(alice.inside("dev", "wc -c < here"), "300000");
    // A machine that does not exist is told by the gateway itself.
    let none = alice.sh("ssh -o BatchMode=yes -p 2222 none@localhost true");
    assert!(none.code == 255 && none.stderr.contains("none"), "{none:?}");
}

fn console(alice: &Member) {
    let typed = alice.site.feed_as(
        super::member::ALICE,
        &["gvm", "console", "dev", "--linger", "20s"],
        b"\necho marker-$((6 * 7))\nexit\n",
    );
    assert!(typed.stdout.contains("marker-42"), "{typed:?}");
    let logs = alice.gvm(&["logs", "dev", "-n", "1000"]).text();
    assert!(logs.contains("gvm: ready") && logs.contains("marker-42"), "{logs}");
}

fn changes(alice: &Member) {
    let site = &alice.site;
    alice.gvm(&["pause", "dev"]).ok();
    assert_eq!(site.show("dev.alice").state, "paused");
    let told = alice.gvm(&["ssh", "dev", "true"]).fails(5);
    assert!(told.contains("gvm resume dev"), "{told}");
    alice.gvm(&["resume", "dev"]).ok();
    assert_eq!(alice.inside("dev", "echo back"), "back");

    alice.gvm(&["set", "dev", "--cpu-percent", "50", "--disk-iops", "500", "--cpu-shares", "512"]).ok();
    let caps = alice.gvm(&["-o", "json", "show", "dev"]).json::<VmView>().caps_in_force.unwrap();
    assert_eq!((caps.cpu_percent, caps.disk_iops, caps.cpu_shares), (Some(50), Some(500), Some(512)));
    assert_eq!(cpu_quota(&site.show("dev.alice")), Some(50));
    alice.gvm(&["set", "dev", "--cpu-percent", "none"]).ok();
    assert_eq!(site.show("dev.alice").caps_in_force.unwrap().cpu_percent, None);
    assert_eq!(cpu_quota(&site.show("dev.alice")), None);

    alice.gvm(&["resize", "dev", "--disk", "2G"]).ok();
    assert_eq!(alice.inside("dev", "cat /sys/block/vda/size"), (2_u64 << 21).to_string());
    let told = alice.gvm(&["resize", "dev", "--disk", "1G"]).fails(2);
    assert!(told.contains("cannot become smaller"), "{told}");
    alice.gvm(&["resize", "dev", "--cpus", "2"]).ok();
    until("the second CPU is in use", BOOT, || alice.inside("dev", "nproc") == "2");

    let boot = "cat /proc/sys/kernel/random/boot_id";
    let before = alice.inside("dev", boot);
    alice.gvm(&["restart", "dev"]).ok();
    assert_ne!(alice.inside("dev", boot), before);
    assert_eq!(alice.inside("dev", "nproc"), "2");

    let vm = site.show("dev.alice");
    let running = qemus(&vm);
    alice.gvm(&["rename", "dev", "work"]).ok();
    assert_eq!((site.show("work.alice").id, qemus(&vm)), (vm.id.clone(), running), "the domain is the same");
    assert_eq!(alice.sh("ssh -o BatchMode=yes work.gvm echo by-its-new-name").text(), "by-its-new-name");
    alice.gvm(&["rename", "work", "dev"]).ok();
    alice.gvm(&["tag", "add", "dev", "thesis"]).ok();
    alice.gvm(&["tag", "rm", "dev", "course"]).ok();
    assert_eq!(alice.gvm(&["tag", "list", "dev"]).text(), "thesis");
}

/// Neither by the socket nor by the gateway, and back in once they are in it again.
fn who_leaves_the_group_comes_in_no_more(alice: &Member) {
    let host = &alice.site.host;
    let way_in = "ssh -o BatchMode=yes -p 2222 dev@localhost true";
    host.sh("gpasswd -d alice gvm").ok();
    let told = alice.sh(way_in);
    assert!(told.code == 255 && told.stderr.contains("Permission denied"), "{told:?}");
    alice.gvm(&["list"]).fails(3);
    host.sh("usermod -aG gvm alice").ok();
    alice.sh(way_in).ok();
}

/// The CPU quota of the machine's QEMU in percent of a core, from the kernel itself.
fn cpu_quota(vm: &VmView) -> Option<u64> {
    let is_ours = |entry: &std::fs::DirEntry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&format!("guest=gvm-{}", vm.id))
    };
    let process = std::fs::read_dir("/proc").unwrap().flatten().find(is_ours).expect("it runs");
    let groups = std::fs::read_to_string(process.path().join("cgroup")).unwrap();
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (controllers, path) = (parts.nth(1)?, parts.next()?);
        let mounts: &[&str] = match controllers {
            "" => &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
            _ if controllers.split(',').any(|one| one == "cpu") => {
                &["/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu"]
            }
            _ => return None,
        };
        mounts.iter().find_map(|mount| quota_above(mount, path))
    })
}

/// The nearest quota of a cgroup or of one above it.
fn quota_above(mount: &str, path: &str) -> Option<u64> {
    let root = std::path::Path::new(mount);
    let start = root.join(path.trim_start_matches('/'));
    start.ancestors().take_while(|dir| *dir != root).find_map(|dir| {
        let read = |name: &str| std::fs::read_to_string(dir.join(name)).ok();
        let (quota, period) = match read("cpu.max") {
            Some(both) => both.trim().split_once(' ').map(|(quota, period)| (quota.to_owned(), period.to_owned()))?,
            None => (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?),
        };
        let number = |text: &str| text.trim().parse::<u64>().ok();
        Some(number(&quota)? * 100 / number(&period)?)
    })
}

#[test]
fn a_machine_is_copied_deleted_brought_back_and_ends_by_itself() {
    need_libvirt!();
    let alice = Member::with_image("tiny");
    let site = &alice.site;
    alice.gvm(&["create", "dev", "--profile", "tiny"]).ok();
    alice.inside("root@dev", "echo marker | dd of=/dev/vda conv=fsync 2>/dev/null");
    let told = alice.gvm(&["clone", "dev", "copy"]).fails(5);
    assert!(told.contains("VM dev is not stopped") && told.contains("gvm stop dev"), "{told}");
    let off = alice.gvm(&["stop", "dev"]).ok();
    assert!(!off.stderr.contains("forcing"), "the guest listens: {}", off.stderr);
    let told =
        alice.sh("ssh -i .ssh/gvm_ed25519 -o BatchMode=yes -o StrictHostKeyChecking=no -p 2222 dev@localhost true");
    assert!(told.code == 255 && told.stderr.contains("VM dev is stopped"), "a stopped machine is explained: {told:?}");

    alice.gvm(&["clone", "dev", "copy"]).ok();
    assert_eq!(alice.inside("root@copy", "head -n 1 /dev/vda; hostname"), "marker\ncopy");
    let (dev, copy) = (site.show("dev.alice"), site.show("copy.alice"));
    assert!(dev.address != copy.address && dev.mac != copy.mac);

    deleted_and_back(&alice, &dev);
    survives_its_qemu(&alice, &dev);
    alice.gvm(&["stop", "dev"]).ok();
    a_lost_disk_is_told(&alice, &dev);
    ends_by_itself(&alice, &dev);
    for vm in [dev, copy] {
        alice.gvm(&["delete", "--now", "--yes", &vm.id]).ok();
        assert_no_trace(site, &vm);
    }
    assert_bare(site);
    alice.stop();
}

fn deleted_and_back(alice: &Member, dev: &VmView) {
    let deleted = alice.gvm(&["delete", "dev"]).ok();
    assert!(deleted.stderr.contains("gvm undelete dev"), "{}", deleted.stderr);
    let list = |more: &[&str]| alice.gvm(&[&["list"], more].concat()).stdout;
    assert!(!list(&[]).contains("dev") && list(&["--deleted"]).contains("dev"));
    let told = alice.gvm(&["start", "dev"]).fails(5);
    assert!(told.contains("VM dev is deleted") && told.contains("gvm undelete dev"), "{told}");
    alice.gvm(&["undelete", "dev"]).ok();
    alice.gvm(&["start", "dev"]).ok();
    assert_eq!(alice.inside("root@dev", "head -n 1 /dev/vda"), "marker");
    assert_eq!(alice.site.show("dev.alice").id, dev.id);
}

/// QEMU dies, as by the OOM killer: it comes back, and one can log in again.
fn survives_its_qemu(alice: &Member, dev: &VmView) {
    let before = starts(&alice.site.host, dev);
    alice.site.host.sh(&format!("pkill -9 -f '[g]uest=gvm-{}'", dev.id)).ok();
    until("it is started again", BOOT, || starts(&alice.site.host, dev) == before + 1);
    until("its SSH server answers again", BOOT, || alice.site.show(&dev.id).is_reachable);
    alice.gvm(&["start", "dev"]).ok();
    assert_eq!(alice.inside("dev", "echo back"), "back");
}

/// No empty disk is put in place of a lost one.
fn a_lost_disk_is_told(alice: &Member, dev: &VmView) {
    let disk = alice.site.state().join(format!("vms/{}/root.qcow2", dev.id));
    let kept = disk.with_extension("kept");
    std::fs::rename(&disk, &kept).unwrap();
    let told = alice.gvm(&["start", "dev"]).fails(1);
    assert!(told.contains("root.qcow2 is missing"), "{told}");
    assert!(!disk.exists());
    std::fs::rename(&kept, &disk).unwrap();
    alice.gvm(&["start", "dev"]).ok();
}

fn ends_by_itself(alice: &Member, dev: &VmView) {
    let site = &alice.site;
    let before = starts(&site.host, dev);
    alice.gvm(&["ssh", "root@dev", "poweroff"]);
    site.wait_for(&dev.id, "stopped");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!((site.show(&dev.id).state.as_str(), starts(&site.host, dev)), ("stopped", before), "it stays off");
    let record = site.api::<OperationList>("/v1/operations?limit=5").operations;
    let row = record.iter().find(|row| row.action == "vm.poweroff").expect("the guest's wish is on the record");
    assert_eq!((row.actor.as_str(), row.target.as_str(), row.outcome.as_str()), ("guest", "dev.alice", "success"));

    alice.gvm(&["set", "dev", "--ttl", "30s"]).ok();
    let started = alice.gvm(&["-o", "json", "start", "dev"]).json::<gvm::api::types::Accepted>().vm;
    assert!(started.expires_at.is_some());
    site.wait_for(&dev.id, "stopped");
    let is_over = |row: &gvm::api::types::OperationView| row.action == "vm.expire" && row.outcome == "success";
    until("the end of its lifetime is on the record", BOOT, || site.operations().iter().any(is_over));
}

#[test]
fn a_tpm_comes_and_goes_with_its_machine() {
    need_libvirt!();
    let (site, manager) = crate::support::site::Site::serving();
    site.gvm(&["create", "safe", "--profile", "firmware", "--tpm"]).ok();
    let vm = site.show("safe");
    let tpm = || site.host.sh("pgrep -c swtpm || true").text();
    assert_eq!(tpm(), "1");
    let state = site.host.outside(&format!("/var/lib/libvirt/swtpm/{}", vm.id));
    assert!(state.exists());
    site.gvm(&["stop", "--force", "safe"]).ok();
    assert!(state.exists(), "its secrets outlive a stop");
    site.gvm(&["start", "safe"]).ok();
    site.gvm(&["delete", "--now", "--yes", "safe"]).ok();
    assert_eq!(tpm(), "0");
    assert_no_trace(&site, &vm);
    assert_bare(&site);
    manager.stop();
}
