//! What a host needs for giving whole cards away. Asked only where there are cards.

use super::upkeep::{grub, ungrub};
use super::{Finding, Level, Patient, bad, ok};
use crate::model::card::pci::Vendor;
use crate::model::host::Version;
use crate::model::host::kernel::{CpuVendor, KernelFacts, ModuleState};

/// libvirt before this does not know the newer VFIO drivers of vendors.
const VARIANT_LIBVIRT: Version = Version(9, 7, 0);

/// Arguments of the kernel that switch an IOMMU off.
const OFF: [&str; 3] = ["intel_iommu=off", "amd_iommu=off", "iommu=off"];

pub(super) fn ground(patient: &Patient<'_>) -> Vec<Finding> {
    let kernel = &patient.host.kernel;
    let mut findings = vec![iommu(kernel)];
    findings.extend(acs_override(kernel));
    findings.push(vfio(kernel));
    findings
        .extend([flags(kernel), framebuffer(patient), nouveau(patient), secure_boot(patient)].into_iter().flatten());
    findings.extend(services(patient));
    findings.extend(libvirt(patient));
    findings
}

pub(super) fn iommu(kernel: &KernelFacts) -> Finding {
    match kernel.iommu {
        Some(iommu) if iommu.is_on() => {
            let newer = if kernel.has_iommufd { ", with iommufd" } else { "" };
            ok("iommu", format!("the IOMMU is on: {} units, {} groups{newer}", iommu.units, iommu.groups))
        }
        Some(_) => bad("iommu", Level::Fail, "the IOMMU is off: no card can be given to a machine", iommu_fix(kernel)),
        None => bad(
            "iommu",
            Level::Warn,
            "whether the IOMMU is on could not be looked at",
            "dmesg | grep -E 'DMAR|AMD-Vi|iommu'",
        ),
    }
}

/// What switches the IOMMU on here.
pub(super) fn iommu_fix(kernel: &KernelFacts) -> String {
    if let Some(flag) = kernel.flags.iter().find(|flag| OFF.contains(&flag.as_str())) {
        // Intel's is off by itself in many kernels; AMD's is not.
        let instead = if flag == "intel_iommu=off" { "intel_iommu=on" } else { "" };
        return ungrub(flag, instead);
    }
    let setup =
        |name: &str| format!("reboot, and in the firmware setup (BIOS) switch on {name} and \"Above 4G Decoding\"");
    let is_asked_for = kernel.flag("intel_iommu").is_some_and(|flag| flag.starts_with("intel_iommu=on"));
    match kernel.cpu {
        CpuVendor::Intel if is_asked_for => {
            format!("systemctl reboot --firmware-setup  # then {}", setup("VT-d").trim_start_matches("reboot, and "))
        }
        CpuVendor::Intel => grub("intel_iommu=on iommu=pt", &setup("VT-d")),
        // Its kernel needs no word: it is on wherever the firmware has it.
        CpuVendor::Amd => {
            let setup = setup("IOMMU (AMD-Vi)");
            format!("systemctl reboot --firmware-setup  # then {}", setup.trim_start_matches("reboot, and "))
        }
        CpuVendor::Other => grub("intel_iommu=on iommu=pt", &setup("VT-d or AMD-Vi")),
    }
}

/// Told, and never proposed.
fn acs_override(kernel: &KernelFacts) -> Option<Finding> {
    let flag = kernel.flag("pcie_acs_override")?;
    let message = format!(
        "{flag} makes the kernel split IOMMU groups that are one: their devices can still reach each other, and through \
         them one machine's GPU another's memory"
    );
    Some(bad("acs-override", Level::Warn, message, ungrub(flag, "")))
}

fn vfio(kernel: &KernelFacts) -> Finding {
    let load = "modprobe vfio-pci && echo vfio-pci > /etc/modules-load.d/gvm-vfio.conf";
    let has_node = kernel.has_vfio_node || kernel.has_iommufd;
    match kernel.vfio_pci {
        ModuleState::Loaded | ModuleState::BuiltIn if has_node => ok("vfio", "vfio-pci is there"),
        ModuleState::Loaded | ModuleState::BuiltIn => bad(
            "vfio",
            Level::Fail,
            "vfio-pci is there and /dev/vfio/vfio is not: no machine can open a card",
            "modprobe vfio && modprobe vfio_iommu_type1 && udevadm settle",
        ),
        ModuleState::Loadable => bad("vfio", Level::Warn, "vfio-pci, which hands cards over, is not loaded", load),
        ModuleState::Missing => bad(
            "vfio",
            Level::Fail,
            "this kernel has no vfio-pci: no card can be given to a machine",
            "apt install linux-image-amd64  # Ubuntu: linux-generic; then reboot",
        ),
        ModuleState::Unknown => {
            bad("vfio", Level::Note, "whether this kernel has vfio-pci could not be looked at", load)
        }
    }
}

fn flags(kernel: &KernelFacts) -> Option<Finding> {
    let flag = kernel.flag("vfio-pci.ids").or(kernel.flag("vfio_pci.ids"))?;
    let message = format!(
        "{flag} takes every card of the kind at boot, that of the host's screen too; gvm takes single cards, and needs \
         no such list"
    );
    Some(bad("kernel-flags", Level::Note, message, ungrub(flag, "")))
}

/// The screen that the firmware left on a card keeps its memory from the machine ("BAR 1: can't reserve").
fn framebuffer(patient: &Patient<'_>) -> Option<Finding> {
    let kernel = &patient.host.kernel;
    let card = patient.gpus.ok()?.cards.iter().find(|card| card.is_boot_display)?;
    let devices: Vec<&str> = kernel.framebuffers.iter().map(|screen| screen.device.as_str()).collect();
    if devices.is_empty() {
        return None;
    }
    let message = format!("the firmware's screen ({}) holds memory of {}", devices.join(", "), card.address);
    Some(bad("framebuffer", Level::Warn, message, let_go(kernel)))
}

/// Makes the host's screen let go of its card; until the next boot.
pub(super) fn let_go(kernel: &KernelFacts) -> String {
    let consoles = kernel.consoles.iter().map(|bind| format!("echo 0 > {}", bind.display()));
    let screens =
        kernel.framebuffers.iter().map(|screen| format!("echo {} > {}", screen.device, screen.unbind.display()));
    let commands: Vec<String> = consoles.chain(screens).collect();
    match commands.is_empty() {
        true => {
            "systemctl reboot --firmware-setup  # then, in the firmware setup (BIOS), take the board's own screen as primary \
             display"
                .to_owned()
        }
        false => format!("{}  # for good: {}", commands.join("; "), grub("video=efifb:off initcall_blacklist=sysfb_init", "reboot")),
    }
}

fn nouveau(patient: &Patient<'_>) -> Option<Finding> {
    let kernel = &patient.host.kernel;
    let is_nvidia = patient.gpus.is_ok_and(|found| found.cards.iter().any(|card| card.vendor == Vendor::Nvidia));
    if !kernel.has_nouveau || !is_nvidia {
        return None;
    }
    let (level, message) = match kernel.has_nvidia {
        true => (Level::Warn, "nouveau is loaded beside NVIDIA's own driver: each keeps cards from the other"),
        false => (Level::Note, "nouveau has NVIDIA cards: it lets go of them badly"),
    };
    let fix = "printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' > /etc/modprobe.d/gvm-nouveau.conf && \
               update-initramfs -u  # then reboot";
    Some(bad("nouveau", level, message, fix))
}

/// An unsigned module is refused there, which looks like a broken driver.
fn secure_boot(patient: &Patient<'_>) -> Option<Finding> {
    let kernel = &patient.host.kernel;
    let has_waiting = |vendor| {
        patient.gpus.is_ok_and(|found| found.cards.iter().any(|card| card.vendor == vendor && card.driver.is_none()))
    };
    let is_refused = kernel.has_secure_boot == Some(true) && !kernel.has_nvidia && has_waiting(Vendor::Nvidia);
    is_refused.then(|| {
        bad(
            "secure-boot",
            Level::Note,
            "this host boots securely and NVIDIA's driver is not loaded: where it is installed, its module may be unsigned",
            "mokutil --import /var/lib/dkms/mok.pub  # then reboot and confirm; modprobe nvidia says the reason",
        )
    })
}

fn services(patient: &Patient<'_>) -> Vec<Finding> {
    let is_held =
        patient.gpus.is_ok_and(|found| found.cards.iter().any(|card| card.driver.as_deref() == Some("nvidia")));
    let has_switches = patient.gpus.is_ok_and(|found| !found.nvswitches.is_empty());
    let finding = |service: &crate::model::host::kernel::GpuService| {
        let unit = &service.unit;
        let pid = service.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
        let is_fabric = unit == "nvidia-fabricmanager";
        if is_fabric && has_switches {
            return ok("gpu-services", format!("{unit} runs{pid}, which a board with NVSwitches needs"));
        }
        let level = if is_held { Level::Warn } else { Level::Note };
        let message =
            format!("{unit} runs{pid}: it keeps cards of NVIDIA's driver open, so that they cannot be given away");
        bad("gpu-services", level, message, format!("systemctl stop {unit}"))
    };
    patient.host.kernel.services.iter().map(finding).collect()
}

fn libvirt(patient: &Patient<'_>) -> Option<Finding> {
    let found = patient.hypervisor.ok()?;
    (found.libvirt < VARIANT_LIBVIRT).then(|| {
        bad(
            "libvirt-gpu",
            Level::Note,
            format!(
                "libvirt {} does not know vendors' own VFIO drivers, which {VARIANT_LIBVIRT} does; vfio-pci works",
                found.libvirt
            ),
            "apt install libvirt-daemon-system  # from Debian 13, Ubuntu 24.04 or newer",
        )
    })
}
