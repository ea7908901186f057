//! How a command ends when it does not end well: what to say, what to do about it, which exit code.
//!
//! The code of [`ErrorBody`] picks the exit code, so that a refusal by the manager and the same refusal made
//! here before anything was sent look alike.

use std::fmt::Display;
use std::io;
use std::path::Path;

use crate::api::client::ClientError;
use crate::api::client::place::Place;
use crate::api::error::{ErrorBody, ErrorCode};

/// Result of a command or of a part of it.
pub type CliResult<T = ()> = Result<T, CliError>;

/// Exit codes, as told by `--help` and the man page.
pub const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    it failed, or a check found faults
  2    the command line, a name or a value is not usable
  3    you may not do this, or it would be over your quota
  4    there is no such thing, or it is not yours to see
  5    the name is taken, the thing is in the wrong state, or the host is full
  6    the manager (or something it needs) does not answer, or a wait took too long
  130  interrupted with Ctrl-C; what was asked for goes on
`gvm ssh` and `gvm scp` end with the code of ssh and scp.";

/// Why a command stops.
#[derive(Debug)]
pub enum CliError {
    /// It failed; the user is told.
    Failed(Box<ErrorBody>),
    /// The reader of our output is gone; nothing is said.
    BrokenPipe,
    /// Everything was said already; only the exit code is left.
    Silent(u8),
}

/// Exit code after Ctrl-C.
pub const INTERRUPTED: u8 = 130;

impl CliError {
    /// A failure with its code and a sentence that names the things concerned.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::Failed(Box::new(ErrorBody { code, message: message.into(), hint: None, request_id: None }))
    }

    /// What was typed cannot be used.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Invalid, message)
    }

    /// Something on this machine went wrong: `doing` says what was being done, such as `cannot write`.
    pub fn file(doing: &str, path: &Path, error: &io::Error) -> Self {
        let code = match error.kind() {
            io::ErrorKind::NotFound => ErrorCode::Invalid,
            io::ErrorKind::PermissionDenied => ErrorCode::Denied,
            _ => ErrorCode::Internal,
        };
        Self::new(code, format!("{doing} {}: {error}", path.display()))
    }

    /// The same with a word on what to do; a hint that is there already stays.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        if let Self::Failed(body) = &mut self
            && body.hint.is_none()
        {
            body.hint = Some(hint.into());
        }
        self
    }

    /// The exit code of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Failed(body) => body.code.exit_code(),
            // As ripgrep does: a reader that has seen enough is no failure.
            Self::BrokenPipe => 0,
            Self::Silent(code) => *code,
        }
    }

    /// A write to standard output failed.
    pub fn output(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::BrokenPipe
        } else {
            Self::new(ErrorCode::Internal, format!("cannot write the output: {error}"))
        }
    }
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> Self {
        let error_code = error.code();
        match error {
            ClientError::Api(body) => Self::Failed(Box::new(body)),
            ClientError::Unreachable { place: Place::Socket(socket), source } => unreachable_manager(&socket, &source),
            ClientError::Unreachable { place: Place::Url(url), source } => {
                Self::new(error_code, format!("the gvm manager cannot be reached at {url}: {source}"))
                    .hint("is the address right, and does the manager listen there (https.listen)? `gvm login` changes it")
            }
            ClientError::Untrusted(_) => Self::new(error_code, error.to_string()).hint(
                "log in with its fingerprint, which `gvm admin fingerprint` shows on the server: gvm login URL --fingerprint SHA256:...",
            ),
            ClientError::Changed { .. } => Self::new(error_code, error.to_string()).hint(
                "nothing was sent to it. Somebody may be in between, or the server has a new certificate: ask its \
                 administrator for the fingerprint, and where it is that one: gvm login URL --fingerprint SHA256:...",
            ),
            ClientError::Garbled(_) => {
                Self::new(error.code(), chain(&error)).hint("is the manager of the same version? compare `gvm doctor`")
            }
            ClientError::Broken(_) | ClientError::Event(_) | ClientError::Upgrade(_) | ClientError::Setup(_) => {
                Self::new(error.code(), chain(&error))
            }
        }
    }
}

/// An error and its causes on one line; a cause that only repeats what was said is left out.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let more = inner.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = inner.source();
    }
    text
}

/// Nobody answers on the socket: says why, and the exact command that mends it.
fn unreachable_manager(socket: &Path, source: &io::Error) -> CliError {
    let shown = socket.display();
    let start = if Path::new("/run/systemd/system").exists() {
        "start it with `sudo systemctl start gvm`, or `sudo gvm serve` in a terminal; `journalctl -u gvm` says why it ended, \
         and `gvm gpu scan` looks at the cards without it"
    } else {
        "start it with `sudo gvm serve`, or `sudo systemctl start gvm` where systemd runs; `gvm gpu scan` looks at the cards \
         without it"
    };
    match source.kind() {
        io::ErrorKind::PermissionDenied => {
            CliError::new(ErrorCode::Denied, format!("you may not use the gvm manager's socket {shown}")).hint(
                "join its group: `sudo usermod -aG gvm $USER`, then `newgrp gvm` in this terminal (or log in anew)",
            )
        }
        io::ErrorKind::NotFound => {
            CliError::new(ErrorCode::Unavailable, format!("the gvm manager does not run: there is no socket {shown}"))
                .hint(format!("{start}; does it listen elsewhere, give --socket PATH"))
        }
        io::ErrorKind::ConnectionRefused => CliError::new(
            ErrorCode::Unavailable,
            format!("the gvm manager does not run: nobody answers on the socket {shown}"),
        )
        .hint(start),
        _ => CliError::new(ErrorCode::Unavailable, format!("the gvm manager cannot be reached on {shown}: {source}"))
            .hint(start),
    }
}

/// Text that came from elsewhere, made fit for one line of a terminal: control characters are shown, not obeyed.
pub fn plain(text: impl Display) -> String {
    let text = text.to_string();
    if !text.chars().any(char::is_control) {
        return text;
    }
    text.chars()
        .flat_map(|c| {
            let shown: Box<dyn Iterator<Item = char>> = match c {
                '\n' | '\t' => Box::new(std::iter::once(' ')),
                c if c.is_control() => Box::new(c.escape_default()),
                c => Box::new(std::iter::once(c)),
            };
            shown
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(kind: io::ErrorKind) -> (u8, String) {
        let error = CliError::from(ClientError::Unreachable {
            place: Place::Socket("/run/gvm/api.sock".into()),
            source: io::Error::new(kind, "as the kernel says"),
        });
        let code = error.exit_code();
        let CliError::Failed(body) = error else { panic!("{error:?}") };
        (code, format!("{} | {}", body.message, body.hint.unwrap_or_default()))
    }

    #[test]
    fn a_manager_that_cannot_be_reached_is_explained_with_the_command_to_run() {
        let (code, text) = told(io::ErrorKind::PermissionDenied);
        assert_eq!(code, 3);
        assert!(text.contains("sudo usermod -aG gvm $USER") && text.contains("newgrp gvm"), "{text}");
        for kind in [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused, io::ErrorKind::TimedOut] {
            let (code, text) = told(kind);
            assert_eq!(code, 6);
            assert!(text.contains("sudo systemctl start gvm") && text.contains("gvm serve"), "{text}");
            assert!(text.contains("/run/gvm/api.sock"), "{text}");
        }
    }

    #[test]
    fn exit_codes_follow_the_code_of_the_error() {
        for (code, exit) in [
            (ErrorCode::Internal, 1),
            (ErrorCode::Invalid, 2),
            (ErrorCode::Unauthenticated, 3),
            (ErrorCode::Denied, 3),
            (ErrorCode::OverQuota, 3),
            (ErrorCode::NotFound, 4),
            (ErrorCode::Conflict, 5),
            (ErrorCode::NoCapacity, 5),
            (ErrorCode::TooMuch, 5),
            (ErrorCode::Unavailable, 6),
        ] {
            assert_eq!(CliError::new(code, "x").exit_code(), exit, "{code:?}");
        }
        let gone = io::Error::from(io::ErrorKind::BrokenPipe);
        assert_eq!(CliError::output(&gone).exit_code(), 0);
        assert_eq!(CliError::Silent(INTERRUPTED).exit_code(), 130);
    }

    #[test]
    fn a_hint_from_the_manager_is_kept() {
        let body = ErrorBody {
            code: ErrorCode::Conflict,
            message: "dev exists".to_owned(),
            hint: Some("choose another name".to_owned()),
            request_id: None,
        };
        let CliError::Failed(body) = CliError::from(ClientError::Api(body)).hint("another") else { panic!() };
        assert_eq!(body.hint.as_deref(), Some("choose another name"));
    }

    #[test]
    fn control_characters_are_shown_and_not_obeyed() {
        assert_eq!(plain("a\u{1b}[31mb\nc"), "a\\u{1b}[31mb c");
        assert_eq!(plain("as it is"), "as it is");
    }
}
