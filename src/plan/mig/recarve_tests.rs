//! Re-carving against brute force, and by example.

use proptest::prelude::*;

use super::brute_tests::{can_lie, is_lawful, layout, planner};
use super::*;
use crate::model::gpu::mig::fixtures;
use crate::model::units::Mib;

fn held(carved: &[Carved]) -> Vec<Instance> {
    carved.iter().filter(|c| c.is_in_use).map(|c| c.instance).collect()
}

fn memory(geometry: &Geometry, some: &[Instance]) -> Mib {
    Mib(some.iter().map(|i| geometry.profile(i.profile).unwrap().memory.0).sum())
}

/// The fewest machines that have to be moved, and of these the least memory: every set of every card, spread over all cards
/// in every way.
fn cheapest(geometry: &Geometry, cards: &[Vec<Carved>], wanted: MigProfile) -> Option<(usize, Mib)> {
    let mut best = None;
    for (target, carved) in cards.iter().enumerate() {
        let held_here = held(carved);
        for set in 0..1_u32 << held_here.len() {
            let (moved, kept): (Vec<_>, Vec<_>) =
                held_here.iter().enumerate().partition(|(at, _)| set & (1 << at) != 0);
            let moved: Vec<Instance> = moved.into_iter().map(|(_, i)| *i).collect();
            let kept: Vec<Instance> = kept.into_iter().map(|(_, i)| *i).collect();
            let ways = cards.len().pow(u32::try_from(moved.len()).unwrap());
            let works = (0..ways).any(|way| {
                let mut way = way;
                let mut asked: Vec<Vec<MigProfile>> = vec![Vec::new(); cards.len()];
                asked[target].push(wanted);
                for instance in &moved {
                    asked[way % cards.len()].push(instance.profile);
                    way /= cards.len();
                }
                asked.iter().enumerate().all(|(card, asked)| {
                    let there = if card == target { kept.clone() } else { held(&cards[card]) };
                    can_lie(geometry, &there, asked)
                })
            });
            let price = (moved.len(), memory(geometry, &moved));
            if works && best.is_none_or(|best| price < best) {
                best = Some(price);
            }
        }
    }
    best
}

/// What a proposal promises: carried out, it leaves lawful cards with the wanted instance and all machines.
fn check(geometry: &Geometry, cards: &[Vec<Carved>], wanted: MigProfile, found: &Recarve) {
    assert_eq!(found.wanted.instance.profile, wanted);
    let mut made: Vec<Pick> = found.moves.iter().map(|m| m.to).collect();
    made.push(found.wanted);
    for (card, carved) in cards.iter().enumerate() {
        let gone: Vec<Instance> = found
            .destroy
            .iter()
            .chain(found.moves.iter().map(|m| &m.from))
            .filter(|p| p.card == card)
            .map(|p| p.instance)
            .collect();
        let mut after: Vec<Instance> = carved.iter().map(|c| c.instance).filter(|i| !gone.contains(i)).collect();
        after.extend(found.create.iter().filter(|p| p.card == card).map(|p| p.instance));
        assert!(is_lawful(geometry, &after), "{after:?}");
        for pick in made.iter().filter(|p| p.card == card) {
            assert!(after.contains(&pick.instance), "{pick:?} is there in the end");
        }
        for pick in found.destroy.iter().filter(|p| p.card == card) {
            assert!(
                carved.contains(&Carved { instance: pick.instance, is_in_use: false }),
                "only idle ones are destroyed"
            );
        }
        for m in found.moves.iter().filter(|m| m.from.card == card) {
            assert!(carved.contains(&Carved { instance: m.from.instance, is_in_use: true }));
        }
    }
    for m in &found.moves {
        assert_eq!(m.from.instance.profile, m.to.instance.profile);
        assert!(m.from != m.to, "moved to where it was");
    }
}

fn agree(geometry: &Geometry, cards: &[Vec<Carved>], wanted: MigProfile) {
    let planner = planner(geometry.clone());
    let list: Vec<CarvedCard<'_>> = cards.iter().map(|carved| CarvedCard { planner: &planner, carved }).collect();
    let found = recarve(&list, wanted);
    assert_eq!(found, recarve(&list, wanted), "the same again");
    if let Ok(found) = &found {
        check(geometry, cards, wanted, found);
    }
    let price = found.as_ref().ok().map(|found| (found.moves.len(), found.moved));
    assert_eq!(price, cheapest(geometry, cards, wanted), "{wanted} on {cards:?}: {found:?}");
}

fn carved(geometry: &Geometry, seeds: &[u64]) -> Vec<Carved> {
    let is_in_use = |at: usize| seeds.get(at).is_none_or(|seed| seed % 4 != 0);
    layout(geometry, seeds)
        .into_iter()
        .enumerate()
        .map(|(at, instance)| Carved { instance, is_in_use: is_in_use(at) })
        .collect()
}

fn seeds() -> impl Strategy<Value = Vec<u64>> {
    proptest::collection::vec(any::<u64>(), 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_fewest_machines_move_on_one_card(seeds in seeds(), pick in 0..7_usize) {
        for geometry in [fixtures::a100_80(), fixtures::a30_like()] {
            let wanted = geometry.profiles()[pick % geometry.profiles().len()].name;
            agree(&geometry, &[carved(&geometry, &seeds)], wanted);
        }
    }

    #[test]
    fn the_fewest_machines_move_on_several_cards(all in proptest::collection::vec(seeds(), 2..4), pick in 0..5_usize) {
        let geometry = fixtures::a30_like();
        let cards: Vec<Vec<Carved>> = all.iter().map(|seeds| carved(&geometry, seeds)).collect();
        agree(&geometry, &cards, geometry.profiles()[pick].name);
    }
}

fn at(text: &str) -> Carved {
    let (text, is_in_use) = text.strip_suffix('!').map_or((text, false), |text| (text, true));
    let (name, start) = text.split_once('@').unwrap();
    let profile = name.parse().unwrap();
    let instance = fixtures::a100_80().profile(profile).unwrap().at(start.parse().unwrap());
    Carved { instance, is_in_use }
}

/// Cards as `1g.10gb@0! 2g.20gb@2`, in use with a `!`; what is proposed, in a line.
fn proposal(cards: &[&str], wanted: &str) -> String {
    let planner = planner(fixtures::a100_80());
    let cards: Vec<Vec<Carved>> = cards.iter().map(|card| card.split_whitespace().map(at).collect()).collect();
    let list: Vec<CarvedCard<'_>> = cards.iter().map(|carved| CarvedCard { planner: &planner, carved }).collect();
    let say = |pick: &Pick| format!("{}/{}", pick.card, pick.instance);
    let all = |picks: &[Pick]| picks.iter().map(say).collect::<Vec<_>>().join(" ");
    match recarve(&list, wanted.parse().unwrap()) {
        Ok(found) => {
            let moves: Vec<String> = found.moves.iter().map(|m| format!("{}>{}", say(&m.from), say(&m.to))).collect();
            format!(
                "{}; stop [{}], destroy [{}], create [{}]",
                say(&found.wanted),
                moves.join(" "),
                all(&found.destroy),
                all(&found.create)
            )
        }
        Err(whys) => whys.iter().map(ToString::to_string).collect::<Vec<_>>().join(" | "),
    }
}

#[test]
fn what_is_proposed() {
    insta::assert_snapshot!(proposal(&[""], "3g.40gb"), @"0/3g.40gb@4; stop [], destroy [], create [0/3g.40gb@4]");
    // Idle ones go, and one that is there already is taken.
    insta::assert_snapshot!(proposal(&["1g.10gb@0 1g.10gb@4"], "7g.80gb"), @"0/7g.80gb@0; stop [], destroy [0/1g.10gb@0 0/1g.10gb@4], create [0/7g.80gb@0]");
    insta::assert_snapshot!(proposal(&["3g.40gb@4"], "3g.40gb"), @"0/3g.40gb@4; stop [], destroy [], create []");
    // Case B-mig-fragmentation.
    insta::assert_snapshot!(proposal(&["1g.10gb@0! 1g.10gb@1! 1g.10gb@5!"], "3g.40gb"), @"0/3g.40gb@4; stop [0/1g.10gb@5>0/1g.10gb@2], destroy [], create [0/3g.40gb@4 0/1g.10gb@2]");
    // The one that has less memory moves, and to another card where its own has no room.
    insta::assert_snapshot!(proposal(&["1g.10gb@0! 2g.20gb@4!"], "4g.40gb"), @"0/4g.40gb@0; stop [0/1g.10gb@0>0/1g.10gb@6], destroy [], create [0/4g.40gb@0 0/1g.10gb@6]");
    insta::assert_snapshot!(proposal(&["1g.10gb@6!", "3g.40gb@0! 1g.10gb@6!"], "7g.80gb"), @"0/7g.80gb@0; stop [0/1g.10gb@6>1/1g.10gb@5], destroy [], create [0/7g.80gb@0 1/1g.10gb@5]");
    insta::assert_snapshot!(proposal(&["7g.80gb@0!"], "1g.10gb"), @"1g.10gb takes 1 compute slice, none is free");
    insta::assert_snapshot!(proposal(&["3g.40gb@0! 3g.40gb@4!", "4g.40gb@0! 3g.40gb@4!"], "2g.20gb"), @"2g.20gb takes 2 compute slices, 1 is free | 2g.20gb takes 2 compute slices, none is free");
    insta::assert_snapshot!(proposal(&["3g.40gb@0 1g.10gb@2"], "2g.20gb"), @"what is on the card is not understood: 3g.40gb@0 and 1g.10gb@2 overlap");
}
