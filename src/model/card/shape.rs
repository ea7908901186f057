//! The shape of a card: what it is divided into, between machines. Whole, with virtual functions, with MIG and its
//! instances. Each change of it is one job, done by `gvm helper`, as it may hang in the kernel or in NVML.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::model::gpu::mig::{Instance, Placement};
use crate::model::pci::PciAddress;

/// More virtual functions no card has.
pub const MAX_FUNCTIONS: u32 = 256;

/// One change of a card's shape. What is as wished already is left alone, so that each can be done again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "job")]
pub enum ShapeJob {
    /// Virtual functions: so many, or none. The driver gives up the card for a moment, and all MIG instances with it.
    Functions {
        /// The card.
        card: PciAddress,
        /// How many; 0 switches them off, `None` stands for all that it has.
        count: Option<u32>,
    },
    /// MIG mode. Some cards change it at their next reset only, and then read as pending.
    MigMode {
        /// The card.
        card: PciAddress,
        /// On, or off.
        is_on: bool,
    },
    /// A reset of the card by its driver, which brings a pending MIG mode into force.
    Reset {
        /// The card.
        card: PciAddress,
    },
    /// A GPU instance at a placement, with one compute instance that has all of it.
    MakeInstance {
        /// The card.
        card: PciAddress,
        /// What, and where.
        instance: Instance,
    },
    /// An end of the GPU instance at a placement and of the compute instances in it.
    RemoveInstance {
        /// The card.
        card: PciAddress,
        /// What, and where.
        instance: Instance,
    },
}

impl ShapeJob {
    /// The card it is about.
    pub const fn card(&self) -> PciAddress {
        match self {
            Self::Functions { card, .. }
            | Self::MigMode { card, .. }
            | Self::Reset { card }
            | Self::MakeInstance { card, .. }
            | Self::RemoveInstance { card, .. } => *card,
        }
    }
}

impl fmt::Display for ShapeJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Functions { card, count: Some(0) } => write!(f, "switching off the virtual functions of {card}"),
            Self::Functions { card, count: None } => write!(f, "switching on all virtual functions of {card}"),
            Self::Functions { card, count: Some(count) } => {
                write!(f, "switching on {count} virtual functions of {card}")
            }
            Self::MigMode { card, is_on } => write!(f, "switching MIG {} on {card}", if *is_on { "on" } else { "off" }),
            Self::Reset { card } => write!(f, "resetting {card}"),
            Self::MakeInstance { card, instance } => write!(f, "making the MIG instance {instance} of {card}"),
            Self::RemoveInstance { card, instance } => write!(f, "removing the MIG instance {instance} of {card}"),
        }
    }
}

/// Why a text is no instance.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no MIG instance; write profile, first memory slice and how many, such as 3g.40gb@4:4")]
pub struct InstanceError(String);

/// `3g.40gb@4:4`: profile, first memory slice, number of memory slices.
///
/// # Errors
/// [`InstanceError`].
pub fn parse_instance(text: &str) -> Result<Instance, InstanceError> {
    let wrong = || InstanceError(text.to_owned());
    let (profile, place) = text.split_once('@').ok_or_else(wrong)?;
    let (start, size) = place.split_once(':').ok_or_else(wrong)?;
    let number = |digits: &str| u32::from_str(digits).map_err(|_| wrong());
    let placement = Placement { start: number(start)?, size: number(size)? };
    Ok(Instance { profile: profile.parse().map_err(|_| wrong())?, placement })
}

/// The text that [`parse_instance`] reads.
pub fn instance_text(instance: &Instance) -> String {
    format!("{}@{}", instance.profile, instance.placement)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_written_as_it_is_read() {
        for text in ["3g.40gb@4:4", "1g.10gb+me@6:1"] {
            assert_eq!(instance_text(&parse_instance(text).unwrap()), text);
        }
        for bad in ["", "3g.40gb", "3g.40gb@4", "3g@4:4", "3g.40gb@a:4", "3g.40gb@4:-1"] {
            assert!(parse_instance(bad).unwrap_err().to_string().contains("is no MIG instance"), "{bad}");
        }
    }
}
