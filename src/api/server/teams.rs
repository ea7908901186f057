//! `/v1/teams`.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::ApiError;
use super::users::{PAGE, take_page};
use super::{Body, Caller, Path, Query, Shared, audited, convert};
use crate::api::error::ErrorBody;
use crate::api::types::{AddTeam, ChangeTeam, MemberList, TeamList, TeamView};
use crate::auth::policy::{self, Action};
use crate::manager::teams::{TeamChange, TeamRow};

type Done<T> = Result<Json<T>, ApiError>;

fn view(row: &TeamRow, members: u64) -> TeamView {
    TeamView {
        id: row.id.to_string(),
        name: row.name.to_string(),
        description: row.description.clone(),
        members,
        created_at: convert::time(row.created_at),
    }
}

/// All teams for operators, else the caller's.
#[utoipa::path(get, path = "/v1/teams", responses((status = 200, body = TeamList), (status = 403, body = ErrorBody)))]
pub async fn list(State(shared): State<Shared>, caller: Caller) -> Done<TeamList> {
    let permit = caller.permit_widest(Action::TeamSeeAll, Action::TeamSee)?;
    let teams = shared.manager.teams(&permit).await?;
    Ok(Json(TeamList { teams: teams.iter().map(|(row, members)| view(row, *members)).collect() }))
}

/// Makes a team.
#[utoipa::path(post, path = "/v1/teams", request_body = AddTeam,
    responses((status = 200, body = TeamView), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn add(State(shared): State<Shared>, caller: Caller, Body(body): Body<AddTeam>) -> Done<TeamView> {
    let result = async {
        let permit = policy::allow(&caller.0, Action::TeamChange)?;
        shared.manager.add_team(&permit, convert::parse(&body.name)?, &convert::parse(&body.description)?).await
    };
    let row = audited(&shared, &caller, "team.add", &body.name, result.await).await?;
    Ok(Json(view(&row, 0)))
}

/// A team.
#[utoipa::path(get, path = "/v1/teams/{team}", params(("team" = String, Path)),
    responses((status = 200, body = TeamView), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn show(State(shared): State<Shared>, caller: Caller, Path(team): Path<String>) -> Done<TeamView> {
    let permit = shared.manager.permit_team(&caller.0, Action::TeamSee, &team).await?;
    let (row, members) = shared.manager.team(&permit).await?;
    Ok(Json(view(&row, members)))
}

/// Changes name or description of a team.
#[utoipa::path(patch, path = "/v1/teams/{team}", params(("team" = String, Path)), request_body = ChangeTeam,
    responses((status = 200, body = TeamView), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn change(
    State(shared): State<Shared>,
    caller: Caller,
    Path(team): Path<String>,
    Body(body): Body<ChangeTeam>,
) -> Done<TeamView> {
    let result = async {
        let permit = shared.manager.permit_team(&caller.0, Action::TeamChange, &team).await?;
        let change = TeamChange {
            name: convert::parse_opt(body.name.as_ref())?,
            description: convert::parse_opt(body.description.as_ref())?,
        };
        shared.manager.change_team(&permit, &change).await?;
        shared.manager.team(&permit).await
    };
    let (row, members) = audited(&shared, &caller, "team.change", &team, result.await).await?;
    Ok(Json(view(&row, members)))
}

/// Dissolves a team for which no machine counts.
#[utoipa::path(delete, path = "/v1/teams/{team}", params(("team" = String, Path)),
    responses((status = 200, body = TeamView), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn remove(State(shared): State<Shared>, caller: Caller, Path(team): Path<String>) -> Done<TeamView> {
    let result = async {
        let permit = shared.manager.permit_team(&caller.0, Action::TeamChange, &team).await?;
        let found = shared.manager.team(&permit).await?;
        shared.manager.remove_team(&permit).await?;
        Ok(found)
    };
    let (row, members) = audited(&shared, &caller, "team.remove", &team, result.await).await?;
    Ok(Json(view(&row, members)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct MemberQuery {
    /// Only names after this one: `next` of the page before.
    #[serde(default)]
    after: String,
    /// At most so many; 100 where nothing is said, 1000 at most.
    limit: Option<u32>,
}

/// Members of a team by name, page by page.
#[utoipa::path(get, path = "/v1/teams/{team}/members", params(("team" = String, Path), MemberQuery),
    responses((status = 200, body = MemberList), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn members(
    State(shared): State<Shared>,
    caller: Caller,
    Path(team): Path<String>,
    Query(query): Query<MemberQuery>,
) -> Done<MemberList> {
    let permit = shared.manager.permit_team(&caller.0, Action::TeamSee, &team).await?;
    let limit = query.limit.unwrap_or(PAGE.0).clamp(1, PAGE.1);
    let mut members = shared.manager.team_members(&permit, &query.after, limit + 1).await?;
    let next = take_page(&mut members, limit).map(ToString::to_string);
    Ok(Json(MemberList { members: members.iter().map(ToString::to_string).collect(), next }))
}

#[derive(Clone, Copy)]
enum Membership {
    Add,
    Remove,
}

async fn change_member(
    shared: &Shared,
    caller: &Caller,
    (team, user): (&str, &str),
    change: Membership,
) -> Done<TeamView> {
    let action = match change {
        Membership::Add => "team.add_member",
        Membership::Remove => "team.remove_member",
    };
    let result = async {
        let permit = shared.manager.permit_team(&caller.0, Action::TeamChange, team).await?;
        let person = shared.manager.permit_user(&caller.0, Action::UserChange, user).await?;
        match change {
            Membership::Add => shared.manager.add_member(&permit, &person).await?,
            Membership::Remove => shared.manager.remove_member(&permit, &person).await?,
        }
        shared.manager.team(&permit).await
    };
    let (row, members) = audited(shared, caller, action, team, result.await).await?;
    Ok(Json(view(&row, members)))
}

/// Puts a person into a team.
#[utoipa::path(put, path = "/v1/teams/{team}/members/{user}", params(("team" = String, Path), ("user" = String, Path)),
    responses((status = 200, body = TeamView), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn add_member(
    State(shared): State<Shared>,
    caller: Caller,
    Path((team, user)): Path<(String, String)>,
) -> Done<TeamView> {
    change_member(&shared, &caller, (&team, &user), Membership::Add).await
}

/// Takes a person out of a team.
#[utoipa::path(delete, path = "/v1/teams/{team}/members/{user}", params(("team" = String, Path), ("user" = String, Path)),
    responses((status = 200, body = TeamView), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn remove_member(
    State(shared): State<Shared>,
    caller: Caller,
    Path((team, user)): Path<(String, String)>,
) -> Done<TeamView> {
    change_member(&shared, &caller, (&team, &user), Membership::Remove).await
}
