//! Where a command speaks: results on standard output, everything else on standard error.
//!
//! A result is either a table for people or the wire type as JSON. Progress, notes and questions go to
//! standard error and are silent under `--quiet` and with JSON; errors are never silent.

use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use nix::sys::termios::{LocalFlags, SetArg, tcgetattr, tcsetattr};
use serde::Serialize;

use super::error::{CliError, CliResult, plain};

/// Longest secret that is read from a terminal.
const HIDDEN_MAX: u64 = 4096;

/// The form of results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Aligned text for people
    #[default]
    Table,
    /// The types of the API, for programs
    Json,
}

/// When colours are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

impl Color {
    fn choice(self, stream: &impl anstream::stream::RawStream) -> ColorChoice {
        match self {
            Self::Auto => AutoStream::choice(stream),
            Self::Always => ColorChoice::Always,
            Self::Never => ColorChoice::Never,
        }
    }
}

/// How much is said beside results and errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Talk {
    /// Progress, notes and hints.
    #[default]
    Usual,
    /// Nothing.
    Quiet,
}

/// The two streams and the user's wishes about them.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    format: Format,
    talk: Talk,
    stdout: ColorChoice,
    stderr: ColorChoice,
}

/// Style of the word `error`.
const ERROR: Style = AnsiColor::Red.on_default().bold();
/// Style of the word `warning`.
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
/// Style of the words `note` and `hint`.
const NOTE: Style = AnsiColor::Cyan.on_default();

impl Output {
    /// An output for this process.
    pub fn new(format: Format, color: Color, talk: Talk) -> Self {
        Self { format, talk, stdout: color.choice(&io::stdout()), stderr: color.choice(&io::stderr()) }
    }

    /// True where results are wanted as JSON.
    pub fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    /// True where nothing beside results and errors is wanted; a program that reads JSON wants nothing else.
    pub fn is_quiet(&self) -> bool {
        self.talk == Talk::Quiet || self.is_json()
    }

    /// True where results may have colours.
    pub fn is_colored(&self) -> bool {
        !matches!(self.stdout, ColorChoice::Never)
    }

    /// True where progress can be drawn: standard error is a terminal and not to be quiet.
    pub fn is_animated(&self) -> bool {
        !self.is_quiet() && io::stderr().is_terminal()
    }

    /// True where a question can be put to a person.
    pub fn can_ask(&self) -> bool {
        !self.is_json() && io::stdin().is_terminal() && io::stderr().is_terminal()
    }

    /// Prints a result: the value itself as JSON, or the text that `people` makes of it.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn result<T: Serialize>(&self, value: &T, people: impl FnOnce() -> String) -> CliResult {
        match self.format {
            Format::Json => {
                let text = serde_json::to_string_pretty(value).map_err(|e| CliError::output(&e.into()))?;
                self.text(&text)
            }
            Format::Table => self.text(&people()),
        }
    }

    /// Prints one value of a stream: one line of JSON, or the text that `people` makes of it.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn item<T: Serialize>(&self, value: &T, people: impl FnOnce() -> String) -> CliResult {
        match self.format {
            Format::Json => {
                let text = serde_json::to_string(value).map_err(|e| CliError::output(&e.into()))?;
                self.text(&text)
            }
            Format::Table => self.text(&people()),
        }
    }

    /// Prints text on standard output and ends its last line; an empty text prints nothing.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn text(&self, text: &str) -> CliResult {
        if text.is_empty() {
            return Ok(());
        }
        let mut out = AutoStream::new(io::stdout().lock(), self.stdout);
        let end = if text.ends_with('\n') { "" } else { "\n" };
        write!(out, "{text}{end}").and_then(|()| out.flush()).map_err(|e| CliError::output(&e))
    }

    /// Writes bytes that are not ours to standard output. On a terminal, escape sequences are taken out.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn foreign(&self, bytes: &[u8]) -> CliResult {
        let mut out = io::stdout().lock();
        let done = if out.is_terminal() {
            let mut strip = anstream::StripStream::new(out);
            strip.write_all(bytes).and_then(|()| strip.flush())
        } else {
            out.write_all(bytes).and_then(|()| out.flush())
        };
        done.map_err(|e| CliError::output(&e))
    }

    /// Says something on standard error, unless quiet.
    pub fn say(&self, text: &str) {
        if !self.is_quiet() {
            self.stderr_line(text);
        }
    }

    /// Says something that the user should know, unless quiet.
    pub fn note(&self, text: &str) {
        self.say(&format!("{NOTE}note:{NOTE:#} {}", plain(text)));
    }

    /// Says something that the user should mind, also where quiet.
    pub fn warning(&self, text: &str) {
        if self.is_json() {
            return;
        }
        self.stderr_line(&format!("{WARNING}warning:{WARNING:#} {}", plain(text)));
    }

    /// Asks on the terminal; `fallback` is the answer to an empty line.
    ///
    /// # Errors
    /// When the terminal cannot be read.
    pub fn ask(&self, question: &str, fallback: Answer) -> CliResult<Answer> {
        let choice = if fallback == Answer::Yes { "[Y/n]" } else { "[y/N]" };
        loop {
            let mut err = AutoStream::new(io::stderr().lock(), self.stderr);
            write!(err, "{} {choice} ", plain(question))
                .and_then(|()| err.flush())
                .map_err(|e| CliError::output(&e))?;
            drop(err);
            let mut line = String::new();
            let read = io::stdin().read_line(&mut line).map_err(|e| CliError::output(&e))?;
            match line.trim().to_lowercase().as_str() {
                // The end of the input is no answer, so it is never taken for a yes.
                "" if read == 0 => return Ok(Answer::No),
                "" => return Ok(fallback),
                "y" | "yes" => return Ok(Answer::Yes),
                "n" | "no" => return Ok(Answer::No),
                _ => {}
            }
        }
    }

    /// Asks for a secret on the terminal, which does not show what is typed.
    ///
    /// # Errors
    /// When the terminal cannot be read.
    pub fn ask_hidden(&self, question: &str) -> CliResult<String> {
        let fault = |e: nix::errno::Errno| CliError::output(&e.into());
        let mut err = AutoStream::new(io::stderr().lock(), self.stderr);
        write!(err, "{}", plain(question)).and_then(|()| err.flush()).map_err(|e| CliError::output(&e))?;
        let before = tcgetattr(io::stdin()).map_err(fault)?;
        let mut hidden = before.clone();
        hidden.local_flags.remove(LocalFlags::ECHO);
        tcsetattr(io::stdin(), SetArg::TCSAFLUSH, &hidden).map_err(fault)?;
        let mut line = String::new();
        let read = io::stdin().lock().take(HIDDEN_MAX).read_line(&mut line);
        tcsetattr(io::stdin(), SetArg::TCSANOW, &before).map_err(fault)?;
        // Nor is the end of the line shown.
        let _ = writeln!(err);
        read.map(|_| line).map_err(|e| CliError::output(&e))
    }

    /// Tells how a command failed.
    pub fn error(&self, error: &CliError) {
        let CliError::Failed(body) = error else { return };
        if self.is_json() {
            let text = serde_json::json!({ "error": body });
            self.stderr_line(&text.to_string());
            return;
        }
        // A list is a list on a terminal as well.
        let lines: Vec<String> = body.message.lines().map(plain).collect();
        self.stderr_line(&format!("{ERROR}error:{ERROR:#} {}", lines.join("\n")));
        if let Some(hint) = &body.hint {
            self.stderr_line(&format!("{NOTE}hint:{NOTE:#} {}", plain(hint)));
        }
        if let Some(id) = &body.request_id
            && body.code == crate::api::error::ErrorCode::Internal
        {
            self.stderr_line(&format!(
                "{NOTE}note:{NOTE:#} the manager's log has more under the request id {}",
                plain(id)
            ));
        }
    }

    fn stderr_line(&self, text: &str) {
        let mut err = AutoStream::new(io::stderr().lock(), self.stderr);
        // There is nobody left to tell where standard error is gone.
        let _ = writeln!(err, "{text}").and_then(|()| err.flush());
    }
}

/// Answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Yes.
    Yes,
    /// No.
    No,
}
