//! Between wire types and the model, both ways.

use std::fmt::Display;
use std::str::FromStr;

use jiff::Timestamp;

use crate::api::types::{
    CapsPatch, CapsView, ChangeVm, CreateVm, EventView, FindingView, ImageView, ImportImage, KeyView, OperationView,
    ProfileView, VmView,
};
use crate::manager::ManagerError;
use crate::manager::access::KeyRow;
use crate::manager::change::ChangeRequest;
use crate::manager::create::CreateRequest;
use crate::manager::doctor::Finding;
use crate::manager::images::{ImageRow, ImportWords};
use crate::manager::view::VmDetails;
use crate::manager::watch::Told;
use crate::model::caps::{Caps, CapsChange};
use crate::model::event::Operation;
use crate::model::gpu::GpuRequest;
use crate::model::image::{Boot, DiskFormat};
use crate::model::profile::Profile;
use crate::model::state::{FirstBoot, VmState};

type Result<T> = std::result::Result<T, ManagerError>;

/// Parses a value at the door.
pub fn parse<T: FromStr<Err: Display>>(text: &str) -> Result<T> {
    text.parse().map_err(|e: T::Err| ManagerError::invalid(e.to_string()))
}

pub fn parse_opt<T: FromStr<Err: Display>>(text: Option<&String>) -> Result<Option<T>> {
    text.map(|text| parse(text)).transpose()
}

fn parse_all<T: FromStr<Err: Display>>(texts: &[String]) -> Result<Vec<T>> {
    texts.iter().map(|text| parse(text)).collect()
}

/// Requests of one machine are judged together.
fn gpus(texts: &[String]) -> Result<Vec<GpuRequest>> {
    GpuRequest::parse_list(texts).map_err(|e| ManagerError::invalid(e.to_string()))
}

pub fn create(body: &CreateVm) -> Result<CreateRequest> {
    if let Some(priority) = body.priority.as_deref().filter(|p| *p != "normal") {
        return Err(ManagerError::invalid(format!(
            "priority {priority:?} is not known; only \"normal\" is until queues come"
        )));
    }
    Ok(CreateRequest {
        name: parse_opt(body.name.as_ref())?,
        profile: parse(&body.profile)?,
        image: parse_opt(body.image.as_ref())?,
        vcpus: body.cpus,
        memory: parse_opt(body.memory.as_ref())?,
        disk: parse_opt(body.disk.as_ref())?,
        gpus: body.gpus.as_deref().map(gpus).transpose()?,
        caps: caps(&body.caps),
        ttl: parse_opt(body.ttl.as_ref())?,
        user_data: body.user_data.clone(),
        tags: parse_all(&body.tags)?,
        tpm: body.tpm,
        is_stopped: body.is_stopped,
    })
}

pub fn change(body: &ChangeVm) -> Result<ChangeRequest> {
    let ttl = match body.ttl.as_deref() {
        None => None,
        Some("") => Some(None),
        Some(text) => Some(Some(parse(text)?)),
    };
    Ok(ChangeRequest {
        name: parse_opt(body.name.as_ref())?,
        vcpus: body.cpus,
        memory: parse_opt(body.memory.as_ref())?,
        disk: parse_opt(body.disk.as_ref())?,
        gpus: body.gpus.as_deref().map(gpus).transpose()?,
        caps: caps_change(&body.caps),
        ttl,
        add_tags: parse_all(&body.add_tags)?,
        remove_tags: parse_all(&body.remove_tags)?,
    })
}

fn caps(view: &CapsView) -> Caps {
    Caps {
        cpu_shares: view.cpu_shares,
        cpu_percent: view.cpu_percent,
        disk_iops: view.disk_iops,
        disk_bytes_per_sec: view.disk_bytes_per_sec,
        net_in_bytes_per_sec: view.net_in_bytes_per_sec,
        net_out_bytes_per_sec: view.net_out_bytes_per_sec,
    }
}

const fn caps_change(patch: &CapsPatch) -> CapsChange {
    CapsChange {
        cpu_shares: patch.cpu_shares,
        cpu_percent: patch.cpu_percent,
        disk_iops: patch.disk_iops,
        disk_bytes_per_sec: patch.disk_bytes_per_sec,
        net_in_bytes_per_sec: patch.net_in_bytes_per_sec,
        net_out_bytes_per_sec: patch.net_out_bytes_per_sec,
    }
}

fn caps_view(caps: &Caps) -> CapsView {
    CapsView {
        cpu_shares: caps.cpu_shares,
        cpu_percent: caps.cpu_percent,
        disk_iops: caps.disk_iops,
        disk_bytes_per_sec: caps.disk_bytes_per_sec,
        net_in_bytes_per_sec: caps.net_in_bytes_per_sec,
        net_out_bytes_per_sec: caps.net_out_bytes_per_sec,
    }
}

fn disk_format(word: &str) -> Result<DiskFormat> {
    let formats = [DiskFormat::Qcow2, DiskFormat::Raw];
    let found = formats.into_iter().find(|format| format.as_str() == word);
    found.ok_or_else(|| ManagerError::invalid(format!("disk format {word:?} is not known; use qcow2 or raw")))
}

/// The path and what is said about it.
pub fn import(body: &ImportImage) -> Result<(std::path::PathBuf, ImportWords)> {
    let path = std::path::PathBuf::from(&body.path);
    if !path.is_absolute() {
        return Err(ManagerError::invalid(format!("{:?} is not an absolute path on the host", body.path)));
    }
    let words = ImportWords {
        name: parse_opt(body.name.as_ref())?,
        os: body.os.clone(),
        user: parse_opt(body.user.as_ref())?,
        sha256: body.sha256.clone(),
        format: body.disk_format.as_deref().map(disk_format).transpose()?,
    };
    Ok((path, words))
}

pub fn finding(finding: Finding) -> FindingView {
    FindingView {
        check: finding.check.to_owned(),
        level: finding.level.word().to_owned(),
        message: finding.message,
        fix: finding.fix.unwrap_or_default(),
    }
}

/// RFC 3339, whole seconds.
pub fn time(at: Timestamp) -> String {
    at.round(jiff::Unit::Second).unwrap_or(at).to_string()
}

fn first_boot(state: &FirstBoot) -> String {
    match state {
        FirstBoot::Waiting => "waiting".to_owned(),
        FirstBoot::Stage(word) => word.clone(),
        FirstBoot::Done => "done".to_owned(),
        FirstBoot::Failed(_) => "failed".to_owned(),
    }
}

pub fn vm(details: VmDetails) -> VmView {
    let VmDetails { vm, owner, state, detail, caps_in_force, is_accelerated, is_reachable, needs_restart } = details;
    let detail = match (&state, &vm.first_boot) {
        (VmState::Running, FirstBoot::Failed(why)) => format!("first boot failed: {why}"),
        _ => detail,
    };
    let spec = &vm.spec;
    VmView {
        id: vm.id.to_string(),
        name: vm.name.to_string(),
        owner,
        state: state.word().to_owned(),
        detail,
        profile: spec.profile.to_string(),
        image: spec.image.as_ref().map(|image| image.name.to_string()).unwrap_or_default(),
        cpus: spec.vcpus,
        memory_mib: spec.memory.0,
        disk_mib: spec.disk.0,
        gpus: spec.gpus.iter().map(ToString::to_string).collect(),
        gpu_addresses: vm.placement.gpus.iter().map(|partition| partition.address().to_string()).collect(),
        address: vm.placement.address.to_string(),
        mac: vm.placement.mac.to_string(),
        guest_user: spec.guest_user.to_string(),
        first_boot: first_boot(&vm.first_boot),
        is_reachable,
        accelerator: match is_accelerated {
            Some(true) => "kvm".to_owned(),
            Some(false) => "emulation".to_owned(),
            None => String::new(),
        },
        caps: caps_view(&spec.caps),
        caps_in_force: caps_in_force.as_ref().map(caps_view),
        tags: vm.tags.iter().map(ToString::to_string).collect(),
        needs_restart,
        ttl_seconds: spec.ttl.map(|ttl| ttl.0),
        expires_at: vm.expires_at().map(time),
        undelete_until: vm.undelete_until.map(time),
        created_at: time(vm.created_at),
        generation: vm.generation.0,
    }
}

pub fn operation(row: Operation) -> OperationView {
    OperationView {
        id: row.id.to_string(),
        at: time(row.at),
        actor: row.actor,
        action: row.action,
        target: row.target,
        outcome: row.outcome.as_str().to_owned(),
        detail: row.detail,
        finished_at: row.finished_at.map(time),
    }
}

pub fn event(told: &Told, state: String) -> EventView {
    EventView {
        vm_id: told.progress.vm.to_string(),
        vm: told.name.clone(),
        at: told.progress.at.to_string(),
        stage: told.progress.stage.clone(),
        message: told.progress.message.clone(),
        state,
    }
}

pub fn key(row: &KeyRow) -> KeyView {
    KeyView {
        id: row.id.to_string(),
        fingerprint: row.fingerprint.clone(),
        kind: row.key.kind().to_owned(),
        comment: row.key.comment().to_owned(),
        added_at: time(row.added_at),
    }
}

pub fn image(row: &ImageRow) -> ImageView {
    let image = &row.image;
    let kernel_sum = || image.kernel.as_ref().map(|kernel| kernel.sha256.clone()).unwrap_or_default();
    ImageView {
        id: image.id.to_string(),
        name: image.name.to_string(),
        version: image.version.clone(),
        os: image.os.clone(),
        format: image.disk.as_ref().map_or("kernel", |disk| disk.format.as_str()).to_owned(),
        virtual_mib: image.disk.as_ref().map_or(0, |disk| disk.virtual_size.0),
        sha256: image.disk.as_ref().map_or_else(kernel_sum, |disk| disk.sha256.clone()),
        used_by: row.used_by,
        created_at: time(row.created_at),
    }
}

pub fn profile(profile: &Profile, is_image_present: bool) -> ProfileView {
    let boot = match profile.boot {
        Boot::Uefi => "uefi",
        Boot::Kernel => "kernel",
        Boot::Firmware => "firmware",
    };
    ProfileView {
        name: profile.name.to_string(),
        description: profile.description.clone(),
        image: profile.image.as_ref().map(ToString::to_string).unwrap_or_default(),
        boot: boot.to_owned(),
        cpus: profile.vcpus,
        memory_mib: profile.memory.0,
        disk_mib: profile.disk.0,
        gpus: profile.gpus.iter().map(ToString::to_string).collect(),
        caps: caps_view(&profile.caps),
        is_image_present,
        tpm: profile.tpm,
        secure_boot: profile.secure_boot,
    }
}
