//! How the driver makes vGPUs of a card, and of which types.
//!
//! Numbers of types are the driver's of this moment. They leave this folder only to name what a function carries: where
//! nothing more of a type fits, no file of the kernel says its name any more.

use std::collections::BTreeMap;

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::ask::Ask;
use super::mig::Profile;
use super::raw;
use super::words::{Trouble, is_absence};
use crate::model::card::{HostVgpuMode, SupportedVgpu};
use crate::model::gpu::VgpuTypeName;
use crate::model::units::Mib;

/// More types than any card has.
const MAX_TYPES: usize = 512;

/// `INVALID_GPU_INSTANCE_PROFILE_ID`: the type shares the card by time.
const TIME_SLICED: u32 = u32::MAX;

/// How vGPUs are made; an absence where the driver makes none.
pub(super) fn host_mode(device: &Device<'_>, ask: &Ask<'_>) -> Result<HostVgpuMode, Trouble> {
    ask.step("the way in which vGPUs are made")?;
    match raw::host_vgpu_mode(device)? {
        0 => Ok(HostVgpuMode::NonSriov),
        1 => Ok(HostVgpuMode::Sriov),
        other => Err(Trouble::Sense(format!("{other} is no way to make vGPUs that gvm knows"))),
    }
}

/// Mixed-size mode; an absence where the card, or MIG, does not know it.
pub(super) fn is_mixed(device: &Device<'_>, ask: &Ask<'_>) -> Result<bool, Trouble> {
    ask.step("mixed-size mode")?;
    Ok(raw::is_mixed(device)?)
}

/// Names of a card's types by their numbers.
pub(super) type Names = BTreeMap<u32, VgpuTypeName>;

/// The names of a card's types.
pub(super) fn names(device: &Device<'_>, ask: &Ask<'_>) -> Result<Names, NvmlError> {
    ask.step("the types of vGPU")?;
    let mut all = Names::new();
    for kind in device.vgpu_supported_types()?.into_iter().take(MAX_TYPES) {
        ask.step(&format!("vGPU type {}", kind.id()))?;
        all.extend(VgpuTypeName::parse(&kind.name()?).map(|name| (kind.id(), name)));
    }
    Ok(all)
}

/// The types of a card, whatever there is room for. One whose MIG profile the card does not tell of is left out: it
/// would pass for one that shares the card by time.
pub(super) fn types(
    device: &Device<'_>,
    profiles: &[Profile],
    ask: &Ask<'_>,
    names: &mut Names,
    faults: &mut Vec<String>,
) -> Result<Vec<SupportedVgpu>, Trouble> {
    ask.step("the types of vGPU")?;
    let mut all = Vec::new();
    let mut unknown = Vec::new();
    for kind in device.vgpu_supported_types()?.into_iter().take(MAX_TYPES) {
        ask.step(&format!("vGPU type {}", kind.id()))?;
        let told = kind.name()?;
        let Some(name) = VgpuTypeName::parse(&told) else {
            faults.push(format!("vGPU type {}: {told:?} is no name of a type", kind.id()));
            continue;
        };
        names.insert(kind.id(), name.clone());
        let profile = match kind.instance_profile_id() {
            Ok(TIME_SLICED) => None,
            Err(error) if is_absence(&error) => None,
            Ok(id) => match profiles.iter().find(|profile| profile.id == id) {
                Some(profile) => Some(profile.name),
                None => {
                    unknown.push(name);
                    continue;
                }
            },
            Err(error) => return Err(error.into()),
        };
        let memory = known(kind.framebuffer_size())?.map(|bytes| Mib(bytes >> 20)).filter(|memory| memory.0 > 0);
        let most = known(kind.max_instances())?.filter(|most| *most > 0);
        all.push(SupportedVgpu { name, memory, most, profile });
    }
    // A card that tells of no profile at all has MIG switched off for good; then nothing is lost by leaving them out.
    if let Some(first) = unknown.first().filter(|_| !profiles.is_empty()) {
        let text = format!("{} types of vGPU, such as {first}, need MIG profiles that the card lacks", unknown.len());
        faults.push(text);
    }
    Ok(all)
}

fn known<T>(answer: Result<T, NvmlError>) -> Result<Option<T>, Trouble> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_absence(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
