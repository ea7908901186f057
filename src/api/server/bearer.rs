//! Bearer tokens: where they belong, and where they have no place.

use axum::extract::Request;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use jiff::Timestamp;

use super::error::ApiError;
use super::{Shared, access};
use crate::manager::ManagerError;
use crate::model::principal::{Origin, Principal};
use crate::model::token::TokenText;

/// The token of a request, where it has one.
///
/// # Errors
/// Where it is told in a way that is not understood.
pub(super) fn token(headers: &HeaderMap) -> Result<Option<&str>, ManagerError> {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = given.next() else { return Ok(None) };
    let unknown = || {
        ManagerError::unauthenticated("the request does not say who asks in a way that gvm knows")
            .hint("send one header: authorization: Bearer TOKEN")
    };
    let (scheme, token) = value.to_str().ok().and_then(|text| text.split_once(' ')).ok_or_else(unknown)?;
    if !scheme.eq_ignore_ascii_case("bearer") || given.next().is_some() {
        return Err(unknown());
    }
    Ok(Some(token.trim()))
}

/// Who comes with this token. Whoever has an account on the host has to be a member by the host's word as well.
///
/// # Errors
/// The same for every token that is not good.
pub(super) async fn principal(shared: &Shared, token: &str, origin: Origin) -> Result<Principal, ApiError> {
    let login = shared.manager.principal_of_token(token, Timestamp::now(), origin).await?;
    if let Some(user) = login.principal.user().filter(|_| login.has_account) {
        let answer = shared.peers.is_member_lately(&user.name).await;
        if !answer.map_err(|e| ManagerError::unavailable(e.to_string()).because(e))? {
            return Err(access::not_a_member(user).into());
        }
    }
    Ok(login.principal)
}

/// Refuses a token in a URL, where proxies, histories and logs keep it. Nothing is looked up, done or logged.
pub(super) async fn keep_out_of_urls(request: Request, next: Next) -> Response {
    let found = request.uri().path_and_query().and_then(|text| TokenText::find(text.as_str()));
    let Some(token) = found else { return next.run(request).await };
    let error =
        ManagerError::invalid("a token has no place in a URL: it may be in a history or a log by now, so revoke it");
    let hint = format!("gvm token revoke {}; send a new one in the header: authorization: Bearer TOKEN", token.id());
    ApiError::from(error.hint(hint)).into_response()
}
