//! `/v1/tokens`.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::ApiError;
use super::{Body, Caller, Path, Query, Shared, audited, convert};
use crate::api::error::ErrorBody;
use crate::api::types::{CreateToken, CreatedToken, TokenList, TokenView};
use crate::manager::ManagerError;
use crate::manager::tokens::TokenRequest;
use crate::model::principal::{Scope, Scopes, UnknownWord};
use crate::model::token::{Token, check_name};
use crate::model::units::Seconds;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct TokensQuery {
    /// Whose; one's own where absent.
    user: Option<String>,
}

/// Tokens of the caller or, for administrators, of somebody else. Never the tokens themselves.
#[utoipa::path(get, path = "/v1/tokens", params(TokensQuery),
    responses((status = 200, body = TokenList), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn list(
    State(shared): State<Shared>,
    caller: Caller,
    Query(query): Query<TokensQuery>,
) -> Result<Json<TokenList>, ApiError> {
    let permit = shared.manager.permit_tokens(&caller.0, query.user.as_deref()).await?;
    let rows = shared.manager.tokens(&permit).await?;
    Ok(Json(TokenList { tokens: rows.iter().map(view).collect() }))
}

/// Makes a token. The answer is the only one that shows it.
#[utoipa::path(post, path = "/v1/tokens", request_body = CreateToken,
    responses((status = 200, body = CreatedToken), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn create(
    State(shared): State<Shared>,
    caller: Caller,
    Body(body): Body<CreateToken>,
) -> Result<Json<CreatedToken>, ApiError> {
    // What cannot be a name may be anything, even a token.
    let target = check_name(&body.name).map(|()| body.name.clone()).unwrap_or_default();
    let result = async {
        let permit = shared.manager.permit_tokens(&caller.0, body.user.as_deref()).await?;
        let request = TokenRequest {
            name: body.name,
            scopes: body.scopes.as_deref().map(scopes).transpose()?,
            ttl: body.ttl.as_deref().map(ttl).transpose()?.map(Seconds::duration),
        };
        shared.manager.create_token(&permit, request).await
    };
    let made = audited(&shared, &caller, "token.create", &target, result.await).await?;
    Ok(Json(CreatedToken { token: made.text.secret().expose().clone(), info: view(&made.token) }))
}

/// Revokes a token, by name or id. What was opened with it ends at once.
#[utoipa::path(delete, path = "/v1/tokens/{token}", params(("token" = String, Path), TokensQuery),
    responses((status = 200, body = TokenView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn revoke(
    State(shared): State<Shared>,
    caller: Caller,
    Path(token): Path<String>,
    Query(query): Query<TokensQuery>,
) -> Result<Json<TokenView>, ApiError> {
    let result = async {
        let permit = shared.manager.permit_revoking(&caller.0, query.user.as_deref(), &token).await?;
        shared.manager.revoke_token(&permit, &token).await
    };
    let revoked = audited(&shared, &caller, "token.revoke", &token, result.await).await?;
    Ok(Json(view(&revoked)))
}

fn scopes(words: &[String]) -> Result<Scopes, ManagerError> {
    let parse = |word: &String| word.parse::<Scope>();
    words.iter().map(parse).collect::<Result<_, UnknownWord>>().map_err(|e| ManagerError::invalid(e.to_string()))
}

fn ttl(text: &str) -> Result<Seconds, ManagerError> {
    text.parse().map_err(|e: crate::model::units::UnitError| ManagerError::invalid(e.to_string()))
}

fn view(token: &Token) -> TokenView {
    TokenView {
        id: token.id.to_string(),
        name: token.name.clone(),
        kind: token.kind.to_string(),
        scopes: token.scopes.iter().map(|scope| scope.to_string()).collect(),
        created_at: convert::time(token.created_at),
        expires_at: convert::time(token.expires_at),
        last_used_at: token.last_used_at.map(convert::time),
        last_used_from: token.last_used_from.clone(),
    }
}
