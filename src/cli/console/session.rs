//! One connection's worth of a console: keyboard, screen, signals, until there is a reason to end.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Stdin, Stdout};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::escape::{EscapeWatch, Typed};
use super::terminal;
use crate::api::client::console::{Console, ConsoleEvent, ConsoleMode};
use crate::cli::error::{CliError, CliResult, plain};
use crate::cli::output::Output;

/// How long after the detach key a letter is waited for.
const ESCAPE_WAIT: Duration = Duration::from_millis(700);
/// SIGWINCH, the one signal that does not end the console.
const WINDOW_CHANGE: u8 = 28;
/// How much is read from the keyboard at once.
const READ_MAX: usize = 4096;

/// Why a connection ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The user left.
    Detached,
    /// An input that is not a terminal is over, and the time to linger has passed.
    InputOver,
    /// A signal said so.
    Signal(u8),
    /// The manager closed it.
    Closed {
        /// Close code.
        code: u16,
        /// In plain words.
        reason: String,
    },
    /// The connection broke.
    Lost,
}

/// Keyboard, screen and signals; it outlives a connection, so that nothing typed meanwhile is lost.
#[derive(Debug)]
pub struct Session {
    out: Output,
    stdin: Stdin,
    stdout: Stdout,
    signals: Signals,
    escape: EscapeWatch,
    mode: ConsoleMode,
    linger: Duration,
    input: Input,
    waiting: Vec<u8>,
    is_resize_told: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    Open,
    /// Over since then.
    Over(tokio::time::Instant),
}

#[derive(Debug)]
struct Signals {
    hangup: Signal,
    interrupt: Signal,
    quit: Signal,
    terminate: Signal,
    window: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            terminate: signal(SignalKind::terminate())?,
            window: signal(SignalKind::window_change())?,
        })
    }

    /// The number of the next signal that matters.
    async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.hangup.recv() => 1,
            _ = self.interrupt.recv() => 2,
            _ = self.quit.recv() => 3,
            _ = self.terminate.recv() => 15,
            _ = self.window.recv() => WINDOW_CHANGE,
        }
    }
}

impl Session {
    /// A session on the standard streams.
    ///
    /// # Errors
    /// Where signals cannot be watched.
    pub fn new(out: Output, escape: EscapeWatch, mode: ConsoleMode, linger: Duration) -> io::Result<Self> {
        Ok(Self {
            out,
            stdin: tokio::io::stdin(),
            stdout: tokio::io::stdout(),
            signals: Signals::new()?,
            escape,
            mode,
            linger,
            input: Input::Open,
            waiting: Vec::new(),
            is_resize_told: false,
        })
    }

    /// What the user may do.
    pub const fn mode(&self) -> ConsoleMode {
        self.mode
    }

    /// Changes what the user may do, after the manager has said so.
    pub const fn set_mode(&mut self, mode: ConsoleMode) {
        self.mode = mode;
    }

    /// Says something between the guest's lines.
    pub fn say(&self, text: &str) {
        // In raw mode a line does not return to the left by itself.
        let end = if io::stdin().is_terminal() { "\r" } else { "" };
        self.out.say(&format!("{end}[{}]{end}", plain(text)));
    }

    /// Types the command that tells the guest the size of the window.
    pub fn announce_size(&mut self) {
        match terminal::size() {
            Some((rows, columns)) => {
                self.waiting.extend_from_slice(format!("stty rows {rows} cols {columns}\r").as_bytes());
            }
            None => self.say("the size of this window is not known"),
        }
    }

    /// Carries bytes both ways until there is a reason to end.
    ///
    /// # Errors
    /// When the screen cannot be written.
    pub async fn run(&mut self, console: &mut Console) -> CliResult<End> {
        let mut buffer = vec![0; READ_MAX];
        loop {
            if !self.waiting.is_empty() {
                let bytes = std::mem::take(&mut self.waiting);
                if self.mode == ConsoleMode::Write && console.send(bytes).await.is_err() {
                    return Ok(End::Lost);
                }
            }
            let over = match self.input {
                Input::Over(since) => since + self.linger,
                Input::Open => far(),
            };
            tokio::select! {
                event = console.next() => match event {
                    ConsoleEvent::Bytes(bytes) => self.show(&bytes).await?,
                    ConsoleEvent::Closed { code, reason } => return Ok(End::Closed { code, reason }),
                    ConsoleEvent::Lost => return Ok(End::Lost),
                },
                read = self.stdin.read(&mut buffer), if self.input == Input::Open => {
                    let typed = buffer.get(..read.unwrap_or_default()).unwrap_or_default();
                    if let Some(end) = self.take(typed) {
                        return Ok(end);
                    }
                }
                () = tokio::time::sleep(ESCAPE_WAIT), if self.escape.is_pending() => {
                    if self.escape.settle().is_some() {
                        return Ok(End::Detached);
                    }
                }
                () = tokio::time::sleep_until(over) => return Ok(End::InputOver),
                number = self.signals.next() => match number {
                    WINDOW_CHANGE => self.hint_size(),
                    number => return Ok(End::Signal(number)),
                },
            }
        }
    }

    /// Waits for `work` while there is no connection; `None` when the user left meanwhile. What is typed is
    /// kept for later.
    ///
    /// # Errors
    /// When a signal ends it.
    pub async fn until_leave<T>(&mut self, work: impl Future<Output = T>) -> CliResult<Option<T>> {
        let mut work = std::pin::pin!(work);
        let mut buffer = vec![0; READ_MAX];
        loop {
            tokio::select! {
                done = &mut work => return Ok(Some(done)),
                read = self.stdin.read(&mut buffer), if self.input == Input::Open && self.waiting.len() < READ_MAX => {
                    let typed = buffer.get(..read.unwrap_or_default()).unwrap_or_default();
                    if self.take(typed).is_some() {
                        return Ok(None);
                    }
                }
                () = tokio::time::sleep(ESCAPE_WAIT), if self.escape.is_pending() => {
                    if self.escape.settle().is_some() {
                        return Ok(None);
                    }
                }
                number = self.signals.next() => match number {
                    WINDOW_CHANGE => {}
                    number => return Err(CliError::Silent(128 + number)),
                },
            }
        }
    }

    /// Takes what was typed; nothing at all is the end of the input.
    fn take(&mut self, typed: &[u8]) -> Option<End> {
        if typed.is_empty() {
            self.input = Input::Over(tokio::time::Instant::now());
            return None;
        }
        for what in self.escape.typed(typed) {
            match what {
                Typed::Bytes(bytes) => self.waiting.extend_from_slice(&bytes),
                Typed::Detach => return Some(End::Detached),
                Typed::Size if self.mode == ConsoleMode::Read => self.say("you only look on"),
                Typed::Size => self.announce_size(),
                Typed::Help => {
                    self.say("the key alone detaches; with r the window's size is sent, twice sends the key")
                }
            }
        }
        None
    }

    fn hint_size(&mut self) {
        if !self.is_resize_told {
            self.is_resize_told = true;
            self.say("the window has another size now; the detach key and r tells the guest");
        }
    }

    async fn show(&mut self, bytes: &[u8]) -> CliResult {
        let write = async {
            self.stdout.write_all(bytes).await?;
            self.stdout.flush().await
        };
        write.await.map_err(|error| CliError::output(&error))
    }
}

/// A time that never comes.
fn far() -> tokio::time::Instant {
    tokio::time::Instant::now() + Duration::from_secs(365 * 86_400)
}
