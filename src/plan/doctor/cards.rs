//! Each card: whether it can be given to a machine, and if not, why and what helps.

use super::passthrough::{iommu_fix, let_go};
use super::{Finding, Level, Patient, bad, count, ok};
use crate::model::card::blockers::{Blocker, BlockerKind};
use crate::model::card::{Card, CardFinding, CardFindingKind, Discovery, NvmlStatus};
use crate::model::host::HostFacts;
use crate::model::inventory::Withheld;
use crate::plan::health::is_out;
use crate::plan::inventory::Entry;

/// How many there are, and how many can be had.
pub(super) fn overview(patient: &Patient<'_>) -> Option<Finding> {
    let found = match patient.gpus {
        Ok(found) => found,
        Err(why) => {
            let message = format!("the GPUs could not be looked at: {why}");
            return Some(bad("gpus", Level::Warn, message, "dmesg | tail -50; systemctl restart gvm"));
        }
    };
    let whole: Vec<&Card> = found.cards.iter().filter(|card| !card.is_vf()).collect();
    if found.cards.is_empty() {
        let no_pci = found.findings.iter().find(|finding| finding.kind == CardFindingKind::NoPci);
        let why = no_pci.map(|finding| format!(": {}", finding.text)).unwrap_or_default();
        let fix = "lspci -nn | grep -iE 'vga|3d|display|accelerator'  # what is there, if one should be";
        return Some(bad("gpus", Level::Note, format!("no GPU found{why}"), fix));
    }
    let free = whole.iter().filter(|card| card.blockers.is_empty() && !is_withheld(patient, card)).count();
    let message = format!("{}, {free} of them can be given to machines", count(whole.len(), "GPU"));
    Some(match free {
        0 => bad("gpus", Level::Note, message, "gvm doctor | grep ' gpu '  # says why, card by card"),
        _ => ok("gpus", message),
    })
}

/// What there is to say of them together.
pub(super) fn around(patient: &Patient<'_>) -> Vec<Finding> {
    let Ok(found) = patient.gpus else { return Vec::new() };
    let mut findings: Vec<Finding> = found.findings.iter().filter_map(|finding| general(finding, patient)).collect();
    if let NvmlStatus::Ready { driver } = &found.nvml {
        let driver = driver.as_ref().map(|version| format!(" with driver {version}")).unwrap_or_default();
        findings.push(ok("nvml", format!("NVML answers{driver}")));
    }
    let place = |finding: &Finding| super::CHECKS.iter().position(|check| *check == finding.check);
    findings.sort_by_key(place);
    findings
}

fn general(finding: &CardFinding, patient: &Patient<'_>) -> Option<Finding> {
    let at = finding.address.map(|address| address.to_string()).unwrap_or_default();
    let (check, level, fix) = match finding.kind {
        // A host without cards is told by the overview.
        CardFindingKind::NoPci if patient.gpus.is_ok_and(|found| found.cards.is_empty()) => return None,
        CardFindingKind::NoPci => ("pci", Level::Warn, "mountpoint /sys || mount -t sysfs sysfs /sys".to_owned()),
        CardFindingKind::Unreadable => ("pci", Level::Warn, format!("lspci -nnvv -s {at}; dmesg | grep {at}")),
        CardFindingKind::TooMany => ("pci", Level::Warn, "lspci | wc -l".to_owned()),
        CardFindingKind::NvmlFailed => (
            "nvml",
            Level::Warn,
            match finding.text.contains("cannot be loaded") {
                true => "apt install libnvidia-ml1  # or `nvml` under [gpu]; cards that are only passed on need none"
                    .to_owned(),
                false => "nvidia-smi  # says it in its own words; after an upgrade of the driver, reboot".to_owned(),
            },
        ),
        CardFindingKind::NvmlUnmatched => ("nvml", Level::Warn, "nvidia-smi -L; lspci -nn -d 10de:".to_owned()),
        CardFindingKind::NvSwitch => {
            return Some(bad("nvswitch", Level::Warn, nvswitch(finding, patient.host), NO_FABRIC));
        }
        CardFindingKind::HoldersIncomplete => (
            "gpu-holders",
            Level::Warn,
            "fuser -v /dev/nvidia* /dev/dri/* /dev/vfio/*; id -u  # gvm is to run as root".to_owned(),
        ),
        CardFindingKind::KernelLog => (
            "kernel-log",
            Level::Warn,
            "systemctl show gvm -p CapabilityBoundingSet  # the manager needs CAP_SYSLOG, and no ProtectKernelLogs"
                .to_owned(),
        ),
        CardFindingKind::ManagedMissing => (
            "gpu-managed",
            Level::Warn,
            format!("take \"{at}\" off `managed` under [gpu] in /etc/gvm/gvm.toml; systemctl restart gvm"),
        ),
    };
    Some(bad(check, level, finding.text.clone(), fix))
}

/// What is to be done on a board with NVSwitches.
const NO_FABRIC: &str =
    "nvidia-smi topo -m  # cards of this board stay with the host until gvm can set up partitions of the fabric";

fn nvswitch(finding: &CardFinding, host: &HostFacts) -> String {
    let is_managed = host.kernel.services.iter().any(|service| service.unit == "nvidia-fabricmanager");
    let runs = if is_managed { "runs" } else { "does not run" };
    let mode = match host.kernel.fabric_mode {
        Some(0) => " in mode 0 (the host's own)".to_owned(),
        Some(1) => " in mode 1 (shared NVSwitch)".to_owned(),
        Some(mode) => format!(" in mode {mode}"),
        None => String::new(),
    };
    format!("{}; the fabric manager {runs}{mode}", finding.text)
}

/// One finding for each whole card. Virtual functions are told by the card behind them.
pub(super) fn each(patient: &Patient<'_>) -> Vec<Finding> {
    let Ok(found) = patient.gpus else { return Vec::new() };
    // What is decided about a card comes before what is seen of it.
    let seen = found.cards.iter().filter(|card| !card.is_vf() && !is_withheld(patient, card));
    seen.map(|card| one(card, found, patient.host)).collect()
}

fn is_withheld(patient: &Patient<'_>, card: &Card) -> bool {
    let is_it = |entry: &&Entry| entry.card.as_ref().is_some_and(|other| other.address == card.address);
    patient.known_gpus.iter().find(is_it).is_some_and(is_out)
}

/// Cards that are kept out of use or are gone, which cannot be seen by looking at what is there.
pub(super) fn decided(entries: &[Entry]) -> Vec<Finding> {
    entries.iter().filter_map(decision).collect()
}

fn decision(entry: &Entry) -> Option<Finding> {
    let known = entry.known.as_ref()?;
    let address = entry.address()?;
    let name = format!("{address} {}", entry.model());
    match (&known.withheld, &entry.card) {
        (Some(Withheld::Quarantined { why, .. }), _) => Some(bad(
            "gpu",
            Level::Warn,
            format!("{name} is kept out of use: {why}"),
            format!("gvm gpu show {address}; gvm gpu readmit {address}  # once it is well again"),
        )),
        (Some(Withheld::Stuck { why, .. }), _) => Some(bad(
            "gpu",
            Level::Fail,
            format!("{name} is stuck in the kernel: {why}"),
            "reboot  # nothing else makes the kernel let go of it; other cards and machines go on meanwhile",
        )),
        (None, None) => Some(bad(
            "gpu",
            Level::Note,
            format!("{name} was here once and is gone"),
            "lspci -nn | grep -iE 'vga|3d|display'; dmesg | grep -iE 'pcieport|aer'",
        )),
        (None, Some(_)) => super::sick::seen(entry),
    }
}

fn one(card: &Card, found: &Discovery, host: &HostFacts) -> Finding {
    let name = format!("{} {}", card.address, card.model);
    let mut about = vec![match &card.driver {
        Some(driver) => format!("on {driver}"),
        None => "without a driver".to_owned(),
    }];
    about.extend(card.iommu.as_ref().map(|group| format!("group {}", group.number)));
    about.push(count(card.functions.len().max(1), "function"));
    let about = about.join(", ");
    let level = card.blockers.iter().map(|blocker| level(blocker.kind)).max();
    let reasons: Vec<&str> = card.blockers.iter().map(|blocker| blocker.text.as_str()).collect();
    match level {
        None => ok("gpu", format!("{name} can be given to a machine ({about})")),
        Some(Level::Ok) => ok("gpu", format!("{name} is in a machine: {} ({about})", reasons.join("; "))),
        Some(level) => {
            let mut fixes: Vec<String> = Vec::new();
            for blocker in card.blockers.iter().filter(|blocker| self::level(blocker.kind) > Level::Ok) {
                let fix = fix(blocker, card, found, host);
                if !fixes.contains(&fix) {
                    fixes.push(fix);
                }
            }
            // One line each, since a line may end in a comment.
            bad(
                "gpu",
                level,
                format!("{name} cannot be given to a machine: {} ({about})", reasons.join("; ")),
                fixes.join("\n"),
            )
        }
    }
}

/// How bad a reason is. What somebody chose, such as MIG, is no fault.
const fn level(kind: BlockerKind) -> Level {
    match kind {
        BlockerKind::InMachine => Level::Ok,
        BlockerKind::Foreign | BlockerKind::VirtualFunction | BlockerKind::Divided | BlockerKind::Mig => Level::Note,
        BlockerKind::NoIommu
        | BlockerKind::GroupMember
        | BlockerKind::BootDisplay
        | BlockerKind::Driver
        | BlockerKind::Held
        | BlockerKind::Persistence
        | BlockerKind::NvSwitch => Level::Warn,
        BlockerKind::Health => Level::Fail,
    }
}

/// What takes a reason away.
pub(super) fn fix(blocker: &Blocker, card: &Card, found: &Discovery, host: &HostFacts) -> String {
    let at = card.address;
    match blocker.kind {
        BlockerKind::Health => format!(
            "dmesg | grep -E '{at}|Xid'; reboot  # where that does not help, switch the power off for a minute: a card that \
             fell off the bus needs it"
        ),
        BlockerKind::Foreign => {
            format!("add \"{at}\" to `managed` under [gpu] in /etc/gvm/gvm.toml; systemctl restart gvm")
        }
        BlockerKind::NoIommu => iommu_fix(&host.kernel),
        BlockerKind::GroupMember => format!(
            "lspci -tv  # put {at} into a slot behind another root port, or switch on ACS in the firmware setup; \
             pcie_acs_override is no remedy, it takes the isolation away"
        ),
        BlockerKind::VirtualFunction => {
            let physical = card.physfn.unwrap_or(at);
            format!("gvm doctor | grep {physical}  # the card behind it")
        }
        BlockerKind::Divided if card.vgpu.as_ref().is_some_and(|facts| !facts.made.is_empty()) => format!(
            "gvm gpu show {at}  # a vGPU goes with its VM; one that is not gvm's: echo 1 > /sys/bus/mdev/devices/UUID/remove"
        ),
        BlockerKind::Divided | BlockerKind::Mig => {
            format!("gvm gpu mode {at} host  # in one piece again, once no VM has a part of it")
        }
        BlockerKind::BootDisplay => let_go(&host.kernel),
        BlockerKind::Driver => format!("modprobe -r {}", card.driver.as_deref().unwrap_or("DRIVER")),
        BlockerKind::InMachine => "gvm list --all".to_owned(),
        BlockerKind::Held => held(card),
        BlockerKind::Persistence => format!("nvidia-smi -i {at} -pm 0; systemctl stop nvidia-persistenced"),
        BlockerKind::NvSwitch if found.nvswitches.is_empty() => "gvm doctor".to_owned(),
        BlockerKind::NvSwitch => NO_FABRIC.to_owned(),
    }
}

/// Ends those who have it open: services by their unit, domains by libvirt, others by hand.
fn held(card: &Card) -> String {
    let mut commands: Vec<String> = Vec::new();
    for holder in card.holders.iter().filter(|holder| !holder.domain.as_deref().is_some_and(|d| d.starts_with("gvm-")))
    {
        // A domain's name is what any process says of itself; what is pasted into a root shell must be a word.
        let domain = holder.domain.as_deref().filter(|name| {
            !name.starts_with('-') && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
        });
        let command = match (domain, holder.comm.as_str()) {
            (Some(domain), _) => format!("virsh shutdown {domain}"),
            (None, "nvidia-persiste" | "nvidia-persistenced") => "systemctl stop nvidia-persistenced".to_owned(),
            (None, "nv-hostengine" | "dcgm-exporter") => "systemctl stop nvidia-dcgm dcgm-exporter".to_owned(),
            (None, "nv-fabricmanage") => "systemctl stop nvidia-fabricmanager".to_owned(),
            (None, "Xorg" | "gnome-shell" | "gdm3" | "sddm" | "Xwayland" | "kwin_wayland") => {
                "systemctl stop display-manager".to_owned()
            }
            (None, _) => format!("ps -fp {0}; kill {0}", holder.pid),
        };
        if !commands.contains(&command) {
            commands.push(command);
        }
    }
    match commands.is_empty() {
        true => "fuser -v /dev/nvidia* /dev/dri/* /dev/vfio/*".to_owned(),
        false => commands.join("; "),
    }
}

#[cfg(test)]
#[path = "cards_tests.rs"]
mod tests;
