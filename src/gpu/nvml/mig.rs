//! MIG as NVML tells it: what a card can be divided into, and what it is divided into.
//!
//! Profiles are told by numbers of the library, one after the other: a number that the card lacks is skipped, one that
//! the library lacks ends them. Their ids, names and places are the card's own; nothing of it is known by heart.

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::ask::Ask;
use super::raw::{self, ComputeProfile, GpuInstance, RawProfile};
use super::words::{Trouble, is_absence};
use crate::model::card::MadeInstance;
use crate::model::gpu::mig::{Geometry, GeometryProfile, Instance, MigProfile, MigVariant, Placement};
use crate::model::units::Mib;

/// Numbers of profiles that are tried: NVML 13 ends at 18 for GPU instances, and at 8 for compute instances.
const MAX_NUMBERS: u32 = 32;

/// A GPU-instance profile of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Profile {
    pub(super) id: u32,
    pub(super) name: MigProfile,
    pub(super) slices: u32,
    pub(super) most: u32,
    pub(super) memory: Mib,
}

/// The profiles of a card of so much memory; none where it tells none. What has no name that is understood is a fault,
/// and left out.
pub(super) fn profiles(
    device: &Device<'_>,
    total: Option<Mib>,
    ask: &Ask<'_>,
    faults: &mut Vec<String>,
) -> Result<Vec<Profile>, Trouble> {
    let mut all = Vec::new();
    for number in 0..MAX_NUMBERS {
        ask.step(&format!("MIG profile {number}"))?;
        let raw = match raw::instance_profile(device, number) {
            Ok(raw) => raw,
            Err(NvmlError::InvalidArg) => break,
            Err(error) if is_absence(&error) => continue,
            Err(error) => return Err(error.into()),
        };
        match name(number, &raw, total) {
            Ok(name) => {
                all.push(Profile { id: raw.id, name, slices: raw.slices, most: raw.most, memory: Mib(raw.memory_mib) })
            }
            Err(why) => faults.push(format!("MIG profile {}: {why}", raw.id)),
        }
    }
    Ok(all)
}

/// As told, else by the grammar of names.
fn name(number: u32, raw: &RawProfile, total: Option<Mib>) -> Result<MigProfile, String> {
    if let Some(told) = raw.name.as_deref().filter(|name| !name.is_empty()) {
        return told.strip_prefix("MIG ").unwrap_or(told).parse().map_err(|error| format!("{error}"));
    }
    let total = total.filter(|total| total.0 > 0).ok_or("it has no name, and the card's memory is not known")?;
    let gb = named_memory(total.0, raw.memory_mib);
    let text = format!("{}g.{gb}gb{}", raw.slices, variant(number).suffix());
    text.parse().map_err(|error| format!("{error}"))
}

/// The memory in a profile's name: eighths of the card's, rounded up, in GiB rounded to the nearest (go-nvlib,
/// `pkg/nvlib/device/mig_profile.go`). Both in MiB.
fn named_memory(total: u64, own: u64) -> u64 {
    let eighths = own.saturating_mul(8).div_ceil(total);
    let gib = total.div_ceil(1024);
    (eighths.saturating_mul(gib).saturating_add(4)) / 8
}

/// What the library's number of a profile says beside its slices (`NVML_GPU_INSTANCE_PROFILE_*`).
const fn variant(number: u32) -> MigVariant {
    match number {
        7 | 8 => MigVariant::Media,
        10..=12 | 17 => MigVariant::Graphics,
        13 | 14 => MigVariant::NoMedia,
        15 | 16 => MigVariant::AllMedia,
        _ => MigVariant::Plain,
    }
}

/// What the card can be divided into; `None` where it does not tell.
pub(super) fn geometry(device: &Device<'_>, profiles: &[Profile], ask: &Ask<'_>) -> Result<Option<Geometry>, Trouble> {
    if profiles.is_empty() {
        return Ok(None);
    }
    let mut told = Vec::new();
    for profile in profiles {
        ask.step(&format!("the placements of {}", profile.name))?;
        let places = raw::placements(device, profile.id)?;
        let size = places.first().map_or(0, |place| place.size);
        if places.iter().any(|place| place.size != size) {
            return Err(Trouble::Sense(format!("placements of {} are of different sizes", profile.name)));
        }
        told.push(GeometryProfile {
            id: profile.id,
            name: profile.name,
            compute: profile.slices,
            size,
            starts: places.iter().map(|place| place.start).collect(),
            most: profile.most,
            memory: profile.memory,
            takes_media: matches!(profile.name.variant(), MigVariant::Media | MigVariant::AllMedia),
        });
    }
    Geometry::of_profiles(told).map(Some).map_err(|error| Trouble::Sense(error.to_string()))
}

/// A GPU instance, by its handle and by what it says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<'d> {
    pub(super) handle: GpuInstance<'d>,
    pub(super) made: MadeInstance,
}

/// What the card is divided into, by its place.
pub(super) fn instances<'d>(
    device: &'d Device<'d>,
    profiles: &[Profile],
    ask: &Ask<'_>,
) -> Result<Vec<Found<'d>>, Trouble> {
    let mut found = Vec::new();
    for profile in profiles {
        ask.step(&format!("the instances of {}", profile.name))?;
        let handles = match raw::instances(device, profile.id, profile.most) {
            Ok(handles) => handles,
            Err(error) if is_absence(&error) => continue,
            Err(error) => return Err(error.into()),
        };
        for handle in handles {
            ask.step(&format!("an instance of {}", profile.name))?;
            let info = handle.info()?;
            let made = MadeInstance {
                id: info.id,
                instance: Instance { profile: name_of(profiles, info.profile)?, placement: info.placement },
                compute_instances: u32::try_from(compute_instances(handle, ask)?.len()).unwrap_or(u32::MAX),
            };
            found.push(Found { handle, made });
        }
    }
    found.sort_by_key(|one| (one.made.instance.placement, one.made.id));
    Ok(found)
}

fn name_of(profiles: &[Profile], id: u32) -> Result<MigProfile, Trouble> {
    let known = profiles.iter().find(|profile| profile.id == id);
    known.map(|profile| profile.name).ok_or_else(|| {
        Trouble::Sense(format!("there is an instance of MIG profile {id}, which the card does not tell of"))
    })
}

/// The compute-instance profiles of an instance.
pub(super) fn compute_profiles(handle: GpuInstance<'_>, ask: &Ask<'_>) -> Result<Vec<ComputeProfile>, NvmlError> {
    let mut all: Vec<ComputeProfile> = Vec::new();
    for number in 0..MAX_NUMBERS {
        ask.step("the compute profiles of an instance")?;
        match handle.compute_profile(number) {
            Ok(profile) if all.iter().any(|other| other.id == profile.id) => {}
            Ok(profile) => all.push(profile),
            Err(NvmlError::InvalidArg) => break,
            Err(error) if is_absence(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// The compute instances in an instance.
pub(super) fn compute_instances<'d>(
    handle: GpuInstance<'d>,
    ask: &Ask<'_>,
) -> Result<Vec<raw::ComputeInstance<'d>>, NvmlError> {
    let mut all = Vec::new();
    for profile in compute_profiles(handle, ask)? {
        ask.step("the compute instances of an instance")?;
        match handle.compute_instances(profile) {
            Ok(instances) => all.extend(instances),
            Err(error) if is_absence(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// True where two of them cannot lie beside each other.
pub(super) const fn overlap(one: Placement, other: Placement) -> bool {
    one.start < other.start.saturating_add(other.size) && other.start < one.start.saturating_add(one.size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_where_none_is_told() {
        // Number, slices, MiB, the card's MiB.
        let cases = [
            (0, 1, 9856, 81_920, "1g.10gb"),
            (7, 1, 9856, 81_920, "1g.10gb+me"),
            (9, 1, 19_968, 81_920, "1g.20gb"),
            (2, 3, 40_192, 81_920, "3g.40gb"),
            (4, 7, 80_384, 81_920, "7g.80gb"),
            (0, 1, 4864, 40_960, "1g.5gb"),
            (0, 1, 5836, 24_576, "1g.6gb"),
            (10, 1, 24_000, 97_887, "1g.24gb+gfx"),
            (13, 1, 24_000, 97_887, "1g.24gb-me"),
            (15, 1, 24_000, 97_887, "1g.24gb+me.all"),
        ];
        for (number, slices, memory_mib, total, expected) in cases {
            let raw = RawProfile { id: 19, slices, most: 1, memory_mib, name: None };
            assert_eq!(name(number, &raw, Some(Mib(total))).unwrap().to_string(), expected);
        }
        let raw = RawProfile { id: 19, slices: 1, most: 1, memory_mib: 9856, name: None };
        assert!(name(0, &raw, None).unwrap_err().contains("is not known"));
        let told = |text: &str| name(0, &RawProfile { name: Some(text.to_owned()), ..raw.clone() }, None);
        assert_eq!(told("MIG 1g.10gb+me").unwrap().to_string(), "1g.10gb+me");
        assert!(told("one slice").unwrap_err().contains("is not a MIG profile"));
    }
}
