//! MIG: modes, GPU instances and the compute instances in them.

use nvml_wrapper_sys::bindings as sys;

use super::{
    COMPUTE, DEVICE, Handle, INSTANCE, ask, ask_card, change_card, chars, done, put, put_all, put_counted, take,
};
use crate::code;
use crate::kinds::Profile;
use crate::rules::Code;
use crate::state::{Card, GpuInstance};

type Device = sys::nvmlDevice_t;
type Gi = sys::nvmlGpuInstance_t;
type Ci = sys::nvmlComputeInstance_t;

/// One after the last number of a profile, in version 13.
const PROFILES: u32 = 18;

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMigMode(device: Device, current: *mut u32, pending: *mut u32) -> Code {
    ask_card("nvmlDeviceGetMigMode", device as usize, |card| {
        if !card.has_mig() {
            return Err(code::NOT_SUPPORTED);
        }
        put(current, u32::from(card.mig.0))?;
        put(pending, u32::from(card.mig.1))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceSetMigMode(device: Device, mode: u32, status: *mut Code) -> Code {
    let set = change_card("nvmlDeviceSetMigMode", DEVICE, device as usize, |card| card.set_mig(mode == 1));
    done(set.and_then(|activation| put(status, activation)))
}

fn by_number(card: &Card, number: u32) -> Result<&'static Profile, Code> {
    if number >= PROFILES {
        return Err(code::INVALID_ARGUMENT);
    }
    card.kind().profiles.iter().find(|profile| profile.number == number).ok_or(code::NOT_SUPPORTED)
}

fn by_id(card: &Card, id: u32) -> Result<&'static Profile, Code> {
    card.profile(id).ok_or(code::INVALID_ARGUMENT)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetGpuInstanceProfileInfo(
    device: Device,
    number: u32,
    info: *mut sys::nvmlGpuInstanceProfileInfo_t,
) -> Code {
    ask_card("nvmlDeviceGetGpuInstanceProfileInfo", device as usize, |card| {
        let profile = by_number(card, number)?;
        put(
            info,
            sys::nvmlGpuInstanceProfileInfo_t {
                id: profile.id,
                isP2pSupported: 0,
                sliceCount: profile.slices,
                instanceCount: profile.most,
                multiprocessorCount: profile.slices * 14,
                copyEngineCount: profile.slices,
                decoderCount: 0,
                encoderCount: 0,
                jpegCount: 0,
                ofaCount: 0,
                memorySizeMB: profile.memory_mib,
            },
        )
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetGpuInstanceProfileInfoV(
    device: Device,
    number: u32,
    info: *mut sys::nvmlGpuInstanceProfileInfo_v2_t,
) -> Code {
    ask_card("nvmlDeviceGetGpuInstanceProfileInfoV", device as usize, |card| versioned(by_number(card, number)?, info))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetGpuInstanceProfileInfoByIdV(
    device: Device,
    id: u32,
    info: *mut sys::nvmlGpuInstanceProfileInfo_v2_t,
) -> Code {
    ask_card("nvmlDeviceGetGpuInstanceProfileInfoByIdV", device as usize, |card| versioned(by_id(card, id)?, info))
}

fn versioned(profile: &Profile, info: *mut sys::nvmlGpuInstanceProfileInfo_v2_t) -> Result<(), Code> {
    const V2: u32 = size_of::<sys::nvmlGpuInstanceProfileInfo_v2_t>() as u32 | 2 << 24;
    const V3: u32 = size_of::<sys::nvmlGpuInstanceProfileInfo_v3_t>() as u32 | 3 << 24;
    let (slices, name) = (profile.slices, chars(&format!("MIG {}", profile.name)));
    match take(info.cast::<u32>())? {
        V2 => put(
            info,
            sys::nvmlGpuInstanceProfileInfo_v2_t {
                version: V2,
                id: profile.id,
                isP2pSupported: 0,
                sliceCount: slices,
                instanceCount: profile.most,
                multiprocessorCount: slices * 14,
                copyEngineCount: slices,
                decoderCount: 0,
                encoderCount: 0,
                jpegCount: 0,
                ofaCount: 0,
                memorySizeMB: profile.memory_mib,
                name,
            },
        ),
        V3 => put(
            info.cast(),
            sys::nvmlGpuInstanceProfileInfo_v3_t {
                version: V3,
                id: profile.id,
                sliceCount: slices,
                instanceCount: profile.most,
                multiprocessorCount: slices * 14,
                copyEngineCount: slices,
                decoderCount: 0,
                encoderCount: 0,
                jpegCount: 0,
                ofaCount: 0,
                memorySizeMB: profile.memory_mib,
                name,
                capabilities: if profile.name.ends_with("+gfx") { sys::NVML_GPU_INSTANCE_PROFILE_CAPS_GFX } else { 0 },
            },
        ),
        _ => Err(code::VERSION_MISMATCH),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
    device: Device,
    id: u32,
    places: *mut sys::nvmlGpuInstancePlacement_t,
    count: *mut u32,
) -> Code {
    ask_card("nvmlDeviceGetGpuInstancePossiblePlacements_v2", device as usize, |card| {
        let profile = by_id(card, id)?;
        put(count, profile.starts.len() as u32)?;
        if places.is_null() {
            return Ok(());
        }
        let place = |start: &u32| sys::nvmlGpuInstancePlacement_t { start: *start, size: profile.size };
        put_all(places, profile.starts.iter().map(place).collect())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetGpuInstanceRemainingCapacity(device: Device, id: u32, count: *mut u32) -> Code {
    ask_card("nvmlDeviceGetGpuInstanceRemainingCapacity", device as usize, |card| {
        let mut card = card.clone();
        let mut made = 0;
        while card.create(id, None).is_ok() {
            made += 1;
        }
        put(count, made)
    })
}

fn instance_handle(device: usize, id: u32, epoch: u32) -> Gi {
    Handle { kind: INSTANCE, instance: id as u16, epoch: epoch as u16, ..Handle::of(device) }.pointer()
}

fn create(name: &str, device: Device, id: u32, place: Option<(u32, u32)>, handle: *mut Gi) -> Code {
    let made = change_card(name, DEVICE, device as usize, |card| Ok((card.create(id, place)?, card.epoch)));
    done(made.and_then(|(id, epoch)| put(handle, instance_handle(device as usize, id, epoch))))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceCreateGpuInstance(device: Device, id: u32, handle: *mut Gi) -> Code {
    create("nvmlDeviceCreateGpuInstance", device, id, None, handle)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceCreateGpuInstanceWithPlacement(
    device: Device,
    id: u32,
    place: *const sys::nvmlGpuInstancePlacement_t,
    handle: *mut Gi,
) -> Code {
    match take(place) {
        Ok(place) => {
            let place = Some((place.start, place.size));
            create("nvmlDeviceCreateGpuInstanceWithPlacement", device, id, place, handle)
        }
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetGpuInstances(device: Device, id: u32, handles: *mut Gi, count: *mut u32) -> Code {
    ask_card("nvmlDeviceGetGpuInstances", device as usize, |card| {
        if !card.mig.0 {
            return Err(code::NOT_SUPPORTED);
        }
        by_id(card, id)?;
        let of_profile = card.instances.iter().filter(|one| one.profile == id);
        let all: Vec<Gi> = of_profile.map(|one| instance_handle(device as usize, one.id, card.epoch)).collect();
        put(count, all.len() as u32)?;
        put_all(handles, all)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetGpuInstanceById(device: Device, id: u32, handle: *mut Gi) -> Code {
    ask_card("nvmlDeviceGetGpuInstanceById", device as usize, |card| {
        let one = card.instance(id).ok_or(code::NOT_FOUND)?;
        put(handle, instance_handle(device as usize, one.id, card.epoch))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpuInstanceDestroy(handle: Gi) -> Code {
    let id = u32::from(Handle::of(handle as usize).instance);
    done(change_card("nvmlGpuInstanceDestroy", INSTANCE, handle as usize, |card| card.destroy(id)))
}

/// A call that only reads, about one GPU instance.
fn ask_instance(name: &str, handle: Gi, work: impl FnOnce(&Card, &GpuInstance) -> Result<(), Code>) -> Code {
    let parts = Handle::of(handle as usize);
    ask(name, Some(handle as usize), |state| {
        let card = &state.cards[parts.card(INSTANCE, state)?];
        work(card, card.instance(u32::from(parts.instance)).ok_or(code::INVALID_ARGUMENT)?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpuInstanceGetInfo(handle: Gi, info: *mut sys::nvmlGpuInstanceInfo_t) -> Code {
    ask_instance("nvmlGpuInstanceGetInfo", handle, |_, one| {
        let parts = Handle { kind: DEVICE, instance: 0, compute: 0, ..Handle::of(handle as usize) };
        let placement = sys::nvmlGpuInstancePlacement_t { start: one.start, size: one.size };
        put(info, sys::nvmlGpuInstanceInfo_t { device: parts.pointer(), id: one.id, profileId: one.profile, placement })
    })
}

/// Slices of a compute profile, and how many of it the instance could have.
fn compute(card: &Card, one: &GpuInstance, number: u32) -> Result<(u32, u32), Code> {
    let slices = Card::compute_slices(number)?;
    let whole = card.profile(one.profile).map_or(0, |profile| profile.slices);
    if slices > whole { Err(code::NOT_SUPPORTED) } else { Ok((slices, whole / slices)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
    handle: Gi,
    number: u32,
    _engines: u32,
    info: *mut sys::nvmlComputeInstanceProfileInfo_t,
) -> Code {
    ask_instance("nvmlGpuInstanceGetComputeInstanceProfileInfo", handle, |card, one| {
        let (slices, most) = compute(card, one, number)?;
        put(
            info,
            sys::nvmlComputeInstanceProfileInfo_t {
                id: number,
                sliceCount: slices,
                instanceCount: most,
                multiprocessorCount: slices * 14,
                sharedCopyEngineCount: slices,
                sharedDecoderCount: 0,
                sharedEncoderCount: 0,
                sharedJpegCount: 0,
                sharedOfaCount: 0,
            },
        )
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(handle: Gi, id: u32, count: *mut u32) -> Code {
    ask_instance("nvmlGpuInstanceGetComputeInstanceRemainingCapacity", handle, |card, one| {
        let (slices, _) = compute(card, one, id)?;
        let whole = card.profile(one.profile).map_or(0, |profile| profile.slices);
        let used: u32 = one.compute.values().filter_map(|id| Card::compute_slices(*id).ok()).sum();
        put(count, whole.saturating_sub(used) / slices)
    })
}

fn create_compute(name: &str, handle: Gi, id: u32, compute: *mut Ci) -> Code {
    let parts = Handle::of(handle as usize);
    let create = |card: &mut Card| card.create_compute(u32::from(parts.instance), id);
    let made = change_card(name, INSTANCE, handle as usize, create);
    done(made.and_then(|id| put(compute, Handle { kind: COMPUTE, compute: id as u16, ..parts }.pointer())))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpuInstanceCreateComputeInstance(handle: Gi, id: u32, compute: *mut Ci) -> Code {
    create_compute("nvmlGpuInstanceCreateComputeInstance", handle, id, compute)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpuInstanceCreateComputeInstanceWithPlacement(
    handle: Gi,
    id: u32,
    _place: *const sys::nvmlComputeInstancePlacement_t,
    compute: *mut Ci,
) -> Code {
    create_compute("nvmlGpuInstanceCreateComputeInstanceWithPlacement", handle, id, compute)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpuInstanceGetComputeInstances(handle: Gi, id: u32, all: *mut Ci, count: *mut u32) -> Code {
    let parts = Handle::of(handle as usize);
    ask_instance("nvmlGpuInstanceGetComputeInstances", handle, |_, one| {
        let of_profile = one.compute.iter().filter(|(_, profile)| **profile == id);
        let one = |(number, _): (&u32, &u32)| Handle { kind: COMPUTE, compute: *number as u16, ..parts }.pointer();
        put_counted(all, count, of_profile.map(one).collect())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlComputeInstanceDestroy(compute: Ci) -> Code {
    let parts = Handle::of(compute as usize);
    let destroy = |card: &mut Card| card.destroy_compute(u32::from(parts.instance), u32::from(parts.compute));
    done(change_card("nvmlComputeInstanceDestroy", COMPUTE, compute as usize, destroy))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlComputeInstanceGetInfo_v2(compute: Ci, info: *mut sys::nvmlComputeInstanceInfo_t) -> Code {
    let parts = Handle::of(compute as usize);
    ask("nvmlComputeInstanceGetInfo_v2", Some(compute as usize), |state| {
        let card = &state.cards[parts.card(COMPUTE, state)?];
        let one = card.instance(u32::from(parts.instance)).ok_or(code::INVALID_ARGUMENT)?;
        let id = u32::from(parts.compute);
        let profile = *one.compute.get(&id).ok_or(code::INVALID_ARGUMENT)?;
        put(
            info,
            sys::nvmlComputeInstanceInfo_t {
                device: Handle { kind: DEVICE, instance: 0, compute: 0, ..parts }.pointer(),
                gpuInstance: Handle { kind: INSTANCE, compute: 0, ..parts }.pointer(),
                id,
                profileId: profile,
                placement: sys::nvmlComputeInstancePlacement_t { start: 0, size: Card::compute_slices(profile)? },
            },
        )
    })
}
