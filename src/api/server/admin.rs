//! `/v1/backup`: what only administrators do.

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use tokio_util::io::ReaderStream;

use super::error::ApiError;
use super::{Caller, Shared, audited};
use crate::api::error::ErrorBody;
use crate::auth::policy::{self, Action};

/// A backup of the manager's own state: database, keys, configuration. It holds secrets.
#[utoipa::path(get, path = "/v1/backup",
    responses((status = 200, description = "a tar archive", content_type = "application/x-tar"), (status = 403, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn backup(State(shared): State<Shared>, caller: Caller) -> Result<Response, ApiError> {
    let result = async {
        let permit = policy::allow(&caller.0, Action::Backup)?;
        shared.manager.backup(&permit).await
    };
    let backup = audited(&shared, &caller, "backup.take", "", result.await).await?;
    for note in &backup.notes {
        tracing::warn!(%note, "backup");
    }
    let stream = ReaderStream::new(tokio::fs::File::from_std(backup.file));
    let headers = [(CONTENT_TYPE, "application/x-tar".to_owned()), (CONTENT_LENGTH, backup.size.to_string())];
    Ok((headers, Body::from_stream(stream)).into_response())
}
