//! What the fake remembers: domains, networks, guests and the faults to come. Plain values, no waiting.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use tokio_util::sync::CancellationToken;

use super::{Call, Guest, Op};
use crate::hypervisor::{DomainSpec, DomainStats, ErrorKind, HypervisorError, LiveChange, PLUG_PORTS, Result};
use crate::model::caps::Caps;
use crate::model::gpu::HostDevice;
use crate::model::id::VmId;
use crate::model::network::{GuestAddress, MacAddress, NetworkSpec};
use crate::model::state::{Observed, ObservedDomain, Power, WhyPaused};
use crate::model::units::Mib;

/// Memory is plugged in steps of this size: what a Linux guest can bring on line.
const PLUG_STEP_MIB: u64 = 128;

/// Calls that are remembered; older ones are forgotten. Far above what one test makes.
const CALL_LOG: usize = 100_000;

/// A fault that waits for its call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub kind: ErrorKind,
    pub times: u32,
    /// The call takes effect and only its reply is an error.
    pub is_after: bool,
}

/// Numbers that a change touches, live or in the definition.
#[derive(Clone, Debug)]
struct Numbers {
    caps: Caps,
    vcpus: u32,
    memory: Mib,
}

#[derive(Debug)]
pub(super) struct FakeDomain {
    spec: DomainSpec,
    config: Numbers,
    live: Option<Numbers>,
    /// Host devices that were plugged since its start, one into each port.
    plugged: Vec<HostDevice>,
    pub power: Power,
    pub is_off_by_guest: bool,
    pub root_disk: Mib,
    pub asks: u32,
    pub console: CancellationToken,
    pub stats: DomainStats,
    pub exec: Option<(i32, Vec<u8>)>,
}

#[derive(Debug)]
pub(super) struct FakeNetwork {
    spec: NetworkSpec,
    pub entries: BTreeMap<MacAddress, (GuestAddress, String)>,
}

#[derive(Debug, Default)]
pub(super) struct World {
    pub domains: BTreeMap<VmId, FakeDomain>,
    pub networks: BTreeMap<String, FakeNetwork>,
    pub strangers: Vec<String>,
    pub guests: HashMap<VmId, Guest>,
    pub faults: HashMap<Op, VecDeque<Fault>>,
    pub hung: HashSet<Op>,
    pub is_unknown: bool,
    pub calls: VecDeque<Call>,
}

fn refuse<T>(kind: ErrorKind, vm: VmId, message: &str) -> Result<T> {
    Err(HypervisorError::new(kind, format!("domain gvm-{vm}"), message))
}

const fn is_active(power: &Power) -> bool {
    matches!(power, Power::Running | Power::Paused(_) | Power::ShuttingDown)
}

impl World {
    pub(super) fn record(&mut self, call: Call) {
        if self.calls.len() == CALL_LOG {
            self.calls.pop_front();
        }
        self.calls.push_back(call);
    }

    /// The fault that this call meets at this point, used up by one.
    pub(super) fn take_fault(&mut self, op: Op, is_after: bool) -> Option<ErrorKind> {
        let queue = self.faults.get_mut(&op)?;
        let front = queue.front_mut().filter(|fault| fault.is_after == is_after)?;
        front.times -= 1;
        let kind = front.kind;
        if front.times == 0 {
            queue.pop_front();
        }
        Some(kind)
    }

    pub(super) fn domain(&mut self, vm: VmId) -> Result<&mut FakeDomain> {
        match self.domains.get_mut(&vm) {
            Some(domain) => Ok(domain),
            None => refuse(ErrorKind::NotFound, vm, "there is no such domain"),
        }
    }

    pub(super) fn active(&mut self, vm: VmId) -> Result<&mut FakeDomain> {
        let domain = self.domain(vm)?;
        if is_active(&domain.power) { Ok(domain) } else { refuse(ErrorKind::Conflict, vm, "it is off") }
    }

    pub(super) fn define(&mut self, spec: &DomainSpec) -> Result<()> {
        let numbers = Numbers { caps: spec.caps.clone(), vcpus: spec.vcpus, memory: spec.memory };
        if self.strangers.contains(&crate::model::vm::domain_name(spec.id)) {
            return refuse(ErrorKind::Conflict, spec.id, "a domain of this name is not ours");
        }
        match self.domains.get_mut(&spec.id) {
            Some(domain) if is_active(&domain.power) => {
                if domain.spec.shape() == spec.shape() {
                    return Ok(());
                }
                refuse(ErrorKind::Conflict, spec.id, "it is active in another shape")
            }
            Some(domain) => {
                domain.spec = spec.clone();
                domain.config = numbers;
                Ok(())
            }
            None => {
                let domain = FakeDomain {
                    spec: spec.clone(),
                    config: numbers,
                    live: None,
                    plugged: Vec::new(),
                    power: Power::Off,
                    is_off_by_guest: false,
                    root_disk: Mib(1024),
                    asks: 0,
                    console: CancellationToken::new(),
                    stats: DomainStats::default(),
                    exec: Some((0, Vec::new())),
                };
                self.domains.insert(spec.id, domain);
                Ok(())
            }
        }
    }

    pub(super) fn start(&mut self, vm: VmId) -> Result<()> {
        let wanted = self.domain(vm)?.spec.hostdevs.clone();
        self.refuse_taken(vm, &wanted)?;
        let domain = self.domain(vm)?;
        if !is_active(&domain.power) {
            domain.live = Some(domain.config.clone());
            domain.power = Power::Running;
            domain.is_off_by_guest = false;
            domain.asks = 0;
        }
        Ok(())
    }

    fn refuse_taken(&self, vm: VmId, wanted: &[HostDevice]) -> Result<()> {
        let taken = self.domains.iter().find(|(id, other)| **id != vm && other.has().any(|dev| wanted.contains(dev)));
        match taken {
            Some((other, _)) => {
                refuse(ErrorKind::Conflict, vm, &format!("a host device is in use by domain gvm-{other}"))
            }
            None => Ok(()),
        }
    }

    pub(super) fn attach(&mut self, vm: VmId, devices: &[HostDevice]) -> Result<()> {
        self.refuse_taken(vm, devices)?;
        let domain = self.active(vm)?;
        let missing: Vec<HostDevice> =
            devices.iter().copied().filter(|device| !domain.has().any(|has| has == device)).collect();
        if domain.plugged.len() + missing.len() > usize::from(PLUG_PORTS) {
            return refuse(ErrorKind::Conflict, vm, "it has too few free ports");
        }
        domain.plugged.extend(missing);
        Ok(())
    }

    pub(super) fn shutdown(&mut self, vm: VmId) -> Result<()> {
        let guest = self.guests.get(&vm).copied().unwrap_or_default();
        let domain = self.domain(vm)?;
        if !is_active(&domain.power) {
            return Ok(());
        }
        domain.asks += 1;
        // Held vCPUs cannot hear.
        if domain.power != Power::Running {
            return Ok(());
        }
        match guest {
            Guest::Obedient => domain.end_by_guest(),
            Guest::AfterAsks(asks) if domain.asks >= asks => domain.end_by_guest(),
            Guest::Lingering => domain.power = Power::ShuttingDown,
            Guest::Deaf | Guest::AfterAsks(_) => {}
        }
        Ok(())
    }

    pub(super) fn undefine(&mut self, vm: VmId) -> Result<()> {
        match self.domains.get(&vm) {
            Some(domain) if is_active(&domain.power) => refuse(ErrorKind::Conflict, vm, "it is still active"),
            _ => {
                self.domains.remove(&vm);
                Ok(())
            }
        }
    }

    pub(super) fn ensure_network(&mut self, spec: &NetworkSpec) -> Result<()> {
        match self.networks.get(&spec.name) {
            Some(network) if network.spec != *spec => Err(HypervisorError::new(
                ErrorKind::Conflict,
                format!("network {}", spec.name),
                format!("a network of this name has the subnet {}", network.spec.subnet),
            )),
            Some(_) => Ok(()),
            None => {
                let network = FakeNetwork { spec: spec.clone(), entries: BTreeMap::new() };
                self.networks.insert(spec.name.clone(), network);
                Ok(())
            }
        }
    }

    pub(super) fn ensure_entry(&mut self, network: &str, mac: MacAddress, entry: (GuestAddress, String)) -> Result<()> {
        let doing = format!("network {network}");
        let Some(found) = self.networks.get_mut(network) else {
            return Err(HypervisorError::new(ErrorKind::NotFound, doing, "there is no such network"));
        };
        if let Some((other, _)) =
            found.entries.iter().find(|(other, (address, _))| **other != mac && *address == entry.0)
        {
            return Err(HypervisorError::new(ErrorKind::Conflict, doing, format!("{} belongs to {other}", entry.0)));
        }
        found.entries.insert(mac, entry);
        Ok(())
    }
}

impl FakeDomain {
    pub(super) fn end(&mut self, power: Power) {
        self.power = power;
        self.live = None;
        self.plugged.clear();
        self.console.cancel();
    }

    pub(super) fn end_by_guest(&mut self) {
        self.end(Power::Off);
        self.is_off_by_guest = true;
    }

    /// Host devices that it has now.
    fn has(&self) -> impl Iterator<Item = &HostDevice> {
        let defined = if self.live.is_some() { self.spec.hostdevs.as_slice() } else { &[] };
        defined.iter().chain(&self.plugged)
    }

    pub(super) fn observed(&self) -> Observed {
        let numbers = self.live.as_ref().unwrap_or(&self.config);
        Observed::Defined(ObservedDomain {
            power: self.power.clone(),
            shape: self.spec.shape(),
            caps: numbers.caps.clone(),
            vcpus: numbers.vcpus,
            max_vcpus: self.spec.max_vcpus,
            memory: numbers.memory,
            max_memory: self.spec.max_memory.unwrap_or(numbers.memory),
            is_off_by_guest: self.is_off_by_guest,
            hostdevs: self.has().map(ToString::to_string).collect(),
            is_accelerated: self.spec.accelerator.is_kvm(),
        })
    }

    /// It was described anew without them.
    pub(super) fn lose_devices(&mut self) {
        self.spec.hostdevs.clear();
        self.plugged.clear();
    }

    pub(super) fn hold(&mut self, why: WhyPaused) {
        if self.power == Power::Running {
            self.power = Power::Paused(why);
        }
    }

    pub(super) fn apply(&mut self, change: &LiveChange) -> Result<()> {
        let id = self.spec.id;
        let step = |message: &str| refuse(ErrorKind::Conflict, id, message);
        match change {
            LiveChange::Caps(caps) => {
                self.config.caps = caps.clone();
                if let Some(live) = &mut self.live {
                    live.caps = caps.clone();
                }
            }
            LiveChange::Vcpus(vcpus) if *vcpus > self.spec.max_vcpus || *vcpus == 0 => {
                return step("more vCPUs than it was defined for need a restart");
            }
            LiveChange::Vcpus(vcpus) => {
                self.config.vcpus = *vcpus;
                if let Some(live) = &mut self.live {
                    live.vcpus = *vcpus;
                }
            }
            LiveChange::Memory(memory) => {
                let Some(live) = &mut self.live else { return step("it is off: define it anew") };
                let more = memory.0.checked_sub(live.memory.0);
                let fits = self.spec.max_memory.is_some_and(|max| *memory <= max);
                match more {
                    Some(0) => {}
                    Some(more) if fits && more.is_multiple_of(PLUG_STEP_MIB) => {
                        live.memory = *memory;
                        self.config.memory = *memory;
                    }
                    _ => return step("this change of memory needs a restart"),
                }
            }
            LiveChange::RootDisk(size) => {
                if self.live.is_none() {
                    return step("it is off: resize the image file");
                }
                if *size < self.root_disk {
                    return step("a disk cannot become smaller");
                }
                self.root_disk = *size;
            }
        }
        Ok(())
    }
}
