//! `/v1/gateway`: what the SSH gateway asks, and how members reach it.

use std::convert::Infallible;

use axum::Json;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures_util::StreamExt as _;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;

use super::error::ApiError;
use super::stream::KEEP_ALIVE;
use super::{Body, Caller, Shared, access, convert};
use crate::api::error::ErrorBody;
use crate::api::types::{
    AnnounceGateway, CertificateFacts, EndedAccess, GatewayMode, GatewayView, Identified, Identify, ResolveTarget,
    RevocationView, Target,
};
use crate::auth::policy::Action;
use crate::auth::sshkey;
use crate::manager::access::{Certificate, GatewayFacts, Proof, TargetQuestion, address_of, unknown_key};
use crate::manager::revoked::Revoked;
use crate::model::principal::{Origin, Principal, Via};

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
    let user = shared.manager.identify(&permit, &proof(&body.public_key, body.certificate)?).await?;
    if !access::is_member(&shared.manager, &shared.peers, &user).await? {
        // Nothing is proven yet: who asks learns no more than with a key that is nobody's.
        return Err(unknown_key().into());
    }
    Ok(Json(Identified { user: user.name.to_string(), user_id: user.id.to_string() }))
}

fn proof(key: &str, certificate: Option<CertificateFacts>) -> Result<Proof, ApiError> {
    let certificate = certificate.map(|facts| Certificate {
        principals: facts.principals,
        key_id: facts.key_id,
        serial: facts.serial,
        ca: facts.ca,
    });
    Ok(Proof { key: convert::parse(key)?, certificate })
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
    let proof = proof(&body.public_key, body.certificate)?;
    let guest_user = body.guest_user.as_deref().map(convert::parse).transpose()?;
    let user = shared.manager.identify(&permit, &proof).await?;
    if !access::is_member(&shared.manager, &shared.peers, &user).await? {
        let denied = access::not_a_member(&user);
        let origin = Origin {
            via: Via::SshKey(sshkey::fingerprint(&proof.key)),
            address: address_of(&body.peer),
            request: caller.0.origin.request,
        };
        shared.manager.record_refusal(&Principal::of(user).from(origin), "vm.ssh", &body.vm, &denied).await;
        return Err(denied.into());
    }
    let needs_login_key = body.mode == GatewayMode::Terminate;
    let question = TargetQuestion { user, proof, vm: body.vm, guest_user, needs_login_key, peer: body.peer };
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

/// Access that ends, as it ends: who holds a connection open with it closes it. A listener is told of everything that
/// ends after the head of the answer, or that it missed some.
#[utoipa::path(get, path = "/v1/gateway/revocations",
    responses((status = 200, description = "server-sent events of RevocationView", content_type = "text/event-stream"), (status = 403, body = ErrorBody)))]
pub async fn revocations(State(shared): State<Shared>, caller: Caller) -> Result<Response, ApiError> {
    caller.permit(Action::GatewayAsk)?;
    let told = BroadcastStream::new(shared.manager.revocations().listen()).filter_map(async |item| match item {
        Ok(revoked) => revocation(&revoked).map(|view| {
            let data = serde_json::to_string(&view).unwrap_or_default();
            Event::default().event("revoked").data(data)
        }),
        Err(BroadcastStreamRecvError::Lagged(_)) => Some(Event::default().event("lagged").data("{}")),
    });
    let told = told.map(Ok::<_, Infallible>).take_until(shared.manager.stopping().clone().cancelled_owned());
    Ok(Sse::new(told).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

/// What the gateway has to know of it; a token opens no SSH connection, and a team none to another's machine.
fn revocation(revoked: &Revoked) -> Option<RevocationView> {
    match revoked {
        Revoked::User(user) => Some((user, EndedAccess::All, None)),
        Revoked::Rights(user) => Some((user, EndedAccess::Others, None)),
        Revoked::Key(user, key) => Some((user, EndedAccess::Key, Some(key.clone()))),
        Revoked::Token(_) | Revoked::Vm(_) => None,
    }
    .map(|(user, what, key)| RevocationView { user_id: user.to_string(), what, key })
}
