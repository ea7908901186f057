//! What is, and what people are told about it.
//!
//! ```text
//!              create                       stop                    start
//!   (nothing) -------> Pending -> Creating ------> Running <------------------+
//!                                     |              | ^  \ pause             |
//!                                     v              | |   `--> Paused        |
//!                                  Failed            v |                      |
//!                                               Stopping ---> Stopped --------+
//!                                                                | delete
//!                                                                v
//!                                            Deleted (undelete window) -> Deleting -> (nothing)
//! ```
//!
//! [`Observed`] is read from the hypervisor on every pass and never stored. [`VmState`] is derived for people
//! and stored nowhere.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::caps::Caps;
use super::units::Mib;
use super::vm::{Desired, Vm};

/// The power state of a defined domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Power {
    /// Not running.
    Off,
    /// QEMU runs, the guest has not been seen to work yet.
    Running,
    /// vCPUs held, for the reason given.
    Paused(WhyPaused),
    /// The guest was asked to shut down and is doing so.
    ShuttingDown,
    /// The guest crashed.
    Crashed,
}

/// Why a domain is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhyPaused {
    /// Somebody asked.
    Asked,
    /// QEMU stopped it because a disk write failed, usually for want of space on the host.
    StorageError,
    /// Starting up, migrating, snapshotting: it will change by itself.
    Transition,
}

/// What the hypervisor says of one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed {
    /// No such domain.
    Missing,
    /// A domain that carries our id.
    Defined(ObservedDomain),
    /// The hypervisor did not answer; nothing may be concluded.
    Unknown(String),
}

/// A defined domain as read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedDomain {
    /// Power state.
    pub power: Power,
    /// The digest of the shape it was defined from, out of our metadata.
    pub shape: String,
    /// Limits in force: of the live machine where it runs, else of its definition.
    pub caps: Caps,
    /// Present vCPUs.
    pub vcpus: u32,
    /// vCPUs that can be plugged up to.
    pub max_vcpus: u32,
    /// Present memory.
    pub memory: Mib,
    /// Memory that can be plugged up to; equal to `memory` where none can.
    pub max_memory: Mib,
    /// True where it is off because its guest shut itself down, not because of us, a crash or the host.
    pub is_off_by_guest: bool,
    /// Host devices in the live description: PCI addresses, and UUIDs of mediated devices.
    pub hostdevs: Vec<String>,
    /// True where it runs on hardware virtualisation, false under software emulation.
    pub is_accelerated: bool,
}

impl Observed {
    /// The power state, where there is a domain.
    pub const fn power(&self) -> Option<&Power> {
        match self {
            Self::Defined(domain) => Some(&domain.power),
            Self::Missing | Self::Unknown(_) => None,
        }
    }

    /// True where the guest holds memory and devices of the host.
    pub const fn is_active(&self) -> bool {
        matches!(self.power(), Some(Power::Running | Power::Paused(_) | Power::ShuttingDown))
    }

    /// True where it is known that it does not.
    pub const fn is_off(&self) -> bool {
        !self.is_active() && !matches!(self, Self::Unknown(_))
    }
}

/// How far the guest's first boot has come, as seen from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "phase", content = "detail")]
pub enum FirstBoot {
    /// Nothing seen yet.
    #[default]
    Waiting,
    /// The system is on its way; the word names the stage.
    Stage(String),
    /// The guest says that it is set up.
    Done,
    /// Set-up failed inside the guest, for this reason.
    Failed(String),
}

/// The state shown to people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum VmState {
    /// Accepted, nothing done yet.
    Pending,
    /// Being made or started.
    Creating,
    /// Up.
    Running,
    /// vCPUs held by request.
    Paused,
    /// Asked to stop.
    Stopping,
    /// Off.
    Stopped,
    /// Off and to be removed at the time given, unless undeleted.
    Deleted {
        /// End of the undelete window.
        until: Timestamp,
    },
    /// Being removed.
    Deleting,
    /// A step failed; tried again at the time given, or never.
    Failed {
        /// Next try.
        retry_at: Option<Timestamp>,
    },
    /// It runs, but not as asked (for example held by a full disk).
    Degraded {
        /// What is wrong, in plain words.
        why: String,
    },
    /// The hypervisor does not answer.
    Unknown {
        /// What it said.
        why: String,
    },
}

impl VmState {
    /// One word for tables.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Deleted { .. } => "deleted",
            Self::Deleting => "deleting",
            Self::Failed { .. } => "failed",
            Self::Degraded { .. } => "degraded",
            Self::Unknown { .. } => "unknown",
        }
    }

    /// Derives what people are told from intent, observation and the last trouble.
    pub fn derive(vm: &Vm, observed: &Observed) -> Self {
        if let Observed::Unknown(why) = observed {
            return Self::Unknown { why: why.clone() };
        }
        if let Some(Power::Paused(WhyPaused::StorageError)) = observed.power() {
            return Self::Degraded {
                why: "held because a disk write failed: the host's storage is full or broken".to_owned(),
            };
        }
        let power = observed.power();
        if let Some(trouble) = &vm.trouble {
            return match (vm.desired, power) {
                (Desired::Running, Some(Power::Running)) => Self::Degraded { why: trouble.message.clone() },
                _ => Self::Failed { retry_at: vm.next_try.filter(|_| !trouble.is_final) },
            };
        }
        match vm.desired {
            Desired::Absent => Self::Deleting,
            Desired::Stopped if observed.is_active() => Self::Stopping,
            Desired::Stopped => match vm.undelete_until {
                Some(until) => Self::Deleted { until },
                // Its GPUs are being given back.
                None if !vm.placement.gpus.is_empty() => Self::Stopping,
                None => Self::Stopped,
            },
            Desired::Running | Desired::Paused => match power {
                None if matches!(observed, Observed::Missing) && vm.generation.0 == 1 && vm.attempts == 0 => {
                    Self::Pending
                }
                None | Some(Power::Off | Power::Crashed) => Self::Creating,
                Some(Power::ShuttingDown) => Self::Stopping,
                Some(Power::Running) => Self::Running,
                Some(Power::Paused(_)) if vm.desired == Desired::Paused => Self::Paused,
                Some(Power::Paused(_)) => Self::Creating,
            },
        }
    }
}
