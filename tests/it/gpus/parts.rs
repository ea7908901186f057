//! Virtual functions of AMD and Intel: parts of a card that go to machines as they are, without a type.

use gvm::model::card::Discovery;
use gvm::model::pci::Vendor;

use super::*;

const VF: &str = "0000:41:01.0";

/// A card of another maker with so much memory, that has four virtual functions.
fn world_of(vendor: Vendor, driver: &str) -> World {
    let mut world = World::new();
    let mut one = card(CARD);
    one.vendor = vendor;
    one.ids.vendor = if vendor == Vendor::Amd { 0x1002 } else { 0x8086 };
    one.driver = Some(driver.to_owned());
    one.model = "Example".to_owned();
    one.functions.truncate(1);
    world.gpus = gvm::gpu::fake::FakeGpus::showing(Discovery { cards: vec![one], ..Discovery::default() }.judged(None));
    world.gpus.can_divide(at(CARD), 4, &[], None, false);
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_a_card_go_to_machines_as_cards_of_their_own() {
    for (vendor, driver) in [(Vendor::Amd, "amdgpu"), (Vendor::Intel, "xe")] {
        let world = world_of(vendor, driver);
        let life = world.live().await;
        change(&life, CARD, GpuChange::Mode(WantedMode::Vgpu)).await.unwrap();
        let shown = states(&life).await;
        assert_eq!((shown[CARD], shown[VF]), (GpuState::Divided, GpuState::Free));
        let offers = life.manager.gpu_offers(&life.permit(Action::GpuSee)).await.unwrap();
        assert_eq!(offers.iter().map(|offer| offer.free).sum::<u32>(), 4);
        // A quarter of 80 GiB.
        let vm = create(&life, "part", "20GiB").await.unwrap();
        life.settle(vm).await;
        assert_eq!(life.state(vm).await.unwrap(), VmState::Running);
        let row = life.store.vm(vm).await.unwrap().unwrap();
        assert_eq!(row.placement.gpus.iter().map(|part| part.address()).collect::<Vec<_>>(), [at(VF)]);
        let part = world.gpus.functions(&[at(VF)]).await.unwrap().remove(0);
        assert_eq!(part.driver.as_deref(), Some("vfio-pci"));
        let (kind, text) = told(create(&life, "large", "40GiB").await.unwrap_err());
        assert_eq!((kind, text.contains("less memory than 40 GiB")), (Kind::NoCapacity, true), "{text}");
        // Nothing goes from under it.
        for other in [WantedMode::Host, WantedMode::Passthrough] {
            let (kind, text) = told(change(&life, CARD, GpuChange::Mode(other)).await.unwrap_err());
            assert_eq!((kind, text.contains("held by VM part")), (Kind::Conflict, true), "{text}");
        }
        life.power(vm, Wanted::DeleteNow).await.unwrap();
        life.settle(vm).await;
        let part = world.gpus.functions(&[at(VF)]).await.unwrap().remove(0);
        assert_eq!(part.driver, None, "as it was");
        change(&life, CARD, GpuChange::Mode(WantedMode::Host)).await.unwrap();
        let shown = states(&life).await;
        assert_eq!((shown[CARD], shown[VF]), (GpuState::Free, GpuState::Gone));
    }
}

/// After a restart of the host the functions are there again before the machine is.
#[tokio::test(flavor = "multi_thread")]
async fn parts_come_back_after_a_restart_of_the_host() {
    let world = world_of(Vendor::Amd, "amdgpu");
    let life = world.live().await;
    change(&life, CARD, GpuChange::Mode(WantedMode::Vgpu)).await.unwrap();
    let vm = create(&life, "part", "20GiB").await.unwrap();
    life.settle(vm).await;
    life.crash().await;
    world.fake.destroy_behind(vm);
    world.gpus.restart();
    let life = world.live_with(|host| host.boot_id = "boot-2".to_owned()).await;
    life.manager.restore_gpus().await;
    life.settle(vm).await;
    assert_eq!(life.state(vm).await.unwrap(), VmState::Running);
}
