//! Client of the API over the manager's unix socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::{ErrorBody, ErrorCode};
use super::types::EventView;

/// How long one request may take; streams are apart.
const REQUEST_DEADLINE: Duration = Duration::from_secs(30);
/// Longest line of the event stream that is kept; a longer one ends the stream.
const EVENT_LINE_MAX: usize = 64 * 1024;

/// Why a call of the API failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The manager answered with a refusal or failure.
    #[error("{}", .0.message)]
    Api(ErrorBody),
    /// The manager cannot be reached.
    #[error("the gvm manager does not answer on {socket}")]
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// The connection broke or the answer makes no sense.
    #[error("the answer of the gvm manager was cut short or cannot be read")]
    Broken(#[source] reqwest::Error),
    /// A message of the stream cannot be read.
    #[error("the gvm manager sent an event that cannot be read: {0}")]
    Event(String),
}

impl ClientError {
    /// The stable code, for exit codes and decisions.
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Api(body) => body.code,
            Self::Unreachable { .. } | Self::Broken(_) => ErrorCode::Unavailable,
            Self::Event(_) => ErrorCode::Internal,
        }
    }
}

/// A connection pool to one manager.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    socket: PathBuf,
}

impl Client {
    /// A client of the manager that listens on `socket`. Nothing is sent yet.
    ///
    /// # Errors
    /// Fails where the HTTP client cannot be built, which has no cause outside of the process.
    pub fn new(socket: &Path) -> Result<Self, ClientError> {
        let http = reqwest::Client::builder().unix_socket(socket).no_proxy().build().map_err(ClientError::Broken)?;
        Ok(Self { http, socket: socket.to_owned() })
    }

    /// The socket that it talks to.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// `GET path`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(Method::GET, path, None::<&()>).await
    }

    /// `POST path` with a JSON body.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn post<B: Serialize + Sync, T: DeserializeOwned>(&self, path: &str, body: &B) -> Result<T, ClientError> {
        self.call(Method::POST, path, Some(body)).await
    }

    /// `PATCH path` with a JSON body.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn patch<B: Serialize + Sync, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<T, ClientError> {
        self.call(Method::PATCH, path, Some(body)).await
    }

    /// `DELETE path`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(Method::DELETE, path, None::<&()>).await
    }

    /// The body of `GET path` as text.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn text(&self, path: &str) -> Result<String, ClientError> {
        let answer = self.send(self.request(Method::GET, path).timeout(REQUEST_DEADLINE)).await?;
        answer.text().await.map_err(ClientError::Broken)
    }

    /// The event stream at `path`. Ends when the manager ends it. An [`EventView`] with the stage `lagged`
    /// means that messages were lost: read the state anew.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn events(
        &self,
        path: &str,
    ) -> Result<impl Stream<Item = Result<EventView, ClientError>> + Send + Unpin + use<>, ClientError> {
        let answer = self.send(self.request(Method::GET, path)).await?;
        let state = (Box::pin(answer.bytes_stream()), Vec::new());
        Ok(Box::pin(futures_util::stream::try_unfold(state, |(mut bytes, mut held)| async move {
            loop {
                if let Some(event) = take_event(&mut held)? {
                    return Ok(Some((event, (bytes, held))));
                }
                match bytes.next().await {
                    Some(chunk) => held.extend_from_slice(&chunk.map_err(ClientError::Broken)?),
                    None => return Ok(None),
                }
                if held.len() > EVENT_LINE_MAX {
                    return Err(ClientError::Event("it is too long".to_owned()));
                }
            }
        })))
    }

    async fn call<B: Serialize + Sync, T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Result<T, ClientError> {
        let mut request = self.request(method, path).timeout(REQUEST_DEADLINE);
        if let Some(body) = body {
            request = request.json(body);
        }
        self.send(request).await?.json().await.map_err(ClientError::Broken)
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        // The host is a formality on a unix socket.
        self.http.request(method, format!("http://gvm{path}"))
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<reqwest::Response, ClientError> {
        let answer = request.send().await.map_err(|error| self.unreachable(error))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status();
        let text = answer.text().await.map_err(ClientError::Broken)?;
        Err(ClientError::Api(serde_json::from_str(&text).unwrap_or_else(|_| ErrorBody {
            code: if status.is_server_error() { ErrorCode::Internal } else { ErrorCode::Invalid },
            message: format!("the manager answered {status}: {}", text.chars().take(200).collect::<String>()),
            hint: None,
            request_id: None,
        })))
    }

    fn unreachable(&self, error: reqwest::Error) -> ClientError {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
        while let Some(inner) = cause {
            if let Some(io) = inner.downcast_ref::<std::io::Error>()
                && error.is_connect()
            {
                let source = std::io::Error::new(io.kind(), io.to_string());
                return ClientError::Unreachable { socket: self.socket.clone(), source };
            }
            cause = inner.source();
        }
        ClientError::Broken(error)
    }
}

/// Takes the first complete server-sent event out of `held`; comments and unknown events are passed over.
fn take_event(held: &mut Vec<u8>) -> Result<Option<EventView>, ClientError> {
    while let Some(end) = held.windows(2).position(|pair| pair == b"\n\n") {
        let block: Vec<u8> = held.drain(..end + 2).collect();
        let block = String::from_utf8_lossy(&block);
        let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        match field("event:") {
            Some("progress") => {
                let data = field("data:").unwrap_or_default();
                return serde_json::from_str(data).map(Some).map_err(|e| ClientError::Event(e.to_string()));
            }
            Some("lagged") => {
                return Ok(Some(EventView {
                    vm_id: String::new(),
                    vm: String::new(),
                    at: String::new(),
                    stage: "lagged".to_owned(),
                    message: String::new(),
                    state: String::new(),
                }));
            }
            _ => {}
        }
    }
    Ok(None)
}
