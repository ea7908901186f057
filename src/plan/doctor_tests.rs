use super::*;
use crate::model::host::kernel::{CpuVendor, Iommu, KernelFacts, ModuleState};
use crate::model::host::upkeep::{Clock, NumaNode, PathMode, PortUse, UpkeepFacts};
use crate::model::host::{DiskSpace, Program, Resolver, Route, UefiFirmware, Version};
use crate::model::units::Mib;

fn program(version: Option<Version>) -> Option<Program> {
    Some(Program { path: "/usr/bin/x".into(), version })
}

/// A host on which everything is as it should be.
fn sound() -> HostFacts {
    let names = basics::PROGRAMS.iter().map(|(name, ..)| ((*name).to_owned(), program(None)));
    let qemu = ["qemu-system-x86_64", "qemu-img"].map(|n| (n.to_owned(), program(Some(Version(10, 0, 2)))));
    let path = |path: &str, mode| PathMode { path: path.into(), mode, uid: 0 };
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
        kernel: KernelFacts {
            cpu: CpuVendor::Intel,
            kvm: ModuleState::Loaded,
            iommu: Some(Iommu { units: 2, groups: 40 }),
            vfio_pci: ModuleState::Loaded,
            has_vfio_node: true,
            ..KernelFacts::default()
        },
        upkeep: UpkeepFacts {
            nodes: vec![NumaNode { number: 0, cpus: "0-15".to_owned() }],
            transparent_hugepages: Some("madvise".to_owned()),
            clock: Clock::Synchronised,
            gateway_port: PortUse::Taken { program: Some("gvm".to_owned()), user: "gvm-gateway".to_owned() },
            state_path: vec![path("/", 0o755), path("/var", 0o755), path("/var/lib/gvm", 0o711)],
            database: Some(path("/var/lib/gvm/gvm.db", 0o600)),
            socket_dir: Some(path("/run/gvm", 0o755)),
            ..UpkeepFacts::default()
        },
    }
}

/// Everything about one host.
pub(super) struct Case {
    pub host: HostFacts,
    pub accelerator: Accelerator,
    pub hypervisor: Result<HypervisorVersions, String>,
    pub gpus: Result<Discovery, String>,
    pub images: usize,
    pub lost_images: Vec<String>,
    pub strays: Vec<String>,
    network: NetworkSpec,
}

impl Case {
    /// One without a GPU, on which everything is as it should be.
    pub fn sound() -> Self {
        let uri = "qemu:///system".to_owned();
        let subnet = "10.77.0.0/20".parse().unwrap();
        Self {
            host: sound(),
            accelerator: Accelerator::Kvm,
            hypervisor: Ok(HypervisorVersions { uri, libvirt: Version(11, 3, 0), qemu: Version(10, 0, 2) }),
            gpus: Ok(Discovery::default()),
            images: 2,
            lost_images: Vec::new(),
            strays: Vec::new(),
            network: NetworkSpec { name: "gvm".to_owned(), bridge: "gvmbr0".to_owned(), subnet },
        }
    }

    pub fn patient(&self) -> Patient<'_> {
        Patient {
            host: &self.host,
            accelerator: &self.accelerator,
            hypervisor: self.hypervisor.as_ref().map_err(String::as_str),
            gpus: self.gpus.as_ref().map_err(String::as_str),
            known_gpus: &[],
            network: &self.network,
            socket_group: Some("gvm"),
            gateway_user: "gvm-gateway",
            gateway_listen: "0.0.0.0:2222".parse().unwrap(),
            images: self.images,
            lost_images: &self.lost_images,
            strays: &self.strays,
        }
    }
}

/// Examines a changed host, and looks at the findings' form: known words, in their order, each with what mends it.
fn examined(change: impl FnOnce(&mut Case)) -> Vec<Finding> {
    let mut case = Case::sound();
    change(&mut case);
    let findings = examine(&case.patient());
    well_formed(&findings);
    findings
}

pub(super) fn well_formed(findings: &[Finding]) {
    let place = |finding: &Finding| CHECKS.iter().position(|check| *check == finding.check);
    for pair in findings.windows(2) {
        assert!(place(&pair[0]) <= place(&pair[1]), "{} before {}", pair[0].check, pair[1].check);
    }
    for finding in findings {
        assert!(place(finding).is_some(), "{finding:?}");
        let has_fix = finding.fix.as_ref().is_some_and(|fix| !fix.is_empty());
        assert_eq!(has_fix, finding.level != Level::Ok, "{finding:?}");
    }
}

/// What is not well, one line each; that there is no GPU is well here.
fn unwell(change: impl FnOnce(&mut Case)) -> String {
    told(
        examined(change)
            .iter()
            .filter(|finding| finding.level != Level::Ok && !finding.message.contains("no GPU found")),
    )
}

pub(super) fn told<'a>(findings: impl Iterator<Item = &'a Finding>) -> String {
    let line = |finding: &Finding| {
        let fix = finding.fix.as_ref().map(|fix| format!("    {}\n", fix.replace('\n', "\n    "))).unwrap_or_default();
        format!("{} {}: {}\n{fix}", finding.level.word(), finding.check, finding.message)
    };
    findings.map(line).collect()
}

#[test]
fn a_sound_host_has_nothing_to_mend() {
    assert_eq!(unwell(|_| {}), "");
    let checks: Vec<&str> = examined(|_| {}).iter().map(|finding| finding.check).collect();
    insta::assert_snapshot!(checks.join(" "), @"root kvm libvirt qemu programs firmware sfq space memory hugepages numa clock permissions resolver subnet group gateway-user gateway-port images domains gpus");
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
    for (cpu, kvm) in [
        (CpuVendor::Amd, ModuleState::Loadable),
        (CpuVendor::Other, ModuleState::Unknown),
        (CpuVendor::Intel, ModuleState::Loadable),
    ] {
        let why = "this host has no /dev/kvm".to_owned();
        add(
            "no kvm module",
            unwell(|c| {
                c.accelerator = Accelerator::Emulation { why };
                (c.host.kernel.cpu, c.host.kernel.kvm) = (cpu, kvm);
            }),
        );
    }
    let unproven = "KVM is there but not proven yet".to_owned();
    add("kvm not proven", unwell(|c| c.accelerator = Accelerator::Emulation { why: unproven }));
    add("strays", unwell(|c| c.strays = vec!["gvm-1".to_owned(), "gvm-2".to_owned()]));
    insta::assert_snapshot!(all);
}

#[test]
fn upkeep_has_its_commands() {
    let mut all = String::new();
    let mut add = |what: &str, found: String| all.push_str(&format!("# {what}\n{found}"));
    add("clock alone", unwell(|c| c.host.upkeep.clock = Clock::Alone));
    add("clock unknown", unwell(|c| c.host.upkeep.clock = Clock::Unknown));
    add("port unknown", unwell(|c| c.host.upkeep.gateway_port = PortUse::Unknown));
    add("port free", unwell(|c| c.host.upkeep.gateway_port = PortUse::Free));
    let taken = |program: Option<&str>, user: &str| PortUse::Taken {
        program: program.map(str::to_owned),
        user: user.to_owned(),
    };
    add("port taken", unwell(|c| c.host.upkeep.gateway_port = taken(Some("sshd"), "root")));
    add("port taken by somebody", unwell(|c| c.host.upkeep.gateway_port = taken(None, "uid 1007")));
    add("port ours, program hidden", unwell(|c| c.host.upkeep.gateway_port = taken(None, "gvm-gateway")));
    add("port ours, started by hand", unwell(|c| c.host.upkeep.gateway_port = taken(Some("gvm"), "root")));
    add("closed folder above", unwell(|c| c.host.upkeep.state_path[1].mode = 0o700));
    add("open state folder", unwell(|c| c.host.upkeep.state_path[2].mode = 0o777));
    add("another's state folder", unwell(|c| c.host.upkeep.state_path[2].uid = 1000));
    add("open database", unwell(|c| c.host.upkeep.database.as_mut().unwrap().mode = 0o644));
    add("open socket folder", unwell(|c| c.host.upkeep.socket_dir.as_mut().unwrap().mode = 0o777));
    add("sticky socket folder", unwell(|c| c.host.upkeep.socket_dir.as_mut().unwrap().mode = 0o1777));
    add("nothing is there yet", unwell(|c| c.host.upkeep.state_path.clear()));
    insta::assert_snapshot!(all);
}

#[test]
fn a_check_has_one_word() {
    let mut words = CHECKS.to_vec();
    words.sort_unstable();
    words.dedup();
    assert_eq!(words.len(), CHECKS.len());
}
