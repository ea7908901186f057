//! Power and the end of machines: start, stop, restart, pause, resume, delete, undelete.

use clap::Args;
use serde::Serialize;

use super::context::Context;
use super::error::{CliError, CliResult};
use super::goal::Goal;
use super::output::Answer;
use super::ssh;
use super::table::moment;
use super::vm_ref::VmRef;
use super::wait::{WaitArgs, follow};
use crate::api::types::{Accepted, StopVm};

/// Options of commands that need only a machine.
#[derive(Debug, Args)]
pub struct StartArgs {
    /// Machine: NAME, NAME.OWNER or id
    vm: VmRef,
    #[command(flatten)]
    wait: WaitArgs,
}

/// Options of `gvm stop` and `gvm restart`.
#[derive(Debug, Args)]
pub struct StopArgs {
    /// Machine: NAME, NAME.OWNER or id
    vm: VmRef,
    /// Force it off at once, as if its power had failed
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    wait: WaitArgs,
}

/// Options of `gvm delete`.
#[derive(Debug, Args)]
pub struct DeleteArgs {
    /// Machine: NAME, NAME.OWNER or id
    vm: VmRef,
    /// Remove it and its disk now, without a window to undelete it in
    #[arg(long)]
    now: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    wait: WaitArgs,
}

#[derive(Serialize)]
struct Nothing {}

/// Posts an action on a machine and follows it to its goal.
async fn act<B: Serialize + Sync>(
    cx: &Context,
    vm: &VmRef,
    verb: &str,
    body: &B,
    goal: Goal,
    wait: &WaitArgs,
) -> CliResult<Accepted> {
    let accepted = cx.client.post(&format!("{}/{verb}", vm.path()), body).await?;
    follow(cx, accepted, goal, wait).await
}

/// Tells how it ended: `dev is stopped`, or that it was only asked for.
fn tell(cx: &Context, done: &Accepted, goal: Goal, wait: &WaitArgs, next: Option<String>) -> CliResult {
    cx.out.result(done, || {
        let name = &done.vm.name;
        if wait.no_wait {
            return format!("asked for: {name} will be {}", goal.word());
        }
        let next = next.map(|next| format!("\n  {next}")).unwrap_or_default();
        format!("{name} is {}{next}", goal.word())
    })
}

/// Runs `gvm start`.
///
/// # Errors
/// See [`CliError`].
pub async fn start(cx: &Context, args: &StartArgs) -> CliResult {
    let done = act(cx, &args.vm, "start", &Nothing {}, Goal::Started, &args.wait).await?;
    tell(cx, &done, Goal::Started, &args.wait, Some(ssh::next_line(&done.vm)))
}

/// Runs `gvm stop`.
///
/// # Errors
/// See [`CliError`].
pub async fn stop(cx: &Context, args: &StopArgs) -> CliResult {
    let done = act(cx, &args.vm, "stop", &StopVm { force: args.force }, Goal::Stopped, &args.wait).await?;
    tell(cx, &done, Goal::Stopped, &args.wait, None)
}

/// Runs `gvm restart`.
///
/// # Errors
/// See [`CliError`].
pub async fn restart(cx: &Context, args: &StopArgs) -> CliResult {
    let done = act(cx, &args.vm, "restart", &StopVm { force: args.force }, Goal::Restarted, &args.wait).await?;
    tell(cx, &done, Goal::Restarted, &args.wait, Some(ssh::next_line(&done.vm)))
}

/// Runs `gvm pause`.
///
/// # Errors
/// See [`CliError`].
pub async fn pause(cx: &Context, args: &StartArgs) -> CliResult {
    let done = act(cx, &args.vm, "pause", &Nothing {}, Goal::Paused, &args.wait).await?;
    tell(cx, &done, Goal::Paused, &args.wait, None)
}

/// Runs `gvm resume`.
///
/// # Errors
/// See [`CliError`].
pub async fn resume(cx: &Context, args: &StartArgs) -> CliResult {
    let done = act(cx, &args.vm, "resume", &Nothing {}, Goal::Resumed, &args.wait).await?;
    tell(cx, &done, Goal::Resumed, &args.wait, None)
}

/// Runs `gvm undelete`.
///
/// # Errors
/// See [`CliError`].
pub async fn undelete(cx: &Context, args: &StartArgs) -> CliResult {
    let done = act(cx, &args.vm, "undelete", &Nothing {}, Goal::Undeleted, &args.wait).await?;
    ssh::refresh_config(cx).await;
    let next = (done.vm.state == "stopped").then(|| format!("gvm start {}", done.vm.name));
    tell(cx, &done, Goal::Undeleted, &args.wait, next)
}

/// Runs `gvm delete`. It asks only where nothing could bring the machine back.
///
/// # Errors
/// See [`CliError`].
pub async fn delete(cx: &Context, args: &DeleteArgs) -> CliResult {
    if args.now && !args.yes {
        let question = format!("Remove {} and everything on its disk, for good?", args.vm);
        if !cx.out.can_ask() {
            return Err(CliError::invalid(format!("{} would be removed for good, and nobody can be asked", args.vm))
                .hint("say so with --yes, or leave out --now to be able to undelete it"));
        }
        if cx.out.ask(&question, Answer::No)? == Answer::No {
            cx.out.say("nothing was done");
            return Err(CliError::Silent(1));
        }
    }
    let query = if args.now { "?now=true" } else { "" };
    let accepted: Accepted = cx.client.delete(&format!("{}{query}", args.vm.path())).await?;
    let goal = if args.now { Goal::Gone } else { Goal::Deleted };
    let done = follow(cx, accepted, goal, &args.wait).await?;
    ssh::refresh_config(cx).await;
    if let Some(until) = &done.vm.undelete_until
        && !args.now
    {
        cx.out.note(&format!("until {} it can be brought back with `gvm undelete {}`", moment(until), args.vm));
    }
    tell(cx, &done, goal, &args.wait, None)
}
