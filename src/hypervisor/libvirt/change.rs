//! Changes of a machine without a restart, each in the running domain and in its definition; devices of the host in the
//! running domain alone.

use std::cmp::Reverse;

use virt::connect::Connect;
use virt_sys as sys;

use super::Shared;
use super::error::Said;
use super::observe::{Ours, need, need_active};
use crate::hypervisor::raw::{self, Setting};
use crate::hypervisor::{ErrorKind, HypervisorError, LiveChange, Result, xml};
use crate::model::caps::Caps;
use crate::model::gpu::HostDevice;
use crate::model::id::VmId;
use crate::model::units::Mib;
use crate::model::vm::domain_name;

/// Memory is plugged in multiples of this: Linux brings memory on line in blocks of 128 MiB on x86.
const PLUG_STEP_MIB: u64 = 128;

/// What libvirt calls metadata of our own namespace (`VIR_DOMAIN_METADATA_ELEMENT`).
const METADATA_ELEMENT: i32 = sys::VIR_DOMAIN_METADATA_ELEMENT.cast_signed();

pub(super) fn apply(conn: &Connect, shared: &Shared, vm: VmId, change: &LiveChange) -> Result<()> {
    let doing = format!("changing domain {}", domain_name(vm));
    let ours = need(conn, vm, &doing)?;
    let result = match change {
        LiveChange::Caps(caps) => apply_caps(shared, &ours, caps, &doing),
        LiveChange::Vcpus(vcpus) => apply_vcpus(&ours, *vcpus, &doing),
        LiveChange::Memory(memory) => apply_memory(shared, &ours, *memory, &doing),
        LiveChange::RootDisk(size) => apply_root_disk(&ours, *size, &doing),
    };
    shared.cache.forget(vm);
    result
}

/// Into the running domain alone: the definition gives the devices their own ports, at the next start.
pub(super) fn attach_devices(conn: &Connect, shared: &Shared, vm: VmId, devices: &[HostDevice]) -> Result<()> {
    let doing = format!("plugging devices into domain {}", domain_name(vm));
    let ours = need_active(conn, vm, &doing)?;
    let has = |device: &HostDevice| ours.description.observed.hostdevs.contains(&device.to_string());
    let mut missing: Vec<HostDevice> = devices.iter().copied().filter(|device| !has(device)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    // The card itself comes last: by then the guest's driver finds what belongs to it.
    missing.sort_by_key(|device| device.pci().map(|pci| (pci.domain, pci.bus, pci.slot, Reverse(pci.function))));
    let ports = xml::free_ports(&ours.domain.xml_desc(0).said(&doing)?)?;
    if ports.len() < missing.len() {
        let (free, wanted) = (ports.len(), missing.len());
        let message = format!("it has {free} free ports for {wanted} devices; more need a restart");
        return conflict(&doing, message);
    }
    let plug = |(device, port): (HostDevice, u8)| {
        let device = xml::hostdev(&shared.templates, device, port)?;
        ours.domain.attach_device_flags(&device, sys::VIR_DOMAIN_AFFECT_LIVE).map(|_| ()).said(&doing)
    };
    let result = missing.into_iter().zip(ports).try_for_each(plug);
    shared.cache.forget(vm);
    result
}

fn conflict<T>(doing: &str, message: impl Into<String>) -> Result<T> {
    Err(HypervisorError::new(ErrorKind::Conflict, doing, message))
}

/// Which of the two descriptions a change is for.
fn impact(ours: &Ours) -> u32 {
    if ours.is_active() {
        sys::VIR_DOMAIN_AFFECT_LIVE | sys::VIR_DOMAIN_AFFECT_CONFIG
    } else {
        sys::VIR_DOMAIN_AFFECT_CONFIG
    }
}

/// Network first: it is the one that a host may not be able to do, and then nothing else has changed.
fn apply_caps(shared: &Shared, ours: &Ours, caps: &Caps, doing: &str) -> Result<()> {
    let (domain, description, flags) = (&ours.domain, &ours.description, impact(ours));
    let rates = (caps.net_in_bytes_per_sec.map(xml::net_average), caps.net_out_bytes_per_sec.map(xml::net_average));
    if let Some(mac) = description.mac.as_deref().filter(|_| rates != description.net_average) {
        let average = |rate: Option<u64>| Setting::Uint(u32::try_from(rate.unwrap_or(0)).unwrap_or(u32::MAX));
        let settings = [("inbound.average", average(rates.0)), ("outbound.average", average(rates.1))];
        raw::set_interface(domain, mac, &settings, flags).said(doing)?;
    }
    let mut settings = Vec::new();
    if caps.cpu_shares != description.observed.caps.cpu_shares {
        // A weight cannot be taken away, only set back to what a cgroup has by itself.
        let shares = caps.cpu_shares.unwrap_or(shared.default_cpu_shares);
        settings.push(("cpu_shares", Setting::Ullong(u64::from(shares))));
    }
    if caps.cpu_percent != description.observed.caps.cpu_percent {
        let quota = caps.cpu_percent.and_then(|percent| i64::try_from(xml::cpu_quota_us(percent)).ok());
        settings.push(("global_period", Setting::Ullong(xml::CPU_PERIOD_US)));
        settings.push(("global_quota", Setting::Llong(quota.unwrap_or(-1))));
    }
    if !settings.is_empty() {
        raw::set_scheduler(domain, &settings, flags).said(doing)?;
    }
    let rates = [
        ("total_bytes_sec", Setting::Ullong(caps.disk_bytes_per_sec.unwrap_or(0))),
        ("total_iops_sec", Setting::Ullong(caps.disk_iops.unwrap_or(0))),
    ];
    let disk_caps = |caps: &Caps| (caps.disk_bytes_per_sec, caps.disk_iops);
    if disk_caps(caps) != disk_caps(&description.observed.caps) {
        for disk in description.disks.iter().filter(|disk| !disk.is_read_only) {
            raw::set_disk(domain, &disk.target, &rates, flags).said(doing)?;
        }
    }
    if *caps != description.asked_caps {
        let element = xml::caps(&shared.templates, caps)?;
        let (prefix, uri) = (Some(xml::CAPS_PREFIX), Some(xml::CAPS_URI));
        domain.set_metadata(METADATA_ELEMENT, Some(element.trim()), prefix, uri, flags).said(doing)?;
    }
    Ok(())
}

fn apply_vcpus(ours: &Ours, vcpus: u32, doing: &str) -> Result<()> {
    let observed = &ours.description.observed;
    if vcpus == observed.vcpus {
        return Ok(());
    }
    if vcpus == 0 || vcpus > observed.max_vcpus {
        let max = observed.max_vcpus;
        return conflict(doing, format!("it can have up to {max} vCPUs without a restart; {vcpus} need one"));
    }
    if ours.is_active() && vcpus < observed.vcpus {
        // Those present at start cannot be unplugged, and a guest may keep the others.
        return conflict(doing, "fewer vCPUs need a restart");
    }
    ours.domain.set_vcpus_flags(vcpus, impact(ours)).map(|_| ()).said(doing)
}

fn apply_memory(shared: &Shared, ours: &Ours, memory: Mib, doing: &str) -> Result<()> {
    let observed = &ours.description.observed;
    if !ours.is_active() {
        return conflict(doing, "it is off: define it anew");
    }
    let Some(more) = memory.0.checked_sub(observed.memory.0) else {
        return conflict(doing, "less memory needs a restart");
    };
    if more == 0 {
        return Ok(());
    }
    if memory > observed.max_memory {
        let max = observed.max_memory;
        return conflict(doing, format!("it can have up to {max} of memory without a restart; {memory} needs one"));
    }
    if !more.is_multiple_of(PLUG_STEP_MIB) {
        let (below, above) = (memory.0 - more % PLUG_STEP_MIB, memory.0 - more % PLUG_STEP_MIB + PLUG_STEP_MIB);
        let message = format!(
            "memory grows in steps of {PLUG_STEP_MIB} MiB without a restart: {} or {} would do",
            Mib(below),
            Mib(above)
        );
        return conflict(doing, message);
    }
    let dimm = xml::dimm(&shared.templates, Mib(more))?;
    ours.domain.attach_device_flags(&dimm, impact(ours)).map(|_| ()).said(doing)
}

fn apply_root_disk(ours: &Ours, size: Mib, doing: &str) -> Result<()> {
    if !ours.is_active() {
        return conflict(doing, "it is off: resize the image file");
    }
    let present = size_of_root(ours, doing)?;
    if size < present {
        return conflict(doing, format!("a disk cannot become smaller; it has {present}"));
    }
    if size == present {
        return Ok(());
    }
    let target = root_of(ours, doing)?;
    ours.domain.block_resize(&target, size.bytes(), sys::VIR_DOMAIN_BLOCK_RESIZE_BYTES).map(|_| ()).said(doing)
}

/// The size of the root disk, which is the first one that can be written.
pub(super) fn root_disk_size(conn: &Connect, vm: VmId) -> Result<Mib> {
    let doing = format!("looking at the root disk of domain {}", domain_name(vm));
    size_of_root(&need(conn, vm, &doing)?, &doing)
}

fn size_of_root(ours: &Ours, doing: &str) -> Result<Mib> {
    let info = ours.domain.block_info(&root_of(ours, doing)?, 0).said(doing)?;
    Ok(Mib::from_bytes_ceil(info.capacity))
}

fn root_of(ours: &Ours, doing: &str) -> Result<String> {
    let root = ours.description.disks.iter().find(|disk| !disk.is_read_only);
    let none = || HypervisorError::new(ErrorKind::NotFound, doing, "it has no disk that can be written");
    root.map(|disk| disk.target.clone()).ok_or_else(none)
}
