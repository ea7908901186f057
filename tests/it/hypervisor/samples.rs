//! Machines to try things on.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gvm::hypervisor::libvirt::{Libvirt, LibvirtOptions};
use gvm::hypervisor::{DomainSpec, Firmware, Hypervisor};
use gvm::model::caps::Caps;
use gvm::model::host::Accelerator;
use gvm::model::id::VmId;
use gvm::model::state::{Observed, ObservedDomain, Power};
use gvm::model::units::Mib;

/// A machine with nothing but firmware that speaks on the serial line.
pub fn firmware_only() -> DomainSpec {
    DomainSpec {
        id: VmId::generate(),
        title: "ana/<web> & co".to_owned(),
        owner: "ana".to_owned(),
        profile: "none".to_owned(),
        vcpus: 1,
        max_vcpus: 1,
        memory: Mib(64),
        max_memory: None,
        accelerator: Accelerator::Emulation { why: "tests".to_owned() },
        firmware: Firmware::Firmware,
        disks: Vec::new(),
        nic: None,
        hostdevs: Vec::new(),
        numa_node: None,
        mmio64: None,
        huge_page: None,
        tpm: false,
        graphics: false,
        serial_log: "/var/lib/gvm/serial.log".into(),
        caps: Caps::default(),
    }
}

/// Runs a test's body on a runtime like the manager's.
pub fn block_on(body: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(body);
}

/// The adapter on this libvirt.
pub fn libvirt(uri: &str) -> Arc<Libvirt> {
    Libvirt::connect(options(uri)).unwrap()
}

/// Options as on the development host: cgroups v1.
pub fn options(uri: &str) -> LibvirtOptions {
    LibvirtOptions { default_cpu_shares: 1024, ..LibvirtOptions::new(uri) }
}

/// The domain as observed; it has to be there.
pub async fn domain(hypervisor: &dyn Hypervisor, vm: VmId) -> ObservedDomain {
    match hypervisor.observe(vm).await {
        Observed::Defined(domain) => domain,
        other => panic!("{vm} is {other:?}"),
    }
}

/// Waits until the machine has this power state.
pub async fn wait_for(hypervisor: &dyn Hypervisor, vm: VmId, power: Power) {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        let observed = hypervisor.observe(vm).await;
        if observed.power() == Some(&power) {
            return;
        }
        assert!(Instant::now() < end, "{vm} is {observed:?}, not {power:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
