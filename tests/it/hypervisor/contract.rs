//! What every hypervisor must keep: each step done twice, refusals by kind, foreign domains untouched.

use gvm::hypervisor::fake::FakeHypervisor;
use gvm::hypervisor::{DomainSpec, ErrorKind, Hypervisor, LiveChange, PLUG_PORTS, Wake};
use gvm::model::caps::Caps;
use gvm::model::gpu::{HostDevice, PciAddress};
use gvm::model::id::VmId;
use gvm::model::network::{GuestAddress, MacAddress, NetworkSpec};
use gvm::model::state::{Observed, Power, WhyPaused};

use super::samples::{block_on, domain, firmware_only, libvirt, wait_for};
use crate::support::own_process::{in_own_process, in_private_host};

#[test]
fn the_fake_keeps_the_contract() {
    block_on(check(&FakeHypervisor::new(), &firmware_only()));
}

#[test]
fn libvirts_test_driver_keeps_the_contract() {
    in_own_process!(|| block_on(async {
        check(&*libvirt("test:///default"), &firmware_only()).await;
    }));
}

#[test]
fn a_real_libvirtd_keeps_the_contract() {
    in_private_host!(|| block_on(async {
        check(&*libvirt("qemu:///system"), &firmware_only()).await;
    }));
}

async fn check(hypervisor: &dyn Hypervisor, spec: &DomainSpec) {
    let facts = hypervisor.facts().await.unwrap();
    assert!(facts.cpus > 0 && facts.memory.0 > 0 && !facts.machine.is_empty(), "{facts:?}");
    let mut wakes = hypervisor.wakes().unwrap();
    assert!(hypervisor.wakes().is_none(), "one receiver");
    missing(hypervisor, VmId::generate()).await;
    let vm = spec.id;
    let capped = DomainSpec { caps: Caps { cpu_percent: Some(50), ..Caps::default() }, ..spec.clone() };
    for _ in 0..2 {
        hypervisor.define(spec).await.unwrap();
        assert_eq!(domain(hypervisor, vm).await.power, Power::Off);
    }
    assert!(spec.is_met_by(&domain(hypervisor, vm).await));
    hypervisor.define(&capped).await.unwrap();
    assert!(capped.is_met_by(&domain(hypervisor, vm).await));
    off(hypervisor, vm).await;
    for _ in 0..2 {
        hypervisor.start(vm).await.unwrap();
        assert_eq!(domain(hypervisor, vm).await.power, Power::Running);
    }
    active(hypervisor, &capped).await;
    for _ in 0..2 {
        hypervisor.force_off(vm).await.unwrap();
        assert_eq!(domain(hypervisor, vm).await.power, Power::Off);
    }
    assert!(!domain(hypervisor, vm).await.is_off_by_guest);
    for _ in 0..2 {
        hypervisor.undefine(vm).await.unwrap();
        assert_eq!(hypervisor.observe(vm).await, Observed::Missing);
    }
    assert_eq!(hypervisor.observe_all().await.unwrap(), []);
    let mut woken = false;
    while let Ok(wake) = wakes.try_recv() {
        woken |= wake == Wake::Vm(vm);
    }
    assert!(woken, "the machine's changes woke the manager");
    network(hypervisor).await;
}

/// A device that this host does not have.
fn absent() -> PciAddress {
    "fffe:41:00.0".parse().unwrap()
}

async fn missing(hypervisor: &dyn Hypervisor, vm: VmId) {
    assert_eq!(hypervisor.observe(vm).await, Observed::Missing);
    hypervisor.force_off(vm).await.unwrap();
    hypervisor.undefine(vm).await.unwrap();
    let kinds = [
        hypervisor.start(vm).await.unwrap_err().kind,
        hypervisor.shutdown(vm).await.unwrap_err().kind,
        hypervisor.pause(vm).await.unwrap_err().kind,
        hypervisor.resume(vm).await.unwrap_err().kind,
        hypervisor.apply(vm, &LiveChange::Vcpus(1)).await.unwrap_err().kind,
        hypervisor.attach_devices(vm, &[absent().into()]).await.unwrap_err().kind,
        hypervisor.stats(vm).await.unwrap_err().kind,
        hypervisor.console(vm).await.err().unwrap().kind,
    ];
    assert_eq!(kinds, [ErrorKind::NotFound; 8]);
}

async fn off(hypervisor: &dyn Hypervisor, vm: VmId) {
    hypervisor.shutdown(vm).await.unwrap();
    hypervisor.force_off(vm).await.unwrap();
    let kinds = [
        hypervisor.pause(vm).await.unwrap_err().kind,
        hypervisor.resume(vm).await.unwrap_err().kind,
        hypervisor.stats(vm).await.unwrap_err().kind,
        hypervisor.console(vm).await.err().unwrap().kind,
        hypervisor.apply(vm, &LiveChange::Vcpus(9)).await.unwrap_err().kind,
        hypervisor.attach_devices(vm, &[absent().into()]).await.unwrap_err().kind,
    ];
    assert_eq!(kinds, [ErrorKind::Conflict; 6]);
}

async fn active(hypervisor: &dyn Hypervisor, spec: &DomainSpec) {
    let vm = spec.id;
    assert!(spec.is_met_by(&domain(hypervisor, vm).await));
    assert_eq!(hypervisor.observe_all().await.unwrap(), [(vm, hypervisor.observe(vm).await)]);
    hypervisor.define(spec).await.unwrap();
    hypervisor.attach_devices(vm, &[]).await.unwrap();
    let many: Vec<HostDevice> = (0..=PLUG_PORTS).map(|slot| PciAddress { slot, ..absent() }.into()).collect();
    assert_eq!(hypervisor.attach_devices(vm, &many).await.unwrap_err().kind, ErrorKind::Conflict);
    assert!(domain(hypervisor, vm).await.hostdevs.is_empty(), "all or none");
    let other = DomainSpec { tpm: true, ..spec.clone() };
    assert_eq!(hypervisor.define(&other).await.unwrap_err().kind, ErrorKind::Conflict);
    assert_eq!(hypervisor.undefine(vm).await.unwrap_err().kind, ErrorKind::Conflict);
    for _ in 0..2 {
        hypervisor.pause(vm).await.unwrap();
        assert_eq!(domain(hypervisor, vm).await.power, Power::Paused(WhyPaused::Asked));
    }
    hypervisor.start(vm).await.unwrap();
    for _ in 0..2 {
        hypervisor.resume(vm).await.unwrap();
        wait_for(hypervisor, vm, Power::Running).await;
    }
    assert_eq!(hypervisor.strangers().await.unwrap(), Vec::<String>::new());
}

async fn network(hypervisor: &dyn Hypervisor) {
    let spec = NetworkSpec {
        name: "gvmtest".to_owned(),
        bridge: "gvmtest0".to_owned(),
        subnet: "10.91.0.0/24".parse().unwrap(),
    };
    for _ in 0..2 {
        hypervisor.ensure_network(&spec).await.unwrap();
    }
    let other = NetworkSpec { subnet: "10.92.0.0/24".parse().unwrap(), ..spec.clone() };
    let refused = hypervisor.ensure_network(&other).await.unwrap_err();
    assert!(refused.kind == ErrorKind::Conflict && refused.message.contains("10.91.0"), "{refused}");
    let mac = |last| MacAddress::qemu([0, 0, last]);
    let address = |last| GuestAddress([10, 91, 0, last].into());
    let entry = async |network, mac, address, name| hypervisor.ensure_host_entry(network, mac, address, name).await;
    let kind = entry("elsewhere", mac(1), address(2), "a").await.unwrap_err().kind;
    assert_eq!(kind, ErrorKind::NotFound);
    for _ in 0..2 {
        entry("gvmtest", mac(1), address(2), "a").await.unwrap();
    }
    assert_eq!(entry("gvmtest", mac(2), address(2), "b").await.unwrap_err().kind, ErrorKind::Conflict);
    entry("gvmtest", mac(1), address(3), "a").await.unwrap();
    entry("gvmtest", mac(2), address(2), "b").await.unwrap();
    for _ in 0..2 {
        hypervisor.ensure_host_entry_gone("gvmtest", mac(1)).await.unwrap();
    }
    hypervisor.ensure_host_entry_gone("elsewhere", mac(1)).await.unwrap();
    entry("gvmtest", mac(3), address(3), "c").await.unwrap();
}
