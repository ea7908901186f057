//! Counts of vGPU types, checked against what a card is known to have.

use super::mig::{Planners, geometry};
use super::{HostCard, WhyNoCardLayout};
use crate::model::card::SupportedVgpu;
use crate::model::gpu::layout::CardLayout;
use crate::model::gpu::mig::{Geometry, MigProfile};
use crate::model::gpu::{VgpuGrade, VgpuTypeName};
use crate::model::units::Mib;
use crate::plan::place::as_sold;

/// A type of the file, and what is known of it.
struct Wanted<'a> {
    told: &'a SupportedVgpu,
    grade: VgpuGrade,
    count: u32,
}

/// What a card is to be by counts of types; none of them leaves it undivided.
pub(super) fn layout(
    index: u32,
    card: &HostCard<'_>,
    counts: &[(VgpuTypeName, u32)],
    planners: &mut Planners,
) -> Result<CardLayout, WhyNoCardLayout> {
    let wanted = counts.iter().map(|(name, count)| known(index, card, name, *count));
    let wanted = wanted.collect::<Result<Vec<_>, _>>()?;
    let Some(first) = wanted.first() else { return Ok(CardLayout::Host) };
    functions(index, card, &wanted)?;
    let types = wanted.iter().map(|one| (one.told.name.clone(), one.count)).collect();
    if first.grade.slices.is_none() {
        by_time(index, card, &wanted)?;
        return Ok(CardLayout::Vgpu { types });
    }
    let geometry = geometry(index, card.card)?;
    let mut profiles: Vec<(MigProfile, u32)> = Vec::new();
    for one in &wanted {
        let profile = behind(index, one, geometry)?;
        match profiles.iter_mut().find(|(other, _)| *other == profile) {
            Some((_, count)) => *count = count.saturating_add(one.count),
            None => profiles.push((profile, one.count)),
        }
    }
    Ok(CardLayout::Mig { instances: planners.instances(index, card.card, &profiles)?, vgpus: types })
}

fn known<'a>(
    index: u32,
    card: &'a HostCard<'_>,
    name: &VgpuTypeName,
    count: u32,
) -> Result<Wanted<'a>, WhyNoCardLayout> {
    let model = || card.card.model.clone();
    if card.types.is_empty() {
        return Err(WhyNoCardLayout::NoTypes { index, model: model(), driver: card.card.driver.clone() });
    }
    let told = card.types.iter().find(|known| known.name == *name || known.name.is_called(name.as_str()));
    let told = told.and_then(|told| Some(Wanted { told, grade: told.name.grade()?, count }));
    let wanted = told.ok_or_else(|| WhyNoCardLayout::NoType {
        index,
        model: model(),
        name: name.clone(),
        has: card.types.iter().map(|known| known.name.clone()).collect(),
    })?;
    match wanted.told.most.filter(|most| count > *most) {
        Some(most) => Err(WhyNoCardLayout::TooMany { index, name: name.clone(), count, most }),
        None => Ok(wanted),
    }
}

/// Each vGPU takes a virtual function, where the card makes them on those.
fn functions(index: u32, card: &HostCard<'_>, wanted: &[Wanted<'_>]) -> Result<(), WhyNoCardLayout> {
    let count = wanted.iter().map(|one| one.count).fold(0, u32::saturating_add);
    let total = card.card.sriov.as_ref().map(|sriov| sriov.total).filter(|total| *total > 0);
    match total.filter(|total| count > *total) {
        Some(total) => Err(WhyNoCardLayout::Functions { index, count, total }),
        None => Ok(()),
    }
}

/// Types that share the card by time are of one size, and share its memory.
fn by_time(index: u32, card: &HostCard<'_>, wanted: &[Wanted<'_>]) -> Result<(), WhyNoCardLayout> {
    let Some(first) = wanted.first() else { return Ok(()) };
    if let Some(other) = wanted.iter().find(|one| one.grade.memory != first.grade.memory) {
        let (one, other) = (first.told.name.clone(), other.told.name.clone());
        return Err(WhyNoCardLayout::Sizes { index, one, other });
    }
    let count = wanted.iter().map(|one| one.count).fold(0, u32::saturating_add);
    // Those of one size share one limit, whatever their series.
    let limits: Option<Vec<u32>> = wanted.iter().map(|one| one.told.most).collect();
    if let Some(most) = limits.and_then(|limits| limits.into_iter().max()).filter(|most| count > *most) {
        return Err(WhyNoCardLayout::TooMany { index, name: first.told.name.clone(), count, most });
    }
    let memory = card.card.memory.filter(|memory| !memory.is_estimated()).map(|memory| as_sold(memory.size));
    let Mib(each) = first.grade.memory;
    match memory.filter(|Mib(all)| u64::from(count).saturating_mul(each) > *all) {
        Some(memory) => Err(WhyNoCardLayout::Memory { index, count, each: first.grade.memory, memory }),
        None => Ok(()),
    }
}

/// The profile of the instance behind a type: as NVML says, else by the name.
fn behind(index: u32, one: &Wanted<'_>, geometry: &Geometry) -> Result<MigProfile, WhyNoCardLayout> {
    let name = || one.told.name.clone();
    let profile = one.told.profile.or_else(|| one.grade.profile(geometry));
    let profile = profile.ok_or_else(|| WhyNoCardLayout::NoInstance {
        index,
        name: name(),
        has: geometry.profiles().iter().map(|told| told.name).collect(),
    })?;
    // A type that is smaller than its instance shares it by time with others.
    match Mib(u64::from(profile.memory_gb()) << 10) == one.grade.memory {
        true => Ok(profile),
        false => Err(WhyNoCardLayout::Shared { index, name: name(), profile }),
    }
}
