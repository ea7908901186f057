//! `/v1/me` and `/v1/keys`.

use axum::Json;
use axum::extract::State;

use super::error::ApiError;
use super::{Body, Caller, Path, Shared, audited, convert};
use crate::api::error::ErrorBody;
use crate::api::types::{AddKey, KeyList, KeyView, Me};
use crate::auth::policy::{self, Action};
use crate::manager::ManagerError;

/// Who the manager takes the caller for.
#[utoipa::path(get, path = "/v1/me", responses((status = 200, body = Me), (status = 403, body = ErrorBody)))]
pub async fn me(State(shared): State<Shared>, caller: Caller) -> Result<Json<Me>, ApiError> {
    let scopes = caller.0.scopes.iter().map(|scope| scope.to_string()).collect();
    let via = caller.0.origin.via.to_string();
    if caller.0.user().is_none() {
        return Ok(Json(Me { name: "gateway".to_owned(), role: "gateway".to_owned(), scopes, via, ..Me::default() }));
    }
    let (myself, keys) = shared.manager.myself(&caller.0).await?;
    Ok(Json(Me {
        name: myself.row.user.name.to_string(),
        role: myself.role.to_string(),
        keys: u64::try_from(keys).unwrap_or(u64::MAX),
        default_team: myself.default_team().map(ToString::to_string),
        teams: myself.teams.iter().map(|(_, name)| name.to_string()).collect(),
        full_name: myself.row.full_name,
        scopes,
        via,
    }))
}

/// The caller's keys.
#[utoipa::path(get, path = "/v1/keys", responses((status = 200, body = KeyList), (status = 403, body = ErrorBody)))]
pub async fn keys(State(shared): State<Shared>, caller: Caller) -> Result<Json<KeyList>, ApiError> {
    let rows = shared.manager.keys(&caller.permit(Action::KeyOwn)?).await?;
    Ok(Json(KeyList { keys: rows.iter().map(convert::key).collect() }))
}

/// Registers a key.
#[utoipa::path(post, path = "/v1/keys", request_body = AddKey,
    responses((status = 200, body = KeyView), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn add_key(
    State(shared): State<Shared>,
    caller: Caller,
    Body(body): Body<AddKey>,
) -> Result<Json<KeyView>, ApiError> {
    let result = async {
        let permit = policy::allow(&caller.0, Action::KeyOwn)?;
        let key = body
            .public_key
            .parse()
            .map_err(|e: crate::model::access::KeyError| ManagerError::invalid(e.to_string()))?;
        shared.manager.add_key(&permit, key).await
    };
    let row = audited(&shared, &caller, "key.add", "", result.await).await?;
    Ok(Json(convert::key(&row)))
}

/// Forgets a key, by id or fingerprint.
#[utoipa::path(delete, path = "/v1/keys/{key}", params(("key" = String, Path)),
    responses((status = 200, body = KeyList), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn remove_key(
    State(shared): State<Shared>,
    caller: Caller,
    Path(key): Path<String>,
) -> Result<Json<KeyList>, ApiError> {
    let result = async {
        let permit = policy::allow(&caller.0, Action::KeyOwn)?;
        shared.manager.remove_key(&permit, &key).await
    };
    audited(&shared, &caller, "key.remove", &key, result.await).await?;
    keys(State(shared), caller).await
}
