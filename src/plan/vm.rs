//! The next step of one machine.
//!
//! Called with what should be ([`Vm`]) and what is ([`Facts`]); gives one step, or nothing to do. The
//! reconciler does the step, looks again and asks again, so this function never counts on a step having worked.

use jiff::{SignedDuration, Timestamp};

use crate::model::caps::Caps;
use crate::model::state::{Observed, ObservedDomain, Power, WhyPaused};
use crate::model::units::Mib;
use crate::model::vm::{Desired, Vm};

/// How long to wait before asking an unreachable hypervisor again.
const UNKNOWN_RETRY: SignedDuration = SignedDuration::from_secs(5);
/// How long a transition of the hypervisor's own may take before the next look.
const TRANSITION_RETRY: SignedDuration = SignedDuration::from_secs(1);
/// A request to shut down may be lost while a guest boots: it is repeated.
const ASK_AGAIN: SignedDuration = SignedDuration::from_secs(10);

/// One repeatable step towards what is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make the root disk, or make it larger.
    EnsureDisk,
    /// Make the cloud-init seed.
    EnsureSeed,
    /// Take its cards from the host's drivers.
    EnsureGpuBound,
    /// Plug its cards into the running machine.
    AttachGpu,
    /// Check its cards, give them back to the host's drivers, and end the leases.
    ReleaseGpu,
    /// Define the domain, or define it anew with another shape.
    Define,
    /// Make network and address ready and start the domain.
    Start,
    /// Note that it runs.
    RecordStarted,
    /// Hold the vCPUs.
    Pause,
    /// Let the vCPUs go on.
    Resume,
    /// Ask the guest to shut down.
    AskShutdown,
    /// End it at once.
    ForceOff,
    /// Note that it is off, and that a restart has come to its turn.
    RecordOff,
    /// The guest shut itself down: take that as the owner's wish.
    AcceptOff,
    /// The lifetime is over: stop it.
    Expire,
    /// The undelete window is over: remove it.
    Purge,
    /// Change the limits of the running machine.
    ApplyCaps(Caps),
    /// Plug vCPUs.
    ApplyVcpus(u32),
    /// Plug memory.
    ApplyMemory(Mib),
    /// Make the disk of the running machine larger.
    ApplyDisk(Mib),
    /// Remove the definition with all that libvirt keeps beside it.
    Undefine,
    /// Forget its address on the network and remove its files.
    EnsureFilesGone,
    /// Give up leases and forget the row.
    Forget,
}

impl Step {
    /// The step's name in logs, troubles and `GVM_HOLD_AT`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::EnsureDisk => "ensure-disk",
            Self::EnsureSeed => "ensure-seed",
            Self::EnsureGpuBound => "ensure-gpu-bound",
            Self::AttachGpu => "attach-gpu",
            Self::ReleaseGpu => "release-gpu",
            Self::Define => "define",
            Self::Start => "start",
            Self::RecordStarted => "record-started",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::AskShutdown => "ask-shutdown",
            Self::ForceOff => "force-off",
            Self::RecordOff => "record-off",
            Self::AcceptOff => "accept-off",
            Self::Expire => "expire",
            Self::Purge => "purge",
            Self::ApplyCaps(_) => "apply-caps",
            Self::ApplyVcpus(_) => "apply-vcpus",
            Self::ApplyMemory(_) => "apply-memory",
            Self::ApplyDisk(_) => "apply-disk",
            Self::Undefine => "undefine",
            Self::EnsureFilesGone => "ensure-files-gone",
            Self::Forget => "forget",
        }
    }
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It is as wanted.
    Settled,
    /// Do this, then look again.
    Act(Step),
    /// Nothing before this time, unless something happens.
    Wait(Timestamp),
    /// It will not become as wanted by itself.
    GiveUp(String),
}

/// What was found on the host beside the domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Artefacts {
    /// The machine's folder exists.
    pub has_folder: bool,
    /// Size of the root disk that the guest sees, where there is one.
    pub disk: Option<Mib>,
    /// The seed exists.
    pub has_seed: bool,
    /// The state directory's file system has room again after a failed write.
    pub has_room: bool,
}

/// Where a machine stands with its cards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuFacts {
    /// It holds none.
    #[default]
    NoLease,
    /// It holds leases, and not all cards are ready for it, or one is of what it is not to have any more.
    NotBound,
    /// It holds leases, and VFIO has all cards.
    Bound,
    /// It runs, has all cards, and that is noted.
    Attached,
}

/// Everything that the decision looks at beside the machine itself.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// From the hypervisor.
    pub observed: &'a Observed,
    /// From the file system.
    pub artefacts: Artefacts,
    /// From the leases and the cards.
    pub gpus: GpuFacts,
    /// The definition is what it should be; meaningless without one.
    pub is_defined_as_wanted: bool,
    /// The host's present boot id.
    pub boot_id: &'a str,
    /// How long a guest may take to shut down.
    pub stop_grace: SignedDuration,
    /// Failed tries before giving up.
    pub max_attempts: u32,
    /// The present time.
    pub now: Timestamp,
}

impl Facts<'_> {
    fn after(&self, span: SignedDuration) -> Decision {
        Decision::Wait(self.now.saturating_add(span).unwrap_or(Timestamp::MAX))
    }
}

/// Decides the next step.
pub fn plan(vm: &Vm, facts: &Facts<'_>) -> Decision {
    if matches!(facts.observed, Observed::Unknown(_)) {
        return facts.after(UNKNOWN_RETRY);
    }
    if let Some(trouble) = &vm.trouble {
        if trouble.is_final || vm.attempts >= facts.max_attempts {
            return GiveUp::from(trouble);
        }
        if let Some(next_try) = vm.next_try.filter(|at| *at > facts.now) {
            return Decision::Wait(next_try);
        }
    }
    match vm.desired {
        Desired::Absent => plan_absent(facts),
        Desired::Stopped => plan_stopped(vm, facts),
        Desired::Running | Desired::Paused => plan_running(vm, facts),
    }
}

/// Only a constructor's name for the last decision.
struct GiveUp;

impl GiveUp {
    fn from(trouble: &crate::model::vm::Trouble) -> Decision {
        Decision::GiveUp(format!("{}: {}", trouble.step, trouble.message))
    }
}

fn plan_absent(facts: &Facts<'_>) -> Decision {
    match facts.observed {
        Observed::Defined(domain) if domain.power == Power::Off => Decision::Act(Step::Undefine),
        Observed::Defined(_) => Decision::Act(Step::ForceOff),
        _ if facts.gpus != GpuFacts::NoLease => Decision::Act(Step::ReleaseGpu),
        _ if facts.artefacts.has_folder => Decision::Act(Step::EnsureFilesGone),
        _ => Decision::Act(Step::Forget),
    }
}

fn plan_stopped(vm: &Vm, facts: &Facts<'_>) -> Decision {
    if let Observed::Defined(domain) = facts.observed
        && domain.power != Power::Off
    {
        return plan_stop(vm, &domain.power, facts);
    }
    if is_started(vm) {
        return Decision::Act(Step::RecordOff);
    }
    if facts.gpus != GpuFacts::NoLease {
        // The definition forgets its cards first: nobody starts it by hand with a card that is another's by then.
        let is_with_cards = matches!(facts.observed, Observed::Defined(_)) && !facts.is_defined_as_wanted;
        return Decision::Act(if is_with_cards { Step::Define } else { Step::ReleaseGpu });
    }
    match vm.undelete_until {
        Some(until) if until <= facts.now => Decision::Act(Step::Purge),
        Some(until) => Decision::Wait(until),
        None => plan_defined(vm, facts).unwrap_or(Decision::Settled),
    }
}

fn plan_running(vm: &Vm, facts: &Facts<'_>) -> Decision {
    let power = facts.observed.power();
    if vm.restart_requested.is_some() {
        return match power {
            None | Some(Power::Off) => Decision::Act(Step::RecordOff),
            Some(power) => plan_stop(vm, power, facts),
        };
    }
    match facts.observed {
        Observed::Defined(domain) if domain.power != Power::Off => plan_up(vm, domain, facts),
        Observed::Defined(domain) if domain.is_off_by_guest && vm.started_boot.as_deref() == Some(facts.boot_id) => {
            Decision::Act(Step::AcceptOff)
        }
        // It ended by itself: the next start is another one, with a boot of its own to be watched.
        _ if vm.started_at.is_some() => Decision::Act(Step::RecordOff),
        // Without a request there may still be leases of one before.
        _ => match (vm.spec.gpus.is_empty(), facts.gpus) {
            (true, GpuFacts::NotBound) => Decision::Act(Step::EnsureGpuBound),
            // Without a lease the step says so and ends: it is never started without its cards.
            (false, GpuFacts::NoLease | GpuFacts::NotBound) => Decision::Act(Step::EnsureGpuBound),
            _ => plan_defined(vm, facts).unwrap_or(Decision::Act(Step::Start)),
        },
    }
}

/// True while the store says that a start was carried out and its end was not yet noted.
const fn is_started(vm: &Vm) -> bool {
    vm.started_at.is_some() || vm.stop_asked_at.is_some() || vm.is_force_stop
}

/// What is missing before a start; `None` where nothing is.
fn plan_defined(vm: &Vm, facts: &Facts<'_>) -> Option<Decision> {
    let artefacts = &facts.artefacts;
    if artefacts.disk.is_none_or(|size| size < vm.spec.disk) {
        return Some(Decision::Act(Step::EnsureDisk));
    }
    if !artefacts.has_seed {
        return Some(Decision::Act(Step::EnsureSeed));
    }
    match facts.observed {
        Observed::Defined(_) if facts.is_defined_as_wanted => None,
        _ => Some(Decision::Act(Step::Define)),
    }
}

/// Ask, ask again, force.
fn plan_stop(vm: &Vm, power: &Power, facts: &Facts<'_>) -> Decision {
    if vm.is_force_stop || matches!(power, Power::Crashed) {
        return Decision::Act(Step::ForceOff);
    }
    let Some(asked) = vm.stop_asked_at else {
        // A held guest cannot hear the request.
        let is_held = matches!(power, Power::Paused(WhyPaused::Asked));
        return Decision::Act(if is_held { Step::Resume } else { Step::AskShutdown });
    };
    let deadline = asked.saturating_add(facts.stop_grace).unwrap_or(Timestamp::MAX);
    if facts.now >= deadline {
        return Decision::Act(Step::ForceOff);
    }
    // Asked at whole multiples of the interval after the first time.
    let waited = facts.now.duration_since(asked).as_secs();
    let again = ASK_AGAIN.as_secs();
    let is_due = waited > 0 && waited % again == 0;
    if is_due && matches!(power, Power::Running) {
        return Decision::Act(Step::AskShutdown);
    }
    let next = asked.saturating_add(SignedDuration::from_secs((waited / again + 1) * again)).unwrap_or(deadline);
    Decision::Wait(next.min(deadline))
}

fn plan_up(vm: &Vm, domain: &ObservedDomain, facts: &Facts<'_>) -> Decision {
    match (&domain.power, vm.desired) {
        (Power::Crashed, _) => return Decision::Act(Step::ForceOff),
        (Power::ShuttingDown | Power::Paused(WhyPaused::Transition), _) => return facts.after(TRANSITION_RETRY),
        (Power::Paused(WhyPaused::StorageError), _) if facts.artefacts.has_room => return Decision::Act(Step::Resume),
        (Power::Paused(WhyPaused::StorageError), _) => return facts.after(UNKNOWN_RETRY),
        (Power::Paused(WhyPaused::Asked), Desired::Running) => return Decision::Act(Step::Resume),
        (Power::Running, Desired::Paused) if vm.started_at.is_some() => return Decision::Act(Step::Pause),
        _ => {}
    }
    if vm.started_at.is_none() {
        return Decision::Act(Step::RecordStarted);
    }
    let expires_at = vm.expires_at();
    if expires_at.is_some_and(|at| at <= facts.now) {
        return Decision::Act(Step::Expire);
    }
    // Cards last: with them no memory can be plugged.
    if let Some(step) = plan_change(vm, domain, &facts.artefacts).or_else(|| plan_cards(facts.gpus)) {
        return Decision::Act(step);
    }
    expires_at.map_or(Decision::Settled, Decision::Wait)
}

/// The first difference that can be mended while it runs.
fn plan_change(vm: &Vm, domain: &ObservedDomain, artefacts: &Artefacts) -> Option<Step> {
    let spec = &vm.spec;
    if domain.caps != spec.caps {
        return Some(Step::ApplyCaps(spec.caps.clone()));
    }
    if spec.vcpus > domain.vcpus && spec.vcpus <= domain.max_vcpus {
        return Some(Step::ApplyVcpus(spec.vcpus));
    }
    if spec.memory > domain.memory && spec.memory <= max_memory(domain) {
        return Some(Step::ApplyMemory(spec.memory));
    }
    if artefacts.disk.is_some_and(|size| size < spec.disk) {
        return Some(Step::ApplyDisk(spec.disk));
    }
    None
}

/// What a running machine that holds cards still lacks of them.
const fn plan_cards(gpus: GpuFacts) -> Option<Step> {
    match gpus {
        GpuFacts::NoLease | GpuFacts::Attached => None,
        GpuFacts::NotBound => Some(Step::EnsureGpuBound),
        GpuFacts::Bound => Some(Step::AttachGpu),
    }
}

/// Memory that can be plugged up to. All of it is pinned for the cards that it has by now, and more cannot be.
const fn max_memory(domain: &ObservedDomain) -> Mib {
    if domain.hostdevs.is_empty() { domain.max_memory } else { domain.memory }
}

/// True where a change waits for a restart: fewer or more than can be plugged.
pub fn needs_restart(vm: &Vm, observed: &Observed) -> bool {
    match observed {
        Observed::Defined(domain) if domain.power != Power::Off => {
            domain.vcpus != vm.spec.vcpus && (domain.vcpus > vm.spec.vcpus || vm.spec.vcpus > domain.max_vcpus)
                || domain.memory != vm.spec.memory
                    && (domain.memory > vm.spec.memory || vm.spec.memory > max_memory(domain))
        }
        _ => false,
    }
}

#[cfg(test)]
#[path = "vm_tests.rs"]
mod tests;
