//! Judges the facts of a host: what is well, what is not, and the command that mends it.

use crate::model::host::{Accelerator, HostFacts, HypervisorVersions, Resolver, Version};
use crate::model::network::NetworkSpec;
use crate::model::units::Mib;

use super::subnet;

/// libvirt before this lacks what our domain descriptions use.
const MIN_LIBVIRT: Version = Version(9, 0, 0);

/// The oldest QEMU that is tried (Debian 12).
const MIN_QEMU: Version = Version(7, 2, 0);

/// Below this free space nothing new should be made.
const LITTLE_SPACE: Mib = Mib(2 << 10);

/// Below this free space an administrator should look.
const SOME_SPACE: Mib = Mib(20 << 10);

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// Something works worse than it could.
    Warning,
    /// Something does not work.
    Fault,
}

impl Level {
    /// One word for people and programs.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Fault => "fault",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Stable word, such as `kvm`.
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
    /// The members' network.
    pub network: &'a NetworkSpec,
    /// The group that may use the socket, where one is configured.
    pub socket_group: Option<&'a str>,
    /// The gateway's account.
    pub gateway_user: &'a str,
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
    let mut findings = vec![root(host), kvm(patient.accelerator), libvirt(patient.hypervisor), qemu(patient)];
    findings.extend(programs(host));
    findings.extend([firmware(host), sfq(host), space(host), memory(host), resolver(host), overlap(patient)]);
    findings.extend(patient.socket_group.map(|group| account_group(host, group)));
    findings.extend([gateway_user(host, patient.gateway_user), images(patient), strays(patient.strays)]);
    findings
}

fn ok(check: &'static str, message: impl Into<String>) -> Finding {
    Finding { check, level: Level::Ok, message: message.into(), fix: None }
}

fn bad(check: &'static str, level: Level, message: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding { check, level, message: message.into(), fix: Some(fix.into()) }
}

fn root(host: &HostFacts) -> Finding {
    match host.is_root {
        true => ok("root", "the manager runs as root"),
        false => bad(
            "root",
            Level::Warning,
            "the manager does not run as root: disks cannot be handed to QEMU's user, network limits cannot be set",
            "systemctl restart gvm",
        ),
    }
}

fn kvm(accelerator: &Accelerator) -> Finding {
    match accelerator {
        Accelerator::Kvm => ok("kvm", "hardware virtualisation works: an ordinary kernel came up on it"),
        Accelerator::Emulation { why } => bad(
            "kvm",
            Level::Warning,
            format!("machines run in software emulation, many times slower: {why}"),
            kvm_fix(why),
        ),
    }
}

/// By the words of the reason: there are too many reasons of the kernel's and of QEMU's for a kind each.
fn kvm_fix(why: &str) -> &'static str {
    if why.contains("manager.accelerator") {
        "sed -i '/^accelerator/d' /etc/gvm/gvm.toml; systemctl restart gvm"
    } else if why.contains("not proven") {
        "gvm image import $(vm-images/build.sh tiny)"
    } else {
        "modprobe kvm_intel || modprobe kvm_amd; systemctl restart gvm"
    }
}

fn libvirt(hypervisor: Result<&HypervisorVersions, &str>) -> Finding {
    match hypervisor {
        Err(why) => {
            bad("libvirt", Level::Fault, format!("libvirt does not answer: {why}"), "systemctl enable --now libvirtd")
        }
        Ok(found) if found.libvirt < MIN_LIBVIRT => bad(
            "libvirt",
            Level::Fault,
            format!("libvirt {} is too old; {MIN_LIBVIRT} or newer is needed", found.libvirt),
            "apt install libvirt-daemon-system",
        ),
        Ok(found) => ok("libvirt", format!("libvirt {} answers at {}", found.libvirt, found.uri)),
    }
}

fn qemu(patient: &Patient<'_>) -> Finding {
    let version_of = |name: &str| patient.host.programs.get(name).and_then(Option::as_ref).and_then(|p| p.version);
    let Some(qemu) = version_of("qemu-system-x86_64").or(patient.hypervisor.ok().map(|h| h.qemu)) else {
        return bad("qemu", Level::Fault, "QEMU is not installed", "apt install qemu-system-x86");
    };
    if qemu < MIN_QEMU {
        let message = format!("QEMU {qemu} is too old; {MIN_QEMU} or newer is needed");
        return bad("qemu", Level::Fault, message, "apt install qemu-system-x86");
    }
    match version_of("qemu-img") {
        None => bad("qemu", Level::Fault, "qemu-img is not installed", "apt install qemu-utils"),
        Some(img) if img.0 != qemu.0 => bad(
            "qemu",
            Level::Warning,
            format!("QEMU is {qemu} but qemu-img is {img}; packages of two releases are mixed"),
            "apt install qemu-system-x86 qemu-utils",
        ),
        Some(_) => ok("qemu", format!("QEMU {qemu}")),
    }
}

/// Programs besides QEMU: the word, what is lost without it, how bad that is, the package.
const PROGRAMS: [(&str, &str, Level, &str); 8] = [
    ("dnsmasq", "machines get no addresses", Level::Fault, "dnsmasq-base"),
    ("nft", "machines are not kept apart on the network", Level::Fault, "nftables"),
    ("tc", "network limits cannot be set", Level::Fault, "iproute2"),
    ("ip", "networks of this host cannot be looked at", Level::Fault, "iproute2"),
    ("prlimit", "images cannot be imported", Level::Fault, "util-linux"),
    ("cp", "images cannot be imported", Level::Fault, "coreutils"),
    ("sha256sum", "images cannot be imported", Level::Fault, "coreutils"),
    ("swtpm", "machines with a TPM cannot be started", Level::Note, "swtpm swtpm-tools"),
];

fn programs(host: &HostFacts) -> Vec<Finding> {
    let found = |name: &str| host.programs.get(name).and_then(Option::as_ref);
    let missing = PROGRAMS.iter().filter(|(name, ..)| found(name).is_none());
    let findings: Vec<Finding> = missing
        .map(|(name, loss, level, package)| {
            bad("programs", *level, format!("{name} is not installed: {loss}"), format!("apt install {package}"))
        })
        .collect();
    if findings.is_empty() { vec![ok("programs", "all programs that gvm runs are installed")] } else { findings }
}

fn firmware(host: &HostFacts) -> Finding {
    let fix = "apt install ovmf";
    match (host.firmware.has_plain, host.firmware.has_secure_boot) {
        (true, true) => ok("firmware", "UEFI firmware with and without secure boot is installed"),
        (true, false) => {
            bad("firmware", Level::Note, "no firmware with secure boot: profiles that want it cannot be started", fix)
        }
        (false, _) => {
            bad("firmware", Level::Fault, "no UEFI firmware: machines that boot by their disk cannot be started", fix)
        }
    }
}

fn sfq(host: &HostFacts) -> Finding {
    let fix = "modprobe sch_sfq";
    match host.has_sfq {
        Some(true) => ok("sfq", "the kernel has the SFQ packet scheduler"),
        Some(false) => bad(
            "sfq",
            Level::Note,
            "this kernel has no SFQ packet scheduler (CONFIG_NET_SCH_SFQ), which libvirt's network limits need: \
             a machine with net_in or net_out does not start here",
            fix,
        ),
        None => bad("sfq", Level::Note, "it could not be found out whether the kernel has SFQ", fix),
    }
}

fn space(host: &HostFacts) -> Finding {
    let Some(space) = &host.state_space else {
        return bad("space", Level::Warning, "the space for machines could not be looked at", "df -h");
    };
    let path = space.path.display();
    let message = format!("{} of {} free at {path}", space.free, space.total);
    let fix = format!("df -h {path}; gvm image ls; gvm ls --all");
    match space.free {
        free if free < LITTLE_SPACE => {
            bad("space", Level::Fault, format!("{message}: writing machines will halt"), fix)
        }
        free if free < SOME_SPACE => bad("space", Level::Warning, message, fix),
        _ => ok("space", message),
    }
}

fn memory(host: &HostFacts) -> Finding {
    let message = format!("{} of {} memory available", host.memory_available, host.memory_total);
    match host.memory_available < Mib(1 << 10) {
        true => bad("memory", Level::Warning, message, "gvm ls --all; free -m"),
        false => ok("memory", message),
    }
}

fn resolver(host: &HostFacts) -> Finding {
    let loss = "the members' network does not start without it";
    match &host.resolver {
        Resolver::Present => ok("resolver", "/etc/resolv.conf is there"),
        Resolver::Unknown => {
            bad("resolver", Level::Note, "/etc/resolv.conf could not be looked at", "ls -lL /etc/resolv.conf")
        }
        Resolver::Missing => bad(
            "resolver",
            Level::Fault,
            format!("there is no /etc/resolv.conf: {loss}"),
            "echo 'nameserver ADDRESS-OF-YOUR-DNS-SERVER' > /etc/resolv.conf",
        ),
        Resolver::Dangling(target) => bad(
            "resolver",
            Level::Fault,
            format!("/etc/resolv.conf points at {}, which is not there: {loss}", target.display()),
            match target.to_string_lossy().contains("systemd/resolve") {
                true => "systemctl enable --now systemd-resolved",
                false => "rm /etc/resolv.conf; echo 'nameserver ADDRESS-OF-YOUR-DNS-SERVER' > /etc/resolv.conf",
            },
        ),
    }
}

fn overlap(patient: &Patient<'_>) -> Finding {
    let (network, routes) = (patient.network, &patient.host.routes);
    let Some(route) = subnet::conflict(network, routes) else {
        return ok("subnet", format!("{} collides with no network of this host", network.subnet));
    };
    let via = if route.device.is_empty() { String::new() } else { format!(" on {}", route.device) };
    let message = format!("the members' network {} collides with {}/{}{via}", network.subnet, route.base, route.prefix);
    let fix = match subnet::free(network, routes) {
        Some(free) => format!("set `subnet = \"{free}\"` under [network] in /etc/gvm/gvm.toml"),
        None => "set a free `subnet` under [network] in /etc/gvm/gvm.toml".to_owned(),
    };
    bad("subnet", Level::Fault, message, fix)
}

fn account_group(host: &HostFacts, group: &str) -> Finding {
    match host.groups.get(group) {
        Some(true) => ok("group", format!("the group {group} exists")),
        _ => bad(
            "group",
            Level::Warning,
            format!("there is no group {group}: only root may use the manager's socket"),
            format!("groupadd --system {group}"),
        ),
    }
}

fn gateway_user(host: &HostFacts, user: &str) -> Finding {
    match host.users.get(user) {
        Some(true) => ok("gateway-user", format!("the gateway's account {user} exists")),
        _ => bad(
            "gateway-user",
            Level::Warning,
            format!("there is no account {user}: the SSH gateway cannot ask the manager"),
            format!("useradd --system --no-create-home --shell /usr/sbin/nologin {user}"),
        ),
    }
}

fn images(patient: &Patient<'_>) -> Finding {
    if let Some(first) = patient.lost_images.first() {
        return bad(
            "images",
            Level::Fault,
            format!("the files of these images are gone: {}", patient.lost_images.join(", ")),
            format!("gvm image rm {first}; import it anew, or put its folder back from a backup"),
        );
    }
    match patient.images {
        0 => bad("images", Level::Note, "there is no image yet", "gvm image import $(vm-images/build.sh tiny)"),
        1 => ok("images", "1 image in the catalogue"),
        count => ok("images", format!("{count} images in the catalogue")),
    }
}

fn strays(names: &[String]) -> Finding {
    let Some(first) = names.first() else { return ok("domains", "every domain of gvm belongs to a machine") };
    let message = format!("domains that look like gvm's and belong to no machine: {}", names.join(", "));
    bad("domains", Level::Warning, message, format!("virsh dumpxml {first}, then remove it by hand"))
}

#[cfg(test)]
#[path = "doctor_tests.rs"]
mod tests;
