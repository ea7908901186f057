//! `/v1/profiles`.

use axum::Json;
use axum::extract::State;

use super::error::ApiError;
use super::{Body, Caller, Path, Shared, convert};
use crate::api::error::ErrorBody;
use crate::api::types::{CheckProfile, ProfileCheck, ProfileList, ProfileView};
use crate::auth::policy::Action;
use crate::manager::ManagerError;

/// Profiles that the caller may use.
#[utoipa::path(get, path = "/v1/profiles", responses((status = 200, body = ProfileList), (status = 403, body = ErrorBody)))]
pub async fn list(State(shared): State<Shared>, caller: Caller) -> Result<Json<ProfileList>, ApiError> {
    let permit = caller.permit(Action::ProfileSee)?;
    let found = shared.manager.profiles(&permit).await?;
    let profiles = found.profiles.iter().map(|(profile, present)| convert::profile(profile, *present)).collect();
    Ok(Json(ProfileList { profiles, faults: found.faults }))
}

/// One profile.
#[utoipa::path(get, path = "/v1/profiles/{profile}", params(("profile" = String, Path)),
    responses((status = 200, body = ProfileView), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn show(
    State(shared): State<Shared>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<ProfileView>, ApiError> {
    let permit = caller.permit(Action::ProfileSee)?;
    let found = shared.manager.profiles(&permit).await?;
    let profile = found.profiles.iter().find(|(profile, _)| profile.name.as_str() == name);
    let not_there = || ManagerError::not_found(format!("there is no profile {name:?}")).hint("see `gvm profile list`");
    let (profile, present) = profile.ok_or_else(not_there)?;
    Ok(Json(convert::profile(profile, *present)))
}

/// Plans, renders and validates a profile without making anything.
#[utoipa::path(post, path = "/v1/profiles/{profile}/check", params(("profile" = String, Path)), request_body = CheckProfile,
    responses((status = 200, body = ProfileCheck), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn check(
    State(shared): State<Shared>,
    caller: Caller,
    Path(name): Path<String>,
    Body(body): Body<CheckProfile>,
) -> Result<Json<ProfileCheck>, ApiError> {
    let permit = caller.permit(Action::ProfileCheck)?;
    let verdict = shared.manager.check_profile(&permit, convert::parse(&name)?, body.gpu_fixture).await?;
    Ok(Json(ProfileCheck {
        ok: verdict.is_ok(),
        findings: verdict.findings,
        template_diff: verdict.template_diff,
        xml: verdict.xml,
        native: verdict.native,
        gpus: verdict.gpus,
    }))
}
