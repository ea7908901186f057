//! Whose limit counts, and what the one who asks is told.

use gvm::manager::quota::LimitChanges;
use gvm::model::principal::{Role, User};
use gvm::model::quota::{Limit, LimitSource};
use gvm::model::units::Mib;

use super::*;
use crate::support::world::World;

fn admin() -> Principal {
    Principal::of(User { id: UserId::generate(), name: "boss".parse().unwrap(), role: Role::Admin })
}

async fn set(life: &Life, person: &Principal, kind: QuotaKind, limit: Option<Limit>) {
    let permit = life.manager.permit_user(&admin(), Action::UserChange, &id(person).to_string()).await.unwrap();
    let changes = LimitChanges::from_iter([(kind, limit)]);
    life.manager.set_user_quota(&permit, &changes).await.unwrap();
}

async fn line(life: &Life, person: &Principal, kind: QuotaKind) -> (u64, Option<Limit>, Option<String>, u64) {
    let permit = policy::allow(person, Action::QuotaSee).unwrap();
    let sheet = life.manager.quota_of_user(&permit, Some(&"firmware".parse().unwrap())).await.unwrap();
    let line = sheet.lines.into_iter().find(|line| line.kind == kind).unwrap();
    (line.used, line.limit, line.source.map(|source: LimitSource| source.to_string()), line.next)
}

#[tokio::test(flavor = "multi_thread")]
async fn ones_own_limit_comes_before_the_teams_and_that_before_the_usual_one() {
    let mut world = World::new();
    world.config.people.quota = quota(&[(QuotaKind::Vms, 1), (QuotaKind::Disk, 250)]);
    let life = world.live().await;
    let hpc = team(&life.store, "hpc", &[], &[(QuotaKind::Vms, 2)]).await;
    let stranger = person(&life.store, "adam", &[]).await;
    create(&life.manager, &stranger, small("one")).await.unwrap();
    refused(create(&life.manager, &stranger, small("two")).await);
    assert_eq!(
        line(&life, &stranger, QuotaKind::Vms).await,
        (1, Some(Limit::At(1)), Some("[people.quota]".to_owned()), 1)
    );

    let mate = person(&life.store, "mate", &[hpc]).await;
    create(&life.manager, &mate, small("one")).await.unwrap();
    create(&life.manager, &mate, small("two")).await.unwrap();
    let text = refused(create(&life.manager, &mate, small("three")).await);
    insta::assert_snapshot!(text, @"over your quota of virtual machines: you have 2, this asks for 1, the limit is 2: 1 too many; over your quota of disk: you have 200 MiB, this asks for 100 MiB, the limit is 250 MiB: 50 MiB too much");
    assert_eq!(line(&life, &mate, QuotaKind::Vms).await.2.as_deref(), Some("each member of hpc"));

    set(&life, &mate, QuotaKind::Vms, Some(Limit::At(3))).await;
    let text = refused(create(&life.manager, &mate, small("three")).await);
    assert!(text.starts_with("over your quota of disk") && !text.contains("machines"), "{text}");
    set(&life, &mate, QuotaKind::Disk, Some(Limit::Unlimited)).await;
    create(&life.manager, &mate, small("three")).await.unwrap();
    assert_eq!(line(&life, &mate, QuotaKind::Disk).await.1, Some(Limit::Unlimited));

    // Removed, the wider one counts again. What is held already stays.
    set(&life, &mate, QuotaKind::Vms, None).await;
    let held = create(&life.manager, &mate, small("four")).await;
    insta::assert_snapshot!(refused(held), @"over your quota of virtual machines: you have 3, this asks for 1, the limit is 2: 2 too many");
    assert_eq!(
        line(&life, &mate, QuotaKind::Vms).await,
        (3, Some(Limit::At(2)), Some("each member of hpc".to_owned()), 1)
    );

    // Out of the team: the usual one.
    let mut tx = life.store.write().await.unwrap();
    teams::remove_member(&mut tx, hpc, id(&mate)).await.unwrap();
    commit(tx).await.unwrap();
    assert_eq!(line(&life, &mate, QuotaKind::Vms).await.2.as_deref(), Some("[people.quota]"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_says_which_limits_whose_and_by_how_much() {
    let world = World::new();
    let life = world.live().await;
    let hpc = team(&life.store, "hpc", &[(QuotaKind::Memory, 200), (QuotaKind::RunningVms, 1)], &[]).await;
    let (eve, adam) = (person(&life.store, "eva", &[hpc]).await, person(&life.store, "adam", &[hpc]).await);
    limit(&life.store, id(&adam), &[(QuotaKind::Memory, 100), (QuotaKind::Vcpus, 1)]).await;
    create(&life.manager, &eve, up("one")).await.unwrap();
    let request = CreateRequest { memory: Some(Mib(256)), vcpus: Some(2), ..up("big") };
    let error = create(&life.manager, &adam, request.clone()).await.unwrap_err();
    insta::assert_snapshot!(error.to_string().replace("; ", "\n"), @r"
    over your quota of vCPUs: you have 0, this asks for 2, the limit is 1: 1 too many
    over your quota of memory: you have 0 MiB, this asks for 256 MiB, the limit is 100 MiB: 156 MiB too much
    over team hpc's quota of running virtual machines: it has 1, this asks for 1, the limit is 1: 1 too many
    over team hpc's quota of memory: it has 64 MiB, this asks for 256 MiB, the limit is 200 MiB: 120 MiB too much
    ");
    insta::assert_snapshot!(error.hint.unwrap(), @"delete or stop what you do not need (gvm list), or ask an administrator for a larger quota; `gvm quota show` says what you have");
    // Off, it counts for none of these; its start does, whoever starts it.
    let vm = create(&life.manager, &adam, CreateRequest { is_stopped: true, ..request }).await.unwrap();
    let text = refused(power(&life.manager, &admin(), vm, Wanted::Start).await);
    assert!(text.starts_with("over adam's quota of vCPUs: adam has 0, this asks for 2"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_counts_for_the_team_that_is_named_else_the_default_one() {
    let world = World::new();
    let life = world.live().await;
    let hpc = team(&life.store, "hpc", &[(QuotaKind::Vms, 1)], &[]).await;
    let bio = team(&life.store, "bio", &[(QuotaKind::Vms, 1), (QuotaKind::Memory, 100)], &[]).await;
    team(&life.store, "secret", &[], &[]).await;
    let eve = person(&life.store, "eva", &[hpc, bio]).await;
    let named = |name: &str, team: &str| CreateRequest { team: Some(team.to_owned()), ..small(name) };
    let one = create(&life.manager, &eve, small("one")).await.unwrap();
    assert_eq!(life.store.vm(one).await.unwrap().unwrap().team, Some(hpc));
    refused(create(&life.manager, &eve, small("two")).await);
    let two = create(&life.manager, &eve, named("two", "bio")).await.unwrap();
    assert_eq!(life.store.vm(two).await.unwrap().unwrap().team, Some(bio));
    // One that is not hers, one that is not there, and one that can be none are the same.
    for (name, shown) in [("a", "secret"), ("b", "nothing"), ("c", "../x")] {
        let error = create(&life.manager, &eve, named(name, shown)).await.unwrap_err();
        assert_eq!((error.kind, error.to_string()), (Kind::NotFound, format!("there is no team {shown:?}")));
        let request = ChangeRequest { team: Some(shown.to_owned()), ..nothing() };
        let error = change(&life.manager, &eve, one, request).await.unwrap_err();
        assert_eq!((error.kind, error.to_string()), (Kind::NotFound, format!("there is no team {shown:?}")));
    }
    // Moved, it counts as a whole for the other team, and not at all for the one before.
    let to = |team: &str| ChangeRequest { team: Some(team.to_owned()), ..nothing() };
    insta::assert_snapshot!(refused(change(&life.manager, &eve, one, to("bio")).await), @"over team bio's quota of virtual machines: it has 1, this asks for 1, the limit is 1: 1 too many");
    power(&life.manager, &eve, two, Wanted::DeleteNow).await.unwrap();
    life.settle(two).await;
    change(&life.manager, &eve, one, to("bio")).await.unwrap();
    assert_eq!(used(&life.store, Holder::Team(hpc)).await, Usage::default());
    assert_eq!(used(&life.store, Holder::Team(bio)).await.get(QuotaKind::Vms), 1);
    create(&life.manager, &eve, small("three")).await.unwrap();
    // To the same team nothing grows, even beyond its limit.
    limit(&life.store, id(&eve), &[(QuotaKind::Vms, 0)]).await;
    change(&life.manager, &eve, one, to("bio")).await.unwrap();
    // A copy counts where its source does.
    limit(&life.store, id(&eve), &[]).await;
    let permit = life.manager.permit_vm(&eve, Action::VmChange, &one.to_string(), false).await.unwrap();
    life.settle(one).await;
    let text = refused(life.manager.clone_vm(&permit, "copy".parse().unwrap()).await);
    assert!(text.starts_with("over team bio's quota of virtual machines"), "{text}");
}
