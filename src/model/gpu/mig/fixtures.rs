//! Published tables of cards, for tests, benches and simulations: production code asks NVML, and a house test sees to it.
//!
//! The table of eight memory slices is as `nvidia-smi mig -lgipp` printed it on A100 and H100 cards. What is not sure:
//! - the memory of the H200's instances, which is made from their names here, and that of the H100's, which is known in
//!   hundredths of GiB only;
//! - the starts on an A30 (two published tables contradict each other) and its profiles' ids; hence *like*: a card of four
//!   slices each, which the planner must be able to deal with.

use super::{Geometry, GeometryProfile, MigProfile};
use crate::model::units::Mib;

/// Name, id, compute slices, memory slices, starts, most instances, MiB.
type Row = (&'static str, u32, u32, u32, &'static [u32], u32, u64);

const ALL_STARTS: &[u32] = &[0, 1, 2, 3, 4, 5, 6];

/// A100 with 40 GB.
pub fn a100_40() -> Geometry {
    card(&[
        ("1g.5gb", 19, 1, 1, ALL_STARTS, 7, 4864),
        ("1g.5gb+me", 20, 1, 1, ALL_STARTS, 1, 4864),
        ("1g.10gb", 15, 1, 2, &[0, 2, 4, 6], 4, 9856),
        ("2g.10gb", 14, 2, 2, &[0, 2, 4], 3, 9856),
        ("3g.20gb", 9, 3, 4, &[0, 4], 2, 19968),
        ("4g.20gb", 5, 4, 4, &[0], 1, 19968),
        ("7g.40gb", 0, 7, 8, &[0], 1, 40192),
    ])
}

/// A100 with 80 GB.
pub fn a100_80() -> Geometry {
    card(&[
        ("1g.10gb", 19, 1, 1, ALL_STARTS, 7, 9856),
        ("1g.10gb+me", 20, 1, 1, ALL_STARTS, 1, 9856),
        ("1g.20gb", 15, 1, 2, &[0, 2, 4, 6], 4, 19968),
        ("2g.20gb", 14, 2, 2, &[0, 2, 4], 3, 19968),
        ("3g.40gb", 9, 3, 4, &[0, 4], 2, 40192),
        ("4g.40gb", 5, 4, 4, &[0], 1, 40192),
        ("7g.80gb", 0, 7, 8, &[0], 1, 80384),
    ])
}

/// H100 with 80 GB.
pub fn h100_80() -> Geometry {
    card(&[
        ("1g.10gb", 19, 1, 1, ALL_STARTS, 7, 9984),
        ("1g.10gb+me", 20, 1, 1, ALL_STARTS, 1, 9984),
        ("1g.20gb", 15, 1, 2, &[0, 2, 4, 6], 4, 20090),
        ("2g.20gb", 14, 2, 2, &[0, 2, 4], 3, 20090),
        ("3g.40gb", 9, 3, 4, &[0, 4], 2, 40448),
        ("4g.40gb", 5, 4, 4, &[0], 1, 40448),
        ("7g.80gb", 0, 7, 8, &[0], 1, 81152),
    ])
}

/// H200 with 141 GB.
pub fn h200() -> Geometry {
    card(&[
        ("1g.18gb", 19, 1, 1, ALL_STARTS, 7, 17166),
        ("1g.18gb+me", 20, 1, 1, ALL_STARTS, 1, 17166),
        ("1g.35gb", 15, 1, 2, &[0, 2, 4, 6], 4, 33378),
        ("2g.35gb", 14, 2, 2, &[0, 2, 4], 3, 33378),
        ("3g.71gb", 9, 3, 4, &[0, 4], 2, 67710),
        ("4g.71gb", 5, 4, 4, &[0], 1, 67710),
        ("7g.141gb", 0, 7, 8, &[0], 1, 134_468),
    ])
}

/// A card of four compute and four memory slices, as an A30 is.
pub fn a30_like() -> Geometry {
    card(&[
        ("1g.6gb", 14, 1, 1, &[0, 1, 2, 3], 4, 5836),
        ("1g.6gb+me", 21, 1, 1, &[0, 1, 2, 3], 1, 5836),
        ("2g.12gb", 5, 2, 2, &[0, 2], 2, 11672),
        ("2g.12gb+me", 6, 2, 2, &[0, 2], 1, 11672),
        ("4g.24gb", 0, 4, 4, &[0], 1, 23344),
    ])
}

/// All of them, with a name each.
pub fn all() -> [(&'static str, Geometry); 5] {
    [
        ("A100-40", a100_40()),
        ("A100-80", a100_80()),
        ("H100-80", h100_80()),
        ("H200-141", h200()),
        ("A30-like", a30_like()),
    ]
}

/// The starts that the driver tries, in this order, where it is not told one; on cards of eight memory slices.
///
/// This is read from what the public samples print, and is no promise of NVIDIA's. From the MIG user guide: `-cgi
/// 19,14,5` gave 1g at 6, 2g at 4, 4g at 0; `-cgi 14,19,19,19,19,19` gave 2g at 4 and 1g at 6, 0, 1, 2, 3; `-cgi 19,19,14,9`
/// gave two 1g and a 2g with the instance numbers of the starts 6, 4 and 0, and no room for 3g any more; `-cgi 9,19,14,19`
/// gave 3g at 4, 1g at 0 and 1, 2g at 2. Seven 1g come with the numbers of 6, 4, 5, 0, 1, 2, 3; three 2g with those of 4,
/// 0, 2. *Not sure*: the order of the 1g with double memory, of which no sample was found (taken to be from the top),
/// whether other driver versions and cards with other slices switched off do the same (samples of virtual machines in
/// clouds count from 0 in places), and the older print that has the first 3g at 0.
pub fn driver_order(profile: &GeometryProfile) -> Vec<u32> {
    let order: &[u32] = match (profile.compute, profile.size) {
        (1, 1) => &[6, 4, 5, 0, 1, 2, 3],
        (1, 2) => &[6, 4, 2, 0],
        (2, 2) => &[4, 0, 2],
        (3, 4) => &[4, 0],
        _ => &[0],
    };
    order.iter().copied().filter(|start| profile.starts.contains(start)).collect()
}

fn card(rows: &[Row]) -> Geometry {
    let profile = |(name, id, compute, size, starts, most, memory): &Row| {
        let name: MigProfile = name.parse().ok()?;
        Some(GeometryProfile {
            id: *id,
            name,
            compute: *compute,
            size: *size,
            starts: starts.to_vec(),
            most: *most,
            memory: Mib(*memory),
            takes_media: name.variant() == super::MigVariant::Media,
        })
    };
    let profiles: Vec<GeometryProfile> = rows.iter().filter_map(profile).collect();
    // A table that contradicts itself is seen by the tests, which count the profiles.
    Geometry::of_profiles(profiles).unwrap_or(Geometry { compute_slices: 0, memory_slices: 0, profiles: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_whole() {
        let counts =
            all().map(|(name, card)| (name, card.profiles().len(), card.compute_slices(), card.memory_slices()));
        let large = |name| (name, 7, 7, 8);
        assert_eq!(
            counts,
            [large("A100-40"), large("A100-80"), large("H100-80"), large("H200-141"), ("A30-like", 5, 4, 4)]
        );
        for (name, card) in all() {
            for profile in card.profiles() {
                assert_eq!(u32::from(profile.name.slices()), profile.compute, "{name} {}", profile.name);
                if card.memory_slices() == 8 {
                    let mut order = driver_order(profile);
                    order.sort_unstable();
                    assert_eq!(order, profile.starts, "{name} {}: the driver's order has every start", profile.name);
                }
            }
        }
    }
}
