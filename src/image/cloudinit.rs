//! What a guest is told at its boots: the files of the NoCloud seed. Pure: the same input gives the same bytes.
//!
//! ```text
//!   meta-data        instance-id is the machine's id for life: a restart is never a first boot
//!   network-config   version 2: the card is found by its hardware address and then called eth0
//!   user-data        MIME: gvm's part, the profile's, the member's, in this order
//!   gvm-*            the same facts in plain files, for guests without cloud-init (the `tiny` image)
//! ```
//!
//! gvm's part is rendered from data as JSON, which is YAML; nothing of a member is ever pasted into it. cloud-init
//! merges the parts in order. Profile and member carry a merge rule by which lists append and what gvm has said
//! stays (`dict(no_replace)`), so that the user, the keys and the host key cannot be lost by a later part. A rule
//! inside a member's document would win over that; [`super::user_data`] refuses it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::sshkey::SshKey;
use crate::model::access::PublicKey;
use crate::model::id::VmId;
use crate::model::name::{GuestUser, VmName};
use crate::model::network::MacAddress;

/// Starts the report and prepares sshd; shell, run as `sh -c BOOT gvm REPORT`.
const BOOT: &str = include_str!("../../templates/cloud-init/boot.sh");

/// Runs beside cloud-init and speaks on the serial line.
const REPORT: &str = include_str!("../../templates/cloud-init/report.sh");

/// How a later part joins what stands already: lists append, everything else that is there stays.
const MERGE: &str = "dict(no_replace,recurse_list)+list(append)+str()";

/// The top-level keys of cloud-init whose values gvm sets; another value for one of them has no effect. Lists
/// (`users`, `bootcmd`) are not among them: they are joined.
pub const FIXED_KEYS: [&str; 9] = [
    "hostname",
    "preserve_hostname",
    "manage_etc_hosts",
    "ssh_keys",
    "ssh_deletekeys",
    "ssh_pwauth",
    "disable_root",
    "growpart",
    "resize_rootfs",
];

/// Everything that a seed is made of.
#[derive(Clone, Debug)]
pub struct SeedSpec {
    /// The machine.
    pub vm: VmId,
    /// Its host name: the name it had at create.
    pub hostname: VmName,
    /// Its network card.
    pub mac: MacAddress,
    /// The login that is made.
    pub user: GuestUser,
    /// Who may log in: the member's keys and the gateway's key for this machine.
    pub authorized_keys: Vec<PublicKey>,
    /// The host key, known to the gateway before the first boot.
    pub host_key: SshKey,
    /// What the profile adds, a checked document.
    pub profile_user_data: Option<String>,
    /// What the member adds, a checked document.
    pub user_data: Option<String>,
}

/// One file of a seed.
#[derive(Clone, PartialEq, Eq)]
pub struct SeedFile {
    /// Its name in the root folder.
    pub name: &'static str,
    /// Its content; may hold a private key, so there is no way to print it by accident.
    pub content: Vec<u8>,
}

impl std::fmt::Debug for SeedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SeedFile({}, {} bytes)", self.name, self.content.len())
    }
}

/// The files of a seed, in a fixed order.
pub fn render(spec: &SeedSpec) -> Vec<SeedFile> {
    let keys: String = spec.authorized_keys.iter().map(|key| key_line(key) + "\n").collect();
    let file = |name, content: String| SeedFile { name, content: content.into_bytes() };
    vec![
        file("meta-data", document(&meta_data(spec))),
        file("network-config", document(&network_config(spec))),
        file("user-data", user_data(spec)),
        file("gvm-hostname", format!("{}\n", spec.hostname)),
        file("gvm-user", format!("{}\n", spec.user)),
        file("gvm-authorized-keys", keys),
        file("gvm-host-ed25519", spec.host_key.private.expose().clone()),
    ]
}

/// A key on one line. Its comment is reduced to ASCII: YAML forbids some characters that a comment may have, and one
/// of them would make cloud-init drop the whole document.
fn key_line(key: &PublicKey) -> String {
    let comment: String =
        key.comment().chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect();
    format!("{} {comment}", key.identity()).trim_end().to_owned()
}

/// A value as a YAML document that is JSON. Equal values give equal bytes.
fn document(value: &Value) -> String {
    format!("{value:#}\n")
}

fn meta_data(spec: &SeedSpec) -> Value {
    json!({ "instance-id": spec.vm.to_string(), "local-hostname": spec.hostname.as_str() })
}

fn network_config(spec: &SeedSpec) -> Value {
    json!({
        "version": 2,
        "ethernets": {
            // Only a label: the card is found by its address.
            "gvm": {
                "match": { "macaddress": spec.mac.to_string() },
                // The card is given a name, none is guessed. Without it cloud-init 22.4 (Debian 12) writes files for
                // ifupdown and networkd that look for a card called like the label.
                "set-name": "eth0",
                "dhcp4": true,
                // Clones of an image may share a machine id, from which the DHCP client id is made by default.
                "dhcp-identifier": "mac",
            },
        },
    })
}

fn gvm_part(spec: &SeedSpec) -> Value {
    let keys: Vec<String> = spec.authorized_keys.iter().map(key_line).collect();
    json!({
        "hostname": spec.hostname.as_str(),
        "preserve_hostname": false,
        // Only makes sure of the 127.0.1.1 line, without which sudo waits for DNS.
        "manage_etc_hosts": "localhost",
        "users": [{
            "name": spec.user.as_str(),
            "gecos": "gvm member",
            "shell": "/bin/bash",
            "lock_passwd": true,
            // A text and not a list: the schema of cloud-init 22.4 (Debian 12) knows only that.
            "sudo": "ALL=(ALL) NOPASSWD:ALL",
            "ssh_authorized_keys": keys,
        }],
        "disable_root": true,
        "ssh_pwauth": false,
        // Keys that were baked into an image are known to everybody who has the image.
        "ssh_deletekeys": true,
        "ssh_keys": {
            "ed25519_private": spec.host_key.private.expose(),
            "ed25519_public": spec.host_key.public.to_string(),
        },
        "growpart": { "mode": "auto", "devices": ["/"], "ignore_growroot_disabled": false },
        "resize_rootfs": true,
        "bootcmd": [["sh", "-c", BOOT, "gvm", REPORT]],
    })
}

fn user_data(spec: &SeedSpec) -> String {
    let own = format!("#cloud-config\n{}", document(&gvm_part(spec)));
    let mut parts = vec![("gvm.cfg", own.as_str())];
    parts.extend(spec.profile_user_data.as_deref().map(|text| ("profile", text)));
    parts.extend(spec.user_data.as_deref().map(|text| ("member", text)));

    // All bodies are base64, in which no `-` occurs: the boundary cannot be met inside.
    let mut digest = Sha256::new();
    parts.iter().for_each(|(_, text)| digest.update(text));
    let boundary = format!("gvm-{}", hex::encode(digest.finalize()).get(..32).unwrap_or_default());
    let mut out = format!("Content-Type: multipart/mixed; boundary=\"{boundary}\"\nMIME-Version: 1.0\n\n");
    for (name, text) in parts {
        out.push_str(&format!(
            "--{boundary}\nContent-Type: {}; charset=\"utf-8\"\nMIME-Version: 1.0\nMerge-Type: {MERGE}\n\
             Content-Transfer-Encoding: base64\nContent-Disposition: attachment; filename=\"{name}\"\n\n",
            content_type(text),
        ));
        let body = STANDARD.encode(text);
        let mut rest = body.as_str();
        while !rest.is_empty() {
            let (line, next) = rest.split_at(rest.len().min(76));
            out.push_str(line);
            out.push('\n');
            rest = next;
        }
    }
    out.push_str(&format!("--{boundary}--\n"));
    out
}

/// The MIME type by which cloud-init picks its handler; the first line decides, as in cloud-init itself.
fn content_type(text: &str) -> &'static str {
    match text.lines().next().unwrap_or_default() {
        line if line.starts_with("#!") => "text/x-shellscript",
        line if line.starts_with("## template: jinja") => "text/jinja2",
        line if line.starts_with("#cloud-boothook") => "text/cloud-boothook",
        _ => "text/cloud-config",
    }
}

#[cfg(test)]
#[path = "cloudinit_tests.rs"]
pub(super) mod tests;
