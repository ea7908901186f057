//! Which part of a card was held when.

use gvm::manager::gpus::{GpuChange, WantedMode};
use gvm::model::gpu::LeaseState;
use gvm::model::gpu::mig::fixtures::a100_80;
use gvm::model::quota::month::{HeldTime, card_seconds};
use gvm::model::units::Mib;
use gvm::store::{gpu_time, leases};
use jiff::SignedDuration;

use super::*;
use crate::support::cards::{at, host};
use crate::support::world::World;

const CARD: &str = "0000:41:00.0";

/// All times.
const EVER: Month = Month { begin: Timestamp::MIN, end: Timestamp::MAX };

async fn times(store: &Store, holder: Holder) -> Vec<HeldTime> {
    let mut tx = store.write().await.unwrap();
    let mut all = gpu_time::held(&mut tx, holder, EVER).await.unwrap();
    all.sort_by_key(|time| time.began_at);
    all
}

/// What a machine holds was held for so many hours of this month before. They are put where the month has room.
pub(super) async fn hold_for(life: &Life, vm: VmId, hours: i64) {
    let now = Timestamp::now();
    let long = SignedDuration::from_hours(hours);
    let month = Month::of(now, &TimeZone::UTC);
    let begin = if now + long < month.end { now } else { now - long };
    let mut tx = life.store.write().await.unwrap();
    leases::set_state(&mut tx, vm, LeaseState::Sanitising, now).await.unwrap();
    leases::set_state(&mut tx, vm, LeaseState::Claimed, begin).await.unwrap();
    leases::set_state(&mut tx, vm, LeaseState::Sanitising, begin + long).await.unwrap();
    leases::set_state(&mut tx, vm, LeaseState::Claimed, now).await.unwrap();
    commit(tx).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_lasts_from_the_claim_until_the_machine_is_seen_off() {
    let mut world = World::new();
    world.gpus = host(&[CARD]);
    world.gpus.divide(at(CARD), 8, &["A100D-20C"]);
    let life = world.live().await;
    let hpc = team(&life.store, "hpc", &[], &[]).await;
    let eve = person(&life.store, "eva", &[hpc]).await;
    let (eves, hpcs) = (Holder::User(id(&eve)), Holder::Team(hpc));
    // Off, it holds nothing.
    let off =
        create(&life.manager, &eve, CreateRequest { is_stopped: true, ..with_gpu("off", "vgpu:A100D-20C") }).await;
    assert_eq!((times(&life.store, eves).await.len(), off.is_ok()), (0, true));
    let begun = Timestamp::now();
    let vm = create(&life.manager, &eve, with_gpu("train", "vgpu:A100D-20C")).await.unwrap();
    let held = times(&life.store, eves).await;
    assert_eq!((held.len(), held[0].share_ppm, held[0].ended_at), (1, 250_000, None), "a quarter of the card");
    assert!(held[0].began_at >= begun.round(jiff::Unit::Microsecond).unwrap() - SignedDuration::from_micros(1));
    life.settle(vm).await;
    // Killed and started again, the manager goes on with the same time.
    life.crash().await;
    let life = world.live().await;
    life.settle(vm).await;
    assert_eq!(times(&life.store, eves).await, held);
    assert_eq!(times(&life.store, hpcs).await, held);
    power(&life.manager, &eve, vm, Wanted::Restart).await.unwrap();
    life.settle(vm).await;
    assert_eq!(times(&life.store, eves).await, held, "a restart lets go of nothing");
    // The wish to stop ends nothing: the machine runs still. It counts as none that should run.
    power(&life.manager, &eve, vm, Wanted::Stop).await.unwrap();
    assert_eq!(times(&life.store, eves).await, held);
    assert_eq!(used(&life.store, eves).await.get(QuotaKind::Gpus), 0);
    life.settle(vm).await;
    let ended = times(&life.store, eves).await;
    assert_eq!(ended.len(), 1);
    assert!(ended[0].ended_at.unwrap() > ended[0].began_at);
    // Gone, what it held stays known.
    power(&life.manager, &eve, vm, Wanted::DeleteNow).await.unwrap();
    life.settle(vm).await;
    assert!(life.store.vm(vm).await.unwrap().is_none());
    assert_eq!(times(&life.store, hpcs).await, ended);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_counts_as_what_it_is_of_its_card() {
    let types = ["A100D-1-10C", "A100D-3-40C", "A100D-7-80C", "A100D-20C", "A100D-40C"];
    for (request, mode, share, memory) in [
        ("1", None, 1_000_000, 80 << 10),
        ("vgpu:A100D-20C", Some(WantedMode::Vgpu), 250_000, 20 << 10),
        ("vgpu:A100D-40C", Some(WantedMode::Vgpu), 500_000, 40 << 10),
        ("mig:3g.40gb", Some(WantedMode::Mig), 428_571, 40 << 10),
        ("mig:1g.10gb", Some(WantedMode::Mig), 142_857, 10 << 10),
    ] {
        let mut world = World::new();
        world.gpus = host(&[CARD]);
        world.gpus.can_divide(at(CARD), 8, &types, Some(a100_80()), true);
        let life = world.live().await;
        if let Some(mode) = mode {
            let user = gvm::model::principal::User {
                id: UserId::generate(),
                name: "boss".parse().unwrap(),
                role: gvm::model::principal::Role::Admin,
            };
            let permit = policy::allow(&Principal::of(user), Action::GpuChange).unwrap();
            life.manager.change_gpu(&permit, CARD, &GpuChange::Mode(mode)).await.unwrap();
        }
        let eve = person(&life.store, "eva", &[]).await;
        create(&life.manager, &eve, with_gpu("train", request)).await.unwrap();
        let lease = life.store.leases().await.unwrap().remove(0);
        assert_eq!((lease.share.ppm, lease.share.memory), (share, Mib(memory)), "{request}");
        let held = times(&life.store, Holder::User(id(&eve))).await;
        assert_eq!(held[0].share_ppm, share, "{request}");
        let used = used(&life.store, Holder::User(id(&eve))).await;
        assert_eq!(used.get(QuotaKind::GpuSlices), u64::from(share < 1_000_000), "{request}");
        assert_eq!(used.get(QuotaKind::GpuMemory), memory, "{request}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_counts_for_another_team_begins_a_time_there() {
    let mut world = World::new();
    world.gpus = host(&[CARD]);
    let life = world.live().await;
    let (hpc, bio) =
        (team(&life.store, "hpc", &[], &[]).await, team(&life.store, "bio", &[(QuotaKind::GpuHours, 1)], &[]).await);
    let eve = person(&life.store, "eva", &[hpc, bio]).await;
    let vm = create(&life.manager, &eve, with_gpu("train", "1")).await.unwrap();
    let to = |team: &str| ChangeRequest { team: Some(team.to_owned()), ..nothing() };
    change(&life.manager, &eve, vm, to("bio")).await.unwrap();
    let (before, after) = (times(&life.store, Holder::Team(hpc)).await, times(&life.store, Holder::Team(bio)).await);
    assert_eq!((before.len(), after.len()), (1, 1));
    assert_eq!((before[0].ended_at, after[0].ended_at), (Some(after[0].began_at), None));
    assert_eq!(times(&life.store, Holder::User(id(&eve))).await.len(), 2);
    // There and back; then the other team's time is used up.
    change(&life.manager, &eve, vm, to("hpc")).await.unwrap();
    change(&life.manager, &eve, vm, to("bio")).await.unwrap();
    hold_for(&life, vm, 1).await;
    change(&life.manager, &eve, vm, to("hpc")).await.unwrap();
    insta::assert_snapshot!(refused(change(&life.manager, &eve, vm, to("bio")).await), @"over team bio's quota of GPU hours: it has used 1 h of 1 h this month");
}

/// A clock that is set back makes no time negative, whoever ends it.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_set_back_makes_no_time_negative() {
    let mut world = World::new();
    world.gpus = host(&[CARD]);
    let life = world.live().await;
    let eve = person(&life.store, "eva", &[]).await;
    let vm = create(&life.manager, &eve, with_gpu("train", "1")).await.unwrap();
    let now = Timestamp::now();
    let hour = SignedDuration::from_hours(1);
    for (state, at) in [
        (LeaseState::Sanitising, now - hour),
        (LeaseState::Claimed, now + hour),
        (LeaseState::Sanitising, now),
        (LeaseState::Claimed, now - hour),
        (LeaseState::Attached, now - hour * 2),
    ] {
        let mut tx = life.store.write().await.unwrap();
        leases::set_state(&mut tx, vm, state, at).await.unwrap();
        commit(tx).await.unwrap();
    }
    let held = times(&life.store, Holder::User(id(&eve))).await;
    assert_eq!(held.len(), 3, "{held:?}");
    assert!(held.iter().all(|time| time.ended_at.is_none_or(|end| end >= time.began_at)), "{held:?}");
    assert!((3600..3700).contains(&card_seconds(&held, EVER, Timestamp::now())), "{held:?}");
    assert_eq!(card_seconds(&held, EVER, now - hour * 3), 0);
}

/// A machine that runs is not stopped when its time is used up, and may be restarted; one that is off is not started.
#[tokio::test(flavor = "multi_thread")]
async fn used_up_hours_stop_no_machine_and_start_none() {
    let mut world = World::new();
    world.gpus = host(&[CARD, "0000:81:00.0"]);
    let life = world.live().await;
    let eve = person(&life.store, "eva", &[]).await;
    limit(&life.store, id(&eve), &[(QuotaKind::GpuHours, 2)]).await;
    let vm = create(&life.manager, &eve, with_gpu("train", "1")).await.unwrap();
    life.settle(vm).await;
    let plain = create(&life.manager, &eve, up("plain")).await.unwrap();
    hold_for(&life, vm, 2).await;
    insta::assert_snapshot!(refused(create(&life.manager, &eve, with_gpu("more", "1")).await), @"over your quota of GPU hours: you have used 2 h of 2 h this month");
    // Plugged into a machine that runs, it is as much a card.
    life.settle(plain).await;
    let plug = ChangeRequest { gpus: Some(vec!["1".parse().unwrap()]), ..nothing() };
    assert!(refused(change(&life.manager, &eve, plain, plug).await).contains("GPU hours"));
    power(&life.manager, &eve, vm, Wanted::Restart).await.unwrap();
    life.settle(vm).await;
    power(&life.manager, &eve, vm, Wanted::Stop).await.unwrap();
    life.settle(vm).await;
    assert!(refused(power(&life.manager, &eve, vm, Wanted::Start).await).contains("GPU hours"));
    // Without its card it is a machine like any other.
    change(&life.manager, &eve, vm, ChangeRequest { gpus: Some(Vec::new()), ..nothing() }).await.unwrap();
    power(&life.manager, &eve, vm, Wanted::Start).await.unwrap();
}

#[test]
fn months_begin_in_a_zone_that_the_host_knows() {
    let parse =
        |text: &str| gvm::config::Config::parse(text, std::path::Path::new("gvm.toml")).map_err(|e| e.to_string());
    assert_eq!(parse("[people]\nzone = 'UTC'").unwrap().people.zone, "UTC");
    let error = parse("[people]\nzone = 'Mars/Olympus'").unwrap_err();
    insta::assert_snapshot!(error, @r#"gvm.toml: people.zone: "Mars/Olympus" is no time zone of this host; use UTC, or one like Europe/Madrid (tzdata)"#);
    let quota = parse("[people.quota]\nmemory = '64GiB'\nvcpus = 'unlimited'\ngpu_hours = 20").unwrap().people.quota;
    assert_eq!([QuotaKind::Memory, QuotaKind::Vcpus].map(|kind| quota.amount(kind)), [Some(65_536), None]);
    assert!(parse("[people.quota]\ncats = 1").unwrap_err().contains("unknown variant `cats`"));
}
