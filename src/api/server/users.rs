//! `/v1/users`: people and service accounts.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::ApiError;
use super::{Body, Caller, Path, Query, Shared, audited, convert};
use crate::api::error::ErrorBody;
use crate::api::types::{
    AddKey, AddUser, ChangeUser, ImportProblemView, ImportReport, ImportUsers, KeyList, KeyView, SuspendUser,
    Suspended, SuspensionView, UserList, UserView,
};
use crate::auth::policy::{self, Action};
use crate::manager::ManagerError;
use crate::manager::people::change::{RoleChange, UserChange};
use crate::manager::people::enrol::{ImportProblem, NewUser};
use crate::manager::people::{Person, UserFilter};

/// Largest file of people: 10,000 with their names.
pub const MAX_IMPORT_BODY: usize = 4 * 1024 * 1024;
/// People of a page where nothing is said, and at most.
pub const PAGE: (u32, u32) = (100, 1000);

type Done<T> = Result<Json<T>, ApiError>;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct UserQuery {
    /// Only names that begin so.
    #[serde(default)]
    prefix: String,
    /// Only names after this one: `next` of the page before.
    #[serde(default)]
    after: String,
    /// At most so many; 100 where nothing is said, 1000 at most.
    limit: Option<u32>,
}

/// People by name, page by page.
#[utoipa::path(get, path = "/v1/users", params(UserQuery), responses((status = 200, body = UserList), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody)))]
pub async fn list(State(shared): State<Shared>, caller: Caller, Query(query): Query<UserQuery>) -> Done<UserList> {
    let permit = caller.permit(Action::UserSeeAll)?;
    let limit = query.limit.unwrap_or(PAGE.0).clamp(1, PAGE.1);
    let filter = UserFilter { prefix: query.prefix, after: query.after, limit: limit + 1 };
    let mut people = shared.manager.people(&permit, &filter).await?;
    let next = take_page(&mut people, limit).map(|last| last.row.user.name.to_string());
    Ok(Json(UserList { users: people.iter().map(view).collect(), next }))
}

/// Cuts what was read beyond the page; the last one of it, where there is more.
pub fn take_page<T>(items: &mut Vec<T>, limit: u32) -> Option<&T> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let has_more = items.len() > limit;
    items.truncate(limit);
    items.last().filter(|_| has_more)
}

fn view(person: &Person) -> UserView {
    let row = &person.row;
    UserView {
        id: row.user.id.to_string(),
        name: row.user.name.to_string(),
        full_name: row.full_name.clone(),
        role: person.role.to_string(),
        role_source: row.role_source.to_string(),
        is_service: row.is_service,
        has_account: row.uid.is_some(),
        suspended: row
            .suspended
            .as_ref()
            .map(|suspension| SuspensionView { at: convert::time(suspension.at), why: suspension.why.clone() }),
        teams: person.teams.iter().map(|(_, name)| name.to_string()).collect(),
        default_team: person.default_team().map(ToString::to_string),
        created_at: convert::time(row.created_at),
    }
}

/// Adds a person or service account.
#[utoipa::path(post, path = "/v1/users", request_body = AddUser,
    responses((status = 200, body = UserView), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn add(State(shared): State<Shared>, caller: Caller, Body(body): Body<AddUser>) -> Done<UserView> {
    let result = async {
        let permit = policy::allow(&caller.0, Action::UserChange)?;
        shared.manager.add_user(&permit, &new_user(&body)?).await
    };
    let row = audited(&shared, &caller, "user.add", &body.name, result.await).await?;
    shown(&shared, &caller, Action::UserChange, &row.user.id.to_string()).await
}

fn new_user(body: &AddUser) -> Result<NewUser, ManagerError> {
    Ok(NewUser {
        name: convert::parse(&body.name)?,
        full_name: convert::parse(&body.full_name)?,
        role: convert::parse_opt(body.role.as_ref())?,
        is_service: body.is_service,
        teams: body.teams.iter().map(|team| convert::parse(team)).collect::<Result<_, _>>()?,
    })
}

/// Adds many people: all, or nobody where something is wrong with one of them.
#[utoipa::path(post, path = "/v1/user-import", request_body = ImportUsers,
    responses((status = 200, body = ImportReport), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody)))]
pub async fn import(State(shared): State<Shared>, caller: Caller, Body(body): Body<ImportUsers>) -> Done<ImportReport> {
    let result = async {
        let permit = policy::allow(&caller.0, Action::UserChange)?;
        let mut new = Vec::new();
        let mut problems = Vec::new();
        for (index, one) in body.users.iter().enumerate() {
            match new_user(one) {
                Ok(one) => new.push(one),
                Err(e) => problems.push(ImportProblem { index, message: e.to_string() }),
            }
        }
        if problems.is_empty() {
            problems = shared.manager.import_users(&permit, &new, body.is_dry_run).await?;
        }
        Ok(problems)
    };
    let problems = audited(&shared, &caller, "user.import", "", result.await).await?;
    if !problems.is_empty() && !body.is_dry_run {
        let refused = ManagerError::invalid(format!("something is wrong with {} of them", problems.len()));
        shared.manager.record_refusal(&caller.0, "user.import", "", &refused).await;
    }
    let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    let is_added = problems.is_empty() && !body.is_dry_run;
    let problems = problems.into_iter().map(|p| ImportProblemView { index: count(p.index), message: p.message });
    Ok(Json(ImportReport {
        added: if is_added { count(body.users.len()) } else { 0 },
        problems: problems.take(100).collect(),
    }))
}

/// A person.
#[utoipa::path(get, path = "/v1/users/{user}", params(("user" = String, Path)),
    responses((status = 200, body = UserView), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn show(State(shared): State<Shared>, caller: Caller, Path(user): Path<String>) -> Done<UserView> {
    shown(&shared, &caller, Action::UserSee, &user).await
}

/// Who was permitted to do this is shown what came of it: a login that is good for changes alone as well.
async fn shown(shared: &Shared, caller: &Caller, action: Action, user: &str) -> Done<UserView> {
    let permit = shared.manager.permit_user(&caller.0, action, user).await?;
    Ok(Json(view(&shared.manager.person(&permit).await?)))
}

/// Changes name, role, full name or default team of a person.
#[utoipa::path(patch, path = "/v1/users/{user}", params(("user" = String, Path)), request_body = ChangeUser,
    responses((status = 200, body = UserView), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn change(
    State(shared): State<Shared>,
    caller: Caller,
    Path(user): Path<String>,
    Body(body): Body<ChangeUser>,
) -> Done<UserView> {
    let result = async {
        let permit = shared.manager.permit_user(&caller.0, Action::UserChange, &user).await?;
        let person = shared.manager.person(&permit).await?;
        let change = UserChange {
            name: convert::parse_opt(body.name.as_ref())?,
            role: body.role.as_deref().map(role_change).transpose()?,
            full_name: convert::parse_opt(body.full_name.as_ref())?,
            default_team: body.default_team.as_ref().map(|team| convert::parse_opt(team.as_ref())).transpose()?,
            has_new_account: body.has_new_account,
        };
        let uid = person.row.uid.filter(|_| !change.has_new_account);
        if let (Some(uid), Some(name)) = (uid, &change.name) {
            follows_host(&shared, uid, name.as_str()).await?;
        }
        shared.manager.change_user(&permit, &change).await?;
        Ok(person.row.user.id)
    };
    let id = audited(&shared, &caller, "user.change", &user, result.await).await?;
    shown(&shared, &caller, Action::UserChange, &id.to_string()).await
}

fn role_change(word: &str) -> Result<RoleChange, ManagerError> {
    match word {
        "host" => Ok(RoleChange::Host),
        word => Ok(RoleChange::Set(convert::parse(word)?)),
    }
}

/// Who comes over the socket is known by number and login of the host, so the two names are one.
async fn follows_host(shared: &Shared, uid: u32, name: &str) -> Result<(), ManagerError> {
    let login = shared.peers.login(uid).await;
    let login = login.map_err(|e| ManagerError::unavailable(e.to_string()).because(e))?;
    match login {
        Some(login) if login != name => {
            Err(ManagerError::conflict(format!("the host's account of this person, uid {uid}, is called {login}"))
                .hint(format!("rename it on the host first: usermod --login {name} {login}")))
        }
        _ => Ok(()),
    }
}

/// Puts a person out of use, at once. Their machines keep running unless they are to be stopped.
#[utoipa::path(post, path = "/v1/users/{user}/suspend", params(("user" = String, Path)), request_body = SuspendUser,
    responses((status = 200, body = Suspended), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn suspend(
    State(shared): State<Shared>,
    caller: Caller,
    Path(user): Path<String>,
    Body(body): Body<SuspendUser>,
) -> Done<Suspended> {
    let result = async {
        let permit = shared.manager.permit_user(&caller.0, Action::UserChange, &user).await?;
        shared.manager.suspend_user(&permit, &convert::parse(&body.why)?).await?;
        Ok(permit)
    };
    let permit = audited(&shared, &caller, "user.suspend", &user, result.await).await?;
    let stopped = if body.stop_vms { shared.manager.stop_machines_of(&permit).await? } else { 0 };
    let stopped_vms = u64::try_from(stopped).unwrap_or(u64::MAX);
    Ok(Json(Suspended { user: shown(&shared, &caller, Action::UserChange, &user).await?.0, stopped_vms }))
}

/// Lets a suspended person in again.
#[utoipa::path(post, path = "/v1/users/{user}/resume", params(("user" = String, Path)),
    responses((status = 200, body = UserView), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn resume(State(shared): State<Shared>, caller: Caller, Path(user): Path<String>) -> Done<UserView> {
    let result = async {
        let permit = shared.manager.permit_user(&caller.0, Action::UserChange, &user).await?;
        shared.manager.resume_user(&permit).await
    };
    audited(&shared, &caller, "user.resume", &user, result.await).await?;
    shown(&shared, &caller, Action::UserChange, &user).await
}

/// Removes a person who has no machines.
#[utoipa::path(delete, path = "/v1/users/{user}", params(("user" = String, Path)),
    responses((status = 200, body = UserView), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn remove(State(shared): State<Shared>, caller: Caller, Path(user): Path<String>) -> Done<UserView> {
    let result = async {
        let permit = shared.manager.permit_user(&caller.0, Action::UserChange, &user).await?;
        let person = shared.manager.person(&permit).await?;
        shared.manager.remove_user(&permit).await?;
        Ok(person)
    };
    let person = audited(&shared, &caller, "user.remove", &user, result.await).await?;
    Ok(Json(view(&person)))
}

/// The SSH keys of a person.
#[utoipa::path(get, path = "/v1/users/{user}/keys", params(("user" = String, Path)),
    responses((status = 200, body = KeyList), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn keys(State(shared): State<Shared>, caller: Caller, Path(user): Path<String>) -> Done<KeyList> {
    let permit = shared.manager.permit_user(&caller.0, Action::UserChange, &user).await?;
    let rows = shared.manager.keys(&permit).await?;
    Ok(Json(KeyList { keys: rows.iter().map(convert::key).collect() }))
}

/// Registers a key of a person.
#[utoipa::path(post, path = "/v1/users/{user}/keys", params(("user" = String, Path)), request_body = AddKey,
    responses((status = 200, body = KeyView), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn add_key(
    State(shared): State<Shared>,
    caller: Caller,
    Path(user): Path<String>,
    Body(body): Body<AddKey>,
) -> Done<KeyView> {
    let result = async {
        let permit = shared.manager.permit_user(&caller.0, Action::UserChange, &user).await?;
        shared.manager.add_key(&permit, convert::parse(&body.public_key)?).await
    };
    let row = audited(&shared, &caller, "key.add", &user, result.await).await?;
    Ok(Json(convert::key(&row)))
}

/// Forgets a key of a person, by id or fingerprint.
#[utoipa::path(delete, path = "/v1/users/{user}/keys/{key}", params(("user" = String, Path), ("key" = String, Path)),
    responses((status = 200, body = KeyList), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn remove_key(
    State(shared): State<Shared>,
    caller: Caller,
    Path((user, key)): Path<(String, String)>,
) -> Done<KeyList> {
    let result = async {
        let permit = shared.manager.permit_user(&caller.0, Action::UserChange, &user).await?;
        shared.manager.remove_key(&permit, &key).await
    };
    audited(&shared, &caller, "key.remove", &user, result.await).await?;
    keys(State(shared), caller, Path(user)).await
}
