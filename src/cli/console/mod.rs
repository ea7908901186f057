//! `gvm console`: the serial console of a machine.
//!
//! ```text
//!   keyboard -> EscapeWatch -> WebSocket -> manager -> guest
//!   screen  <-------------------- WebSocket <----------'
//!   connection lost -> try again for a while;  somebody else types -> look on
//! ```

mod escape;
mod session;
mod terminal;

use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use clap::Args;

use self::escape::{EscapeKey, EscapeWatch};
use self::session::{End, Session};
use self::terminal::RawTerminal;
use super::context::Context;
use super::error::{CliError, CliResult, plain};
use super::vm_ref::VmRef;
use crate::api::client::ClientError;
use crate::api::client::console::{Console, ConsoleMode, close, refusal_of};
use crate::api::error::ErrorCode;
use crate::model::units::Seconds;

/// First pause before a lost console is opened anew; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(200);
/// Longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Options of `gvm console`.
#[derive(Debug, Args)]
#[command(after_help = "\
Keys:
  Ctrl-]         detach; the machine goes on
  Ctrl-] r       tell the guest the size of this window (types `stty rows R cols C`)
  Ctrl-] ?       explain the keys
  Ctrl-] Ctrl-]  send Ctrl-] itself

One person types at a time; others look on. The console survives a restart of the manager.
Without a terminal, standard input is typed into the guest as it is; at its end, --linger is waited.")]
pub struct ConsoleArgs {
    /// Machine: NAME, NAME.OWNER or id
    vm: VmRef,
    /// Only look on
    #[arg(short, long)]
    read_only: bool,
    /// Detach key: ^ and a letter, or none
    #[arg(long, value_name = "KEY", default_value_t)]
    escape: EscapeKey,
    /// Tell the guest the size of this window at once; only where a shell waits for a command
    #[arg(long, conflicts_with = "read_only")]
    size: bool,
    /// How long to go on after the end of an input that is not a terminal
    #[arg(long, value_name = "DURATION", default_value = "2s")]
    linger: Seconds,
    /// How long to try to get a lost console back
    #[arg(long, value_name = "DURATION", default_value = "60s")]
    reconnect: Seconds,
}

/// Runs `gvm console`.
///
/// # Errors
/// See [`CliError`].
pub async fn run(cx: &Context, args: &ConsoleArgs) -> CliResult {
    let vm = cx.vm(&args.vm).await?;
    let asked = if args.read_only { ConsoleMode::Read } else { ConsoleMode::Write };
    let (console, mode) = open(cx, &vm.id, asked).await.map_err(|error| explain(error, &vm.name))?;
    let is_terminal = io::stdin().is_terminal();
    let key = if is_terminal { args.escape } else { EscapeKey::NONE };
    if is_terminal {
        let what = if mode == ConsoleMode::Read { "looking at" } else { "connected to" };
        cx.out.say(&format!("{what} {}; {} detaches, {} ? explains", vm.name, key.name(), key.name()));
    }
    let raw = RawTerminal::enter().map_err(|e| CliError::new(ErrorCode::Internal, format!("the terminal: {e}")))?;
    let mut session = Session::new(cx.out, EscapeWatch::new(key), mode, args.linger.duration())
        .map_err(|e| CliError::new(ErrorCode::Internal, format!("cannot watch for signals: {e}")))?;
    if args.size {
        session.announce_size();
    }
    let end = stay(cx, &vm.id, args, console, &mut session).await;
    drop(raw);
    finish(cx, &vm.name, end)
}

/// Stays connected until there is a reason to leave.
async fn stay(cx: &Context, id: &str, args: &ConsoleArgs, first: Console, session: &mut Session) -> CliResult<End> {
    let mut console = first;
    loop {
        match session.run(&mut console).await? {
            End::Closed { code: close::HELD, .. } if session.mode() == ConsoleMode::Write => {
                session.say("somebody else types there; looking on");
                session.set_mode(ConsoleMode::Read);
                console = cx.client.console(id, ConsoleMode::Read).await?;
            }
            End::Lost | End::Closed { code: close::GOING_AWAY | close::RESTART, .. } => {
                session.say("connection lost, trying again");
                let Some(again) = session.until_leave(reopen(cx, id, args, session.mode())).await? else {
                    return Ok(End::Detached);
                };
                let (opened, mode) = again?;
                session.set_mode(mode);
                session.say(if mode == ConsoleMode::Read { "connected again, looking on" } else { "connected again" });
                console = opened;
            }
            end => {
                console.close().await;
                return Ok(end);
            }
        }
    }
}

/// Opens the console; where somebody else types, to look on.
async fn open(cx: &Context, id: &str, mode: ConsoleMode) -> Result<(Console, ConsoleMode), ClientError> {
    match cx.client.console(id, mode).await {
        Ok(console) => Ok((console, mode)),
        Err(error) if mode == ConsoleMode::Write && error.code() == ErrorCode::Conflict => {
            let console = cx.client.console(id, ConsoleMode::Read).await?;
            cx.out.note("somebody else types there; looking on");
            Ok((console, ConsoleMode::Read))
        }
        Err(error) => Err(error),
    }
}

/// Opens a lost console anew, for as long as the user has patience.
async fn reopen(
    cx: &Context,
    id: &str,
    args: &ConsoleArgs,
    mode: ConsoleMode,
) -> Result<(Console, ConsoleMode), ClientError> {
    let since = Instant::now();
    let mut pause = PAUSE_MIN;
    loop {
        tokio::time::sleep(pause).await;
        match open(cx, id, mode).await {
            Err(error) if error.is_passing() && since.elapsed() < args.reconnect.duration() => {}
            outcome => return outcome,
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn finish(cx: &Context, name: &str, end: CliResult<End>) -> CliResult {
    match end.map_err(|error| error.hint(format!("see `gvm show {name}`")))? {
        End::Detached => {
            cx.out.say(&format!("detached from {name}"));
            Ok(())
        }
        End::InputOver => Ok(()),
        End::Signal(number) => Err(CliError::Silent(128 + number)),
        End::Closed { code, reason } => {
            let reason = if reason.is_empty() { "the console was closed".to_owned() } else { plain(reason) };
            match refusal_of(code) {
                Some(refused) => Err(CliError::new(refused, format!("{name}: {reason}"))),
                None => {
                    cx.out.say(&format!("{name}: {reason}"));
                    Ok(())
                }
            }
        }
        End::Lost => Err(CliError::new(ErrorCode::Unavailable, format!("the console of {name} was lost"))),
    }
}

fn explain(error: ClientError, name: &str) -> CliError {
    CliError::from(error).hint(format!("see `gvm show {name}`; past output is in `gvm logs {name}`"))
}
