//! What one profile needs of a host, and whether it is there.

use super::{Finding, Level, Patient, bad, basics, examine, ok, passthrough};
use crate::model::gpu::Partition;
use crate::model::image::Boot;
use crate::model::profile::Profile;
use crate::plan::place::{Reason, WhyKind, WhyNot};

/// Checks that every machine needs, whatever its profile.
const GROUND: [&str; 8] = ["root", "kvm", "libvirt", "qemu", "programs", "permissions", "resolver", "subnet"];

/// Checks of the host that a machine with a GPU needs besides.
const GPU_GROUND: [&str; 8] =
    ["hugepages", "iommu", "acs-override", "vfio", "framebuffer", "gpu-services", "nvswitch", "gpu-holders"];

/// A refusal of admission's, in its own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What is refused.
    pub message: String,
    /// What would do.
    pub hint: Option<String>,
}

/// What admission says to the parts of a machine of this profile.
#[derive(Clone, Debug)]
pub struct Admission {
    /// The image: its name, or why it cannot be used.
    pub image: Result<Option<String>, Refusal>,
    /// CPUs, memory and disk against what a machine and this host can be.
    pub shape: Result<(), Refusal>,
    /// Against what one person may hold.
    pub quota: Result<(), Refusal>,
    /// The memory that is free now.
    pub capacity: Result<(), Refusal>,
    /// The cards it would be given now.
    pub gpus: Result<Vec<Partition>, WhyNot>,
}

/// A profile on a host.
#[derive(Clone, Copy, Debug)]
pub struct ProfilePatient<'a> {
    /// The host.
    pub host: Patient<'a>,
    /// The profile.
    pub profile: &'a Profile,
    /// Admission's word.
    pub admission: &'a Admission,
}

/// Judges what this profile needs, and nothing else.
pub fn examine_for(patient: &ProfilePatient<'_>) -> Vec<Finding> {
    let (profile, host) = (patient.profile, patient.host.host);
    let has_gpus = !profile.gpus.is_empty();
    let is_needed = |finding: &Finding| {
        let is_tpm = finding.check == "programs" && finding.message.starts_with("swtpm ");
        (GROUND.contains(&finding.check) && !is_tpm) || has_gpus && GPU_GROUND.contains(&finding.check)
    };
    let mut findings = vec![ok("profile", described(profile))];
    let of_host: Vec<Finding> = examine(&patient.host).into_iter().filter(is_needed).collect();
    findings.extend(of_host);
    findings.push(image(patient));
    findings.extend(firmware(patient));
    findings.extend(profile.tpm.then(|| tpm(patient)));
    if profile.caps.net_in_bytes_per_sec.is_some() || profile.caps.net_out_bytes_per_sec.is_some() {
        let found = basics::sfq(host);
        let level = if host.has_sfq == Some(false) { Level::Fail } else { found.level };
        findings.push(Finding { level, ..found });
    }
    findings.push(space(patient));
    let admission = patient.admission;
    findings.push(said("shape", &admission.shape, "CPUs, memory and disk are what this host can give"));
    findings.push(said("quota", &admission.quota, "one person may hold that much"));
    findings.push(match &admission.capacity {
        Ok(()) => ok("capacity", format!("{} of memory are free now", profile.memory)),
        Err(refusal) => refused("capacity", Level::Warn, refusal),
    });
    findings.extend(has_gpus.then(|| gpu_request(patient)));
    if has_gpus && !findings.iter().any(|finding| finding.check == "iommu") {
        // A host without a card is not asked for these; a profile with one asks.
        findings.push(passthrough::iommu(&host.kernel));
    }
    let place = |finding: &Finding| super::CHECKS.iter().position(|check| *check == finding.check);
    findings.sort_by_key(place);
    findings
}

fn described(profile: &Profile) -> String {
    let gpus: Vec<String> = profile.gpus.iter().map(ToString::to_string).collect();
    let gpus = if gpus.is_empty() { String::new() } else { format!(", GPUs {}", gpus.join(" + ")) };
    format!("{}: {} CPUs, {} of memory, {} of disk{gpus}", profile.name, profile.vcpus, profile.memory, profile.disk)
}

/// A sentence of admission's as a finding.
fn said(check: &'static str, word: &Result<(), Refusal>, fine: &str) -> Finding {
    match word {
        Ok(()) => ok(check, fine),
        Err(refusal) => refused(check, Level::Fail, refusal),
    }
}

fn refused(check: &'static str, level: Level, refusal: &Refusal) -> Finding {
    let fix = refusal.hint.clone();
    bad(check, level, refusal.message.clone(), fix.unwrap_or_else(|| "gvm profile show NAME; edit its file".to_owned()))
}

fn image(patient: &ProfilePatient<'_>) -> Finding {
    let name = patient.profile.image.as_ref().map(ToString::to_string).unwrap_or_default();
    match &patient.admission.image {
        Ok(None) => ok("images", "no image is needed"),
        Ok(Some(image)) if patient.host.lost_images.contains(image) => bad(
            "images",
            Level::Fail,
            format!("the files of image {image} are gone"),
            format!("gvm image rm {image}; import it anew, or put its folder back from a backup"),
        ),
        Ok(Some(image)) => ok("images", format!("image {image} is in the catalogue")),
        Err(refusal) => {
            let fix = match name.as_str() {
                "tiny" | "debian" => format!("gvm image import $(vm-images/build.sh {name})"),
                _ => format!("gvm image import /PATH/TO/DISK.qcow2 --name {name}"),
            };
            bad("images", Level::Fail, refusal.message.clone(), fix)
        }
    }
}

fn firmware(patient: &ProfilePatient<'_>) -> Option<Finding> {
    let (profile, found) = (patient.profile, patient.host.host.firmware);
    if profile.boot != Boot::Uefi {
        return None;
    }
    if profile.secure_boot && !profile.gpus.is_empty() {
        return Some(bad(
            "firmware",
            Level::Warn,
            "with secure boot the machine refuses GPU drivers that nobody signed",
            format!("set `secure_boot = false` in /etc/gvm/profiles/{}.toml", profile.name),
        ));
    }
    let (is_there, what) = match profile.secure_boot {
        true => (found.has_secure_boot, "UEFI firmware with secure boot"),
        false => (found.has_plain, "UEFI firmware without secure boot"),
    };
    Some(match is_there {
        true => ok("firmware", format!("{what} is installed")),
        false => bad("firmware", Level::Fail, format!("{what} is not installed"), "apt install ovmf"),
    })
}

fn tpm(patient: &ProfilePatient<'_>) -> Finding {
    let is_there = patient.host.host.programs.get("swtpm").is_some_and(Option::is_some);
    match is_there {
        true => ok("tpm", "swtpm is installed"),
        false => {
            bad("tpm", Level::Fail, "its TPM needs swtpm, which is not installed", "apt install swtpm swtpm-tools")
        }
    }
}

fn space(patient: &ProfilePatient<'_>) -> Finding {
    let found = basics::space(patient.host.host);
    let Some(space) = &patient.host.host.state_space else { return found };
    if found.level < Level::Warn && space.free < patient.profile.disk {
        let message = format!("its disk may grow to {}, and {} are free", patient.profile.disk, space.free);
        return bad(
            "space",
            Level::Warn,
            message,
            format!("df -h {}; gvm image ls; gvm ls --all", space.path.display()),
        );
    }
    found
}

fn gpu_request(patient: &ProfilePatient<'_>) -> Finding {
    if let Err(why) = patient.host.gpus {
        let message = format!("the GPUs could not be looked at: {why}");
        return bad("gpu-request", Level::Fail, message, "dmesg | tail -50; systemctl restart gvm");
    }
    match &patient.admission.gpus {
        Ok(partitions) => {
            let gpus: Vec<&str> = partitions.iter().map(|partition| partition.gpu().0.as_str()).collect();
            ok("gpu-request", format!("would be given now: {}", gpus.join(", ")))
        }
        Err(why) => {
            let level = if why.is_for_now() { Level::Warn } else { Level::Fail };
            bad("gpu-request", level, one_line(&why.to_string()), request_fix(why, patient.profile))
        }
    }
}

/// A refusal has a line for each card; a finding has one.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn request_fix(why: &WhyNot, profile: &Profile) -> String {
    if let Some(request) = why.now.first() {
        return format!("gvm create --profile {} --gpu {request}", profile.name);
    }
    let is_blocked = |reason: &Reason| !matches!(reason, Reason::Model | Reason::Memory { .. } | Reason::Held { .. });
    match why.kind {
        WhyKind::NotFree => "gvm list --all  # who has them".to_owned(),
        _ if why.cards.iter().any(|card| is_blocked(&card.reason)) => {
            "gvm doctor  # mends what its `gpu` lines say".to_owned()
        }
        WhyKind::NoGpus => "gvm create --profile debian  # or add a card to this host".to_owned(),
        _ => format!("edit `gpu` in /etc/gvm/profiles/{}.toml", profile.name),
    }
}

#[cfg(test)]
#[path = "profile_tests.rs"]
mod tests;
