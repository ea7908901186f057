//! The port as the fake keeps it: each call goes through [`FakeHypervisor::call`], which logs it and its faults.

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::console::Echo;
use super::world::World;
use super::{FakeHypervisor, Op};
use crate::hypervisor::xml::{self, Site, Templates};
use crate::hypervisor::{
    ByteStream, DomainSpec, DomainStats, DomainVerdict, ErrorKind, Hypervisor, HypervisorError, HypervisorFacts,
    LiveChange, Result, Wake,
};
use crate::model::gpu::HostDevice;
use crate::model::id::VmId;
use crate::model::network::{GuestAddress, MacAddress, NetworkSpec};
use crate::model::state::{Observed, Power, WhyPaused};
use crate::model::units::Mib;

/// The machine type that its domains get.
const MACHINE: &str = "pc-q35-10.0";

#[async_trait]
impl Hypervisor for FakeHypervisor {
    async fn facts(&self) -> Result<HypervisorFacts> {
        self.call(Op::Facts, None, |_| {
            Ok(HypervisorFacts {
                uri: "fake:///".to_owned(),
                libvirt_version: "11.3.0".to_owned(),
                qemu_version: "10.0.2".to_owned(),
                memory: Mib(65_536),
                cpus: 16,
                machine: MACHINE.to_owned(),
            })
        })
        .await
    }

    async fn observe_all(&self) -> Result<Vec<(VmId, Observed)>> {
        self.call(Op::ObserveAll, None, |world| {
            Ok(world.domains.iter().map(|(id, domain)| (*id, domain.observed())).collect())
        })
        .await
    }

    async fn observe(&self, vm: VmId) -> Observed {
        let look = |world: &mut World| Ok(world.domains.get(&vm).map_or(Observed::Missing, |domain| domain.observed()));
        let observed = self.call(Op::Observe, Some(vm), look).await;
        observed.unwrap_or_else(|error| Observed::Unknown(error.to_string()))
    }

    async fn strangers(&self) -> Result<Vec<String>> {
        self.call(Op::Strangers, None, |world| Ok(world.strangers.clone())).await
    }

    async fn check(&self, spec: &DomainSpec) -> Result<DomainVerdict> {
        // Rendered by the real templates: only the verdict of libvirt is missing.
        let site = Site { machine: MACHINE.to_owned(), cpuset: None };
        let rendered = xml::domain(&Templates::default(), spec, &site);
        self.call(Op::Check, Some(spec.id), |_| {
            let native = Ok("qemu-system-x86_64".to_owned());
            Ok(DomainVerdict { xml: rendered?, native, template_diff: String::new() })
        })
        .await
    }

    async fn define(&self, spec: &DomainSpec) -> Result<()> {
        self.call(Op::Define, Some(spec.id), |world| world.define(spec)).await
    }

    async fn start(&self, vm: VmId) -> Result<()> {
        self.call(Op::Start, Some(vm), |world| world.start(vm)).await
    }

    async fn shutdown(&self, vm: VmId) -> Result<()> {
        self.call(Op::Shutdown, Some(vm), |world| world.shutdown(vm)).await
    }

    async fn force_off(&self, vm: VmId) -> Result<()> {
        self.call(Op::ForceOff, Some(vm), |world| {
            if let Ok(domain) = world.domain(vm)
                && domain.power != Power::Off
            {
                domain.end(Power::Off);
            }
            Ok(())
        })
        .await
    }

    async fn pause(&self, vm: VmId) -> Result<()> {
        self.call(Op::Pause, Some(vm), |world| world.active(vm).map(|domain| domain.hold(WhyPaused::Asked))).await
    }

    async fn resume(&self, vm: VmId) -> Result<()> {
        self.call(Op::Resume, Some(vm), |world| {
            let domain = world.active(vm)?;
            if matches!(domain.power, Power::Paused(_)) {
                domain.power = Power::Running;
            }
            Ok(())
        })
        .await
    }

    async fn undefine(&self, vm: VmId) -> Result<()> {
        self.call(Op::Undefine, Some(vm), |world| world.undefine(vm)).await
    }

    async fn apply(&self, vm: VmId, change: &LiveChange) -> Result<()> {
        self.call(Op::Apply, Some(vm), |world| world.domain(vm)?.apply(change)).await
    }

    async fn attach_devices(&self, vm: VmId, devices: &[HostDevice]) -> Result<()> {
        self.call(Op::AttachDevices, Some(vm), |world| world.attach(vm, devices)).await
    }

    async fn root_disk_size(&self, vm: VmId) -> Result<Mib> {
        self.call(Op::RootDiskSize, Some(vm), |world| world.domain(vm).map(|domain| domain.root_disk)).await
    }

    async fn ensure_network(&self, network: &NetworkSpec) -> Result<()> {
        self.call(Op::EnsureNetwork, None, |world| world.ensure_network(network)).await
    }

    async fn ensure_host_entry(&self, network: &str, mac: MacAddress, address: GuestAddress, name: &str) -> Result<()> {
        let entry = (address, name.to_owned());
        self.call(Op::EnsureHostEntry, None, |world| world.ensure_entry(network, mac, entry)).await
    }

    async fn ensure_host_entry_gone(&self, network: &str, mac: MacAddress) -> Result<()> {
        self.call(Op::EnsureHostEntryGone, None, |world| {
            if let Some(network) = world.networks.get_mut(network) {
                network.entries.remove(&mac);
            }
            Ok(())
        })
        .await
    }

    async fn console(&self, vm: VmId) -> Result<Box<dyn ByteStream>> {
        self.call(Op::Console, Some(vm), |world| {
            let domain = world.active(vm)?;
            domain.console.cancel();
            domain.console = CancellationToken::new();
            Ok(Box::new(Echo::new(domain.console.clone())) as Box<dyn ByteStream>)
        })
        .await
    }

    async fn stats(&self, vm: VmId) -> Result<DomainStats> {
        self.call(Op::Stats, Some(vm), |world| world.active(vm).map(|domain| domain.stats)).await
    }

    async fn guest_exec(&self, vm: VmId, _argv: &[&str], _deadline: Duration) -> Result<(i32, Vec<u8>)> {
        self.call(Op::GuestExec, Some(vm), |world| {
            let away = || HypervisorError::new(ErrorKind::Transient, "asking the guest agent", "it is not connected");
            world.active(vm)?.exec.clone().ok_or_else(away)
        })
        .await
    }

    fn wakes(&self) -> Option<mpsc::Receiver<Wake>> {
        self.waker.take_receiver()
    }
}
