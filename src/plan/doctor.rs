//! Judges the facts of a host: what is well, what is not, and the command that mends it.
//!
//! ```text
//!   HostFacts, hypervisor, images --> basics.rs, upkeep.rs ----------+
//!   Discovery (cards)             --> passthrough.rs, cards.rs ------+--> [Finding] in the order of CHECKS
//!   Profile, admission's word     --> profile.rs: what one profile needs of all that
//! ```
//!
//! A host without a GPU lacks nothing: there what only GPUs need is not looked at, and one note says so.

mod basics;
mod cards;
mod passthrough;
pub mod profile;
mod sick;
mod upkeep;

use std::net::SocketAddr;

use crate::model::card::Discovery;
use crate::model::host::{Accelerator, HostFacts, HypervisorVersions};
use crate::model::network::NetworkSpec;
use crate::plan::inventory::Entry;

/// The words of all checks, in the order in which they are told. `docs/runbook.md` explains each.
pub const CHECKS: [&str; 43] = [
    "profile",
    "root",
    "kvm",
    "libvirt",
    "qemu",
    "programs",
    "firmware",
    "tpm",
    "sfq",
    "space",
    "memory",
    "hugepages",
    "numa",
    "clock",
    "permissions",
    "resolver",
    "subnet",
    "group",
    "gateway-user",
    "gateway-port",
    "images",
    "domains",
    "gpus",
    "iommu",
    "acs-override",
    "vfio",
    "kernel-flags",
    "framebuffer",
    "nouveau",
    "secure-boot",
    "gpu-services",
    "libvirt-gpu",
    "pci",
    "nvml",
    "nvswitch",
    "gpu-holders",
    "kernel-log",
    "gpu-managed",
    "gpu",
    "shape",
    "quota",
    "capacity",
    "gpu-request",
];

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// Something works worse than it could.
    Warn,
    /// Something does not work.
    Fail,
}

impl Level {
    /// One word for people and programs.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Stable word, one of [`CHECKS`].
    pub check: &'static str,
    /// How bad.
    pub level: Level,
    /// What was found.
    pub message: String,
    /// Command that mends it, where there is something to mend.
    pub fix: Option<String>,
}

/// Everything that is judged.
#[derive(Clone, Copy, Debug)]
pub struct Patient<'a> {
    /// The host.
    pub host: &'a HostFacts,
    /// What runs guest code.
    pub accelerator: &'a Accelerator,
    /// The hypervisor, or why it does not answer.
    pub hypervisor: Result<&'a HypervisorVersions, &'a str>,
    /// The cards, or why they could not be looked at.
    pub gpus: Result<&'a Discovery, &'a str>,
    /// The cards with what is remembered and decided of them, those that are gone included.
    pub known_gpus: &'a [Entry],
    /// The members' network.
    pub network: &'a NetworkSpec,
    /// The group that may use the socket, where one is configured.
    pub socket_group: Option<&'a str>,
    /// The gateway's account.
    pub gateway_user: &'a str,
    /// Where the gateway is to listen.
    pub gateway_listen: SocketAddr,
    /// Images in the catalogue.
    pub images: usize,
    /// Those of them whose files are not there.
    pub lost_images: &'a [String],
    /// Domains that look like ours and belong to no machine.
    pub strays: &'a [String],
}

/// Judges everything, in the order in which a host is set up.
pub fn examine(patient: &Patient<'_>) -> Vec<Finding> {
    let host = patient.host;
    let mut findings = vec![basics::root(host), basics::kvm(patient), basics::libvirt(patient.hypervisor)];
    findings.push(basics::qemu(patient));
    findings.extend(basics::programs(host));
    findings.extend([basics::firmware(host), basics::sfq(host), basics::space(host), basics::memory(host)]);
    findings.extend([upkeep::hugepages(patient), upkeep::numa(patient), upkeep::clock(host)]);
    findings.extend(upkeep::permissions(host));
    findings.extend([basics::resolver(host), basics::overlap(patient)]);
    findings.extend(patient.socket_group.map(|group| basics::account_group(host, group)));
    findings.extend([basics::gateway_user(host, patient.gateway_user), upkeep::gateway_port(patient)]);
    findings.extend([basics::images(patient), basics::strays(patient.strays)]);
    findings.extend(cards::overview(patient));
    if has_gpus(patient) {
        findings.extend(passthrough::ground(patient));
    }
    findings.extend(cards::around(patient));
    findings.extend(cards::each(patient));
    findings.extend(cards::decided(patient.known_gpus));
    findings
}

/// True where there is a card, whatever state it is in.
fn has_gpus(patient: &Patient<'_>) -> bool {
    patient.gpus.is_ok_and(|found| !found.cards.is_empty())
}

fn ok(check: &'static str, message: impl Into<String>) -> Finding {
    Finding { check, level: Level::Ok, message: message.into(), fix: None }
}

fn bad(check: &'static str, level: Level, message: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding { check, level, message: message.into(), fix: Some(fix.into()) }
}

/// `1 card`, `2 cards`.
fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

#[cfg(test)]
#[path = "doctor_tests.rs"]
mod tests;
