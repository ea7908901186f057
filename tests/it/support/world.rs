//! A manager over a hypervisor in memory, with a real database and real files in a temporary folder.

use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use gvm::auth::policy::{self, Action, Permit};
use gvm::config::Config;
use gvm::gpu::GpuBackend;
use gvm::gpu::fake::FakeGpus;
use gvm::hypervisor::fake::FakeHypervisor;
use gvm::manager::create::CreateRequest;
use gvm::manager::power::Wanted;
use gvm::manager::{Manager, ThisHost, reconciler};
use gvm::model::caps::Caps;
use gvm::model::host::{Accelerator, Capacity};
use gvm::model::id::{HostId, VmId};
use gvm::model::principal::{Principal, Role};
use gvm::model::state::VmState;
use gvm::model::units::Mib;
use gvm::store::Store;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

/// The uid that the tests' member has.
pub const UID: u32 = 4242;

/// The parts that survive a crash of the manager.
#[derive(Debug)]
pub struct World {
    _dir: Option<tempfile::TempDir>,
    pub config: Config,
    pub fake: Arc<FakeHypervisor>,
    pub gpus: FakeGpus,
}

/// A manager that lives until it is dropped or crashed.
#[derive(Debug)]
pub struct Life {
    pub manager: Arc<Manager>,
    pub store: Store,
    pub member: Principal,
    stop: CancellationToken,
}

impl World {
    pub fn new() -> Self {
        Self::of(tempfile::tempdir().unwrap())
    }

    /// With its files in this folder, or the usual one where it cannot be used.
    pub fn new_in(folder: &Path) -> Self {
        Self::of(tempfile::tempdir_in(folder).or_else(|_| tempfile::tempdir()).unwrap())
    }

    fn of(dir: tempfile::TempDir) -> Self {
        let world = Self::on(dir.path());
        Self { _dir: Some(dir), ..world }
    }

    /// With its files in a folder that somebody else looks after: the world of another process as well.
    pub fn on(dir: &Path) -> Self {
        let mut config = Config::default();
        config.manager.state_dir = dir.join("state");
        config.manager.config_dir = dir.join("etc");
        config.manager.socket = dir.join("api.sock");
        config.manager.socket_group = None;
        config.manager.tick_seconds = 1;
        config.manager.stop_grace_seconds = 2;
        std::fs::create_dir_all(&config.manager.state_dir).unwrap();
        Self { _dir: None, config, fake: Arc::new(FakeHypervisor::new()), gpus: FakeGpus::default() }
    }

    pub fn state_dir(&self) -> &Path {
        &self.config.manager.state_dir
    }

    /// A manager on the same database and hypervisor whose reconciler is driven by hand.
    pub async fn live(&self) -> Life {
        self.live_with(|_| {}).await
    }

    /// The same on a host that differs from the usual one.
    pub async fn live_with(&self, edit: impl FnOnce(&mut ThisHost)) -> Life {
        self.begin(edit, Arc::new(self.gpus.clone())).await.0
    }

    /// The same with its reconciler running.
    pub async fn live_running(&self) -> Life {
        let (life, woken) = self.begin(|_| {}, Arc::new(self.gpus.clone())).await;
        tokio::spawn(reconciler::run(life.manager.clone(), woken));
        life
    }

    /// The same with other cards than the fake's.
    pub async fn live_on(&self, gpus: Arc<dyn GpuBackend>) -> Life {
        self.begin(|_| {}, gpus).await.0
    }

    /// The same on a host that differs from the usual one.
    pub async fn live_on_with(&self, gpus: Arc<dyn GpuBackend>, edit: impl FnOnce(&mut ThisHost)) -> Life {
        self.begin(edit, gpus).await.0
    }

    async fn begin(
        &self,
        edit: impl FnOnce(&mut ThisHost),
        gpus: Arc<dyn GpuBackend>,
    ) -> (Life, tokio::sync::mpsc::Receiver<VmId>) {
        let store = Store::open(&self.state_dir().join("gvm.db")).await.unwrap();
        let mut facts = ThisHost {
            id: HostId::generate(),
            boot_id: "boot-1".to_owned(),
            capacity: Capacity { memory: Mib(65_536), reserve: Mib(1024), cpus: 16, phys_bits: Some(46) },
            accelerator: Accelerator::Kvm,
        };
        edit(&mut facts);
        let stop = CancellationToken::new();
        let (manager, woken) =
            Manager::new(self.config.clone(), store.clone(), self.fake.clone(), gpus, facts, stop.clone());
        let user = store.ensure_user(UID, &"eve".parse().unwrap(), Role::Member, Timestamp::now()).await.unwrap();
        (Life { manager, store, member: Principal::of(user), stop }, woken)
    }
}

impl Life {
    pub fn permit(&self, action: Action) -> Permit {
        policy::allow(&self.member, action).unwrap()
    }

    pub async fn create(&self, name: &str) -> gvm::manager::Result<VmId> {
        self.create_as(name, |_| {}).await
    }

    pub async fn create_as(&self, name: &str, edit: impl FnOnce(&mut CreateRequest)) -> gvm::manager::Result<VmId> {
        let mut request = CreateRequest {
            name: Some(name.parse().unwrap()),
            profile: "firmware".parse().unwrap(),
            image: None,
            vcpus: None,
            memory: None,
            disk: None,
            gpus: None,
            caps: Caps::default(),
            ttl: None,
            user_data: None,
            tags: Vec::new(),
            team: None,
            tpm: None,
            is_stopped: false,
        };
        edit(&mut request);
        Ok(self.manager.create(&self.permit(Action::VmCreate), request).await?.vm)
    }

    pub async fn power(&self, vm: VmId, wanted: Wanted) -> gvm::manager::Result<()> {
        let permit = self.manager.permit_vm(&self.member, Action::VmPower, &vm.to_string(), true).await?;
        self.manager.power(&permit, wanted).await.map(|_| ())
    }

    pub async fn state(&self, vm: VmId) -> Option<VmState> {
        let permit = self.manager.permit_vm(&self.member, Action::VmSee, &vm.to_string(), true).await.ok()?;
        Some(self.manager.details(&permit).await.ok()?.state)
    }

    /// Drives a machine by hand until it rests; gives the names of the steps.
    pub async fn settle(&self, vm: VmId) -> Vec<&'static str> {
        let mut steps = Vec::new();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        while tokio::time::Instant::now() < deadline {
            match reconciler::look(&self.manager, vm).await.unwrap() {
                reconciler::Looked::AtRest => return steps,
                reconciler::Looked::Did(step) => {
                    steps.push(step.name());
                    assert!(steps.len() < 30, "it goes round in circles: {steps:?}");
                }
                reconciler::Looked::Later(at) => {
                    let wait = at.duration_since(Timestamp::now());
                    if wait > jiff::SignedDuration::from_secs(20) {
                        return steps;
                    }
                    tokio::time::sleep(Duration::try_from(wait).unwrap_or_default()).await;
                }
            }
        }
        panic!("{vm} does not settle; it did {steps:?} and is {:?}", self.state(vm).await);
    }

    /// The manager is gone from one moment to the other.
    pub async fn crash(self) {
        self.stop.cancel();
        self.store.close().await;
    }
}

/// Waits until a condition holds.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while !holds().await {
        assert!(tokio::time::Instant::now() < deadline, "not within 20 s: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A future that is dropped after so many turns: the manager dies in the middle of something.
pub async fn turns_of<T>(future: impl Future<Output = T>, turns: usize) {
    let mut future = std::pin::pin!(future);
    let mut left = turns;
    std::future::poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        future.as_mut().poll(cx).map(|_| ())
    })
    .await;
}
