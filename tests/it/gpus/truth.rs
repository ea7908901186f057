//! Divided cards when things go wrong: what is offered stays true, what is gvm's is ended, and what is not stays.

use gvm::manager::change::ChangeRequest;
use gvm::manager::gpus::LayoutRequest;
use gvm::model::card::shape::{ShapeJob, parse_instance};
use gvm::model::card::vgpu::VgpuJob;
use gvm::model::card::{Card, Discovery};
use gvm::model::gpu::VgpuTypeName;
use gvm::model::gpu::mig::Instance;
use gvm::model::gpu::mig::fixtures::a100_80;
use gvm::model::state::Observed;

use super::*;
use crate::support::world::eventually;

const TYPES: [&str; 5] = ["A100D-1-10C", "A100D-2-20C", "A100D-3-40C", "A100D-7-80C", "A100D-20C"];

fn dividable() -> World {
    let world = world(&[CARD]);
    world.gpus.can_divide(at(CARD), 8, &TYPES, Some(a100_80()), true);
    world
}

async fn divided() -> (World, Life) {
    let world = dividable();
    let life = world.live().await;
    change(&life, CARD, GpuChange::Mode(WantedMode::Mig)).await.unwrap();
    (world, life)
}

fn make(instance: &str) -> ShapeJob {
    ShapeJob::MakeInstance { card: at(CARD), instance: parse_instance(instance).unwrap() }
}

async fn whole(world: &World) -> Card {
    world.gpus.discover().await.unwrap().card(at(CARD)).unwrap().clone()
}

/// Numbers and places of the card's instances.
async fn instances(world: &World) -> Vec<(u32, Instance)> {
    let mut all: Vec<(u32, Instance)> =
        whole(world).await.mig().unwrap().instances.iter().map(|made| (made.id, made.instance)).collect();
    all.sort_by_key(|(_, instance)| instance.placement);
    all
}

/// Shows the cards otherwise than they are; gives what was shown before.
async fn show(world: &World, edit: impl Fn(&mut Card)) -> Discovery {
    let before = world.gpus.discover().await.unwrap();
    let mut after = before.clone();
    after.cards.iter_mut().for_each(edit);
    world.gpus.show(after);
    before
}

async fn free(life: &Life, what: &str) -> u32 {
    let offers = life.manager.gpu_offers(&life.permit(Action::GpuSee)).await.unwrap();
    offers.into_iter().find(|offer| offer.request.to_string() == what).map_or(0, |offer| offer.free)
}

async fn own(life: &Life) -> Vec<Instance> {
    life.store.gpus().await.unwrap().remove(0).own_instances
}

async fn again(world: &World, life: Life, boot: &str) -> Life {
    life.crash().await;
    let boot = boot.to_owned();
    world.live_with(|host| host.boot_id = boot).await
}

/// The driver takes any idle instance; two leases that count with the same one would both be promised it after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn two_machines_never_count_with_the_same_instance() {
    let (world, life) = divided().await;
    for instance in ["1g.10gb@0:1", "1g.10gb@1:1"] {
        world.gpus.meddle(&make(instance));
    }
    let mut vms = Vec::new();
    for name in ["one", "two"] {
        let vm = create(&life, name, "mig:1g.10gb").await.unwrap();
        life.settle(vm).await;
        vms.push(vm);
    }
    let slices: Vec<Instance> =
        life.store.leases().await.unwrap().iter().filter_map(|lease| lease.partition.slice()).collect();
    assert_ne!(slices[0], slices[1]);
    let row = life.store.vm(vms[0]).await.unwrap().unwrap();
    assert_eq!(row.placement.gpus[0].slice(), life.store.leases_of(vms[0]).await.unwrap()[0].partition.slice());
    vms.iter().for_each(|vm| world.fake.destroy_behind(*vm));
    world.gpus.restart();
    let life = again(&world, life, "boot-2").await;
    life.manager.restore_gpus().await;
    for vm in vms {
        life.settle(vm).await;
        assert_eq!(life.state(vm).await, Some(VmState::Running));
    }
    assert_eq!(instances(&world).await.len(), 2);
}

/// Who has lost his place to a stranger is given another one when he starts his machine again.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_a_stranger_took_is_not_held_on_to() {
    let (world, life) = divided().await;
    let vm = create(&life, "train", "mig:3g.40gb").await.unwrap();
    life.settle(vm).await;
    world.fake.destroy_behind(vm);
    world.gpus.restart();
    let life = again(&world, life, "boot-2").await;
    life.manager.restore_gpus().await;
    world.gpus.meddle(&make("1g.10gb@4:1"));
    for _ in 0..3 {
        reconciler::look(&life.manager, vm).await.unwrap();
    }
    assert_ne!(life.state(vm).await, Some(VmState::Running));
    life.power(vm, Wanted::Start).await.unwrap();
    life.settle(vm).await;
    assert_eq!(life.state(vm).await, Some(VmState::Running));
}

const LAYOUT: &str = "version: v1
mig-configs:
  fixed:
    - {devices: [0], mig-enabled: true, mig-devices: {3g.40gb: 1, 1g.10gb: 2}}
";

/// What an administrator wants there comes back after its machine as a new one, even where ending it fails at first.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_of_a_layout_is_made_anew_even_after_a_failure() {
    let world = dividable();
    let life = world.live().await;
    let permit = gvm::auth::policy::allow(&admin(&life).await, Action::GpuChange).unwrap();
    let request = LayoutRequest { text: LAYOUT.to_owned(), config: None, is_rehearsal: false };
    life.manager.import_layout(&permit, request).await.unwrap();
    let before = instances(&world).await;
    let vm = create(&life, "train", "mig:3g.40gb").await.unwrap();
    life.settle(vm).await;
    world.gpus.fail_next_shape(BindError::Refused("somebody has it open".to_owned()));
    life.power(vm, Wanted::DeleteNow).await.unwrap();
    life.settle(vm).await;
    life.manager.keep_gpus_tidy().await;
    let after = instances(&world).await;
    let places = |all: &[(u32, Instance)]| all.iter().map(|(_, instance)| *instance).collect::<Vec<_>>();
    assert_eq!(places(&after), places(&before));
    let changed = before.iter().zip(&after).filter(|(before, after)| before != after).count();
    assert_eq!((changed, own(&life).await.len()), (1, 0), "that one, and no other");
}

/// What NVML fails to tell is not gone, and what is gone is not gvm's any more.
#[tokio::test(flavor = "multi_thread")]
async fn instances_of_gvms_own_are_remembered_as_long_as_they_are_there() {
    let (world, life) = divided().await;
    let vm = create(&life, "train", "mig:3g.40gb").await.unwrap();
    life.settle(vm).await;
    world.gpus.fail_next_shape(BindError::Refused("somebody has it open".to_owned()));
    life.power(vm, Wanted::DeleteNow).await.unwrap();
    life.settle(vm).await;
    assert_eq!((instances(&world).await.len(), own(&life).await.len()), (1, 1));
    let before = show(&world, |card| {
        if let Some(nvml) = &mut card.nvml {
            nvml.faults.push("MIG instances: Unknown".to_owned());
            nvml.mig.as_mut().unwrap().instances.clear();
        }
    })
    .await;
    life.manager.keep_gpus_tidy().await;
    assert_eq!(own(&life).await.len(), 1, "NVML said nothing of it");
    world.gpus.show(before);
    life.manager.keep_gpus_tidy().await;
    assert_eq!((instances(&world).await.len(), own(&life).await.len()), (0, 0));
    // A stranger's at a place where gvm had one: it is his as soon as gvm's was ended.
    let vm = create(&life, "next", "mig:3g.40gb").await.unwrap();
    life.settle(vm).await;
    life.power(vm, Wanted::DeleteNow).await.unwrap();
    life.settle(vm).await;
    world.gpus.meddle(&make("3g.40gb@4:4"));
    life.manager.keep_gpus_tidy().await;
    assert_eq!(instances(&world).await.len(), 1, "no machine was on it, and gvm has not made it");
}

/// The same over a restart of the host, where somebody's script makes what gvm had made before.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_made_after_a_restart_at_an_old_place_is_not_gvms() {
    let (world, life) = divided().await;
    let vm = create(&life, "train", "mig:3g.40gb").await.unwrap();
    life.settle(vm).await;
    world.fake.destroy_behind(vm);
    world.gpus.restart();
    let life = again(&world, life, "boot-2").await;
    life.manager.restore_gpus().await;
    world.gpus.meddle(&make("3g.40gb@4:4"));
    let theirs = instances(&world).await;
    life.settle(vm).await;
    assert_eq!(life.state(vm).await, Some(VmState::Running));
    life.power(vm, Wanted::DeleteNow).await.unwrap();
    life.settle(vm).await;
    life.manager.keep_gpus_tidy().await;
    assert_eq!(instances(&world).await, theirs);
}

/// An instance that a stranger took before the machine came to it is not gvm's for having been wanted.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_stranger_took_first_is_his() {
    let (world, life) = divided().await;
    world.gpus.meddle(&make("1g.10gb@0:1"));
    let vm = create(&life, "train", "mig:1g.10gb").await.unwrap();
    let (site, name) = ("0000:41:01.5".parse().unwrap(), VgpuTypeName::parse("A100D-1-10C").unwrap());
    world.gpus.vgpu(&VgpuJob::Make { site, name: name.clone() }).await.unwrap();
    reconciler::look(&life.manager, vm).await.unwrap();
    assert_eq!(own(&life).await, []);
    life.power(vm, Wanted::Start).await.unwrap();
    life.settle(vm).await;
    assert_eq!(life.state(vm).await, Some(VmState::Running));
    life.power(vm, Wanted::DeleteNow).await.unwrap();
    life.settle(vm).await;
    world.gpus.vgpu(&VgpuJob::Remove { site, name }).await.unwrap();
    life.manager.keep_gpus_tidy().await;
    assert_eq!(instances(&world).await.len(), 1);
}

/// An instance that hangs on its end takes the card out of use, instead of being tried again for ever.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_hangs_takes_the_card_out() {
    let (world, life) = divided().await;
    let vm = create(&life, "train", "mig:1g.10gb").await.unwrap();
    life.settle(vm).await;
    world.gpus.fail_next_shape(BindError::Refused("somebody has it open".to_owned()));
    life.power(vm, Wanted::DeleteNow).await.unwrap();
    life.settle(vm).await;
    world.gpus.stick(at(CARD));
    life.manager.keep_gpus_tidy().await;
    assert_eq!(states(&life).await[CARD], GpuState::Stuck);
    assert_eq!(own(&life).await.len(), 1, "it is not forgotten");
    // Whether the kernel has let go of it is for the self-test to say, and for nobody else.
    assert_eq!(change(&life, CARD, GpuChange::Readmit).await.unwrap_err().kind, Kind::Conflict);
    world.gpus.recover();
    assert_eq!(change(&life, CARD, GpuChange::ReadmitUntested).await.unwrap_err().kind, Kind::Conflict);
    change(&life, CARD, GpuChange::Readmit).await.unwrap();
    life.manager.keep_gpus_tidy().await;
    assert_eq!((instances(&world).await.len(), own(&life).await.len()), (0, 0));
}

/// NVML calls that block: nothing of the card is offered, its machines wait, and both is over when it answers again.
#[tokio::test(flavor = "multi_thread")]
async fn while_nvml_is_silent_nothing_is_offered_and_nobody_has_failed() {
    let (world, life) = divided().await;
    let vm = create(&life, "train", "mig:1g.10gb").await.unwrap();
    let before = show(&world, |card| card.nvml = None).await;
    assert_eq!(free(&life, "mig:1g.10gb").await, 0);
    let (_, text) = told(create(&life, "other", "vgpu:A100D-1-10C").await.unwrap_err());
    assert!(text.contains("NVML does not say what MIG instances it has"), "{text}");
    reconciler::look(&life.manager, vm).await.unwrap();
    let trouble = life.store.vm(vm).await.unwrap().unwrap().trouble;
    assert!(trouble.as_ref().is_none_or(|trouble| !trouble.is_final), "{trouble:?}");
    world.gpus.show(before);
    life.settle(vm).await;
    assert_eq!(life.state(vm).await, Some(VmState::Running));
}

/// Between a decision and its end nothing of the card is given away, in one piece or in many.
#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_is_being_divided_goes_to_nobody() {
    let world = dividable();
    let life = world.live().await;
    for (mode, asked) in
        [(WantedMode::Vgpu, "1"), (WantedMode::Mig, "vgpu:A100D-20C"), (WantedMode::Host, "mig:1g.10gb")]
    {
        let before = world.gpus.discover().await.unwrap();
        assert!(free(&life, asked).await > 0 || asked == "1", "{asked}");
        world.gpus.hold_changes();
        let changing = change(&life, CARD, GpuChange::Mode(mode));
        let creating = async {
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            assert_eq!(world.gpus.discover().await.unwrap(), before, "nothing has changed yet");
            let refused = told(create(&life, "early", asked).await.unwrap_err());
            world.gpus.recover();
            refused
        };
        let (changed, (kind, text)) = tokio::join!(changing, creating);
        changed.unwrap();
        assert_eq!(kind, Kind::NoCapacity, "{text}");
        assert!(text.contains("it is being divided otherwise just now"), "{text}");
    }
    let vm = create(&life, "late", "1").await.unwrap();
    life.settle(vm).await;
    assert_eq!(life.state(vm).await, Some(VmState::Running));
}

/// After a restart of the host a card that is to be divided goes to nobody before it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_is_not_divided_again_yet_goes_to_nobody() {
    let world = world(&[CARD]);
    world.gpus.can_divide(at(CARD), 8, &TYPES, Some(a100_80()), false);
    let life = world.live().await;
    change(&life, CARD, GpuChange::Mode(WantedMode::Mig)).await.unwrap();
    world.gpus.restart();
    let life = again(&world, life, "boot-2").await;
    let (kind, text) = told(create(&life, "early", "1").await.unwrap_err());
    assert_eq!((kind, text.contains("it is not divided again yet")), (Kind::NoCapacity, true), "{text}");
    world.gpus.hold_changes();
    life.manager.spawn_gpu_watch();
    let (kind, text) = told(create(&life, "early", "mig:1g.10gb").await.unwrap_err());
    assert_eq!((kind, text.contains("are being divided again")), (Kind::Unavailable, true), "{text}");
    world.gpus.recover();
    eventually("divided again", async || free(&life, "mig:1g.10gb").await == 7).await;
    let vm = create(&life, "late", "mig:1g.10gb").await.unwrap();
    life.settle(vm).await;
    assert_eq!(life.state(vm).await, Some(VmState::Running));
}

/// Drivers, NVML and daemons that come late at the start of the host make no sick card.
#[tokio::test(flavor = "multi_thread")]
async fn what_passes_by_itself_at_the_start_takes_no_card_out() {
    let (world, life) = divided().await;
    world.gpus.restart();
    let life = again(&world, life, "boot-2").await;
    let before = show(&world, |card| {
        if let Some(nvml) = &mut card.nvml {
            nvml.host_vgpu = None;
            nvml.faults.push("the way in which vGPUs are made: Unknown".to_owned());
        }
    })
    .await;
    world.gpus.fail_next_shape(BindError::Refused("pid 977 (nvidia-persistenced) has /dev/nvidia0 open".to_owned()));
    let later = async {
        tokio::time::sleep(std::time::Duration::from_millis(700)).await;
        world.gpus.show(before);
    };
    tokio::join!(life.manager.restore_gpus(), later);
    assert_eq!(states(&life).await[CARD], GpuState::Divided);
    assert_eq!(free(&life, "mig:1g.10gb").await, 7);
}

/// `gvm gpu mode GPU host` of what somebody else has divided and uses: everything stays, down to what is idle.
#[tokio::test(flavor = "multi_thread")]
async fn what_others_have_divided_and_use_is_not_put_together() {
    let world = dividable();
    let life = world.live().await;
    world.gpus.meddle(&ShapeJob::MigMode { card: at(CARD), is_on: true });
    world.gpus.meddle(&ShapeJob::Reset { card: at(CARD) });
    ["1g.10gb@0:1", "3g.40gb@4:4"].iter().for_each(|one| world.gpus.meddle(&make(one)));
    let holder = Holder { pid: 4, comm: "python".to_owned(), device: "/dev/nvidia0".to_owned(), domain: None };
    world.gpus.open(at(CARD), holder);
    for mode in [WantedMode::Host, WantedMode::Passthrough] {
        let (kind, text) = told(change(&life, CARD, GpuChange::Mode(mode)).await.unwrap_err());
        assert_eq!((kind, text.contains("pid 4 (python)")), (Kind::Conflict, true), "{text}");
    }
    assert_eq!(instances(&world).await.len(), 2);
    world.gpus.close(at(CARD));
    change(&life, CARD, GpuChange::Mode(WantedMode::Host)).await.unwrap();
    assert!(!whole(&world).await.mig().unwrap().is_on);
}

/// A mediated device does not say on which instance it is: one of its profile is counted as taken.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_nobody_names_is_taken_all_the_same() {
    let (world, life) = divided().await;
    world.gpus.meddle(&make("1g.10gb@0:1"));
    let (site, name) = ("0000:41:01.0".parse().unwrap(), VgpuTypeName::parse("A100D-1-10C").unwrap());
    world.gpus.vgpu(&VgpuJob::Make { site, name }).await.unwrap();
    show(&world, |card| {
        for made in card.vgpu.iter_mut().flat_map(|facts| &mut facts.made) {
            made.gpu_instance = None;
        }
    })
    .await;
    assert_eq!(free(&life, "mig:1g.10gb").await, 6);
}

/// The whole way of a slice: asked for on trial, plugged into a running machine, shown, and given back.
#[tokio::test(flavor = "multi_thread")]
async fn a_slice_is_tried_plugged_shown_and_given_back() {
    let (world, life) = divided().await;
    let gpus = || Some(GpuRequest::parse_list(&["mig:3g.40gb"]).unwrap());
    let request = gvm::manager::create::CreateRequest {
        gpus: gpus(),
        name: None,
        profile: "firmware".parse().unwrap(),
        image: None,
        vcpus: None,
        memory: None,
        disk: None,
        caps: Default::default(),
        ttl: None,
        user_data: None,
        tags: Vec::new(),
        team: None,
        tpm: None,
        is_stopped: false,
    };
    let run = life.manager.dry_run(&life.permit(Action::VmCreate), request).await.unwrap();
    assert_eq!(run.gpus.len(), 1);
    assert!(instances(&world).await.is_empty() && life.store.leases().await.unwrap().is_empty(), "nothing is made");
    let vm = life.create("train").await.unwrap();
    life.settle(vm).await;
    let permit = life.manager.permit_vm(&life.member, Action::VmChange, &vm.to_string(), false).await.unwrap();
    life.manager.change(&permit, ChangeRequest { gpus: gpus(), ..ChangeRequest::default() }).await.unwrap();
    assert_eq!(life.settle(vm).await, ["ensure-gpu-bound", "attach-gpu"]);
    let Observed::Defined(domain) = world.fake.peek(vm) else { panic!("no domain") };
    assert_eq!(
        (domain.hostdevs.as_slice(), instances(&world).await.len()),
        (["0000:41:01.0".to_owned()].as_slice(), 1)
    );
    let report = life.manager.gpu_plan(&life.permit(Action::GpuSee)).await.unwrap();
    let slots = &report.cards[0].mig.as_ref().unwrap().slots;
    assert!(matches!(&slots[0].user, Some(gvm::manager::gpus::SlotUser::Ours(Some(name))) if name == "train.eve"));
    life.power(vm, Wanted::Stop).await.unwrap();
    life.settle(vm).await;
    assert!(instances(&world).await.is_empty());
}
