//! A hypervisor in memory, with faults on demand, for the manager's tests.
//!
//! ```text
//!   test --(fail_next, lose_reply, hang, set_unknown, destroy_behind, ...)--> [FakeHypervisor] <--port-- manager
//! ```
//!
//! It keeps the same contract as the real one; `tests/it/hypervisor` runs one list of checks against both. What it
//! does not know: files, memory of the host, XML.

mod console;
mod peek;
mod port;
mod world;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use self::world::{Fault, World};
use super::wake::Waker;
use super::{DomainStats, ErrorKind, HypervisorError, Result, Wake};
use crate::model::id::VmId;
use crate::model::network::{GuestAddress, MacAddress};
use crate::model::state::{Power, WhyPaused};
use crate::model::units::Mib;

/// A call of the port, for faults and for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is the method of the port with the same name")]
pub enum Op {
    Facts,
    ObserveAll,
    Observe,
    Strangers,
    Check,
    Define,
    Start,
    Shutdown,
    ForceOff,
    Pause,
    Resume,
    Undefine,
    Apply,
    AttachDevices,
    RootDiskSize,
    EnsureNetwork,
    EnsureHostEntry,
    EnsureHostEntryGone,
    Console,
    Stats,
    GuestExec,
}

/// One call that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Which.
    pub op: Op,
    /// On which machine, where it is about one.
    pub vm: Option<VmId>,
}

/// What a guest does when asked to shut down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Guest {
    /// It is off at once.
    #[default]
    Obedient,
    /// It never listens.
    Deaf,
    /// It is off at the request with this number; requests are counted from each start.
    AfterAsks(u32),
    /// It shuts down and does not come to an end before [`FakeHypervisor::finish_shutdown`].
    Lingering,
}

/// How long a hung call takes to give up, like the deadline of the real one; changed by
/// [`FakeHypervisor::set_deadline`].
const HANG_DEADLINE: Duration = Duration::from_secs(10);

/// The hypervisor in memory.
#[derive(Debug)]
pub struct FakeHypervisor {
    world: Mutex<World>,
    waker: Waker,
    released: Notify,
    deadline: Mutex<Duration>,
}

impl Default for FakeHypervisor {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeHypervisor {
    /// An empty host that works.
    pub fn new() -> Self {
        Self {
            world: Mutex::new(World::default()),
            waker: Waker::new(),
            released: Notify::new(),
            deadline: Mutex::new(HANG_DEADLINE),
        }
    }

    /// The next `times` calls of `op` fail with `kind` and change nothing.
    pub fn fail_next(&self, op: Op, kind: ErrorKind, times: u32) {
        self.add_fault(op, Fault { kind, times, is_after: false });
    }

    /// The next `times` calls of `op` take effect, but their reply is lost (`Transient`).
    pub fn lose_reply(&self, op: Op, times: u32) {
        self.add_fault(op, Fault { kind: ErrorKind::Transient, times, is_after: true });
    }

    fn add_fault(&self, op: Op, fault: Fault) {
        if fault.times > 0 {
            self.world().faults.entry(op).or_default().push_back(fault);
        }
    }

    /// Calls of `op` hang from now on, until [`Self::release`] or the deadline, which is `Transient`.
    pub fn hang(&self, op: Op) {
        self.world().hung.insert(op);
    }

    /// Lets hung calls of `op` go on, and later ones pass.
    pub fn release(&self, op: Op) {
        self.world().hung.remove(&op);
        self.released.notify_waiters();
    }

    /// How long a hung call takes to give up.
    pub fn set_deadline(&self, deadline: Duration) {
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner) = deadline;
    }

    /// The hypervisor does not answer: observations are `Unknown`, everything else is `Transient`. Both turns
    /// wake everything, as a lost and regained connection does.
    pub fn set_unknown(&self, is_unknown: bool) {
        self.world().is_unknown = is_unknown;
        self.waker.wake(Wake::All);
    }

    /// What this machine's guest does when asked to shut down.
    pub fn set_guest(&self, vm: VmId, guest: Guest) {
        self.world().guests.insert(vm, guest);
    }

    /// Ends a shutdown that lingers.
    pub fn finish_shutdown(&self, vm: VmId) {
        self.outside(vm, world::FakeDomain::end_by_guest);
    }

    /// The guest shuts itself down.
    pub fn power_off_inside(&self, vm: VmId) {
        self.outside(vm, world::FakeDomain::end_by_guest);
    }

    /// Somebody else ends the domain (`virsh destroy`, the OOM killer).
    pub fn destroy_behind(&self, vm: VmId) {
        self.outside(vm, |domain| domain.end(Power::Off));
    }

    /// Somebody else takes its devices out of the domain while it runs.
    pub fn lose_devices(&self, vm: VmId) {
        self.outside(vm, world::FakeDomain::lose_devices);
    }

    /// Somebody else starts the domain.
    pub fn start_behind(&self, vm: VmId) {
        let _ = self.world().start(vm);
        self.waker.wake(Wake::Vm(vm));
    }

    /// Somebody else ends and undefines the domain.
    pub fn undefine_behind(&self, vm: VmId) {
        self.world().domains.remove(&vm);
        self.waker.wake(Wake::Vm(vm));
    }

    /// The guest crashes; the domain is off after that.
    pub fn crash(&self, vm: VmId) {
        self.outside(vm, |domain| domain.end(Power::Off));
    }

    /// A disk write fails and QEMU holds the guest.
    pub fn fail_storage(&self, vm: VmId) {
        self.outside(vm, |domain| domain.hold(WhyPaused::StorageError));
    }

    /// A domain named like ours that is not ours.
    pub fn add_stranger(&self, name: &str) {
        self.world().strangers.push(name.to_owned());
    }

    /// The size that the root disk has.
    pub fn set_root_disk(&self, vm: VmId, size: Mib) {
        self.outside(vm, |domain| domain.root_disk = size);
    }

    /// What programs run inside answer; `None` means that the guest agent is not connected.
    pub fn set_guest_exec(&self, vm: VmId, answer: Option<(i32, Vec<u8>)>) {
        self.outside(vm, |domain| domain.exec = answer);
    }

    /// The numbers it reports.
    pub fn set_stats(&self, vm: VmId, stats: DomainStats) {
        self.outside(vm, |domain| domain.stats = stats);
    }

    /// Wakes as libvirt's events do.
    pub fn send(&self, wake: Wake) {
        self.waker.wake(wake);
    }

    /// All calls so far, oldest first.
    pub fn calls(&self) -> Vec<Call> {
        self.world().calls.iter().copied().collect()
    }

    /// How often `op` was called on `vm`.
    pub fn count(&self, op: Op, vm: VmId) -> usize {
        self.world().calls.iter().filter(|call| call.op == op && call.vm == Some(vm)).count()
    }

    /// How often the guest was asked to shut down since it was started.
    pub fn asks(&self, vm: VmId) -> u32 {
        self.world().domains.get(&vm).map_or(0, |domain| domain.asks)
    }

    /// The addresses that a network hands out.
    pub fn host_entries(&self, network: &str) -> Vec<(MacAddress, GuestAddress, String)> {
        let world = self.world();
        let entries = world.networks.get(network).map(|network| &network.entries);
        entries.into_iter().flatten().map(|(mac, (address, name))| (*mac, *address, name.clone())).collect()
    }

    fn outside(&self, vm: VmId, change: impl FnOnce(&mut world::FakeDomain)) {
        if let Some(domain) = self.world().domains.get_mut(&vm) {
            change(domain);
        }
        self.waker.wake(Wake::Vm(vm));
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One call: logged, hung or failed as arranged, else carried out.
    async fn call<T>(&self, op: Op, vm: Option<VmId>, act: impl FnOnce(&mut World) -> Result<T> + Send) -> Result<T> {
        let fault = |kind| Err(HypervisorError::new(kind, format!("{op:?}"), "a fault that the test arranged"));
        self.world().record(Call { op, vm });
        self.wait_while_hung(op).await?;
        let result = {
            let mut world = self.world();
            if world.is_unknown {
                return Err(HypervisorError::new(ErrorKind::Transient, format!("{op:?}"), "libvirt does not answer"));
            }
            if let Some(kind) = world.take_fault(op, false) {
                return fault(kind);
            }
            let result = act(&mut world);
            match world.take_fault(op, true) {
                Some(kind) => fault(kind),
                None => result,
            }
        };
        if let Some(vm) = vm.filter(|_| op.is_change()) {
            self.waker.wake(Wake::Vm(vm));
        }
        result
    }

    async fn wait_while_hung(&self, op: Op) -> Result<()> {
        let deadline = *self.deadline.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = async {
            loop {
                let mut released = std::pin::pin!(self.released.notified());
                // Registered before the look, so that a release between the two is not missed.
                released.as_mut().enable();
                if !self.world().hung.contains(&op) {
                    return;
                }
                released.await;
            }
        };
        let too_long =
            || HypervisorError::new(ErrorKind::Transient, format!("{op:?}"), "no answer within the deadline");
        tokio::time::timeout(deadline, wait).await.map_err(|_| too_long())
    }
}

impl Op {
    /// True where libvirt would tell of it by an event.
    const fn is_change(self) -> bool {
        matches!(
            self,
            Self::Define | Self::Start | Self::Shutdown | Self::ForceOff | Self::Pause | Self::Resume | Self::Undefine
        )
    }
}
