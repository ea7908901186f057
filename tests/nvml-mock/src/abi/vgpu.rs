//! vGPUs: how they are made, their types, and those of running machines.

use std::ffi::c_char;

use nvml_wrapper_sys::bindings as sys;

use super::{ask, ask_card, put, put_all, put_counted, put_text, take};
use crate::code;
use crate::kinds::{self, VgpuType};
use crate::rules::Code;
use crate::state::{Card, Framework, State, now};

type Device = sys::nvmlDevice_t;

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHostVgpuMode(device: Device, mode: *mut u32) -> Code {
    ask_card("nvmlDeviceGetHostVgpuMode", device as usize, |card| match card.framework {
        Framework::None => Err(code::NOT_SUPPORTED),
        _ => put(mode, u32::from(card.kind().functions > 0)),
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetVirtualizationMode(device: Device, mode: *mut u32) -> Code {
    ask_card("nvmlDeviceGetVirtualizationMode", device as usize, |card| {
        put(mode, if card.framework == Framework::None { 0 } else { 3 })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetVgpuHeterogeneousMode(
    device: Device,
    mode: *mut sys::nvmlVgpuHeterogeneousMode_t,
) -> Code {
    ask_card("nvmlDeviceGetVgpuHeterogeneousMode", device as usize, |card| match card.framework {
        Framework::None => Err(code::NOT_SUPPORTED),
        _ if card.mig.0 => Err(code::NOT_SUPPORTED),
        _ => {
            let version = take(mode)?.version;
            put(mode, sys::nvmlVgpuHeterogeneousMode_t { version, mode: u32::from(card.is_mixed) })
        }
    })
}

fn ids(card: &Card, all: &[&VgpuType]) -> Result<Vec<u32>, Code> {
    match card.framework {
        Framework::None => Err(code::NOT_SUPPORTED),
        _ => Ok(all.iter().map(|kind| kind.id).collect()),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetSupportedVgpus(device: Device, count: *mut u32, types: *mut u32) -> Code {
    ask_card("nvmlDeviceGetSupportedVgpus", device as usize, |card| {
        put_counted(types, count, ids(card, &card.kind().types.iter().collect::<Vec<_>>())?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCreatableVgpus(device: Device, count: *mut u32, types: *mut u32) -> Code {
    ask_card("nvmlDeviceGetCreatableVgpus", device as usize, |card| {
        put_counted(types, count, ids(card, &card.creatable())?)
    })
}

/// Calls that read one type.
macro_rules! of_type {
    ($($name:ident($($argument:ident: $type:ty),*) |$kind:ident| $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(id: u32, $($argument: $type),*) -> Code {
            ask(stringify!($name), None, |_| {
                let all = kinds::all().iter().flat_map(|kind| &kind.types);
                let $kind = all.into_iter().find(|kind| kind.id == id).ok_or(code::INVALID_ARGUMENT)?;
                $body
            })
        }
    )*};
}

of_type! {
    nvmlVgpuTypeGetName(text: *mut c_char, room: *mut u32) |kind| put_text(text, take(room)?, &kind.name);
    nvmlVgpuTypeGetClass(text: *mut c_char, room: *mut u32) |kind| {
        put_text(text, take(room)?, if kind.name.ends_with('C') { "Compute" } else { "Quadro" })
    };
    nvmlVgpuTypeGetFramebufferSize(bytes: *mut u64) |kind| put(bytes, kind.memory_gib << 30);
    nvmlVgpuTypeGetGpuInstanceProfileId(profile: *mut u32) |kind| put(profile, kind.profile.unwrap_or(u32::MAX));
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlVgpuTypeGetMaxInstances(device: Device, id: u32, most: *mut u32) -> Code {
    ask_card("nvmlVgpuTypeGetMaxInstances", device as usize, |card| {
        put(most, card.vgpu_type(id).ok_or(code::INVALID_ARGUMENT)?.most)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlVgpuTypeGetMaxInstancesPerGpuInstance(info: *mut sys::nvmlVgpuTypeMaxInstance_v1_t) -> Code {
    ask("nvmlVgpuTypeGetMaxInstancesPerGpuInstance", None, |_| {
        let mut told = take(info)?;
        let all = kinds::all().iter().flat_map(|kind| &kind.types);
        let kind = all.into_iter().find(|kind| kind.id == told.vgpuTypeId).ok_or(code::INVALID_ARGUMENT)?;
        told.maxInstancePerGI = kind.per_instance;
        put(info, told)
    })
}

/// A vGPU that a machine has.
struct Active {
    number: u32,
    kind: u32,
    instance: Option<u32>,
    uuid: String,
}

/// Those of a card; their numbers tell the card and the place on it.
fn active(at: usize, card: &Card) -> Vec<Active> {
    let functions = card.functions.iter().map(|one| (one.is_in_use, one.vgpu, one.instance));
    let mdevs = card.mdevs.iter().map(|one| (one.is_in_use, one.vgpu, one.instance));
    let all = functions.chain(mdevs).zip(1..).filter(|((is_in_use, ..), _)| *is_in_use);
    let one = |((_, kind, instance), place): ((bool, u32, Option<u32>), u32)| {
        let number = (at as u32) << 16 | place;
        Active { number, kind, instance, uuid: format!("00000000-0000-0000-0001-{number:012x}") }
    };
    all.map(one).collect()
}

fn find(state: &State, number: u32) -> Result<Active, Code> {
    let all = state.cards.iter().enumerate().flat_map(|(at, card)| active(at, card));
    all.into_iter().find(|one| one.number == number).ok_or(code::NOT_FOUND)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetActiveVgpus(device: Device, count: *mut u32, vgpus: *mut u32) -> Code {
    let at = super::Handle::of(device as usize).card as usize;
    ask_card("nvmlDeviceGetActiveVgpus", device as usize, |card| match card.framework {
        Framework::None => Err(code::NOT_SUPPORTED),
        _ => put_counted(vgpus, count, active(at, card).iter().map(|one| one.number).collect()),
    })
}

/// Calls that read one vGPU.
macro_rules! of_vgpu {
    ($($name:ident($($argument:ident: $type:ty),*) |$vgpu:ident| $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(vgpu: u32, $($argument: $type),*) -> Code {
            ask(stringify!($name), None, |state| {
                let $vgpu = find(state, vgpu)?;
                $body
            })
        }
    )*};
}

of_vgpu! {
    nvmlVgpuInstanceGetType(kind: *mut u32) |vgpu| put(kind, vgpu.kind);
    nvmlVgpuInstanceGetGpuInstanceId(id: *mut u32) |vgpu| put(id, vgpu.instance.unwrap_or(u32::MAX));
    nvmlVgpuInstanceGetUUID(text: *mut c_char, room: u32) |vgpu| put_text(text, room, &vgpu.uuid);
    nvmlVgpuInstanceGetFbUsage(bytes: *mut u64) |_vgpu| put(bytes, 0);
    nvmlVgpuInstanceGetVmID(text: *mut c_char, room: u32, kind: *mut u32) |vgpu| {
        put_text(text, room, &vgpu.uuid)?;
        put(kind, 1)
    };
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetVgpuInstancesUtilizationInfo(
    device: Device,
    info: *mut sys::nvmlVgpuInstancesUtilizationInfo_t,
) -> Code {
    let at = super::Handle::of(device as usize).card as usize;
    ask_card("nvmlDeviceGetVgpuInstancesUtilizationInfo", device as usize, |card| {
        let mut told = take(info)?;
        let all = active(at, card);
        let room = told.vgpuInstanceCount as usize;
        told.vgpuInstanceCount = all.len() as u32;
        told.sampleValType = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT;
        put(info, told)?;
        if told.vgpuUtilArray.is_null() || room < all.len() {
            return Err(code::INSUFFICIENT_SIZE);
        }
        // All of them share what the card does.
        let share = sys::nvmlValue_t { uiVal: card.load.0.checked_div(all.len() as u32).unwrap_or(0) };
        let none = sys::nvmlValue_t { uiVal: 0 };
        let one = |vgpu: &Active| sys::nvmlVgpuInstanceUtilizationInfo_v1_t {
            timeStamp: now() * 1000,
            vgpuInstance: vgpu.number,
            smUtil: share,
            memUtil: share,
            encUtil: none,
            decUtil: none,
            jpgUtil: none,
            ofaUtil: none,
        };
        put_all(told.vgpuUtilArray, all.iter().map(one).collect())
    })
}
