use proptest::prelude::*;

use super::*;

/// A board of 8: all, two halves, four pairs, each alone. Which modules are a pair differs from board to board and is the
/// manager's to say; this is the table of the field case.
fn board() -> FabricTable {
    let sets: [&[u32]; 15] = [
        &[0, 1, 2, 3, 4, 5, 6, 7],
        &[0, 1, 2, 3],
        &[4, 5, 6, 7],
        &[0, 1],
        &[2, 3],
        &[4, 5],
        &[6, 7],
        &[0],
        &[1],
        &[2],
        &[3],
        &[4],
        &[5],
        &[6],
        &[7],
    ];
    let partition = |(id, modules): (u32, &&[u32])| FabricPartition {
        id,
        modules: modules.iter().copied().collect(),
        is_active: false,
    };
    FabricTable::new((0..).zip(&sets).map(partition).collect()).unwrap()
}

fn set(modules: &[u32]) -> BTreeSet<u32> {
    modules.iter().copied().collect()
}

fn active(ids: &[u32]) -> FabricTable {
    let with = |one: &FabricPartition| FabricPartition { is_active: ids.contains(&one.id), ..one.clone() };
    FabricTable::new(board().partitions().iter().map(with).collect()).unwrap()
}

fn picked(free: &[u32], wanted: usize) -> Result<Vec<u32>, String> {
    let table = board();
    let found = pick(&table, &set(free), wanted);
    found.map(|one| one.modules.iter().copied().collect()).map_err(|why| why.to_string())
}

/// Case A-nvswitch-partition.
#[test]
fn only_sets_that_are_a_partition_are_given() {
    let free = [1, 2, 5, 6, 7];
    assert_eq!(picked(&free, 2), Ok(vec![6, 7]));
    insta::assert_snapshot!(picked(&free, 4).unwrap_err(), @"no free 4-GPU partition: in each of the 2 some GPU is in use or kept out");
    insta::assert_snapshot!(picked(&free, 3).unwrap_err(), @"this board has no partition of 3 GPUs; there are partitions of 1, 2, 4, 8");
    assert_eq!(exact(&board(), &set(&[6, 7])).map(|one| one.id), Some(6));
    assert_eq!(exact(&board(), &set(&[1, 2])), None, "neighbours in number only");
}

#[test]
fn large_partitions_are_kept_as_long_as_can_be() {
    let every: Vec<u32> = (0..8).collect();
    assert_eq!(picked(&every, 8), Ok(every.clone()));
    // What is broken already is used up first.
    assert_eq!(picked(&[0, 1, 2, 4, 5, 6, 7], 1), Ok(vec![2]));
    assert_eq!(picked(&[0, 1, 2, 3, 6, 7], 2), Ok(vec![6, 7]));
    assert_eq!(picked(&[0, 1, 2, 3, 4, 6, 7], 1), Ok(vec![4]));
}

#[test]
fn what_is_active_and_not_ours_is_in_nobodys_way_but_taken() {
    let table = active(&[3]);
    assert_eq!(pick(&table, &set(&[0, 1, 2, 3]), 2).map(|one| one.id), Ok(4));
    assert!(pick(&table, &set(&[0, 1, 2, 3]), 4).is_err());
    let held = [HeldPartition { id: 1, is_running: false }];
    let view = FabricView { table: &table, held: &held, ours: &set(&[]), is_new: false };
    insta::assert_snapshot!(next(view).unwrap_err(), @"partition 1 shares a GPU with partition 3, which is active and not gvm's");
    assert_eq!(next(FabricView { held: &[], ..view }), Ok(None), "nobody's to deactivate");
    let ours = set(&[3]);
    assert_eq!(next(FabricView { held: &[], ours: &ours, ..view }), Ok(Some(FabricStep::Deactivate(3))));
}

#[test]
fn what_was_lost_is_told() {
    let held = [HeldPartition { id: 6, is_running: true }];
    let (table, ours) = (board(), set(&[6]));
    let view = FabricView { table: &table, held: &held, ours: &ours, is_new: false };
    insta::assert_snapshot!(next(view).unwrap_err(), @"partition 6 is not active any more, and its machine runs: CUDA in it fails until the machine is stopped and started");
    assert_eq!(next(FabricView { is_new: true, ..view }), Ok(Some(FabricStep::TellActivated(set(&[6])))));
    let gone = [HeldPartition { id: 60, is_running: false }];
    insta::assert_snapshot!(next(FabricView { held: &gone, ..view }).unwrap_err(), @"the board has no partition 60 any more; its machine can only be stopped");
    let nobody = FabricView { table: &table, held: &[], ours: &set(&[]), is_new: true };
    assert_eq!(next(nobody), Ok(Some(FabricStep::TellActivated(set(&[])))), "an empty list is sent as well");
}

/// A fabric manager, as far as it is documented: it refuses what is active or in use, and knows nothing after a restart
/// until it is told.
#[derive(Debug, Default)]
struct Manager {
    active: BTreeSet<u32>,
    is_new: bool,
}

impl Manager {
    fn table(&self) -> FabricTable {
        active(&self.active.iter().copied().collect::<Vec<_>>())
    }

    fn take(&mut self, step: &FabricStep) {
        assert_eq!(self.is_new, matches!(step, FabricStep::TellActivated(_)), "told first, and told once");
        match step {
            FabricStep::TellActivated(ids) => (self.active, self.is_new) = (ids.clone(), false),
            FabricStep::Activate(id) => {
                let table = self.table();
                let one = table.get(*id).unwrap();
                let is_clear = table.partitions().iter().all(|other| !other.is_active || !other.overlaps(one));
                assert!(is_clear && self.active.insert(*id), "in use");
            }
            FabricStep::Deactivate(id) => assert!(self.active.remove(id), "not active"),
        }
    }
}

proptest! {
    /// Machines come and go, the manager restarts in between: a machine starts only in an active partition, no running
    /// one loses it, and in the end nothing is active that nobody has.
    #[test]
    fn stories_keep_machines_and_partitions_together(story in proptest::collection::vec((0_u8..8, 0_usize..4), 1..40)) {
        let mut manager = Manager::default();
        let mut held: Vec<HeldPartition> = Vec::new();
        let mut ours: BTreeSet<u32> = BTreeSet::new();
        let mut settle = |manager: &mut Manager, held: &mut Vec<HeldPartition>| {
            for _ in 0..40 {
                let table = manager.table();
                let step = next(FabricView { table: &table, held, ours: &ours, is_new: manager.is_new });
                let Some(step) = step.expect("nobody else is on the board") else { break };
                // Written down before the act, taken off after it.
                if let FabricStep::Activate(id) = step {
                    ours.insert(id);
                }
                manager.take(&step);
                if let FabricStep::Deactivate(id) = step {
                    ours.remove(&id);
                }
            }
            for one in held.iter_mut() {
                assert!(manager.active.contains(&one.id));
                one.is_running = true;
            }
            assert_eq!(manager.active.len(), held.len());
        };
        for (what, size) in story {
            match what {
                // The manager forgets what is active, and the cards work on.
                0 => (manager.active, manager.is_new) = (BTreeSet::new(), true),
                1..=3 if !held.is_empty() => drop(held.swap_remove(size % held.len())),
                _ => {
                    let table = board();
                    let taken: BTreeSet<u32> =
                        held.iter().flat_map(|one| table.get(one.id).unwrap().modules.clone()).collect();
                    let free: BTreeSet<u32> = (0..8).filter(|module| !taken.contains(module)).collect();
                    let wanted = 1 << size;
                    let found = pick(&table, &free, wanted);
                    let could = table.partitions().iter().any(|one| one.modules.len() == wanted && one.modules.is_subset(&free));
                    prop_assert_eq!(found.is_ok(), could);
                    held.extend(found.ok().map(|one| HeldPartition { id: one.id, is_running: false }));
                }
            }
            settle(&mut manager, &mut held);
        }
        held.clear();
        settle(&mut manager, &mut held);
        prop_assert!(manager.active.is_empty());
    }
}
