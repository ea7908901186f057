//! `/v1/quota`, and the quotas of users and teams.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::ApiError;
use super::{Body, Caller, Path, Query, Shared, audited, convert};
use crate::api::error::ErrorBody;
use crate::api::types::{QuotaLineView, QuotaView, SetQuota};
use crate::auth::policy::Action;
use crate::manager::ManagerError;
use crate::manager::quota::{LimitChanges, QuotaLine, QuotaSheet};
use crate::model::name::ProfileName;
use crate::model::quota::{Limit, QuotaKind, Unit};

type Done = Result<Json<QuotaView>, ApiError>;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct QuotaQuery {
    /// Profile of the next machine.
    profile: Option<String>,
}

impl QuotaQuery {
    fn profile(&self) -> Result<Option<ProfileName>, ManagerError> {
        convert::parse_opt(self.profile.as_ref())
    }
}

/// What the caller holds and may hold.
#[utoipa::path(get, path = "/v1/quota", params(QuotaQuery),
    responses((status = 200, body = QuotaView), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn own(State(shared): State<Shared>, caller: Caller, Query(query): Query<QuotaQuery>) -> Done {
    let permit = caller.permit(Action::QuotaSee)?;
    Ok(Json(view(shared.manager.quota_of_user(&permit, query.profile()?.as_ref()).await?)))
}

/// What a person holds and may hold.
#[utoipa::path(get, path = "/v1/users/{user}/quota", params(("user" = String, Path), QuotaQuery),
    responses((status = 200, body = QuotaView), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn user(
    State(shared): State<Shared>,
    caller: Caller,
    Path(user): Path<String>,
    Query(query): Query<QuotaQuery>,
) -> Done {
    let permit = shared.manager.permit_user(&caller.0, Action::QuotaSee, &user).await?;
    Ok(Json(view(shared.manager.quota_of_user(&permit, query.profile()?.as_ref()).await?)))
}

/// What a team holds and may hold.
#[utoipa::path(get, path = "/v1/teams/{team}/quota", params(("team" = String, Path), QuotaQuery),
    responses((status = 200, body = QuotaView), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn team(
    State(shared): State<Shared>,
    caller: Caller,
    Path(team): Path<String>,
    Query(query): Query<QuotaQuery>,
) -> Done {
    let permit = shared.manager.permit_team(&caller.0, Action::QuotaSee, &team).await?;
    Ok(Json(view(shared.manager.quota_of_team(&permit, query.profile()?.as_ref()).await?)))
}

/// Changes limits of a person.
#[utoipa::path(patch, path = "/v1/users/{user}/quota", params(("user" = String, Path)), request_body = SetQuota,
    responses((status = 200, body = QuotaView), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn set_user(
    State(shared): State<Shared>,
    caller: Caller,
    Path(user): Path<String>,
    Body(body): Body<SetQuota>,
) -> Done {
    let result = async {
        let permit = shared.manager.permit_user(&caller.0, Action::UserChange, &user).await?;
        if !body.member_limits.is_empty() {
            return Err(ManagerError::invalid("limits of members are a team's; a person has their own"));
        }
        shared.manager.set_user_quota(&permit, &changes(&body.limits)?).await?;
        shared.manager.quota_of_user(&permit, None).await
    };
    Ok(Json(view(audited(&shared, &caller, "user.quota", &user, result.await).await?)))
}

/// Changes limits of a team, and of each of its members.
#[utoipa::path(patch, path = "/v1/teams/{team}/quota", params(("team" = String, Path)), request_body = SetQuota,
    responses((status = 200, body = QuotaView), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn set_team(
    State(shared): State<Shared>,
    caller: Caller,
    Path(team): Path<String>,
    Body(body): Body<SetQuota>,
) -> Done {
    let result = async {
        let permit = shared.manager.permit_team(&caller.0, Action::TeamChange, &team).await?;
        let (own, member) = (changes(&body.limits)?, changes(&body.member_limits)?);
        shared.manager.set_team_quota(&permit, &own, &member).await?;
        shared.manager.quota_of_team(&permit, None).await
    };
    Ok(Json(view(audited(&shared, &caller, "team.quota", &team, result.await).await?)))
}

fn changes(typed: &BTreeMap<String, Option<String>>) -> Result<LimitChanges, ManagerError> {
    if typed.len() > QuotaKind::ALL.len() {
        return Err(ManagerError::invalid("there are fewer kinds of limits than that"));
    }
    let change = |(word, text): (&String, &Option<String>)| {
        let kind: QuotaKind = convert::parse(word)?;
        let limit = text.as_ref().map(|text| Limit::parse(kind, text)).transpose();
        Ok((kind, limit.map_err(|e| ManagerError::invalid(e.to_string()))?))
    };
    typed.iter().map(change).collect()
}

/// One kind on the wire.
pub fn line(line: &QuotaLine) -> QuotaLineView {
    let unit = match line.kind.unit() {
        Unit::Count => "number",
        Unit::Size => "mib",
        Unit::Hours => "seconds",
    };
    QuotaLineView {
        kind: line.kind.to_string(),
        unit: unit.to_owned(),
        used: line.used,
        limit: line.limit.and_then(|limit| limit.amount(line.kind)),
        source: line.source.as_ref().map(ToString::to_string).unwrap_or_default(),
        next: line.next,
    }
}

fn view(sheet: QuotaSheet) -> QuotaView {
    QuotaView {
        name: sheet.name,
        is_team: sheet.is_team,
        lines: sheet.lines.iter().map(line).collect(),
        profile: sheet.profile.as_ref().map(ToString::to_string).unwrap_or_default(),
        member_limits: sheet.member.iter().map(|(kind, limit)| (kind.to_string(), limit.show(kind))).collect(),
        month_end: convert::time(sheet.month_end),
    }
}
