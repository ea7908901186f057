//! The doctor, versions.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::ApiError;
use super::{Caller, Query, Shared, convert};
use crate::api::error::ErrorBody;
use crate::api::types::{DoctorReport, VersionView};
use crate::auth::policy::Action;
use crate::model::name::ProfileName;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct DoctorQuery {
    /// Only what this profile needs, judged for it.
    profile: Option<String>,
}

/// What is well and what is not with this host, or with what one profile needs of it.
#[utoipa::path(get, path = "/v1/doctor", params(DoctorQuery),
    responses((status = 200, body = DoctorReport), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn doctor(
    State(shared): State<Shared>,
    caller: Caller,
    Query(query): Query<DoctorQuery>,
) -> Result<Json<DoctorReport>, ApiError> {
    let permit = caller.permit(Action::Doctor)?;
    let profile: Option<ProfileName> = convert::parse_opt(query.profile.as_ref())?;
    let findings = shared.manager.doctor(&permit, profile.as_ref()).await?;
    Ok(Json(DoctorReport { findings: findings.into_iter().map(convert::finding).collect() }))
}

/// What answers.
#[utoipa::path(get, path = "/v1/version", responses((status = 200, body = VersionView), (status = 403, body = ErrorBody)))]
pub async fn version(State(shared): State<Shared>, _caller: Caller) -> Json<VersionView> {
    Json(VersionView {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        parts: shared.manager.parts().await,
        https_fingerprint: shared.certificates.map(|certificates| certificates.fingerprint().to_string()),
    })
}
