//! How one proves who one is to a manager: a token, a password, or a code that is typed in a browser.

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::sleep;

use super::super::error::{CliError, CliResult, plain};
use super::super::files;
use super::super::output::Output;
use crate::api::client::Client;
use crate::api::error::ErrorCode;
use crate::api::types::{
    DeviceAnswer, DeviceLoginView, DeviceWord, LoginWaysView, PasswordLogin, PollDevice, SessionView,
};
use crate::model::secret::Secret;
use crate::model::token::TokenText;

/// Longest file with a token or a password.
const FILE_MAX: u64 = 4096;
/// A directory and PAM may each take their time.
const PASSWORD_DEADLINE: Duration = Duration::from_secs(60);

/// What was asked for on the command line.
#[derive(Debug, clap::Args)]
pub struct WayArgs {
    /// Log in with the token in this file, or - for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["user", "password_stdin"])]
    token_file: Option<PathBuf>,
    /// Log in with the password of this login
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Read the password from standard input
    #[arg(long, requires = "user")]
    password_stdin: bool,
}

/// Proves it, in the way that was asked for or else the first that the manager offers.
///
/// # Errors
/// Where there is no way, nobody to ask, or the proof is not accepted.
pub async fn prove(out: &Output, client: &Client, args: WayArgs) -> CliResult<Secret<String>> {
    if let Some(file) = args.token_file {
        return token(&files::read_text(&file, FILE_MAX)?);
    }
    if let Some(user) = args.user {
        let password = match args.password_stdin {
            true => files::read_text(&PathBuf::from("-"), FILE_MAX)?,
            false => ask(out, &format!("Password of {}: ", plain(&user)))?,
        };
        return by_password(client, user, password).await;
    }
    let ways: LoginWaysView = client.get("/v1/login").await?;
    match ways {
        // The code has to be seen, and is typed elsewhere.
        LoginWaysView { device: true, .. } if !out.is_quiet() => by_device(out, client).await,
        _ if !out.can_ask() => Err(nobody()),
        LoginWaysView { passwords, .. } if !passwords.is_empty() => {
            Err(CliError::invalid("the manager wants to know your login and its password")
                .hint("gvm login --user NAME"))
        }
        _ => token(&out.ask_hidden("Token (from `gvm token create` on the server): ")?),
    }
}

fn nobody() -> CliError {
    CliError::invalid("there is nobody to ask")
        .hint("give a token: gvm login URL --token-file FILE; or a password: --user NAME --password-stdin")
}

fn ask(out: &Output, question: &str) -> CliResult<String> {
    if out.can_ask() { out.ask_hidden(question) } else { Err(nobody()) }
}

fn token(text: &str) -> CliResult<Secret<String>> {
    let token: Result<TokenText, _> = text.trim().parse();
    Ok(token.map_err(|e| CliError::invalid(e.to_string()))?.secret().clone())
}

async fn by_password(client: &Client, user: String, password: String) -> CliResult<Secret<String>> {
    // The end of the line is the terminal's or the file's, not the password's.
    let password = password.strip_suffix('\n').unwrap_or(&password);
    let password = password.strip_suffix('\r').unwrap_or(password).to_owned();
    let body = PasswordLogin { user, password, method: None };
    let session: SessionView = client.post_within("/v1/login/password", &body, PASSWORD_DEADLINE).await?;
    Ok(session.token.into())
}

/// Shows the code and asks until the person has typed it elsewhere.
async fn by_device(out: &Output, client: &Client) -> CliResult<Secret<String>> {
    let begun: DeviceLoginView = client.post("/v1/login/device", &serde_json::json!({})).await?;
    let until = Timestamp::now().as_second().saturating_add(i64::try_from(begun.expires_in).unwrap_or(i64::MAX));
    out.say(&format!("Open {} in a browser, on any machine.", plain(&begun.verification_uri)));
    out.say(&format!("Type this code there: {}", plain(&begun.user_code)));
    if let Some(complete) = &begun.verification_uri_complete {
        out.say(&format!("Or open {}", plain(complete)));
    }
    let question = PollDevice { handle: begun.handle };
    let mut interval = begun.interval;
    while Timestamp::now().as_second() < until {
        sleep(Duration::from_secs(interval.clamp(1, 60))).await;
        let answer: DeviceAnswer = match client.post("/v1/login/device/poll", &question).await {
            Ok(answer) => answer,
            // The provider or the manager may be back in a moment.
            Err(error) if error.is_passing() => continue,
            Err(error) => return Err(error.into()),
        };
        match (answer.state, answer.session) {
            (DeviceWord::Done, Some(session)) => return Ok(session.token.into()),
            (DeviceWord::Done, None) => return Err(CliError::new(ErrorCode::Internal, "the manager sent no session")),
            (DeviceWord::Pending | DeviceWord::SlowDown, _) => interval = answer.interval,
        }
    }
    Err(CliError::new(ErrorCode::Unavailable, "nobody typed the code in time").hint("gvm login again"))
}
