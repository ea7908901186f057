//! The calls of libvirt that `virt` 0.5.0 does not wrap, leaks in, or loses errors of.
//!
//! `unsafe` is allowed in this file because it is the border to C: every function here takes and gives safe values,
//! frees what libvirt allocated, and reads libvirt's error on the thread that made the call.
//!
//! | call | why not through `virt` |
//! |---|---|
//! | bulk statistics | never frees the records |
//! | state of a domain | ignores a failed call and reports a state of -1 |
//! | scheduler, disk and network limits | not wrapped, or all parameters at once |
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::os::raw::{c_char, c_int, c_uchar};
use std::ptr;

use uuid::Uuid;
use virt::connect::Connect;
use virt::domain::Domain;
use virt::error::Error;
use virt_sys as sys;

/// Numbers of one domain by libvirt's names, such as `state.state`. Texts, fractions and negative numbers are left
/// out: none is used.
pub(super) type Numbers = BTreeMap<String, u64>;

/// One domain of the bulk call.
pub(super) struct Record {
    pub domain: Domain,
    pub uuid: Uuid,
    pub name: String,
    /// libvirt's number of a running domain; another at every start.
    pub run: Option<u32>,
    pub numbers: Numbers,
}

/// A parameter to set.
#[derive(Clone, Copy, Debug)]
pub(super) enum Setting {
    /// `VIR_TYPED_PARAM_UINT`
    Uint(u32),
    /// `VIR_TYPED_PARAM_LLONG`
    Llong(i64),
    /// `VIR_TYPED_PARAM_ULLONG`
    Ullong(u64),
}

/// Statistics of all domains in one call.
pub(super) fn all_stats(conn: &Connect, stats: sys::virDomainStatsTypes, flags: u32) -> Result<Vec<Record>, Error> {
    let mut list: *mut sys::virDomainStatsRecordPtr = ptr::null_mut();
    // SAFETY: the connection is valid while it is borrowed; `list` is written before it is read.
    let count = unsafe { sys::virConnectGetAllDomainStats(conn.as_ptr(), stats, &raw mut list, flags) };
    take_records(list, count)
}

/// Statistics of one domain.
pub(super) fn stats(domain: &Domain, stats: sys::virDomainStatsTypes) -> Result<Option<Record>, Error> {
    let mut list: *mut sys::virDomainStatsRecordPtr = ptr::null_mut();
    // SAFETY: only reads the pointer; the domain is valid while it is borrowed.
    let mut domains = [unsafe { domain.as_ptr() }, ptr::null_mut()];
    // SAFETY: `domains` ends with a null pointer as libvirt wants it; `list` is written before it is read.
    let count = unsafe { sys::virDomainListGetStats(domains.as_mut_ptr(), stats, &raw mut list, 0) };
    Ok(take_records(list, count)?.pop())
}

/// Copies a list of records and frees it.
fn take_records(list: *mut sys::virDomainStatsRecordPtr, count: c_int) -> Result<Vec<Record>, Error> {
    let Ok(count) = usize::try_from(count) else { return Err(Error::last_error()) };
    let mut records = Vec::with_capacity(count);
    for index in 0..count {
        // SAFETY: libvirt returned `count` records in an array.
        let record = unsafe { **list.add(index) };
        records.extend(copy_record(&record));
    }
    if !list.is_null() {
        // SAFETY: the list is libvirt's own and is not used after this. Frees records, parameters and domains.
        unsafe { sys::virDomainStatsRecordListFree(list) };
    }
    Ok(records)
}

fn copy_record(record: &sys::virDomainStatsRecord) -> Option<Record> {
    // SAFETY: the record's domain is valid until the list is freed.
    if unsafe { sys::virDomainRef(record.dom) } < 0 {
        return None;
    }
    // SAFETY: the reference taken above is now the handle's, which gives it back.
    let domain = unsafe { Domain::from_ptr(record.dom) };
    let mut bytes: [c_uchar; 16] = [0; 16];
    // SAFETY: the record's domain is valid until the list is freed; a UUID has 16 bytes.
    unsafe { sys::virDomainGetUUID(record.dom, bytes.as_mut_ptr()) };
    // SAFETY: as above; the name belongs to the domain.
    let name = text(unsafe { sys::virDomainGetName(record.dom) });
    // SAFETY: as above. Fails with the largest number for a domain that is off.
    let run = unsafe { sys::virDomainGetID(record.dom) };
    let mut numbers = Numbers::new();
    for index in 0..usize::try_from(record.nparams).unwrap_or(0) {
        // SAFETY: the record has `nparams` parameters in an array.
        let parameter = unsafe { &*record.params.add(index) };
        if let Some(number) = number(parameter) {
            numbers.insert(text(parameter.field.as_ptr()), number);
        }
    }
    Some(Record { domain, uuid: Uuid::from_bytes(bytes), name, run: (run != u32::MAX).then_some(run), numbers })
}

fn number(parameter: &sys::virTypedParameter) -> Option<u64> {
    let kind = u32::try_from(parameter.type_).ok()?;
    // SAFETY: `type_` says which member of the union libvirt wrote.
    unsafe {
        match kind {
            sys::VIR_TYPED_PARAM_INT => u64::try_from(parameter.value.i).ok(),
            sys::VIR_TYPED_PARAM_UINT => Some(u64::from(parameter.value.ui)),
            sys::VIR_TYPED_PARAM_LLONG => u64::try_from(parameter.value.l).ok(),
            sys::VIR_TYPED_PARAM_ULLONG => Some(parameter.value.ul),
            _ => None,
        }
    }
}

fn text(chars: *const c_char) -> String {
    if chars.is_null() {
        return String::new();
    }
    // SAFETY: libvirt's texts end with a null byte and live as long as the object they were taken from.
    unsafe { CStr::from_ptr(chars) }.to_string_lossy().into_owned()
}

/// State and its reason, libvirt's numbers.
pub(super) fn state(domain: &Domain) -> Result<(i32, i32), Error> {
    let (mut state, mut reason) = (0, 0);
    // SAFETY: the domain is valid while it is borrowed.
    let code = unsafe { sys::virDomainGetState(domain.as_ptr(), &raw mut state, &raw mut reason, 0) };
    if code == 0 { Ok((state, reason)) } else { Err(Error::last_error()) }
}

/// CPU weight and quota.
pub(super) fn set_scheduler(domain: &Domain, settings: &[(&str, Setting)], flags: u32) -> Result<(), Error> {
    let mut parameters = parameters(settings);
    let count = count(&parameters);
    // SAFETY: the domain is valid while it is borrowed; numbers only, so that nothing has to be freed.
    check(unsafe { sys::virDomainSetSchedulerParametersFlags(domain.as_ptr(), parameters.as_mut_ptr(), count, flags) })
}

/// Rates of a disk.
pub(super) fn set_disk(domain: &Domain, disk: &str, settings: &[(&str, Setting)], flags: u32) -> Result<(), Error> {
    let disk = CString::new(disk)?;
    let mut parameters = parameters(settings);
    let count = count(&parameters);
    // SAFETY: as in `set_scheduler`; the name lives until the call has returned.
    check(unsafe {
        sys::virDomainSetBlockIoTune(domain.as_ptr(), disk.as_ptr(), parameters.as_mut_ptr(), count, flags)
    })
}

/// Rates of a network card, named by its address.
pub(super) fn set_interface(domain: &Domain, mac: &str, settings: &[(&str, Setting)], flags: u32) -> Result<(), Error> {
    let mac = CString::new(mac)?;
    let mut parameters = parameters(settings);
    let count = count(&parameters);
    // SAFETY: as in `set_disk`.
    check(unsafe {
        sys::virDomainSetInterfaceParameters(domain.as_ptr(), mac.as_ptr(), parameters.as_mut_ptr(), count, flags)
    })
}

fn check(code: c_int) -> Result<(), Error> {
    if code < 0 { Err(Error::last_error()) } else { Ok(()) }
}

fn count(parameters: &[sys::virTypedParameter]) -> c_int {
    c_int::try_from(parameters.len()).unwrap_or(0)
}

fn parameters(settings: &[(&str, Setting)]) -> Vec<sys::virTypedParameter> {
    settings.iter().map(|(name, setting)| parameter(name, *setting)).collect()
}

fn parameter(name: &str, setting: Setting) -> sys::virTypedParameter {
    // SAFETY: all bytes zero is a valid parameter: an empty name, type 0, value 0.
    let mut parameter: sys::virTypedParameter = unsafe { std::mem::zeroed() };
    // The last byte stays zero and ends the name.
    let room = parameter.field.len().saturating_sub(1);
    for (to, from) in parameter.field.iter_mut().take(room).zip(name.as_bytes()) {
        *to = c_char::from_ne_bytes([*from]);
    }
    let kind = match setting {
        Setting::Uint(value) => {
            parameter.value.ui = value;
            sys::VIR_TYPED_PARAM_UINT
        }
        Setting::Llong(value) => {
            parameter.value.l = value;
            sys::VIR_TYPED_PARAM_LLONG
        }
        Setting::Ullong(value) => {
            parameter.value.ul = value;
            sys::VIR_TYPED_PARAM_ULLONG
        }
    };
    parameter.type_ = c_int::try_from(kind).unwrap_or(0);
    parameter
}
