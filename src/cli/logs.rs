//! `gvm logs`: what a machine wrote to its serial console.

use std::time::Duration;

use clap::Args;

use super::context::Context;
use super::error::{CliError, CliResult};
use super::vm_ref::VmRef;
use crate::api::client::console::{ConsoleEvent, ConsoleMode, close};
use crate::api::error::ErrorCode;

/// How long `-f` waits before it opens a lost console anew.
const PAUSE: Duration = Duration::from_secs(1);
/// How many times in a row `-f` tries to get a lost console back.
const TRIES: u32 = 60;

/// Options of `gvm logs`.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// Machine: NAME, NAME.OWNER or id
    vm: VmRef,
    /// Go on with what it writes from now on
    #[arg(short, long)]
    follow: bool,
    /// Last lines to print first
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100)]
    lines: u32,
}

/// Runs `gvm logs`.
///
/// # Errors
/// See [`CliError`].
pub async fn run(cx: &Context, args: &LogsArgs) -> CliResult {
    let vm = cx.vm(&args.vm).await?;
    let path = VmRef::by_id(&vm.id).path();
    let text = cx.client.text(&format!("{path}/logs?lines={}", args.lines)).await?;
    if cx.out.is_json() && !args.follow {
        return cx.out.result(&serde_json::json!({ "vm": vm.name, "text": text }), String::new);
    }
    cx.out.foreign(text.as_bytes())?;
    if args.follow { follow(cx, &vm.id, &vm.name).await } else { Ok(()) }
}

async fn follow(cx: &Context, id: &str, name: &str) -> CliResult {
    let mut tries = 0;
    loop {
        match cx.client.console(id, ConsoleMode::Read).await {
            Ok(mut console) => {
                tries = 0;
                loop {
                    match console.next().await {
                        ConsoleEvent::Bytes(bytes) => cx.out.foreign(&bytes)?,
                        ConsoleEvent::Closed { code: close::GOING_AWAY | close::RESTART, .. } | ConsoleEvent::Lost => {
                            break;
                        }
                        ConsoleEvent::Closed { reason, .. } => {
                            cx.out.say(&super::error::plain(format!("{name}: {reason}")));
                            return Ok(());
                        }
                    }
                }
            }
            Err(error) if error.is_passing() && tries < TRIES => tries += 1,
            Err(error) => return Err(CliError::from(error)),
        }
        if tries >= TRIES {
            return Err(CliError::new(ErrorCode::Unavailable, format!("the console of {name} was lost")));
        }
        tokio::time::sleep(PAUSE).await;
    }
}
