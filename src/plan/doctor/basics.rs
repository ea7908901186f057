//! What every host of machines needs, in the order in which it is set up.

use super::{Finding, Level, Patient, bad, ok};
use crate::model::host::kernel::{CpuVendor, ModuleState};
use crate::model::host::{Accelerator, HostFacts, HypervisorVersions, Resolver, Version};
use crate::model::units::Mib;
use crate::plan::subnet;

/// libvirt before this lacks what our domain descriptions use.
const MIN_LIBVIRT: Version = Version(9, 0, 0);

/// The oldest QEMU that is tried (Debian 12).
const MIN_QEMU: Version = Version(7, 2, 0);

/// Below this free space nothing new should be made.
const LITTLE_SPACE: Mib = Mib(2 << 10);

/// Below this free space an administrator should look.
const SOME_SPACE: Mib = Mib(20 << 10);

pub(super) fn root(host: &HostFacts) -> Finding {
    match host.is_root {
        true => ok("root", "the manager runs as root"),
        false => bad(
            "root",
            Level::Warn,
            "the manager does not run as root: disks cannot be handed to QEMU's user, network limits cannot be set",
            "systemctl restart gvm",
        ),
    }
}

pub(super) fn kvm(patient: &Patient<'_>) -> Finding {
    match patient.accelerator {
        Accelerator::Kvm => ok("kvm", "hardware virtualisation works: an ordinary kernel came up on it"),
        Accelerator::Emulation { why } => bad(
            "kvm",
            Level::Warn,
            format!("machines run in software emulation, many times slower: {why}"),
            kvm_fix(why, patient.host),
        ),
    }
}

/// By the words of the reason: there are too many reasons of the kernel's and of QEMU's for a kind each.
fn kvm_fix(why: &str, host: &HostFacts) -> &'static str {
    if why.contains("manager.accelerator") {
        return "sed -i '/^accelerator/d' /etc/gvm/gvm.toml; systemctl restart gvm";
    }
    if why.contains("not proven") {
        return "gvm image import $(vm-images/build.sh tiny)";
    }
    if why.contains("group kvm") {
        return "usermod -aG kvm USER-OF-THE-MANAGER; systemctl restart gvm";
    }
    match (host.kernel.cpu, host.kernel.kvm) {
        (_, ModuleState::Loaded) => "dmesg | grep -i kvm; systemctl restart gvm",
        (CpuVendor::Intel, _) => {
            "modprobe kvm_intel && systemctl restart gvm  # refused? switch on VT-x in the firmware setup"
        }
        (CpuVendor::Amd, _) => {
            "modprobe kvm_amd && systemctl restart gvm  # refused? switch on SVM in the firmware setup"
        }
        (CpuVendor::Other, _) => "modprobe kvm_intel || modprobe kvm_amd; systemctl restart gvm",
    }
}

pub(super) fn libvirt(hypervisor: Result<&HypervisorVersions, &str>) -> Finding {
    match hypervisor {
        Err(why) => {
            bad("libvirt", Level::Fail, format!("libvirt does not answer: {why}"), "systemctl enable --now libvirtd")
        }
        Ok(found) if found.libvirt < MIN_LIBVIRT => bad(
            "libvirt",
            Level::Fail,
            format!("libvirt {} is too old; {MIN_LIBVIRT} or newer is needed", found.libvirt),
            "apt install libvirt-daemon-system",
        ),
        Ok(found) => ok("libvirt", format!("libvirt {} answers at {}", found.libvirt, found.uri)),
    }
}

pub(super) fn qemu(patient: &Patient<'_>) -> Finding {
    let version_of = |name: &str| patient.host.programs.get(name).and_then(Option::as_ref).and_then(|p| p.version);
    let Some(qemu) = version_of("qemu-system-x86_64").or(patient.hypervisor.ok().map(|h| h.qemu)) else {
        return bad("qemu", Level::Fail, "QEMU is not installed", "apt install qemu-system-x86");
    };
    if qemu < MIN_QEMU {
        let message = format!("QEMU {qemu} is too old; {MIN_QEMU} or newer is needed");
        return bad("qemu", Level::Fail, message, "apt install qemu-system-x86");
    }
    match version_of("qemu-img") {
        None => bad("qemu", Level::Fail, "qemu-img is not installed", "apt install qemu-utils"),
        Some(img) if img.0 != qemu.0 => bad(
            "qemu",
            Level::Warn,
            format!("QEMU is {qemu} but qemu-img is {img}; packages of two releases are mixed"),
            "apt install qemu-system-x86 qemu-utils",
        ),
        Some(_) => ok("qemu", format!("QEMU {qemu}")),
    }
}

/// Programs besides QEMU: the word, what is lost without it, how bad that is, the package.
pub(super) const PROGRAMS: [(&str, &str, Level, &str); 8] = [
    ("dnsmasq", "machines get no addresses", Level::Fail, "dnsmasq-base"),
    ("nft", "machines are not kept apart on the network", Level::Fail, "nftables"),
    ("tc", "network limits cannot be set", Level::Fail, "iproute2"),
    ("ip", "networks of this host cannot be looked at", Level::Fail, "iproute2"),
    ("prlimit", "images cannot be imported", Level::Fail, "util-linux"),
    ("cp", "images cannot be imported", Level::Fail, "coreutils"),
    ("sha256sum", "images cannot be imported", Level::Fail, "coreutils"),
    ("swtpm", "machines with a TPM cannot be started", Level::Note, "swtpm swtpm-tools"),
];

pub(super) fn programs(host: &HostFacts) -> Vec<Finding> {
    let found = |name: &str| host.programs.get(name).and_then(Option::as_ref);
    let missing = PROGRAMS.iter().filter(|(name, ..)| found(name).is_none());
    let findings: Vec<Finding> = missing
        .map(|(name, loss, level, package)| {
            bad("programs", *level, format!("{name} is not installed: {loss}"), format!("apt install {package}"))
        })
        .collect();
    if findings.is_empty() { vec![ok("programs", "all programs that gvm runs are installed")] } else { findings }
}

pub(super) fn firmware(host: &HostFacts) -> Finding {
    let fix = "apt install ovmf";
    match (host.firmware.has_plain, host.firmware.has_secure_boot) {
        (true, true) => ok("firmware", "UEFI firmware with and without secure boot is installed"),
        (true, false) => {
            bad("firmware", Level::Note, "no firmware with secure boot: profiles that want it cannot be started", fix)
        }
        (false, _) => {
            bad("firmware", Level::Fail, "no UEFI firmware: machines that boot by their disk cannot be started", fix)
        }
    }
}

pub(super) fn sfq(host: &HostFacts) -> Finding {
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

pub(super) fn space(host: &HostFacts) -> Finding {
    let Some(space) = &host.state_space else {
        return bad("space", Level::Warn, "the space for machines could not be looked at", "df -h");
    };
    let path = space.path.display();
    let message = format!("{} of {} free at {path}", space.free, space.total);
    let fix = format!("df -h {path}; gvm image ls; gvm ls --all");
    match space.free {
        free if free < LITTLE_SPACE => bad("space", Level::Fail, format!("{message}: writing machines will halt"), fix),
        free if free < SOME_SPACE => bad("space", Level::Warn, message, fix),
        _ => ok("space", message),
    }
}

pub(super) fn memory(host: &HostFacts) -> Finding {
    let message = format!("{} of {} memory available", host.memory_available, host.memory_total);
    match host.memory_available < Mib(1 << 10) {
        true => bad("memory", Level::Warn, message, "gvm ls --all; free -m"),
        false => ok("memory", message),
    }
}

pub(super) fn resolver(host: &HostFacts) -> Finding {
    let loss = "the members' network does not start without it";
    match &host.resolver {
        Resolver::Present => ok("resolver", "/etc/resolv.conf is there"),
        Resolver::Unknown => {
            bad("resolver", Level::Note, "/etc/resolv.conf could not be looked at", "ls -lL /etc/resolv.conf")
        }
        Resolver::Missing => bad(
            "resolver",
            Level::Fail,
            format!("there is no /etc/resolv.conf: {loss}"),
            "echo 'nameserver ADDRESS-OF-YOUR-DNS-SERVER' > /etc/resolv.conf",
        ),
        Resolver::Dangling(target) => bad(
            "resolver",
            Level::Fail,
            format!("/etc/resolv.conf points at {}, which is not there: {loss}", target.display()),
            match target.to_string_lossy().contains("systemd/resolve") {
                true => "systemctl enable --now systemd-resolved",
                false => "rm /etc/resolv.conf; echo 'nameserver ADDRESS-OF-YOUR-DNS-SERVER' > /etc/resolv.conf",
            },
        ),
    }
}

pub(super) fn overlap(patient: &Patient<'_>) -> Finding {
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
    bad("subnet", Level::Fail, message, fix)
}

pub(super) fn account_group(host: &HostFacts, group: &str) -> Finding {
    match host.groups.get(group) {
        Some(true) => ok("group", format!("the group {group} exists")),
        _ => bad(
            "group",
            Level::Warn,
            format!("there is no group {group}: only root may use the manager's socket"),
            format!("groupadd --system {group}"),
        ),
    }
}

pub(super) fn gateway_user(host: &HostFacts, user: &str) -> Finding {
    match host.users.get(user) {
        Some(true) => ok("gateway-user", format!("the gateway's account {user} exists")),
        _ => bad(
            "gateway-user",
            Level::Warn,
            format!("there is no account {user}: the SSH gateway cannot ask the manager"),
            format!("useradd --system --no-create-home --shell /usr/sbin/nologin {user}"),
        ),
    }
}

pub(super) fn images(patient: &Patient<'_>) -> Finding {
    if let Some(first) = patient.lost_images.first() {
        return bad(
            "images",
            Level::Fail,
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

pub(super) fn strays(names: &[String]) -> Finding {
    let Some(first) = names.first() else { return ok("domains", "every domain of gvm belongs to a machine") };
    let message = format!("domains that look like gvm's and belong to no machine: {}", names.join(", "));
    bad("domains", Level::Warn, message, format!("virsh dumpxml {first}, then remove it by hand"))
}
