//! The virtual machine: what was asked for, and where it was placed.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::caps::Caps;
use super::gpu::{GpuRequest, Partition};
use super::id::{HostId, ImageId, TeamId, UserId, VmId};
use super::image::Boot;
use super::name::{GuestUser, ImageName, ProfileName, Tag, VmName};
use super::network::{GuestAddress, MacAddress};
use super::state::FirstBoot;
use super::units::{Mib, Seconds};

/// What the owner wants of a machine: the only thing about it that a person changes directly.
///
/// `Paused` is a wish beside `Running` because the reconciler is level-triggered: a pause that were only an
/// action would be undone by the next tick (ADR 0002).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Desired {
    /// Booted and executing.
    Running,
    /// Booted, its vCPUs held.
    Paused,
    /// Defined but off.
    Stopped,
    /// Gone, with everything that belonged to it.
    Absent,
}

impl Desired {
    /// True where it is to hold memory and devices of the host.
    pub const fn is_up(self) -> bool {
        matches!(self, Self::Running | Self::Paused)
    }
}

/// Counts the changes of intent of one machine; a stale step is recognised by an older one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

impl Generation {
    /// The generation after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// One version of an image, as a machine refers to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ImageRef {
    /// The image's name, for people.
    pub name: ImageName,
    /// The version that the machine was cloned from.
    pub id: ImageId,
}

/// The shape of a machine and everything else that was asked for at create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmSpec {
    /// The profile it was made from.
    pub profile: ProfileName,
    /// The image it was cloned from; `None` only with [`Boot::Firmware`], whose machines hold no system.
    #[serde(default)]
    pub image: Option<ImageRef>,
    /// The machine whose disk it starts from instead of the image's.
    #[serde(default)]
    pub clone_of: Option<VmId>,
    /// How it boots.
    pub boot: Boot,
    /// Number of virtual CPUs.
    pub vcpus: u32,
    /// Memory; this is also the memory cap.
    pub memory: Mib,
    /// Size of the root disk.
    pub disk: Mib,
    /// Limits.
    pub caps: Caps,
    /// GPUs asked for.
    #[serde(default)]
    pub gpus: Vec<GpuRequest>,
    /// A TPM 2.0 by swtpm.
    #[serde(default)]
    pub tpm: bool,
    /// UEFI secure boot.
    #[serde(default)]
    pub secure_boot: bool,
    /// VNC on or off.
    #[serde(default)]
    pub graphics: bool,
    /// How long it may run after each start.
    #[serde(default)]
    pub ttl: Option<Seconds>,
    /// The login inside.
    pub guest_user: GuestUser,
    /// The member's own cloud-init document, as given.
    #[serde(default)]
    pub user_data: Option<String>,
    /// What the profile adds to cloud-init.
    #[serde(default)]
    pub profile_user_data: Option<String>,
}

/// All choices made at admission. Nothing is chosen after the intent is committed, so that a repeated step
/// does the same thing again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Where it runs.
    pub host: HostId,
    /// Its network card's address.
    pub mac: MacAddress,
    /// Its address on the members' network.
    pub address: GuestAddress,
    /// The partitions that it is to have, in the order of their PCI slots; it holds leases of them. A lease of another
    /// one is of a card that is being given back.
    #[serde(default)]
    pub gpus: Vec<Partition>,
    /// The least window for their 64-bit BARs that the firmware must be told.
    #[serde(default)]
    pub mmio64: Option<Mib>,
    /// Size of the huge pages that hold its memory.
    #[serde(default)]
    pub huge_page: Option<Mib>,
}

/// The last thing that went wrong, as shown to people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// The step that failed, by its name in the logs.
    pub step: String,
    /// Cause in plain words.
    pub message: String,
    /// When it was seen.
    pub at: Timestamp,
    /// True where trying again cannot help before the request changes.
    pub is_final: bool,
}

/// A virtual machine as it stands in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vm {
    /// Its id for life.
    pub id: VmId,
    /// The owner's label.
    pub name: VmName,
    /// Whose it is.
    pub owner: UserId,
    /// The team that it counts for, where it counts for one.
    pub team: Option<TeamId>,
    /// What was asked for.
    pub spec: VmSpec,
    /// What is wanted now.
    pub desired: Desired,
    /// Counts changes of intent.
    pub generation: Generation,
    /// The generation in which a restart was asked for and is not yet done.
    pub restart_requested: Option<Generation>,
    /// True where the next stop may skip asking the guest.
    pub is_force_stop: bool,
    /// When the reconciler first asked the guest to shut down for the present stop.
    pub stop_asked_at: Option<Timestamp>,
    /// When the present start was last carried out; `None` while it should be off.
    pub started_at: Option<Timestamp>,
    /// The host's boot id at that start.
    pub started_boot: Option<String>,
    /// The choices of admission.
    pub placement: Placement,
    /// Labels.
    pub tags: Vec<Tag>,
    /// Last failure of a step, cleared by success.
    pub trouble: Option<Trouble>,
    /// Failed tries of the present generation.
    pub attempts: u32,
    /// Not to be tried before.
    pub next_try: Option<Timestamp>,
    /// How far its first boot came.
    pub first_boot: FirstBoot,
    /// When it was made.
    pub created_at: Timestamp,
    /// Set by `delete`: until then `undelete` brings it back.
    pub undelete_until: Option<Timestamp>,
}

impl Vm {
    /// The name of its libvirt domain: from the id, so that renaming never touches the host.
    pub fn domain_name(&self) -> String {
        domain_name(self.id)
    }

    /// True between `delete` and the end of the undelete window.
    pub const fn is_deleted(&self) -> bool {
        self.undelete_until.is_some() || matches!(self.desired, Desired::Absent)
    }

    /// When its lifetime ends, if it has one and is running.
    pub fn expires_at(&self) -> Option<Timestamp> {
        let ttl = i64::try_from(self.spec.ttl?.0).ok()?;
        self.started_at?.checked_add(jiff::SignedDuration::from_secs(ttl)).ok()
    }
}

/// The libvirt domain's name of a machine.
pub fn domain_name(id: VmId) -> String {
    format!("gvm-{id}")
}
