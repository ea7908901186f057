//! MIG: what a card can be divided into, and what it is divided into.
//!
//! A card has *compute slices* (7, or 4 on small ones) and *memory slices* (8, or 4). A GPU instance takes so many of each
//! as its profile says; the memory slices are neighbours, and begin where the profile may begin. So where an instance
//! lies decides what fits beside it, and free slices are not what can be had.
//!
//! Nothing of this is known by heart: a [`Geometry`] is what NVML says of a card at run time. The published tables are in
//! [`fixtures`], for tests and simulations alone.

pub mod fixtures;
mod profile;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::units::Mib;
pub use profile::{MigProfile, MigProfileError, MigVariant};

/// Most slices of a card: more than any has, and few enough for the planner's sets of bits.
pub const MAX_SLICES: u32 = 32;
/// Most profiles of a card; NVML numbers 18.
pub const MAX_PROFILES: usize = 20;

/// Neighbouring memory slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// The first.
    pub start: u32,
    /// How many.
    pub size: u32,
}

impl fmt::Display for Placement {
    /// As nvidia-smi writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}:{}", self.start, self.size))
    }
}

/// A GPU instance: what it is and where it lies. Its number in NVML changes and is no part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Instance {
    /// Its profile.
    pub profile: MigProfile,
    /// Where it lies.
    pub placement: Placement,
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}@{}", self.profile, self.placement.start))
    }
}

/// One GPU-instance profile of a card, as NVML reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GeometryProfile {
    /// NVML's number for it on this card and driver; for calls alone, never to know it by.
    pub id: u32,
    /// Its name.
    pub name: MigProfile,
    /// Compute slices that it takes.
    pub compute: u32,
    /// Memory slices that it takes.
    pub size: u32,
    /// Memory slices at which it may begin.
    pub starts: Vec<u32>,
    /// Most instances of it on one card.
    pub most: u32,
    /// Memory of an instance.
    pub memory: Mib,
    /// It takes the card's one set of media extensions.
    pub takes_media: bool,
}

/// What a card can be divided into.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawGeometry")]
pub struct Geometry {
    compute_slices: u32,
    memory_slices: u32,
    profiles: Vec<GeometryProfile>,
}

/// Why what was told of a card cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// None, or too many.
    #[error("a card with {0} MIG profiles; 1 to {MAX_PROFILES} are understood")]
    Profiles(usize),
    /// The same name twice.
    #[error("the MIG profile {0} is told twice")]
    Twice(MigProfile),
    /// Numbers that cannot be.
    #[error("the MIG profile {name} cannot be: {why}")]
    Profile {
        /// Which.
        name: MigProfile,
        /// What is wrong.
        why: &'static str,
    },
    /// Slices that cannot be.
    #[error(
        "{compute} compute slices and {memory} memory slices do not hold the card's profiles; at most {MAX_SLICES} are understood"
    )]
    Slices {
        /// Compute slices.
        compute: u32,
        /// Memory slices.
        memory: u32,
    },
}

impl Geometry {
    /// A card of so many slices with these profiles; starts come in any order.
    ///
    /// # Errors
    /// Where the numbers contradict each other.
    pub fn new(compute_slices: u32, memory_slices: u32, profiles: Vec<GeometryProfile>) -> Result<Self, GeometryError> {
        if profiles.is_empty() || profiles.len() > MAX_PROFILES {
            return Err(GeometryError::Profiles(profiles.len()));
        }
        let mut profiles = profiles;
        for profile in &mut profiles {
            profile.starts.sort_unstable();
            profile.starts.dedup();
        }
        for (at, profile) in profiles.iter().enumerate() {
            if profiles.iter().skip(at + 1).any(|other| other.name == profile.name) {
                return Err(GeometryError::Twice(profile.name));
            }
            profile.check()?;
            let fits = |start: &u32| start.checked_add(profile.size).is_some_and(|end| end <= memory_slices);
            if profile.compute > compute_slices || !profile.starts.iter().all(fits) {
                return Err(GeometryError::Slices { compute: compute_slices, memory: memory_slices });
            }
        }
        if compute_slices > MAX_SLICES || memory_slices > MAX_SLICES {
            return Err(GeometryError::Slices { compute: compute_slices, memory: memory_slices });
        }
        Ok(Self { compute_slices, memory_slices, profiles })
    }

    /// A card of which only the profiles are told, as by NVML: it has as many slices as its largest profile takes.
    ///
    /// # Errors
    /// Where the numbers contradict each other.
    pub fn of_profiles(profiles: Vec<GeometryProfile>) -> Result<Self, GeometryError> {
        let compute = profiles.iter().map(|profile| profile.compute).max().unwrap_or_default();
        let end = |profile: &GeometryProfile| {
            profile.starts.iter().max().map_or(0, |start| start.saturating_add(profile.size))
        };
        let memory = profiles.iter().map(end).max().unwrap_or_default();
        Self::new(compute, memory, profiles)
    }

    /// Compute slices of the card.
    pub const fn compute_slices(&self) -> u32 {
        self.compute_slices
    }

    /// Memory slices of the card.
    pub const fn memory_slices(&self) -> u32 {
        self.memory_slices
    }

    /// Its profiles, in the order in which they were told.
    pub fn profiles(&self) -> &[GeometryProfile] {
        &self.profiles
    }

    /// The profile of this name.
    pub fn profile(&self, name: MigProfile) -> Option<&GeometryProfile> {
        self.profiles.iter().find(|profile| profile.name == name)
    }
}

impl GeometryProfile {
    /// An instance of it that begins there, allowed or not.
    pub const fn at(&self, start: u32) -> Instance {
        Instance { profile: self.name, placement: Placement { start, size: self.size } }
    }

    fn check(&self) -> Result<(), GeometryError> {
        let faults = [
            (!self.name.is_whole(), "it is a part of an instance"),
            (self.compute == 0 || self.size == 0, "it takes no slice"),
            (self.starts.is_empty(), "it may begin nowhere"),
            (self.most == 0, "there may be none of it"),
        ];
        match faults.into_iter().find(|(is_wrong, _)| *is_wrong) {
            Some((_, why)) => Err(GeometryError::Profile { name: self.name, why }),
            None => Ok(()),
        }
    }
}

/// A geometry as written, not yet checked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGeometry {
    compute_slices: u32,
    memory_slices: u32,
    profiles: Vec<GeometryProfile>,
}

impl TryFrom<RawGeometry> for Geometry {
    type Error = GeometryError;

    fn try_from(raw: RawGeometry) -> Result<Self, GeometryError> {
        Self::new(raw.compute_slices, raw.memory_slices, raw.profiles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_found_from_the_profiles() {
        for (card, slices) in
            [(fixtures::a100_80(), (7, 8)), (fixtures::h200(), (7, 8)), (fixtures::a30_like(), (4, 4))]
        {
            assert_eq!((card.compute_slices(), card.memory_slices()), slices);
            assert_eq!(Geometry::of_profiles(card.profiles().to_vec()), Ok(card.clone()));
            let text = serde_json::to_string(&card).unwrap();
            assert_eq!(serde_json::from_str::<Geometry>(&text).unwrap(), card);
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let card = fixtures::a100_80();
        let told = |change: &dyn Fn(&mut Vec<GeometryProfile>)| {
            let mut profiles = card.profiles().to_vec();
            change(&mut profiles);
            Geometry::new(7, 8, profiles).map(|_| ()).map_err(|e| e.to_string())
        };
        assert_eq!(told(&|profiles| profiles[0].starts.reverse()), Ok(()), "in any order");
        insta::assert_snapshot!(told(&Vec::clear).unwrap_err(), @"a card with 0 MIG profiles; 1 to 20 are understood");
        insta::assert_snapshot!(told(&|p| p[1] = p[0].clone()).unwrap_err(), @"the MIG profile 1g.10gb is told twice");
        insta::assert_snapshot!(told(&|p| p[0].size = 0).unwrap_err(), @"the MIG profile 1g.10gb cannot be: it takes no slice");
        insta::assert_snapshot!(told(&|p| p[0].starts.clear()).unwrap_err(), @"the MIG profile 1g.10gb cannot be: it may begin nowhere");
        insta::assert_snapshot!(told(&|p| p[0].most = 0).unwrap_err(), @"the MIG profile 1g.10gb cannot be: there may be none of it");
        insta::assert_snapshot!(told(&|p| p[0].name = "1c.3g.40gb".parse().unwrap()).unwrap_err(), @"the MIG profile 1c.3g.40gb cannot be: it is a part of an instance");
        insta::assert_snapshot!(told(&|p| p[0].starts.push(8)).unwrap_err(), @"7 compute slices and 8 memory slices do not hold the card's profiles; at most 32 are understood");
        assert!(told(&|p| p[0].starts.push(u32::MAX)).is_err() && told(&|p| p[0].compute = 8).is_err());
        assert!(
            Geometry::of_profiles(vec![GeometryProfile { starts: vec![u32::MAX], ..card.profiles()[0].clone() }])
                .is_err()
        );
        assert!(
            Geometry::of_profiles(vec![GeometryProfile { starts: vec![40], ..card.profiles()[0].clone() }]).is_err()
        );
    }
}
