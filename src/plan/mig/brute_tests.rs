//! The planner against brute force: everything is tried, and judged by the rules alone.

use proptest::prelude::*;

use super::*;
use crate::model::gpu::mig::{GeometryProfile, fixtures};

/// Numbers that are the same in every run (xorshift).
pub(super) struct Numbers(pub u64);

impl Numbers {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 16
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next()).unwrap() % end
    }
}

pub(super) fn planner(geometry: Geometry) -> Planner {
    Planner::new(geometry).unwrap()
}

fn told<'g>(geometry: &'g Geometry, instance: &Instance) -> &'g GeometryProfile {
    geometry.profile(instance.profile).unwrap()
}

/// The rules of gpu-facts 4.3, by definition.
pub(super) fn is_lawful(geometry: &Geometry, layout: &[Instance]) -> bool {
    let slices = |i: &Instance| i.placement.start..i.placement.start + i.placement.size;
    let overlaps =
        |(at, one): (usize, &Instance)| layout[at + 1..].iter().any(|o| slices(o).any(|s| slices(one).contains(&s)));
    let is_at_home = |i: &Instance| {
        told(geometry, i).starts.contains(&i.placement.start) && told(geometry, i).size == i.placement.size
    };
    let compute: u32 = layout.iter().map(|i| told(geometry, i).compute).sum();
    let media = layout.iter().filter(|i| told(geometry, i).takes_media).count();
    let is_few = |p: &GeometryProfile| layout.iter().filter(|i| i.profile == p.name).count() <= p.most as usize;
    layout.iter().all(is_at_home)
        && !layout.iter().enumerate().any(overlaps)
        && compute <= geometry.compute_slices()
        && media <= 1
        && geometry.profiles().iter().all(is_few)
}

/// Whether all of these can lie beside what is there: every start of each is tried.
pub(super) fn can_lie(geometry: &Geometry, there: &[Instance], wanted: &[MigProfile]) -> bool {
    let Some((first, rest)) = wanted.split_first() else { return true };
    let Some(profile) = geometry.profile(*first) else { return false };
    profile.starts.iter().any(|start| {
        let mut layout = there.to_vec();
        layout.push(profile.at(*start));
        is_lawful(geometry, &layout) && can_lie(geometry, &layout, rest)
    })
}

/// So many of each profile, as a list.
fn list(geometry: &Geometry, counts: &[u32]) -> Vec<MigProfile> {
    let of = |(profile, count): (&GeometryProfile, &u32)| vec![profile.name; *count as usize];
    geometry.profiles().iter().zip(counts).rev().flat_map(of).collect()
}

/// Every multiset, up to one more of each profile than there may be, through `fits` from the empty card.
fn agree_on_every_multiset(geometry: Geometry) -> (usize, usize) {
    let planner = planner(geometry.clone());
    let mut counts = vec![0; geometry.profiles().len()];
    let (mut all, mut fitting) = (0, 0);
    loop {
        let wanted = list(&geometry, &counts);
        let found = planner.fits(&[], &wanted);
        assert_eq!(found.is_ok(), can_lie_fast(&geometry, &wanted), "{wanted:?}: {found:?}");
        all += 1;
        if let Ok(layout) = found {
            fitting += 1;
            assert_eq!(
                layout.iter().map(|i| i.profile).collect::<Vec<_>>(),
                wanted,
                "in the order in which it was wanted"
            );
            assert!(is_lawful(&geometry, &layout), "{layout:?}");
            assert_eq!(planner.check(&layout), Ok(()));
        }
        // The next multiset, as a number is counted up.
        let mut at = 0;
        while counts.get(at).is_some_and(|count| *count == geometry.profiles()[at].most + 1) {
            counts[at] = 0;
            at += 1;
        }
        match counts.get_mut(at) {
            Some(count) => *count += 1,
            None => return (all, fitting),
        }
    }
}

/// Brute force, but for sums that no placement can mend.
fn can_lie_fast(geometry: &Geometry, wanted: &[MigProfile]) -> bool {
    let sizes: u32 = wanted.iter().map(|p| geometry.profile(*p).unwrap().size).sum();
    sizes <= geometry.memory_slices() && can_lie(geometry, &[], wanted)
}

#[test]
fn every_multiset_fits_an_a100_where_brute_force_finds_placements() {
    let (all, fitting) = agree_on_every_multiset(fixtures::a100_80());
    println!("A100-80: {all} multisets, {fitting} fit");
    assert!(all > 29_000 && fitting > 100);
}

#[test]
fn every_multiset_fits_a_card_of_four_slices_where_brute_force_finds_placements() {
    let (all, fitting) = agree_on_every_multiset(fixtures::a30_like());
    println!("A30-like: {all} multisets, {fitting} fit");
    assert!(all > 600 && fitting > 10);
}

/// A lawful layout, by putting down at random what has room.
pub(super) fn layout(geometry: &Geometry, seeds: &[u64]) -> Vec<Instance> {
    let mut layout = Vec::new();
    for seed in seeds {
        let mut numbers = Numbers(seed.wrapping_mul(2) + 1);
        let profile = &geometry.profiles()[numbers.below(geometry.profiles().len())];
        layout.push(profile.at(profile.starts[numbers.below(profile.starts.len())]));
        if !is_lawful(geometry, &layout) {
            layout.pop();
        }
    }
    layout
}

pub(super) fn cards() -> impl Strategy<Value = Geometry> {
    // Two with limits that their slices do not imply: of profiles, and of compute.
    let mut limited = fixtures::a100_80().profiles().to_vec();
    limited[0].most = 3;
    limited[3].most = 1;
    let limited = Geometry::new(7, 8, limited).unwrap();
    let few = Geometry::new(3, 8, fixtures::a100_80().profiles()[..5].to_vec()).unwrap();
    prop_oneof![Just(fixtures::a100_80()), Just(fixtures::a30_like()), Just(fixtures::h200()), Just(limited), Just(few)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_there_already((geometry, seeds) in (cards(), proptest::collection::vec(any::<u64>(), 0..9)), picks in proptest::collection::vec(0..7_usize, 1..4)) {
        let planner = planner(geometry.clone());
        let there = layout(&geometry, &seeds);
        prop_assert_eq!(planner.check(&there), Ok(()));
        let mut turned = there.clone();
        turned.reverse();
        for (profile, room) in geometry.profiles().iter().zip(planner.capacity(&there).unwrap()) {
            let lawful = |start: &u32| is_lawful(&geometry, &[there.clone(), vec![profile.at(*start)]].concat());
            let free: Vec<u32> = profile.starts.iter().copied().filter(lawful).collect();
            prop_assert_eq!(&planner.free_starts(&there, profile.name), &free);
            let most = (0..=8).take_while(|count| can_lie(&geometry, &there, &vec![profile.name; *count])).last().unwrap();
            prop_assert_eq!(room, Room { profile: profile.name, count: u32::try_from(most).unwrap() });
            match planner.place(&there, profile.name) {
                Ok(instance) => prop_assert!(free.contains(&instance.placement.start)),
                Err(_) => prop_assert!(free.is_empty(), "{} is refused", profile.name),
            }
            prop_assert_eq!(planner.place(&there, profile.name), planner.place(&turned, profile.name));
        }
        let wanted: Vec<MigProfile> = picks.iter().map(|at| geometry.profiles()[at % geometry.profiles().len()].name).collect();
        let found = planner.fits(&there, &wanted);
        prop_assert_eq!(found.is_ok(), can_lie(&geometry, &there, &wanted), "{:?}", found);
        if let Ok(found) = found {
            prop_assert!(is_lawful(&geometry, &[there, found].concat()));
        }
    }

    #[test]
    fn what_is_lost_could_be_had_anew((geometry, seeds) in (cards(), proptest::collection::vec(any::<u64>(), 0..6))) {
        let planner = planner(geometry.clone());
        let there = layout(&geometry, &seeds);
        let mut there_by_size: Vec<Instance> = there.clone();
        there_by_size.sort_by_key(|i| std::cmp::Reverse(i.placement.size));
        let found = planner.fragmentation(&there).unwrap();
        for profile in geometry.profiles() {
            let anew = |count: &usize| {
                let mut all = vec![profile.name; *count];
                all.extend(there_by_size.iter().map(|i| i.profile));
                all.sort_by_key(|p| std::cmp::Reverse(geometry.profile(*p).unwrap().size));
                can_lie_fast(&geometry, &all)
            };
            let best = (0..=8).take_while(anew).last().unwrap();
            let now = (0..=8).take_while(|count| can_lie(&geometry, &there, &vec![profile.name; *count])).last().unwrap();
            let lost = found.lost.iter().find(|lost| lost.profile == profile.name);
            prop_assert_eq!(lost.map(|l| (l.now as usize, l.anew as usize)), (best > now).then_some((now, best)), "{} of {:?}", profile.name, there);
        }
        prop_assert_eq!(found.percent == 0, found.lost.is_empty());
        prop_assert!(found.percent <= 100);
    }

    #[test]
    fn what_is_not_lawful_is_refused(geometry in cards(), starts in proptest::collection::vec((0..7_usize, 0..9_u32, 0..9_u32), 1..4)) {
        let planner = planner(geometry.clone());
        let any = |(at, start, size): &(usize, u32, u32)| {
            let profile = &geometry.profiles()[at % geometry.profiles().len()];
            let size = if *size == 0 { *start } else { profile.size };
            Instance { profile: profile.name, placement: crate::model::gpu::mig::Placement { start: *start, size } }
        };
        let layout: Vec<Instance> = starts.iter().map(any).collect();
        prop_assert_eq!(planner.check(&layout).is_ok(), is_lawful(&geometry, &layout), "{:?}", planner.check(&layout));
    }
}
