//! Who a key belongs to and where a name leads. The manager knows; the gateway only asks.

use std::fmt::Write as _;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;

use crate::api::client::{Client, ClientError};
use crate::api::error::{ErrorBody, ErrorCode};
use crate::api::types::{AnnounceGateway, Identified, Identify, ResolveTarget, RevocationView, Target};

/// How long the manager may take for one answer. Much shorter than the login grace, so that the client hears why.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// A no, worded for the person at the SSH client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// What for.
    pub code: ErrorCode,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Refusal {
    /// A refusal without a hint.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None }
    }

    /// The same with a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// On one line, for the reason of a refused channel or a disconnect.
    pub fn line(&self) -> String {
        match &self.hint {
            Some(hint) => format!("gvm: {} ({})", plain(&self.message), plain(hint)),
            None => format!("gvm: {}", plain(&self.message)),
        }
    }

    /// On lines that end with `newline`, for the standard error of a session.
    pub fn lines(&self, newline: &str) -> String {
        let mut text = format!("gvm: {}{newline}", plain(&self.message));
        if let Some(hint) = &self.hint {
            // Writing to a string cannot fail.
            let _ = write!(text, "gvm: {}{newline}", plain(hint));
        }
        text
    }
}

/// The text goes to terminals, and parts of it were typed by somebody.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

impl From<ErrorBody> for Refusal {
    fn from(body: ErrorBody) -> Self {
        Self { code: body.code, message: body.message, hint: body.hint }
    }
}

impl From<ClientError> for Refusal {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Api(body) => body.into(),
            other => {
                tracing::warn!(error = %chain(&other), "the manager does not answer");
                unavailable()
            }
        }
    }
}

fn unavailable() -> Refusal {
    Refusal::new(ErrorCode::Unavailable, "the gvm manager does not answer at the moment")
        .hint("try again in a moment; if it stays so, tell your administrator")
}

/// An error with its causes, for the log.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let _ = write!(text, ": {inner}");
        cause = inner.source();
    }
    text
}

/// Access that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// This.
    Of(RevocationView),
    /// More than was told: ask about everybody.
    Missed,
}

/// Who is this key, where does it lead?
#[async_trait]
pub trait Directory: Send + Sync {
    /// Whether questions are going to be answered.
    async fn ready(&self) -> Result<(), Refusal>;

    /// Whose key or certificate it is, if anybody's.
    async fn identify(&self, ask: &Identify) -> Result<Option<Identified>, Refusal>;

    /// Access that ends from now on, until the manager goes away.
    async fn endings(&self) -> Result<BoxStream<'static, Ending>, Refusal>;

    /// May this key reach that machine, and where is it?
    async fn resolve(&self, ask: &ResolveTarget) -> Result<Target, Refusal>;

    /// Tells how this gateway is reached.
    async fn announce(&self, gateway: &AnnounceGateway) -> Result<(), Refusal>;
}

/// The manager's directory, over its unix socket. Nothing is kept: a manager that was restarted is found again
/// by the next question.
#[derive(Clone, Debug)]
pub struct ManagerDirectory {
    client: Client,
}

impl ManagerDirectory {
    /// The directory of the manager behind `client`.
    pub fn new(client: Client) -> Self {
        Self { client }
    }
}

async fn in_time<T>(answer: impl Future<Output = Result<T, ClientError>>) -> Result<T, Refusal> {
    match tokio::time::timeout(ANSWER_DEADLINE, answer).await {
        Ok(answer) => answer.map_err(Refusal::from),
        Err(_) => Err(unavailable()),
    }
}

#[async_trait]
impl Directory for ManagerDirectory {
    async fn ready(&self) -> Result<(), Refusal> {
        match in_time(self.client.get::<serde_json::Value>("/v1/version")).await {
            Err(refusal) if refusal.code == ErrorCode::Unavailable => Err(refusal),
            // Any other answer is an answer.
            _ => Ok(()),
        }
    }

    async fn identify(&self, ask: &Identify) -> Result<Option<Identified>, Refusal> {
        match in_time(self.client.post("/v1/gateway/identify", ask)).await {
            Ok(found) => Ok(Some(found)),
            Err(refusal) if refusal.code == ErrorCode::NotFound => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    async fn endings(&self) -> Result<BoxStream<'static, Ending>, Refusal> {
        let told = in_time(self.client.revocations()).await?;
        // A message that cannot be read is the end of the stream: it is asked for anew.
        let told = told
            .take_while(|item| std::future::ready(item.is_ok()))
            .filter_map(|item| std::future::ready(item.ok().map(|revoked| revoked.map_or(Ending::Missed, Ending::Of))));
        Ok(told.boxed())
    }

    async fn resolve(&self, ask: &ResolveTarget) -> Result<Target, Refusal> {
        in_time(self.client.post("/v1/gateway/target", ask)).await
    }

    async fn announce(&self, gateway: &AnnounceGateway) -> Result<(), Refusal> {
        // Whatever the manager has to say to this is of no interest.
        let _: serde_json::Value = in_time(self.client.post("/v1/gateway/announce", gateway)).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_text_for_a_terminal() {
        let refusal = Refusal::new(ErrorCode::Conflict, "dev is stopped\x1b[2J").hint("gvm start dev");
        assert_eq!(refusal.line(), "gvm: dev is stopped [2J (gvm start dev)");
        assert_eq!(refusal.lines("\r\n"), "gvm: dev is stopped [2J\r\ngvm: gvm start dev\r\n");
    }

    #[tokio::test]
    async fn a_missing_manager_is_said_in_plain_words() {
        let folder = tempfile::tempdir().unwrap();
        let directory = ManagerDirectory::new(Client::new(&folder.path().join("none.sock")).unwrap());
        let refusal = directory
            .identify(&Identify { public_key: "ssh-ed25519 AAAA".to_owned(), certificate: None })
            .await
            .unwrap_err();
        assert_eq!(refusal.code, ErrorCode::Unavailable);
        assert!(refusal.line().starts_with("gvm: the gvm manager does not answer"));
    }
}
