use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

use super::*;

struct Bench {
    dir: tempfile::TempDir,
    probe: Probe,
}

/// A host with a device that opens and a QEMU that is a script; it counts its runs in `runs`.
fn bench(script: &str) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for folder in ["dev", "state", "boot", "proc/sys/kernel/random"] {
        std::fs::create_dir_all(at(folder)).unwrap();
    }
    std::fs::write(at("dev/kvm"), "").unwrap();
    std::fs::write(at("proc/sys/kernel/osrelease"), "6.1\n").unwrap();
    std::fs::write(at("proc/sys/kernel/random/boot_id"), "first\n").unwrap();
    std::fs::write(at("kernel"), "kernel").unwrap();
    let text = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo 'QEMU emulator version 10.0.2' && exit 0\necho run >> {}\n{script}\n",
        at("runs").display()
    );
    std::fs::write(at("qemu"), text).unwrap();
    std::fs::set_permissions(at("qemu"), PermissionsExt::from_mode(0o755)).unwrap();
    let probe = Probe {
        root: HostRoot::at(dir.path()),
        qemu: at("qemu").into_os_string(),
        state_dir: at("state"),
        kernels: vec![at("missing"), at("kernel")],
        deadline: Duration::from_millis(1500),
    };
    Bench { dir, probe }
}

impl Bench {
    fn runs(&self) -> usize {
        std::fs::read_to_string(self.dir.path().join("runs")).unwrap_or_default().lines().count()
    }

    async fn why(&self) -> String {
        match self.probe.run().await {
            Accelerator::Emulation { why } => why,
            Accelerator::Kvm => panic!("KVM"),
        }
    }
}

#[tokio::test]
async fn the_first_words_of_a_kernel_are_the_proof_and_are_remembered() {
    let bench =
        bench("printf 'Probing EDD (edd=off to disable)... ok\\r\\n[    0.0] Linux version 6.1\\r\\n'; exec sleep 60");
    let begun = Instant::now();
    assert_eq!(bench.probe.run().await, Accelerator::Kvm);
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert_eq!(bench.probe.run().await, Accelerator::Kvm);
    assert_eq!(bench.runs(), 1);
    // Another boot, another kernel: tried anew.
    std::fs::write(bench.dir.path().join("proc/sys/kernel/random/boot_id"), "second\n").unwrap();
    assert_eq!(bench.probe.run().await, Accelerator::Kvm);
    std::fs::write(bench.dir.path().join("kernel"), "other").unwrap();
    assert_eq!(bench.probe.run().await, Accelerator::Kvm);
    assert_eq!(bench.runs(), 3);
    std::fs::write(bench.dir.path().join("state/accelerator.json"), "half").unwrap();
    assert_eq!(bench.probe.run().await, Accelerator::Kvm);
    assert_eq!(bench.runs(), 4);
}

#[tokio::test]
async fn a_kernel_that_hangs_means_emulation_and_its_qemu_is_killed() {
    let bench = bench("echo $$ > \"$0.pid\"; echo 'Probing EDD (edd=off to disable)... ok'; exec sleep 60");
    let why = bench.why().await;
    assert!(why.contains("did not come up on it within 1.5 s"), "{why}");
    assert!(why.contains("Probing EDD"), "{why}");
    assert_eq!(bench.why().await, why);
    assert_eq!(bench.runs(), 1);
    let pid: i32 = std::fs::read_to_string(bench.dir.path().join("qemu.pid")).unwrap().trim().parse().unwrap();
    assert!(nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None).is_err());
}

#[tokio::test]
async fn what_qemu_complains_of_is_passed_on() {
    let bench = bench("echo 'qemu: failed to initialize kvm: Operation not permitted' >&2; exit 1");
    assert_eq!(
        bench.why().await,
        "QEMU cannot use KVM on this host: qemu: failed to initialize kvm: Operation not permitted"
    );
}

#[tokio::test]
async fn without_a_device_or_a_kernel_nothing_is_run() {
    let mut bench = bench("exit 1");
    bench.probe.kernels.clear();
    assert!(bench.why().await.contains("import the image `tiny`"));
    std::fs::write(bench.dir.path().join("boot/vmlinuz-6.1"), "own kernel").unwrap();
    assert!(bench.why().await.starts_with("QEMU cannot use KVM"));
    std::fs::remove_file(bench.dir.path().join("dev/kvm")).unwrap();
    assert!(bench.why().await.starts_with("this host has no /dev/kvm"));
    assert_eq!(bench.runs(), 1);
}
