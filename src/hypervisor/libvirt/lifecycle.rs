//! What should be: defining, starting, stopping, removing.

use uuid::Uuid;
use virt::connect::Connect;
use virt::domain::Domain;
use virt::error::{Error, ErrorNumber};
use virt_sys as sys;

use super::Shared;
use super::error::{Said, is};
use super::observe::{CHECK_PREFIX, Ours, find, lookup, need, need_active, read};
use crate::hypervisor::xml::{self, Site};
use crate::hypervisor::{DomainSpec, DomainVerdict, ErrorKind, HypervisorError, Result};
use crate::model::id::VmId;
use crate::model::state::Power;
use crate::model::vm::domain_name;

/// Flags of undefining, most thorough first; an older libvirt refuses the later ones.
const UNDEFINE: [u32; 4] = [
    BASIC | sys::VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA | sys::VIR_DOMAIN_UNDEFINE_TPM,
    BASIC | sys::VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA,
    BASIC,
    sys::VIR_DOMAIN_UNDEFINE_MANAGED_SAVE | sys::VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA,
];

const BASIC: u32 = sys::VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
    | sys::VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
    | sys::VIR_DOMAIN_UNDEFINE_NVRAM;

pub(super) fn define(conn: &Connect, shared: &Shared, spec: &DomainSpec) -> Result<()> {
    let doing = format!("defining domain {}", domain_name(spec.id));
    let known = find(conn, spec.id)?;
    if known.is_none() {
        refuse_foreign(conn, shared, spec.id, &doing)?;
    }
    if let Some(ours) = known.as_ref().filter(|ours| ours.is_active()) {
        if ours.description.observed.shape == spec.shape() {
            return Ok(());
        }
        let message = "it is active in another shape; the change needs a restart";
        return Err(HypervisorError::new(ErrorKind::Conflict, doing, message));
    }
    let xml = render(conn, shared, spec, known.as_ref())?;
    conn.define_domain_xml_flags(&xml, sys::VIR_DOMAIN_DEFINE_VALIDATE).said(&doing)?;
    shared.cache.forget(spec.id);
    Ok(())
}

/// A machine keeps its machine type for life: another one is other hardware to its guest.
fn render(conn: &Connect, shared: &Shared, spec: &DomainSpec, known: Option<&Ours>) -> Result<String> {
    let kept = known.and_then(|ours| ours.description.machine.clone()).filter(|machine| machine.starts_with("pc-q35-"));
    let machine = match kept {
        Some(machine) => machine,
        None => machine_type(conn, shared, if spec.accelerator.is_kvm() { "kvm" } else { "qemu" })?,
    };
    let cpuset = match spec.numa_node {
        None => None,
        Some(node) => xml::cpus_of_node(&conn.capabilities().said("reading libvirt's capabilities")?, node)?,
    };
    xml::domain(&shared.templates, spec, &Site { machine, cpuset })
}

/// The versioned name behind `q35`.
pub(super) fn machine_type(conn: &Connect, shared: &Shared, kind: &'static str) -> Result<String> {
    if let Some(machine) = shared.cache.machine(kind) {
        return Ok(machine);
    }
    let doing = format!("asking libvirt for the machine types of {kind}");
    let capabilities = conn.domain_capabilities(None, Some("x86_64"), Some("q35"), Some(kind), 0).said(&doing)?;
    let machine = xml::machine_type(&capabilities)?;
    shared.cache.put_machine(kind, &machine);
    Ok(machine)
}

fn refuse_foreign(conn: &Connect, shared: &Shared, vm: VmId, doing: &str) -> Result<()> {
    let holder = match lookup(conn, vm)? {
        Some(domain) => Some(domain),
        None => match conn.lookup_domain_by_name(&domain_name(vm)) {
            Ok(domain) => Some(domain),
            Err(error) if is(&error, ErrorNumber::NoDomain) => None,
            Err(error) => return Err(error).said(doing),
        },
    };
    let Some(domain) = holder else { return Ok(()) };
    let (name, uuid) = (domain.name().unwrap_or_default(), domain.uuid_string().unwrap_or_default());
    let state = if domain.is_active().unwrap_or(false) { "running" } else { "off" };
    let message = format!(
        "a domain that is not gvm's has its name or UUID: {name}, {uuid}, {state}; look at it with \
         `virsh -c {} dumpxml {uuid}` and remove or rename it",
        shared.uri
    );
    Err(HypervisorError::new(ErrorKind::Conflict, doing, message))
}

pub(super) fn start(conn: &Connect, shared: &Shared, vm: VmId) -> Result<()> {
    let doing = format!("starting domain {}", domain_name(vm));
    let ours = need(conn, vm, &doing)?;
    if ours.is_active() {
        return Ok(());
    }
    let result = ours.domain.create_with_flags(sys::VIR_DOMAIN_NONE);
    shared.cache.forget(vm);
    settle(result, &ours.domain, Wanted::Active, &doing)
}

/// Presses the power button. A guest with held vCPUs hears it when it goes on.
pub(super) fn press_power_button(conn: &Connect, vm: VmId) -> Result<Ours> {
    let doing = format!("shutting down domain {}", domain_name(vm));
    let ours = need(conn, vm, &doing)?;
    if ours.is_active() {
        let result = match ours.domain.shutdown_flags(sys::VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN) {
            // In-process drivers know only the plain call.
            Err(error) if is_unsupported(&error) => ours.domain.shutdown(),
            result => result,
        };
        settle(result.map(|_| 0), &ours.domain, Wanted::Off, &doing)?;
    }
    Ok(ours)
}

pub(super) fn force_off(conn: &Connect, shared: &Shared, vm: VmId) -> Result<()> {
    let doing = format!("forcing off domain {}", domain_name(vm));
    let Some(ours) = find(conn, vm)? else { return Ok(()) };
    if !ours.is_active() {
        return Ok(());
    }
    let result = ours.domain.destroy();
    shared.cache.forget(vm);
    settle(result, &ours.domain, Wanted::Off, &doing)
}

pub(super) fn pause(conn: &Connect, vm: VmId) -> Result<()> {
    let doing = format!("pausing domain {}", domain_name(vm));
    let ours = need_active(conn, vm, &doing)?;
    match ours.power() {
        Power::Paused(_) => Ok(()),
        _ => ours.domain.suspend().map(|_| ()).said(&doing),
    }
}

pub(super) fn resume(conn: &Connect, vm: VmId) -> Result<()> {
    let doing = format!("resuming domain {}", domain_name(vm));
    let ours = need_active(conn, vm, &doing)?;
    let (state, _) = ours.state;
    if state.cast_unsigned() == sys::VIR_DOMAIN_PMSUSPENDED {
        return ours.domain.pm_wakeup(0).map(|_| ()).said(&doing);
    }
    match ours.power() {
        Power::Paused(_) => ours.domain.resume().map(|_| ()).said(&doing),
        _ => Ok(()),
    }
}

pub(super) fn undefine(conn: &Connect, shared: &Shared, vm: VmId) -> Result<()> {
    let doing = format!("removing domain {}", domain_name(vm));
    let Some(ours) = find(conn, vm)? else { return Ok(()) };
    if ours.is_active() {
        // libvirt would make it a transient domain, which runs on without a definition.
        return Err(HypervisorError::new(ErrorKind::Conflict, doing, "it is still active"));
    }
    let result = undefine_all(&ours.domain);
    shared.cache.forget(vm);
    match result {
        Err(error) if is(&error, ErrorNumber::NoDomain) => Ok(()),
        result => result.said(&doing),
    }
}

fn undefine_all(domain: &Domain) -> std::result::Result<(), Error> {
    let mut result = Ok(());
    for flags in UNDEFINE {
        result = domain.undefine_flags(flags).map(|_| ());
        match &result {
            Err(error) if is_unsupported(error) => {}
            _ => break,
        }
    }
    result
}

fn is_unsupported(error: &Error) -> bool {
    [ErrorNumber::ArgumentUnsupported, ErrorNumber::InvalidArg, ErrorNumber::NoSupport].iter().any(|n| is(error, *n))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Active,
    Off,
}

/// A refused call is a success where the domain is as wanted all the same: somebody else was faster.
fn settle<T>(result: std::result::Result<T, Error>, domain: &Domain, wanted: Wanted, doing: &str) -> Result<()> {
    let Err(error) = result else { return Ok(()) };
    if is(&error, ErrorNumber::OperationInvalid) || is(&error, ErrorNumber::NoDomain) {
        let is_active = domain.is_active().unwrap_or(wanted != Wanted::Active);
        if is_active == (wanted == Wanted::Active) {
            return Ok(());
        }
    }
    Err(error).said(doing)
}

/// The verdict of the real libvirt: the description is defined under a name and UUID of its own with the schema check,
/// which also runs all checks of the QEMU driver, and removed at once. Nothing else sees everything: conversion to a
/// command line skips the schema, and in-process drivers do not know this host. What a crash leaves in between is
/// recognised by its name and removed by [`sweep_checks`].
pub(super) fn check(conn: &Connect, shared: &Shared, spec: &DomainSpec) -> Result<DomainVerdict> {
    let doing = format!("checking the description of {}", domain_name(spec.id));
    let known = find(conn, spec.id)?;
    let xml = render(conn, shared, spec, known.as_ref())?;
    let stand_in = Uuid::new_v4();
    let name = format!("<name>{}</name>", domain_name(spec.id));
    let stand_in_name = format!("<name>{CHECK_PREFIX}{stand_in}</name>");
    let uuid = format!("<uuid>{}</uuid>", spec.id);
    if xml.matches(&name).count() != 1 || xml.matches(&uuid).count() != 1 {
        let message = "the domain template must write name and UUID as plain elements";
        return Err(HypervisorError::new(ErrorKind::Permanent, doing, message));
    }
    let other = xml.replace(&name, &stand_in_name).replace(&uuid, &format!("<uuid>{stand_in}</uuid>"));
    let domain = conn.define_domain_xml_flags(&other, sys::VIR_DOMAIN_DEFINE_VALIDATE).said(&doing)?;
    match undefine_all(&domain) {
        Err(error) if is(&error, ErrorNumber::NoDomain) => {}
        result => result.said(&doing)?,
    }
    let native = conn.domain_xml_to_native("qemu-argv", &xml, 0).map_err(|error| error.message().to_owned());
    Ok(DomainVerdict { xml, native, template_diff: shared.templates.difference()? })
}

/// Removes what a check left behind when the manager was killed in it. Returns how many.
pub(in crate::hypervisor) fn sweep_checks(conn: &Connect) -> Result<usize> {
    let doing = "removing what checks left behind";
    let mut removed = 0;
    for domain in conn.list_all_domains(sys::VIR_CONNECT_LIST_DOMAINS_INACTIVE).said(doing)? {
        let name = domain.name().said(doing)?;
        let is_check = name.strip_prefix(CHECK_PREFIX) == domain.uuid_string().ok().as_deref();
        // Our metadata is there, but of the machine that it stood in for.
        if is_check && read(&domain)?.is_some_and(|description| !description.observed.shape.is_empty()) {
            undefine_all(&domain).said(doing)?;
            removed += 1;
        }
    }
    Ok(removed)
}
