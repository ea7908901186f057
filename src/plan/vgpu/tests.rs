//! The field's cases, and a replay on a card that keeps the driver's rules.

use super::*;
use crate::plan::vgpu::pick::{Policy, VgpuWish, pick};

fn name(text: &str) -> VgpuTypeName {
    VgpuTypeName::parse(text).unwrap()
}

fn offered(text: &str, most: Option<u32>) -> OfferedType {
    OfferedType { id: "1".to_owned(), name: name(text), available: 1, memory: None, most }
}

/// A card at `bus` with so many functions that all offer these types.
fn card(bus: u8, gib: u64, functions: u8, types: &[&str]) -> VgpuPool {
    let bdf = PciAddress { domain: 0, bus, slot: 0, function: 0 };
    let parent = |number: u8| Parent {
        address: PciAddress { slot: number / 8 + 1, function: number % 8, ..bdf },
        framework: VgpuFramework::VendorVfio,
        is_single: true,
        offered: types.iter().map(|text| offered(text, None)).collect(),
        taken: Vec::new(),
        fault: None,
    };
    let parents = (0..functions).map(parent).collect();
    let (gpu, memory) = (GpuId(format!("pci-{bdf}")), Some(Mib(gib << 10)));
    VgpuPool {
        gpu,
        bdf,
        model: "Example".to_owned(),
        memory,
        is_mixed: false,
        known: Vec::new(),
        parents,
        mig: None,
        allowed: Vec::new(),
        blocked: None,
    }
}

fn take(pools: &mut [VgpuPool], parent: PciAddress, text: &str) {
    let mut parents = pools.iter_mut().flat_map(|pool| &mut pool.parents);
    let parent = parents.find(|one| one.address == parent).unwrap();
    let memory = name(text).grade().map(|grade| grade.memory);
    parent.taken.push(Taken { name: Some(name(text)), memory, is_ours: true, is_made: true });
}

/// Asks for a type and takes it; the bus of the card, or why not.
fn ask(pools: &mut [VgpuPool], word: &str, policy: Policy) -> Result<u8, String> {
    let choice = pick(pools, &VgpuWish::Type(word.to_owned()), policy).map_err(|why| why.to_string())?;
    take(pools, choice.parent, choice.name.as_str());
    Ok(choice.parent.bus)
}

fn count(pool: &VgpuPool, text: &str) -> u32 {
    pool.room(&name(text)).count
}

/// Case B-overcounted-slots.
#[test]
fn free_functions_are_no_capacity() {
    let mut pools = [card(1, 48, 32, &["L40S-2Q", "L40S-48Q"])];
    assert_eq!((count(&pools[0], "L40S-2Q"), count(&pools[0], "L40S-48Q")), (24, 1));
    let mut small = pools.clone();
    ask(&mut small, "L40S-2Q", Policy::Pack).unwrap();
    assert_eq!((count(&small[0], "L40S-2Q"), count(&small[0], "L40S-48Q")), (23, 0));
    ask(&mut pools, "L40S-48Q", Policy::Pack).unwrap();
    assert_eq!((count(&pools[0], "L40S-2Q"), count(&pools[0], "L40S-48Q")), (0, 0));
}

/// Case B-one-size-per-card.
#[test]
fn the_first_size_decides_for_its_card() {
    let types = ["EX-6Q", "EX-8Q", "EX-12Q", "EX-12A"];
    let mut pools = [card(1, 24, 16, &types), card(2, 24, 16, &types)];
    let mut ask = |word| ask(&mut pools, word, Policy::Pack);
    assert_eq!(ask("EX-6Q"), Ok(1));
    assert_eq!(ask("EX-12Q"), Ok(2));
    assert_eq!(ask("EX-6Q"), Ok(1));
    assert_eq!(ask("EX-12A"), Ok(2));
    insta::assert_snapshot!(ask("EX-8Q").unwrap_err(), @r"
    vgpu:EX-8Q cannot be had now
      0000:01:00.0: it is set to profiles of 6 GiB as long as one of them is there
      0000:02:00.0: it is set to profiles of 12 GiB as long as one of them is there
    ");
    for pool in &mut pools {
        pool.is_mixed = true;
    }
    assert_eq!(super::tests::ask(&mut pools, "EX-8Q", Policy::Pack), Ok(1));
    // Where the driver puts it nobody knows before: one at a time.
    let mut mixed = card(3, 48, 16, &types);
    mixed.is_mixed = true;
    assert_eq!(count(&mixed, "EX-6Q"), 1);
    let coming = Taken { name: Some(name("EX-6Q")), memory: Some(Mib(6 << 10)), is_ours: true, is_made: false };
    mixed.parents[9].taken.push(coming);
    assert_eq!(mixed.room(&name("EX-6Q")), Room { count: 0, limit: Limit::Mixed });
}

/// Case B-spread-over-parents.
#[test]
fn cards_are_packed_or_spread_as_is_wished() {
    for (policy, want) in [(Policy::Spread, [2, 2, 2]), (Policy::Pack, [6, 0, 0])] {
        let mut pools = [1, 2, 3].map(|bus| card(bus, 48, 8, &["EX-6Q"]));
        for _ in 0..6 {
            ask(&mut pools, "EX-6Q", policy).unwrap();
        }
        assert_eq!(pools.map(|pool| pool.taken().count()), want, "{policy:?}");
    }
}

#[test]
fn memory_alone_gets_the_smallest_type_that_computes() {
    let types = ["EX-8A", "EX-8Q", "EX-8C", "EX-16Q", "EX-4C"];
    let pools = [card(1, 48, 8, &types)];
    let got = |gib: u64| pick(&pools, &VgpuWish::Memory(Mib(gib << 10)), Policy::Pack).map(|choice| choice.name);
    assert_eq!(got(5), Ok(name("EX-8C")));
    assert_eq!(got(4), Ok(name("EX-4C")));
    assert_eq!(got(9), Ok(name("EX-16Q")));
    let why = got(17).unwrap_err();
    assert_eq!(why.to_string(), "a vGPU with 17 GiB cannot be had now\n  0000:01:00.0: Example has no such type");
    assert!(!why.may_come);
}

#[test]
fn what_is_not_known_is_not_promised() {
    let whole = card(1, 48, 4, &["EX-6Q"]);
    let one = |change: &dyn Fn(&mut VgpuPool)| {
        let mut pool = whole.clone();
        change(&mut pool);
        let room = pool.room(&name("EX-6Q"));
        (room.count, room.limit)
    };
    let stranger = |memory| Taken { name: None, memory, is_ours: false, is_made: true };
    assert_eq!(one(&|pool| pool.parents[0].taken.push(stranger(None))), (0, Limit::UnknownSize));
    assert_eq!(one(&|pool| pool.parents[0].taken.push(stranger(Some(Mib(6144))))), (3, Limit::Functions));
    assert_eq!(one(&|pool| pool.parents[0].fault = Some("no driver has it".to_owned())), (3, Limit::Functions));
    assert_eq!(one(&|pool| pool.blocked = Some("sick".to_owned())), (0, Limit::Blocked("sick".to_owned())));
    assert_eq!(one(&|pool| pool.parents[0].offered.clear()), (3, Limit::Functions));
    assert_eq!(one(&|pool| pool.parents[0].offered[0].most = Some(2)), (2, Limit::Driver));
    assert_eq!(one(&|pool| pool.memory = Some(Mib(6 << 10))), (1, Limit::Memory));
    assert_eq!(whole.room(&name("EX-7Q")).limit, Limit::NoSuchType);
    // Types of other makers have no size: only the driver limits them.
    let serial = card(2, 48, 2, &["Dual port serial"]);
    assert_eq!(count(&serial, "Dual port serial"), 2);
}

/// A card without virtual functions counts for itself, but not what is leased and not made yet.
#[test]
fn one_function_may_carry_several() {
    let mut pool = card(1, 16, 1, &["T4-4Q"]);
    pool.parents[0].is_single = false;
    pool.parents[0].offered[0].available = 4;
    assert_eq!(count(&pool, "T4-4Q"), 4);
    let coming = Taken { name: Some(name("T4-4Q")), memory: Some(Mib(4096)), is_ours: true, is_made: false };
    pool.parents[0].taken.push(coming);
    assert_eq!(count(&pool, "T4-4Q"), 3);
    pool.parents[0].taken[0].is_made = true;
    pool.parents[0].offered[0].available = 3;
    assert_eq!(count(&pool, "T4-4Q"), 3);
}

proptest::proptest! {
    /// What is shown can be had, one after the other, and not one more.
    #[test]
    fn what_is_offered_can_be_had(before in proptest::collection::vec(0_usize..4, 0..12), asked in 0_usize..4) {
        const TYPES: [&str; 4] = ["EX-4Q", "EX-6Q", "EX-12Q", "EX-24Q"];
        let mut pools = [card(1, 24, 8, &TYPES), card(2, 48, 16, &TYPES)];
        for index in before {
            let _ = ask(&mut pools, TYPES[index], Policy::Pack);
        }
        let word = TYPES[asked];
        let promised: u32 = pools.iter().map(|pool| count(pool, word)).sum();
        for number in 0..promised {
            proptest::prop_assert!(ask(&mut pools, word, Policy::Pack).is_ok(), "{number} of {promised}");
        }
        proptest::prop_assert!(ask(&mut pools, word, Policy::Pack).is_err());
        for pool in &pools {
            let used: u64 = pool.taken().filter_map(|taken| taken.memory).map(|size| size.0).sum();
            proptest::prop_assert!(used <= pool.memory.unwrap().0);
            let sizes: BTreeSet<_> = pool.taken().map(|taken| taken.memory).collect();
            proptest::prop_assert!(sizes.len() <= 1);
        }
    }
}
