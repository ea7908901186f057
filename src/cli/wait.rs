//! Waiting for an accepted change: follows the machine's events, looks at its state, gives up in the end.
//!
//! ```text
//!   Accepted --> events (replayed from the start of the operation) --+
//!            \-> every second: the machine and the operation --------+--> judge(goal) --> reached | failed | not yet
//! ```
//!
//! Events are only told; the verdict is taken from the state, so that lost events cost nothing. Ctrl-C ends the
//! waiting and never the change.

use std::time::{Duration, Instant};

use clap::Args;
use futures_util::StreamExt as _;

use super::context::Context;
use super::error::{CliError, CliResult, INTERRUPTED};
use super::goal::{Goal, Seen, Verdict, judge};
use super::live::{self, Live};
use super::progress::Progress;
use super::vm_ref::VmRef;
use crate::api::client::{ClientError, segment};
use crate::api::error::ErrorCode;
use crate::api::types::{Accepted, OperationView, VmView};
use crate::model::units::Seconds;

/// How long a wait lasts on hardware virtualisation.
const PATIENCE: Duration = Duration::from_secs(10 * 60);
/// How long a wait lasts under software emulation.
const PATIENCE_EMULATED: Duration = Duration::from_secs(30 * 60);
/// How long a machine may stand failed, tried again by the manager, before the waiting ends.
const FAILED_PATIENCE: Duration = Duration::from_secs(30);
/// How long the state may stay unknown before that is told.
const UNKNOWN_PATIENCE: Duration = Duration::from_secs(10);
/// How often the state is looked at, beside after every event.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Options of every command that changes a machine.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Waiting")]
pub struct WaitArgs {
    /// Return when the request is accepted, without waiting for its effect
    #[arg(long)]
    pub no_wait: bool,
    /// Longest wait, such as 90s or 30m [default: 10m, or 30m where the machine is emulated]
    #[arg(long, value_name = "DURATION", conflicts_with = "no_wait")]
    pub timeout: Option<Seconds>,
}

/// Waits until `accepted` has come to its goal and returns it with the machine as it stands then.
///
/// # Errors
/// When the change fails, takes too long, or Ctrl-C is pressed.
pub async fn follow(cx: &Context, mut accepted: Accepted, goal: Goal, args: &WaitArgs) -> CliResult<Accepted> {
    accepted.notes.iter().for_each(|note| cx.out.note(note));
    if args.no_wait {
        return Ok(accepted);
    }
    let mut progress = Progress::new(cx.out, Instant::now());
    let name = accepted.vm.name.clone();
    let outcome = tokio::select! {
        outcome = watch(cx, &mut accepted, goal, args, &mut progress) => outcome,
        _ = tokio::signal::ctrl_c() => {
            progress.finish();
            cx.out.say(&format!("{name}: it goes on without this terminal; follow it with `gvm events {name}`"));
            return Err(CliError::Silent(INTERRUPTED));
        }
    };
    progress.finish();
    outcome.map(|()| accepted)
}

async fn watch(
    cx: &Context,
    accepted: &mut Accepted,
    goal: Goal,
    args: &WaitArgs,
    progress: &mut Progress,
) -> CliResult {
    let started = Instant::now();
    let vm = VmRef::by_id(&accepted.vm.id);
    let mut events = live::events(&cx.client, &format!("{}/events", vm.path()));
    let mut is_streaming = true;
    let mut tick = tokio::time::interval(LOOK_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut seen = Seen::default();
    let mut failed_since: Option<Instant> = None;
    let mut unknown_since: Option<Instant> = None;
    let mut is_unknown_told = false;
    loop {
        tokio::select! {
            item = events.next(), if is_streaming => match item {
                Some(Live::Event(event)) => {
                    progress.event(&event);
                    seen.is_ready |= event.stage == "ready";
                }
                Some(Live::Down) => progress.stage("manager", "it does not answer, waiting for it"),
                Some(Live::Up) => progress.stage("manager", "it is back"),
                Some(Live::End(_)) | None => is_streaming = false,
            },
            _ = tick.tick() => {}
        }
        match look(cx, &vm, &accepted.operation).await {
            Ok((found, operation)) => {
                if let Some(found) = &found {
                    accepted.vm = found.clone();
                }
                (seen.vm, seen.operation, seen.is_looked_at) = (found, operation, true);
            }
            Err(error) if error.is_passing() => {}
            Err(error) => return Err(error.into()),
        }
        let name = &accepted.vm.name;
        match judge(goal, &seen) {
            Verdict::Reached => return Ok(()),
            Verdict::Failed(why) => return Err(failed(name, goal, &why)),
            Verdict::Failing(why) if failed_since.is_some_and(|since| since.elapsed() >= FAILED_PATIENCE) => {
                return Err(failed(name, goal, &why));
            }
            Verdict::Failing(why) => {
                if failed_since.is_none() {
                    failed_since = Some(Instant::now());
                    progress.stage("failed", &why);
                }
            }
            Verdict::NotYet => failed_since = None,
        }
        if accepted.vm.state == "unknown" {
            let since = *unknown_since.get_or_insert_with(Instant::now);
            if !is_unknown_told && since.elapsed() >= UNKNOWN_PATIENCE {
                progress.stage("waiting", &accepted.vm.detail);
                is_unknown_told = true;
            }
        } else {
            (unknown_since, is_unknown_told) = (None, false);
        }
        let usual = if accepted.vm.accelerator == "emulation" { PATIENCE_EMULATED } else { PATIENCE };
        let patience = args.timeout.map_or(usual, Seconds::duration);
        if started.elapsed() >= patience {
            let waited = Seconds(patience.as_secs());
            return Err(CliError::new(
                ErrorCode::Unavailable,
                format!(
                    "{name} is not {} after {waited}; it goes on by itself (now: {})",
                    goal.word(),
                    accepted.vm.state
                ),
            )
            .hint(format!("follow it with `gvm events {name}`; what the guest says is in `gvm logs {name}`")));
        }
    }
}

/// The machine, where it still exists, and the operation, where it can be seen.
async fn look(
    cx: &Context,
    vm: &VmRef,
    operation: &str,
) -> Result<(Option<VmView>, Option<OperationView>), ClientError> {
    let operation = match cx.client.get(&format!("/v1/operations/{}", segment(operation))).await {
        Ok(operation) => Some(operation),
        Err(error) if error.is_passing() => return Err(error),
        Err(_) => None,
    };
    match cx.client.get(&vm.path()).await {
        Ok(found) => Ok((Some(found), operation)),
        Err(error) if error.code() == ErrorCode::NotFound => Ok((None, operation)),
        Err(error) => Err(error),
    }
}

fn failed(name: &str, goal: Goal, why: &str) -> CliError {
    let why = if why.is_empty() { "the manager gives no reason" } else { why };
    CliError::new(ErrorCode::Internal, format!("{name} is not {}: {why}", goal.word()))
        .hint(format!("see `gvm show {name}` and `gvm logs {name}`; the manager's log has the rest"))
}
