//! Cards that are out of service, or worth a word, by what is seen of them now.

use super::{Finding, Level, bad};
use crate::model::gpu::Service;
use crate::plan::health::{remedy, service};
use crate::plan::inventory::Entry;

/// What there is to say of a card that no decision keeps out of use.
pub(super) fn seen(entry: &Entry) -> Option<Finding> {
    let (row, card) = (entry.known.as_ref()?, entry.card.as_ref()?);
    let name = format!("{} {}", card.address, entry.model());
    let (level, text) = match service(row, card, true) {
        Service::Good => return None,
        Service::Noted(why) => (Level::Note, format!("{name} is in service, and: {why}")),
        Service::Draining(why) => (Level::Warn, format!("{name} is given to no further machine: {why}")),
        Service::Quarantined(why) | Service::Stuck(why) => (Level::Fail, format!("{name} is out of service: {why}")),
    };
    let fix = remedy(row, Some(card)).unwrap_or_else(|| format!("nvidia-smi -q -i {}", card.address));
    Some(bad("gpu", level, text, fix))
}
