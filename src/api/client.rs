//! Client of the API: over the manager's unix socket, or over HTTPS with a token.

pub mod console;
mod error;
pub mod place;
mod sse;
mod tls;

use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt};
use reqwest::{Method, StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use self::error::ClientError;
use self::place::{Place, ServerUrl};
use super::error::{ErrorBody, ErrorCode};
use super::types::{EventView, RevocationView};
use crate::model::fingerprint::Fingerprint;
use crate::model::secret::Secret;

/// How long one request may take; streams are apart.
const REQUEST_DEADLINE: Duration = Duration::from_secs(30);
/// How long the head of a stream may take.
pub const STREAM_DEADLINE: Duration = Duration::from_secs(10);
/// How long the head of a download may take: it is put together before it is sent.
const DOWNLOAD_DEADLINE: Duration = Duration::from_secs(600);
/// How long connecting over a network may take.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// Idle connections are closed sooner than the server closes them, so that none breaks under a request.
const POOL_IDLE: Duration = Duration::from_secs(15);

/// One segment of a path, percent-encoded.
pub fn segment(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

/// A connection pool to one manager.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    place: Place,
    token: Option<Secret<String>>,
    pin: Option<Fingerprint>,
    stranger: tls::Stranger,
}

impl Client {
    /// A client of the manager that listens on `socket`. Nothing is sent yet.
    ///
    /// # Errors
    /// Fails where the HTTP client cannot be built, which has no cause outside of the process.
    pub fn new(socket: &Path) -> Result<Self, ClientError> {
        let stranger = tls::Stranger::default();
        // No TLS is spoken there; without this the machine's list of authorities would have to be there and be read.
        let config = tls::pinned(None, stranger.clone()).map_err(ClientError::Setup)?;
        let builder = reqwest::Client::builder().unix_socket(socket).no_proxy().tls_backend_preconfigured(config);
        let http = builder.build().map_err(ClientError::Broken)?;
        Ok(Self::of(http, Place::Socket(socket.to_owned()), None, stranger))
    }

    /// A client of the manager at `url`: known by `pin`, or by the authorities that this machine trusts. Nothing is
    /// sent yet.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn https(url: &ServerUrl, pin: Option<Fingerprint>) -> Result<Self, ClientError> {
        let stranger = tls::Stranger::default();
        let http = match pin {
            Some(_) => {
                let config = tls::pinned(pin, stranger.clone()).map_err(ClientError::Setup)?;
                over_network().tls_backend_preconfigured(config)
            }
            None => over_network(),
        };
        let http = http.build().map_err(ClientError::Broken)?;
        Ok(Self::of(http, Place::Url(url.clone()), pin, stranger))
    }

    fn of(http: reqwest::Client, place: Place, pin: Option<Fingerprint>, stranger: tls::Stranger) -> Self {
        Self { http, place, token: None, pin, stranger }
    }

    /// The same with a token that says who asks.
    #[must_use]
    pub fn with_token(self, token: Option<Secret<String>>) -> Self {
        Self { token, ..self }
    }

    /// Where it asks.
    pub const fn place(&self) -> &Place {
        &self.place
    }

    /// The token that says who asks.
    pub const fn token(&self) -> Option<&Secret<String>> {
        self.token.as_ref()
    }

    /// The fingerprint of the certificate that the server at `url` shows. Nothing is sent to it.
    ///
    /// # Errors
    /// Where it does not answer.
    pub async fn fingerprint_of(url: &ServerUrl) -> Result<Fingerprint, ClientError> {
        let stranger = tls::Stranger::default();
        let config = tls::pinned(None, stranger.clone()).map_err(ClientError::Setup)?;
        let http = over_network().tls_backend_preconfigured(config).build().map_err(ClientError::Broken)?;
        let client = Self::of(http, Place::Url(url.clone()), None, stranger);
        let asked = client.request(Method::GET, "/v1/version").timeout(REQUEST_DEADLINE).send().await;
        match (client.stranger.shown(), asked) {
            (Some(shown), _) => Ok(shown),
            (None, Err(error)) => Err(client.unreachable(error)),
            // Nothing is taken by that configuration, so this cannot be.
            (None, Ok(_)) => Err(ClientError::Untrusted(url.clone())),
        }
    }

    /// `GET path`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(Method::GET, path, None::<&()>, REQUEST_DEADLINE).await
    }

    /// `POST path` with a JSON body.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn post<B: Serialize + Sync, T: DeserializeOwned>(&self, path: &str, body: &B) -> Result<T, ClientError> {
        self.post_within(path, body, REQUEST_DEADLINE).await
    }

    /// `POST path` with a JSON body, for work that the manager does before it answers.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn post_within<B: Serialize + Sync, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
        deadline: Duration,
    ) -> Result<T, ClientError> {
        self.call(Method::POST, path, Some(body), deadline).await
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
        self.call(Method::PATCH, path, Some(body), REQUEST_DEADLINE).await
    }

    /// `PUT path` without a body.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn put<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(Method::PUT, path, None::<&()>, REQUEST_DEADLINE).await
    }

    /// `DELETE path`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(Method::DELETE, path, None::<&()>, REQUEST_DEADLINE).await
    }

    /// The body of `GET path` as text.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn text(&self, path: &str) -> Result<String, ClientError> {
        let answer = self.send(self.request(Method::GET, path).timeout(REQUEST_DEADLINE)).await?;
        answer.text().await.map_err(ClientError::Broken)
    }

    /// The body of `GET path` as it comes; only its head has a deadline.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn download(
        &self,
        path: &str,
    ) -> Result<impl Stream<Item = Result<impl AsRef<[u8]> + use<>, ClientError>> + Send + Unpin + use<>, ClientError>
    {
        let asked = tokio::time::timeout(DOWNLOAD_DEADLINE, self.send(self.request(Method::GET, path))).await;
        let answer = asked.map_err(|_| ClientError::Unreachable {
            place: self.place.clone(),
            source: std::io::ErrorKind::TimedOut.into(),
        })??;
        Ok(Box::pin(answer.bytes_stream().map(|chunk| chunk.map_err(ClientError::Broken))))
    }

    /// The body of `GET path` as it comes, for answers of any length; its head may take `patience`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn bytes(
        &self,
        path: &str,
        patience: Duration,
    ) -> Result<impl Stream<Item = Result<impl AsRef<[u8]> + use<>, ClientError>> + Send + Unpin + use<>, ClientError>
    {
        let answer = self.open(path, patience).await?;
        Ok(answer.bytes_stream().map(|chunk| chunk.map_err(ClientError::Broken)))
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
        self.stream(path, sse::progress).await
    }

    /// Access that ends, as it ends; `None` means that messages were lost: ask about everything anew.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn revocations(
        &self,
    ) -> Result<impl Stream<Item = Result<Option<RevocationView>, ClientError>> + Send + Unpin + use<>, ClientError>
    {
        self.stream("/v1/gateway/revocations", sse::revocation).await
    }

    /// The server-sent events at `path` that `read` knows; the others are passed over.
    async fn stream<T: Send + 'static>(
        &self,
        path: &str,
        read: fn(&sse::Message) -> Option<Result<T, serde_json::Error>>,
    ) -> Result<impl Stream<Item = Result<T, ClientError>> + Send + Unpin + use<T>, ClientError> {
        let state = (Box::pin(self.open(path, STREAM_DEADLINE).await?.bytes_stream()), sse::Held::default());
        Ok(Box::pin(futures_util::stream::try_unfold(state, move |(mut bytes, mut held)| async move {
            loop {
                while let Some(message) = held.take() {
                    if let Some(item) = read(&message) {
                        return Ok(Some((item.map_err(|e| ClientError::Event(e.to_string()))?, (bytes, held))));
                    }
                }
                match bytes.next().await {
                    Some(chunk) => held.add(&chunk.map_err(ClientError::Broken)?)?,
                    None => return Ok(None),
                }
            }
        })))
    }

    /// Only the head has a deadline: the stream itself may be silent for as long as nothing happens.
    async fn open(&self, path: &str, patience: Duration) -> Result<reqwest::Response, ClientError> {
        let asked = tokio::time::timeout(patience, self.send(self.request(Method::GET, path))).await;
        asked.map_err(|_| ClientError::Unreachable {
            place: self.place.clone(),
            source: std::io::ErrorKind::TimedOut.into(),
        })?
    }

    async fn call<B: Serialize + Sync, T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
        deadline: Duration,
    ) -> Result<T, ClientError> {
        let mut request = self.request(method, path).timeout(deadline);
        if let Some(body) = body {
            request = request.json(body);
        }
        let text = self.send(request).await?.bytes().await.map_err(ClientError::Broken)?;
        // An answer without a body (204) reads as null.
        let text: &[u8] = if text.is_empty() { b"null" } else { &text };
        serde_json::from_slice(text).map_err(ClientError::Garbled)
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let request = match &self.place {
            // The host is a formality on a unix socket.
            Place::Socket(_) => self.http.request(method, format!("http://gvm{path}")),
            Place::Url(url) => self.http.request(method, format!("{url}{path}")),
        };
        match &self.token {
            Some(token) => request.bearer_auth(token.expose()),
            None => request,
        }
    }

    /// Sends it; one that only asks is sent again where the manager says that it is to wait for a moment.
    async fn send(&self, request: reqwest::RequestBuilder) -> Result<reqwest::Response, ClientError> {
        let (http, request) = request.build_split();
        let mut request = request.map_err(ClientError::Broken)?;
        let last = Instant::now() + REQUEST_DEADLINE;
        loop {
            let again = if request.method() == Method::GET { request.try_clone() } else { None };
            let answer = http.execute(request).await.map_err(|error| self.unreachable(error))?;
            let status = answer.status();
            if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS {
                return Ok(answer);
            }
            let pause = retry_after(&answer).filter(|_| status == StatusCode::TOO_MANY_REQUESTS);
            if let (Some(again), Some(pause)) = (again, pause)
                && Instant::now() + pause < last
            {
                tokio::time::sleep(pause).await;
                request = again;
                continue;
            }
            let text = answer.text().await.map_err(ClientError::Broken)?;
            return Err(refusal(status.as_u16(), text.as_bytes()));
        }
    }

    fn unreachable(&self, error: reqwest::Error) -> ClientError {
        if let Place::Url(url) = &self.place
            && tls::is_about_certificate(&error)
        {
            let url = url.clone();
            return match (self.pin, self.stranger.shown()) {
                (Some(pinned), Some(shown)) => ClientError::Changed { url, pinned, shown },
                _ => ClientError::Untrusted(url),
            };
        }
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
        while let Some(inner) = cause {
            if let Some(io) = inner.downcast_ref::<std::io::Error>()
                && error.is_connect()
            {
                let source = std::io::Error::new(io.kind(), io.to_string());
                return ClientError::Unreachable { place: self.place.clone(), source };
            }
            cause = inner.source();
        }
        ClientError::Broken(error)
    }
}

fn over_network() -> reqwest::ClientBuilder {
    // A token goes to the server that it was made for and nowhere else.
    reqwest::Client::builder()
        .https_only(true)
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_DEADLINE)
        .pool_idle_timeout(POOL_IDLE)
}

/// How long the manager wants to be left alone.
fn retry_after(answer: &reqwest::Response) -> Option<Duration> {
    let value = answer.headers().get(header::RETRY_AFTER)?;
    value.to_str().ok()?.parse().ok().map(Duration::from_secs)
}

/// The error of an answer that is not a success; what is not of our kind is quoted.
fn refusal(status: u16, body: &[u8]) -> ClientError {
    ClientError::Api(serde_json::from_slice(body).unwrap_or_else(|_| {
        let text: String = String::from_utf8_lossy(body).chars().take(200).collect();
        ErrorBody {
            code: ErrorCode::of_status(status),
            message: format!("the manager answered {status} {}", text.trim()).trim_end().to_owned(),
            hint: None,
            request_id: None,
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_segments_are_encoded() {
        assert_eq!(segment("dev.alice-1"), "dev.alice-1");
        assert_eq!(segment("SHA256:a/b+c"), "SHA256%3Aa%2Fb%2Bc");
        assert_eq!(segment("../x"), "..%2Fx");
    }

    #[test]
    fn an_answer_that_is_not_ours_is_quoted_under_the_code_of_its_status() {
        let ClientError::Api(body) = refusal(404, b"<html>no") else { panic!() };
        assert_eq!((body.code, body.message.as_str()), (ErrorCode::NotFound, "the manager answered 404 <html>no"));
    }
}
