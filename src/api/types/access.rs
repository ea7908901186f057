//! How machines are reached, and what the SSH gateway asks.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Everything an SSH client needs for one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SshInfo {
    /// Machine's name.
    pub vm: String,
    /// Owner's login.
    pub owner: String,
    /// Login inside.
    pub guest_user: String,
    /// Host keys of the machine, `ssh-ed25519 AAAA...`, known since its making.
    pub host_keys: Vec<String>,
    /// Address on the members' network.
    pub address: String,
    /// The gateway.
    pub gateway: GatewayView,
}

/// How the SSH gateway is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GatewayView {
    /// Host name or address that members use.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Its host keys, `ssh-ed25519 AAAA...`; empty while it never ran.
    pub host_keys: Vec<String>,
}

/// The gateway asks: whose key is this?
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Identify {
    /// Kind and body, without comment.
    pub public_key: String,
    /// The certificate over this key, where one was shown; then it decides, and not who registered the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<CertificateFacts>,
}

/// What an OpenSSH certificate says that the gateway has found good.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CertificateFacts {
    /// Whom it names, in its order: the first who is a user here is meant.
    pub principals: Vec<String>,
    /// The name that its authority gave it.
    pub key_id: String,
    /// The number that its authority gave it.
    pub serial: u64,
    /// Fingerprint of its authority's key, `SHA256:...`.
    pub ca: String,
}

/// Answer to [`Identify`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Identified {
    /// Login.
    pub user: String,
    /// Id; a name may change.
    #[serde(default)]
    pub user_id: String,
}

/// What ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndedAccess {
    /// All of theirs.
    All,
    /// What was opened with one key.
    Key,
    /// Perhaps some of what leads to machines of others: another role, another team.
    Others,
}

/// Access that ended: whoever holds a connection open with it closes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevocationView {
    /// Whose.
    pub user_id: String,
    /// What.
    pub what: EndedAccess,
    /// The key's fingerprint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// How the gateway is going to use a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GatewayMode {
    /// Copies bytes: `ssh -J gateway VM`.
    Jump,
    /// Logs in to the machine itself: `ssh VM@gateway`.
    Terminate,
}

/// The gateway asks: may this key reach that machine, and where is it?
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResolveTarget {
    /// Kind and body of the key that was proven.
    pub public_key: String,
    /// The certificate over this key, where it was one that was proven.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<CertificateFacts>,
    /// `VM` or `VM.OWNER`.
    pub vm: String,
    /// Login inside, where the member named one.
    pub guest_user: Option<String>,
    /// How.
    pub mode: GatewayMode,
    /// Address of the client, for the record.
    pub peer: String,
}

/// Where a machine is. Refusals (`not_found`, `conflict` with the explanation of a stopped machine) are errors.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Target {
    /// Machine's id.
    pub vm_id: String,
    /// `name.owner`, for messages.
    pub label: String,
    /// Address and port of the guest's SSH server.
    pub address: String,
    /// Login inside.
    pub guest_user: String,
    /// Host keys that the guest must show.
    pub host_keys: Vec<String>,
    /// Private key to log in with, OpenSSH format; only in terminate mode, for this connection only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private_key: Option<String>,
}

// The private key must never reach a log through a derived Debug.
impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target")
            .field("label", &self.label)
            .field("address", &self.address)
            .field("guest_user", &self.guest_user)
            .field("private_key", &self.private_key.as_ref().map(|_| "<secret>"))
            .finish_non_exhaustive()
    }
}

/// The gateway tells how it is reached, once at its start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AnnounceGateway {
    /// Its public host keys.
    pub host_keys: Vec<String>,
    /// The port it listens on.
    pub port: u16,
}
