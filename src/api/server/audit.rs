//! `/v1/audit`: the record.

use axum::Json;
use axum::body::Body as Streamed;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use futures_util::StreamExt as _;
use jiff::Timestamp;
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::ApiError;
use super::{Body, Caller, Path, Query, Shared, convert};
use crate::api::error::ErrorBody;
use crate::api::types::{EntryList, EntryView, HeadView, OperationList, OperationView, RecordVerdict, VerifyRecord};
use crate::auth::policy::Action;
use crate::manager::ManagerError;
use crate::manager::record::{Filter, Verified};
use crate::model::event::Outcome;
use crate::model::record::Entry;

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
pub struct EntryQuery {
    /// Of this person.
    actor: Option<String>,
    /// Begins so, such as `vm.`.
    action: Option<String>,
    /// To this, to the letter.
    target: Option<String>,
    /// About this machine: `NAME`, `NAME.OWNER` or an id, which finds machines that are gone as well.
    vm: Option<String>,
    /// pending, success, denied or failure.
    outcome: Option<String>,
    /// Of this request, by the id that an error's answer carries, or of this operation.
    request: Option<String>,
    /// At this time or later, RFC 3339.
    since: Option<String>,
    /// Before this time, RFC 3339.
    until: Option<String>,
    /// With a lower number: `next` of the page before.
    before: Option<u64>,
    /// At most so many.
    limit: Option<u32>,
}

/// The newest entries of the record: the caller's own, everybody's for operators.
#[utoipa::path(get, path = "/v1/audit", params(EntryQuery),
    responses((status = 200, body = EntryList), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn list(
    State(shared): State<Shared>,
    caller: Caller,
    Query(query): Query<EntryQuery>,
) -> Result<Json<EntryList>, ApiError> {
    let permit = caller.permit_widest(Action::AuditSeeAll, Action::AuditSee)?;
    let vm = match query.vm.as_deref() {
        None => None,
        Some(shown) => match shown.parse() {
            Ok(id) => Some(id),
            Err(_) => shared.manager.permit_vm(&caller.0, Action::VmSee, shown, true).await?.vm(),
        },
    };
    let filter = Filter {
        actor_id: None,
        actor: query.actor,
        action: query.action,
        target: query.target,
        vm,
        outcome: convert::parse_opt::<Outcome>(query.outcome.as_ref())?.map(|outcome| outcome.as_str().to_owned()),
        request: convert::parse_opt(query.request.as_ref())?,
        since: convert::parse_opt(query.since.as_ref())?,
        until: convert::parse_opt(query.until.as_ref())?,
        before: query.before,
    };
    let (usual, most) = LIMIT;
    let limit = query.limit.unwrap_or(usual).clamp(1, most);
    let entries = shared.manager.entries(&permit, filter, limit).await?;
    let is_full = u32::try_from(entries.len()).is_ok_and(|count| count >= limit);
    let next = entries.last().filter(|_| is_full).map(|entry| entry.seq);
    Ok(Json(EntryList { entries: entries.into_iter().map(view).collect(), next }))
}

fn view(entry: Entry) -> EntryView {
    EntryView {
        seq: entry.seq,
        at: Timestamp::from_microsecond(entry.at).map(|at| at.to_string()).unwrap_or_default(),
        operation: entry.operation,
        half: entry.half,
        actor: entry.actor,
        actor_id: entry.actor_id,
        via: entry.via,
        address: entry.address,
        request_id: entry.request_id,
        action: entry.action,
        target: entry.target,
        vm_id: entry.vm_id,
        outcome: entry.outcome,
        detail: entry.detail,
        hash: entry.hash,
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct ExportQuery {
    /// From the first entry of this time or later, RFC 3339.
    since: Option<String>,
}

/// The record with its hashes and signed heads, a line of JSON each, in order; `gvm audit verify --file` verifies it
/// anywhere. An answer whose last line is not `{"end":...}` was cut off.
#[utoipa::path(get, path = "/v1/audit/export", params(ExportQuery),
    responses((status = 200, description = "lines of JSON", content_type = "application/x-ndjson"), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody)))]
pub async fn export(
    State(shared): State<Shared>,
    caller: Caller,
    Query(query): Query<ExportQuery>,
) -> Result<Response, ApiError> {
    let permit = caller.permit(Action::AuditSeeAll)?;
    let since = convert::parse_opt(query.since.as_ref())?;
    let pages = shared.manager.export(&permit, since).await?;
    let stop = shared.manager.stopping().clone();
    let body = Streamed::from_stream(pages.take_until(stop.cancelled_owned()));
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

/// The newest signed head of the record, to keep elsewhere.
#[utoipa::path(get, path = "/v1/audit/head", responses((status = 200, body = HeadView), (status = 403, body = ErrorBody)))]
pub async fn head(State(shared): State<Shared>, caller: Caller) -> Result<Json<HeadView>, ApiError> {
    let facts = shared.manager.head(&caller.permit(Action::AuditVerify)?).await?;
    let head = facts.newest.map(|head| head.to_string());
    Ok(Json(HeadView { head, key: facts.key.to_string(), last: facts.last }))
}

/// Holds the whole record against its hashes, its signed heads, and what was kept elsewhere.
#[utoipa::path(post, path = "/v1/audit/verify", request_body = VerifyRecord,
    responses((status = 200, body = RecordVerdict), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn verify(
    State(shared): State<Shared>,
    caller: Caller,
    Body(body): Body<VerifyRecord>,
) -> Result<Json<RecordVerdict>, ApiError> {
    let permit = caller.permit(Action::AuditVerify)?;
    let kept = body.heads.iter().map(|head| convert::parse(head)).collect::<Result<Vec<_>, ManagerError>>()?;
    let key = convert::parse_opt(body.key.as_ref())?;
    Ok(Json(verdict(shared.manager.verify_record(&permit, kept, key).await?)))
}

fn verdict(verified: Verified) -> RecordVerdict {
    let heads = u64::try_from(verified.heads).unwrap_or(u64::MAX);
    match verified.found {
        Ok(last) => RecordVerdict {
            ok: true,
            last: last.seq,
            heads,
            first_bad: None,
            wrong: None,
            message: format!("the record is what was written, up to entry {}", last.seq),
        },
        Err(fault) => RecordVerdict {
            ok: false,
            last: 0,
            heads,
            first_bad: Some(fault.seq),
            wrong: Some(fault.wrong.word().to_owned()),
            message: fault.to_string(),
        },
    }
}
