//! A partition of a card is never held twice, whatever is claimed and released in whatever order: the schema alone
//! sees to it, so that a bug above it cannot.

use std::collections::BTreeMap;

use gvm::model::gpu::{GpuId, GpuLease, GpuShare, LeaseState, Partition, VgpuTypeName};
use gvm::model::id::{LeaseId, VmId};
use gvm::model::units::Mib;
use gvm::model::vm::Generation;
use gvm::store::{Store, StoreError, Write, commit, leases, vms};
use jiff::Timestamp;
use proptest::prelude::{Strategy, prop_oneof};
use proptest::test_runner::{Config, TestRunner};

use crate::support::world::World;

const CARDS: u8 = 3;
const MACHINES: usize = 4;

/// What is tried with a card.
#[derive(Clone, Debug)]
enum Try {
    Whole { card: u8, machine: usize },
    Vgpu { card: u8, index: u32, machine: usize },
    Release { machine: usize },
}

impl Try {
    fn claim(&self) -> Option<(usize, Partition)> {
        let gpu = |card: u8| GpuId(format!("GPU-{card}"));
        match *self {
            Self::Whole { card, machine } => {
                let bdf = format!("0000:{card:02x}:00.0").parse().unwrap();
                Some((machine, Partition::Whole { gpu: gpu(card), bdf, siblings: Vec::new(), numa_node: None }))
            }
            Self::Vgpu { card, index, machine } => {
                let bdf = format!("0000:{card:02x}:00.0").parse().unwrap();
                let site = format!("0000:{card:02x}:01.{index}").parse().unwrap();
                let name = VgpuTypeName::parse("L40S-12Q").unwrap();
                Some((machine, Partition::Vgpu { gpu: gpu(card), bdf, site, name, numa_node: None, slice: None }))
            }
            Self::Release { .. } => None,
        }
    }
}

fn tries() -> impl Strategy<Value = Vec<Try>> {
    let one = prop_oneof![
        (0..CARDS, 0..MACHINES).prop_map(|(card, machine)| Try::Whole { card, machine }),
        (0..CARDS, 0..2u32, 0..MACHINES).prop_map(|(card, index, machine)| Try::Vgpu { card, index, machine }),
        (0..MACHINES).prop_map(|machine| Try::Release { machine }),
    ];
    proptest::collection::vec(one, 1..40)
}

fn lease(vm: VmId, partition: Partition) -> GpuLease {
    let (share, state) = (GpuShare::whole(Mib(0)), LeaseState::Claimed);
    GpuLease { id: LeaseId::generate(), partition, share, vm, generation: Generation(1), state }
}

async fn machines(world: &World) -> (Store, Vec<VmId>) {
    let life = world.live().await;
    let mut ids = Vec::new();
    for number in 0..MACHINES {
        ids.push(life.create(&format!("vm{number}")).await.unwrap());
    }
    (life.store, ids)
}

/// Runs the tries in one transaction beside a model of what must come of each.
async fn run(tx: &mut Write, ids: &[VmId], tries: &[Try]) {
    let mut held: BTreeMap<String, (VmId, &'static str, GpuId)> = BTreeMap::new();
    for one in tries {
        let Some((machine, partition)) = one.claim() else {
            let Try::Release { machine } = one else { unreachable!() };
            leases::release(tx, ids[*machine], Timestamp::now()).await.unwrap();
            held.retain(|_, (vm, ..)| *vm != ids[*machine]);
            continue;
        };
        let vm = ids[machine];
        let is_free = !held.contains_key(&partition.key())
            && held.values().all(|(_, kind, gpu)| gpu != partition.gpu() || *kind == partition.use_kind());
        match leases::claim(tx, &lease(vm, partition.clone()), Timestamp::now()).await {
            Ok(()) => {
                assert!(is_free, "{} was held already", partition.key());
                held.insert(partition.key(), (vm, partition.use_kind(), partition.gpu().clone()));
            }
            Err(StoreError::Taken(_)) => assert!(!is_free, "{} was free", partition.key()),
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[test]
fn a_partition_is_never_held_twice() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let world = World::new();
    let (store, ids) = runtime.block_on(machines(&world));
    let mut runner = TestRunner::new(Config { cases: 200, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&tries(), |tries| {
        runtime.block_on(async {
            // Rolled back at the end: every case starts from no lease.
            let mut tx = store.write().await.unwrap();
            run(&mut tx, &ids, &tries).await;
        });
        Ok(())
    });
    outcome.unwrap();
    assert!(runtime.block_on(store.leases()).unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_who_claim_one_card_at_once_one_gets_it() {
    let world = World::new();
    let (store, ids) = machines(&world).await;
    let claim = async |machine: usize| {
        let (_, partition) = Try::Whole { card: 0, machine }.claim().unwrap();
        let mut tx = store.write().await.unwrap();
        leases::claim(&mut tx, &lease(ids[machine], partition), Timestamp::now()).await?;
        commit(tx).await
    };
    let all = futures_util::future::join_all((0..MACHINES).map(claim)).await;
    assert_eq!(all.iter().filter(|one| one.is_ok()).count(), 1);
    assert_eq!(store.leases().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_machine_that_holds_a_card_cannot_be_forgotten() {
    let world = World::new();
    let (store, ids) = machines(&world).await;
    let mut tx = store.write().await.unwrap();
    let (_, partition) = Try::Whole { card: 0, machine: 0 }.claim().unwrap();
    leases::claim(&mut tx, &lease(ids[0], partition), Timestamp::now()).await.unwrap();
    assert!(matches!(vms::forget(&mut tx, ids[0]).await, Err(StoreError::InUse)));
}
