//! The whole way of a slice without a card: a manager on the real backend, whose helper writes to the mock's files and
//! calls the mock's library. Only the machines are in memory.

use std::collections::HashMap;
use std::sync::Arc;

use gvm::auth::policy::{Action, allow};
use gvm::gpu::GpuBackend;
use gvm::manager::gpus::{GpuChange, GpuState, WantedMode};
use gvm::manager::power::Wanted;
use gvm::model::gpu::GpuRequest;
use gvm::model::principal::{Principal, Role};
use gvm::model::state::VmState;
use jiff::Timestamp;

use super::{CARD, FIRST, OTHER};
use crate::support::card_host::{CardHost, mounted};
use crate::support::world::{Life, World};

async fn mode(life: &Life, card: &str, mode: WantedMode) -> gvm::manager::Result<()> {
    let root = life.store.ensure_user(1, &"root".parse().unwrap(), Role::Admin, Timestamp::now()).await.unwrap();
    let permit = allow(&Principal::of(root), Action::GpuChange).unwrap();
    life.manager.change_gpu(&permit, card, &GpuChange::Mode(mode)).await
}

async fn free(life: &Life) -> HashMap<String, u32> {
    let offers = life.manager.gpu_offers(&life.permit(Action::GpuSee)).await.unwrap();
    offers.into_iter().map(|offer| (offer.request.to_string(), offer.free)).collect()
}

async fn create(life: &Life, name: &str, gpu: &str) -> gvm::model::id::VmId {
    let gpus = GpuRequest::parse_list(&[gpu]).unwrap();
    let vm = life.create_as(name, |request| request.gpus = Some(gpus)).await.unwrap();
    life.settle(vm).await;
    vm
}

async fn states(life: &Life) -> HashMap<String, GpuState> {
    let listing = life.manager.gpus(&life.permit(Action::GpuSee)).await.unwrap();
    listing.rows.iter().map(|row| (row.entry.address().unwrap().to_string(), row.state)).collect()
}

fn backend(host: &CardHost) -> Arc<dyn GpuBackend> {
    Arc::new(host.gpus())
}

/// Whether the first function has a vGPU, and how many instances its card has.
fn on_card(host: &CardHost) -> (bool, usize) {
    let made = host.device(FIRST, "nvidia/current_vgpu_type") != "0";
    (made, host.state().card(CARD).unwrap().instances.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_is_divided_by_mig_and_machines_have_slices_of_it() {
    let host = mounted!(("A100-80", CARD), ("H100", OTHER));
    let world = World::new();
    let life = world.live_on(backend(&host)).await;
    // On Ampere the mode waits for a reset; on Hopper it is there at once.
    for card in [CARD, OTHER] {
        mode(&life, card, WantedMode::Mig).await.unwrap();
    }
    let shown = states(&life).await;
    assert_eq!((shown[CARD], shown[OTHER]), (GpuState::Divided, GpuState::Divided));
    assert_eq!((free(&life).await["mig:3g.40gb"], free(&life).await["mig:7g.80gb"]), (4, 2), "two on each");
    let vm = create(&life, "train", "vgpu:A100D-3-40C").await;
    assert_eq!(life.state(vm).await.unwrap(), VmState::Running);
    assert_eq!(on_card(&host), (true, 1));
    assert_eq!(free(&life).await["mig:4g.40gb"], 2, "it lies where 4g does not");
    let second = create(&life, "second", "vgpu:A100D-1-10C").await;
    assert_eq!(on_card(&host).1, 2);
    for vm in [vm, second] {
        life.power(vm, Wanted::DeleteNow).await.unwrap();
        life.settle(vm).await;
    }
    assert_eq!(on_card(&host), (false, 0));
    for card in [CARD, OTHER] {
        mode(&life, card, WantedMode::Host).await.unwrap();
    }
    let state = host.state();
    assert!(state.cards.iter().all(|card| card.mig == (false, false)), "{:?}", state.cards);
    assert_eq!(host.device(CARD, "sriov_numvfs"), "0");
}

/// Case B-state-lost-on-reboot, with the driver's own rules of what it keeps.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_restart_of_the_host_takes_is_there_again_before_machines_start() {
    let host = mounted!(("A100-80", CARD), ("H100", OTHER));
    let world = World::new();
    let life = world.live_on(backend(&host)).await;
    mode(&life, CARD, WantedMode::Mig).await.unwrap();
    mode(&life, OTHER, WantedMode::Vgpu).await.unwrap();
    let vm = create(&life, "train", "mig:2g.20gb").await;
    life.crash().await;
    world.fake.destroy_behind(vm);
    host.change(|state| state.cards.iter_mut().for_each(gvm_nvml_mock::state::Card::reboot));
    assert!(!std::path::Path::new(&host.root()).join("sys/bus/pci/devices").join(FIRST).exists());
    let life = world.live_on_with(backend(&host), |facts| facts.boot_id = "boot-2".to_owned()).await;
    life.manager.restore_gpus().await;
    life.settle(vm).await;
    assert_eq!(life.state(vm).await.unwrap(), VmState::Running);
    assert_eq!(on_card(&host), (true, 1));
    let shown = states(&life).await;
    assert_eq!((shown[CARD], shown[OTHER]), (GpuState::Divided, GpuState::Divided));
}
