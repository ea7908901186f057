//! What the cards are: published tables. `[U]` marks what could not be checked against what a card prints.
//!
//! Placements of cards with eight memory slices are those that `nvidia-smi mig -lgipp` printed on A100 and H100 cards.
//! Numbers of vGPU types are made up, but for the A100's; they change with the driver anyway.

mod divided;
mod shared;

use std::sync::LazyLock;

/// Generations that differ in what they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// vGPUs are mediated devices of the card itself.
    Turing,
    /// MIG mode waits for a reset.
    Ampere,
    Ada,
    /// MIG mode is in force at once, from here on.
    Hopper,
    Blackwell,
}

/// A kind of card.
#[derive(Clone, Debug)]
pub struct Kind {
    pub key: &'static str,
    /// As NVML tells it.
    pub name: &'static str,
    pub device: u16,
    /// Vendor and device of the board.
    pub subsystem: (u16, u16),
    pub memory_mib: u64,
    pub family: Family,
    /// Virtual functions; 0 where vGPUs are the card's own.
    pub functions: u32,
    pub profiles: Vec<Profile>,
    pub types: Vec<VgpuType>,
}

/// A GPU-instance profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// `NVML_GPU_INSTANCE_PROFILE_*`.
    pub number: u32,
    pub id: u32,
    pub name: &'static str,
    pub slices: u32,
    pub size: u32,
    pub starts: &'static [u32],
    pub most: u32,
    pub memory_mib: u64,
}

/// A type of vGPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VgpuType {
    pub id: u32,
    pub name: String,
    pub memory_gib: u64,
    /// On one card.
    pub most: u32,
    /// The profile of the instance behind it.
    pub profile: Option<u32>,
    /// On one instance.
    pub per_instance: u32,
}

const ALL: &[u32] = &[0, 1, 2, 3, 4, 5, 6];
const EVEN: &[u32] = &[0, 2, 4, 6];

/// Names and MiB of 1g, 1g double, 2g, 3g, 4g, 7g on a card of eight memory slices.
type Large = [(&'static str, u64); 6];

fn large(media: &'static str, rows: Large) -> Vec<Profile> {
    let [one, double, two, three, four, seven] = rows;
    let row = |number, id, (name, memory_mib): (&'static str, u64), slices, size, starts, most| Profile {
        number,
        id,
        name,
        slices,
        size,
        starts,
        most,
        memory_mib,
    };
    vec![
        row(0, 19, one, 1, 1, ALL, 7),
        row(1, 14, two, 2, 2, &[0, 2, 4], 3),
        row(2, 9, three, 3, 4, &[0, 4], 2),
        row(3, 5, four, 4, 4, &[0], 1),
        row(4, 0, seven, 7, 8, &[0], 1),
        row(7, 20, (media, one.1), 1, 1, ALL, 1),
        row(9, 15, double, 1, 2, EVEN, 4),
    ]
}

/// Types of one card: `(name, GiB, most)` by time, then `(name, GiB, profile id, most)` on MIG.
fn types(first: u32, card: &str, by_time: &[(&str, u64, u32)], by_mig: &[(&str, u64, u32, u32)]) -> Vec<VgpuType> {
    let shared = by_time.iter().map(|(name, memory, most)| (*name, *memory, *most, None));
    let backed = by_mig.iter().map(|(name, memory, profile, most)| (*name, *memory, *most, Some(*profile)));
    let one = |(number, (name, memory_gib, most, profile)): (u32, (&str, u64, u32, Option<u32>))| VgpuType {
        id: first + number,
        name: format!("NVIDIA {card}-{name}"),
        memory_gib,
        most,
        profile,
        per_instance: 1,
    };
    (0..).zip(shared.chain(backed)).map(one).collect()
}

static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    vec![
        divided::a100_80(),
        divided::a100_40(),
        divided::h100(),
        divided::h200(),
        shared::l40s(),
        divided::rtx_pro_6000(),
        shared::a16(),
        shared::a2(),
        shared::t4(),
        divided::a30(),
    ]
});

/// All kinds.
pub fn all() -> &'static [Kind] {
    &KINDS
}

/// The kind with this key; panics where there is none, as the tests' states are made by us.
pub fn kind(key: &str) -> &'static Kind {
    all().iter().find(|kind| kind.key == key).unwrap_or_else(|| panic!("no kind of card {key:?}"))
}
