use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::hypervisor::{DomainDisk, DomainNic, Firmware};
use crate::model::gpu::HostDevice;
use crate::model::host::Accelerator;
use crate::model::image::DiskFormat;
use crate::model::network::{GuestAddress, MacAddress};

/// A mediated device.
const MDEV: &str = "c2177883-f1bb-47f0-914d-32a22e3a8804";
const ID: &str = "0190f5a4-1111-7222-8333-444455556666";

/// A machine with a root disk, a seed and a network card.
fn usual() -> DomainSpec {
    let disk = |name: &str, format, backing| DomainDisk {
        path: format!("/var/lib/gvm/vms/{ID}/{name}").into(),
        format,
        backing,
        is_read_only: name.ends_with(".iso"),
        serial: name.trim_end_matches(".qcow2").trim_end_matches(".iso").to_owned(),
    };
    let base = ("/var/lib/gvm/images/debian12/disk.qcow2".into(), DiskFormat::Qcow2);
    DomainSpec {
        id: ID.parse().unwrap(),
        title: "ana/web".to_owned(),
        owner: "ana".to_owned(),
        profile: "small".to_owned(),
        vcpus: 2,
        max_vcpus: 4,
        memory: Mib(2048),
        max_memory: Some(Mib(8192)),
        accelerator: Accelerator::Kvm,
        firmware: Firmware::Uefi { secure_boot: false },
        disks: vec![disk("root.qcow2", DiskFormat::Qcow2, Some(base)), disk("seed.iso", DiskFormat::Raw, None)],
        nic: Some(DomainNic {
            mac: "52:54:00:0a:0b:0c".parse::<MacAddress>().unwrap(),
            network: "gvm".to_owned(),
            address: GuestAddress("10.77.0.5".parse().unwrap()),
            is_filtered: true,
        }),
        hostdevs: Vec::new(),
        numa_node: None,
        mmio64: None,
        huge_page: None,
        tpm: false,
        graphics: false,
        serial_log: format!("/var/lib/gvm/vms/{ID}/serial.log").into(),
        caps: Caps::default(),
    }
}

fn emulated() -> Accelerator {
    Accelerator::Emulation { why: "this kernel runs no ordinary guest".to_owned() }
}

fn capped() -> Caps {
    Caps {
        cpu_shares: Some(512),
        cpu_percent: Some(150),
        disk_iops: Some(500),
        disk_bytes_per_sec: Some(50 << 20),
        net_in_bytes_per_sec: Some(1_234_567),
        net_out_bytes_per_sec: Some(1024),
    }
}

fn tiny() -> DomainSpec {
    let folder = PathBuf::from("/var/lib/gvm/images/tiny");
    DomainSpec {
        firmware: Firmware::Kernel {
            kernel: folder.join("vmlinuz"),
            initrd: folder.join("initrd.img"),
            cmdline: "console=ttyS0 quiet".to_owned(),
        },
        accelerator: emulated(),
        max_vcpus: 2,
        max_memory: None,
        caps: capped(),
        ..usual()
    }
}

fn bare() -> DomainSpec {
    DomainSpec {
        firmware: Firmware::Firmware,
        accelerator: emulated(),
        vcpus: 1,
        max_vcpus: 1,
        memory: Mib(64),
        max_memory: None,
        disks: Vec::new(),
        nic: None,
        ..usual()
    }
}

fn gpus(addresses: &[&str]) -> DomainSpec {
    DomainSpec {
        hostdevs: addresses.iter().map(|address| address.parse::<HostDevice>().unwrap()).collect(),
        numa_node: Some(1),
        ..usual()
    }
}

fn desktop() -> DomainSpec {
    DomainSpec { firmware: Firmware::Uefi { secure_boot: true }, tpm: true, graphics: true, ..usual() }
}

fn site(spec: &DomainSpec) -> Site {
    Site { machine: "pc-q35-10.0".to_owned(), cpuset: spec.numa_node.map(|_| "16-31,48-63".to_owned()) }
}

fn rendered(spec: &DomainSpec) -> String {
    domain(&Templates::default(), spec, &site(spec)).unwrap()
}

#[test]
fn descriptions_by_kind() {
    let cases = [
        ("uefi", usual()),
        ("uefi-desktop", desktop()),
        ("uefi-two-cards", gpus(&["0000:41:00.0", "0000:41:00.1", "0000:81:00.0"])),
        ("uefi-mdevs", gpus(&[MDEV, "0000:41:00.0", "b0b0b0b0-f1bb-47f0-914d-32a22e3a8804"])),
        ("kernel-emulated-capped", tiny()),
        ("firmware-only", bare()),
    ];
    insta::with_settings!({snapshot_path => "../../../tests/fixtures/domain-xml", prepend_module_to_snapshot => false, omit_expression => true}, {
        for (name, spec) in cases {
            insta::assert_snapshot!(name, rendered(&spec));
        }
    });
}

#[test]
fn what_was_written_is_read_back() {
    for spec in [usual(), desktop(), tiny(), bare(), gpus(&["0000:41:00.0"]), gpus(&[MDEV, "0000:41:00.0"])] {
        let read = read_domain(&rendered(&spec)).unwrap();
        assert_eq!(read.id, Some(spec.id));
        assert!(spec.is_met_by(&read.observed), "{read:?}");
        assert_eq!(read.observed.is_accelerated, spec.accelerator.is_kvm());
        assert_eq!(read.disks.len(), spec.disks.len());
        assert_eq!(read.machine.as_deref(), Some("pc-q35-10.0"));
        let max = spec.max_memory.filter(|_| spec.hostdevs.is_empty()).unwrap_or(spec.memory);
        assert_eq!((read.observed.max_memory, read.observed.max_vcpus), (max, spec.max_vcpus));
    }
}

/// The `<address>` of the guest's side of every device of this kind.
fn places(xml: &str, device: &str) -> Vec<String> {
    let (start, end) = (format!("<{device} "), format!("</{device}>"));
    let parts = xml.split(&start).skip(1);
    parts.map(|part| part.split(&end).next().unwrap().rsplit("<address ").next().unwrap().to_owned()).collect()
}

#[test]
fn cards_move_neither_network_nor_disks() {
    let without = rendered(&usual());
    for cards in [
        &["0000:41:00.0"][..],
        &[MDEV, "0000:41:00.0"],
        &["0000:41:00.0", "0000:42:00.0", "0000:81:00.0", "0000:82:00.0"],
    ] {
        let with = rendered(&gpus(cards));
        assert_eq!(places(&with, "interface"), places(&without, "interface"));
        assert_eq!(places(&with, "disk"), places(&without, "disk"));
        assert_eq!(places(&with, "hostdev").len(), cards.len());
        assert!(with.contains("<memballoon model='none'/>"));
        assert!(!with.contains("<maxMemory"), "plugged memory cannot be pinned while the card runs");
        let ports = |xml: &str| xml.matches("model='pcie-root-port'").count();
        assert_eq!(ports(&with), ports(&without) + cards.len());
    }
}

#[test]
fn a_card_and_its_sound_share_a_slot() {
    let places = places(&rendered(&gpus(&["0000:41:00.0", "0000:41:00.1", "0000:81:00.0"])), "hostdev");
    let slot = |place: &str| place.split(" function=").next().unwrap().to_owned();
    assert_eq!(slot(&places[0]), slot(&places[1]));
    assert!(places[0].contains("multifunction='on'") && !places[2].contains("multifunction"));
    assert_ne!(slot(&places[0]), slot(&places[2]));
}

#[test]
fn a_device_is_plugged_into_a_port_that_holds_nothing() {
    let device = hostdev(&Templates::default(), "0000:41:00.1".parse().unwrap(), 13).unwrap();
    insta::assert_snapshot!(device, @r"
    <hostdev mode='subsystem' type='pci' managed='no'>
      <driver name='vfio'/>
      <source>
        <address domain='0x0000' bus='0x41' slot='0x00' function='0x1'/>
      </source>
      <alias name='ua-gvm-port13'/>
      <address type='pci' domain='0x0000' bus='0x0d' slot='0x00' function='0x0'/>
    </hostdev>
    ");
    let mdev = hostdev(&Templates::default(), MDEV.parse().unwrap(), 12).unwrap();
    insta::assert_snapshot!(mdev, @r"
    <hostdev mode='subsystem' type='mdev' model='vfio-pci' display='off'>
      <source>
        <address uuid='c2177883-f1bb-47f0-914d-32a22e3a8804'/>
      </source>
      <alias name='ua-gvm-port12'/>
      <address type='pci' domain='0x0000' bus='0x0c' slot='0x00' function='0x0'/>
    </hostdev>
    ");
    let free = |xml: &str| free_ports(xml).unwrap();
    for spec in [usual(), desktop(), tiny(), bare(), gpus(&["0000:0d:00.0", "0000:81:00.0"])] {
        assert_eq!(free(&rendered(&spec)), [12, 13, 14, 15], "the host's own buses do not count");
    }
    let plugged = format!("{device}  </devices>");
    let with_device = rendered(&usual()).replace("  </devices>", &plugged);
    assert_eq!(free(&with_device), [12, 14, 15]);
    assert_eq!(read_domain(&with_device).unwrap().observed.hostdevs, ["0000:41:00.1"]);
    let with_both = with_device.replace("  </devices>", &format!("{mdev}  </devices>"));
    assert_eq!(free(&with_both), [14, 15]);
    assert_eq!(read_domain(&with_both).unwrap().observed.hostdevs, ["0000:41:00.1", MDEV]);
    let others = "<rng model='virtio'><address type='pci' domain='0x0000' bus='0x0e' slot='0x00' function='0x0'/></rng></devices>";
    assert_eq!(free(&rendered(&usual()).replace("</devices>", others)), [12, 13, 15]);
    // A template of an administrator's own may lack ports.
    let fewer = rendered(&usual()).replace("index='15' model='pcie-root-port'", "index='15' model='pcie-pci-bridge'");
    assert_eq!(free(&fewer), [12, 13, 14]);
    assert!(free_ports("<domain><devices></domain>").is_err());
}

#[test]
fn what_cannot_be_text_is_refused() {
    let refused = |change: fn(&mut DomainSpec)| {
        let mut spec = tiny();
        change(&mut spec);
        let error = domain(&Templates::default(), &spec, &site(&spec)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid, "{error}");
        error.to_string()
    };
    assert!(
        refused(|spec| spec.title = "a\u{1}b".to_owned())
            .contains("the title into a description: it has the character U+0001")
    );
    assert!(refused(|spec| spec.title = "a\nb".to_owned()).contains("U+000A"));
    assert!(refused(|spec| spec.title = "a\u{ffff}".to_owned()).contains("U+FFFF"));
    assert!(refused(|spec| spec.disks[0].path = "root.qcow2".into()).contains("not absolute"));
    assert!(refused(|spec| spec.vcpus = 3).contains("3 vCPUs of at most 2"));
    assert!(refused(|spec| spec.disks = vec![spec.disks[0].clone(); 7]).contains("7 disks"));
}

#[test]
fn a_template_that_drops_or_adds_devices_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let templates = Templates::new(Some(folder.path().to_owned()));
    let built_in = include_str!("../../../templates/domain.xml.j2");
    let verdict = |text: &str| {
        std::fs::write(folder.path().join("domain.xml.j2"), text).unwrap();
        domain(&templates, &usual(), &site(&usual())).map_err(|e| e.to_string())
    };
    let with_vsock = built_in.replace("  </devices>", "    <vsock model='virtio'/>\n  </devices>");
    assert!(verdict(&with_vsock).unwrap().contains("<vsock"));
    assert!(verdict(&built_in.replace("<rom enabled='no'/>", "{{ nick }}")).unwrap_err().contains("undefined value"));
    let without_disks = built_in.replace("{% for disk in disks %}", "{% for disk in [] %}");
    assert!(verdict(&without_disks).unwrap_err().contains("it has 0 <disk> and should have 2"));
    let with_mdev = |text: &str| {
        std::fs::write(folder.path().join("domain.xml.j2"), text).unwrap();
        let spec = gpus(&[MDEV]);
        domain(&templates, &spec, &site(&spec)).map_err(|e| e.to_string())
    };
    // One of an administrator's that knows no mediated devices.
    let refused = with_mdev(&built_in.replace("dev.uuid is not none", "false")).unwrap_err();
    assert!(refused.contains("its host devices are not the machine's"), "{refused}");
    assert!(with_mdev(built_in).is_ok());
    let other_name = built_in.replace("<name>{{ name }}", "<name>x{{ name }}");
    assert!(verdict(&other_name).unwrap_err().contains("another name"));
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}";
    assert!(verdict(endless).unwrap_err().contains("engine ran out of fuel"));
    let raw_title = built_in.replace("{{ title }}", "{{ title|safe }}");
    std::fs::write(folder.path().join("domain.xml.j2"), raw_title).unwrap();
    let spec = DomainSpec { title: "</title><description>x</description><title>".to_owned(), ..usual() };
    assert!(domain(&templates, &spec, &site(&spec)).unwrap_err().to_string().contains("would change its structure"));
}

#[test]
fn named_values_cannot_break_out_of_an_attribute() {
    let mut spec = usual();
    spec.nic.as_mut().unwrap().network = "virtio'/><hostdev mode='subsystem'".to_owned();
    let xml = rendered(&spec);
    assert!(
        !xml.contains("<hostdev") && xml.contains("network='virtio&apos;/&gt;&lt;hostdev mode=&apos;subsystem&apos;'")
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_title_changes_the_structure(title in r#"([<>&'"/\]\[!?={}%# a-z\u{e9}\u{4f60}]|<disk>|</title>|\]\]>|<!--|\{\{)*"#) {
        let spec = DomainSpec { title: title.clone(), ..usual() };
        let xml = rendered(&spec);
        prop_assert_eq!(xml.matches("<disk ").count(), 2);
        let written = xml.split("<title>").nth(1).unwrap().split("</title>").next().unwrap();
        prop_assert_eq!(quick_xml::escape::unescape(written).unwrap(), title);
    }
}

#[test]
fn limits_are_read_as_they_are_in_force() {
    let spec = tiny();
    let xml = rendered(&spec);
    let read = |from: &str, to: &str| read_domain(&xml.replace(from, to)).unwrap().observed.caps;
    assert_eq!(read("", ""), spec.caps);
    assert_eq!(read("<shares>512<", "<shares>700<").cpu_shares, Some(700));
    assert_eq!(read("<shares>512<", "<shares>1024<").cpu_shares, None);
    assert_eq!(read("<global_quota>150000<", "<global_quota>-1<").cpu_percent, None);
    assert_eq!(read("<inbound average='1235'/>", "<inbound average='9'/>").net_in_bytes_per_sec, Some(9000));
    assert_eq!(read("<outbound average='2'/>", "").net_out_bytes_per_sec, None);
    assert_eq!(read("<total_iops_sec>500<", "<total_iops_sec>0<").disk_iops, None);
}

#[test]
fn a_domain_is_ours_only_with_its_own_id_in_our_metadata() {
    let xml = rendered(&bare());
    let id = |xml: &str| read_domain(xml).unwrap().id;
    assert!(id(&xml).is_some());
    assert_eq!(id(&xml.replace(VM_URI, "urn:other")), None);
    assert_eq!(id(&xml.replace(&format!("id='{ID}'"), "id='0190f5a4-1111-7222-8333-444455550000'")), None);
    let foreign = "<domain type='kvm' id='3'><name>web</name><uuid>6695eb01-f6a4-8304-79aa-97f2502e193f</uuid>\
        <metadata><x:vm xmlns:x='urn:x'><y/></x:vm></metadata><memory unit='KiB'>2097152</memory><vcpu>2</vcpu>\
        <os><type>hvm</type></os><devices><disk type='block'><source dev='/dev/sda'/><target dev='sda'/></disk>\
        <input type='mouse'/><disk type='network'/></devices></domain>";
    let read = read_domain(foreign).unwrap();
    assert_eq!((read.id, read.observed.memory, read.disks.len()), (None, Mib(2048), 2));
}

#[test]
fn networks_are_written_and_read() {
    let spec = crate::model::network::NetworkSpec {
        name: "gvm".to_owned(),
        bridge: "gvmbr0".to_owned(),
        subnet: "10.77.0.0/20".parse().unwrap(),
    };
    let xml = network(&Templates::default(), &spec, Names::Served).unwrap();
    insta::assert_snapshot!(xml, @r"
    <network>
      <name>gvm</name>
      <forward mode='nat'/>
      <bridge name='gvmbr0' stp='off' delay='0'/>
      <domain name='gvm.internal' localOnly='yes'/>
      <ip address='10.77.0.1' prefix='20'/>
    </network>
    ");
    let read = read_network(&xml).unwrap();
    assert_eq!((read.bridge.as_str(), read.forward.as_str()), ("gvmbr0", "nat"));
    assert_eq!(read.address, Some(("10.77.0.1".parse().unwrap(), 20)));
    assert!(network(&Templates::default(), &spec, Names::Off).unwrap().contains("<dns enable='no'/>"));
    let mac: MacAddress = "52:54:00:0a:0b:0c".parse().unwrap();
    let address = GuestAddress("10.77.0.5".parse().unwrap());
    let entry = host_entry(&Templates::default(), mac, Some((address, "a&b"))).unwrap();
    assert_eq!(entry.trim(), "<host mac='52:54:00:0a:0b:0c' name='a&amp;b' ip='10.77.0.5'/>");
    let with_entry = xml.replace("prefix='20'/>", &format!("netmask='255.255.240.0'><dhcp>{entry}</dhcp></ip>"));
    let read = read_network(&with_entry).unwrap();
    assert_eq!(read.hosts, [HostEntry { mac: Some(mac), address: Some(address), name: "a&b".to_owned() }]);
    assert_eq!(read.address, Some(("10.77.0.1".parse().unwrap(), 20)));
}

#[test]
fn cpus_of_a_node_come_from_capabilities() {
    let xml = "<capabilities><host><uuid>x</uuid><topology><cells num='2'><cell id='0'><memory unit='KiB'>1</memory>\
        <cpus num='1'><cpu id='0' socket_id='0'/></cpus></cell><cell id='1'><cpus num='2'><cpu id='1'/><cpu id='3'/></cpus>\
        </cell></cells></topology></host><guest/></capabilities>";
    assert_eq!(cpus_of_node(xml, 1).unwrap().as_deref(), Some("1,3"));
    assert_eq!(cpus_of_node(xml, 7).unwrap(), None);
}
