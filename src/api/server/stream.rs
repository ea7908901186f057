//! What flows: events, serial logs, consoles.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::{CloseFrame, Message, WebSocket};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use serde::Deserialize;
use tokio::sync::broadcast;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;

use super::error::ApiError;
use super::{Caller, Path, Query, Shared, Upgrade, access, audited, convert};
use crate::api::error::ErrorBody;
use crate::auth::policy::{Action, Permit};
use crate::manager::console::Console;
use crate::manager::watch::Told;
use crate::model::id::UserId;

/// Lines of the serial log where none are asked for, and at most.
const LOG_LINES: (usize, usize) = (200, 100_000);
/// Keeps proxies and clients from closing a silent stream.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Close codes of the console (RFC 6455, section 7.4.1): the end of the line, and "come again" for a viewer that was
/// too slow or whose manager goes down; above 4000, the status that a request would be refused with.
const CONSOLE_ENDED: u16 = 1000;
const CONSOLE_AGAIN: u16 = 1012;
const CONSOLE_DENIED: u16 = 4403;

/// Events of one machine: the last ones, then everything as it happens.
#[utoipa::path(get, path = "/v1/vms/{vm}/events", params(("vm" = String, Path)),
    responses((status = 200, description = "server-sent events of EventView", content_type = "text/event-stream"), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn vm_events(
    State(shared): State<Shared>,
    caller: Caller,
    Path(vm): Path<String>,
) -> Result<Response, ApiError> {
    let permit = shared.manager.permit_vm(&caller.0, Action::VmSee, &vm, true).await?;
    Ok(events(shared, caller, permit, None).into_response())
}

/// Events of all machines of the caller; of everybody's for operators.
#[utoipa::path(get, path = "/v1/events", responses((status = 200, description = "server-sent events of EventView", content_type = "text/event-stream"),
        (status = 403, body = ErrorBody)))]
pub async fn all_events(State(shared): State<Shared>, caller: Caller) -> Result<Response, ApiError> {
    let permit = caller.permit_widest(Action::VmSeeAll, Action::VmSee)?;
    let owner = owner_filter(&permit);
    Ok(events(shared, caller, permit, owner).into_response())
}

fn owner_filter(permit: &Permit) -> Option<UserId> {
    match permit.action() {
        Action::VmSeeAll => None,
        _ => permit.user().map(|user| user.id),
    }
}

fn events(
    shared: Shared,
    caller: Caller,
    permit: Permit,
    owner: Option<UserId>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let vm = permit.vm();
    let (past, live) = shared.manager.watch().listen(vm);
    let stop = shared.manager.stopping().clone();
    let ended = access::ended_on(shared.manager.clone(), shared.peers.clone(), permit);
    let wanted =
        move |told: &Told| vm.is_none_or(|vm| told.progress.vm == vm) && owner.is_none_or(|owner| told.owner == owner);
    let live = BroadcastStream::new(live).filter(move |item| {
        let keep = match item {
            Ok(told) => wanted(told),
            Err(BroadcastStreamRecvError::Lagged(_)) => true,
        };
        std::future::ready(keep)
    });
    let caller = std::sync::Arc::new(caller);
    let all = stream::iter(past.into_iter().map(Ok)).chain(live).then(move |item| {
        let (shared, caller) = (shared.clone(), caller.clone());
        async move { Ok(render(&shared, &caller, item).await) }
    });
    let end = async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = ended => {}
        }
    };
    Sse::new(all.take_until(end)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
}

async fn render(shared: &Shared, caller: &Caller, item: Result<Told, BroadcastStreamRecvError>) -> Event {
    let Ok(told) = item else { return Event::default().event("lagged").data("{}") };
    let id = told.progress.vm.to_string();
    let state = match shared.manager.permit_vm(&caller.0, Action::VmSee, &id, true).await {
        Ok(permit) => shared.manager.details(&permit).await.map(|d| d.state.word().to_owned()).unwrap_or_default(),
        Err(_) => "gone".to_owned(),
    };
    let data = serde_json::to_string(&convert::event(&told, state)).unwrap_or_default();
    Event::default().event("progress").data(data)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct LogQuery {
    /// How many of the last lines.
    lines: Option<usize>,
}

/// The last lines of a machine's serial line.
#[utoipa::path(get, path = "/v1/vms/{vm}/logs", params(("vm" = String, Path), LogQuery),
    responses((status = 200, body = String, content_type = "text/plain"), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn logs(
    State(shared): State<Shared>,
    caller: Caller,
    Path(vm): Path<String>,
    Query(query): Query<LogQuery>,
) -> Result<String, ApiError> {
    let permit = shared.manager.permit_vm(&caller.0, Action::VmSee, &vm, true).await?;
    let (usual, most) = LOG_LINES;
    Ok(shared.manager.serial_log(&permit, query.lines.unwrap_or(usual).min(most)).await?)
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConsoleMode {
    #[default]
    Write,
    Read,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct ConsoleQuery {
    /// `write` to type, `read` to look on.
    #[serde(default)]
    #[param(value_type = String)]
    mode: ConsoleMode,
}

/// A machine's serial line as a WebSocket of binary frames.
#[utoipa::path(get, path = "/v1/vms/{vm}/console", params(("vm" = String, Path), ConsoleQuery),
    responses((status = 101, description = "binary frames both ways"), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn console(
    State(shared): State<Shared>,
    caller: Caller,
    Path(vm): Path<String>,
    Query(query): Query<ConsoleQuery>,
    Upgrade(upgrade): Upgrade,
) -> Result<Response, ApiError> {
    let can_type = matches!(query.mode, ConsoleMode::Write);
    let action = if can_type { Action::VmConsole } else { Action::VmSee };
    let opened = async {
        let permit = shared.manager.permit_vm(&caller.0, action, &vm, false).await?;
        Ok((shared.manager.console(&permit, can_type).await?, permit))
    };
    let (console, permit) = audited(&shared, &caller, "vm.console", &vm, opened.await).await?;
    let stop = shared.manager.stopping().clone();
    let ended = access::ended_on(shared.manager.clone(), shared.peers.clone(), permit);
    Ok(upgrade.max_message_size(64 * 1024).on_upgrade(move |socket| relay(socket, console, stop, ended)))
}

async fn relay(
    mut socket: WebSocket,
    mut console: Console,
    stop: CancellationToken,
    ended: impl Future<Output = ()> + Send,
) {
    let mut ended = std::pin::pin!(ended);
    let remembered = std::mem::take(&mut console.remembered);
    if !remembered.is_empty() && socket.send(Message::Binary(remembered.into())).await.is_err() {
        return;
    }
    let mut ping = tokio::time::interval(KEEP_ALIVE);
    ping.tick().await;
    let end = loop {
        tokio::select! {
            () = stop.cancelled() => break (CONSOLE_AGAIN, "the manager goes down"),
            () = &mut ended => break (CONSOLE_DENIED, "your access has ended"),
            chunk = console.output.recv() => match chunk {
                Ok(chunk) => {
                    if socket.send(Message::Binary(chunk.to_vec().into())).await.is_err() {
                        return;
                    }
                }
                Err(broadcast::error::RecvError::Lagged(_)) => break (CONSOLE_AGAIN, "too slow: output was missed"),
                Err(broadcast::error::RecvError::Closed) => break (CONSOLE_ENDED, "the machine's console ended"),
            },
            message = socket.recv() => {
                let bytes = match message {
                    Some(Ok(Message::Binary(bytes))) => bytes.to_vec(),
                    Some(Ok(Message::Text(text))) => text.as_bytes().to_vec(),
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                };
                // A reader's typing is dropped; a full queue holds the writer back.
                if let Some(typing) = &console.input
                    && typing.input.send(bytes).await.is_err()
                {
                    break (CONSOLE_ENDED, "the machine's console ended");
                }
            }
            _ = ping.tick() => {
                if socket.send(Message::Ping(Vec::new().into())).await.is_err() {
                    return;
                }
            }
        }
    };
    let frame = CloseFrame { code: end.0, reason: end.1.into() };
    let _ = socket.send(Message::Close(Some(frame))).await;
}
