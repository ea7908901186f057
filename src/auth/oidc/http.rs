//! Questions to the provider: bounded in size and time, never redirected.

use std::time::Duration;

use reqwest::header::ACCEPT;
use reqwest::{Client, RequestBuilder, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::OidcError;
use crate::model::secret::Secret;

/// Largest answer: a provider's description and its keys are some KiB.
const MAX_ANSWER: usize = 256 * 1024;
/// Until a connection stands.
const CONNECT: Duration = Duration::from_secs(5);
/// One question.
const QUESTION: Duration = Duration::from_secs(10);

/// What the provider answered.
#[derive(Debug)]
pub enum Answer {
    /// Success, with its body.
    Yes(Vec<u8>),
    /// A refusal of OAuth's kind, by its word.
    No(String),
}

#[derive(Deserialize)]
struct Refusal {
    error: String,
}

/// A client for such questions. To this host itself no proxy is asked.
pub fn client(is_local: bool) -> Result<Client, OidcError> {
    let builder = Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT)
        .timeout(QUESTION)
        .https_only(!is_local);
    let builder = if is_local { builder.no_proxy() } else { builder };
    builder.build().map_err(|e| OidcError::Setup(format!("no HTTP client can be made: {e}")))
}

/// Reads an address.
pub async fn get(client: &Client, url: &str) -> Result<Vec<u8>, OidcError> {
    match send(client.get(url)).await? {
        (200, body) => Ok(body),
        (status, _) => Err(OidcError::Provider(format!("answered {status} for {url}"))),
    }
}

/// Posts a form; `basic` is the client's own login in the header.
pub async fn post(
    client: &Client,
    url: &str,
    form: &[(&str, &str)],
    basic: Option<(&str, &Secret<String>)>,
) -> Result<Answer, OidcError> {
    let mut request = client.post(url).form(form);
    if let Some((id, secret)) = basic {
        // Encoded as in a form first (RFC 6749, 2.3.1).
        request = request.basic_auth(encoded(id), Some(encoded(secret.expose())));
    }
    match send(request).await? {
        (200, body) => Ok(Answer::Yes(body)),
        (status @ (400 | 401 | 403), body) => match serde_json::from_slice::<Refusal>(&body) {
            Ok(refusal) => Ok(Answer::No(word(&refusal.error))),
            Err(_) => Err(OidcError::Provider(format!("answered {status} without a reason"))),
        },
        (status, _) => Err(OidcError::Provider(format!("answered {status}"))),
    }
}

/// A provider's word, fit for a log line.
fn word(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_alphanumeric() || "_- .".contains(*c)).take(60).collect()
}

async fn send(request: RequestBuilder) -> Result<(u16, Vec<u8>), OidcError> {
    let failed = |e: reqwest::Error| {
        let what = if e.is_timeout() { "does not answer in time" } else { "cannot be reached" };
        // Without the address: it may hold a code.
        OidcError::Provider(format!("{what}: {}", root(&e.without_url())))
    };
    let mut answer = request.header(ACCEPT, "application/json").send().await.map_err(failed)?;
    let status = answer.status().as_u16();
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(failed)? {
        if body.len().saturating_add(chunk.len()) > MAX_ANSWER {
            return Err(OidcError::Provider("answers with more than can be meant".into()));
        }
        body.extend_from_slice(&chunk);
    }
    Ok((status, body))
}

fn root(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

/// Reads an answer.
pub fn read<T: DeserializeOwned>(body: &[u8], what: &str) -> Result<T, OidcError> {
    serde_json::from_slice(body).map_err(|_| OidcError::Provider(format!("sent a {what} answer that cannot be read")))
}

/// An address with these fields in its query.
pub fn with_query(url: &str, fields: &[(&str, &str)]) -> Result<String, OidcError> {
    let mut url: Url = url.parse().map_err(|_| OidcError::Provider("names an address that is none".into()))?;
    url.query_pairs_mut().extend_pairs(fields);
    Ok(url.into())
}

fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'*' => char::from(byte).to_string(),
            b' ' => "+".to_owned(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_cannot_break_out_of_a_query() {
        let url = with_query("https://op/auth?x=1", &[("state", "a&b=c#d")]).unwrap();
        assert_eq!(url, "https://op/auth?x=1&state=a%26b%3Dc%23d");
        assert_eq!(encoded("a:b c+ä"), "a%3Ab+c%2B%C3%A4");
        assert_eq!(word("access_denied\n\u{1b}[31m"), "access_denied31m");
    }
}
