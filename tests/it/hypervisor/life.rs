//! Lives of real machines: firmware alone, the tiny image, UEFI.

use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use gvm::hypervisor::{DomainDisk, DomainNic, DomainSpec, ErrorKind, Firmware, Hypervisor, LiveChange, Wake};
use gvm::model::caps::Caps;
use gvm::model::image::DiskFormat;
use gvm::model::network::{GuestAddress, MacAddress, NetworkSpec};
use gvm::model::state::{Observed, Power, WhyPaused};
use gvm::model::units::Mib;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::guest::{Line, PATIENCE, cgroup, image, pid_of, tool};
use super::samples::{block_on, domain, firmware_only, libvirt, wait_for};
use crate::support::own_process::in_private_host;
use crate::support::skip::{is_long, say};

const URI: &str = "qemu:///system";

#[test]
fn firmware_alone_lives_a_whole_life() {
    in_private_host!(|| block_on(async {
        let hypervisor = libvirt(URI);
        let hypervisor = &*hypervisor;
        let mut wakes = hypervisor.wakes().unwrap();
        let caps = Caps { cpu_percent: Some(50), cpu_shares: Some(512), ..Caps::default() };
        let spec = DomainSpec { caps: caps.clone(), ..firmware_only() };
        let vm = spec.id;

        let verdict = hypervisor.check(&spec).await.unwrap();
        assert!(verdict.xml.contains("&lt;web&gt; &amp; co"), "{}", verdict.xml);
        assert!(verdict.native.as_ref().unwrap().contains("qemu-system-x86_64"), "{:?}", verdict.native);
        assert_eq!(tool("virsh", &["list", "--all", "--name"]).trim(), "", "a check leaves nothing behind");
        let broken = DomainSpec { vcpus: 0, ..spec.clone() };
        assert_eq!(hypervisor.check(&broken).await.unwrap_err().kind, ErrorKind::Invalid);

        hypervisor.define(&spec).await.unwrap();
        hypervisor.start(vm).await.unwrap();
        hypervisor.pause(vm).await.unwrap();
        let mut line = Line::open(hypervisor, vm).await;
        hypervisor.resume(vm).await.unwrap();
        line.wait("SeaBIOS").await;
        let other = Line::open(hypervisor, vm).await;
        assert!(line.ends().await, "a second opener closes the first line");

        assert_eq!((cgroup(vm, "cpu.cfs_quota_us"), cgroup(vm, "cpu.shares")), ("50000".into(), "512".into()));
        assert_eq!(domain(hypervisor, vm).await.caps, caps);
        let looser = Caps { cpu_percent: Some(80), ..Caps::default() };
        for _ in 0..2 {
            hypervisor.apply(vm, &LiveChange::Caps(looser.clone())).await.unwrap();
            assert_eq!(domain(hypervisor, vm).await.caps, looser);
        }
        assert_eq!((cgroup(vm, "cpu.cfs_quota_us"), cgroup(vm, "cpu.shares")), ("80000".into(), "1024".into()));
        assert_eq!(hypervisor.observe_all().await.unwrap(), [(vm, hypervisor.observe(vm).await)]);
        hypervisor.apply(vm, &LiveChange::Caps(Caps::default())).await.unwrap();
        assert_eq!(domain(hypervisor, vm).await.caps, Caps::default());
        assert_eq!(cgroup(vm, "cpu.cfs_quota_us"), "-1");

        let stats = hypervisor.stats(vm).await.unwrap();
        assert!(stats.cpu_time_ns > 0 && stats.rss_kib > 10_000, "{stats:?}");
        hypervisor.shutdown(vm).await.unwrap();
        assert_eq!(domain(hypervisor, vm).await.power, Power::Running, "firmware does not hear the button");
        let nobody = hypervisor.guest_exec(vm, &["/bin/true"], Duration::from_secs(5)).await.unwrap_err();
        assert!(nobody.kind == ErrorKind::Transient && nobody.message.contains("not connected"), "{nobody}");

        while wakes.try_recv().is_ok() {}
        kill(Pid::from_raw(pid_of(vm)), Signal::SIGKILL).unwrap();
        assert!(other.ends().await);
        assert_eq!(tokio::time::timeout(Duration::from_secs(10), wakes.recv()).await.unwrap(), Some(Wake::Vm(vm)));
        wait_for(hypervisor, vm, Power::Off).await;
        // What was changed live is in the definition too.
        assert_eq!(domain(hypervisor, vm).await.caps, Caps::default());
        hypervisor.force_off(vm).await.unwrap();
        hypervisor.undefine(vm).await.unwrap();
        assert_eq!(hypervisor.observe(vm).await, Observed::Missing);
        let log = std::fs::read_to_string("/var/lib/gvm/serial.log").unwrap();
        assert!(log.contains("SeaBIOS"), "{log}");
    }));
}

#[test]
fn what_others_change_is_seen_in_the_list() {
    in_private_host!(|| block_on(async {
        let hypervisor = libvirt(URI);
        let spec = firmware_only();
        let name = format!("gvm-{}", spec.id);
        hypervisor.define(&spec).await.unwrap();
        hypervisor.start(spec.id).await.unwrap();
        let listed = async || match hypervisor.observe_all().await.unwrap().pop() {
            Some((_, Observed::Defined(domain))) => Some(domain),
            _ => None,
        };
        assert_eq!(listed().await.unwrap().caps, Caps::default());
        let wait = async |wanted: Option<u32>| {
            for _ in 0..200 {
                if listed().await.map(|domain| domain.caps.cpu_percent.unwrap_or(0)) == wanted {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            panic!("not {wanted:?}: {:?}", listed().await);
        };
        wait(Some(0)).await;
        tool("virsh", &["schedinfo", &name, "--live", "--set", "global_quota=70000"]);
        wait(Some(70)).await;
        // Ends with the run: the definition has no such limit.
        tool("virsh", &["destroy", &name]);
        wait(Some(0)).await;
        tool("virsh", &["undefine", &name]);
        wait(None).await;
    }));
}

#[test]
fn strangers_are_left_alone() {
    in_private_host!(|| block_on(async {
        let hypervisor = libvirt(URI);
        let spec = firmware_only();
        let xml = format!(
            "<domain type='qemu'><name>gvm-{}</name><uuid>{}</uuid><memory unit='MiB'>64</memory><os><type>hvm</type>\
             </os></domain>",
            spec.id, spec.id
        );
        std::fs::write("/var/lib/gvm/foreign.xml", xml).unwrap();
        tool("virsh", &["define", "/var/lib/gvm/foreign.xml"]);
        assert_eq!(hypervisor.observe(spec.id).await, Observed::Missing);
        assert_eq!(hypervisor.observe_all().await.unwrap(), []);
        assert_eq!(hypervisor.strangers().await.unwrap(), [format!("gvm-{}", spec.id)]);
        let refused = hypervisor.define(&spec).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Conflict);
        assert!(refused.message.contains("not gvm's") && refused.message.contains(URI), "{refused}");
        hypervisor.undefine(spec.id).await.unwrap();
        hypervisor.force_off(spec.id).await.unwrap();
        assert_eq!(tool("virsh", &["list", "--all", "--name"]).trim(), format!("gvm-{}", spec.id));
    }));
}

#[test]
fn uefi_with_tpm_leaves_nothing_behind() {
    in_private_host!(|| block_on(async {
        let hypervisor = libvirt(URI);
        tool("qemu-img", &["create", "-q", "-f", "qcow2", "/var/lib/gvm/root.qcow2", "64M"]);
        let disk = DomainDisk {
            path: "/var/lib/gvm/root.qcow2".into(),
            format: DiskFormat::Qcow2,
            backing: None,
            is_read_only: false,
            serial: "root".to_owned(),
        };
        for secure_boot in [false, true] {
            let spec = DomainSpec {
                firmware: Firmware::Uefi { secure_boot },
                memory: Mib(256),
                disks: vec![disk.clone()],
                tpm: true,
                graphics: true,
                ..firmware_only()
            };
            let nvram = format!("/var/lib/libvirt/qemu/nvram/gvm-{}_VARS.fd", spec.id);
            let tpm = format!("/var/lib/libvirt/swtpm/{}", spec.id);
            hypervisor.define(&spec).await.unwrap();
            hypervisor.start(spec.id).await.unwrap();
            assert!(spec.is_met_by(&domain(&*hypervisor, spec.id).await));
            assert!(Path::new(&nvram).exists() && Path::new(&tpm).exists());
            hypervisor.force_off(spec.id).await.unwrap();
            hypervisor.undefine(spec.id).await.unwrap();
            assert!(!Path::new(&nvram).exists() && !Path::new(&tpm).exists());
        }
    }));
}

fn network() -> NetworkSpec {
    NetworkSpec { name: "gvm".into(), bridge: "gvmbr0".into(), subnet: "10.77.0.0/24".parse().unwrap() }
}

/// The tiny image with a disk to write on, and a seed where `folder` has one.
fn tiny_spec(image: &Path, has_seed: bool) -> DomainSpec {
    let manifest = std::fs::read_to_string(image.join("image.toml")).unwrap();
    let cmdline = manifest.lines().find_map(|line| line.strip_prefix("cmdline = ")).unwrap().trim_matches('"');
    // QEMU's user cannot pass root's home.
    for file in ["vmlinuz", "initrd.img"] {
        std::fs::copy(image.join(file), Path::new("/var/lib/gvm").join(file)).unwrap();
    }
    let disk = |name: &str, format, is_read_only| DomainDisk {
        path: Path::new("/var/lib/gvm").join(name),
        format,
        backing: None,
        is_read_only,
        serial: name.split('.').next().unwrap().to_owned(),
    };
    let mut disks = vec![disk("root.qcow2", DiskFormat::Qcow2, false)];
    if has_seed {
        disks.push(disk("seed.iso", DiskFormat::Raw, true));
    }
    DomainSpec {
        vcpus: 1,
        max_vcpus: 2,
        memory: Mib(256),
        max_memory: Some(Mib(1024)),
        firmware: Firmware::Kernel {
            kernel: "/var/lib/gvm/vmlinuz".into(),
            initrd: "/var/lib/gvm/initrd.img".into(),
            cmdline: cmdline.to_owned(),
        },
        disks,
        nic: Some(DomainNic {
            mac: MacAddress::qemu([1, 2, 3]),
            network: "gvm".to_owned(),
            address: GuestAddress([10, 77, 0, 9].into()),
            is_filtered: true,
        }),
        ..firmware_only()
    }
}

fn make_seed() {
    std::fs::create_dir("/var/lib/gvm/seed").unwrap();
    let seed = |name: &str| format!("/var/lib/gvm/seed/{name}");
    tool("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &seed("gvm-host-ed25519")]);
    std::fs::rename(seed("gvm-host-ed25519.pub"), seed("gvm-authorized-keys")).unwrap();
    std::fs::write(seed("gvm-hostname"), "web\n").unwrap();
    tool(
        "xorriso",
        &["-as", "mkisofs", "-quiet", "-V", "cidata", "-R", "-o", "/var/lib/gvm/seed.iso", "/var/lib/gvm/seed"],
    );
}

#[test]
fn tiny_boots_with_its_address_and_grows_while_it_runs() {
    in_private_host!(|| block_on(async {
        let Some(image) = image("tiny") else { return };
        let hypervisor = libvirt(URI);
        let hypervisor = &*hypervisor;
        tool("qemu-img", &["create", "-q", "-f", "qcow2", "/var/lib/gvm/root.qcow2", "64M"]);
        make_seed();
        let caps = Caps { disk_iops: Some(300), disk_bytes_per_sec: Some(8 << 20), ..Caps::default() };
        let with_net = Caps { net_in_bytes_per_sec: Some(1_000_001), ..caps.clone() };
        let spec = DomainSpec { caps: with_net.clone(), ..tiny_spec(&image, true) };
        let (vm, nic) = (spec.id, spec.nic.clone().unwrap());
        hypervisor.ensure_network(&network()).await.unwrap();
        hypervisor.ensure_host_entry("gvm", nic.mac, nic.address, "web").await.unwrap();

        hypervisor.define(&spec).await.unwrap();
        assert!(spec.is_met_by(&domain(hypervisor, vm).await));
        let refused = hypervisor.start(vm).await.unwrap_err();
        assert!(refused.kind == ErrorKind::Permanent && refused.message.contains("sch_sfq"), "{refused}");
        assert_eq!(domain(hypervisor, vm).await.power, Power::Off, "it never runs without the cap it was promised");
        hypervisor.apply(vm, &LiveChange::Caps(caps.clone())).await.unwrap();
        assert_eq!(domain(hypervisor, vm).await.caps, caps);

        hypervisor.start(vm).await.unwrap();
        let mut line = Line::open(hypervisor, vm).await;
        line.wait("gvm: ready").await;
        let address = (nic.address.0, 22).into();
        TcpStream::connect_timeout(&address, Duration::from_secs(10)).unwrap();
        line.wait("$ ").await;
        assert_eq!(line.run("cat /sys/class/net/eth0/address").await, nic.mac.to_string());
        assert!(line.run("ls -l /sys/class/net/eth0/device").await.contains("virtio"));

        let refused = hypervisor.apply(vm, &LiveChange::Caps(with_net)).await.unwrap_err();
        assert!(refused.kind == ErrorKind::Permanent && refused.message.contains("sch_sfq"), "{refused}");
        assert_eq!(domain(hypervisor, vm).await.caps, caps, "nothing of a refused change is reported as kept");
        TcpStream::connect_timeout(&address, Duration::from_secs(10)).unwrap();
        let other = Caps { disk_iops: Some(900), ..Caps::default() };
        hypervisor.apply(vm, &LiveChange::Caps(other.clone())).await.unwrap();
        assert_eq!(domain(hypervisor, vm).await.caps, other);
        let tune = tool("virsh", &["blkdeviotune", &format!("gvm-{vm}"), "vda"]);
        assert!(tune.contains("total_iops_sec : 900") && tune.contains("total_bytes_sec: 0"), "{tune}");

        for _ in 0..2 {
            hypervisor.apply(vm, &LiveChange::Vcpus(2)).await.unwrap();
            hypervisor.apply(vm, &LiveChange::Memory(Mib(512))).await.unwrap();
            hypervisor.apply(vm, &LiveChange::RootDisk(Mib(96))).await.unwrap();
        }
        let grown = domain(hypervisor, vm).await;
        assert_eq!((grown.vcpus, grown.memory), (2, Mib(512)));
        assert_eq!(hypervisor.root_disk_size(vm).await.unwrap(), Mib(96));
        let mut seen = String::new();
        for _ in 0..40 {
            seen = line.run("nproc; grep MemTotal /proc/meminfo; cat /sys/block/vda/size").await;
            let words: Vec<&str> = seen.split_whitespace().collect();
            if words[0] == "2" && words[2].parse::<u64>().unwrap() > 400_000 && words[4] == "196608" {
                seen.clear();
                break;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        assert_eq!(seen, "", "the guest did not take it into use");
        for less in [LiveChange::Vcpus(1), LiveChange::Memory(Mib(256)), LiveChange::RootDisk(Mib(64))] {
            assert_eq!(hypervisor.apply(vm, &less).await.unwrap_err().kind, ErrorKind::Conflict, "{less:?}");
        }
        let odd = hypervisor.apply(vm, &LiveChange::Memory(Mib(600))).await.unwrap_err();
        assert!(odd.message.contains("512 MiB or 640 MiB"), "{odd}");
        let (max, over) = (LiveChange::Memory(Mib(2048)), LiveChange::Vcpus(3));
        assert_eq!(hypervisor.apply(vm, &max).await.unwrap_err().kind, ErrorKind::Conflict);
        assert_eq!(hypervisor.apply(vm, &over).await.unwrap_err().kind, ErrorKind::Conflict);

        let stats = hypervisor.stats(vm).await.unwrap();
        assert!(stats.net_rx_bytes > 0 && stats.net_tx_bytes > 0 && stats.disk_read_bytes > 0, "{stats:?}");
        hypervisor.shutdown(vm).await.unwrap();
        wait_for(hypervisor, vm, Power::Off).await;
        let off = domain(hypervisor, vm).await;
        assert!(off.is_off_by_guest, "the guest heard the button");
        assert_eq!((off.vcpus, off.memory), (2, Mib(512)), "what was plugged is in the definition");
        let grown = DomainSpec { vcpus: 2, memory: Mib(512), caps: other, ..spec.clone() };
        assert!(grown.is_met_by(&off));
        hypervisor.define(&grown).await.unwrap();
        assert!(grown.is_met_by(&domain(hypervisor, vm).await));
        hypervisor.undefine(vm).await.unwrap();
        hypervisor.ensure_host_entry_gone("gvm", nic.mac).await.unwrap();
    }));
}

#[test]
fn a_host_without_resolver_still_gives_addresses() {
    in_private_host!(|| block_on(async {
        std::fs::remove_file("/etc/resolv.conf").unwrap();
        std::os::unix::fs::symlink("../run/systemd/resolve/stub-resolv.conf", "/etc/resolv.conf").unwrap();
        let hypervisor = libvirt(URI);
        for _ in 0..2 {
            hypervisor.ensure_network(&network()).await.unwrap();
            let (mac, address) = (MacAddress::qemu([1, 2, 3]), GuestAddress([10, 77, 0, 9].into()));
            hypervisor.ensure_host_entry("gvm", mac, address, "web").await.unwrap();
        }
        let entries = std::fs::read_to_string("/var/lib/libvirt/dnsmasq/gvm.hostsfile").unwrap();
        assert!(entries.contains("52:54:00:01:02:03,10.77.0.9,web"), "{entries}");
    }));
}

/// A whole Debian, minutes under emulation: one of the long variants.
#[test]
fn a_guest_agent_runs_programs_and_hears_the_request_to_stop() {
    if !is_long() {
        return say(
            "hypervisor::life::a_guest_agent_runs_programs",
            "boots a Debian more; a long variant (GVM_LONG=1)",
        );
    }
    in_private_host!(|| block_on(async {
        let Some(image) = image("debian") else { return };
        let hypervisor = libvirt(URI);
        let hypervisor = &*hypervisor;
        std::fs::copy(image.join("disk.qcow2"), "/var/lib/gvm/base.qcow2").unwrap();
        let base = "/var/lib/gvm/base.qcow2";
        tool("qemu-img", &["create", "-q", "-f", "qcow2", "-b", base, "-F", "qcow2", "/var/lib/gvm/root.qcow2"]);
        let mut spec =
            DomainSpec { vcpus: 2, memory: Mib(1024), max_memory: None, nic: None, ..tiny_spec(&image, false) };
        spec.disks[0].backing = Some((base.into(), DiskFormat::Qcow2));
        let vm = spec.id;
        hypervisor.define(&spec).await.unwrap();
        hypervisor.start(vm).await.unwrap();
        let asked = std::time::Instant::now();
        let run = async |argv: &[&str], seconds| hypervisor.guest_exec(vm, argv, Duration::from_secs(seconds)).await;
        while let Err(error) = run(&["/bin/true"], 10).await {
            assert!(error.kind == ErrorKind::Transient && asked.elapsed() < PATIENCE * 4, "{error}");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        assert_eq!(run(&["/bin/echo", "a b", "c"], 60).await.unwrap(), (0, b"a b c\n".to_vec()));
        assert_eq!(run(&["/bin/sh", "-c", "exit 7"], 60).await.unwrap().0, 7);
        assert_eq!(run(&["/bin/sh", "-c", "kill -9 $$"], 60).await.unwrap().0, 137);
        let slow = run(&["/bin/sleep", "60"], 3).await.unwrap_err();
        assert!(slow.kind == ErrorKind::Transient && slow.message.contains("did not end within 3 s"), "{slow}");
        let missing = run(&["/no/such/program"], 60).await.unwrap_err();
        assert!(missing.kind == ErrorKind::Invalid && missing.message.contains("No such file"), "{missing}");
        hypervisor.shutdown(vm).await.unwrap();
        wait_for(hypervisor, vm, Power::Off).await;
        assert!(domain(hypervisor, vm).await.is_off_by_guest);
        hypervisor.undefine(vm).await.unwrap();
    }));
}

#[test]
fn a_full_disk_of_the_host_holds_the_guest() {
    in_private_host!(|| block_on(async {
        let Some(image) = image("tiny") else { return };
        let hypervisor = libvirt(URI);
        let hypervisor = &*hypervisor;
        std::fs::create_dir("/var/lib/gvm/small").unwrap();
        tool("mount", &["-t", "tmpfs", "-o", "size=4m,mode=711", "small", "/var/lib/gvm/small"]);
        tool("qemu-img", &["create", "-q", "-f", "qcow2", "/var/lib/gvm/small/root.qcow2", "64M"]);
        let mut spec = DomainSpec { nic: None, max_memory: None, ..tiny_spec(&image, false) };
        spec.disks[0].path = "/var/lib/gvm/small/root.qcow2".into();
        let vm = spec.id;
        hypervisor.define(&spec).await.unwrap();
        hypervisor.start(vm).await.unwrap();
        let mut line = Line::open(hypervisor, vm).await;
        line.wait("gvm: failed: no block device is labelled cidata").await;
        line.wait("# ").await;
        // Answers only when it goes on again.
        let writes =
            async { line.run("dd if=/dev/urandom of=/dev/vda bs=64k count=128 conv=fsync 2>&1 | tail -1").await };
        let holds = async {
            wait_for(hypervisor, vm, Power::Paused(WhyPaused::StorageError)).await;
            hypervisor.resume(vm).await.unwrap();
            wait_for(hypervisor, vm, Power::Paused(WhyPaused::StorageError)).await;
            tool("mount", &["-o", "remount,size=64m", "/var/lib/gvm/small"]);
            hypervisor.resume(vm).await.unwrap();
        };
        let (written, ()) = tokio::join!(writes, holds);
        assert!(written.contains("128+0 records out"), "{written}");
        assert_eq!(domain(hypervisor, vm).await.power, Power::Running);
        hypervisor.force_off(vm).await.unwrap();
        hypervisor.undefine(vm).await.unwrap();
    }));
}
