use super::*;
use crate::model::host::{DiskSpace, Program, Route, UefiFirmware};

fn program(version: Option<Version>) -> Option<Program> {
    Some(Program { path: "/usr/bin/x".into(), version })
}

/// A host on which everything is as it should be.
fn sound() -> HostFacts {
    let names = PROGRAMS.iter().map(|(name, ..)| ((*name).to_owned(), program(None)));
    let qemu = ["qemu-system-x86_64", "qemu-img"].map(|n| (n.to_owned(), program(Some(Version(10, 0, 2)))));
    HostFacts {
        memory_total: Mib(64 << 10),
        memory_available: Mib(32 << 10),
        cpus: 16,
        is_root: true,
        programs: names.chain(qemu).collect(),
        has_sfq: Some(true),
        resolver: Resolver::Present,
        state_space: Some(DiskSpace { path: "/var/lib/gvm".into(), total: Mib(1 << 20), free: Mib(1 << 19) }),
        routes: vec![Route { base: [10, 77, 0, 0].into(), prefix: 20, device: "gvmbr0".to_owned() }],
        firmware: UefiFirmware { has_plain: true, has_secure_boot: true },
        groups: [("gvm".to_owned(), true)].into(),
        users: [("gvm-gateway".to_owned(), true)].into(),
    }
}

struct Case {
    host: HostFacts,
    accelerator: Accelerator,
    hypervisor: Result<HypervisorVersions, String>,
    images: usize,
    lost_images: Vec<String>,
    strays: Vec<String>,
}

fn examined(change: impl FnOnce(&mut Case)) -> Vec<Finding> {
    let versions =
        HypervisorVersions { uri: "qemu:///system".to_owned(), libvirt: Version(11, 3, 0), qemu: Version(10, 0, 2) };
    let mut case = Case {
        host: sound(),
        accelerator: Accelerator::Kvm,
        hypervisor: Ok(versions),
        images: 2,
        lost_images: Vec::new(),
        strays: Vec::new(),
    };
    change(&mut case);
    let subnet = "10.77.0.0/20".parse().unwrap();
    let network = NetworkSpec { name: "gvm".to_owned(), bridge: "gvmbr0".to_owned(), subnet };
    examine(&Patient {
        host: &case.host,
        accelerator: &case.accelerator,
        hypervisor: case.hypervisor.as_ref().map_err(String::as_str),
        network: &network,
        socket_group: Some("gvm"),
        gateway_user: "gvm-gateway",
        images: case.images,
        lost_images: &case.lost_images,
        strays: &case.strays,
    })
}

/// What is not well, one line each.
fn unwell(change: impl FnOnce(&mut Case)) -> String {
    let findings = examined(change);
    let bad = findings.iter().filter(|finding| finding.level != Level::Ok).map(|finding| {
        let fix = finding.fix.as_deref().unwrap_or("nothing mends it");
        format!("{} {}: {}\n    {fix}\n", finding.level.word(), finding.check, finding.message)
    });
    bad.collect()
}

#[test]
fn a_sound_host_has_nothing_to_mend() {
    assert_eq!(unwell(|_| {}), "");
    let checks: Vec<&str> = examined(|_| {}).iter().map(|finding| finding.check).collect();
    insta::assert_snapshot!(checks.join(" "), @"root kvm libvirt qemu programs firmware sfq space memory resolver subnet group gateway-user images domains");
}

#[test]
fn every_fault_has_its_command() {
    let mut all = String::new();
    let mut add = |what: &str, found: String| all.push_str(&format!("# {what}\n{found}"));
    add("no root", unwell(|c| c.host.is_root = false));
    add("no kvm", unwell(|c| c.accelerator = Accelerator::Emulation { why: "this host has no /dev/kvm".to_owned() }));
    add("libvirt away", unwell(|c| c.hypervisor = Err("connection refused".to_owned())));
    add("old libvirt", unwell(|c| c.hypervisor.as_mut().unwrap().libvirt = Version(8, 0, 0)));
    add(
        "old qemu",
        unwell(|c| drop(c.host.programs.insert("qemu-system-x86_64".to_owned(), program(Some(Version(6, 2, 0)))))),
    );
    add(
        "mixed qemu",
        unwell(|c| drop(c.host.programs.insert("qemu-system-x86_64".to_owned(), program(Some(Version(7, 2, 0)))))),
    );
    add("no qemu-img", unwell(|c| drop(c.host.programs.insert("qemu-img".to_owned(), None))));
    add("no programs", unwell(|c| c.host.programs.retain(|name, _| name.starts_with("qemu"))));
    add("no firmware", unwell(|c| c.host.firmware = UefiFirmware::default()));
    add("no secure boot", unwell(|c| c.host.firmware.has_secure_boot = false));
    add("no sfq", unwell(|c| c.host.has_sfq = Some(false)));
    add("sfq unknown", unwell(|c| c.host.has_sfq = None));
    for free in [Mib(100), Mib(10 << 10)] {
        add("space", unwell(|c| c.host.state_space.as_mut().unwrap().free = free));
    }
    add("no space known", unwell(|c| c.host.state_space = None));
    add("little memory", unwell(|c| c.host.memory_available = Mib(512)));
    add("no resolver", unwell(|c| c.host.resolver = Resolver::Missing));
    let stub = "../run/systemd/resolve/stub-resolv.conf";
    add("dangling resolver", unwell(|c| c.host.resolver = Resolver::Dangling(stub.into())));
    add("other dangling resolver", unwell(|c| c.host.resolver = Resolver::Dangling("/x".into())));
    let vpn = Route { base: [10, 77, 4, 0].into(), prefix: 24, device: "wg0".to_owned() };
    add("overlap", unwell(|c| c.host.routes.push(vpn)));
    add("no accounts", unwell(|c| (c.host.groups, c.host.users) = Default::default()));
    add("no image", unwell(|c| c.images = 0));
    add("a lost image", unwell(|c| c.lost_images = vec!["debian".to_owned()]));
    let unproven = "KVM is there but not proven yet".to_owned();
    add("kvm not proven", unwell(|c| c.accelerator = Accelerator::Emulation { why: unproven }));
    add("strays", unwell(|c| c.strays = vec!["gvm-1".to_owned(), "gvm-2".to_owned()]));
    insta::assert_snapshot!(all);
}
