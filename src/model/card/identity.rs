//! Is it still the same card? A PCI address is where a card was found, not who it is: a new card in the box shifts
//! the numbers of the others, and the address of a GPU becomes that of a disk.

use serde::{Deserialize, Serialize};

use super::Card;
use super::pci::PciIds;
use crate::model::gpu::PciAddress;

/// What is remembered of a card, to know it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardIdentity {
    /// Where it was.
    pub address: PciAddress,
    /// Its numbers.
    pub ids: PciIds,
    /// NVML's UUID, where it was ever known.
    #[serde(default)]
    pub uuid: Option<String>,
}

/// Where a remembered card is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "now")]
pub enum Whereabouts {
    /// Where it was.
    Here,
    /// The one card that fits is somewhere else. It is proposed, not taken.
    Moved {
        /// Where.
        to: PciAddress,
    },
    /// Several cards fit.
    Unclear {
        /// Which.
        among: Vec<PciAddress>,
    },
    /// No card fits.
    Gone,
}

impl From<&Card> for CardIdentity {
    fn from(card: &Card) -> Self {
        let uuid = card.nvml.as_ref().and_then(|nvml| nvml.uuid.clone());
        Self { address: card.address, ids: card.ids, uuid }
    }
}

impl CardIdentity {
    /// Finds it among the cards of a host. A UUID decides where both sides have one; a card under VFIO has none to
    /// show, and is known by its numbers and its place.
    pub fn find(&self, cards: &[Card]) -> Whereabouts {
        let fits: Vec<(PciAddress, bool)> = cards.iter().filter_map(|card| self.fit(card)).collect();
        if let Some((to, _)) = fits.iter().find(|(_, is_sure)| *is_sure) {
            return if *to == self.address { Whereabouts::Here } else { Whereabouts::Moved { to: *to } };
        }
        let among: Vec<PciAddress> = fits.iter().map(|(address, _)| *address).collect();
        match among.as_slice() {
            _ if among.contains(&self.address) => Whereabouts::Here,
            [] => Whereabouts::Gone,
            [to] => Whereabouts::Moved { to: *to },
            _ => Whereabouts::Unclear { among },
        }
    }

    /// Whether a card can be this one, and whether that is sure.
    fn fit(&self, card: &Card) -> Option<(PciAddress, bool)> {
        let uuid = card.nvml.as_ref().and_then(|nvml| nvml.uuid.as_ref());
        match (&self.uuid, uuid) {
            (Some(mine), Some(its)) => (mine == its).then_some((card.address, true)),
            _ => (self.ids == card.ids && !card.is_vf()).then_some((card.address, false)),
        }
    }
}
