//! The provider as it describes itself, and its keys; both kept for a while.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use jsonwebtoken::jwk::Jwk;
use reqwest::Client;
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::OidcError;
use super::http::{self, Answer};
use super::keys::{self, NotSigned, Signed};
use crate::model::login::endpoint::Endpoint;
use crate::model::secret::Secret;

/// How long description and keys are believed.
const KEPT: Duration = Duration::from_secs(3600);
/// Keys are asked for again at once where a token names one that is not there, so often within [`WINDOW`]: a provider
/// that changes its keys is followed, and forged tokens make no flood of questions.
const REFETCHES: usize = 4;
/// See [`REFETCHES`].
const WINDOW: Duration = Duration::from_secs(60);

/// What the provider says of itself (OpenID Connect Discovery 1.0).
#[derive(Clone, Debug, Deserialize)]
pub struct Description {
    issuer: String,
    /// Where browsers go.
    pub authorization_endpoint: String,
    /// Where codes are redeemed.
    pub token_endpoint: String,
    jwks_uri: String,
    /// Where devices begin.
    pub device_authorization_endpoint: Option<String>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
}

#[derive(Debug, Default)]
struct Kept {
    client: Option<Client>,
    description: Option<(Arc<Description>, Instant)>,
    keys: Option<(Arc<Vec<Jwk>>, Instant)>,
    refetches: VecDeque<Instant>,
}

/// The provider.
#[derive(Debug)]
pub struct Provider {
    issuer: String,
    is_local: bool,
    kept: Mutex<Kept>,
}

impl Provider {
    /// By its issuer.
    pub fn new(issuer: &str) -> Self {
        let is_local = Endpoint::parse(issuer).is_some_and(|endpoint| endpoint.is_loopback());
        Self { issuer: issuer.to_owned(), is_local, kept: Mutex::default() }
    }

    /// True where it is on this host.
    pub const fn is_local(&self) -> bool {
        self.is_local
    }

    /// What it says of itself.
    pub async fn description(&self) -> Result<Arc<Description>, OidcError> {
        let mut kept = self.kept.lock().await;
        self.described(&mut kept).await.map(|(found, _)| found)
    }

    async fn described(&self, kept: &mut Kept) -> Result<(Arc<Description>, Client), OidcError> {
        let client = match &kept.client {
            Some(client) => client.clone(),
            None => http::client(self.is_local)?,
        };
        kept.client = Some(client.clone());
        if let Some((found, at)) = &kept.description
            && at.elapsed() < KEPT
        {
            return Ok((found.clone(), client));
        }
        let url = format!("{}/.well-known/openid-configuration", self.issuer.trim_end_matches('/'));
        let found: Description = http::read(&http::get(&client, &url).await?, "discovery")?;
        self.check(&found)?;
        let found = Arc::new(found);
        kept.description = Some((found.clone(), Instant::now()));
        Ok((found, client))
    }

    /// It is whom we asked, and all that it names can be talked to without being overheard.
    fn check(&self, found: &Description) -> Result<(), OidcError> {
        if found.issuer != self.issuer {
            return Err(OidcError::Setup(format!(
                "login.oidc.issuer is {:?}, and the provider there calls itself {:?}",
                self.issuer,
                found.issuer.chars().take(200).collect::<String>()
            )));
        }
        let device = found.device_authorization_endpoint.as_ref();
        for url in [&found.authorization_endpoint, &found.token_endpoint, &found.jwks_uri].into_iter().chain(device) {
            let is_private = Endpoint::parse(url.split('?').next().unwrap_or_default())
                .is_some_and(|endpoint| endpoint.scheme == "https" || self.is_local && endpoint.is_private_http());
            if !is_private {
                return Err(OidcError::Provider("names an address that is not HTTPS".into()));
            }
        }
        Ok(())
    }

    /// Posts a form as this client: its secret in the header, or in the form where the provider wants only that.
    pub async fn ask(
        &self,
        endpoint: &str,
        fields: &[(&str, &str)],
        client_id: &str,
        secret: Option<&Secret<String>>,
    ) -> Result<Answer, OidcError> {
        let (found, client) = {
            let mut kept = self.kept.lock().await;
            self.described(&mut kept).await?
        };
        let takes = |method: &str| {
            let methods = found.token_endpoint_auth_methods_supported.as_ref();
            methods.is_none_or(|methods| methods.iter().any(|one| one == method))
        };
        let mut form = fields.to_vec();
        form.push(("client_id", client_id));
        match secret {
            Some(secret) if takes("client_secret_basic") => {
                http::post(&client, endpoint, &form, Some((client_id, secret))).await
            }
            Some(secret) => {
                form.push(("client_secret", secret.expose()));
                http::post(&client, endpoint, &form, None).await
            }
            None => http::post(&client, endpoint, &form, None).await,
        }
    }

    /// Checks a token's signature; asks for the keys again where it is by one that is not there.
    pub async fn verify(&self, token: &str) -> Result<Signed, OidcError> {
        let mut kept = self.kept.lock().await;
        let keys = match &kept.keys {
            Some((keys, at)) if at.elapsed() < KEPT => keys.clone(),
            _ => self.fetch_keys(&mut kept).await?,
        };
        let verdict = match keys::verify(&keys, token) {
            Err(NotSigned::UnknownKey) if may_refetch(&mut kept.refetches) => {
                let keys = self.fetch_keys(&mut kept).await?;
                keys::verify(&keys, token)
            }
            verdict => verdict,
        };
        verdict.map_err(|why| OidcError::Token(why.to_string()))
    }

    async fn fetch_keys(&self, kept: &mut Kept) -> Result<Arc<Vec<Jwk>>, OidcError> {
        let (found, client) = self.described(kept).await?;
        let body = http::get(&client, &found.jwks_uri).await?;
        let keys = keys::read_set(&body).ok_or_else(|| OidcError::Provider("sent keys that cannot be read".into()))?;
        let keys = Arc::new(keys);
        kept.keys = Some((keys.clone(), Instant::now()));
        Ok(keys)
    }
}

fn may_refetch(done: &mut VecDeque<Instant>) -> bool {
    while done.front().is_some_and(|at| at.elapsed() >= WINDOW) {
        done.pop_front();
    }
    let may = done.len() < REFETCHES;
    if may {
        done.push_back(Instant::now());
    }
    may
}
