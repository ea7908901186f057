//! What is: domains as libvirt describes them now.

use std::sync::Arc;

use virt::connect::Connect;
use virt::domain::Domain;
use virt::error::ErrorNumber;
use virt_sys as sys;

use super::Cache;
use super::cache::Mark;
use super::error::{Said, is};
use crate::hypervisor::xml::{Description, read_domain};
use crate::hypervisor::{DomainStats, ErrorKind, HypervisorError, Result, raw};
use crate::model::id::VmId;
use crate::model::state::{Observed, ObservedDomain, Power, WhyPaused};
use crate::model::vm::domain_name;

/// Names of domains that look like ours begin so.
const OUR_PREFIX: &str = "gvm-";

/// Names of domains that `check` defines for a moment.
pub(super) const CHECK_PREFIX: &str = "gvm-check-";

/// All domains that look like ours.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub ours: Vec<(VmId, Observed)>,
    pub strangers: Vec<String>,
}

/// One call for the power states of all, and one for each domain whose description is not known to hold still.
pub(super) fn survey(conn: &Connect, cache: &Cache) -> Result<Survey> {
    let doing = "listing domains";
    let mark = cache.mark();
    let look = |record: &raw::Record<'_>| look(record, cache, mark);
    let mut survey = Survey::default();
    for seen in raw::all_states(conn, look).said(doing)? {
        match seen? {
            Seen::Ours(vm, observed) => survey.ours.push((vm, observed)),
            Seen::Stranger(name) => survey.strangers.push(name),
            Seen::Nothing => {}
        }
    }
    cache.keep_only(survey.ours.iter().map(|(vm, _)| *vm));
    Ok(survey)
}

enum Seen {
    Ours(VmId, Observed),
    Stranger(String),
    /// Not even named like ours, or gone since the first call.
    Nothing,
}

fn look(record: &raw::Record<'_>, cache: &Cache, mark: Mark) -> Result<Seen> {
    let name = record.name();
    if !name.starts_with(OUR_PREFIX.as_bytes()) || name.starts_with(CHECK_PREFIX.as_bytes()) {
        return Ok(Seen::Nothing);
    }
    let (vm, run) = (VmId::from_uuid(record.uuid()), record.run());
    let description = match cache.get(vm, run) {
        Some(description) => description,
        None => match record.domain().said("listing domains").and_then(|domain| read(&domain)) {
            Ok(Some(description)) => {
                let description = Arc::new(description);
                cache.put(vm, run, Arc::clone(&description), mark);
                description
            }
            Ok(None) => return Ok(Seen::Nothing),
            // The connection is gone: nothing may be concluded of any.
            Err(error) if error.kind == ErrorKind::Transient => return Err(error),
            Err(error) => return Ok(Seen::Ours(vm, Observed::Unknown(error.to_string()))),
        },
    };
    if description.id != Some(vm) {
        return Ok(Seen::Stranger(String::from_utf8_lossy(name).into_owned()));
    }
    let mut state = record.state();
    if seems_asked(state) {
        state = with_disk_errors(&record.domain().said("listing domains")?, state);
    }
    Ok(Seen::Ours(vm, Observed::Defined(observed(&description, state))))
}

/// One machine, asked anew.
pub(super) fn observe(conn: &Connect, vm: VmId) -> Result<Observed> {
    let Some(ours) = find(conn, vm)? else { return Ok(Observed::Missing) };
    Ok(Observed::Defined(observed(&ours.description, ours.state)))
}

/// A domain that is ours, with what libvirt says of it now.
pub(super) struct Ours {
    pub domain: Domain,
    pub description: Description,
    /// libvirt's state and reason.
    pub state: (i32, i32),
}

impl Ours {
    /// True where it holds memory and devices of the host.
    pub(super) fn is_active(&self) -> bool {
        let (state, _) = self.state;
        state != code(sys::VIR_DOMAIN_SHUTOFF) && state != code(sys::VIR_DOMAIN_CRASHED)
    }

    pub(super) fn power(&self) -> Power {
        power(self.state).0
    }
}

/// The machine's domain; `None` where there is none, or where the one with its UUID is not ours.
pub(super) fn find(conn: &Connect, vm: VmId) -> Result<Option<Ours>> {
    let Some(domain) = lookup(conn, vm)? else { return Ok(None) };
    let doing = format!("looking at domain {}", domain_name(vm));
    // State first: a description that is newer than the state does no harm, the other way round limits of a finished
    // run could be reported for the definition.
    let state = match raw::state(&domain) {
        Err(error) if is(&error, ErrorNumber::NoDomain) => return Ok(None),
        state => with_disk_errors(&domain, state.said(&doing)?),
    };
    let Some(description) = read(&domain)? else { return Ok(None) };
    Ok((description.id == Some(vm)).then_some(Ours { domain, description, state }))
}

/// As [`find`], where the machine has to be there.
pub(super) fn need(conn: &Connect, vm: VmId, doing: &str) -> Result<Ours> {
    let missing = || HypervisorError::new(ErrorKind::NotFound, doing, "there is no such domain");
    find(conn, vm)?.ok_or_else(missing)
}

/// As [`need`], where it has to be active.
pub(super) fn need_active(conn: &Connect, vm: VmId, doing: &str) -> Result<Ours> {
    let ours = need(conn, vm, doing)?;
    let off = || HypervisorError::new(ErrorKind::Conflict, doing, "it is off");
    if ours.is_active() { Ok(ours) } else { Err(off()) }
}

/// The domain with this UUID, whosever it is.
pub(super) fn lookup(conn: &Connect, vm: VmId) -> Result<Option<Domain>> {
    match conn.lookup_domain_by_uuid(vm.uuid()) {
        Ok(domain) => Ok(Some(domain)),
        Err(error) if is(&error, ErrorNumber::NoDomain) => Ok(None),
        Err(error) => Err(error).said(&format!("looking for domain {}", domain_name(vm))),
    }
}

/// The description of a domain; `None` where it is gone.
pub(super) fn read(domain: &Domain) -> Result<Option<Description>> {
    match domain.xml_desc(0) {
        Ok(xml) => read_domain(&xml).map(Some),
        Err(error) if is(&error, ErrorNumber::NoDomain) => Ok(None),
        Err(error) => Err(error).said("reading a domain's description"),
    }
}

/// QEMU tells of at most one failed write a second; one that fails sooner after a resume stops the guest without a
/// word, and libvirt takes it for a request. So a guest that seems to be held by request is asked for disk errors.
fn with_disk_errors(domain: &Domain, state: (i32, i32)) -> (i32, i32) {
    if seems_asked(state) && raw::has_disk_error(domain).unwrap_or(false) {
        (code(sys::VIR_DOMAIN_PAUSED), code(sys::VIR_DOMAIN_PAUSED_IOERROR))
    } else {
        state
    }
}

fn seems_asked((state, reason): (i32, i32)) -> bool {
    let reasons = [sys::VIR_DOMAIN_PAUSED_USER, sys::VIR_DOMAIN_PAUSED_UNKNOWN];
    state == code(sys::VIR_DOMAIN_PAUSED) && reasons.map(code).contains(&reason)
}

fn observed(description: &Description, state: (i32, i32)) -> ObservedDomain {
    let mut observed = description.observed.clone();
    let is_off_by_guest;
    (observed.power, is_off_by_guest) = power(state);
    observed.is_off_by_guest = is_off_by_guest;
    if matches!(observed.power, Power::Off | Power::Crashed) {
        observed.hostdevs.clear();
    }
    observed
}

const fn code(value: u32) -> i32 {
    value.cast_signed()
}

/// The power state, and whether the guest itself ended the last run.
fn power((state, reason): (i32, i32)) -> (Power, bool) {
    let (state, reason) = (state.cast_unsigned(), reason.cast_unsigned());
    let power = match state {
        sys::VIR_DOMAIN_SHUTDOWN => Power::ShuttingDown,
        sys::VIR_DOMAIN_CRASHED => Power::Crashed,
        // Whatever ended it, a crash of QEMU or of the guest included: there is nothing left to force off.
        sys::VIR_DOMAIN_SHUTOFF => Power::Off,
        sys::VIR_DOMAIN_PMSUSPENDED => Power::Paused(WhyPaused::Asked),
        sys::VIR_DOMAIN_PAUSED => match reason {
            sys::VIR_DOMAIN_PAUSED_IOERROR => Power::Paused(WhyPaused::StorageError),
            sys::VIR_DOMAIN_PAUSED_CRASHED => Power::Crashed,
            sys::VIR_DOMAIN_PAUSED_UNKNOWN | sys::VIR_DOMAIN_PAUSED_USER | sys::VIR_DOMAIN_PAUSED_WATCHDOG => {
                Power::Paused(WhyPaused::Asked)
            }
            _ => Power::Paused(WhyPaused::Transition),
        },
        _ => Power::Running,
    };
    let by_guest = state == sys::VIR_DOMAIN_SHUTOFF && reason == sys::VIR_DOMAIN_SHUTOFF_SHUTDOWN;
    (power, by_guest)
}

/// Numbers of a running machine.
pub(super) fn stats(conn: &Connect, vm: VmId) -> Result<DomainStats> {
    let doing = format!("reading numbers of domain {}", domain_name(vm));
    let ours = need_active(conn, vm, &doing)?;
    let wanted = sys::VIR_DOMAIN_STATS_CPU_TOTAL
        | sys::VIR_DOMAIN_STATS_BALLOON
        | sys::VIR_DOMAIN_STATS_INTERFACE
        | sys::VIR_DOMAIN_STATS_BLOCK;
    let numbers = raw::stats(&ours.domain, wanted).said(&doing)?;
    let number = |name: &str| numbers.get(name).copied().unwrap_or(0);
    let sum = |prefix: &str, suffix: &str| {
        let is_wanted = |name: &str| name.starts_with(prefix) && name.ends_with(suffix);
        numbers.iter().filter(|(name, _)| is_wanted(name)).map(|(_, number)| *number).sum()
    };
    Ok(DomainStats {
        cpu_time_ns: number("cpu.time"),
        rss_kib: number("balloon.rss"),
        disk_read_bytes: sum("block.", ".rd.bytes"),
        disk_write_bytes: sum("block.", ".wr.bytes"),
        net_rx_bytes: sum("net.", ".rx.bytes"),
        net_tx_bytes: sum("net.", ".tx.bytes"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_libvirt_have_one_meaning_each() {
        let of = |state: u32, reason: u32| power((state.cast_signed(), reason.cast_signed()));
        assert_eq!(of(sys::VIR_DOMAIN_RUNNING, 1), (Power::Running, false));
        assert_eq!(of(sys::VIR_DOMAIN_BLOCKED, 0), (Power::Running, false));
        assert_eq!(of(sys::VIR_DOMAIN_SHUTOFF, sys::VIR_DOMAIN_SHUTOFF_SHUTDOWN), (Power::Off, true));
        assert_eq!(of(sys::VIR_DOMAIN_SHUTOFF, sys::VIR_DOMAIN_SHUTOFF_DESTROYED), (Power::Off, false));
        assert_eq!(of(sys::VIR_DOMAIN_SHUTOFF, sys::VIR_DOMAIN_SHUTOFF_FAILED), (Power::Off, false));
        assert_eq!(of(sys::VIR_DOMAIN_SHUTOFF, sys::VIR_DOMAIN_SHUTOFF_CRASHED), (Power::Off, false));
        assert_eq!(of(sys::VIR_DOMAIN_CRASHED, 0), (Power::Crashed, false));
        let paused = |reason| of(sys::VIR_DOMAIN_PAUSED, reason).0;
        assert_eq!(paused(sys::VIR_DOMAIN_PAUSED_IOERROR), Power::Paused(WhyPaused::StorageError));
        assert_eq!(paused(sys::VIR_DOMAIN_PAUSED_USER), Power::Paused(WhyPaused::Asked));
        assert_eq!(paused(sys::VIR_DOMAIN_PAUSED_STARTING_UP), Power::Paused(WhyPaused::Transition));
    }
}
