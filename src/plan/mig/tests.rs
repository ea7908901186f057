//! The planner by example: cases from the field, and what it says.

use super::brute_tests::planner;
use super::*;
use crate::model::gpu::mig::{Placement, fixtures};

fn name(text: &str) -> MigProfile {
    text.parse().unwrap()
}

/// `3g.40gb@4` on an A100-80.
fn at(text: &str) -> Instance {
    let (profile, start) = text.split_once('@').unwrap();
    fixtures::a100_80().profile(name(profile)).unwrap().at(start.parse().unwrap())
}

fn layout(text: &str) -> Vec<Instance> {
    text.split_whitespace().map(at).collect()
}

fn why(there: &str, wanted: &str) -> String {
    planner(fixtures::a100_80()).place(&layout(there), name(wanted)).unwrap_err().to_string()
}

/// The examples of gpu-facts 4.3.
#[test]
fn layouts_that_are_known_to_be_lawful_or_not() {
    let planner = planner(fixtures::a100_80());
    let seven: String = (0..7).map(|start| format!("1g.10gb@{start} ")).collect();
    for lawful in [
        "",
        seven.as_str(),
        "3g.40gb@0 3g.40gb@4",
        "4g.40gb@0 3g.40gb@4",
        "4g.40gb@0 2g.20gb@4 1g.10gb@6",
        "3g.40gb@0 2g.20gb@4 1g.10gb@6",
        "2g.20gb@0 1g.10gb@2 1g.10gb@3 3g.40gb@4",
        "1g.20gb@0 1g.20gb@2 1g.20gb@4 1g.20gb@6",
    ] {
        assert_eq!(planner.check(&layout(lawful)), Ok(()), "{lawful}");
    }
    let fault = |text: &str| planner.check(&layout(text)).unwrap_err().to_string();
    insta::assert_snapshot!(fault("4g.40gb@0 2g.20gb@2"), @"4g.40gb@0 and 2g.20gb@2 overlap");
    insta::assert_snapshot!(fault("3g.40gb@4 4g.40gb@4"), @"4g.40gb@4 may not lie at 4:4 on this card");
    insta::assert_snapshot!(fault("4g.40gb@0 2g.20gb@4 1g.10gb@6 1g.10gb@7"), @"1g.10gb@7 may not lie at 7:1 on this card");
    insta::assert_snapshot!(fault("1g.10gb+me@0 1g.10gb+me@1"), @"1g.10gb+me@0 and 1g.10gb+me@1 both take the card's media extensions");
    assert!(planner.fits(&[], &[name("3g.40gb"), name("3g.40gb"), name("1g.10gb")]).is_err());
    // On the cards that there are, memory runs out first; not so on one with compute switched off.
    let few = Geometry::new(3, 8, fixtures::a100_80().profiles()[..5].to_vec()).unwrap();
    let few = super::brute_tests::planner(few);
    insta::assert_snapshot!(few.check(&layout("2g.20gb@0 2g.20gb@2")).unwrap_err().to_string(), @"4 compute slices are taken of 3");
    let strange = Instance { profile: name("1g.5gb"), placement: Placement { start: 0, size: 1 } };
    insta::assert_snapshot!(planner.check(&[strange]).unwrap_err().to_string(), @"the card has no profile 1g.5gb");
    let large = Instance { profile: name("1g.10gb"), placement: Placement { start: 0, size: 2 } };
    insta::assert_snapshot!(planner.check(&[large]).unwrap_err().to_string(), @"1g.10gb@0 may not lie at 0:2 on this card");
    insta::assert_snapshot!(planner.place(&[strange], name("1g.10gb")).unwrap_err().to_string(), @"what is on the card is not understood: the card has no profile 1g.5gb");
}

/// Case B-mig-fragmentation.
#[test]
fn small_ones_leave_room_for_large_ones() {
    let planner = planner(fixtures::a100_80());
    let there = layout("1g.10gb@0 1g.10gb@1 1g.10gb@5");
    assert_eq!(planner.free_starts(&there, name("2g.20gb")), [2]);
    assert_eq!(planner.place(&there, name("2g.20gb")), Ok(at("2g.20gb@2")));
    insta::assert_snapshot!(why("1g.10gb@0 1g.10gb@1 1g.10gb@5", "3g.40gb"), @"3g.40gb: 5 memory and 4 compute slices are free, but not where it may lie; the largest that fits is 2g.20gb");
    insta::assert_snapshot!(planner.fragmentation(&there).unwrap().to_string(), @"free: 5 memory and 4 compute slices; the largest that fits is 2g.20gb; fragmented by 48 %, laid out anew it would have room for 1x 4g.40gb (now none), 1x 3g.40gb (now none), 2x 2g.20gb (now 1)");
    let mut there = Vec::new();
    for _ in 0..3 {
        there.push(planner.place(&there, name("1g.10gb")).unwrap());
        for large in ["4g.40gb", "3g.40gb"] {
            assert!(planner.place(&there, name(large)).is_ok(), "{large} beside {there:?}");
        }
    }
    insta::assert_snapshot!(planner.fragmentation(&there).unwrap().to_string(), @"free: 5 memory and 4 compute slices; the largest that fits is 4g.40gb; nothing is lost by where things lie");
    insta::assert_snapshot!(planner.fragmentation(&layout("7g.80gb@0")).unwrap().to_string(), @"free: 0 memory and 0 compute slices; nothing fits; nothing is lost by where things lie");
    insta::assert_snapshot!(planner.fragmentation(&layout("1g.10gb@1 1g.10gb@3 1g.10gb@5")).unwrap().to_string(), @"free: 5 memory and 4 compute slices; the largest that fits is 1g.20gb; fragmented by 67 %, laid out anew it would have room for 1x 4g.40gb (now none), 1x 3g.40gb (now none), 2x 2g.20gb (now none), 2x 1g.20gb (now 1)");
}

/// Case B-overcounted-slots, for MIG: what is shown as free can be had.
#[test]
fn what_is_free_is_counted_together() {
    let planner = planner(fixtures::a100_80());
    let room = |there: &str| {
        let rooms = planner.capacity(&layout(there)).unwrap();
        rooms.iter().map(|room| format!("{} {}", room.count, room.profile)).collect::<Vec<_>>().join(", ")
    };
    insta::assert_snapshot!(room(""), @"7 1g.10gb, 1 1g.10gb+me, 4 1g.20gb, 3 2g.20gb, 2 3g.40gb, 1 4g.40gb, 1 7g.80gb");
    // One 3g takes four of the seven 1g: gpu-facts 4.3.
    insta::assert_snapshot!(room("3g.40gb@0"), @"3 1g.10gb, 1 1g.10gb+me, 2 1g.20gb, 1 2g.20gb, 1 3g.40gb, 0 4g.40gb, 0 7g.80gb");
    insta::assert_snapshot!(room("3g.40gb@4"), @"4 1g.10gb, 1 1g.10gb+me, 2 1g.20gb, 2 2g.20gb, 1 3g.40gb, 1 4g.40gb, 0 7g.80gb");
    insta::assert_snapshot!(room("7g.80gb@0"), @"0 1g.10gb, 0 1g.10gb+me, 0 1g.20gb, 0 2g.20gb, 0 3g.40gb, 0 4g.40gb, 0 7g.80gb");
}

#[test]
fn a_refusal_says_what_is_missing() {
    insta::assert_snapshot!(why("", "1g.5gb"), @"the card has no profile 1g.5gb");
    insta::assert_snapshot!(why("", "1c.3g.40gb"), @"the card has no profile 1c.3g.40gb");
    insta::assert_snapshot!(why("7g.80gb@0", "1g.10gb"), @"1g.10gb takes 1 compute slice, none is free");
    insta::assert_snapshot!(why("1g.10gb+me@6", "1g.10gb+me"), @"1g.10gb+me: the card's media extensions are taken");
    insta::assert_snapshot!(why("4g.40gb@0", "4g.40gb"), @"4g.40gb: the card may have 1 of it, and has");
    insta::assert_snapshot!(why("3g.40gb@0 3g.40gb@4", "1g.10gb"), @"1g.10gb takes 1 memory slice, none is free");
    insta::assert_snapshot!(why("3g.40gb@0 2g.20gb@4 1g.10gb@6", "2g.20gb"), @"2g.20gb takes 2 compute slices, 1 is free");
    let planner = planner(fixtures::a100_80());
    let wanted = ["3g.40gb", "2g.20gb", "2g.20gb"].map(name);
    insta::assert_snapshot!(planner.fits(&layout("1g.10gb@6"), &wanted).unwrap_err().to_string(), @"3g.40gb, 2x 2g.20gb do not fit together: they take 8 memory and 7 compute slices, 7 and 6 are free");
    insta::assert_snapshot!(planner.fits(&layout("3g.40gb@0 1g.10gb@5"), &["1g.10gb", "3g.40gb"].map(name)).unwrap_err().to_string(), @"3g.40gb takes 4 memory slices, 3 are free");
}

#[test]
fn the_fullest_card_that_loses_nothing_is_taken() {
    let (large, small) = (planner(fixtures::a100_80()), planner(fixtures::a30_like()));
    let cards = ["", "4g.40gb@0 2g.20gb@4", "1g.10gb@6"].map(layout);
    let list: Vec<Card<'_>> = cards.iter().map(|placed| Card { planner: &large, placed }).collect();
    assert_eq!(pick(&list, name("1g.10gb")), Ok(Pick { card: 1, instance: at("1g.10gb@6") }));
    assert_eq!(pick(&list, name("7g.80gb")), Ok(Pick { card: 0, instance: at("7g.80gb@0") }));
    assert_eq!(pick(&list, name("4g.40gb")), Ok(Pick { card: 2, instance: at("4g.40gb@0") }));
    // Cards of several kinds: only those that know the profile.
    let mixed = [Card { planner: &small, placed: &[] }, Card { planner: &large, placed: &cards[1] }];
    assert_eq!(pick(&mixed, name("1g.10gb")).unwrap().card, 1);
    assert_eq!(pick(&mixed, name("2g.12gb")).unwrap().card, 0);
    let whys: Vec<String> = pick(&mixed, name("3g.40gb")).unwrap_err().iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(whys.join(" | "), @"the card has no profile 3g.40gb | 3g.40gb takes 3 compute slices, 1 is free");
}

#[test]
fn a_card_with_too_many_layouts_is_not_understood() {
    let one = fixtures::a100_80().profiles()[0].clone();
    let wide = crate::model::gpu::mig::GeometryProfile { starts: (0..32).collect(), most: 32, ..one };
    assert_eq!(Planner::new(Geometry::new(32, 32, vec![wide]).unwrap()).map(|_| ()), Err(TooManyLayouts));
}
