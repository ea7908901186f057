//! Requests of both kinds beside each other.

use uuid::Uuid;

use super::*;
use crate::model::card::vgpu::{OfferedType, VgpuFramework};
use crate::model::gpu::{GpuId, GpuMode, VgpuTypeName};
use crate::model::pci::PciAddress;
use crate::model::units::Mib;
use crate::plan::vgpu::Parent;

fn card(bus: u8, gib: u64, mode: GpuMode) -> GpuDevice {
    let bdf = PciAddress { domain: 0, bus, slot: 0, function: 0 };
    let mut device = GpuDevice::new(GpuId(format!("GPU-{bus}")), bdf, "NVIDIA L40S", Mib(gib << 10));
    device.numa_node = Some(1);
    device.mode = mode;
    device
}

fn divided(device: &GpuDevice, types: &[&str], functions: u8) -> VgpuPool {
    let offered = |text: &&str| {
        let name = VgpuTypeName::parse(text).unwrap();
        OfferedType { id: "7".to_owned(), name, available: 1, memory: None, most: None }
    };
    let parent = |function: u8| Parent {
        address: PciAddress { slot: 1, function, ..device.bdf },
        framework: VgpuFramework::VendorVfio,
        is_single: true,
        offered: types.iter().map(offered).collect(),
        taken: Vec::new(),
        fault: None,
    };
    VgpuPool {
        gpu: device.id.clone(),
        bdf: device.bdf,
        model: device.model.clone(),
        memory: Some(device.memory),
        is_mixed: false,
        known: Vec::new(),
        parents: (0..functions).map(parent).collect(),
        mig: None,
        allowed: Vec::new(),
        blocked: None,
    }
}

/// A card without virtual functions, which carries up to four mediated devices of each type itself.
fn mediated(device: &GpuDevice, types: &[&str]) -> VgpuPool {
    let mut pool = divided(device, types, 1);
    for parent in &mut pool.parents {
        (parent.address, parent.framework, parent.is_single) = (device.bdf, VgpuFramework::Mdev, false);
        parent.offered.iter_mut().for_each(|offered| offered.available = 4);
    }
    pool
}

fn ask(texts: &[&str], devices: &[GpuDevice], pools: &[VgpuPool]) -> Result<Vec<String>, String> {
    let requests = GpuRequest::parse_list(texts).unwrap();
    let chosen = choose(&requests, devices, &Held::new(), pools, Policy::Pack, Uuid::nil());
    let chosen = chosen.map_err(|why| why.to_string())?;
    Ok(chosen.iter().map(Partition::key).collect())
}

#[test]
fn a_size_gets_a_slice_where_there_is_one_and_else_a_card() {
    let devices = [card(1, 48, GpuMode::Vgpu), card(2, 48, GpuMode::Passthrough)];
    let pools = [divided(&devices[0], &["L40S-12Q", "L40S-24Q"], 4)];
    let ask = |texts: &[&str]| ask(texts, &devices, &pools);
    assert_eq!(ask(&["10GiB"]).unwrap(), ["GPU-1/vgpu/0000:01:01.0"]);
    assert_eq!(ask(&["vgpu:l40s-24q"]).unwrap(), ["GPU-1/vgpu/0000:01:01.0"]);
    assert_eq!(ask(&["30GiB"]).unwrap(), ["GPU-2/whole"], "no vGPU is that large");
    assert_eq!(ask(&["l40s"]).unwrap(), ["GPU-2/whole"]);
    assert_eq!(ask(&["1"]).unwrap(), ["GPU-2/whole"]);
    assert_eq!(ask(&["vgpu:L40S-12Q", "l40s"]).unwrap(), ["GPU-2/whole", "GPU-1/vgpu/0000:01:01.0"]);
    assert_eq!(
        ask(&["vgpu:L40S-12Q", "vgpu:L40S-12Q"]).unwrap(),
        ["GPU-1/vgpu/0000:01:01.0", "GPU-1/vgpu/0000:01:01.1"]
    );
    // One size for a card, within one machine as well.
    insta::assert_snapshot!(ask(&["vgpu:L40S-12Q", "vgpu:L40S-24Q"]).unwrap_err(), @r"
    vgpu:L40S-24Q cannot be had now
      0000:01:00.0: it is set to profiles of 12 GiB as long as one of them is there;
    vgpu:L40S-12Q would do now
    ");
    let many = ask(&["vgpu:L40S-12Q"; 5]).unwrap_err();
    assert!(many.contains("none of its functions is free for L40S-12Q"), "{many}");
}

#[test]
fn a_vgpu_where_no_card_is_divided_is_told() {
    let devices = [card(2, 48, GpuMode::Passthrough)];
    insta::assert_snapshot!(ask(&["vgpu:L40S-12Q"], &devices, &[]).unwrap_err(), @"vgpu:L40S-12Q: no card of this host is divided into vGPUs. Ask for a count, a model or a size; `gvm gpu offers` says what there is");
    assert_eq!(ask(&["12GiB"], &devices, &[]).unwrap(), ["GPU-2/whole"]);
}

/// A card carries several; each has a name of its own, which no other choice gives again.
#[test]
fn mediated_devices_have_names_that_are_never_given_again() {
    let devices = [card(1, 16, GpuMode::Vgpu)];
    let pools = [mediated(&devices[0], &["T4-4Q", "T4-8Q"])];
    let ask = |texts: &[&str], fresh: Uuid| {
        let requests = GpuRequest::parse_list(texts).unwrap();
        choose(&requests, &devices, &Held::new(), &pools, Policy::Pack, fresh).map_err(|why| why.to_string())
    };
    let uuids = |chosen: Vec<Partition>| -> Vec<Uuid> {
        chosen.iter().map(|partition| partition.vgpu().unwrap().0.uuid.unwrap()).collect()
    };
    let (first, second) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let chosen = ask(&["vgpu:T4-4Q"; 4], first).unwrap();
    assert!(chosen.iter().all(|one| one.functions().is_empty() && one.address() == devices[0].bdf));
    let keys: std::collections::HashSet<String> = chosen.iter().map(Partition::key).collect();
    assert_eq!(keys.len(), 4, "{keys:?}");
    let mut all = uuids(chosen.clone());
    assert_eq!(all, uuids(ask(&["vgpu:T4-4Q"; 4], first).unwrap()), "the same values in, the same out");
    all.extend(uuids(ask(&["vgpu:T4-4Q"; 4], second).unwrap()));
    assert_eq!(all.iter().collect::<std::collections::HashSet<_>>().len(), 8);
    assert!(ask(&["vgpu:T4-4Q"; 5], first).unwrap_err().contains("none of its functions is free for T4-4Q"));
    insta::assert_snapshot!(ask(&["vgpu:T4-4Q", "vgpu:T4-8Q"], first).unwrap_err(), @r"
    vgpu:T4-8Q cannot be had now
      0000:01:00.0: it is set to profiles of 4 GiB as long as one of them is there;
    vgpu:T4-4Q would do now
    ");
}

/// Case B-spread-over-parents, with cards that are parents themselves.
#[test]
fn mediated_devices_are_packed_or_spread_over_cards() {
    let devices = [1, 2, 3].map(|bus| card(bus, 16, GpuMode::Vgpu));
    let pools: Vec<VgpuPool> = devices.iter().map(|device| mediated(device, &["T4-4Q"])).collect();
    for (policy, want) in [(Policy::Spread, [2, 2, 2]), (Policy::Pack, [4, 2, 0])] {
        let requests = GpuRequest::parse_list(&["vgpu:T4-4Q"; 6]).unwrap();
        let chosen = choose(&requests, &devices, &Held::new(), &pools, policy, Uuid::nil()).unwrap();
        let on = |bus: u8| chosen.iter().filter(|one| one.address().bus == bus).count();
        assert_eq!([on(1), on(2), on(3)], want, "{policy:?}");
    }
}
