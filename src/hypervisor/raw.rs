//! The calls of libvirt that `virt` 0.5.0 does not wrap, leaks in, or loses errors of.
//!
//! `unsafe` is allowed in this file because it is the border to C: every function here takes and gives safe values,
//! frees what libvirt allocated, and reads libvirt's error on the thread that made the call.
//!
//! | call | why not through `virt` |
//! |---|---|
//! | bulk statistics | never frees the records |
//! | state of a domain | ignores a failed call and reports a state of -1 |
//! | errors of disks | not wrapped |
//! | scheduler, disk and network limits | not wrapped, or all parameters at once |
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::os::raw::{c_char, c_int, c_uchar, c_void};
use std::ptr;

use uuid::Uuid;
use virt::connect::Connect;
use virt::domain::Domain;
use virt::error::Error;
use virt_sys as sys;

/// Numbers of one domain by libvirt's names, such as `cpu.time`. Texts, fractions and negative numbers are left out:
/// none is used.
pub(super) type Numbers = BTreeMap<String, u64>;

/// One domain of the bulk call, read where libvirt put it: copying what is not looked at would cost more than the call.
pub(super) struct Record<'a>(&'a sys::virDomainStatsRecord);

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

/// All domains with their power states, in one call.
pub(super) fn all_states<T>(conn: &Connect, each: impl FnMut(&Record<'_>) -> T) -> Result<Vec<T>, Error> {
    let mut list: *mut sys::virDomainStatsRecordPtr = ptr::null_mut();
    // SAFETY: the connection is valid while it is borrowed; `list` is written before it is read.
    let count =
        unsafe { sys::virConnectGetAllDomainStats(conn.as_ptr(), sys::VIR_DOMAIN_STATS_STATE, &raw mut list, 0) };
    take_records(list, count, each)
}

impl Record<'_> {
    pub(super) fn uuid(&self) -> Uuid {
        let mut bytes: [c_uchar; 16] = [0; 16];
        // SAFETY: the record's domain is valid as long as the record; a UUID has 16 bytes.
        unsafe { sys::virDomainGetUUID(self.0.dom, bytes.as_mut_ptr()) };
        Uuid::from_bytes(bytes)
    }

    pub(super) fn name(&self) -> &[u8] {
        // SAFETY: the name belongs to the domain, which is valid as long as the record.
        bytes(unsafe { sys::virDomainGetName(self.0.dom) })
    }

    /// libvirt's number of a running domain; another at every start.
    pub(super) fn run(&self) -> Option<u32> {
        // SAFETY: the domain is valid. Fails with the largest number for one that is off.
        let run = unsafe { sys::virDomainGetID(self.0.dom) };
        (run != u32::MAX).then_some(run)
    }

    /// State and reason, libvirt's numbers.
    pub(super) fn state(&self) -> (i32, i32) {
        let (mut state, mut reason) = (0, 0);
        for parameter in parameters_of(self.0) {
            let value = || number(parameter).and_then(|number| i32::try_from(number).ok()).unwrap_or(0);
            match bytes(parameter.field.as_ptr()) {
                b"state.state" => state = value(),
                b"state.reason" => reason = value(),
                _ => {}
            }
        }
        (state, reason)
    }

    /// A handle that outlives the record.
    pub(super) fn domain(&self) -> Result<Domain, Error> {
        // SAFETY: the domain is valid.
        if unsafe { sys::virDomainRef(self.0.dom) } < 0 {
            return Err(Error::last_error());
        }
        // SAFETY: the reference taken above is now the handle's, which gives it back.
        Ok(unsafe { Domain::from_ptr(self.0.dom) })
    }
}

/// Statistics of one domain.
pub(super) fn stats(domain: &Domain, stats: sys::virDomainStatsTypes) -> Result<Numbers, Error> {
    let mut list: *mut sys::virDomainStatsRecordPtr = ptr::null_mut();
    // SAFETY: only reads the pointer; the domain is valid while it is borrowed.
    let mut domains = [unsafe { domain.as_ptr() }, ptr::null_mut()];
    // SAFETY: `domains` ends with a null pointer as libvirt wants it; `list` is written before it is read.
    let count = unsafe { sys::virDomainListGetStats(domains.as_mut_ptr(), stats, &raw mut list, 0) };
    let copied = take_records(list, count, |record| {
        let name =
            |parameter: &sys::virTypedParameter| String::from_utf8_lossy(bytes(parameter.field.as_ptr())).into_owned();
        let pair = |parameter| number(parameter).map(|number| (name(parameter), number));
        parameters_of(record.0).iter().filter_map(pair).collect()
    });
    Ok(copied?.pop().unwrap_or_default())
}

/// Reads a list of records and frees it.
fn take_records<T>(
    list: *mut sys::virDomainStatsRecordPtr,
    count: c_int,
    mut each: impl FnMut(&Record<'_>) -> T,
) -> Result<Vec<T>, Error> {
    let Ok(count) = usize::try_from(count) else { return Err(Error::last_error()) };
    let mut copies = Vec::with_capacity(count);
    for index in 0..count {
        // SAFETY: libvirt returned `count` records in an array.
        copies.push(each(&Record(unsafe { &**list.add(index) })));
    }
    if !list.is_null() {
        // SAFETY: the list is libvirt's own and is not used after this. Frees records, parameters and domains.
        unsafe { sys::virDomainStatsRecordListFree(list) };
    }
    Ok(copies)
}

fn parameters_of(record: &sys::virDomainStatsRecord) -> &[sys::virTypedParameter] {
    match usize::try_from(record.nparams) {
        // SAFETY: the record has `nparams` parameters in an array that lives as long as the record.
        Ok(count) if !record.params.is_null() => unsafe { std::slice::from_raw_parts(record.params, count) },
        _ => &[],
    }
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

/// A text of libvirt's, which lives as long as the object it was taken from.
fn bytes<'a>(chars: *const c_char) -> &'a [u8] {
    if chars.is_null() {
        return &[];
    }
    // SAFETY: libvirt's texts end with a null byte. Callers name no longer life than that of the object.
    unsafe { CStr::from_ptr(chars) }.to_bytes()
}

/// State and its reason, libvirt's numbers.
pub(super) fn state(domain: &Domain) -> Result<(i32, i32), Error> {
    let (mut state, mut reason) = (0, 0);
    // SAFETY: the domain is valid while it is borrowed.
    let code = unsafe { sys::virDomainGetState(domain.as_ptr(), &raw mut state, &raw mut reason, 0) };
    if code == 0 { Ok((state, reason)) } else { Err(Error::last_error()) }
}

/// True where QEMU holds an error of any of its disks, which it does from the failed write until it is told to go on.
pub(super) fn has_disk_error(domain: &Domain) -> Result<bool, Error> {
    // SAFETY: the domain is valid while it is borrowed; without an array libvirt tells how many disks there are.
    let disks = unsafe { sys::virDomainGetDiskErrors(domain.as_ptr(), ptr::null_mut(), 0, 0) };
    let Ok(room) = u32::try_from(disks) else { return Err(Error::last_error()) };
    let none = sys::virDomainDiskError { disk: ptr::null_mut(), error: 0 };
    let mut errors = vec![none; usize::try_from(room).unwrap_or(0)];
    // SAFETY: the array has room for that many.
    let count = unsafe { sys::virDomainGetDiskErrors(domain.as_ptr(), errors.as_mut_ptr(), room, 0) };
    for error in &errors {
        // SAFETY: libvirt allocated the names and leaves them to the caller; null for those it did not fill.
        unsafe { free(error.disk.cast()) };
    }
    if count < 0 { Err(Error::last_error()) } else { Ok(count > 0) }
}

unsafe extern "C" {
    /// The allocator that libvirt uses for what it hands out.
    fn free(memory: *mut c_void);
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
