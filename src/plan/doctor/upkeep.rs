//! What an administrator keeps in order: memory pools, clock, the gateway's port, modes of folders.

use super::{Finding, Level, Patient, bad, has_gpus, ok};
use crate::model::host::HostFacts;
use crate::model::host::upkeep::{Clock, HugePool, PathMode, PortUse};

pub(super) fn hugepages(patient: &Patient<'_>) -> Finding {
    let facts = &patient.host.upkeep;
    let transparent = match &facts.transparent_hugepages {
        Some(word) => format!("; transparent ones: {word}"),
        None => String::new(),
    };
    if !facts.hugepages.is_empty() {
        let pools: Vec<String> = facts.hugepages.iter().map(words).collect();
        return ok("hugepages", format!("huge pages: {}{transparent}", pools.join(", ")));
    }
    if !has_gpus(patient) {
        return ok("hugepages", format!("no huge pages are set aside; nothing here needs them{transparent}"));
    }
    // Half of the memory leaves the other half to machines without GPUs and to the host.
    let pages = (patient.host.memory_total.0 >> 11).max(1);
    bad(
        "hugepages",
        Level::Note,
        format!(
            "no huge pages are set aside: machines with GPUs start the slower, the more memory they have{transparent}"
        ),
        grub(&format!("hugepagesz=1G hugepages={pages}"), "reboot; this keeps half of the memory for them alone"),
    )
}

fn words(pool: &HugePool) -> String {
    let size = match pool.page_kib {
        kib if kib.is_multiple_of(1 << 20) => format!("{} GiB", kib >> 20),
        kib if kib.is_multiple_of(1 << 10) => format!("{} MiB", kib >> 10),
        kib => format!("{kib} KiB"),
    };
    format!("{} of {} of {size} free on node {}", pool.free, pool.total, pool.node)
}

/// Adds arguments to the kernel's, by the boot loader of Debian and Ubuntu.
pub(super) fn grub(arguments: &str, then: &str) -> String {
    format!("sed -i 's/^GRUB_CMDLINE_LINUX=\"/&{arguments} /' /etc/default/grub && update-grub  # then {then}")
}

/// Puts something, or nothing, in the place of one of the kernel's arguments.
pub(super) fn ungrub(argument: &str, instead: &str) -> String {
    // What is pasted into a root shell must be a word, whatever the boot loader was told.
    let is_word = argument.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.,:=-".contains(&byte));
    if !is_word {
        return "editor /etc/default/grub && update-grub  # take the argument away, then reboot".to_owned();
    }
    let pattern = argument.replace('.', "\\.");
    let rest = if instead.is_empty() { " *" } else { "" };
    format!("sed -i 's/\\b{pattern}{rest}/{instead}/' /etc/default/grub && update-grub  # then reboot")
}

pub(super) fn numa(patient: &Patient<'_>) -> Finding {
    let nodes = &patient.host.upkeep.nodes;
    if nodes.len() < 2 {
        return ok("numa", "one memory node");
    }
    let cpus = |cpus: &str| if cpus.is_empty() { "no CPUs".to_owned() } else { format!("CPUs {cpus}") };
    let list: Vec<String> = nodes.iter().map(|node| format!("{} ({})", node.number, cpus(&node.cpus))).collect();
    let message = format!("{} memory nodes: {}", nodes.len(), list.join(", "));
    let cards = patient.gpus.map(|found| found.cards.as_slice()).unwrap_or_default();
    let lost: Vec<String> =
        cards.iter().filter(|card| !card.is_vf() && card.numa_node.is_none()).map(|c| c.address.to_string()).collect();
    match lost.is_empty() {
        true => ok("numa", message),
        false => bad(
            "numa",
            Level::Note,
            format!("{message}; the firmware does not say which one these cards are at: {}", lost.join(", ")),
            "dmidecode -s bios-version  # look for a newer firmware, and for its NUMA setting",
        ),
    }
}

pub(super) fn clock(host: &HostFacts) -> Finding {
    let fix = "apt install systemd-timesyncd && timedatectl set-ntp true";
    match host.upkeep.clock {
        Clock::Synchronised => ok("clock", "the clock follows a time server"),
        Clock::Alone => bad(
            "clock",
            Level::Warn,
            "the clock follows no time server: the record of changes, lifetimes and certificates go wrong with it",
            fix,
        ),
        Clock::Unknown => bad("clock", Level::Note, "whether the clock follows a time server is not known", fix),
    }
}

pub(super) fn gateway_port(patient: &Patient<'_>) -> Finding {
    let listen = patient.gateway_listen;
    match &patient.host.upkeep.gateway_port {
        PortUse::Unknown => bad(
            "gateway-port",
            Level::Note,
            format!("who listens on {listen} could not be found out"),
            format!("ss -ltnp sport = {}", listen.port()),
        ),
        PortUse::Free => bad(
            "gateway-port",
            Level::Note,
            format!("nobody listens on {listen}: the SSH gateway does not run"),
            "systemctl enable --now gvm-gateway",
        ),
        PortUse::Taken { program, user } => {
            let is_ours = program.as_deref() == Some("gvm") || program.is_none() && user == patient.gateway_user;
            let who = program.as_deref().unwrap_or("a program");
            match is_ours {
                true => ok("gateway-port", format!("the SSH gateway listens on {listen}")),
                false => bad(
                    "gateway-port",
                    Level::Fail,
                    format!("{who} of {user} listens on {listen}, where the SSH gateway is to"),
                    format!(
                        "ss -ltnp sport = {}  # end it, or set another `listen` under [gateway] in /etc/gvm/gvm.toml",
                        listen.port()
                    ),
                ),
            }
        }
    }
}

/// One finding for each fault, so that each has its command.
pub(super) fn permissions(host: &HostFacts) -> Vec<Finding> {
    let facts = &host.upkeep;
    let mut found = Vec::new();
    let mut add = |level, at: &PathMode, problem: &str, command: &str| {
        let path = at.path.display();
        let message = format!("{path} (mode {:04o}): {problem}", at.mode);
        found.push(bad("permissions", level, message, format!("{command} {path}")));
    };
    for at in facts.state_path.iter().filter(|at| at.mode & 0o001 == 0) {
        add(Level::Warn, at, "QEMU's own user cannot pass, so that machines do not start", "chmod o+x");
    }
    if let Some(at) = facts.state_path.last() {
        if at.is_open() {
            add(Level::Fail, at, "everybody on this host may change machines' disks", "chmod o-w");
        }
        if host.is_root && at.uid != 0 {
            add(Level::Warn, at, "it is not root's own", "chown root:root");
        }
    }
    if let Some(at) = facts.database.as_ref().filter(|at| at.mode & 0o077 != 0) {
        add(Level::Fail, at, "others may read the keys of all machines", "chmod 600");
    }
    if let Some(at) = facts.socket_dir.as_ref().filter(|at| at.is_open()) {
        add(
            Level::Fail,
            at,
            "everybody on this host may put a socket of their own in the manager's place",
            "chmod o-w",
        );
    }
    if !found.is_empty() {
        return found;
    }
    let path = facts.state_path.last().map(|at| at.path.display().to_string());
    let message = match path {
        Some(path) => format!("{path} and the socket's folder are closed to others and can be passed by QEMU"),
        None => "there is no state folder yet".to_owned(),
    };
    vec![ok("permissions", message)]
}
