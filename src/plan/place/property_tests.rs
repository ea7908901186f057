//! What holds for every host and every request.

use std::collections::HashSet;

use proptest::prelude::*;

use super::tests::card;
use super::*;
use crate::model::gpu::{Closeness, GpuMode, ModelName};

/// Cards of a random host, and which are held.
fn hosts() -> impl Strategy<Value = (Vec<GpuDevice>, Held)> {
    let one = (0..3_usize, 0..4_u32, 0..3_u8, 0..12_u32, 0..10_u8, any::<bool>());
    proptest::collection::vec(one, 0..14).prop_map(|seeds| {
        let models = [("NVIDIA_A100", 80), ("NVIDIA_A10", 24), ("Tesla_T4", 16)];
        let mut held = Held::new();
        let mut cards = Vec::new();
        for (at, (model, node, port, group, trouble, is_held)) in seeds.into_iter().enumerate() {
            let (name, gib) = models[model];
            let mut device = card(&format!("{:02x} {name} {gib}", 16 + at));
            device.numa_node = (node < 2).then_some(node);
            device.iommu_group = (group < 4).then_some(group);
            if port > 0 {
                device.upstream = vec![format!("0000:{:02x}:0{port}.0", 0x80 + node).parse().unwrap()];
            }
            match trouble {
                0 => device.blocked = Some("broken".to_owned()),
                1 => device.is_foreign = true,
                2 => device.mode = GpuMode::Vgpu,
                _ => {}
            }
            if is_held && at % 3 == 0 {
                held.insert(device.id.clone(), Holder { state: LeaseState::Attached, vm: None });
            }
            cards.push(device);
        }
        (cards, held)
    })
}

/// Whether any set of free whole groups meets the request of one term: all of them are tried.
fn can_be_met(request: &WholeCards, cards: &[GpuDevice], held: &Held) -> bool {
    let is_usable = |c: &GpuDevice| {
        c.blocked.is_none() && !c.is_foreign && c.mode == GpuMode::Passthrough && !held.contains_key(&c.id)
    };
    let fits = |c: &GpuDevice| {
        let name = ModelName::new(&c.model, c.vendor);
        request.model.as_ref().is_none_or(|word| name.is_called(word))
            && request.memory.is_none_or(|m| search::is_as_sold(c.memory, m))
    };
    (0_u32..1 << cards.len()).filter(|set| set.count_ones() == request.count).any(|set| {
        let chosen: Vec<&GpuDevice> =
            cards.iter().enumerate().filter(|(at, _)| set & (1 << at) != 0).map(|(_, card)| card).collect();
        let is_whole = |c: &GpuDevice| {
            cards
                .iter()
                .filter(|o| c.iommu_group.is_some() && o.iommu_group == c.iommu_group)
                .all(|o| chosen.contains(&o))
        };
        let nodes: HashSet<Option<u32>> = chosen.iter().map(|c| c.numa_node).collect();
        let is_near = request.closeness.is_none() || nodes.len() == 1 && !nodes.contains(&None);
        is_near && chosen.iter().all(|c| is_usable(c) && fits(c) && is_whole(c))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn what_is_picked_may_be_picked((cards, held) in hosts(), kinds in proptest::collection::vec(0..8_usize, 1..4)) {
        let words = ["1", "2", "3xa100", "a10", "24GiB", "2xt4", "2:same-node", "2xa100:same-switch"];
        let list: Vec<GpuRequest> = kinds.iter().map(|kind| words[*kind].parse().unwrap()).collect();
        let wanted: u32 = list.iter().map(GpuRequest::count).sum();
        let answer = pick(&list, &cards, &held);
        prop_assert_eq!(&answer, &pick(&list, &cards, &held), "the same again");
        let mut turned = cards.clone();
        turned.reverse();
        prop_assert_eq!(&answer, &pick(&list, &turned, &held), "whatever the order of the inventory");
        match answer {
            Ok(picked) => {
                let ids: HashSet<&GpuId> = picked.iter().map(Partition::gpu).collect();
                prop_assert_eq!((ids.len(), picked.len()), (wanted as usize, wanted as usize));
                for device in cards.iter().filter(|device| ids.contains(&device.id)) {
                    prop_assert!(!held.contains_key(&device.id) && device.blocked.is_none() && !device.is_foreign);
                    prop_assert_eq!(device.mode, GpuMode::Passthrough);
                    let mates = cards.iter().filter(|o| o.iommu_group.is_some() && o.iommu_group == device.iommu_group);
                    prop_assert!(mates.into_iter().all(|mate| ids.contains(&mate.id)), "a group was split");
                }
            }
            Err(why) => {
                prop_assert_eq!(why.cards.len(), cards.len());
                for request in &why.now {
                    prop_assert!(pick(std::slice::from_ref(request), &cards, &held).is_ok(), "{} of {}", request, why);
                }
                prop_assert!(!why.is_for_now() || pick(&list, &cards, &Held::new()).is_ok());
            }
        }
    }

    #[test]
    fn nothing_that_can_be_met_is_refused((cards, held) in hosts(), kind in 0..7_usize) {
        let words = ["1", "2", "3xa100", "24GiB", "2x24GiB", "2:same-node", "3:same-node"];
        let request: GpuRequest = words[kind].parse().unwrap();
        let GpuRequest::Whole(whole) = &request else { unreachable!() };
        let is_met = can_be_met(whole, &cards, &held);
        prop_assert_eq!(pick(std::slice::from_ref(&request), &cards, &held).is_ok(), is_met, "{}", request);
    }

    #[test]
    fn every_offer_can_be_picked((cards, held) in hosts()) {
        for offer in offers(&cards, &held) {
            let mut wanted: Vec<GpuRequest> = offer.counts.iter().map(|count| offer.request_for(*count, None)).collect();
            if offer.same_node > 0 {
                wanted.push(offer.request_for(offer.same_node, Some(Closeness::SameNode)));
            }
            if offer.same_switch > 0 {
                wanted.push(offer.request_for(offer.same_switch, Some(Closeness::SameSwitch)));
            }
            for request in wanted {
                let text = request.to_string();
                prop_assert_eq!(text.parse::<GpuRequest>(), Ok(request.clone()), "as typed");
                prop_assert!(pick(&[request], &cards, &held).is_ok(), "{} is offered", text);
            }
            prop_assert!(offer.free <= offer.total);
        }
    }
}
