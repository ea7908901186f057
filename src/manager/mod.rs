//! Use cases and the reconciler.
//!
//! ```text
//!   use case: permit -> checks -> ONE transaction (quota, placement, intent, record) -> wake(VmId)
//!   reconciler(VmId): observe -> plan -> one ensure-like step -> observe again ... until settled
//!   watch: what people are told, from both
//! ```
//!
//! A use case never touches the host; the reconciler never makes a choice. Both know the machine only through
//! the store (what should be) and the hypervisor (what is).

pub mod access;
pub mod backup;
pub mod boot;
pub mod change;
pub mod check;
pub mod console;
pub mod create;
pub mod doctor;
pub mod domain;
pub mod error;
pub mod gpus;
pub mod hold;
pub mod images;
pub mod login;
pub mod logins;
mod look;
pub mod people;
pub mod power;
pub mod profiles;
pub mod quota;
pub mod reconciler;
pub mod record;
pub mod revoked;
mod shape;
pub mod steps;
pub mod teams;
pub mod tokens;
pub mod view;
pub mod watch;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use jiff::Timestamp;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::error::{Kind, ManagerError, Result};
use self::watch::Watch;
use crate::auth::policy::{self, Action, Denied, Permit, VmRef};
use crate::config::Config;
use crate::gpu::GpuBackend;
use crate::hypervisor::Hypervisor;
use crate::image::layout::Layout;
use crate::model::host::{Accelerator, Capacity};
use crate::model::id::{HostId, VmId};
use crate::model::network::NetworkSpec;
use crate::model::principal::Principal;
use crate::model::vm::Vm;
use crate::store::Store;

/// Requests to look at a machine that may wait at once; a full queue is no loss, since the tick looks at all.
pub const WAKE_QUEUE: usize = 4096;

/// What the manager knows of its host.
#[derive(Clone, Debug)]
pub struct ThisHost {
    /// The host's id, kept in the store.
    pub id: HostId,
    /// Changes with every boot of the host.
    pub boot_id: String,
    /// For admission.
    pub capacity: Capacity,
    /// What runs guest code, and the versions it stands on, for people.
    pub accelerator: Accelerator,
}

/// The manager: everything that use cases and reconciler share.
#[derive(Debug)]
pub struct Manager {
    config: Config,
    store: Store,
    hypervisor: Arc<dyn Hypervisor>,
    layout: Layout,
    host: RwLock<ThisHost>,
    watch: Watch,
    looks: look::Looks,
    wake: mpsc::Sender<VmId>,
    /// Machines whose guest's SSH server was seen to answer, by the start it belongs to.
    reachable: Mutex<HashMap<VmId, Timestamp>>,
    /// Machines whose disk is being read by a copy.
    copied: Mutex<HashSet<VmId>>,
    /// Machines whose boot is being watched, by the start it belongs to.
    booting: Mutex<HashMap<VmId, Timestamp>>,
    consoles: console::Consoles,
    /// Held while a backup is put together.
    backing_up: tokio::sync::Mutex<()>,
    revocations: revoked::Revocations,
    services: login::Services,
    logins: logins::Logins,
    uses: tokens::Uses,
    record: record::Record,
    gpus: gpus::Gpus,
    /// An image came: the accelerator may be found out with its kernel.
    images_changed: Notify,
    tasks: TaskTracker,
    stop: CancellationToken,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Manager {
    /// Puts the parts together. The receiver belongs to [`reconciler::run`].
    pub fn new(
        config: Config,
        store: Store,
        hypervisor: Arc<dyn Hypervisor>,
        gpus: Arc<dyn GpuBackend>,
        host: ThisHost,
        stop: CancellationToken,
    ) -> (Arc<Self>, mpsc::Receiver<VmId>) {
        let (wake, woken) = mpsc::channel(WAKE_QUEUE);
        let manager = Self {
            services: login::Services::new(&config),
            layout: Layout::new(config.manager.state_dir.clone()),
            config,
            store,
            hypervisor,
            host: RwLock::new(host),
            watch: Watch::new(),
            looks: look::Looks::default(),
            wake,
            reachable: Mutex::default(),
            copied: Mutex::default(),
            booting: Mutex::default(),
            consoles: console::Consoles::default(),
            backing_up: tokio::sync::Mutex::default(),
            revocations: revoked::Revocations::default(),
            logins: logins::Logins::default(),
            uses: tokens::Uses::default(),
            record: record::Record::default(),
            gpus: gpus::Gpus::new(gpus),
            images_changed: Notify::new(),
            tasks: TaskTracker::new(),
            stop,
        };
        (Arc::new(manager), woken)
    }

    /// The configuration.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// The store, for reads of the front doors' helpers.
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// What is told to people as it happens.
    pub const fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Access that ends at once.
    pub const fn revocations(&self) -> &revoked::Revocations {
        &self.revocations
    }

    /// Cancelled when the process is to end.
    pub const fn stopping(&self) -> &CancellationToken {
        &self.stop
    }

    /// Tasks that must end before the process does.
    pub const fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// What the host is.
    pub fn host(&self) -> ThisHost {
        self.host.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The accelerator was found out anew.
    pub fn set_accelerator(&self, accelerator: Accelerator) {
        self.host.write().unwrap_or_else(PoisonError::into_inner).accelerator = accelerator;
    }

    fn network(&self) -> NetworkSpec {
        let network = &self.config.network;
        NetworkSpec { name: network.name.clone(), bridge: network.bridge.clone(), subnet: network.subnet }
    }

    /// Asks the reconciler to look at a machine.
    pub fn look_at(&self, vm: VmId) {
        self.looks.changed();
        // A full queue loses nothing: the tick comes.
        let _ = self.wake.try_send(vm);
    }

    /// Finds a machine by what a person typed, and asks whether they may. Deleted machines are found where
    /// `with_deleted` says so.
    ///
    /// # Errors
    /// "Not there" and "not yours" are the same.
    pub async fn permit_vm(
        &self,
        principal: &Principal,
        action: Action,
        shown: &str,
        with_deleted: bool,
    ) -> Result<Permit> {
        let vm = self.find(principal, shown, with_deleted).await?;
        Ok(policy::allow_vm(principal, action, vm.as_ref(), shown)?)
    }

    async fn find(&self, principal: &Principal, shown: &str, with_deleted: bool) -> Result<Option<Vm>> {
        let found = match VmRef::parse(shown) {
            None => None,
            Some(VmRef::Id(id)) => self.store.vm(id).await?,
            Some(VmRef::Name { name, owner }) => {
                let owner = match owner {
                    None => principal.user().map(|user| user.id),
                    Some(owner) => match owner.parse() {
                        Ok(owner) => self.store.user_by_name(&owner).await?.map(|user| user.id),
                        Err(_) => None,
                    },
                };
                match owner {
                    Some(owner) => self.store.vm_by_name(owner, &name, with_deleted).await?,
                    None => None,
                }
            }
        };
        Ok(found.filter(|vm| with_deleted || !vm.is_deleted()))
    }

    /// The machine of a permit.
    async fn permitted(&self, permit: &Permit) -> Result<Vm> {
        let gone = || ManagerError::not_found("the VM is gone");
        let id = permit.vm().ok_or_else(gone)?;
        self.store.vm(id).await?.ok_or_else(gone)
    }

    /// `name.owner` of a machine, for the record.
    async fn label(&self, vm: &Vm) -> Result<String> {
        let owner = self.store.user(vm.owner).await?.map(|user| user.name.to_string());
        Ok(format!("{}.{}", vm.name, owner.unwrap_or_default()))
    }

    /// Ends all background work and waits for it.
    pub async fn drain(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl From<Denied> for ManagerError {
    fn from(denied: Denied) -> Self {
        let kind = match denied {
            Denied::NotFound { .. } => Kind::NotFound,
            Denied::NotAllowed { .. } | Denied::OutOfScope { .. } => Kind::Denied,
        };
        let hint = match denied {
            Denied::NotFound { kind: "VM", .. } => Some("see `gvm list`".to_owned()),
            Denied::NotFound { kind, .. } => Some(format!("see `gvm {kind} list`")),
            Denied::OutOfScope { scope, .. } => {
                Some(format!("make a token for it: gvm token create NAME --scope {scope}"))
            }
            Denied::NotAllowed { .. } => None,
        };
        Self { kind, message: denied.to_string(), hint, source: None }
    }
}
