//! The real hypervisor: libvirt and QEMU.
//!
//! ```text
//!   manager --> [Libvirt: Hypervisor] --> quick pool (looks, small changes) --\
//!                                     --> slow pool (start, define, end)    ---+--> libvirtd
//!                                     --> agent pool (guest agents)         --/
//!                                     --> console threads, one pair a line
//!   events.rs --> Cache (forget), Waker (wake)
//! ```
//!
//! Every call runs on a thread of ours with a deadline (`pool.rs`); a hung or absent libvirtd makes errors of kind
//! `Transient`, never a blocked runtime. Three pools, because a guest agent may take a minute and a start some
//! seconds, while a look must not wait for either.
//!
//! Only domains that carry our metadata with their own UUID are ever touched.

mod agent;
mod cache;
mod change;
mod console;
mod error;
mod lifecycle;
mod network;
mod observe;
mod pool;
mod session;

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio::time::Instant;
use virt::connect::Connect;

pub(super) use self::cache::Cache;
use self::console::Consoles;
use self::error::Said;
pub(super) use self::lifecycle::sweep_checks;
use self::pool::Pool;
pub(super) use self::session::open;
use super::events::{Watcher, start_loop};
use super::wake::Waker;
use super::xml::Templates;
use super::{
    ByteStream, DomainSpec, DomainStats, DomainVerdict, ErrorKind, Hypervisor, HypervisorError, HypervisorFacts,
    LiveChange, Result, Wake,
};
use crate::model::gpu::HostDevice;
use crate::model::id::VmId;
use crate::model::network::{GuestAddress, MacAddress, NetworkSpec};
use crate::model::state::Observed;
use crate::model::units::Mib;
use crate::model::vm::domain_name;

/// Threads, and so connections, of each pool.
const QUICK_THREADS: usize = 2;
const SLOW_THREADS: usize = 4;
const AGENT_THREADS: usize = 2;

/// How long calls may take before they are given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Looks and small changes.
    pub quick: Duration,
    /// Listing everything, which reads each description once after a connection was made.
    pub list: Duration,
    /// Defining, ending, networks.
    pub slow: Duration,
    /// Starting and plugging host devices, before what size adds: a second for each GiB and a minute for each host device, whose memory and
    /// registers are set up before QEMU answers.
    pub start: Duration,
}

impl Deadlines {
    /// How long a machine of this size may take to start.
    fn start_of(&self, memory: Mib, hostdevs: usize) -> Duration {
        let devices = u64::try_from(hostdevs).unwrap_or(u64::MAX);
        let more = (memory.0 / 1024).saturating_add(devices.saturating_mul(60));
        self.start.saturating_add(Duration::from_secs(more))
    }
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            quick: Duration::from_secs(10),
            list: Duration::from_secs(30),
            slow: Duration::from_secs(60),
            start: Duration::from_secs(120),
        }
    }
}

/// What [`Libvirt::connect`] needs to know.
#[derive(Clone, Debug)]
pub struct LibvirtOptions {
    /// Connection URI, such as `qemu:///system`.
    pub uri: String,
    /// Folder with an administrator's own templates (`<config_dir>/templates`).
    pub templates: Option<PathBuf>,
    /// CPU weight of a cgroup that nobody gave one: 1024 on cgroups v1, 100 on v2. What lifting a weight goes back to.
    pub default_cpu_shares: u32,
    /// Deadlines.
    pub deadlines: Deadlines,
}

impl LibvirtOptions {
    /// The usual deadlines, built-in templates, cgroups v2.
    pub fn new(uri: impl Into<String>) -> Self {
        Self { uri: uri.into(), templates: None, default_cpu_shares: 100, deadlines: Deadlines::default() }
    }
}

/// What calls on the pools share.
struct Shared {
    uri: String,
    templates: Templates,
    default_cpu_shares: u32,
    cache: Arc<Cache>,
    /// Machines whose agent is being asked to shut down.
    asking: Mutex<HashSet<VmId>>,
}

/// The adapter. Cheap to share; its threads end when it is dropped.
pub struct Libvirt {
    deadlines: Deadlines,
    shared: Arc<Shared>,
    quick: Arc<Pool>,
    slow: Arc<Pool>,
    agent: Arc<Pool>,
    consoles: Consoles,
    waker: Arc<Waker>,
    _watcher: Watcher,
}

impl fmt::Debug for Libvirt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Libvirt").field("uri", &self.shared.uri).finish_non_exhaustive()
    }
}

impl Libvirt {
    /// Starts the threads. Does not wait for libvirtd, which may be down: calls fail as `Transient` until it answers.
    ///
    /// # Errors
    /// Where no thread can be started, or libvirt's event loop cannot.
    pub fn connect(options: LibvirtOptions) -> Result<Arc<Self>> {
        start_loop()?;
        let waker = Arc::new(Waker::new());
        let cache = Arc::new(Cache::default());
        let uri = options.uri.as_str();
        let quick = Arc::new(Pool::new("gvm-virt-q", uri, QUICK_THREADS)?);
        let slow = Arc::new(Pool::new("gvm-virt-s", uri, SLOW_THREADS)?);
        let agent = Arc::new(Pool::new("gvm-virt-a", uri, AGENT_THREADS)?);
        let (beat_waker, pools) = (Arc::clone(&waker), [&quick, &slow, &agent].map(Arc::downgrade));
        let beat = move || {
            beat_waker.flush();
            pools.iter().filter_map(std::sync::Weak::upgrade).for_each(|pool| pool.sweep());
        };
        let watcher = Watcher::start(uri, Arc::clone(&waker), Arc::clone(&cache), beat)?;
        let shared = Arc::new(Shared {
            uri: options.uri,
            templates: Templates::new(options.templates),
            default_cpu_shares: options.default_cpu_shares,
            cache,
            asking: Mutex::default(),
        });
        let deadlines = options.deadlines;
        let consoles = Consoles::default();
        Ok(Arc::new(Self { deadlines, shared, quick, slow, agent, consoles, waker, _watcher: watcher }))
    }

    /// A call on one machine.
    async fn on<T, F>(&self, pool: &Pool, deadline: Duration, what: &str, vm: VmId, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connect, &Shared) -> Result<T> + Send + 'static,
    {
        self.on_named(pool, deadline, &format!("{what} domain {}", domain_name(vm)), work).await
    }

    async fn on_named<T, F>(&self, pool: &Pool, deadline: Duration, doing: &str, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connect, &Shared) -> Result<T> + Send + 'static,
    {
        let shared = Arc::clone(&self.shared);
        pool.call(doing, deadline, move |conn| work(conn, &shared)).await
    }

    async fn survey(&self) -> Result<observe::Survey> {
        let work = |conn: &Connect, shared: &Shared| observe::survey(conn, &shared.cache);
        self.on_named(&self.quick, self.deadlines.list, "listing domains", work).await
    }

    /// Base and what the size of the machine adds, with so many devices besides those that it has.
    async fn start_deadline(&self, what: &'static str, vm: VmId, devices: usize) -> Result<Duration> {
        let work = move |conn: &Connect, _: &Shared| {
            let ours = observe::need(conn, vm, &format!("{what} domain {}", domain_name(vm)))?;
            Ok((ours.description.observed.memory, ours.description.observed.hostdevs.len()))
        };
        let (memory, hostdevs) = self.on(&self.quick, self.deadlines.quick, what, vm, work).await?;
        Ok(self.deadlines.start_of(memory, hostdevs.saturating_add(devices)))
    }
}

#[async_trait]
impl Hypervisor for Libvirt {
    async fn facts(&self) -> Result<HypervisorFacts> {
        let doing = "asking libvirt what it is";
        let work = move |conn: &Connect, shared: &Shared| {
            let version = |number: u32| format!("{}.{}.{}", number / 1_000_000, number / 1000 % 1000, number % 1000);
            let node = conn.node_info().said(doing)?;
            Ok(HypervisorFacts {
                uri: shared.uri.clone(),
                libvirt_version: version(conn.lib_version().said(doing)?),
                qemu_version: version(conn.hyp_version().said(doing)?),
                memory: Mib(node.memory / 1024),
                cpus: node.cpus,
                machine: lifecycle::machine_type(conn, shared, "qemu")?,
            })
        };
        self.on_named(&self.quick, self.deadlines.list, doing, work).await
    }

    async fn observe_all(&self) -> Result<Vec<(VmId, Observed)>> {
        Ok(self.survey().await?.ours)
    }

    async fn observe(&self, vm: VmId) -> Observed {
        let work = move |conn: &Connect, _: &Shared| observe::observe(conn, vm);
        let seen = self.on(&self.quick, self.deadlines.quick, "looking at", vm, work).await;
        seen.unwrap_or_else(|error| Observed::Unknown(error.to_string()))
    }

    async fn strangers(&self) -> Result<Vec<String>> {
        Ok(self.survey().await?.strangers)
    }

    async fn check(&self, spec: &DomainSpec) -> Result<DomainVerdict> {
        let (vm, spec) = (spec.id, spec.clone());
        let work = move |conn: &Connect, shared: &Shared| lifecycle::check(conn, shared, &spec);
        self.on(&self.slow, self.deadlines.slow, "checking", vm, work).await
    }

    async fn define(&self, spec: &DomainSpec) -> Result<()> {
        let (vm, spec) = (spec.id, spec.clone());
        let work = move |conn: &Connect, shared: &Shared| lifecycle::define(conn, shared, &spec);
        self.on(&self.slow, self.deadlines.slow, "defining", vm, work).await
    }

    async fn start(&self, vm: VmId) -> Result<()> {
        let deadline = self.start_deadline("starting", vm, 0).await?;
        let work = move |conn: &Connect, shared: &Shared| lifecycle::start(conn, shared, vm);
        self.on(&self.slow, deadline, "starting", vm, work).await
    }

    async fn shutdown(&self, vm: VmId) -> Result<()> {
        let press = move |conn: &Connect, _: &Shared| {
            let ours = lifecycle::press_power_button(conn, vm)?;
            Ok(ours.is_active() && ours.description.is_agent_connected)
        };
        let has_agent = self.on(&self.quick, self.deadlines.quick, "shutting down", vm, press).await?;
        if has_agent && self.shared.asking().insert(vm) {
            let asked = Asking { shared: Arc::clone(&self.shared), vm };
            let ask = move |conn: &Connect| {
                let _asked = asked;
                agent::shutdown(conn, vm)
            };
            // libvirt waits up to a minute for the guest to be off; we do not.
            self.agent.post("shutting down by guest agent", self.deadlines.start, ask);
        }
        Ok(())
    }

    async fn force_off(&self, vm: VmId) -> Result<()> {
        let work = move |conn: &Connect, shared: &Shared| lifecycle::force_off(conn, shared, vm);
        self.on(&self.slow, self.deadlines.slow, "forcing off", vm, work).await
    }

    async fn pause(&self, vm: VmId) -> Result<()> {
        let work = move |conn: &Connect, _: &Shared| lifecycle::pause(conn, vm);
        self.on(&self.slow, self.deadlines.slow, "pausing", vm, work).await
    }

    async fn resume(&self, vm: VmId) -> Result<()> {
        let work = move |conn: &Connect, _: &Shared| lifecycle::resume(conn, vm);
        self.on(&self.slow, self.deadlines.slow, "resuming", vm, work).await
    }

    async fn undefine(&self, vm: VmId) -> Result<()> {
        let work = move |conn: &Connect, shared: &Shared| lifecycle::undefine(conn, shared, vm);
        self.on(&self.slow, self.deadlines.slow, "removing", vm, work).await
    }

    async fn apply(&self, vm: VmId, change: &LiveChange) -> Result<()> {
        let change = change.clone();
        let work = move |conn: &Connect, shared: &Shared| change::apply(conn, shared, vm, &change);
        self.on(&self.slow, self.deadlines.slow, "changing", vm, work).await
    }

    async fn attach_devices(&self, vm: VmId, devices: &[HostDevice]) -> Result<()> {
        let what = "plugging devices into";
        let deadline = self.start_deadline(what, vm, devices.len()).await?;
        let devices = devices.to_vec();
        let work = move |conn: &Connect, shared: &Shared| change::attach_devices(conn, shared, vm, &devices);
        self.on(&self.slow, deadline, what, vm, work).await
    }

    async fn root_disk_size(&self, vm: VmId) -> Result<Mib> {
        let work = move |conn: &Connect, _: &Shared| change::root_disk_size(conn, vm);
        self.on(&self.quick, self.deadlines.quick, "looking at the root disk of", vm, work).await
    }

    async fn ensure_network(&self, network: &NetworkSpec) -> Result<()> {
        let (doing, network) = (format!("making network {}", network.name), network.clone());
        let work = move |conn: &Connect, shared: &Shared| network::ensure(conn, shared, &network);
        self.on_named(&self.slow, self.deadlines.slow, &doing, work).await
    }

    async fn ensure_host_entry(&self, network: &str, mac: MacAddress, address: GuestAddress, name: &str) -> Result<()> {
        let doing = format!("giving {address} to {mac} on network {network}");
        let (network, name) = (network.to_owned(), name.to_owned());
        let work = move |conn: &Connect, shared: &Shared| {
            network::ensure_host_entry(conn, shared, &network, mac, address, &name)
        };
        self.on_named(&self.slow, self.deadlines.slow, &doing, work).await
    }

    async fn ensure_host_entry_gone(&self, network: &str, mac: MacAddress) -> Result<()> {
        let (doing, network) = (format!("forgetting the address of {mac} on network {network}"), network.to_owned());
        let work = move |conn: &Connect, shared: &Shared| network::ensure_host_entry_gone(conn, shared, &network, mac);
        self.on_named(&self.slow, self.deadlines.slow, &doing, work).await
    }

    async fn console(&self, vm: VmId) -> Result<Box<dyn ByteStream>> {
        self.consoles.open(&self.shared.uri, vm, self.deadlines.quick).await
    }

    async fn stats(&self, vm: VmId) -> Result<DomainStats> {
        let work = move |conn: &Connect, _: &Shared| observe::stats(conn, vm);
        self.on(&self.quick, self.deadlines.quick, "reading numbers of", vm, work).await
    }

    async fn guest_exec(&self, vm: VmId, argv: &[&str], deadline: Duration) -> Result<(i32, Vec<u8>)> {
        let until = Instant::now() + deadline;
        let left = || until.saturating_duration_since(Instant::now()).min(self.deadlines.quick);
        let argv: Vec<String> = argv.iter().map(|word| (*word).to_owned()).collect();
        let what = "asking the guest agent of";
        let start = move |conn: &Connect, _: &Shared| agent::exec(conn, vm, &argv);
        let pid = self.on(&self.agent, left(), what, vm, start).await?;
        let mut pause = agent::LOOKS.0;
        loop {
            tokio::time::sleep(pause.min(left())).await;
            pause = agent::LOOKS.1.min(pause * 2);
            if left().is_zero() {
                let message = format!("a program inside did not end within {} s", deadline.as_secs_f32());
                return Err(HypervisorError::new(ErrorKind::Transient, format!("{what} {}", domain_name(vm)), message));
            }
            let look = move |conn: &Connect, _: &Shared| agent::exec_status(conn, vm, pid);
            if let Some(ended) = self.on(&self.agent, left(), what, vm, look).await? {
                return Ok(ended);
            }
        }
    }

    fn wakes(&self) -> Option<mpsc::Receiver<Wake>> {
        self.waker.take_receiver()
    }
}

impl Shared {
    fn asking(&self) -> std::sync::MutexGuard<'_, HashSet<VmId>> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request to a guest's agent that is under way; over when it is dropped, done or not.
struct Asking {
    shared: Arc<Shared>,
    vm: VmId,
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.shared.asking().remove(&self.vm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Case A-multi-gpu-start-timeout: 30 s, a second for each GiB and 40 s for each card; eight cards and 1 TiB.
    #[test]
    fn a_large_machine_is_not_given_up_while_it_starts() {
        let needs = Duration::from_secs(30 + 1024 + 8 * 40);
        let given = Deadlines::default().start_of(Mib(1 << 20), 8);
        assert!(given > needs && given < needs * 2, "{given:?}");
        assert_eq!(Deadlines::default().start_of(Mib(256), 0), Deadlines::default().start);
    }
}
