//! Calls of NVML that `nvml-wrapper` lacks, or gives a wrong answer to: its `possible_placements` is always empty.
//!
//! `unsafe` is allowed in this file because these are calls into a C library. What makes them sound is the same
//! everywhere: the symbol was looked up by the name that it is called by, the library stays loaded as long as the
//! device is borrowed, handles come from the library itself, and buffers are as long as it is told.
#![allow(unsafe_code)]

use std::ffi::c_char;
use std::mem;
use std::ptr;

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings as sys;

use crate::model::gpu::mig::Placement;

/// Buffers have at least so much room: NVML does not always look at the length that it is told.
const ROOM: u32 = 64;
/// More is a fault of the library.
const MAX_ROOM: u32 = 4096;

/// A GPU-instance profile as it is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RawProfile {
    pub(super) id: u32,
    /// Compute slices.
    pub(super) slices: u32,
    pub(super) most: u32,
    pub(super) memory_mib: u64,
    /// Drivers before the second version of the call tell none.
    pub(super) name: Option<String>,
}

/// A compute-instance profile as it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ComputeProfile {
    pub(super) id: u32,
    pub(super) slices: u32,
    pub(super) most: u32,
}

/// A GPU instance that is there. Good until it is destroyed or the card is reset.
#[derive(Clone, Copy, Debug)]
pub(super) struct GpuInstance<'d> {
    device: &'d Device<'d>,
    handle: sys::nvmlGpuInstance_t,
}

/// What a GPU instance says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InstanceInfo {
    pub(super) id: u32,
    pub(super) profile: u32,
    pub(super) placement: Placement,
}

/// A compute instance that is there.
#[derive(Clone, Copy, Debug)]
pub(super) struct ComputeInstance<'d> {
    device: &'d Device<'d>,
    handle: sys::nvmlComputeInstance_t,
}

/// Rows of memory as they are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RawRows {
    pub(super) correctable: u32,
    pub(super) uncorrectable: u32,
    pub(super) is_pending: bool,
    pub(super) has_failed: bool,
}

/// The profile of one of the library's numbers. The newest version of the call is tried first.
pub(super) fn instance_profile(device: &Device<'_>, number: u32) -> Result<RawProfile, NvmlError> {
    match profile_v3(device, number) {
        Err(error) if is_of_an_older_library(&error) => {}
        told => return told,
    }
    match profile_v2(device, number) {
        Err(error) if is_of_an_older_library(&error) => {}
        told => return told,
    }
    let told = device.profile_info(number)?;
    Ok(RawProfile {
        id: told.id,
        slices: told.slice_count,
        most: told.instance_count,
        memory_mib: told.memory_size_mb,
        name: None,
    })
}

/// The end of the numbers is told in the same way as a version that is too new, so the oldest call has the last word.
const fn is_of_an_older_library(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::UnexpectedVariant(sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
            | NvmlError::InvalidArg
            | NvmlError::FunctionNotFound
            | NvmlError::FailedToLoadSymbol(_)
    )
}

/// `NVML_STRUCT_VERSION`: the size, and the version in the highest byte.
fn version<T>(number: u32) -> u32 {
    u32::try_from(mem::size_of::<T>()).unwrap_or_default() | number << 24
}

fn profile_v3(device: &Device<'_>, number: u32) -> Result<RawProfile, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuInstanceProfileInfoV.as_ref())?;
    // SAFETY: plain numbers and texts, for which all zero is a value.
    let mut told: sys::nvmlGpuInstanceProfileInfo_v3_t = unsafe { mem::zeroed() };
    told.version = version::<sys::nvmlGpuInstanceProfileInfo_v3_t>(3);
    // SAFETY: see above; the version says how long the buffer is, whatever its type is called.
    nvml_try(unsafe { call(device.handle(), number, (&raw mut told).cast()) })?;
    Ok(RawProfile {
        id: told.id,
        slices: told.sliceCount,
        most: told.instanceCount,
        memory_mib: told.memorySizeMB,
        name: Some(text(&told.name)),
    })
}

fn profile_v2(device: &Device<'_>, number: u32) -> Result<RawProfile, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuInstanceProfileInfoV.as_ref())?;
    // SAFETY: plain numbers and texts, for which all zero is a value.
    let mut told: sys::nvmlGpuInstanceProfileInfo_v2_t = unsafe { mem::zeroed() };
    told.version = version::<sys::nvmlGpuInstanceProfileInfo_v2_t>(2);
    // SAFETY: see above.
    nvml_try(unsafe { call(device.handle(), number, &raw mut told) })?;
    Ok(RawProfile {
        id: told.id,
        slices: told.sliceCount,
        most: told.instanceCount,
        memory_mib: told.memorySizeMB,
        name: Some(text(&told.name)),
    })
}

/// Where an instance of a profile may lie, whether or not there is room.
pub(super) fn placements(device: &Device<'_>, profile: u32) -> Result<Vec<Placement>, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuInstancePossiblePlacements_v2.as_ref())?;
    let mut count = 0;
    // SAFETY: see above; without a buffer the call only counts.
    let counted = nvml_try(unsafe { call(device.handle(), profile, ptr::null_mut(), &raw mut count) });
    match counted {
        Ok(()) | Err(NvmlError::InsufficientSize(_)) => {}
        Err(error) => return Err(error),
    }
    let none = sys::nvmlGpuInstancePlacement_t { start: 0, size: 0 };
    let mut told = buffer(count, none)?;
    let mut count = u32::try_from(told.len()).unwrap_or_default();
    // SAFETY: see above; the buffer has at least as many places as were counted.
    nvml_try(unsafe { call(device.handle(), profile, told.as_mut_ptr(), &raw mut count) })?;
    told.truncate(usize::try_from(count).unwrap_or_default());
    Ok(told.into_iter().map(|place| Placement { start: place.start, size: place.size }).collect())
}

/// The GPU instances of a profile, of which the card has at most so many.
pub(super) fn instances<'d>(
    device: &'d Device<'d>,
    profile: u32,
    most: u32,
) -> Result<Vec<GpuInstance<'d>>, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuInstances.as_ref())?;
    let mut handles = buffer(most, ptr::null_mut())?;
    let mut count = u32::try_from(handles.len()).unwrap_or_default();
    // SAFETY: see above; the buffer has at least as many places as the card has instances.
    nvml_try(unsafe { call(device.handle(), profile, handles.as_mut_ptr(), &raw mut count) })?;
    handles.truncate(usize::try_from(count).unwrap_or_default());
    Ok(handles.into_iter().filter(|h| !h.is_null()).map(|handle| GpuInstance { device, handle }).collect())
}

/// Makes a GPU instance where it is told to.
pub(super) fn create_instance<'d>(
    device: &'d Device<'d>,
    profile: u32,
    placement: Placement,
) -> Result<GpuInstance<'d>, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceCreateGpuInstanceWithPlacement.as_ref())?;
    let place = sys::nvmlGpuInstancePlacement_t { start: placement.start, size: placement.size };
    let mut handle = ptr::null_mut();
    // SAFETY: see above.
    nvml_try(unsafe { call(device.handle(), profile, &raw const place, &raw mut handle) })?;
    match handle.is_null() {
        true => Err(NvmlError::Unknown),
        false => Ok(GpuInstance { device, handle }),
    }
}

impl<'d> GpuInstance<'d> {
    pub(super) fn info(self) -> Result<InstanceInfo, NvmlError> {
        let call = nvml_sym(self.device.nvml().lib().nvmlGpuInstanceGetInfo.as_ref())?;
        // SAFETY: plain numbers and a handle, for which all zero is a value.
        let mut told: sys::nvmlGpuInstanceInfo_t = unsafe { mem::zeroed() };
        // SAFETY: see above.
        nvml_try(unsafe { call(self.handle, &raw mut told) })?;
        let placement = Placement { start: told.placement.start, size: told.placement.size };
        Ok(InstanceInfo { id: told.id, profile: told.profileId, placement })
    }

    /// The compute-instance profile of one of the library's numbers, with engines shared between them.
    pub(super) fn compute_profile(self, number: u32) -> Result<ComputeProfile, NvmlError> {
        const SHARED_ENGINES: u32 = 0;
        let call = nvml_sym(self.device.nvml().lib().nvmlGpuInstanceGetComputeInstanceProfileInfo.as_ref())?;
        // SAFETY: plain numbers, for which all zero is a value.
        let mut told: sys::nvmlComputeInstanceProfileInfo_t = unsafe { mem::zeroed() };
        // SAFETY: see above.
        nvml_try(unsafe { call(self.handle, number, SHARED_ENGINES, &raw mut told) })?;
        Ok(ComputeProfile { id: told.id, slices: told.sliceCount, most: told.instanceCount })
    }

    /// The compute instances of a profile in it.
    pub(super) fn compute_instances(self, profile: ComputeProfile) -> Result<Vec<ComputeInstance<'d>>, NvmlError> {
        let call = nvml_sym(self.device.nvml().lib().nvmlGpuInstanceGetComputeInstances.as_ref())?;
        let mut handles = buffer(profile.most, ptr::null_mut())?;
        let mut count = u32::try_from(handles.len()).unwrap_or_default();
        // SAFETY: see above; the buffer has at least as many places as the instance has parts.
        nvml_try(unsafe { call(self.handle, profile.id, handles.as_mut_ptr(), &raw mut count) })?;
        handles.truncate(usize::try_from(count).unwrap_or_default());
        let device = self.device;
        Ok(handles.into_iter().filter(|h| !h.is_null()).map(|handle| ComputeInstance { device, handle }).collect())
    }

    pub(super) fn create_compute_instance(self, profile: u32) -> Result<(), NvmlError> {
        let call = nvml_sym(self.device.nvml().lib().nvmlGpuInstanceCreateComputeInstance.as_ref())?;
        let mut handle = ptr::null_mut();
        // SAFETY: see above.
        nvml_try(unsafe { call(self.handle, profile, &raw mut handle) })
    }

    pub(super) fn destroy(self) -> Result<(), NvmlError> {
        let call = nvml_sym(self.device.nvml().lib().nvmlGpuInstanceDestroy.as_ref())?;
        // SAFETY: see above; whoever holds a copy of the handle gets an error from the library afterwards.
        nvml_try(unsafe { call(self.handle) })
    }
}

impl ComputeInstance<'_> {
    pub(super) fn destroy(self) -> Result<(), NvmlError> {
        let call = nvml_sym(self.device.nvml().lib().nvmlComputeInstanceDestroy.as_ref())?;
        // SAFETY: see above.
        nvml_try(unsafe { call(self.handle) })
    }
}

/// How vGPUs are made: the number as it is told.
pub(super) fn host_vgpu_mode(device: &Device<'_>) -> Result<u32, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetHostVgpuMode.as_ref())?;
    let mut mode = 0;
    // SAFETY: see above.
    nvml_try(unsafe { call(device.handle(), &raw mut mode) })?;
    Ok(mode)
}

/// Whether vGPUs of several sizes share the card by time.
pub(super) fn is_mixed(device: &Device<'_>) -> Result<bool, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetVgpuHeterogeneousMode.as_ref())?;
    let mut told =
        sys::nvmlVgpuHeterogeneousMode_t { version: version::<sys::nvmlVgpuHeterogeneousMode_t>(1), mode: 0 };
    // SAFETY: see above.
    nvml_try(unsafe { call(device.handle(), &raw mut told) })?;
    Ok(told.mode == 1)
}

/// Rows of memory that were replaced.
pub(super) fn remapped_rows(device: &Device<'_>) -> Result<RawRows, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetRemappedRows.as_ref())?;
    let (mut correctable, mut uncorrectable, mut pending, mut failed) = (0, 0, 0, 0);
    // SAFETY: see above.
    nvml_try(unsafe {
        call(device.handle(), &raw mut correctable, &raw mut uncorrectable, &raw mut pending, &raw mut failed)
    })?;
    Ok(RawRows { correctable, uncorrectable, is_pending: pending != 0, has_failed: failed != 0 })
}

/// The bits that say why clocks are lower than they could be; by the call's old name where the library has no other.
pub(super) fn clock_reasons(device: &Device<'_>) -> Result<u64, NvmlError> {
    let lib = device.nvml().lib();
    let call = nvml_sym(lib.nvmlDeviceGetCurrentClocksEventReasons.as_ref());
    let call = call.or_else(|_| nvml_sym(lib.nvmlDeviceGetCurrentClocksThrottleReasons.as_ref()))?;
    let mut reasons = 0;
    // SAFETY: see above; both names have the same signature.
    nvml_try(unsafe { call(device.handle(), &raw mut reasons) })?;
    Ok(reasons)
}

/// Places for so many, and some more.
fn buffer<T: Clone>(count: u32, empty: T) -> Result<Vec<T>, NvmlError> {
    if count > MAX_ROOM {
        return Err(NvmlError::InsufficientSize(usize::try_from(count).ok()));
    }
    Ok(vec![empty; usize::try_from(count.max(ROOM)).unwrap_or_default()])
}

fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().take_while(|c| **c != 0).map(|c| c.to_ne_bytes()[0]).collect();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}
