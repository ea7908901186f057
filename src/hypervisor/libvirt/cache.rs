//! What libvirt said of domains that have not changed since.
//!
//! Listing asks libvirt once for the power state of all domains, but limits, sizes and our metadata are only in each
//! domain's XML, one call each. Those are kept here, and used again only while all of this holds:
//!
//! - events arrive (lost connection: everything is dropped), and none came for this domain since its XML was read;
//! - it is the same run: libvirt numbers running domains anew at every start;
//! - the entry is not old: changes that libvirt sends no event for (`virsh setvcpus`) show after [`AGE`].
//!
//! This remembers only libvirt's own words, in memory. What a machine should be is in the database, and the reconciler
//! of one machine always asks anew.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::hypervisor::xml::Description;
use crate::model::id::VmId;

/// Age at which an entry is read anew.
const AGE: Duration = Duration::from_secs(240);

/// Spread of [`AGE`] in seconds, so that not all entries are read anew by the same listing.
const AGE_SPREAD: u64 = 120;

/// Changes that are remembered, for readers that began before them. A reader that began earlier than the oldest one
/// keeps nothing.
const CHANGES: usize = 4096;

#[derive(Debug)]
struct Entry {
    run: Option<u32>,
    until: Instant,
    description: Arc<Description>,
}

#[derive(Debug, Default)]
struct State {
    is_live: bool,
    /// Counts changes.
    now: u64,
    entries: HashMap<VmId, Entry>,
    /// The last changes with their number, oldest first.
    changes: VecDeque<(u64, VmId)>,
    machines: HashMap<&'static str, String>,
}

/// The memory. Shared by workers and by the event loop; held only for moments.
#[derive(Debug, Default)]
pub(in crate::hypervisor) struct Cache {
    state: Mutex<State>,
}

/// When a reader began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark(u64);

impl Cache {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Events arrive from now on. Nothing from before counts.
    pub(in crate::hypervisor) fn open(&self) {
        self.start_over(State { is_live: true, ..State::default() });
    }

    /// Events arrive no longer.
    pub(in crate::hypervisor) fn close(&self) {
        self.start_over(State::default());
    }

    fn start_over(&self, fresh: State) {
        let mut state = self.state();
        let now = state.now + 1;
        *state = State { now, ..fresh };
    }

    /// The domain changed.
    pub(in crate::hypervisor) fn forget(&self, vm: VmId) {
        let mut state = self.state();
        state.now += 1;
        let now = state.now;
        state.entries.remove(&vm);
        if state.changes.len() == CHANGES {
            state.changes.pop_front();
        }
        state.changes.push_back((now, vm));
    }

    /// To be taken before reading from libvirt what is then to be stored.
    pub(super) fn mark(&self) -> Mark {
        Mark(self.state().now)
    }

    /// What was read of this run of the domain and still holds.
    pub(super) fn get(&self, vm: VmId, run: Option<u32>) -> Option<Arc<Description>> {
        let state = self.state();
        let entry = state.entries.get(&vm).filter(|entry| entry.run == run && Instant::now() < entry.until)?;
        Some(Arc::clone(&entry.description))
    }

    /// Keeps what was read, unless the domain changed since `mark`.
    pub(super) fn put(&self, vm: VmId, run: Option<u32>, description: Arc<Description>, mark: Mark) {
        let mut state = self.state();
        // With all numbers of changes since the mark at hand it is known whether one was of this domain.
        let missed = state.now - mark.0 > u64::try_from(state.changes.len()).unwrap_or(0);
        let changed = state.changes.iter().rev().take_while(|(at, _)| *at > mark.0).any(|(_, changed)| *changed == vm);
        if state.is_live && !missed && !changed {
            let spread = vm.uuid().as_u128() % u128::from(AGE_SPREAD);
            let until = Instant::now() + AGE + Duration::from_secs(u64::try_from(spread).unwrap_or(0));
            state.entries.insert(vm, Entry { run, until, description });
        }
    }

    /// Drops what is no longer there.
    pub(super) fn keep_only(&self, present: impl ExactSizeIterator<Item = VmId>) {
        let mut state = self.state();
        // Events tell of what goes away; only where they did not is there anything to look for.
        if state.entries.len() > present.len() {
            let present: HashSet<VmId> = present.collect();
            state.entries.retain(|vm, _| present.contains(vm));
        }
    }

    /// The versioned machine type for a kind of domain, while the connection is the one it was asked on.
    pub(super) fn machine(&self, kind: &'static str) -> Option<String> {
        self.state().machines.get(kind).cloned()
    }

    /// Keeps a machine type.
    pub(super) fn put_machine(&self, kind: &'static str, machine: &str) {
        let mut state = self.state();
        if state.is_live {
            state.machines.insert(kind, machine.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hypervisor::xml::read_domain;

    fn described() -> Arc<Description> {
        Arc::new(read_domain("<domain type='kvm'><name>x</name><memory>1</memory></domain>").unwrap())
    }

    #[test]
    fn only_what_surely_holds_is_given_again() {
        let cache = Cache::default();
        let (vm, other) = (VmId::generate(), VmId::generate());
        let put = |run| {
            let mark = cache.mark();
            cache.put(vm, run, described(), mark);
        };
        put(None);
        assert!(cache.get(vm, None).is_none(), "no events, nothing kept");
        cache.open();
        put(None);
        assert!(cache.get(vm, None).is_some() && cache.get(vm, Some(3)).is_none(), "only the same run");
        cache.forget(other);
        assert!(cache.get(vm, None).is_some());
        cache.forget(vm);
        assert!(cache.get(vm, None).is_none());
        put(Some(3));
        cache.close();
        assert!(cache.get(vm, Some(3)).is_none(), "a lost connection drops everything");
    }

    #[test]
    fn what_changed_while_it_was_read_is_not_kept() {
        let cache = Cache::default();
        cache.open();
        let (vm, other) = (VmId::generate(), VmId::generate());
        let mark = cache.mark();
        cache.forget(vm);
        cache.put(vm, None, described(), mark);
        assert!(cache.get(vm, None).is_none());
        cache.put(other, None, described(), mark);
        assert!(cache.get(other, None).is_some());
        for _ in 0..=CHANGES {
            cache.forget(other);
        }
        cache.put(VmId::from_uuid(uuid::Uuid::nil()), None, described(), mark);
        assert!(cache.get(VmId::from_uuid(uuid::Uuid::nil()), None).is_none(), "more changes than are remembered");
        let before = cache.mark();
        cache.open();
        cache.put(vm, None, described(), before);
        assert!(cache.get(vm, None).is_none(), "read on another connection");
    }
}
