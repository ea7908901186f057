//! Why a layout file cannot be applied.

use std::fmt::Display;

use super::HostCard;
use crate::model::card::Card;
use crate::model::gpu::VgpuTypeName;
use crate::model::gpu::layout::DeviceFilter;
use crate::model::gpu::mig::MigProfile;
use crate::model::units::Mib;
use crate::plan::mig::WhyNoRoom;

/// Why a config of a file cannot be applied on this host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhyNoLayout {
    /// It was not said which.
    #[error("the file has several configs; name one of {}", listed(.0))]
    Several(Vec<String>),
    /// There is none of this name.
    #[error("the file has no config {name:?}; there are {}", listed(there))]
    NoConfig {
        /// Asked for.
        name: String,
        /// There are these.
        there: Vec<String>,
    },
    /// No entry is for a card of this host.
    #[error(
        "config {config:?}: no entry is for a card of this host, which has {cards}; compare device-filter and devices"
    )]
    Nothing {
        /// Which config.
        config: String,
        /// The host's cards, in words.
        cards: String,
    },
    /// An entry cannot be.
    #[error("config {config:?}, entry {entry}: {why}")]
    Entry {
        /// Which config.
        config: String,
        /// Which entry, counted from 1.
        entry: usize,
        /// Why.
        why: WhyNoCardLayout,
    },
}

/// Why an entry cannot be applied to a card.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhyNoCardLayout {
    /// No card has this number.
    #[error("devices: there is no card {index}; this host has {count} by the order of their addresses, counted from 0")]
    NoIndex {
        /// Its number.
        index: u32,
        /// How many there are.
        count: usize,
    },
    /// The filter keeps it out.
    #[error("device-filter: card {index} is {model} ({has}), and the entry is for {filter}; no other entry takes it")]
    WrongCard {
        /// Its number.
        index: u32,
        /// Its name.
        model: String,
        /// Its own filter.
        has: DeviceFilter,
        /// What the entry lets through.
        filter: String,
    },
    /// It has no MIG.
    #[error("mig-enabled: card {index} ({model}) has no MIG; name the other cards in `devices`, or write false for it")]
    NoMig {
        /// Its number.
        index: u32,
        /// Its name.
        model: String,
    },
    /// Its driver does not have it, so that it cannot be asked.
    #[error(
        "card {index} ({model}) cannot be asked what it can be divided into: {}; give it back to the NVIDIA driver \
         (`gvm gpu mode GPU mig`), or name the other cards in `devices`", with(driver.as_deref())
    )]
    NotAsked {
        /// Its number.
        index: u32,
        /// Its name.
        model: String,
        /// The driver that has it.
        driver: Option<String>,
    },
    /// What it told is not understood.
    #[error("card {index} did not tell in an understood way what MIG can divide it into; see the log")]
    NotUnderstood {
        /// Its number.
        index: u32,
    },
    /// It does not have the profile.
    #[error("mig-devices: card {index} ({model}) has no profile {profile}; it has {}", listed(has))]
    NoProfile {
        /// Its number.
        index: u32,
        /// Its name.
        model: String,
        /// Asked for.
        profile: MigProfile,
        /// Its profiles.
        has: Vec<MigProfile>,
    },
    /// More than the card can have of one profile.
    #[error("mig-devices: {count} of {profile} are more than the {most} that card {index} can have")]
    TooManyInstances {
        /// Its number.
        index: u32,
        /// Asked for.
        profile: MigProfile,
        /// So many.
        count: u32,
        /// What it can have.
        most: u32,
    },
    /// Two take the media extensions.
    #[error(
        "mig-devices: {one} and {other} both take the one set of media extensions of card {index}; write one of them"
    )]
    Media {
        /// Its number.
        index: u32,
        /// One.
        one: MigProfile,
        /// Another.
        other: MigProfile,
    },
    /// They do not fit.
    #[error("card {index} ({model}) has no room for this: {why}")]
    NoRoom {
        /// Its number.
        index: u32,
        /// Its name.
        model: String,
        /// The planner's reason.
        why: WhyNoRoom,
    },
    /// No type is known.
    #[error(
        "vgpu-devices: no vGPU type of card {index} ({model}) is known: {}; it needs NVIDIA's vGPU host driver, and its \
         virtual functions on where it has some", with(driver.as_deref())
    )]
    NoTypes {
        /// Its number.
        index: u32,
        /// Its name.
        model: String,
        /// The driver that has it.
        driver: Option<String>,
    },
    /// It does not have the type.
    #[error("vgpu-devices: card {index} ({model}) has no type {name}; it has {}", listed(has))]
    NoType {
        /// Its number.
        index: u32,
        /// Its name.
        model: String,
        /// Asked for.
        name: VgpuTypeName,
        /// Its types.
        has: Vec<VgpuTypeName>,
    },
    /// More than the driver allows.
    #[error("vgpu-devices: {count} of {name} are more than the {most} that card {index} can carry")]
    TooMany {
        /// Its number.
        index: u32,
        /// Asked for.
        name: VgpuTypeName,
        /// So many of it, and of others of its size.
        count: u32,
        /// What it can carry.
        most: u32,
    },
    /// More than its memory.
    #[error("vgpu-devices: {count} of {each} each are more than the {memory} of card {index}")]
    Memory {
        /// Its number.
        index: u32,
        /// So many.
        count: u32,
        /// Of this size.
        each: Mib,
        /// What the card has.
        memory: Mib,
    },
    /// Two sizes.
    #[error(
        "vgpu-devices: {one} and {other} are of two sizes, and vGPUs that share card {index} by time must be of one; \
         write one size for each card"
    )]
    Sizes {
        /// Its number.
        index: u32,
        /// One.
        one: VgpuTypeName,
        /// Another.
        other: VgpuTypeName,
    },
    /// More than its virtual functions.
    #[error("vgpu-devices: {count} vGPUs are more than the {total} virtual functions that card {index} can have")]
    Functions {
        /// Its number.
        index: u32,
        /// So many.
        count: u32,
        /// So many functions.
        total: u32,
    },
    /// No instance is known that it could stand on.
    #[error("vgpu-devices: no MIG profile of card {index} is known to stand behind {name}; it has {}", listed(has))]
    NoInstance {
        /// Its number.
        index: u32,
        /// The type.
        name: VgpuTypeName,
        /// The card's profiles.
        has: Vec<MigProfile>,
    },
    /// Several share an instance.
    #[error(
        "vgpu-devices: several {name} share one MIG instance of {profile} by time, which gvm does not lay out yet; write \
         a type that has an instance for itself, or make the instances with a mig-parted file"
    )]
    Shared {
        /// Its number.
        index: u32,
        /// The type.
        name: VgpuTypeName,
        /// The instance behind it.
        profile: MigProfile,
    },
}

impl WhyNoLayout {
    pub(super) fn nothing(config: &str, cards: &[HostCard<'_>]) -> Self {
        let words = cards
            .iter()
            .zip(0_u32..)
            .map(|(card, index)| format!("card {index}: {} ({})", card.card.model, DeviceFilter::of(&card.card.ids)));
        let words = listed(&words.collect::<Vec<_>>());
        Self::Nothing { config: config.to_owned(), cards: words }
    }
}

impl WhyNoCardLayout {
    pub(super) fn wrong_card(index: u32, card: &Card, filter: &[DeviceFilter]) -> Self {
        Self::WrongCard { index, model: card.model.clone(), has: DeviceFilter::of(&card.ids), filter: listed(filter) }
    }
}

/// The first of them in words.
fn listed<T: Display>(items: &[T]) -> String {
    const SHOWN: usize = 24;
    let words: Vec<String> = items.iter().take(SHOWN).map(ToString::to_string).collect();
    match items.len() {
        0 => "none".to_owned(),
        all if all > SHOWN => format!("{} and {} more", words.join(", "), all - SHOWN),
        _ => words.join(", "),
    }
}

fn with(driver: Option<&str>) -> String {
    driver.map_or_else(|| "no driver has it".to_owned(), |driver| format!("it is with {driver}"))
}
