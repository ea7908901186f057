//! Wire types of `/v1`. Apart from the model on purpose: they change only by addition.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

mod access;
mod audit;
mod caps;
mod gpu;
mod image;
mod login;
mod people;
mod quota;
mod token;

pub use self::access::{
    AnnounceGateway, CertificateFacts, EndedAccess, GatewayMode, GatewayView, Identified, Identify, ResolveTarget,
    RevocationView, SshInfo, Target,
};
pub use self::audit::{EntryList, EntryView, HeadView, RecordVerdict, VerifyRecord};
pub use self::caps::{CapsPatch, CapsView};
pub use self::gpu::{
    CardLayoutView, CardPlanView, ChangeGpuMode, ChosenGpu, DryRun, ExportedLayout, FitView, GpuFunctionView, GpuList,
    GpuPlan, GpuView, GroupMemberView, ImportLayout, LayoutResult, MigInstanceView, OfferList, OfferView, WithholdGpu,
};
pub use self::image::{ImageList, ImageView, ImportImage};
pub use self::login::{
    DeviceAnswer, DeviceLoginView, DeviceWord, LinkLogin, LoginWaysView, PasswordLogin, PollDevice, SessionView,
};
pub use self::people::{
    AddTeam, AddUser, ChangeTeam, ChangeUser, ImportProblemView, ImportReport, ImportUsers, Me, MemberList,
    SuspendUser, Suspended, SuspensionView, TeamList, TeamView, UserList, UserView,
};
pub use self::quota::{QuotaLineView, QuotaView, SetQuota};
pub use self::token::{CreateToken, CreatedToken, TokenList, TokenView};

/// Request to make a machine. What is absent comes from the profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CreateVm {
    /// Name; made up from the profile's where absent.
    pub name: Option<String>,
    /// Profile.
    pub profile: String,
    /// Image name.
    pub image: Option<String>,
    /// Virtual CPUs.
    pub cpus: Option<u32>,
    /// Memory, such as `4G`.
    pub memory: Option<String>,
    /// Root disk, such as `40G`.
    pub disk: Option<String>,
    /// GPUs; an empty list takes away the profile's.
    pub gpus: Option<Vec<String>>,
    /// Limits over those of the profile.
    pub caps: CapsView,
    /// Lifetime after each start, such as `8h`.
    pub ttl: Option<String>,
    /// Priority; only `normal` until queues come.
    pub priority: Option<String>,
    /// A cloud-init document.
    pub user_data: Option<String>,
    /// Labels.
    pub tags: Vec<String>,
    /// The team that it counts for; the owner's default one where absent.
    pub team: Option<String>,
    /// TPM 2.0.
    pub tpm: Option<bool>,
    /// Define it, but leave it off.
    pub is_stopped: bool,
}

/// Request to copy a stopped machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CloneVm {
    /// Name of the copy.
    pub name: String,
}

/// Request to stop or restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StopVm {
    /// End it at once instead of asking the guest first.
    pub force: bool,
}

/// Request to change a machine. What is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ChangeVm {
    /// New name.
    pub name: Option<String>,
    /// Virtual CPUs.
    pub cpus: Option<u32>,
    /// Memory, such as `4G`.
    pub memory: Option<String>,
    /// Root disk, only ever larger.
    pub disk: Option<String>,
    /// GPUs, in the words of `CreateVm`; an empty list takes them away. Refused where it runs and has some.
    pub gpus: Option<Vec<String>>,
    /// Limits to change.
    pub caps: CapsPatch,
    /// The team that it counts for from here on.
    pub team: Option<String>,
    /// Lifetime after each start; empty text takes it away.
    pub ttl: Option<String>,
    /// Labels to put on.
    pub add_tags: Vec<String>,
    /// Labels to take off.
    pub remove_tags: Vec<String>,
}

/// A machine as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmView {
    /// Id, a UUID; also that of the libvirt domain.
    pub id: String,
    /// Name.
    pub name: String,
    /// Owner's login.
    pub owner: String,
    /// The team that it counts for; empty where it counts for none.
    #[serde(default)]
    pub team: String,
    /// State word: pending, creating, running, paused, stopping, stopped, deleted, deleting, failed, degraded, unknown.
    pub state: String,
    /// What the state means just now, in plain words; empty where there is nothing to say.
    pub detail: String,
    /// Profile.
    pub profile: String,
    /// Image.
    pub image: String,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Memory, MiB.
    pub memory_mib: u64,
    /// Root disk, MiB.
    pub disk_mib: u64,
    /// GPUs asked for.
    pub gpus: Vec<String>,
    /// Addresses of the cards that it holds.
    #[serde(default)]
    pub gpu_addresses: Vec<String>,
    /// Address on the members' network.
    pub address: String,
    /// Ethernet address.
    pub mac: String,
    /// Login inside.
    pub guest_user: String,
    /// How far the first boot is: waiting, a stage's word, done, failed.
    pub first_boot: String,
    /// True when the guest's SSH server was seen to answer since the last start.
    pub is_reachable: bool,
    /// `kvm`, `emulation` or empty while off.
    pub accelerator: String,
    /// Limits asked for.
    pub caps: CapsView,
    /// Limits read back from the running machine or its definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caps_in_force: Option<CapsView>,
    /// Labels.
    pub tags: Vec<String>,
    /// True where a change waits for a restart.
    pub needs_restart: bool,
    /// Lifetime after each start, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    /// RFC 3339 time at which its lifetime ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// RFC 3339 end of the undelete window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undelete_until: Option<String>,
    /// RFC 3339.
    pub created_at: String,
    /// Counts changes of intent.
    pub generation: u64,
}

/// Machines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmList {
    /// In the order of their making.
    pub vms: Vec<VmView>,
}

/// Answer to an accepted change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Accepted {
    /// Operation to look up under `/v1/operations/{id}`.
    pub operation: String,
    /// The machine as it stands now.
    pub vm: VmView,
    /// Things the user should know, such as slow emulation or a change that waits for a restart.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// One accepted request and how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperationView {
    /// Id.
    pub id: String,
    /// RFC 3339.
    pub at: String,
    /// Who asked.
    pub actor: String,
    /// What, such as `vm.create`.
    pub action: String,
    /// To what.
    pub target: String,
    /// pending, success, denied, failure.
    pub outcome: String,
    /// Reason or detail.
    pub detail: String,
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
}

/// Operations, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperationList {
    /// The rows.
    pub operations: Vec<OperationView>,
}

/// One message of the event stream (server-sent event `progress`; event `lagged` means: read the state anew).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventView {
    /// Machine's id.
    pub vm_id: String,
    /// Machine's name.
    pub vm: String,
    /// RFC 3339.
    pub at: String,
    /// Stage word: accepted, network, disk, seed, define, start, boot, first_boot, ready, stop, off, delete, gone, failed, change, state.
    pub stage: String,
    /// In plain words.
    pub message: String,
    /// State word after it.
    pub state: String,
}

/// A profile as offered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProfileView {
    /// Name.
    pub name: String,
    /// One line.
    pub description: String,
    /// Image name.
    pub image: String,
    /// uefi, kernel or firmware.
    pub boot: String,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Memory, MiB.
    pub memory_mib: u64,
    /// Root disk, MiB.
    pub disk_mib: u64,
    /// GPUs.
    pub gpus: Vec<String>,
    /// Limits.
    pub caps: CapsView,
    /// True where its image is in the catalogue.
    pub is_image_present: bool,
    /// TPM.
    pub tpm: bool,
    /// Secure boot.
    pub secure_boot: bool,
}

/// Profiles.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProfileList {
    /// By name.
    pub profiles: Vec<ProfileView>,
    /// Files that could not be used, with the reason.
    #[serde(default)]
    pub faults: Vec<String>,
}

/// Request to check a profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CheckProfile {
    /// Cards to plan against instead of this host's: the JSON of a captured inventory (`{"gpus": [...]}`).
    pub gpu_fixture: Option<serde_json::Value>,
}

/// Verdict on a profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProfileCheck {
    /// True where everything below is well.
    pub ok: bool,
    /// One line per check: `ok: ...`, `note: ...` or `fault: ...`.
    pub findings: Vec<String>,
    /// Difference between the built-in template and the administrator's, empty without an override.
    pub template_diff: String,
    /// The rendered domain description.
    pub xml: String,
    /// QEMU's command line for it, empty where libvirt could not convert.
    pub native: String,
    /// Addresses of the cards that the planner chose.
    pub gpus: Vec<String>,
}

/// A registered key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyView {
    /// Id.
    pub id: String,
    /// `SHA256:...`
    pub fingerprint: String,
    /// Kind, such as ssh-ed25519.
    pub kind: String,
    /// Comment.
    pub comment: String,
    /// RFC 3339.
    pub added_at: String,
}

/// Keys of the one who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyList {
    /// Oldest first.
    pub keys: Vec<KeyView>,
}

/// Request to register a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddKey {
    /// One line as in `~/.ssh/id_ed25519.pub`.
    pub public_key: String,
}

/// One finding of the doctor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FindingView {
    /// Stable word, such as `kvm`.
    pub check: String,
    /// ok, note, warn or fail.
    pub level: String,
    /// What was found.
    pub message: String,
    /// Commands that mend it, one a line; empty where there is nothing to mend.
    pub fix: String,
}

/// Verdict of the doctor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DoctorReport {
    /// Findings.
    pub findings: Vec<FindingView>,
}

/// What answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VersionView {
    /// Version of gvm.
    pub version: String,
    /// Versions of what it stands on.
    pub parts: BTreeMap<String, String>,
    /// The fingerprint of the HTTPS listener's certificate, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub https_fingerprint: Option<String>,
}
