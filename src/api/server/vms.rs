//! `/v1/vms`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::ApiError;
use super::{Body, Caller, Path, Query, Shared, audited, convert};
use crate::api::error::ErrorBody;
use crate::api::types::{Accepted, ChangeVm, CloneVm, CreateVm, GatewayView, SshInfo, StopVm, VmList, VmView};
use crate::auth::policy::{self, Action};
use crate::manager::Manager;
use crate::manager::create::AcceptedChange;
use crate::manager::power::Wanted;
use crate::manager::view::ListRequest;

type Done<T> = Result<Json<T>, ApiError>;
type AcceptedAnswer = Result<(StatusCode, Json<Accepted>), ApiError>;

/// Most machines in one answer.
const MAX_LIST: u32 = 10_000;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    /// At most so many.
    limit: Option<u32>,
    /// Everybody's, for operators.
    #[serde(default)]
    all: bool,
    /// Those that count for this team, for its teachers and for operators.
    team: Option<String>,
    /// Deleted ones within their undelete window too.
    #[serde(default)]
    deleted: bool,
}

/// Machines in the order of their making.
#[utoipa::path(get, path = "/v1/vms", params(ListQuery), responses((status = 200, body = VmList), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn list(State(shared): State<Shared>, caller: Caller, Query(query): Query<ListQuery>) -> Done<VmList> {
    let permit = match &query.team {
        Some(team) => shared.manager.permit_team(&caller.0, Action::VmSee, team).await?,
        None => caller.permit(if query.all { Action::VmSeeAll } else { Action::VmSee })?,
    };
    let request = ListRequest { with_deleted: query.deleted, limit: query.limit.unwrap_or(MAX_LIST).min(MAX_LIST) };
    let vms = shared.manager.list(&permit, request).await?;
    Ok(Json(VmList { vms: vms.into_iter().map(convert::vm).collect() }))
}

/// Makes a machine.
#[utoipa::path(post, path = "/v1/vms", request_body = CreateVm,
    responses((status = 202, body = Accepted), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn create(State(shared): State<Shared>, caller: Caller, Body(body): Body<CreateVm>) -> AcceptedAnswer {
    let target = body.name.clone().unwrap_or_default();
    let result = async {
        let permit = policy::allow(&caller.0, Action::VmCreate)?;
        shared.manager.create(&permit, convert::create(&body)?).await
    };
    let accepted = audited(&shared, &caller, "vm.create", &target, result.await).await?;
    answer(&shared.manager, accepted).await
}

/// One machine: `{vm}` is a name, `name.owner` or an id.
#[utoipa::path(get, path = "/v1/vms/{vm}", params(("vm" = String, Path)), responses((status = 200, body = VmView), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn show(State(shared): State<Shared>, caller: Caller, Path(vm): Path<String>) -> Done<VmView> {
    let permit = shared.manager.permit_vm(&caller.0, Action::VmSee, &vm, true).await?;
    Ok(Json(convert::vm(shared.manager.details(&permit).await?)))
}

/// Changes a machine.
#[utoipa::path(patch, path = "/v1/vms/{vm}", params(("vm" = String, Path)), request_body = ChangeVm,
    responses((status = 202, body = Accepted), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn change(
    State(shared): State<Shared>,
    caller: Caller,
    Path(vm): Path<String>,
    Body(body): Body<ChangeVm>,
) -> AcceptedAnswer {
    let result = async {
        let permit = shared.manager.permit_vm(&caller.0, Action::VmChange, &vm, false).await?;
        shared.manager.change(&permit, convert::change(&body)?).await
    };
    let accepted = audited(&shared, &caller, "vm.change", &vm, result.await).await?;
    answer(&shared.manager, accepted).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct DeleteQuery {
    /// Without an undelete window.
    #[serde(default)]
    now: bool,
}

/// Deletes a machine.
#[utoipa::path(delete, path = "/v1/vms/{vm}", params(("vm" = String, Path), DeleteQuery),
    responses((status = 202, body = Accepted), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn delete(
    State(shared): State<Shared>,
    caller: Caller,
    Path(vm): Path<String>,
    Query(query): Query<DeleteQuery>,
) -> AcceptedAnswer {
    let wanted = if query.now { Wanted::DeleteNow } else { Wanted::Delete };
    power(&shared, &caller, &vm, wanted).await
}

/// Starts a machine.
#[utoipa::path(post, path = "/v1/vms/{vm}/start", params(("vm" = String, Path)),
    responses((status = 202, body = Accepted), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn start(State(shared): State<Shared>, caller: Caller, Path(vm): Path<String>) -> AcceptedAnswer {
    power(&shared, &caller, &vm, Wanted::Start).await
}

/// Stops a machine: asks its guest, and forces it off after the grace period.
#[utoipa::path(post, path = "/v1/vms/{vm}/stop", params(("vm" = String, Path)), request_body = StopVm,
    responses((status = 202, body = Accepted), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn stop(
    State(shared): State<Shared>,
    caller: Caller,
    Path(vm): Path<String>,
    Body(body): Body<StopVm>,
) -> AcceptedAnswer {
    power(&shared, &caller, &vm, if body.force { Wanted::ForceStop } else { Wanted::Stop }).await
}

/// Stops and starts a machine.
#[utoipa::path(post, path = "/v1/vms/{vm}/restart", params(("vm" = String, Path)), request_body = StopVm,
    responses((status = 202, body = Accepted), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn restart(
    State(shared): State<Shared>,
    caller: Caller,
    Path(vm): Path<String>,
    Body(body): Body<StopVm>,
) -> AcceptedAnswer {
    power(&shared, &caller, &vm, if body.force { Wanted::ForceRestart } else { Wanted::Restart }).await
}

/// Holds a machine's vCPUs.
#[utoipa::path(post, path = "/v1/vms/{vm}/pause", params(("vm" = String, Path)),
    responses((status = 202, body = Accepted), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn pause(State(shared): State<Shared>, caller: Caller, Path(vm): Path<String>) -> AcceptedAnswer {
    power(&shared, &caller, &vm, Wanted::Pause).await
}

/// Lets a machine's vCPUs go on.
#[utoipa::path(post, path = "/v1/vms/{vm}/resume", params(("vm" = String, Path)),
    responses((status = 202, body = Accepted), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn resume(State(shared): State<Shared>, caller: Caller, Path(vm): Path<String>) -> AcceptedAnswer {
    power(&shared, &caller, &vm, Wanted::Resume).await
}

/// Brings a deleted machine back, off.
#[utoipa::path(post, path = "/v1/vms/{vm}/undelete", params(("vm" = String, Path)),
    responses((status = 202, body = Accepted), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn undelete(State(shared): State<Shared>, caller: Caller, Path(vm): Path<String>) -> AcceptedAnswer {
    power(&shared, &caller, &vm, Wanted::Undelete).await
}

/// Copies a machine that is off.
#[utoipa::path(post, path = "/v1/vms/{vm}/clone", params(("vm" = String, Path)), request_body = CloneVm,
    responses((status = 202, body = Accepted), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn clone(
    State(shared): State<Shared>,
    caller: Caller,
    Path(vm): Path<String>,
    Body(body): Body<CloneVm>,
) -> AcceptedAnswer {
    let result = async {
        let permit = shared.manager.permit_vm(&caller.0, Action::VmChange, &vm, false).await?;
        shared.manager.clone_vm(&permit, convert::parse(&body.name)?).await
    };
    let accepted = audited(&shared, &caller, "vm.clone", &vm, result.await).await?;
    answer(&shared.manager, accepted).await
}

/// How to reach a machine by SSH.
#[utoipa::path(get, path = "/v1/vms/{vm}/ssh", params(("vm" = String, Path)), responses((status = 200, body = SshInfo), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn ssh(State(shared): State<Shared>, caller: Caller, Path(vm): Path<String>) -> Done<SshInfo> {
    let permit = shared.manager.permit_vm(&caller.0, Action::VmSsh, &vm, false).await?;
    let (vm, owner, host_key) = shared.manager.ssh_info(&permit).await?;
    let facts = shared.manager.gateway().await?;
    let host = shared.manager.config().gateway.host.clone();
    Ok(Json(SshInfo {
        vm: vm.name.to_string(),
        owner,
        guest_user: vm.spec.guest_user.to_string(),
        host_keys: vec![host_key],
        address: vm.placement.address.to_string(),
        gateway: GatewayView { host, port: facts.port, host_keys: facts.host_keys },
    }))
}

async fn power(shared: &Shared, caller: &Caller, vm: &str, wanted: Wanted) -> AcceptedAnswer {
    let (action, word) = match wanted {
        Wanted::Start => (Action::VmPower, "vm.start"),
        Wanted::Stop | Wanted::ForceStop => (Action::VmPower, "vm.stop"),
        Wanted::Restart | Wanted::ForceRestart => (Action::VmPower, "vm.restart"),
        Wanted::Pause => (Action::VmPower, "vm.pause"),
        Wanted::Resume => (Action::VmPower, "vm.resume"),
        Wanted::Delete | Wanted::DeleteNow => (Action::VmDelete, "vm.delete"),
        Wanted::Undelete => (Action::VmDelete, "vm.undelete"),
    };
    let result = async {
        // Deleted ones are found too: that they are deleted is the better answer.
        let permit = shared.manager.permit_vm(&caller.0, action, vm, true).await?;
        shared.manager.power(&permit, wanted).await
    };
    let accepted = audited(shared, caller, word, vm, result.await).await?;
    answer(&shared.manager, accepted).await
}

/// The machine as it stands right after the change was accepted.
async fn answer(manager: &Manager, accepted: AcceptedChange) -> AcceptedAnswer {
    let AcceptedChange { operation, row, notes, .. } = accepted;
    let details = manager.details_of(*row).await?;
    let body = Accepted { operation: operation.to_string(), vm: convert::vm(details), notes };
    Ok((StatusCode::ACCEPTED, Json(body)))
}
