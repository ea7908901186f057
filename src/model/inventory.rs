//! What is remembered of a host's cards between looks: who they are, what an administrator decided about them, and what
//! must be put back.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::card::function::Restore;
use super::card::history::GpuHistory;
use super::card::identity::CardIdentity;
use super::gpu::mig::Instance;
use super::gpu::{GpuId, VgpuTypeName};
use super::units::Mib;

/// Why a card is kept out of use, by decision and not by what can be seen of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Withheld {
    /// Until an administrator readmits it.
    Quarantined {
        /// Why.
        why: String,
        /// Since when.
        at: Timestamp,
    },
    /// The kernel does not let go of it: until the host restarts.
    Stuck {
        /// What hangs.
        why: String,
        /// Since when.
        at: Timestamp,
        /// The boot in which it hangs.
        boot_id: String,
    },
}

/// What an administrator decided that a card is divided into.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Shape {
    /// vGPUs that share it by time, made when machines want them.
    Vgpu {
        /// These alone, and at most so many of each; empty: whatever the card has.
        #[serde(default)]
        types: Vec<(VgpuTypeName, u32)>,
    },
    /// MIG instances.
    Mig {
        /// These, all the time; `None`: made when machines want them.
        #[serde(default)]
        instances: Option<Vec<Instance>>,
        /// These types alone, and at most so many of each; empty: whatever the card has.
        #[serde(default)]
        types: Vec<(VgpuTypeName, u32)>,
    },
}

impl Shape {
    /// As typed after `gvm gpu mode GPU`.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Vgpu { .. } => "vgpu",
            Self::Mig { .. } => "mig",
        }
    }
}

/// A shape, and where it was last seen in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shaped {
    /// What was decided.
    pub shape: Shape,
    /// The boot of the host in which it was brought into force; in another it is to be done again.
    #[serde(default)]
    pub boot_id: Option<String>,
}

/// A card that was seen on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownGpu {
    /// For life; the key of leases.
    pub id: GpuId,
    /// How it is known again.
    pub identity: CardIdentity,
    /// Its name as last told; kept while the card is with VFIO and cannot be asked.
    pub model: String,
    /// Its memory as last told.
    pub memory: Option<Mib>,
    /// The vGPU types that it has; those that it has no room for at the moment are not listed by its driver.
    #[serde(default)]
    pub vgpu_types: Vec<VgpuTypeName>,
    /// True where it stays with VFIO between machines (`gvm gpu mode GPU passthrough`).
    pub is_kept: bool,
    /// What it is divided into between restarts of the host; `None` where nobody decided.
    #[serde(default)]
    pub shape: Option<Shaped>,
    /// MIG instances that gvm made when a machine wanted one; written down before they are made, and gone with the machine.
    #[serde(default)]
    pub own_instances: Vec<Instance>,
    /// The drivers that must be put back; recorded before the card is touched, empty where there is nothing.
    pub former: Vec<Restore>,
    /// Kept out of use.
    pub withheld: Option<Withheld>,
    /// What became of it that cannot be seen.
    #[serde(default)]
    pub history: GpuHistory,
    /// When it was last seen; to the minute, so that most looks write nothing.
    pub seen_at: Timestamp,
}
