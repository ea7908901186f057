//! Looks of tests at the fake itself: no fault meets them, and no call is recorded.

use super::FakeHypervisor;
use crate::model::id::VmId;
use crate::model::state::{Observed, Power};

impl FakeHypervisor {
    /// How a machine is, whatever faults are arranged.
    pub fn peek(&self, vm: VmId) -> Observed {
        self.world().domains.get(&vm).map_or(Observed::Missing, |domain| domain.observed())
    }

    /// How all machines are, whatever faults are arranged.
    pub fn peek_all(&self) -> Vec<(VmId, Observed)> {
        self.world().domains.iter().map(|(id, domain)| (*id, domain.observed())).collect()
    }

    /// The end of all faults; shutdowns that lingered come to their end.
    pub fn heal(&self) {
        {
            let mut world = self.world();
            world.faults.clear();
            world.hung.clear();
            let domains = world.domains.values_mut();
            domains.filter(|domain| domain.power == Power::ShuttingDown).for_each(|domain| domain.end_by_guest());
        }
        self.released.notify_waiters();
        self.set_unknown(false);
    }
}
