//! `/v1/login`: for who is not known yet. No answer of these is kept by anybody on the way.

use axum::Json;
use axum::extract::{ConnectInfo, FromRequest, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

use super::error::ApiError;
use super::{Body, Caller, Path, Peer, Query, Shared, audited, cookie, request};
use crate::api::error::ErrorBody;
use crate::api::types::{
    DeviceAnswer, DeviceLoginView, DeviceWord, LinkLogin, LoginWaysView, PasswordLogin, PollDevice, SessionView,
};
use crate::auth::policy::Action;
use crate::manager::ManagerError;
use crate::manager::login::{DeviceState, LoggedIn, PasswordTry};
use crate::model::principal::{Origin, UnknownWord, Via};

/// Seconds that a browser has to come back.
const LOGIN_COOKIE_SECONDS: u64 = 600;
/// All that the page may load: nothing.
const POLICY: HeaderValue = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'; base-uri 'none'");
const PAGE: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>gvm</title>\
                    <p>You are logged in. You may close this page.</p></html>";
const NO_STORE: (HeaderName, HeaderValue) = (header::CACHE_CONTROL, HeaderValue::from_static("no-store"));

/// Somebody who is not known yet: only from where they come.
pub struct Visitor(Origin);

impl FromRequestParts<Shared> for Visitor {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<Self, ApiError> {
        let peer = parts.extensions.get::<ConnectInfo<Peer>>().map_or(Peer::Unix(None), |info| info.0);
        Ok(Self(Origin { via: Via::Internal, address: peer.address(), request: request::id() }))
    }
}

/// A body with a secret in it: what is wrong with it is told without a word of it.
pub struct SecretBody<T>(T);

impl<T: DeserializeOwned> FromRequest<Shared> for SecretBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &Shared) -> Result<Self, ApiError> {
        let super::Body(value) =
            super::Body::<serde_json::Map<String, serde_json::Value>>::from_request(request, state)
                .await
                .map_err(|_| not_understood())?;
        serde_json::from_value(value.into()).map(Self).map_err(|_| not_understood().into())
    }
}

fn not_understood() -> ManagerError {
    ManagerError::invalid("the request is not understood: it has not the fields that are wanted")
        .hint("see /v1/openapi.json")
}

fn session(logged_in: &LoggedIn) -> SessionView {
    SessionView {
        user: logged_in.user.name.to_string(),
        role: logged_in.user.role.to_string(),
        token: logged_in.session.text.secret().expose().clone(),
        expires_at: logged_in.session.token.expires_at.to_string(),
    }
}

/// Which ways to log in there are.
#[utoipa::path(get, path = "/v1/login", responses((status = 200, body = LoginWaysView)))]
pub async fn ways(State(shared): State<Shared>) -> Json<LoginWaysView> {
    let ways = shared.manager.login_ways();
    Json(LoginWaysView {
        passwords: ways.passwords.iter().map(ToString::to_string).collect(),
        device: ways.is_device,
        page: ways.is_page,
    })
}

/// Logs in with a password, which a directory or the host judges.
#[utoipa::path(post, path = "/v1/login/password", request_body = PasswordLogin,
    responses((status = 200, body = SessionView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 429, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn password(
    State(shared): State<Shared>,
    Visitor(origin): Visitor,
    SecretBody(body): SecretBody<PasswordLogin>,
) -> Result<impl IntoResponse, ApiError> {
    let provider = body.method.as_deref().map(str::parse).transpose();
    let provider = provider.map_err(|e: UnknownWord| ManagerError::invalid(e.to_string()))?;
    let wish = PasswordTry { user: body.user, password: body.password.into(), provider };
    let logged_in = shared.manager.login_with_password(wish, origin).await?;
    Ok(([NO_STORE], Json(session(&logged_in))))
}

/// Begins a login with a code that is typed in a browser elsewhere.
#[utoipa::path(post, path = "/v1/login/device",
    responses((status = 200, body = DeviceLoginView), (status = 404, body = ErrorBody), (status = 429, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn device(State(shared): State<Shared>, Visitor(origin): Visitor) -> Result<impl IntoResponse, ApiError> {
    let begun = shared.manager.begin_device(&origin).await?;
    let view = DeviceLoginView {
        handle: begun.handle.expose().clone(),
        user_code: begun.login.user_code,
        verification_uri: begun.login.verification_uri,
        verification_uri_complete: begun.login.verification_uri_complete,
        interval: begun.login.interval.as_secs(),
        expires_in: begun.login.expires_in.as_secs(),
    };
    Ok(([NO_STORE], Json(view)))
}

/// Asks how far it is. A handle is good for one login.
#[utoipa::path(post, path = "/v1/login/device/poll", request_body = PollDevice,
    responses((status = 200, body = DeviceAnswer), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 429, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn poll(
    State(shared): State<Shared>,
    Visitor(origin): Visitor,
    SecretBody(body): SecretBody<PollDevice>,
) -> Result<impl IntoResponse, ApiError> {
    let answer = match shared.manager.poll_device(&body.handle, &origin).await? {
        DeviceState::Pending(interval) => {
            DeviceAnswer { state: DeviceWord::Pending, interval: interval.as_secs(), session: None }
        }
        DeviceState::SlowDown(interval) => {
            DeviceAnswer { state: DeviceWord::SlowDown, interval: interval.as_secs(), session: None }
        }
        DeviceState::Done(logged_in) => {
            DeviceAnswer { state: DeviceWord::Done, interval: 0, session: Some(session(&logged_in)) }
        }
    };
    Ok(([NO_STORE], Json(answer)))
}

/// Links a login of a provider to a user, who logs in with it from now on.
#[utoipa::path(post, path = "/v1/users/{user}/logins", params(("user" = String, Path)), request_body = LinkLogin,
    responses((status = 200, body = LinkLogin), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn link(
    State(shared): State<Shared>,
    caller: Caller,
    Path(user): Path<String>,
    Body(body): Body<LinkLogin>,
) -> Result<Json<LinkLogin>, ApiError> {
    let result = async {
        let permit = shared.manager.permit_user(&caller.0, Action::UserChange, &user).await?;
        let provider = body.provider.parse().map_err(|e: UnknownWord| ManagerError::invalid(e.to_string()))?;
        shared.manager.link_login(&permit, provider, &body.subject).await
    };
    audited(&shared, &caller, "user.link", &user, result.await).await?;
    Ok(Json(body))
}

/// Sends a browser to the login provider.
#[utoipa::path(get, path = "/v1/login/oidc/start",
    responses((status = 302), (status = 404, body = ErrorBody), (status = 429, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn start(State(shared): State<Shared>, Visitor(origin): Visitor) -> Result<Response, ApiError> {
    let begun = shared.manager.begin_page(&origin).await?;
    let location = HeaderValue::from_str(&begun.location)
        .map_err(|e| ManagerError::unavailable("the login provider names an address that is none").because(e))?;
    let mut answer = (StatusCode::FOUND, [NO_STORE, (header::LOCATION, location)]).into_response();
    add(&mut answer, cookie::set(cookie::LOGIN, begun.browser.expose(), LOGIN_COOKIE_SECONDS));
    Ok(answer)
}

#[derive(Deserialize, IntoParams)]
pub struct CallbackQuery {
    /// The provider's code.
    code: Option<String>,
    /// What was sent along.
    state: Option<String>,
}

/// Where the login provider sends a browser back to. Sets the session's cookie.
#[utoipa::path(get, path = "/v1/login/oidc/callback", params(CallbackQuery),
    responses((status = 200, body = String, content_type = "text/html"), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 429, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn callback(
    State(shared): State<Shared>,
    Visitor(origin): Visitor,
    headers: HeaderMap,
    Query(query): Query<CallbackQuery>,
) -> Result<Response, ApiError> {
    let browser = cookie::value(&headers, cookie::LOGIN);
    let state = query.state.unwrap_or_default();
    let logged_in = shared.manager.finish_page(&state, query.code.as_deref(), browser, &origin).await?;
    let lives = Timestamp::now().duration_until(logged_in.session.token.expires_at);
    let seconds = u64::try_from(lives.as_secs()).unwrap_or_default();
    let mut answer = ([NO_STORE, (header::CONTENT_SECURITY_POLICY, POLICY)], Html(PAGE)).into_response();
    add(&mut answer, cookie::set(cookie::SESSION, logged_in.session.text.secret().expose(), seconds));
    add(&mut answer, cookie::set(cookie::LOGIN, "", 0));
    Ok(answer)
}

fn add(answer: &mut Response, cookie: Option<HeaderValue>) {
    if let Some(cookie) = cookie {
        answer.headers_mut().append(header::SET_COOKIE, cookie);
    }
}
