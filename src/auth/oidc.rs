//! The institution's OpenID Connect provider, with gvm as its client.
//!
//! ```text
//!   page:   begin_page --address--> browser --provider--> code + state --redeem_page--> Proven
//!   device: begin_device --code--> person, elsewhere      poll_device ... --------------> Proven
//!                                 both: token endpoint --> ID token --keys--> claims --model--> Proven
//! ```
//!
//! Only what the provider signs is believed, and only of the issuer that is configured. Nothing is remembered here but the
//! provider's own description and keys; logins that are under way are the manager's.

mod http;
mod keys;
mod provider;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde::Deserialize;
use sha2::{Digest as _, Sha256, Sha384, Sha512};

use self::http::Answer;
use self::provider::Provider;
use super::secret_file::{self, SecretError};
use crate::config::OidcConfig;
use crate::model::login::id_token::{Expected, Unbelieved};
use crate::model::login::{MAX_WORD, Proven};
use crate::model::principal;
use crate::model::secret::Secret;

/// One login, with all that is asked of the provider for it.
const DEADLINE: Duration = Duration::from_secs(15);
/// Where the provider sends the browser back to.
pub const CALLBACK: &str = "/v1/login/oidc/callback";
/// Between two questions of a device, seconds: where the provider names none (RFC 8628).
const INTERVAL: u64 = 5;
/// Longest life of a device's login, seconds: providers give minutes.
const MAX_DEVICE_LIFE: u64 = 1800;

/// Why nobody is known after all.
#[derive(Debug, thiserror::Error)]
pub enum OidcError {
    /// The provider does not answer, or not in time, or with what makes no sense.
    #[error("the login provider {0}")]
    Provider(String),
    /// What was configured cannot be used.
    #[error("the login provider is not set up right: {0}")]
    Setup(String),
    /// Its secret cannot be read.
    #[error("the login provider is not set up right")]
    Secret(#[from] SecretError),
    /// The provider says no, by its word for it.
    #[error("the login provider refused it ({0})")]
    Refused(String),
    /// Its token is not to be believed.
    #[error("the ID token is not to be believed: {0}")]
    Token(String),
    /// It knows them, and they are none of ours.
    #[error("{0}")]
    NotOurs(String),
}

impl From<Unbelieved> for OidcError {
    fn from(why: Unbelieved) -> Self {
        Self::Token(why.to_string())
    }
}

/// A login with a browser that is under way. Who has these values can finish it once.
#[derive(Clone, Debug)]
pub struct PageLogin {
    /// PKCE's verifier.
    pub verifier: Secret<String>,
    /// What the ID token has to repeat.
    pub nonce: Secret<String>,
}

/// A login of a device that is under way.
#[derive(Clone, Debug)]
pub struct DeviceLogin {
    /// What the provider knows it by; the person never sees it.
    pub device_code: Secret<String>,
    /// What the person types.
    pub user_code: String,
    /// Where.
    pub verification_uri: String,
    /// The same with the code in it, where the provider has that.
    pub verification_uri_complete: Option<String>,
    /// Between two questions.
    pub interval: Duration,
    /// How long it may take.
    pub expires_in: Duration,
}

/// The provider's answer to a device that asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DevicePoll {
    /// The person has not answered yet.
    Pending,
    /// As [`Self::Pending`], and it was asked too soon.
    SlowDown,
    /// They have, with yes.
    Done(Proven),
}

/// The client.
#[derive(Debug)]
pub struct Oidc {
    config: OidcConfig,
    provider: Provider,
}

/// What the token endpoint gives.
#[derive(Deserialize)]
struct Tokens {
    id_token: Option<String>,
    access_token: Option<String>,
}

#[derive(Deserialize)]
struct DeviceAnswer {
    device_code: String,
    user_code: String,
    verification_uri: String,
    verification_uri_complete: Option<String>,
    expires_in: u64,
    interval: Option<u64>,
}

impl Oidc {
    /// A client; nothing is asked yet.
    pub fn new(config: OidcConfig) -> Self {
        Self { provider: Provider::new(&config.issuer), config }
    }

    /// The address that the provider sends browsers back to; none where logins with a browser alone are off.
    pub fn redirect_uri(&self) -> Option<String> {
        self.config.public_url.as_ref().map(|url| format!("{}{CALLBACK}", url.trim_end_matches('/')))
    }

    /// Where a browser is to be sent. `state` comes back with it.
    ///
    /// # Errors
    /// See [`OidcError`].
    pub async fn begin_page(&self, login: &PageLogin, state: &str) -> Result<String, OidcError> {
        let redirect =
            self.redirect_uri().ok_or_else(|| OidcError::Setup("login.oidc.public_url is not set".into()))?;
        let found = in_time(self.provider.description()).await?;
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(login.verifier.expose()));
        let fields = [
            ("response_type", "code"),
            ("client_id", &self.config.client_id),
            ("redirect_uri", &redirect),
            ("scope", &self.config.scopes.join(" ")),
            ("state", state),
            ("nonce", login.nonce.expose()),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ];
        http::with_query(&found.authorization_endpoint, &fields)
    }

    /// Turns the code that a browser came back with into who it is. The provider takes a code once.
    ///
    /// # Errors
    /// See [`OidcError`].
    pub async fn redeem_page(&self, login: &PageLogin, code: &str, now: Timestamp) -> Result<Proven, OidcError> {
        let redirect = self.redirect_uri().unwrap_or_default();
        let fields = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &redirect),
            ("code_verifier", login.verifier.expose()),
        ];
        in_time(async {
            let found = self.provider.description().await?;
            match self.ask(&found.token_endpoint, &fields).await? {
                Answer::Yes(body) => self.believe(&body, Some(login.nonce.expose()), now).await,
                Answer::No(error) => Err(OidcError::Refused(error)),
            }
        })
        .await
    }

    /// Begins the login of a device.
    ///
    /// # Errors
    /// See [`OidcError`].
    pub async fn begin_device(&self) -> Result<DeviceLogin, OidcError> {
        let scope = self.config.scopes.join(" ");
        let body = in_time(async {
            let found = self.provider.description().await?;
            let endpoint = found.device_authorization_endpoint.as_deref();
            let endpoint = endpoint.ok_or_else(|| OidcError::Setup("it offers no login of devices".into()))?;
            match self.ask(endpoint, &[("scope", &scope)]).await? {
                Answer::Yes(body) => Ok(body),
                Answer::No(error) => Err(OidcError::Setup(format!("it refuses to begin one ({error})"))),
            }
        })
        .await?;
        let answer: DeviceAnswer = http::read(&body, "device authorization")?;
        let is_usable = |text: &str| !text.is_empty() && text.len() <= 2048 && !text.chars().any(char::is_control);
        let is_web = |text: &str| is_usable(text) && (text.starts_with("https://") || self.provider.is_local());
        let complete = answer.verification_uri_complete.filter(|uri| is_web(uri));
        if !is_usable(&answer.device_code) || !is_usable(&answer.user_code) || !is_web(&answer.verification_uri) {
            return Err(OidcError::Provider("sent a device authorization that cannot be shown to a person".into()));
        }
        Ok(DeviceLogin {
            device_code: answer.device_code.into(),
            user_code: answer.user_code,
            verification_uri: answer.verification_uri,
            verification_uri_complete: complete,
            interval: Duration::from_secs(answer.interval.unwrap_or(INTERVAL).clamp(1, 60)),
            expires_in: Duration::from_secs(answer.expires_in.clamp(1, MAX_DEVICE_LIFE)),
        })
    }

    /// Asks whether the person has answered.
    ///
    /// # Errors
    /// See [`OidcError`].
    pub async fn poll_device(&self, device_code: &Secret<String>, now: Timestamp) -> Result<DevicePoll, OidcError> {
        let fields = [
            ("grant_type", "urn:ietf:params:oauth:grant-type:device_code"),
            ("device_code", device_code.expose().as_str()),
        ];
        in_time(async {
            let found = self.provider.description().await?;
            match self.ask(&found.token_endpoint, &fields).await? {
                Answer::Yes(body) => Ok(DevicePoll::Done(self.believe(&body, None, now).await?)),
                Answer::No(error) if error == "authorization_pending" => Ok(DevicePoll::Pending),
                Answer::No(error) if error == "slow_down" => Ok(DevicePoll::SlowDown),
                Answer::No(error) => Err(OidcError::Refused(error)),
            }
        })
        .await
    }

    /// A question as the client that we are.
    async fn ask(&self, endpoint: &str, fields: &[(&str, &str)]) -> Result<Answer, OidcError> {
        let secret = self.config.client_secret_file.as_deref().map(secret_file::read).transpose()?;
        self.provider.ask(endpoint, fields, &self.config.client_id, secret.as_ref()).await
    }

    /// Who it is by the tokens of an answer.
    async fn believe(&self, body: &[u8], nonce: Option<&str>, now: Timestamp) -> Result<Proven, OidcError> {
        let tokens: Tokens = http::read(body, "token")?;
        let id_token = tokens.id_token.ok_or_else(|| OidcError::Token("there is none".into()))?;
        let signed = self.provider.verify(&id_token).await?;
        let claims = signed.claims;
        let expected = Expected { issuer: &self.config.issuer, client_id: &self.config.client_id, nonce };
        let subject = claims.believe(expected, now)?.to_owned();
        if let (Some(said), Some(token)) = (claims.text("at_hash"), &tokens.access_token)
            && said != half_hash(signed.hash, token)
        {
            return Err(OidcError::Token("it does not belong to the access token that came with it".into()));
        }
        let domains = &self.config.allowed_domains;
        let mail = claims.text("email").filter(|_| claims.is_true("email_verified"));
        let domain = mail.and_then(|mail| mail.rsplit_once('@')).map(|(_, domain)| domain);
        let is_ours = |domain: &str| domains.iter().any(|allowed| allowed.eq_ignore_ascii_case(domain));
        if !domains.is_empty() && !domain.is_some_and(is_ours) {
            return Err(OidcError::NotOurs(
                "their mail address is not verified, or of no domain that may log in".into(),
            ));
        }
        let text = |claim: &str| claims.text(claim).unwrap_or_default().to_owned();
        let name = Some(text(&self.config.name_claim)).filter(|name| !name.is_empty());
        let groups = claims.list(&self.config.group_claim).into_iter().filter(|group| group.len() <= MAX_WORD);
        Ok(Proven {
            provider: principal::Provider::Oidc,
            // An issuer has no spaces: two providers never mean the same person.
            subject: format!("{} {subject}", self.config.issuer),
            name: name.unwrap_or_else(|| subject.clone()),
            full_name: text(&self.config.full_name_claim),
            groups: groups.collect(),
        })
    }
}

/// The left half of a token's hash (OpenID Connect Core 3.1.3.6).
fn half_hash(hash: keys::Hash, token: &str) -> String {
    let bytes = match hash {
        keys::Hash::Sha256 => Sha256::digest(token).to_vec(),
        keys::Hash::Sha384 => Sha384::digest(token).to_vec(),
        keys::Hash::Sha512 => Sha512::digest(token).to_vec(),
    };
    let half = bytes.get(..bytes.len() / 2).unwrap_or_default();
    URL_SAFE_NO_PAD.encode(half)
}

async fn in_time<T>(work: impl Future<Output = Result<T, OidcError>>) -> Result<T, OidcError> {
    let late = |_| OidcError::Provider(format!("did not answer within {} s", DEADLINE.as_secs()));
    tokio::time::timeout(DEADLINE, work).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_an_access_token_is_the_standards() {
        // The example of OpenID Connect Core, A.3.
        let token = "jHkWEdUXMU1BwAsC4vtUsZwnNvTIxEl0z9K3vx5KF0Y";
        assert_eq!(half_hash(keys::Hash::Sha256, token), "77QmUPtjPfzWtF2AnpK9RQ");
    }
}
