//! Quotas of people and teams: whatever is asked for at once, in whatever order, no limit is exceeded, and nobody is refused
//! below one.

mod edge;
mod hours;
mod kinds;
mod races;
mod random;
mod whose;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use gvm::auth::policy::{self, Action};
use gvm::manager::change::ChangeRequest;
use gvm::manager::create::CreateRequest;
use gvm::manager::power::Wanted;
use gvm::manager::{Kind, Manager, ManagerError};
use gvm::model::caps::{Caps, CapsChange};
use gvm::model::gpu::GpuRequest;
use gvm::model::id::{TeamId, UserId, VmId};
use gvm::model::principal::Principal;
use gvm::model::quota::month::Month;
use gvm::model::quota::{Quota, QuotaKind, Usage};
use gvm::store::quotas::{self, Holder, TeamLimits};
use gvm::store::teams::{self, TeamRow};
use gvm::store::users::{self, UserRow};
use gvm::store::{Store, commit};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::support::world::Life;

/// Somebody new in these teams; the first is their default one.
async fn person(store: &Store, name: &str, teams: &[TeamId]) -> Principal {
    let mut row = UserRow::new(name.parse().unwrap(), Timestamp::now());
    row.default_team = teams.first().copied();
    let mut tx = store.write().await.unwrap();
    users::insert(&mut tx, &row).await.unwrap();
    for team in teams {
        teams::add_member(&mut tx, *team, row.user.id).await.unwrap();
    }
    commit(tx).await.unwrap();
    Principal::of(row.user).in_teams(teams.to_vec())
}

fn id(person: &Principal) -> UserId {
    person.user().unwrap().id
}

fn quota(limits: &[(QuotaKind, u64)]) -> Quota {
    limits.iter().copied().collect()
}

/// A team whose machines together, and whose members each, may hold so much.
async fn team(store: &Store, name: &str, own: &[(QuotaKind, u64)], member: &[(QuotaKind, u64)]) -> TeamId {
    let row = TeamRow::new(name.parse().unwrap(), String::new(), Timestamp::now());
    let mut tx = store.write().await.unwrap();
    teams::insert(&mut tx, &row).await.unwrap();
    let limits = TeamLimits { name: name.to_owned(), own: quota(own), member: quota(member) };
    quotas::set_team(&mut tx, row.id, &limits).await.unwrap();
    commit(tx).await.unwrap();
    row.id
}

async fn limit(store: &Store, user: UserId, limits: &[(QuotaKind, u64)]) {
    let mut tx = store.write().await.unwrap();
    quotas::set_user(&mut tx, user, &quota(limits)).await.unwrap();
    commit(tx).await.unwrap();
}

/// A small machine that is off.
fn small(name: &str) -> CreateRequest {
    CreateRequest {
        name: Some(name.parse().unwrap()),
        profile: "firmware".parse().unwrap(),
        image: None,
        vcpus: Some(1),
        memory: Some(gvm::model::units::Mib(64)),
        disk: Some(gvm::model::units::Mib(100)),
        gpus: Some(Vec::new()),
        caps: Caps::default(),
        ttl: None,
        user_data: None,
        tags: Vec::new(),
        team: None,
        tpm: None,
        is_stopped: true,
    }
}

fn up(name: &str) -> CreateRequest {
    CreateRequest { is_stopped: false, ..small(name) }
}

fn with_gpu(name: &str, gpu: &str) -> CreateRequest {
    CreateRequest { gpus: Some(vec![gpu.parse::<GpuRequest>().unwrap()]), ..up(name) }
}

async fn create(manager: &Manager, by: &Principal, request: CreateRequest) -> gvm::manager::Result<VmId> {
    let permit = policy::allow(by, Action::VmCreate).unwrap();
    Ok(manager.create(&permit, request).await?.vm)
}

async fn power(manager: &Manager, by: &Principal, vm: VmId, wanted: Wanted) -> gvm::manager::Result<()> {
    let permit = manager.permit_vm(by, Action::VmPower, &vm.to_string(), true).await?;
    manager.power(&permit, wanted).await.map(|_| ())
}

fn nothing() -> ChangeRequest {
    ChangeRequest { caps: CapsChange::default(), ..ChangeRequest::default() }
}

async fn change(manager: &Manager, by: &Principal, vm: VmId, request: ChangeRequest) -> gvm::manager::Result<()> {
    let permit = manager.permit_vm(by, Action::VmChange, &vm.to_string(), false).await?;
    manager.change(&permit, request).await.map(|_| ())
}

async fn used(store: &Store, holder: Holder) -> Usage {
    let now = Timestamp::now();
    store.usage(holder, (Month::of(now, &TimeZone::UTC), now)).await.unwrap()
}

/// The text of a refusal for quota.
fn refused<T: std::fmt::Debug>(result: gvm::manager::Result<T>) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.kind, Kind::OverQuota, "{error}");
    error.to_string()
}

/// Up to so many microseconds, at random.
async fn moment(most: u64) {
    let random = u64::try_from(VmId::generate().uuid().as_u128() & 0xffff_ffff).unwrap();
    tokio::time::sleep(Duration::from_micros(random % most.max(1))).await;
}

/// All at once, each after a random delay; gives what came of each.
async fn at_once<T: Send + 'static>(
    life: &Life,
    delay: u64,
    tasks: impl IntoIterator<Item = Task<T>>,
) -> Vec<Result<T, ManagerError>> {
    let spawn = |task: Task<T>| {
        let manager = life.manager.clone();
        tokio::spawn(async move {
            moment(delay).await;
            task(manager).await
        })
    };
    let spawned: Vec<_> = tasks.into_iter().map(spawn).collect();
    futures_util::future::join_all(spawned).await.into_iter().map(|done| done.unwrap()).collect()
}

/// Something that is asked of a manager, once it is its turn.
type Task<T> = Box<dyn FnOnce(Arc<Manager>) -> Answer<T> + Send>;

type Answer<T> = std::pin::Pin<Box<dyn Future<Output = gvm::manager::Result<T>> + Send>>;

/// A task that makes a machine.
fn making(by: &Principal, request: CreateRequest) -> Task<VmId> {
    let by = by.clone();
    Box::new(move |manager| Box::pin(async move { create(&manager, &by, request).await }))
}

/// So many were accepted, and all others were over quota.
fn accepted<T: Clone>(results: &[Result<T, ManagerError>]) -> Vec<T> {
    for error in results.iter().filter_map(|result| result.as_ref().err()) {
        assert_eq!(error.kind, Kind::OverQuota, "{error}");
    }
    results.iter().filter_map(|result| result.as_ref().ok()).cloned().collect()
}
