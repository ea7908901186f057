//! One look at all machines serves everybody who asks at the same moment: libvirt takes milliseconds for it, and a page
//! of machines is asked for thousands of times a second.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::lock;
use crate::hypervisor::{Hypervisor, HypervisorError};
use crate::model::id::VmId;
use crate::model::state::Observed;

/// A look is told again for so long, unless something changed since: an event of libvirt, or a step of ours.
const FRESH: Duration = Duration::from_millis(250);

type Machines = Arc<HashMap<VmId, Observed>>;

#[derive(Debug)]
struct Look {
    begun: Instant,
    changes: u64,
    seen: Machines,
}

/// The last look at all machines.
#[derive(Debug, Default)]
pub(super) struct Looks {
    latest: Mutex<Option<Look>>,
    turn: tokio::sync::Mutex<()>,
    changes: AtomicU64,
}

impl Looks {
    /// Something is not as it was: the last look is not told again.
    pub fn changed(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// All machines, as they are or were a moment ago.
    ///
    /// # Errors
    /// What the hypervisor says; it is asked anew by the next.
    pub async fn all(&self, hypervisor: &dyn Hypervisor) -> Result<Machines, HypervisorError> {
        if let Some(seen) = self.fresh() {
            return Ok(seen);
        }
        // Who waited for another's look takes that.
        let _turn = self.turn.lock().await;
        if let Some(seen) = self.fresh() {
            return Ok(seen);
        }
        let (begun, changes) = (Instant::now(), self.changes.load(Ordering::Acquire));
        let seen: Machines = Arc::new(hypervisor.observe_all().await?.into_iter().collect());
        *lock(&self.latest) = Some(Look { begun, changes, seen: Arc::clone(&seen) });
        Ok(seen)
    }

    fn fresh(&self) -> Option<Machines> {
        let changes = self.changes.load(Ordering::Acquire);
        let latest = lock(&self.latest);
        let look = latest.as_ref().filter(|look| look.changes == changes && look.begun.elapsed() < FRESH)?;
        Some(Arc::clone(&look.seen))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hypervisor::fake::FakeHypervisor;

    #[tokio::test]
    async fn a_look_is_shared_until_something_changes() {
        let (looks, fake) = (Looks::default(), FakeHypervisor::new());
        let first = looks.all(&fake).await.unwrap();
        assert!(Arc::ptr_eq(&first, &looks.all(&fake).await.unwrap()), "the same look");
        looks.changed();
        let second = looks.all(&fake).await.unwrap();
        assert!(!Arc::ptr_eq(&first, &second), "a change is seen at once");
        tokio::time::sleep(FRESH).await;
        assert!(!Arc::ptr_eq(&second, &looks.all(&fake).await.unwrap()), "and so is what nobody told of, soon");
    }
}
