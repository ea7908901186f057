//! "Something changed": libvirt's events, turned into wake-ups.
//!
//! ```text
//!   libvirtd --> [gvm-virt-loop: libvirt's event loop] --callbacks--> Sink --> cache: forget, waker: wake
//!                                                                          ^
//!   [gvm-virt-watch: connects, registers, notices loss, connects again] ---'  (all forgotten, everything woken)
//! ```
//!
//! A callback only copies the UUID, forgets what was cached of that domain and sends a wake-up that may be dropped
//! (and is then made good by [`Wake::All`]). It never calls libvirt, blocks or panics. Events can be lost; the manager
//! looks at everything now and then anyway.
//!
//! `unsafe` is allowed in this file because `virt` wraps neither the registration of domain events nor the close
//! callback. The event loop is libvirt's and there is one per process: it is started once and never ends.
#![allow(unsafe_code)]

use std::mem;
use std::os::raw::{c_char, c_int, c_uchar, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

use uuid::Uuid;
use virt::connect::Connect;
use virt_sys as sys;

use super::libvirt::{Cache, open, sweep_checks};
use super::wake::Waker;
use super::{ErrorKind, HypervisorError, Result, Wake};
use crate::model::id::VmId;

/// How often the watcher looks whether the connection lives, sends what was dropped and sweeps for hung calls.
const BEAT: Duration = Duration::from_secs(1);

/// How long the event loop rests after it failed, so that a broken one does not burn a core.
const LOOP_REST: Duration = Duration::from_millis(200);

/// Starts libvirt's event loop, once for the process. Must come before the first connection.
pub(super) fn start_loop() -> Result<()> {
    static STARTED: OnceLock<std::result::Result<(), String>> = OnceLock::new();
    let started = STARTED.get_or_init(|| {
        // The default handler writes every error to standard error.
        virt::error::clear_error_callback();
        virt::event::event_register_default_impl().map_err(|e| e.to_string())?;
        let turn = || {
            loop {
                if virt::event::event_run_default_impl().is_err() {
                    thread::sleep(LOOP_REST);
                }
            }
        };
        thread::Builder::new().name("gvm-virt-loop".to_owned()).spawn(turn).map_err(|e| e.to_string())?;
        Ok(())
    });
    let failed =
        |message: &String| HypervisorError::new(ErrorKind::Permanent, "starting libvirt's event loop", message);
    started.as_ref().map_err(failed).copied()
}

/// What callbacks may touch.
#[derive(Debug)]
struct Sink {
    waker: Arc<Waker>,
    cache: Arc<Cache>,
    is_closed: AtomicBool,
    watcher: OnceLock<Thread>,
}

impl Sink {
    /// A domain changed.
    fn changed(&self, uuid: Uuid) {
        let vm = VmId::from_uuid(uuid);
        self.cache.forget(vm);
        self.waker.wake(Wake::Vm(vm));
    }

    /// The connection is gone.
    fn closed(&self) {
        self.is_closed.store(true, Ordering::Release);
        if let Some(watcher) = self.watcher.get() {
            watcher.unpark();
        }
    }
}

/// Keeps one connection registered for events, for as long as it lives.
#[derive(Debug)]
pub(super) struct Watcher {
    stop: Arc<AtomicBool>,
    thread: Thread,
}

impl Watcher {
    /// Starts watching. `beat` is called about once a second.
    pub(super) fn start(
        uri: &str,
        waker: Arc<Waker>,
        cache: Arc<Cache>,
        beat: impl Fn() + Send + 'static,
    ) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, uri) = (Arc::clone(&stop), uri.to_owned());
        let life = move || watch(&uri, &waker, &cache, &stopped, &beat);
        let handle = thread::Builder::new().name("gvm-virt-watch".to_owned()).spawn(life).map_err(|e| {
            HypervisorError::new(ErrorKind::Transient, "starting a thread for libvirt's events", e.to_string())
        })?;
        Ok(Self { stop, thread: handle.thread().clone() })
    }
}

impl Drop for Watcher {
    /// Lets the thread end. It is not waited for: it may hang in a connection attempt.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

fn watch(uri: &str, waker: &Arc<Waker>, cache: &Arc<Cache>, stop: &AtomicBool, beat: &dyn Fn()) {
    let mut failures = 0_u32;
    let mut is_swept = false;
    while !stop.load(Ordering::Acquire) {
        let sink = Arc::new(Sink {
            waker: Arc::clone(waker),
            cache: Arc::clone(cache),
            is_closed: AtomicBool::new(false),
            watcher: OnceLock::new(),
        });
        let _ = sink.watcher.set(thread::current());
        match Registered::open(uri, &sink) {
            Ok(registered) => {
                failures = 0;
                if !mem::replace(&mut is_swept, true) {
                    match sweep_checks(&registered.conn) {
                        Ok(0) => {}
                        Ok(removed) => tracing::info!(removed, "removed what an interrupted check left behind"),
                        Err(error) => tracing::warn!(%error, "cannot look for what an interrupted check left behind"),
                    }
                }
                tracing::debug!(uri, "listening to libvirt's events");
                // Only now: what changed before the registration would not have been told.
                cache.open();
                waker.wake(Wake::All);
                while registered.is_alive(&sink) && !stop.load(Ordering::Acquire) {
                    thread::park_timeout(BEAT);
                    beat();
                }
                cache.close();
                waker.wake(Wake::All);
            }
            Err(error) => {
                if failures == 0 {
                    tracing::warn!(%error, "no events from libvirt; trying again");
                }
                failures = failures.saturating_add(1);
                thread::park_timeout(BEAT);
                beat();
            }
        }
    }
}

/// A connection with callbacks.
struct Registered {
    conn: Connect,
    callbacks: Vec<c_int>,
}

type Callback = sys::virConnectDomainEventGenericCallback;

/// The events that are listened to. A libvirt that lacks one of the later ones refuses its registration; the manager's
/// regular look makes up for it.
fn wanted() -> [(u32, Callback); 9] {
    // SAFETY: libvirt takes all callbacks as one pointer type and calls each with the arguments of its event, which
    // are those of the function given here for it (libvirt.org/html/libvirt-libvirt-domain.html).
    unsafe {
        let numbers: Callback = mem::transmute(on_numbers as *const c_void);
        let plain: Callback = mem::transmute(on_plain as *const c_void);
        let device: Callback = mem::transmute(on_device as *const c_void);
        let io_error: Callback = mem::transmute(on_io_error as *const c_void);
        let tunable: Callback = mem::transmute(on_tunable as *const c_void);
        let metadata: Callback = mem::transmute(on_metadata as *const c_void);
        [
            (sys::VIR_DOMAIN_EVENT_ID_LIFECYCLE, numbers),
            (sys::VIR_DOMAIN_EVENT_ID_REBOOT, plain),
            (sys::VIR_DOMAIN_EVENT_ID_IO_ERROR_REASON, io_error),
            (sys::VIR_DOMAIN_EVENT_ID_TUNABLE, tunable),
            (sys::VIR_DOMAIN_EVENT_ID_AGENT_LIFECYCLE, numbers),
            (sys::VIR_DOMAIN_EVENT_ID_DEVICE_ADDED, device),
            (sys::VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED, device),
            (sys::VIR_DOMAIN_EVENT_ID_DEVICE_REMOVAL_FAILED, device),
            (sys::VIR_DOMAIN_EVENT_ID_METADATA_CHANGE, metadata),
        ]
    }
}

impl Registered {
    fn open(uri: &str, sink: &Arc<Sink>) -> Result<Self> {
        let conn = open(uri)?;
        let mut registered = Self { conn, callbacks: Vec::new() };
        for (event, callback) in wanted() {
            match registered.register(event, callback, sink) {
                Ok(id) => registered.callbacks.push(id),
                Err(error) if event == sys::VIR_DOMAIN_EVENT_ID_LIFECYCLE => return Err(error),
                Err(error) => tracing::debug!(event, %error, "libvirt has no such event"),
            }
        }
        let opaque = lend(sink);
        // SAFETY: the connection is valid; `opaque` is freed by `give_back`, which libvirt calls once at the end.
        let code = unsafe {
            sys::virConnectRegisterCloseCallback(registered.conn.as_ptr(), Some(on_close), opaque, Some(give_back))
        };
        if code < 0 {
            // In-process drivers cannot be lost.
            // SAFETY: libvirt did not take it.
            unsafe { give_back(opaque) };
        }
        Ok(registered)
    }

    fn register(&self, event: u32, callback: Callback, sink: &Arc<Sink>) -> Result<c_int> {
        let opaque = lend(sink);
        let event = c_int::try_from(event).unwrap_or(-1);
        // SAFETY: as in `open`; the callback fits the event.
        let id = unsafe {
            let conn = self.conn.as_ptr();
            sys::virConnectDomainEventRegisterAny(conn, ptr::null_mut(), event, callback, opaque, Some(give_back))
        };
        if id >= 0 {
            return Ok(id);
        }
        let error = virt::error::Error::last_error();
        // SAFETY: libvirt did not take it.
        unsafe { give_back(opaque) };
        Err(HypervisorError::new(ErrorKind::Transient, "registering for libvirt's events", error.message()))
    }

    fn is_alive(&self, sink: &Sink) -> bool {
        !sink.is_closed.load(Ordering::Acquire) && self.conn.is_alive().unwrap_or(false)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        for id in &self.callbacks {
            // SAFETY: the connection is valid. On a dead one it fails, and closing frees the callbacks.
            unsafe { sys::virConnectDomainEventDeregisterAny(self.conn.as_ptr(), *id) };
        }
        // SAFETY: as above; fails where none is registered.
        unsafe { sys::virConnectUnregisterCloseCallback(self.conn.as_ptr(), Some(on_close)) };
    }
}

/// The sink as libvirt keeps it.
fn lend(sink: &Arc<Sink>) -> *mut c_void {
    Arc::into_raw(Arc::clone(sink)).cast_mut().cast()
}

/// Ends what [`lend`] began.
unsafe extern "C" fn give_back(opaque: *mut c_void) {
    // SAFETY: `opaque` came from `lend` and is given back once.
    drop(unsafe { Arc::from_raw(opaque.cast_const().cast::<Sink>()) });
}

/// The body of all callbacks: a panic must not reach C.
unsafe fn with_sink(opaque: *mut c_void, tell: impl FnOnce(&Sink)) {
    // SAFETY: `opaque` came from `lend` and is not given back while a callback runs.
    let sink = unsafe { &*opaque.cast_const().cast::<Sink>() };
    if catch_unwind(AssertUnwindSafe(|| tell(sink))).is_err() {
        tracing::error!("a libvirt event callback panicked");
    }
}

unsafe fn domain_changed(domain: sys::virDomainPtr, opaque: *mut c_void) {
    let mut bytes: [c_uchar; 16] = [0; 16];
    // SAFETY: libvirt's domain is valid during the callback; a UUID has 16 bytes. Local, no call to the daemon.
    if unsafe { sys::virDomainGetUUID(domain, bytes.as_mut_ptr()) } == 0 {
        // SAFETY: passed on as it came.
        unsafe { with_sink(opaque, |sink| sink.changed(Uuid::from_bytes(bytes))) };
    }
}

unsafe extern "C" fn on_plain(_: sys::virConnectPtr, domain: sys::virDomainPtr, opaque: *mut c_void) {
    // SAFETY: passed on as it came from libvirt; so in all that follow.
    unsafe { domain_changed(domain, opaque) };
}

unsafe extern "C" fn on_numbers(
    _: sys::virConnectPtr,
    domain: sys::virDomainPtr,
    _: c_int,
    _: c_int,
    opaque: *mut c_void,
) {
    // SAFETY: see `on_plain`.
    unsafe { domain_changed(domain, opaque) };
}

unsafe extern "C" fn on_device(
    _: sys::virConnectPtr,
    domain: sys::virDomainPtr,
    _: *const c_char,
    opaque: *mut c_void,
) {
    // SAFETY: see `on_plain`.
    unsafe { domain_changed(domain, opaque) };
}

unsafe extern "C" fn on_io_error(
    _: sys::virConnectPtr,
    domain: sys::virDomainPtr,
    _: *const c_char,
    _: *const c_char,
    _: c_int,
    _: *const c_char,
    opaque: *mut c_void,
) {
    // SAFETY: see `on_plain`.
    unsafe { domain_changed(domain, opaque) };
}

unsafe extern "C" fn on_tunable(
    _: sys::virConnectPtr,
    domain: sys::virDomainPtr,
    _: sys::virTypedParameterPtr,
    _: c_int,
    opaque: *mut c_void,
) {
    // SAFETY: see `on_plain`.
    unsafe { domain_changed(domain, opaque) };
}

unsafe extern "C" fn on_metadata(
    _: sys::virConnectPtr,
    domain: sys::virDomainPtr,
    _: c_int,
    _: *const c_char,
    opaque: *mut c_void,
) {
    // SAFETY: see `on_plain`.
    unsafe { domain_changed(domain, opaque) };
}

unsafe extern "C" fn on_close(_: sys::virConnectPtr, _: c_int, opaque: *mut c_void) {
    // SAFETY: see `on_plain`.
    unsafe { with_sink(opaque, Sink::closed) };
}
