use std::os::unix::fs::symlink;

use super::super::host_of_bytes as host;
use super::*;

#[test]
fn a_host_ready_for_passthrough_is_read() {
    let (dir, root) = host(&[
        ("proc/cpuinfo", b"processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\n"),
        ("proc/cmdline", b"root=/dev/sda1 intel_iommu=on iommu=pt video=efifb:off quiet -- iommu=off\n"),
        ("sys/module/vfio_pci/version", b"1"),
        ("sys/module/nvidia/version", b"550"),
        ("sys/class/iommu/dmar0/x", b""),
        ("sys/kernel/iommu_groups/0/x", b""),
        ("sys/kernel/iommu_groups/1/x", b""),
        ("dev/vfio/vfio", b""),
        ("dev/iommu", b""),
        ("sys/bus/platform/drivers/efi-framebuffer/unbind", b""),
        ("sys/class/vtconsole/vtcon0/name", b"(S) dummy device\n"),
        ("sys/class/vtconsole/vtcon0/bind", b"0\n"),
        ("sys/class/vtconsole/vtcon1/name", b"(M) frame buffer device\n"),
        ("sys/class/vtconsole/vtcon1/bind", b"1\n"),
        (SECURE_BOOT, &[6, 0, 0, 0, 1]),
        ("proc/12/comm", b"nvidia-persiste\n"),
        ("proc/300/comm", b"bash\n"),
        ("run/nvidia-fabricmanager/socket", b""),
        ("usr/share/nvidia/nvswitch/fabricmanager.cfg", b"# mode\nLOG_LEVEL=4\nFABRIC_MODE=1\n"),
    ]);
    symlink("../x", dir.path().join("sys/bus/platform/drivers/efi-framebuffer/efi-framebuffer.0")).unwrap();
    let service = |unit: &str, pid| GpuService { unit: unit.to_owned(), pid };
    let expected = KernelFacts {
        cpu: CpuVendor::Intel,
        kvm: ModuleState::Unknown,
        iommu: Some(Iommu { units: 1, groups: 2 }),
        flags: ["intel_iommu=on", "iommu=pt", "video=efifb:off"].map(str::to_owned).to_vec(),
        vfio_pci: ModuleState::Loaded,
        has_vfio_node: true,
        has_iommufd: true,
        framebuffers: vec![Framebuffer {
            device: "efi-framebuffer.0".to_owned(),
            unbind: "/sys/bus/platform/drivers/efi-framebuffer/unbind".into(),
        }],
        consoles: vec!["/sys/class/vtconsole/vtcon1/bind".into()],
        has_nouveau: false,
        has_nvidia: true,
        has_secure_boot: Some(true),
        services: vec![service("nvidia-persistenced", Some(12)), service("nvidia-fabricmanager", None)],
        fabric_mode: Some(1),
    };
    assert_eq!(read(&root), expected);
    assert_eq!(expected.flag("iommu"), Some("iommu=pt"));
    assert_eq!(expected.flag("vfio-pci.ids"), None);
}

#[test]
fn modules_are_found_wherever_the_kernel_has_them() {
    let release = ("proc/sys/kernel/osrelease", b"6.12.0-1\n".as_slice());
    let check = |files: &[(&str, &[u8])]| module(&host(files).1, "vfio_pci");
    let (built_in, dep) = ("lib/modules/6.12.0-1/modules.builtin", "lib/modules/6.12.0-1/modules.dep");
    let path: &[u8] = b"kernel/drivers/vfio/pci/vfio-pci.ko";
    assert_eq!(check(&[]), ModuleState::Unknown);
    assert_eq!(check(&[release]), ModuleState::Unknown);
    assert_eq!(check(&[release, (built_in, path), (dep, b"")]), ModuleState::BuiltIn);
    assert_eq!(check(&[release, (built_in, b""), (dep, b"a/vfio-pci.ko.xz: a/vfio.ko.xz")]), ModuleState::Loadable);
    let only_needed = b"a/nvgrace-gpu-vfio-pci.ko: a/vfio-pci.ko\n";
    assert_eq!(check(&[release, (dep, only_needed)]), ModuleState::Missing);
    assert_eq!(check(&[release, (built_in, b"")]), ModuleState::Unknown, "half an answer");
    assert_eq!(check(&[("sys/module/vfio_pci/x", b"")]), ModuleState::Loaded);
}

#[test]
fn an_iommu_that_is_off_is_not_one_that_is_not_known() {
    assert_eq!(iommu(&host(&[]).1), None);
    let off = host(&[("sys/class/net/lo", b"")]);
    assert_eq!(iommu(&off.1), Some(Iommu::default()));
    assert!(!Iommu::default().is_on() && Iommu { units: 0, groups: 1 }.is_on());
}

/// Missing, empty, binary, huge, folders and pipes in place of files: reading ends, and says nothing that is not so.
#[test]
fn junk_is_read_as_nothing() {
    let huge = vec![b'1'; 200 << 10];
    let paths = [
        "proc/cpuinfo",
        "proc/cmdline",
        "proc/sys/kernel/osrelease",
        SECURE_BOOT,
        "sys/class/vtconsole/vtcon1/bind",
        "proc/12/comm",
        FABRIC[0],
    ];
    for junk in [b"".as_slice(), b"\xff\x00\xfe\x00", &huge] {
        let files: Vec<(&str, &[u8])> = paths.iter().map(|path| (*path, junk)).collect();
        let facts = read(&host(&files).1);
        let has_secure_boot = facts.has_secure_boot;
        assert_eq!(KernelFacts { has_secure_boot: None, iommu: None, ..facts }, KernelFacts::default());
        assert_ne!(has_secure_boot, Some(true));
    }
    let dir = tempfile::tempdir().unwrap();
    for path in paths {
        std::fs::create_dir_all(dir.path().join(path).parent().unwrap()).unwrap();
        nix::unistd::mkfifo(&dir.path().join(path), nix::sys::stat::Mode::S_IRWXU).unwrap();
    }
    let begin = Instant::now();
    let facts = read(&HostRoot::at(dir.path()));
    assert_eq!(KernelFacts { iommu: None, ..facts }, KernelFacts::default());
    assert!(begin.elapsed() < Duration::from_secs(5));
}
