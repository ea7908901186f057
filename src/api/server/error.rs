//! Errors on their way out: kind to code and status, causes to the log.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::api::error::{ErrorBody, ErrorCode};
use crate::manager::{Kind, ManagerError, error};
use crate::model::secret::without_secrets;

/// An error of a handler.
#[derive(Debug)]
pub struct ApiError(ManagerError);

impl From<ManagerError> for ApiError {
    fn from(error: ManagerError) -> Self {
        Self(error)
    }
}

const fn code(kind: Kind) -> ErrorCode {
    match kind {
        Kind::Invalid => ErrorCode::Invalid,
        Kind::Unauthenticated => ErrorCode::Unauthenticated,
        Kind::TooMuch { .. } => ErrorCode::TooMuch,
        Kind::Denied => ErrorCode::Denied,
        Kind::OverQuota => ErrorCode::OverQuota,
        Kind::NotFound => ErrorCode::NotFound,
        Kind::Conflict => ErrorCode::Conflict,
        Kind::NoCapacity => ErrorCode::NoCapacity,
        Kind::Unavailable => ErrorCode::Unavailable,
        Kind::Internal => ErrorCode::Internal,
    }
}

/// For the log: what was asked for is quoted in it, and may be a secret in the wrong place.
fn chain(error: &ManagerError) -> String {
    without_secrets(&error::chain(error))
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let code = code(self.0.kind);
        let request_id = super::request::id().unwrap_or_else(uuid::Uuid::now_v7).to_string();
        match code {
            ErrorCode::Internal | ErrorCode::Unavailable => {
                tracing::error!(%request_id, error = %chain(&self.0), "a request failed");
            }
            _ => tracing::debug!(%request_id, error = %chain(&self.0), "a request was refused"),
        }
        let retry_after = match self.0.kind {
            Kind::TooMuch { retry_after } => Some(retry_after),
            _ => None,
        };
        let body = ErrorBody { code, message: self.0.message, hint: self.0.hint, request_id: Some(request_id) };
        let status = StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, axum::Json(body)).into_response();
        if code == ErrorCode::Unauthenticated {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"gvm\""));
        }
        if let Some(seconds) = retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}
