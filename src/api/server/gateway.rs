//! `/v1/gateway`: what the SSH gateway asks, and how members reach it.

use axum::Json;
use axum::extract::State;

use super::error::ApiError;
use super::{Body, Caller, Shared, convert};
use crate::api::error::ErrorBody;
use crate::api::types::{AnnounceGateway, GatewayMode, GatewayView, Identified, Identify, ResolveTarget, Target};
use crate::auth::policy::Action;
use crate::auth::sshkey;
use crate::manager::ManagerError;
use crate::manager::access::{GatewayFacts, TargetQuestion, address_of};
use crate::model::principal::{Origin, Principal, User, Via};

/// The port of a guest's SSH server.
const SSH_PORT: u16 = 22;

/// How the gateway is reached.
#[utoipa::path(get, path = "/v1/gateway", responses((status = 200, body = GatewayView), (status = 403, body = ErrorBody)))]
pub async fn view(State(shared): State<Shared>, _caller: Caller) -> Result<Json<GatewayView>, ApiError> {
    let facts = shared.manager.gateway().await?;
    let host = shared.manager.config().gateway.host.clone();
    Ok(Json(GatewayView { host, port: facts.port, host_keys: facts.host_keys }))
}

/// Whose key is this?
#[utoipa::path(post, path = "/v1/gateway/identify", request_body = Identify,
    responses((status = 200, body = Identified), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn identify(
    State(shared): State<Shared>,
    caller: Caller,
    Body(body): Body<Identify>,
) -> Result<Json<Identified>, ApiError> {
    let permit = caller.permit(Action::GatewayAsk)?;
    let user = shared.manager.identify(&permit, &convert::parse(&body.public_key)?).await?;
    if !is_member(&shared, &user).await? {
        // Nothing is proven yet: who asks learns no more than with a key that is nobody's.
        return Err(ManagerError::not_found("this key leads to nobody").into());
    }
    Ok(Json(Identified { user: user.name.to_string() }))
}

/// True where the host still lets this person use gvm. Who has no account of the host is let in by gvm alone.
async fn is_member(shared: &Shared, user: &User) -> Result<bool, ApiError> {
    if !shared.manager.has_account(user.id).await? {
        return Ok(true);
    }
    let answer = shared.peers.is_member(&user.name).await;
    Ok(answer.map_err(|e| ManagerError::unavailable(e.to_string()).because(e))?)
}

/// May this key reach that machine, and where is it?
#[utoipa::path(post, path = "/v1/gateway/target", request_body = ResolveTarget,
    responses((status = 200, body = Target), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn target(
    State(shared): State<Shared>,
    caller: Caller,
    Body(body): Body<ResolveTarget>,
) -> Result<Json<Target>, ApiError> {
    let permit = caller.permit(Action::GatewayAsk)?;
    let key = convert::parse(&body.public_key)?;
    let fingerprint = sshkey::fingerprint(&key);
    let guest_user = body.guest_user.as_deref().map(convert::parse).transpose()?;
    let user = shared.manager.identify(&permit, &key).await?;
    if !is_member(&shared, &user).await? {
        let denied = ManagerError::denied(format!("{} is not in the group of gvm's members any more", user.name))
            .hint("ask your administrator");
        let origin =
            Origin { via: Via::SshKey(fingerprint), address: address_of(&body.peer), request: caller.0.origin.request };
        shared.manager.record_refusal(&Principal::of(user).from(origin), "vm.ssh", &body.vm, &denied).await;
        return Err(denied.into());
    }
    let needs_login_key = body.mode == GatewayMode::Terminate;
    let question = TargetQuestion { user, vm: body.vm, guest_user, needs_login_key, fingerprint, peer: body.peer };
    let target = shared.manager.target(&permit, &question).await?;
    Ok(Json(Target {
        vm_id: target.vm.id.to_string(),
        label: target.label,
        address: format!("{}:{SSH_PORT}", target.vm.placement.address),
        guest_user: target.guest_user.to_string(),
        host_keys: vec![target.host_key],
        private_key: target.login_key.map(|key| key.expose().clone()),
    }))
}

/// The gateway says how it is reached.
#[utoipa::path(post, path = "/v1/gateway/announce", request_body = AnnounceGateway,
    responses((status = 200, body = GatewayView), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody)))]
pub async fn announce(
    State(shared): State<Shared>,
    caller: Caller,
    Body(body): Body<AnnounceGateway>,
) -> Result<Json<GatewayView>, ApiError> {
    let permit = caller.permit(Action::GatewayAsk)?;
    let facts = GatewayFacts { host_keys: body.host_keys, port: body.port };
    shared.manager.announce_gateway(&permit, &facts).await?;
    view(State(shared), caller).await
}
