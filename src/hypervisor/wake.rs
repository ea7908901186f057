//! Wake-ups on their way from the hypervisor to the manager: a bounded channel that may drop, but never forgets
//! that it dropped.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc;

use super::Wake;

/// Wake-ups that may wait. A start of 500 machines makes some 3 events each within seconds; beyond this number
/// looking at everything once is cheaper than looking at each.
const WAKE_QUEUE: usize = 1024;

/// The sending end. Never blocks: it is called on libvirt's event loop.
#[derive(Debug)]
pub(super) struct Waker {
    sender: mpsc::Sender<Wake>,
    receiver: Mutex<Option<mpsc::Receiver<Wake>>>,
    has_dropped: AtomicBool,
}

impl Waker {
    pub(super) fn new() -> Self {
        Self::with_capacity(WAKE_QUEUE)
    }

    fn with_capacity(capacity: usize) -> Self {
        let (sender, receiver) = mpsc::channel(capacity);
        Self { sender, receiver: Mutex::new(Some(receiver)), has_dropped: AtomicBool::new(false) }
    }

    /// Sends, or remembers that something was lost.
    pub(super) fn wake(&self, wake: Wake) {
        self.flush();
        if self.sender.try_send(wake).is_err() {
            self.has_dropped.store(true, Ordering::Release);
        }
    }

    /// Turns what was lost into one [`Wake::All`] as soon as there is room. Called before every send and about
    /// once a second, so that a loss is repaired even when no further event comes.
    pub(super) fn flush(&self) {
        if self.has_dropped.swap(false, Ordering::AcqRel) && self.sender.try_send(Wake::All).is_err() {
            self.has_dropped.store(true, Ordering::Release);
        }
    }

    /// The receiving end, once.
    pub(super) fn take_receiver(&self) -> Option<mpsc::Receiver<Wake>> {
        self.receiver.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::id::VmId;

    #[test]
    fn what_was_dropped_comes_back_as_a_look_at_everything() {
        let waker = Waker::with_capacity(2);
        let mut receiver = waker.take_receiver().unwrap();
        assert!(waker.take_receiver().is_none());
        let vm = VmId::generate();
        for _ in 0..5 {
            waker.wake(Wake::Vm(vm));
        }
        assert_eq!(receiver.try_recv(), Ok(Wake::Vm(vm)));
        assert_eq!(receiver.try_recv(), Ok(Wake::Vm(vm)));
        assert!(receiver.try_recv().is_err());
        waker.flush();
        assert_eq!(receiver.try_recv(), Ok(Wake::All));
        waker.flush();
        assert!(receiver.try_recv().is_err());
    }
}
