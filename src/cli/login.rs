//! `gvm login`, `gvm logout`: a manager on another host, and who one is there.
//!
//! ```text
//!   URL -> [trust: authorities of this machine, a fingerprint, or a question] -> [way: token, password, code] -> /v1/me -> hosts.toml
//! ```

mod ways;

use clap::Args;
use serde::de::IgnoredAny;

use self::ways::WayArgs;
use super::error::{CliError, CliResult};
use super::hosts::{Host, Hosts};
use super::output::{Answer, Output};
use crate::api::client::place::ServerUrl;
use crate::api::client::{Client, ClientError, segment};
use crate::api::error::ErrorCode;
use crate::api::types::Me;
use crate::model::fingerprint::Fingerprint;
use crate::model::token::TokenText;

/// Options of `gvm login`.
#[derive(Debug, Args)]
#[command(after_help = "\
The login is kept in ~/.config/gvm/hosts.toml, which nobody else can read. Programs set GVM_HOST, GVM_TOKEN and, where no
public authority signed the certificate, GVM_FINGERPRINT instead.")]
pub struct LoginArgs {
    /// The manager, https://HOST[:PORT] [default: the last one]
    #[arg(value_name = "URL")]
    url: Option<ServerUrl>,
    /// The fingerprint of its certificate, as its administrator told it
    #[arg(long, value_name = "SHA256:...")]
    fingerprint: Option<Fingerprint>,
    #[command(flatten)]
    way: WayArgs,
}

/// Options of `gvm logout`.
#[derive(Debug, Args)]
pub struct LogoutArgs {
    /// The manager [default: the last one]
    #[arg(value_name = "URL")]
    url: Option<ServerUrl>,
}

/// Runs `gvm login`.
///
/// # Errors
/// Where the server is not to be trusted, does not answer, or does not take the login.
pub async fn login(out: &Output, args: LoginArgs) -> CliResult {
    let mut hosts = Hosts::load()?;
    let url = args.url.or_else(|| hosts.usual()).ok_or_else(no_url)?;
    let pin = args.fingerprint.or_else(|| hosts.get(&url).and_then(|host| host.fingerprint));
    let pin = trust(out, &url, pin).await?;
    let client = Client::https(&url, pin)?;
    let token = ways::prove(out, &client, args.way).await?;
    let client = client.with_token(Some(token.clone()));
    let me: Me = client.get("/v1/me").await?;
    hosts.put(&url, Host { fingerprint: pin, token: token.expose().clone() });
    hosts.save()?;
    out.result(&serde_json::json!({ "host": url.as_str(), "name": me.name, "role": me.role }), || {
        format!("logged in to {url} as {} ({})", me.name, me.role)
    })
}

fn no_url() -> CliError {
    CliError::invalid("no manager is named").hint("gvm login https://HOST[:PORT], as your administrator told you")
}

/// Sees to it that the server is the right one; gives the fingerprint to pin, where no authority vouches for it.
async fn trust(out: &Output, url: &ServerUrl, pin: Option<Fingerprint>) -> CliResult<Option<Fingerprint>> {
    // Anything but a fault of the certificate will do: nobody is logged in yet.
    let asked = Client::https(url, pin)?.get::<IgnoredAny>("/v1/me").await;
    match asked {
        Ok(_) | Err(ClientError::Api(_)) => return Ok(pin),
        Err(ClientError::Untrusted(_)) if pin.is_none() => {}
        Err(error) => return Err(error.into()),
    }
    let shown = Client::fingerprint_of(url).await?;
    let hint = format!(
        "compare it with what `gvm admin fingerprint` says on the server, then: gvm login {url} --fingerprint {shown}"
    );
    if !out.can_ask() {
        let text = format!(
            "no authority that this machine trusts signed the certificate of {url}; its fingerprint is {shown}"
        );
        return Err(CliError::new(ErrorCode::Denied, text).hint(hint));
    }
    out.say(&format!("No authority that this machine trusts signed the certificate of {url}."));
    out.say(&format!("Its fingerprint is {shown}; `gvm admin fingerprint` shows the right one on the server."));
    match out.ask("Is it the right one?", Answer::No)? {
        Answer::Yes => Ok(Some(shown)),
        Answer::No => {
            Err(CliError::new(ErrorCode::Denied, "not logged in: the server is not to be trusted").hint(hint))
        }
    }
}

/// Runs `gvm logout`.
///
/// # Errors
/// Where there is no such login; where the token could not be revoked, it is forgotten all the same.
pub async fn logout(out: &Output, args: LogoutArgs) -> CliResult {
    let mut hosts = Hosts::load()?;
    let url = args.url.or_else(|| hosts.usual()).ok_or_else(no_login)?;
    let host = hosts.forget(&url).ok_or_else(no_login)?;
    let revoked = revoke(&url, &host).await;
    hosts.save()?;
    match revoked {
        Ok(()) => {}
        // It is good no more, which is what was wanted.
        Err(error) if error.code() == ErrorCode::Unauthenticated => {}
        Err(error) => {
            return Err(CliError::from(error).hint(format!(
                "the login is forgotten here, but its token is still good at {url}: revoke it there, gvm token revoke"
            )));
        }
    }
    out.result(&serde_json::json!({ "host": url.as_str() }), || format!("logged out of {url}"))
}

fn no_login() -> CliError {
    CliError::new(ErrorCode::NotFound, "you are not logged in to a manager on another host")
}

async fn revoke(url: &ServerUrl, host: &Host) -> Result<(), ClientError> {
    let Ok(token) = host.token.parse::<TokenText>() else { return Ok(()) };
    let client = Client::https(url, host.fingerprint)?.with_token(Some(token.secret().clone()));
    let path = format!("/v1/tokens/{}", segment(&token.id().to_string()));
    client.delete::<IgnoredAny>(&path).await.map(|_| ())
}
