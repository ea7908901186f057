//! Changes of a machine that exists: name, size, labels, limits, lifetime; and its copies.

use clap::{Args, Subcommand};

use super::caps::{Limit, LimitArgs};
use super::context::Context;
use super::create::gpus;
use super::error::{CliError, CliResult};
use super::goal::Goal;
use super::ssh;
use super::table::{caps, size, span};
use super::vm;
use super::vm_ref::VmRef;
use super::wait::{WaitArgs, follow};
use crate::api::types::{Accepted, ChangeVm, CloneVm};
use crate::model::units::Seconds;

/// Options of `gvm rename`.
#[derive(Debug, Args)]
pub struct RenameArgs {
    /// Machine: NAME, NAME.OWNER or id
    vm: VmRef,
    /// New name
    new: String,
    #[command(flatten)]
    wait: WaitArgs,
}

/// Options of `gvm resize`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("sizes").required(true).multiple(true))]
pub struct ResizeArgs {
    /// Machine: NAME, NAME.OWNER or id
    vm: VmRef,
    /// Virtual CPUs
    #[arg(long, value_name = "N", group = "sizes")]
    cpus: Option<u32>,
    /// Memory, such as 8G
    #[arg(long, value_name = "SIZE", group = "sizes")]
    memory: Option<String>,
    /// Root disk, such as 80G; it can only grow
    #[arg(long, value_name = "SIZE", group = "sizes")]
    disk: Option<String>,
    #[command(flatten)]
    wait: WaitArgs,
}

/// Options of `gvm clone`.
#[derive(Debug, Args)]
pub struct CloneArgs {
    /// Machine to copy: NAME, NAME.OWNER or id
    vm: VmRef,
    /// Name of the copy
    new: String,
    #[command(flatten)]
    wait: WaitArgs,
}

/// `gvm tag`
#[derive(Debug, Subcommand)]
pub enum TagCommand {
    /// Put labels on a machine
    Add(TagArgs),
    /// Take labels off a machine
    #[command(visible_alias = "rm")]
    Remove(TagArgs),
    /// List the labels of a machine
    #[command(visible_alias = "ls")]
    List {
        /// Machine: NAME, NAME.OWNER or id
        vm: VmRef,
    },
}

/// Options of `tag add` and `tag remove`.
#[derive(Debug, Args)]
pub struct TagArgs {
    /// Machine: NAME, NAME.OWNER or id
    vm: VmRef,
    /// Labels
    #[arg(required = true)]
    tags: Vec<String>,
    #[command(flatten)]
    wait: WaitArgs,
}

/// Options of `gvm set`.
#[derive(Debug, Args)]
#[command(after_help = "\
Limits change at once on a running machine; `gvm show` reads them back from it. GPUs are plugged into a running machine
that has none. They cannot be taken out of it, nor be others: that needs a stop.

Examples:
  gvm set dev --cpu-percent 150 --disk-iops 500
  gvm set dev --disk-iops none --ttl 8h
  gvm set dev --gpu a100
  gvm stop dev && gvm set dev --gpu none")]
pub struct SetArgs {
    /// Machine: NAME, NAME.OWNER or id
    vm: VmRef,
    /// Lifetime after each start, such as 8h, or none
    #[arg(long, value_name = "DURATION")]
    ttl: Option<Limit<Seconds>>,
    /// GPU: a model (a100), a number (2), both (2xa100), a memory (48GiB, a100:80GiB), :same-node or :same-switch after
    /// them, or none; may be repeated
    #[arg(long = "gpu", value_name = "GPU")]
    gpus: Vec<String>,
    /// Team that it counts for from here on
    #[arg(long, value_name = "TEAM")]
    team: Option<String>,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    wait: WaitArgs,
}

async fn change(cx: &Context, vm: &VmRef, change: &ChangeVm, wait: &WaitArgs) -> CliResult<Accepted> {
    let accepted: Accepted = cx.client.patch(&vm.path(), change).await?;
    // The manager's own notes are shown already.
    let is_told = !accepted.notes.is_empty();
    let done = follow(cx, accepted, Goal::Done, wait).await?;
    if done.vm.needs_restart && !is_told && !wait.no_wait {
        cx.out.note(&format!("a part of it takes effect with the next start: `gvm restart {}`", done.vm.name));
    }
    Ok(done)
}

/// Runs `gvm rename`.
///
/// # Errors
/// See [`CliError`].
pub async fn rename(cx: &Context, args: RenameArgs) -> CliResult {
    let request = ChangeVm { name: Some(args.new), ..ChangeVm::default() };
    let done = change(cx, &args.vm, &request, &args.wait).await?;
    ssh::refresh_config(cx).await;
    cx.out.result(&done, || format!("{} is now {}", args.vm, done.vm.name))
}

/// Runs `gvm resize`.
///
/// # Errors
/// See [`CliError`].
pub async fn resize(cx: &Context, args: ResizeArgs) -> CliResult {
    let request = ChangeVm { cpus: args.cpus, memory: args.memory, disk: args.disk, ..ChangeVm::default() };
    let done = change(cx, &args.vm, &request, &args.wait).await?;
    let vm = &done.vm;
    cx.out.result(&done, || {
        format!("{}: {} CPUs, {} memory, {} disk", vm.name, vm.cpus, size(vm.memory_mib), size(vm.disk_mib))
    })
}

/// Runs `gvm clone`.
///
/// # Errors
/// See [`CliError`].
pub async fn clone(cx: &Context, args: CloneArgs) -> CliResult {
    let request = CloneVm { name: args.new };
    let accepted = cx.client.post(&format!("{}/clone", args.vm.path()), &request).await?;
    let done = follow(cx, accepted, Goal::Created, &args.wait).await?;
    ssh::refresh_config(cx).await;
    cx.out.result(&done, || {
        let name = &done.vm.name;
        if args.wait.no_wait {
            return format!("asked for: {name} will be a copy of {}\n  gvm events {name}", args.vm);
        }
        let next = if done.vm.state == "running" { ssh::next_line(&done.vm) } else { format!("gvm start {name}") };
        format!("{name} is a copy of {}\n  {next}", args.vm)
    })
}

/// Runs `gvm tag`.
///
/// # Errors
/// See [`CliError`].
pub async fn tag(cx: &Context, command: TagCommand) -> CliResult {
    let (args, request) = match command {
        TagCommand::Add(args) => {
            let request = ChangeVm { add_tags: args.tags.clone(), ..ChangeVm::default() };
            (args, request)
        }
        TagCommand::Remove(args) => {
            let request = ChangeVm { remove_tags: args.tags.clone(), ..ChangeVm::default() };
            (args, request)
        }
        TagCommand::List { vm } => {
            let vm = cx.vm(&vm).await?;
            return cx.out.result(&vm.tags, || vm.tags.join("\n"));
        }
    };
    let done = change(cx, &args.vm, &request, &args.wait).await?;
    cx.out.result(&done, || format!("{}: {}", done.vm.name, or_none(done.vm.tags.join(", "))))
}

/// Runs `gvm set`.
///
/// # Errors
/// See [`CliError`].
pub async fn set(cx: &Context, args: SetArgs) -> CliResult {
    if args.limits.is_empty() && args.ttl.is_none() && args.gpus.is_empty() && args.team.is_none() {
        let nothing = CliError::invalid("there is nothing to change");
        return Err(nothing.hint("give a limit, --ttl, --gpu or --team; see `gvm set --help`"));
    }
    let gpus = gpus(&args.gpus)?;
    let is_about_gpus = gpus.is_some();
    let ttl = args.ttl.map(|ttl| match ttl {
        Limit::Lift => String::new(),
        Limit::Value(ttl) => ttl.to_string(),
    });
    let is_about_team = args.team.is_some();
    let request = ChangeVm { caps: args.limits.patch(), ttl, gpus, team: args.team, ..ChangeVm::default() };
    let done = change(cx, &args.vm, &request, &args.wait).await?;
    cx.out.result(&done, || {
        let ttl = or_none(done.vm.ttl_seconds.map(span).unwrap_or_default());
        let gpus = if is_about_gpus { format!("GPUs {}; ", or_none(vm::gpus(&done.vm))) } else { String::new() };
        let team = if is_about_team { format!("team {}; ", done.vm.team) } else { String::new() };
        format!("{}: {team}{gpus}limits {}; lifetime {ttl}", done.vm.name, caps(&done.vm.caps))
    })
}

fn or_none(text: String) -> String {
    if text.is_empty() { "none".to_owned() } else { text }
}
