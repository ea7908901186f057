//! Facts of a host that decisions are made of.

pub mod kernel;
pub mod upkeep;

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::units::Mib;

/// What runs guest code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Accelerator {
    /// Hardware virtualisation, proven by running an ordinary kernel.
    Kvm,
    /// Software emulation: correct but many times slower.
    Emulation {
        /// Why KVM cannot be used, in plain words.
        why: String,
    },
}

impl Accelerator {
    /// True for KVM.
    pub const fn is_kvm(&self) -> bool {
        matches!(self, Self::Kvm)
    }
}

/// Capacity for admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Memory of the host.
    pub memory: Mib,
    /// Memory kept for the host itself.
    pub reserve: Mib,
    /// Logical CPUs.
    pub cpus: u32,
    /// Physical address bits of the CPU; `None` where the kernel does not say.
    pub phys_bits: Option<u32>,
}

/// Everything about a host that the doctor judges. Read by `host::facts`, never stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// Memory of the host.
    pub memory_total: Mib,
    /// Memory that could be used now without swapping.
    pub memory_available: Mib,
    /// Logical CPUs that are online.
    pub cpus: u32,
    /// True where the manager runs as root.
    pub is_root: bool,
    /// The programs asked about; `None` where one is not installed.
    pub programs: BTreeMap<String, Option<Program>>,
    /// Whether the kernel has the SFQ packet scheduler, which libvirt's `<bandwidth>` needs; `None` where it could
    /// not be found out.
    pub has_sfq: Option<bool>,
    /// The host's name resolution.
    pub resolver: Resolver,
    /// Space where the state folder lies.
    pub state_space: Option<DiskSpace>,
    /// Networks that the host reaches or has an address in.
    pub routes: Vec<Route>,
    /// UEFI firmware for the machines.
    pub firmware: UefiFirmware,
    /// Unix groups asked about, with whether they exist.
    pub groups: BTreeMap<String, bool>,
    /// Users asked about, with whether they exist.
    pub users: BTreeMap<String, bool>,
    /// What the kernel has for giving devices away.
    pub kernel: kernel::KernelFacts,
    /// What an administrator keeps in order.
    pub upkeep: upkeep::UpkeepFacts,
}

/// What the hypervisor says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HypervisorVersions {
    /// Connection URI.
    pub uri: String,
    /// libvirt's version.
    pub libvirt: Version,
    /// QEMU's version as libvirt knows it.
    pub qemu: Version,
}

/// An installed program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Where it is.
    pub path: PathBuf,
    /// Its version where it says one.
    pub version: Option<Version>,
}

/// A version of three numbers; what follows them is of no interest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl Version {
    /// The first `number.number[.number]` in a text.
    pub fn find(text: &str) -> Option<Self> {
        text.split(|c: char| !(c.is_ascii_digit() || c == '.')).find_map(|word| {
            let mut numbers = word.split('.').map(str::parse::<u32>);
            match (numbers.next(), numbers.next(), numbers.next()) {
                (Some(Ok(a)), Some(Ok(b)), Some(Ok(c))) => Some(Self(a, b, c)),
                (Some(Ok(a)), Some(Ok(b)), _) => Some(Self(a, b, 0)),
                _ => None,
            }
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// How the host resolves names; dnsmasq does not start without it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Resolver {
    /// Could not be looked at.
    #[default]
    Unknown,
    /// `/etc/resolv.conf` is a file.
    Present,
    /// There is no `/etc/resolv.conf`.
    Missing,
    /// It is a link to a file that is not there.
    Dangling(PathBuf),
}

/// Space of a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// The folder asked about.
    pub path: PathBuf,
    /// Size of its file system.
    pub total: Mib,
    /// What may still be written.
    pub free: Mib,
}

/// An IPv4 network that the host knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// First address.
    pub base: Ipv4Addr,
    /// Prefix length; 32 for one address.
    pub prefix: u8,
    /// Device; empty for networks that lead nowhere.
    pub device: String,
}

/// UEFI firmware described in QEMU's firmware folders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UefiFirmware {
    /// One without secure boot.
    pub has_plain: bool,
    /// One with enrolled keys.
    pub has_secure_boot: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        for (text, version) in [
            ("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)", Some(Version(10, 0, 2))),
            ("Dnsmasq version 2.90  Copyright (c) 2000-2024", Some(Version(2, 90, 0))),
            ("TPM emulator version 0.7.1, Copyright", Some(Version(0, 7, 1))),
            ("nftables v1.0.6 (Lester Gooch #5)", Some(Version(1, 0, 6))),
            ("iproute2-6.1.0, libbpf 1.1.0", Some(Version(6, 1, 0))),
            ("no number", None),
            ("build 12", None),
        ] {
            assert_eq!(Version::find(text), version, "{text}");
        }
        assert!(Version(9, 0, 0) > Version(8, 2, 5));
    }
}
