//! Why a layout is not lawful, and why something has no room.

use std::fmt;

use crate::model::gpu::mig::{GeometryProfile, Instance, MigProfile};

/// Why instances cannot lie on a card as they are said to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The card does not know the profile.
    #[error("the card has no profile {0}")]
    Unknown(MigProfile),
    /// A placement that the card does not allow.
    #[error("{0} may not lie at {at} on this card", at = .0.placement)]
    Place(Instance),
    /// Two in one place.
    #[error("{0} and {1} overlap")]
    Overlap(Instance, Instance),
    /// More compute than there is.
    #[error("{needed} compute slices are taken of {there}")]
    Compute {
        /// Of all instances.
        needed: u32,
        /// Of the card.
        there: u32,
    },
    /// Two with the one set of media extensions.
    #[error("{0} and {1} both take the card's media extensions")]
    Media(Instance, Instance),
    /// Too many of one profile.
    #[error("there may be {most} of {profile} on this card, not {count}")]
    Most {
        /// Which.
        profile: MigProfile,
        /// How many there may be.
        most: u32,
        /// How many there are.
        count: u32,
    },
}

/// Why one more instance has no room on a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhyNoRoom {
    /// The card does not know the profile.
    Unknown(MigProfile),
    /// There are as many as there may be.
    Most(MigProfile, u32),
    /// The media extensions are taken.
    Media(MigProfile),
    /// Too few compute slices are free.
    Compute {
        /// Asked for.
        profile: MigProfile,
        /// It takes so many.
        needs: u32,
        /// So many are free.
        free: u32,
    },
    /// Too few memory slices are free.
    Memory {
        /// Asked for.
        profile: MigProfile,
        /// It takes so many.
        needs: u32,
        /// So many are free.
        free: u32,
    },
    /// Enough is free, but not where the profile may lie.
    Scattered {
        /// Asked for.
        profile: MigProfile,
        /// Free compute slices.
        compute: u32,
        /// Free memory slices.
        memory: u32,
        /// The largest profile that has room.
        largest: Option<MigProfile>,
    },
    /// Each has room alone, not all together.
    Together {
        /// What was asked for.
        wanted: Vec<MigProfile>,
        /// Compute slices that they take, and that are free.
        compute: (u32, u32),
        /// Memory slices that they take, and that are free.
        memory: (u32, u32),
    },
    /// What is on the card is not understood, so that nothing is put beside it.
    Layout(LayoutError),
}

impl fmt::Display for WhyNoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(profile) => write!(f, "the card has no profile {profile}"),
            Self::Most(profile, most) => write!(f, "{profile}: the card may have {most} of it, and has"),
            Self::Media(profile) => write!(f, "{profile}: the card's media extensions are taken"),
            Self::Compute { profile, needs, free } => {
                write!(f, "{profile} takes {needs} compute {}, {} free", slices(*needs), are(*free))
            }
            Self::Memory { profile, needs, free } => {
                write!(f, "{profile} takes {needs} memory {}, {} free", slices(*needs), are(*free))
            }
            Self::Scattered { profile, compute, memory, largest } => {
                write!(
                    f,
                    "{profile}: {memory} memory and {compute} compute {} are free, but not where it may lie; ",
                    slices(*compute)
                )?;
                match largest {
                    Some(largest) => write!(f, "the largest that fits is {largest}"),
                    None => write!(f, "nothing fits"),
                }
            }
            Self::Together { wanted, compute, memory } => write!(
                f,
                "{} do not fit together: they take {} memory and {} compute slices, {} and {} are free",
                listed(wanted),
                memory.0,
                compute.0,
                memory.1,
                compute.1
            ),
            Self::Layout(error) => write!(f, "what is on the card is not understood: {error}"),
        }
    }
}

const fn slices(count: u32) -> &'static str {
    if count == 1 { "slice" } else { "slices" }
}

fn are(count: u32) -> String {
    match count {
        0 => "none is".to_owned(),
        1 => "1 is".to_owned(),
        count => format!("{count} are"),
    }
}

/// `2x 1g.10gb, 3g.40gb`: in the order of the first of each.
pub(super) fn listed(profiles: &[MigProfile]) -> String {
    let mut counts: Vec<(MigProfile, usize)> = Vec::new();
    for profile in profiles {
        match counts.iter_mut().find(|(known, _)| known == profile) {
            Some((_, count)) => *count += 1,
            None => counts.push((*profile, 1)),
        }
    }
    let words = counts.iter().map(|(profile, count)| match count {
        1 => profile.to_string(),
        count => format!("{count}x {profile}"),
    });
    words.collect::<Vec<_>>().join(", ")
}

/// By how much of a card a profile takes; the largest last.
pub(super) const fn largeness(profile: &GeometryProfile) -> (u32, u32) {
    (profile.size, profile.compute)
}
