//! The mock itself: its tables are those that gvm plans with, and its rules are the driver's.

use std::collections::BTreeSet;

use gvm::gpu::GpuBackend as _;
use gvm::model::gpu::VgpuTypeName;
use gvm::model::gpu::mig::{Geometry, fixtures};
use gvm::model::units::Mib;
use gvm_nvml_mock::kinds;
use gvm_nvml_mock::state::{Fault, Framework, State};
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::error::NvmlError;

use super::{CARD, OTHER};
use crate::support::card_host::CardHost;

#[test]
fn types_have_one_number_each_and_names_that_can_be_read() {
    let mut numbers = BTreeSet::new();
    for kind in kinds::all() {
        assert!(!kind.types.is_empty(), "{}", kind.key);
        for one in &kind.types {
            assert!(numbers.insert(one.id), "{} {}", kind.key, one.id);
            let grade = VgpuTypeName::parse(&one.name).unwrap().grade().unwrap();
            assert_eq!(grade.memory.0, one.memory_gib << 10, "{}", one.name);
            assert_eq!(grade.slices.is_some(), one.profile.is_some(), "{}", one.name);
            if let Some(id) = one.profile {
                let profile = kind.profiles.iter().find(|profile| profile.id == id).unwrap();
                assert_eq!(grade.slices.map(u32::from), Some(profile.slices), "{}", one.name);
            }
        }
    }
}

/// Two tables from the same sources; what is not sure in them, all of the A30's and the RTX PRO 6000's and the memory of
/// the H100's and the H200's instances, is not compared.
#[tokio::test]
async fn what_the_library_tells_of_cards_is_what_the_planner_is_tested_with() {
    let kinds = ["A100-80", "A100-40", "H100", "H200"];
    let addresses = ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0001:04:00.0"];
    let cards: Vec<(&str, &str)> = kinds.into_iter().zip(addresses).collect();
    let found = CardHost::plain(&cards, |_| ()).gpus().discover().await.unwrap();
    let expected = [fixtures::a100_80(), fixtures::a100_40(), fixtures::h100_80(), fixtures::h200()];
    let sorted = |geometry: &Geometry, is_sure: bool| {
        let mut profiles = geometry.profiles().to_vec();
        profiles.sort_by_key(|profile| profile.id);
        for profile in profiles.iter_mut().filter(|_| !is_sure) {
            profile.memory = Mib(0);
        }
        (geometry.compute_slices(), geometry.memory_slices(), profiles)
    };
    for ((address, kind), expected) in addresses.iter().zip(kinds).zip(expected) {
        let is_sure = kind.starts_with("A100");
        let card = found.card(address.parse().unwrap()).unwrap();
        assert_eq!(card.nvml.as_ref().unwrap().faults, [""; 0], "{address}");
        let told = card.mig().unwrap().geometry.as_ref().unwrap();
        assert_eq!(sorted(told, is_sure), sorted(&expected, is_sure), "{kind}");
    }
}

#[test]
fn one_size_at_a_time_shares_a_card() {
    let mut state = State::default();
    let card = state.add("L40S", CARD);
    card.sriov_manage("-e").unwrap();
    let id = |name: &str| kinds::kind("L40S").types.iter().find(|one| one.name.ends_with(name)).unwrap().id;
    let count = |state: &State| state.cards[0].creatable().len();
    assert_eq!(count(&state), 12);
    state.cards[0].set_type(0, id("-12Q")).unwrap();
    // Of the same size, with any letter.
    assert_eq!(count(&state), 2);
    let errno = |error: Result<(), nix::errno::Errno>| error.unwrap_err();
    assert_eq!(errno(state.cards[0].set_type(0, id("-12A"))), nix::errno::Errno::EPERM);
    assert_eq!(errno(state.cards[0].set_type(1, id("-8Q"))), nix::errno::Errno::EIO);
    state.cards[0].is_mixed = true;
    state.cards[0].set_type(1, id("-8Q")).unwrap();
    assert_eq!(errno(state.cards[0].set_type(2, id("-48Q"))), nix::errno::Errno::EIO, "20 of 48 GiB are gone");
}

#[test]
fn places_and_slices_are_kept_exactly() {
    let mut state = State::default();
    let card = state.add("H100", OTHER);
    assert_eq!(card.create(9, Some((4, 4))), Err(3), "MIG is off");
    assert_eq!(card.set_mig(true), Ok(0));
    assert_eq!(card.create(9, Some((2, 4))), Err(2), "nowhere else than at 0 and 4");
    assert_eq!(card.create(9, Some((4, 4))), Ok(2));
    assert_eq!(card.create(5, Some((0, 4))), Ok(1));
    assert_eq!(card.create(19, Some((6, 1))), Err(23), "7 slices and all of the memory are gone");
    assert_eq!(card.set_mig(false), Err(19));
    let compute = card.create_compute(2, 2).unwrap();
    assert_eq!(card.create_compute(2, 0), Err(23));
    assert_eq!(card.destroy(2), Err(19), "a compute instance is in it");
    card.destroy_compute(2, compute).unwrap();
    card.destroy(2).unwrap();
    // The driver's own order: from the high end.
    assert_eq!((card.create(20, None), card.create(20, None)), (Ok(13), Err(23)), "one with media extensions");
    let epoch = card.epoch;
    card.reset().unwrap();
    assert!(card.instances.is_empty() && card.epoch > epoch);
}

#[test]
fn an_ampere_card_waits_for_its_reset_and_loses_its_instances_with_its_functions() {
    let mut state = State::default();
    let card = state.add("A100-80", CARD);
    assert_eq!((card.set_mig(true), card.mig), (Ok(16), (false, true)));
    card.reset().unwrap();
    assert_eq!(card.mig, (true, true));
    card.create(19, None).unwrap();
    card.sriov_manage("-e").unwrap();
    assert!(card.instances.is_empty());
    assert_eq!(card.set_mig(false), Err(19), "its virtual functions are on");
    assert!(card.reset().unwrap_err().contains("in use"));
    let id = card.kind().types.iter().find(|one| one.name.ends_with("-3-40C")).unwrap().id;
    assert_eq!(card.set_type(0, id), Err(nix::errno::Errno::EIO), "no instance to be on");
    let instance = card.create(9, None).unwrap();
    assert_eq!(card.set_type(0, id), Err(nix::errno::Errno::EIO), "an instance without a compute instance");
    card.create_compute(instance, 2).unwrap();
    card.set_type(0, id).unwrap();
    assert_eq!((card.functions[0].instance, card.destroy(instance)), (Some(instance), Err(19)));
    assert_eq!(card.set_type(1, id), Err(nix::errno::Errno::EIO), "one vGPU on one instance");
    card.framework = Framework::None;
    assert!(card.sriov_manage("-d").is_err());
}

#[test]
fn the_library_is_called_as_the_real_one_is() {
    let host = CardHost::plain(&[("A100-80", CARD), ("L40S", OTHER)], |state| {
        state.cards[0].mig = (true, true);
        state.cards[1].load = (40, 61, 210_000);
        state.cards[1].sriov_manage("-e").unwrap();
        state.cards[1].set_type(0, kinds::kind("L40S").types[6].id).unwrap();
        state.cards[1].functions[0].is_in_use = true;
    });
    let library = host.nvml();
    let open = || Nvml::builder().lib_path(library.as_os_str()).init().unwrap();
    let nvml = open();
    assert_eq!((nvml.device_count().unwrap(), nvml.sys_driver_version().unwrap().as_str()), (2, "580.95.05"));
    let card = nvml.device_by_pci_bus_id("00000000:41:00.0").unwrap();
    assert_eq!(card.pci_info().unwrap().bus_id, "00000000:41:00.0");
    assert!(matches!(card.utilization_rates(), Err(NvmlError::NotSupported)), "nobody can tell under MIG");
    let other = nvml.device_by_uuid(host.state().cards[1].uuid.as_str()).unwrap();
    assert_eq!(other.utilization_rates().unwrap().gpu, 40);
    assert_eq!((other.temperature(TemperatureSensor::Gpu).unwrap(), other.power_usage().unwrap()), (61, 210_000));
    assert!(matches!(other.mig_mode(), Err(NvmlError::NotSupported)));
    assert!(!other.is_in_persistent_mode().unwrap());
    let names: Vec<String> = other.vgpu_creatable_types().unwrap().iter().map(|kind| kind.name().unwrap()).collect();
    assert_eq!(names, ["NVIDIA L40S-12Q", "NVIDIA L40S-12A"], "one of 12 GiB is made");
    let active = other.active_vgpus().unwrap();
    assert_eq!((active.len(), active[0].gpu_instance_id().unwrap()), (1, u32::MAX));
    // A second one who opened it, and a handle from before a reset.
    let second = open();
    assert_eq!(second.device_by_index(0).unwrap().uuid().unwrap(), card.uuid().unwrap());
    host.change(|state| state.cards[0].reset().unwrap());
    assert!(matches!(card.uuid(), Err(NvmlError::InvalidArg)));
    assert!(nvml.device_by_index(0).unwrap().uuid().is_ok());
    host.change(|state| state.cards[0].is_lost = true);
    assert!(matches!(nvml.device_by_index(0), Err(NvmlError::GpuLost)));
    assert!(matches!(nvml.device_by_index(2), Err(NvmlError::InvalidArg)));
    host.change(|state| {
        let fault = Fault { code: 9, card: None, times: Some(1) };
        state.errors.insert("nvmlInit_v2".to_owned(), fault);
    });
    assert!(matches!(Nvml::builder().lib_path(library.as_os_str()).init(), Err(NvmlError::DriverNotLoaded)));
    drop(open());
}
