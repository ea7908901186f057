//! Counts of profiles become instances with placements.

use super::WhyNoCardLayout;
use crate::model::card::Card;
use crate::model::gpu::mig::{Geometry, Instance, MigProfile};
use crate::plan::mig::{Planner, WhyNoRoom};

/// One planner for each kind of card: making one costs more than all that is asked of it.
#[derive(Debug, Default)]
pub(super) struct Planners(Vec<Planner>);

impl Planners {
    /// Instances for so many of each profile, by the memory slices that they take.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn instances(
        &mut self,
        index: u32,
        card: &Card,
        counts: &[(MigProfile, u32)],
    ) -> Result<Vec<Instance>, WhyNoCardLayout> {
        let geometry = geometry(index, card)?;
        if let Some((profile, _)) = counts.iter().find(|(profile, _)| geometry.profile(*profile).is_none()) {
            let has = geometry.profiles().iter().map(|told| told.name).collect();
            return Err(WhyNoCardLayout::NoProfile { index, model: card.model.clone(), profile: *profile, has });
        }
        limits(index, geometry, counts)?;
        let wanted: Vec<MigProfile> = counts
            .iter()
            .flat_map(|(profile, count)| std::iter::repeat_n(*profile, usize::try_from(*count).unwrap_or(usize::MAX)))
            .collect();
        let there = card.mig().map(|mig| mig.instances.iter().map(|made| made.instance).collect()).unwrap_or_default();
        let planner = self.of(geometry).ok_or(WhyNoCardLayout::NotUnderstood { index })?;
        placed(planner, there, &wanted).map_err(|why| WhyNoCardLayout::NoRoom { index, model: card.model.clone(), why })
    }

    fn of(&mut self, geometry: &Geometry) -> Option<&Planner> {
        let at = match self.0.iter().position(|planner| planner.geometry() == geometry) {
            Some(at) => at,
            None => {
                self.0.push(Planner::new(geometry.clone()).ok()?);
                self.0.len().checked_sub(1)?
            }
        };
        self.0.get(at)
    }
}

/// What the planner would only say does not fit together: too many of one profile, or of what there is once.
fn limits(index: u32, geometry: &Geometry, counts: &[(MigProfile, u32)]) -> Result<(), WhyNoCardLayout> {
    let told = || counts.iter().filter_map(|(profile, count)| Some((geometry.profile(*profile)?, *count)));
    if let Some((profile, count)) = told().find(|(profile, count)| *count > profile.most) {
        return Err(WhyNoCardLayout::TooManyInstances { index, profile: profile.name, count, most: profile.most });
    }
    let media: Vec<MigProfile> = told().filter(|(told, _)| told.takes_media).map(|(told, _)| told.name).collect();
    match media.as_slice() {
        [one, other, ..] => Err(WhyNoCardLayout::Media { index, one: *one, other: *other }),
        _ => Ok(()),
    }
}

/// What the card can be divided into.
pub(super) fn geometry(index: u32, card: &Card) -> Result<&Geometry, WhyNoCardLayout> {
    let model = || card.model.clone();
    if card.nvml.is_none() {
        return Err(WhyNoCardLayout::NotAsked { index, model: model(), driver: card.driver.clone() });
    }
    let mig = card.mig().ok_or_else(|| WhyNoCardLayout::NoMig { index, model: model() })?;
    mig.geometry.as_ref().ok_or(WhyNoCardLayout::NotUnderstood { index })
}

/// What is there and wanted stays where it is, if that can be.
fn placed(planner: &Planner, there: Vec<Instance>, wanted: &[MigProfile]) -> Result<Vec<Instance>, WhyNoRoom> {
    let mut missing = wanted.to_vec();
    let mut kept = there;
    kept.retain(|instance| {
        let at = missing.iter().position(|profile| *profile == instance.profile);
        at.map(|at| missing.swap_remove(at)).is_some()
    });
    missing.sort_unstable();
    let mut instances = match planner.fits(&kept, &missing) {
        Ok(new) => [kept, new].concat(),
        Err(_) => planner.fits(&[], wanted)?,
    };
    instances.sort_by_key(|instance| instance.placement);
    Ok(instances)
}
