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
    let permit = caller.permit_widest(Action::OperationSeeAll, Action::OperationSee)?;
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
    let permit = caller.permit_widest(Action::OperationSeeAll, Action::OperationSee)?;
    Ok(Json(convert::operation(shared.manager.operation(&permit, convert::parse(&id)?).await?)))
}

/// What is well and what is not with this host.
#[utoipa::path(get, path = "/v1/doctor", responses((status = 200, body = DoctorReport), (status = 403, body = ErrorBody)))]
pub async fn doctor(State(shared): State<Shared>, caller: Caller) -> Result<Json<DoctorReport>, ApiError> {
    let permit = caller.permit(Action::Doctor)?;
    let findings = shared.manager.doctor(&permit).await;
    Ok(Json(DoctorReport { findings: findings.into_iter().map(convert::finding).collect() }))
}

/// What answers.
#[utoipa::path(get, path = "/v1/version", responses((status = 200, body = VersionView), (status = 403, body = ErrorBody)))]
pub async fn version(State(shared): State<Shared>, _caller: Caller) -> Json<VersionView> {
    Json(VersionView { version: env!("CARGO_PKG_VERSION").to_owned(), parts: shared.manager.parts().await })
}
