//! The library itself, and cards.

use std::ffi::{c_char, c_int};
use std::sync::atomic::Ordering;

use nvml_wrapper_sys::bindings as sys;

use super::{Handle, USERS, ask, ask_card, begin, change_card, chars, done, put, put_text, take, take_text};
use crate::code;
use crate::rules::Code;
use crate::state::State;

type Device = sys::nvmlDevice_t;

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> Code {
    init("nvmlInit_v2")
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: u32) -> Code {
    init("nvmlInitWithFlags")
}

fn init(name: &str) -> Code {
    done(begin(name, None).map(|_| {
        USERS.fetch_add(1, Ordering::Relaxed);
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> Code {
    let less = |users: u32| users.checked_sub(1);
    match USERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
        Ok(_) => code::SUCCESS,
        Err(_) => code::UNINITIALIZED,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(result: Code) -> *const c_char {
    let text = match result {
        code::SUCCESS => c"Success",
        code::NOT_SUPPORTED => c"Not Supported",
        code::NO_PERMISSION => c"Insufficient Permissions",
        code::NOT_FOUND => c"Not Found",
        code::GPU_IS_LOST => c"GPU is lost",
        code::IN_USE => c"In use by another client",
        code::INSUFFICIENT_RESOURCES => c"Insufficient Resources",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetDriverVersion(text: *mut c_char, room: u32) -> Code {
    ask("nvmlSystemGetDriverVersion", None, |state| put_text(text, room, &state.driver))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetNVMLVersion(text: *mut c_char, room: u32) -> Code {
    ask("nvmlSystemGetNVMLVersion", None, |state| put_text(text, room, &format!("13.{}", state.driver)))
}

/// The cards that the library lists: those of its driver.
fn listed(state: &State) -> Vec<usize> {
    let is_listed = |at: &usize| {
        let card = &state.cards[*at];
        card.driver.as_deref() == Some("nvidia") && !state.dropped.contains(&card.address)
    };
    (0..state.cards.len()).filter(is_listed).collect()
}

fn give(state: &State, card: Option<usize>, device: *mut Device) -> Result<(), Code> {
    let card = card.ok_or(code::NOT_FOUND)?;
    if state.cards[card].is_lost {
        return Err(code::GPU_IS_LOST);
    }
    put(device, Handle::of(Handle::device(state, card)).pointer())
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCount_v2(count: *mut u32) -> Code {
    ask("nvmlDeviceGetCount_v2", None, |state| put(count, listed(state).len() as u32))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: u32, device: *mut Device) -> Code {
    ask("nvmlDeviceGetHandleByIndex_v2", None, |state| {
        let card = listed(state).get(index as usize).copied().ok_or(code::INVALID_ARGUMENT)?;
        give(state, Some(card), device)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: *const c_char, device: *mut Device) -> Code {
    ask("nvmlDeviceGetHandleByPciBusId_v2", None, |state| {
        let wanted = take_text(bus_id)?.to_ascii_lowercase();
        let is_it = |at: &usize| format!("{:0>16}", state.cards[*at].address) == format!("{wanted:0>16}");
        give(state, listed(state).into_iter().find(is_it), device)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut Device) -> Code {
    ask("nvmlDeviceGetHandleByUUID", None, |state| {
        let wanted = take_text(uuid)?;
        give(state, listed(state).into_iter().find(|at| state.cards[*at].uuid == wanted), device)
    })
}

/// Calls that read one card.
macro_rules! of_card {
    ($($name:ident($($argument:ident: $type:ty),*) |$card:ident| $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(device: Device, $($argument: $type),*) -> Code {
            ask_card(stringify!($name), device as usize, |$card| $body)
        }
    )*};
}

of_card! {
    nvmlDeviceGetName(text: *mut c_char, room: u32) |card| put_text(text, room, card.kind().name);
    nvmlDeviceGetUUID(text: *mut c_char, room: u32) |card| put_text(text, room, &card.uuid);
    nvmlDeviceGetMinorNumber(minor: *mut u32) |card| put(minor, card.minor);
    nvmlDeviceGetPersistenceMode(mode: *mut u32) |card| put(mode, u32::from(card.is_persistent));
    nvmlDeviceGetPowerUsage(milliwatts: *mut u32) |card| put(milliwatts, card.load.2);
    nvmlDeviceGetTemperature(_sensor: u32, celsius: *mut u32) |card| put(celsius, card.load.1);

    nvmlDeviceGetPciInfo_v3(info: *mut sys::nvmlPciInfo_t) |card| {
        let (domain, rest) = card.address.split_once(':').ok_or(code::UNKNOWN)?;
        let number = |text: &str| u32::from_str_radix(text, 16).map_err(|_| code::UNKNOWN);
        let (kind, text) = (card.kind(), rest.to_ascii_uppercase());
        put(info, sys::nvmlPciInfo_t {
            busIdLegacy: chars(&card.address.to_ascii_uppercase()),
            domain: number(domain)?,
            bus: number(&rest[..2])?,
            device: number(&rest[3..5])?,
            pciDeviceId: u32::from(kind.device) << 16 | 0x10de,
            pciSubSystemId: u32::from(kind.subsystem.1) << 16 | u32::from(kind.subsystem.0),
            busId: chars(&format!("{:08X}:{text}", number(domain)?)),
        })
    };

    nvmlDeviceGetMemoryInfo(info: *mut sys::nvmlMemory_t) |card| {
        let total = card.kind().memory_mib << 20;
        put(info, sys::nvmlMemory_t { total, free: total, used: 0 })
    };

    nvmlDeviceGetMemoryInfo_v2(info: *mut sys::nvmlMemory_v2_t) |card| {
        let version = size_of::<sys::nvmlMemory_v2_t>() as u32 | 2 << 24;
        // Only the version is set by the caller, in front.
        if take(info.cast::<u32>())? != version {
            return Err(code::VERSION_MISMATCH);
        }
        let total = card.kind().memory_mib << 20;
        put(info, sys::nvmlMemory_v2_t { version, total, reserved: 0, free: total, used: 0 })
    };

    nvmlDeviceGetUtilizationRates(rates: *mut sys::nvmlUtilization_t) |card| match card.mig.0 {
        // Nobody can tell for a card that is divided.
        true => Err(code::NOT_SUPPORTED),
        false => put(rates, sys::nvmlUtilization_t { gpu: card.load.0, memory: card.load.0 }),
    };

    nvmlDeviceGetRemappedRows(correctable: *mut u32, uncorrectable: *mut u32, pending: *mut u32, failed: *mut u32) |card| {
        let (one, two, is_pending, has_failed) = card.remapped.ok_or(code::NOT_SUPPORTED)?;
        put(correctable, one)?;
        put(uncorrectable, two)?;
        put(pending, u32::from(is_pending))?;
        put(failed, u32::from(has_failed))
    };

    nvmlDeviceGetCurrentClocksEventReasons(reasons: *mut u64) |card| put(reasons, card.clock_reasons);

    nvmlDeviceGetFieldValues(count: c_int, values: *mut sys::nvmlFieldValue_t) |card| {
        let count = usize::try_from(count).map_err(|_| code::INVALID_ARGUMENT)?;
        for number in 0..count {
            let at = values.wrapping_add(number);
            let mut value = take(at)?;
            value.nvmlReturn = match value.fieldId {
                sys::field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION => {
                    value.valueType = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT;
                    value.value.uiVal = card.recovery;
                    code::SUCCESS
                }
                _ => code::NOT_SUPPORTED,
            };
            put(at, value)?;
        }
        Ok(())
    };
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceSetPersistenceMode(device: Device, mode: u32) -> Code {
    let set = change_card("nvmlDeviceSetPersistenceMode", super::DEVICE, device as usize, |card| {
        card.is_persistent = mode != 0;
        Ok(())
    });
    done(set)
}
