//! Operations, the doctor, versions.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::ApiError;
use super::{Caller, Path, Query, Shared, convert};
use crate::api::error::ErrorBody;
use crate::api::types::{DoctorReport, OperationList, OperationView, VersionView};
use crate::auth::policy::Action;
use crate::model::name::ProfileName;

/// Rows where none are asked for, and at most.
const LIMIT: (u32, u32) = (50, 1000);

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct OperationQuery {
    /// At most so many.
    limit: Option<u32>,
}

/// The newest operations: the caller's own, everybody's for operators.
#[utoipa::path(get, path = "/v1/operations", params(OperationQuery), responses((status = 200, body = OperationList), (status = 403, body = ErrorBody)))]
pub async fn operations(
    State(shared): State<Shared>,
    caller: Caller,
    Query(query): Query<OperationQuery>,
) -> Result<Json<OperationList>, ApiError> {
    let permit = caller.permit_widest(Action::AuditSeeAll, Action::AuditSee)?;
    let (usual, most) = LIMIT;
    let rows = shared.manager.operations(&permit, query.limit.unwrap_or(usual).min(most)).await?;
    Ok(Json(OperationList { operations: rows.into_iter().map(convert::operation).collect() }))
}

/// One operation.
#[utoipa::path(get, path = "/v1/operations/{id}", params(("id" = String, Path)),
    responses((status = 200, body = OperationView), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn operation(
    State(shared): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<OperationView>, ApiError> {
    let permit = caller.permit_widest(Action::AuditSeeAll, Action::AuditSee)?;
    Ok(Json(convert::operation(shared.manager.operation(&permit, convert::parse(&id)?).await?)))
}

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
