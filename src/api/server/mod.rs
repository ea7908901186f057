//! The API server: routes, callers, errors. It turns DTOs into requests of the manager and its answers into
//! DTOs, and decides nothing.

mod access;
mod admin;
mod audit;
mod bearer;
mod convert;
mod convert_gpu;
mod cookie;
mod document;
mod error;
mod gateway;
mod gpus;
pub mod https;
mod images;
mod login;
mod people;
mod profiles;
mod quota;
pub mod rates;
mod request;
mod stream;
mod system;
mod teams;
pub mod tls;
mod tokens;
mod users;
mod vms;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{ConnectInfo, DefaultBodyLimit, FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::serve::IncomingStream;
use serde::de::DeserializeOwned;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use self::access::ended as access_ended;
use self::error::ApiError;
use self::rates::{RateLimits, Rates};
use self::tls::Certificates;
use crate::auth::peercred::{PeerError, Peers};
use crate::auth::policy::{self, Action, Permit};
use crate::manager::{Manager, ManagerError};
use crate::model::principal::{Origin, Principal, Via};

/// Largest request body: a cloud-init document with room around it.
const MAX_BODY: usize = 256 * 1024;

/// How long a body may take to come; a slow one holds a connection and nothing else.
const BODY_DEADLINE: Duration = Duration::from_secs(30);

/// What every handler gets.
#[derive(Clone, Debug)]
pub struct Shared {
    manager: Arc<Manager>,
    peers: Peers,
    rates: Rates,
    /// Of the HTTPS listener, where there is one.
    certificates: Option<Arc<Certificates>>,
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub enum Peer {
    /// Of the unix socket: the kernel's word on its uid.
    Unix(Option<u32>),
    /// Of a connection over a network: only its address is known.
    Network(SocketAddr),
}

impl Peer {
    /// The peer with that uid, for tests that are several people at once.
    pub const fn of_uid(uid: u32) -> Self {
        Self::Unix(Some(uid))
    }

    /// The client's address, where it came over a network.
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Unix(_) => None,
            Self::Network(address) => Some(address.ip()),
        }
    }
}

impl axum::extract::connect_info::Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        Self::Unix(stream.io().peer_cred().ok().map(|cred| cred.uid()))
    }
}

/// The caller of a request.
#[derive(Debug)]
struct Caller(Principal);

impl Caller {
    fn permit(&self, action: Action) -> Result<Permit, ApiError> {
        Ok(policy::allow(&self.0, action).map_err(ManagerError::from)?)
    }

    /// The wider permit where the caller has it, else the narrower.
    fn permit_widest(&self, wide: Action, narrow: Action) -> Result<Permit, ApiError> {
        policy::allow(&self.0, wide)
            .or_else(|_| policy::allow(&self.0, narrow))
            .map_err(|e| ManagerError::from(e).into())
    }
}

impl FromRequestParts<Shared> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &Shared) -> Result<Self, ApiError> {
        let peer = parts.extensions.get::<ConnectInfo<Peer>>().map_or(Peer::Unix(None), |info| info.0);
        let origin = Origin { via: Via::Socket, address: peer.address(), request: request::id() };
        // Over the network nothing else says who asks; on the socket it wins over the kernel's word.
        let principal = match (bearer::token(&parts.headers)?, peer) {
            (Some(token), _) => bearer::principal(state, token, origin).await?,
            (None, Peer::Unix(Some(uid))) => Self::of_uid(state, uid).await?.from(origin),
            (None, Peer::Unix(None)) => return Err(ManagerError::denied("the kernel does not say who you are").into()),
            (None, Peer::Network(_)) if let Some(token) = cookie::session(parts)? => {
                bearer::principal(state, token, origin).await?
            }
            (None, Peer::Network(_)) => {
                let error =
                    ManagerError::unauthenticated("there is no token with the request, so gvm cannot tell who asks");
                return Err(error.hint("log in with `gvm login`, or send: authorization: Bearer TOKEN").into());
            }
        };
        state.rates.person(&principal, peer)?;
        Ok(Self(principal))
    }
}

impl Caller {
    /// The person behind a uid of the host.
    async fn of_uid(state: &Shared, uid: u32) -> Result<Principal, ApiError> {
        let account = state.peers.account(uid).await.map_err(|e| match e {
            PeerError::Nameless(_) | PeerError::Name(_) => ManagerError::denied(e.to_string()).because(e),
            PeerError::Passwd(_) => ManagerError::unavailable(e.to_string()).because(e),
        })?;
        Ok(state.manager.recognise(account).await?)
    }
}

/// A JSON body whose faults are told like every other error.
struct Body<T>(T);

impl<T: DeserializeOwned> FromRequest<Shared> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &Shared) -> Result<Self, ApiError> {
        let read = tokio::time::timeout(BODY_DEADLINE, axum::body::Bytes::from_request(request, state)).await;
        let bytes = read
            .map_err(|_| ManagerError::invalid("the request's body did not come in time"))?
            .map_err(|e| ManagerError::invalid(format!("the request cannot be read: {}", e.body_text())))?;
        let bytes: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        // Serde would take an array for an object without its names.
        if bytes.trim_ascii_start().first() != Some(&b'{') {
            return Err(ManagerError::invalid("the request is not understood: it is no JSON object").into());
        }
        let parsed = serde_json::from_slice(bytes);
        parsed.map(Self).map_err(|e| ManagerError::invalid(format!("the request is not understood: {e}")).into())
    }
}

/// A query whose faults are told like every other error.
struct Query<T>(T);

impl<T: DeserializeOwned> FromRequestParts<Shared> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &Shared) -> Result<Self, ApiError> {
        let query = axum::extract::Query::from_request_parts(parts, state).await;
        let wrong = |e: axum::extract::rejection::QueryRejection| {
            ManagerError::invalid(format!("the query is not understood: {}", e.body_text()))
        };
        Ok(Self(query.map_err(wrong)?.0))
    }
}

/// A part of the path whose faults are told like every other error.
struct Path<T>(T);

impl<T: DeserializeOwned + Send> FromRequestParts<Shared> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &Shared) -> Result<Self, ApiError> {
        let path = axum::extract::Path::from_request_parts(parts, state).await;
        let wrong = |e: axum::extract::rejection::PathRejection| {
            ManagerError::invalid(format!("the path is not understood: {}", e.body_text()))
        };
        Ok(Self(path.map_err(wrong)?.0))
    }
}

/// A WebSocket to be; the lack of one is told like every other error.
struct Upgrade(WebSocketUpgrade);

impl FromRequestParts<Shared> for Upgrade {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &Shared) -> Result<Self, ApiError> {
        let upgrade = WebSocketUpgrade::from_request_parts(parts, state).await;
        let wrong = |e: axum::extract::ws::rejection::WebSocketUpgradeRejection| {
            ManagerError::invalid(format!("this is a WebSocket: {}", e.body_text()))
        };
        Ok(Self(upgrade.map_err(wrong)?))
    }
}

/// Puts a refused change on the record on its way out.
async fn audited<T>(
    shared: &Shared,
    caller: &Caller,
    action: &str,
    target: &str,
    result: Result<T, ManagerError>,
) -> Result<T, ApiError> {
    if let Err(error) = &result {
        shared.manager.record_refusal(&caller.0, action, target, error).await;
    }
    Ok(result?)
}

#[derive(OpenApi)]
#[openapi(info(
    title = "gvm",
    description = "Personal GPU computers from a shared server. Spoken over the manager's unix socket; the caller is \
                   known by the socket's peer credentials."
))]
struct Document;

fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(vms::list, vms::create))
        .routes(routes!(vms::show, vms::change, vms::delete))
        .routes(routes!(vms::start))
        .routes(routes!(vms::stop))
        .routes(routes!(vms::restart))
        .routes(routes!(vms::pause))
        .routes(routes!(vms::resume))
        .routes(routes!(vms::undelete))
        .routes(routes!(vms::clone))
        .routes(routes!(vms::ssh))
        .routes(routes!(stream::vm_events))
        .routes(routes!(stream::all_events))
        .routes(routes!(stream::logs))
        .routes(routes!(stream::console))
        .routes(routes!(profiles::list))
        .routes(routes!(profiles::show))
        .routes(routes!(profiles::check))
        .routes(routes!(images::list, images::import))
        .routes(routes!(images::remove))
        .routes(routes!(gpus::list))
        .routes(routes!(gpus::show))
        .routes(routes!(gpus::mode))
        .routes(routes!(gpus::withhold))
        .routes(routes!(gpus::readmit))
        .routes(routes!(gpus::offers))
        .routes(routes!(gpus::plan))
        .routes(routes!(gpus::import_layout, gpus::export_layout))
        .routes(routes!(gpus::dry_run))
        .routes(routes!(login::ways))
        .routes(routes!(login::password))
        .routes(routes!(login::device))
        .routes(routes!(login::poll))
        .routes(routes!(login::start))
        .routes(routes!(login::callback))
        .routes(routes!(login::link))
        .routes(routes!(people::me))
        .routes(routes!(people::keys, people::add_key))
        .routes(routes!(people::remove_key))
        .routes(routes!(quota::own))
        .routes(routes!(quota::user, quota::set_user))
        .routes(routes!(quota::team, quota::set_team))
        .routes(routes!(users::list, users::add))
        .routes(routes!(users::show, users::change, users::remove))
        .routes(routes!(users::suspend))
        .routes(routes!(users::resume))
        .routes(routes!(users::keys, users::add_key))
        .routes(routes!(users::remove_key))
        .merge(OpenApiRouter::new().routes(routes!(users::import)).layer(DefaultBodyLimit::max(users::MAX_IMPORT_BODY)))
        .routes(routes!(teams::list, teams::add))
        .routes(routes!(teams::show, teams::change, teams::remove))
        .routes(routes!(teams::members))
        .routes(routes!(teams::add_member, teams::remove_member))
        .routes(routes!(tokens::list, tokens::create))
        .routes(routes!(tokens::revoke))
        .routes(routes!(gateway::view))
        .routes(routes!(gateway::identify))
        .routes(routes!(gateway::target))
        .routes(routes!(gateway::announce))
        .routes(routes!(audit::operations))
        .routes(routes!(audit::operation))
        .routes(routes!(audit::list))
        .routes(routes!(audit::export))
        .routes(routes!(audit::head))
        .routes(routes!(audit::verify))
        .routes(routes!(gateway::revocations))
        .routes(routes!(system::doctor))
        .routes(routes!(system::version))
        .routes(routes!(admin::backup))
}

/// The OpenAPI 3.1 document as JSON.
pub fn openapi() -> String {
    let mut document = routes().into_openapi();
    document::complete(&mut document);
    document.to_pretty_json().unwrap_or_default()
}

/// The whole API, where there is no HTTPS.
pub fn router(manager: Arc<Manager>, peers: Peers) -> Router {
    router_with(manager, peers, None)
}

/// The whole API; `certificates` are those of the HTTPS listener.
pub fn router_with(manager: Arc<Manager>, peers: Peers, certificates: Option<Arc<Certificates>>) -> Router {
    let limits = manager.config();
    let (https, socket) = (&limits.https, limits.manager.requests_per_second);
    let rates = RateLimits { address: https.requests_per_second, person: https.person_requests_per_second, socket };
    let shared = Shared { rates: Rates::new(rates), manager, peers, certificates };
    let (router, mut document) = routes().split_for_parts();
    document::complete(&mut document);
    let document = Arc::new(document);
    let spec = move || async move { axum::Json((*document).clone()) };
    router
        .route("/v1/openapi.json", axum::routing::get(spec))
        .fallback(|| async {
            ApiError::from(ManagerError::not_found("there is no such path in the API").hint("see /v1/openapi.json"))
        })
        .method_not_allowed_fallback(|| async {
            let error = ManagerError::invalid("this path knows no such method").hint("see /v1/openapi.json");
            (StatusCode::METHOD_NOT_ALLOWED, ApiError::from(error))
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(axum::middleware::from_fn(bearer::keep_out_of_urls))
        .layer(axum::middleware::from_fn_with_state(shared.clone(), rates::by_address))
        .layer(axum::middleware::from_fn(request::attend))
        .with_state(shared)
}

/// Serves the API until the token is cancelled; requests under way come to their end.
///
/// # Errors
/// Where the listener fails.
pub async fn serve(listener: UnixListener, router: Router, stop: CancellationToken) -> std::io::Result<()> {
    let service = router.into_make_service_with_connect_info::<Peer>();
    axum::serve(listener, service).with_graceful_shutdown(stop.cancelled_owned()).await
}
