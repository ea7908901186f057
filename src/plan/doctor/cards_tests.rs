use super::super::examine;
use super::super::tests::{Case, told, well_formed};
use super::*;
use crate::model::card::blockers::{self, Circumstances};
use crate::model::card::pci::{Function, GroupMember, IommuGroup, Link, MemberRole, PciIds, Upstream, Vendor};
use crate::model::card::{CardMode, Health, Holder, MigFacts, NvmlFacts, Sriov};
use crate::model::gpu::PciAddress;
use crate::model::host::Version;
use crate::model::host::kernel::{CpuVendor, Framebuffer, GpuService, Iommu, ModuleState};
use crate::model::host::upkeep::{HugePool, NumaNode};

fn at(text: &str) -> PciAddress {
    text.parse().unwrap()
}

/// A card that can be given away.
fn card() -> Card {
    let address = at("0000:41:00.0");
    let function = |text: &str, class| Function { address: at(text), class: Some(class), driver: None };
    let member =
        GroupMember { address, class: Some(0x03_0000), driver: Some("nvidia".to_owned()), role: MemberRole::Card };
    Card {
        address,
        vendor: Vendor::Nvidia,
        ids: PciIds { vendor: 0x10de, device: 0x20b5, subsystem: None, class: 0x03_0000 },
        model: "NVIDIA A100 80GB PCIe".to_owned(),
        functions: vec![function("0000:41:00.0", 0x03_0000), function("0000:41:00.1", 0x04_0300)],
        iommu: Some(IommuGroup { number: 12, members: vec![member] }),
        numa_node: Some(0),
        bars: Vec::new(),
        memory: None,
        reset_methods: vec!["bus".to_owned()],
        link: Link::default(),
        link_max: Link::default(),
        driver: Some("nvidia".to_owned()),
        driver_override: None,
        is_vfio: false,
        physfn: None,
        sriov: None,
        vgpu: None,
        is_boot_display: false,
        holders: Vec::new(),
        is_holders_complete: true,
        is_persistent: Some(false),
        mode: CardMode::Host,
        health: Health::Ok,
        upstream: Upstream::default(),
        nvml: Some(NvmlFacts::at(address)),
        blockers: Vec::new(),
    }
}

fn holder(pid: u32, comm: &str, domain: Option<&str>) -> Holder {
    Holder { pid, comm: comm.to_owned(), device: "/dev/nvidia0".to_owned(), domain: domain.map(str::to_owned) }
}

/// A host with this card, its blockers found as on a real one.
fn host_with(change: impl FnOnce(&mut Card)) -> Case {
    let mut card = card();
    change(&mut card);
    card.blockers = blockers::find(&card, &Circumstances::default());
    let mut case = Case::sound();
    case.host.upkeep.hugepages = vec![HugePool { node: 0, page_kib: 1 << 20, total: 32, free: 30 }];
    case.gpus = Ok(Discovery { cards: vec![card], ..Discovery::default() });
    case
}

fn examined(case: &Case) -> Vec<Finding> {
    let findings = examine(&case.patient());
    well_formed(&findings);
    findings
}

/// What is told of the cards where one is like this.
fn of_card(change: impl FnOnce(&mut Card)) -> String {
    told(examined(&host_with(change)).iter().filter(|finding| finding.check == "gpu"))
}

/// What is not well besides the card itself.
fn of_host(change: impl FnOnce(&mut Case)) -> String {
    let mut case = host_with(|_| {});
    change(&mut case);
    told(examined(&case).iter().filter(|finding| finding.level > Level::Ok))
}

#[test]
fn a_host_with_a_card_is_told_line_by_line() {
    let findings = examined(&host_with(|_| {}));
    insta::assert_snapshot!(told(findings.iter().filter(|finding| {
        !["root", "kvm", "libvirt", "qemu", "programs", "resolver", "subnet", "group"].contains(&finding.check)
    })));
}

#[test]
fn each_card_is_told_with_all_its_reasons() {
    let mut all = String::new();
    let mut add = |what: &str, found: String| all.push_str(&format!("# {what}\n{found}"));
    add("free", of_card(|_| {}));
    add("gone", of_card(|c| c.health = Health::NoAnswer("its config space reads 0xffff".to_owned())));
    add("no IOMMU", of_card(|c| c.iommu = None));
    add(
        "group",
        of_card(|c| {
            let (class, driver) = (Some(0x01_0802), Some("nvme".to_owned()));
            let disk = GroupMember { address: at("0000:42:00.0"), class, driver, role: MemberRole::Blocking };
            c.iommu.as_mut().unwrap().members.push(disk);
        }),
    );
    add("divided", of_card(|c| c.sriov = Some(Sriov { enabled: 4, total: 16, functions: Vec::new() })));
    let mig = |is_on, is_on_pending| Some(MigFacts { is_on, is_on_pending, ..MigFacts::default() });
    add("mig", of_card(|c| c.nvml.as_mut().unwrap().mig = mig(true, true)));
    add("mig until reset", of_card(|c| c.nvml.as_mut().unwrap().mig = mig(true, false)));
    add("screen", of_card(|c| c.is_boot_display = true));
    add("driver", of_card(|c| c.driver = Some("snd_hda_intel".to_owned())));
    add(
        "held",
        of_card(|c| {
            c.holders = vec![
                holder(812, "dcgm-exporter", None),
                holder(900, "Xorg", None),
                holder(901, "python3", None),
                holder(77, "qemu-system-x86", Some("win11")),
                holder(78, "qemu-system-x86", Some("x;reboot")),
            ];
        }),
    );
    add("held by whom", of_card(|c| c.is_holders_complete = false));
    add("in a machine", of_card(|c| c.holders = vec![holder(5, "qemu-system-x86", Some("gvm-0192"))]));
    add("persistent", of_card(|c| c.is_persistent = Some(true)));
    add(
        "two reasons",
        of_card(|c| {
            c.is_persistent = Some(true);
            c.holders = vec![holder(901, "nvidia-persiste", None)];
        }),
    );
    add("a virtual function is told by its card", of_card(|c| c.physfn = Some(at("0000:41:00.0"))));
    insta::assert_snapshot!(all);
}

#[test]
fn what_cards_need_has_its_commands() {
    let mut all = String::new();
    let mut add = |what: &str, found: String| all.push_str(&format!("# {what}\n{found}"));
    let off = Some(Iommu::default());
    add("iommu off", of_host(|c| c.host.kernel.iommu = off));
    let with = |flags: &[&str], cpu| {
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        move |c: &mut Case| {
            (c.host.kernel.iommu, c.host.kernel.flags, c.host.kernel.cpu) = (off, flags, cpu);
        }
    };
    add("off in the firmware, Intel", of_host(with(&["intel_iommu=on,sm_on"], CpuVendor::Intel)));
    add("off in the firmware, AMD", of_host(with(&[], CpuVendor::Amd)));
    add("off, who knows", of_host(with(&[], CpuVendor::Other)));
    add("switched off", of_host(with(&["amd_iommu=off"], CpuVendor::Amd)));
    add("switched off, Intel", of_host(with(&["intel_iommu=off"], CpuVendor::Intel)));
    add("switched off in both ways", of_host(with(&["iommu=off"], CpuVendor::Intel)));
    add("iommu unknown", of_host(|c| c.host.kernel.iommu = None));
    let flags = ["pcie_acs_override=downstream,multifunction", "vfio-pci.ids=10de:20b5"].map(str::to_owned);
    add("flags", of_host(|c| c.host.kernel.flags = flags.to_vec()));
    let odd = vec!["vfio-pci.ids='$(reboot)'".to_owned()];
    add("odd flag", of_host(|c| c.host.kernel.flags = odd));
    for state in [ModuleState::Loadable, ModuleState::Missing, ModuleState::Unknown] {
        add("vfio-pci", of_host(|c| c.host.kernel.vfio_pci = state));
    }
    add("no vfio node", of_host(|c| c.host.kernel.has_vfio_node = false));
    add("nouveau", of_host(|c| c.host.kernel.has_nouveau = true));
    add("both drivers", of_host(|c| (c.host.kernel.has_nouveau, c.host.kernel.has_nvidia) = (true, true)));
    let service = |unit: &str, pid| GpuService { unit: unit.to_owned(), pid };
    add(
        "services",
        of_host(|c| {
            c.host.kernel.services = vec![service("nvidia-persistenced", Some(9)), service("nvidia-dcgm", None)]
        }),
    );
    add("old libvirt", of_host(|c| c.hypervisor.as_mut().unwrap().libvirt = Version(9, 0, 0)));
    add("no huge pages", of_host(|c| c.host.upkeep.hugepages.clear()));
    add("secure boot", {
        let mut case = host_with(|card| card.driver = None);
        case.host.kernel.has_secure_boot = Some(true);
        told(examined(&case).iter().filter(|finding| finding.level > Level::Ok))
    });
    add("screen of the firmware", {
        let mut case = host_with(|card| card.is_boot_display = true);
        let (device, unbind) =
            ("efi-framebuffer.0".to_owned(), "/sys/bus/platform/drivers/efi-framebuffer/unbind".into());
        case.host.kernel.framebuffers = vec![Framebuffer { device, unbind }];
        case.host.kernel.consoles = vec!["/sys/class/vtconsole/vtcon1/bind".into()];
        told(examined(&case).iter().filter(|finding| finding.level > Level::Ok))
    });
    add("node not known", {
        let mut case = host_with(|card| card.numa_node = None);
        case.host.upkeep.nodes.push(NumaNode { number: 1, cpus: String::new() });
        told(examined(&case).iter().filter(|finding| finding.level > Level::Ok))
    });
    insta::assert_snapshot!(all);
}

#[test]
fn what_was_found_beside_the_cards_is_told() {
    let kinds = [
        CardFindingKind::NoPci,
        CardFindingKind::Unreadable,
        CardFindingKind::NvmlFailed,
        CardFindingKind::NvmlUnmatched,
        CardFindingKind::NvSwitch,
        CardFindingKind::HoldersIncomplete,
        CardFindingKind::ManagedMissing,
        CardFindingKind::TooMany,
    ];
    let finding = |kind| CardFinding { kind, address: Some(at("0000:07:00.0")), text: format!("text of {kind:?}") };
    let findings: Vec<CardFinding> = kinds.map(finding).to_vec();
    let beside = |case: &Case| {
        let findings = examined(case);
        told(findings.iter().filter(|finding| {
            ["gpus", "pci", "nvml", "nvswitch", "gpu-holders", "gpu-managed", "gpu-services"].contains(&finding.check)
        }))
    };
    let mut case = host_with(|_| {});
    let found = case.gpus.as_mut().unwrap();
    found.findings = findings;
    found.nvml = NvmlStatus::Ready { driver: Some("550.54".to_owned()) };
    found.nvswitches = vec![at("0000:07:00.0")];
    case.host.kernel.services = vec![GpuService { unit: "nvidia-fabricmanager".to_owned(), pid: None }];
    case.host.kernel.fabric_mode = Some(1);
    insta::assert_snapshot!(beside(&case));
}

/// Nothing is told of IOMMU, VFIO and the like on a host without a card.
#[test]
fn a_host_without_a_card_has_one_note() {
    let mut case = Case::sound();
    case.host.kernel = Default::default();
    let finding = CardFinding { kind: CardFindingKind::NoPci, address: None, text: "there is no PCI here".to_owned() };
    case.gpus.as_mut().unwrap().findings.push(finding);
    let bad: Vec<Finding> = examined(&case).into_iter().filter(|finding| finding.level > Level::Ok).collect();
    insta::assert_snapshot!(told(bad.iter()), @r"
    note gpus: no GPU found: there is no PCI here
        lspci -nn | grep -iE 'vga|3d|display|accelerator'  # what is there, if one should be
    ");
    case.gpus = Err("looking at the cards took longer than 60 s".to_owned());
    let bad: Vec<Finding> = examined(&case).into_iter().filter(|finding| finding.level > Level::Ok).collect();
    insta::assert_snapshot!(told(bad.iter()), @r"
    warn gpus: the GPUs could not be looked at: looking at the cards took longer than 60 s
        dmesg | tail -50; systemctl restart gvm
    ");
}

/// The fixes of kinds that no card of these tests has.
#[test]
fn every_reason_has_what_takes_it_away() {
    use BlockerKind as K;
    let (card, host) = (card(), Case::sound().host);
    let kinds = [
        K::Health,
        K::Foreign,
        K::NoIommu,
        K::GroupMember,
        K::VirtualFunction,
        K::Divided,
        K::Mig,
        K::BootDisplay,
        K::Driver,
        K::InMachine,
        K::Held,
        K::Persistence,
        K::NvSwitch,
    ];
    let found = Discovery { nvswitches: vec![at("0000:07:00.0")], ..Discovery::default() };
    let lines = kinds.map(|kind| {
        let fix = fix(&Blocker { kind, text: String::new() }, &card, &found, &host);
        assert!(!fix.is_empty() && !fix.contains('\n'), "{kind:?}");
        format!("{kind:?} ({}): {fix}\n", level(kind).word())
    });
    insta::assert_snapshot!(lines.concat());
}
