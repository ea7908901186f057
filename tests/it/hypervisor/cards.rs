//! Cards that are not there, and what libvirt does with the ports that wait for some.

use gvm::hypervisor::{DomainSpec, ErrorKind, Hypervisor};
use gvm::model::gpu::HostDevice;
use gvm::model::state::Power;

use super::samples::{block_on, domain, firmware_only, libvirt};
use crate::support::own_process::in_private_host;

const URI: &str = "qemu:///system";

#[test]
fn a_machine_whose_card_is_not_there_does_not_start() {
    in_private_host!(|| block_on(async {
        let hypervisor = libvirt(URI);
        let spec = DomainSpec { hostdevs: vec!["0000:41:00.0".parse().unwrap()], ..firmware_only() };
        hypervisor.define(&spec).await.unwrap();
        let defined = domain(&*hypervisor, spec.id).await;
        assert!(spec.is_met_by(&defined) && defined.hostdevs.is_empty(), "it holds none while it is off");
        let refused = hypervisor.start(spec.id).await.unwrap_err();
        // A libvirtd in a container fails one step earlier: it may not lock the memory.
        let words = ["no such PCI device", "CAP_SYS_RESOURCE"];
        let is_named = words.iter().any(|words| refused.message.contains(words));
        assert!(refused.kind == ErrorKind::Permanent && is_named, "{refused}");
        assert_eq!(domain(&*hypervisor, spec.id).await.power, Power::Off);
        hypervisor.undefine(spec.id).await.unwrap();
    }));
}

#[test]
fn a_card_that_is_not_there_is_not_plugged_and_spare_ports_take_devices() {
    in_private_host!(|| block_on(async {
        let hypervisor = libvirt(URI);
        let spec = firmware_only();
        let name = format!("gvm-{}", spec.id);
        hypervisor.define(&spec).await.unwrap();
        hypervisor.start(spec.id).await.unwrap();
        let device = ["0000:41:00.0".parse().unwrap()];
        let refused = hypervisor.attach_devices(spec.id, &device).await.unwrap_err();
        // A host without IOMMU says so before it looks for the device.
        let words = ["no such PCI device", "host doesn't support passthrough", "CAP_SYS_RESOURCE"];
        let is_named = words.iter().any(|words| refused.message.contains(words));
        assert!(refused.kind == ErrorKind::Permanent && is_named, "{refused}");
        assert!(domain(&*hypervisor, spec.id).await.hostdevs.is_empty());
        // What we count on for the ports: whoever plugs takes one, and libvirt plugs nothing but function 0.
        let plug = |bus: u8, function: u8| {
            let xml = format!(
                "<rng model='virtio'><backend model='random'>/dev/urandom</backend><address type='pci' \
                 domain='0x0000' bus='{bus}' slot='0x00' function='{function}'/></rng>"
            );
            std::fs::write("/var/lib/gvm/rng.xml", xml).unwrap();
            let mut virsh = std::process::Command::new("virsh");
            virsh.args(["attach-device", &name, "/var/lib/gvm/rng.xml", "--live"]).output().unwrap()
        };
        let second = plug(12, 1);
        let said = String::from_utf8_lossy(&second.stderr).into_owned();
        assert!(!second.status.success() && said.contains("function=0"), "{said}");
        for bus in 12..16 {
            let plugged = plug(bus, 0);
            assert!(plugged.status.success(), "{}", String::from_utf8_lossy(&plugged.stderr));
        }
        let refused = hypervisor.attach_devices(spec.id, &device).await.unwrap_err();
        assert!(refused.kind == ErrorKind::Conflict && refused.message.contains("0 free ports"), "{refused}");
        hypervisor.force_off(spec.id).await.unwrap();
        hypervisor.undefine(spec.id).await.unwrap();
    }));
}

/// Field case B-vm-back-without-gpu, on libvirt's side: without its mediated device a machine does not start.
#[test]
fn a_mediated_device_is_described_as_libvirt_wants_it() {
    in_private_host!(|| block_on(async {
        const MDEV: &str = "c2177883-f1bb-47f0-914d-32a22e3a8804";
        let hypervisor = libvirt(URI);
        let device: HostDevice = MDEV.parse().unwrap();
        let spec = DomainSpec { hostdevs: vec![device, "0000:41:00.0".parse().unwrap()], ..firmware_only() };
        // Valid by libvirt's schema, and what QEMU is to be told.
        let verdict = hypervisor.check(&spec).await.unwrap();
        let native = verdict.native.unwrap();
        let mdev =
            format!(r#""id":"ua-gvm-gpu0-0","sysfsdev":"/sys/bus/mdev/devices/{MDEV}","display":"off","bus":"pci.16""#);
        let card = r#""host":"0000:41:00.0","id":"ua-gvm-gpu1-0","bus":"pci.17""#;
        assert!(native.contains(&mdev) && native.contains(card), "{native}");
        let spec = DomainSpec { hostdevs: vec![device], ..spec };
        hypervisor.define(&spec).await.unwrap();
        assert!(spec.is_met_by(&domain(&*hypervisor, spec.id).await));
        let refused = hypervisor.start(spec.id).await.unwrap_err();
        // A host without VFIO says so before it looks for the device.
        let words = ["mediated device", "requires VFIO support", "CAP_SYS_RESOURCE"];
        let is_named = |text: &str| words.iter().any(|words| text.contains(words));
        assert!(refused.kind == ErrorKind::Permanent && is_named(&refused.message), "{refused}");
        hypervisor.define(&DomainSpec { hostdevs: Vec::new(), ..spec.clone() }).await.unwrap();
        hypervisor.start(spec.id).await.unwrap();
        let refused = hypervisor.attach_devices(spec.id, &[device]).await.unwrap_err();
        assert!(is_named(&refused.message), "{refused}");
        assert!(domain(&*hypervisor, spec.id).await.hostdevs.is_empty());
        hypervisor.force_off(spec.id).await.unwrap();
        hypervisor.undefine(spec.id).await.unwrap();
    }));
}
