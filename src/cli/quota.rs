//! `gvm quota`: what one holds and may hold.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};

use super::context::Context;
use super::error::{CliError, CliResult};
use super::table::{Align, moment, table};
use crate::api::client::segment;
use crate::api::types::{QuotaLineView, QuotaView, SetQuota};
use crate::model::quota::QuotaKind;

/// What you may hold, and what you hold.
#[derive(Debug, Subcommand)]
pub enum QuotaCommand {
    /// Show what is held, what may be, and what the next machine would take
    Show(ShowArgs),
    /// Change the limits of a user or team
    Set(Box<SetArgs>),
}

/// Options of `quota show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// User [default: you]
    #[arg(value_name = "USER", conflicts_with = "team")]
    user: Option<String>,
    /// Of a team
    #[arg(long, value_name = "TEAM")]
    team: Option<String>,
    /// Profile of the next machine [default: that of the newest machine]
    #[arg(short, long, value_name = "PROFILE")]
    profile: Option<String>,
}

/// Options of `quota set`.
#[derive(Debug, Args)]
#[command(after_help = "\
What is not said stays. Limits of a user come before what the default team gives each member, and those before
[people.quota] of the configuration, kind by kind. A machine that runs is not stopped by a limit.

Examples:
  gvm quota set alice --vms 3 --gpus 1 --gpu-hours 100 --memory 64GiB
  gvm quota set alice --unlimited vcpus --default disk
  gvm quota set --team hpc --gpus 8
  gvm quota set --team hpc --member-default --gpus 2")]
pub struct SetArgs {
    /// User
    #[arg(value_name = "USER", conflicts_with = "team", required_unless_present = "team")]
    user: Option<String>,
    /// The limits of a team, over all of its machines
    #[arg(long, value_name = "TEAM")]
    team: Option<String>,
    /// Of each member whose default team it is
    #[arg(long, requires = "team")]
    member_default: bool,
    /// Machines, stopped ones included
    #[arg(long, value_name = "N")]
    vms: Option<String>,
    /// Machines that should run
    #[arg(long, value_name = "N")]
    running_vms: Option<String>,
    /// Virtual CPUs of machines that should run
    #[arg(long, value_name = "N")]
    vcpus: Option<String>,
    /// Memory of machines that should run, such as 64GiB
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// Disk of all machines, such as 500GiB
    #[arg(long, value_name = "SIZE")]
    disk: Option<String>,
    /// GPUs and parts of GPUs of machines that should run
    #[arg(long, value_name = "N")]
    gpus: Option<String>,
    /// Their memory, such as 80GiB
    #[arg(long, value_name = "SIZE")]
    gpu_memory: Option<String>,
    /// Parts of GPUs alone: vGPUs and MIG slices
    #[arg(long, value_name = "N")]
    gpu_slices: Option<String>,
    /// Hours of a whole GPU in a calendar month
    #[arg(long, value_name = "HOURS")]
    gpu_hours: Option<String>,
    /// No limit of these kinds, whatever a wider one says; may be repeated
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = kind)]
    unlimited: Vec<QuotaKind>,
    /// The wider limit of these kinds again; may be repeated
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = kind)]
    default: Vec<QuotaKind>,
}

/// A kind as an option is written, or as the wire has it.
fn kind(text: &str) -> Result<QuotaKind, String> {
    text.replace('-', "_").parse::<QuotaKind>().map_err(|e| e.to_string())
}

impl SetArgs {
    fn changes(&self) -> CliResult<BTreeMap<String, Option<String>>> {
        let said = QuotaKind::ALL.iter().filter_map(|kind| Some((*kind, Some(self.value(*kind)?.clone()))));
        let unlimited = self.unlimited.iter().map(|kind| (*kind, Some("unlimited".to_owned())));
        let mut changes = BTreeMap::new();
        for (kind, limit) in said.chain(unlimited).chain(self.default.iter().map(|kind| (*kind, None))) {
            if changes.insert(kind.to_string(), limit).is_some() {
                return Err(CliError::invalid(format!("{kind} is said twice")));
            }
        }
        if changes.is_empty() {
            return Err(CliError::invalid("there is nothing to change").hint("see `gvm quota set --help`"));
        }
        Ok(changes)
    }

    const fn value(&self, kind: QuotaKind) -> Option<&String> {
        match kind {
            QuotaKind::Vms => self.vms.as_ref(),
            QuotaKind::RunningVms => self.running_vms.as_ref(),
            QuotaKind::Vcpus => self.vcpus.as_ref(),
            QuotaKind::Memory => self.memory.as_ref(),
            QuotaKind::Disk => self.disk.as_ref(),
            QuotaKind::Gpus => self.gpus.as_ref(),
            QuotaKind::GpuMemory => self.gpu_memory.as_ref(),
            QuotaKind::GpuSlices => self.gpu_slices.as_ref(),
            QuotaKind::GpuHours => self.gpu_hours.as_ref(),
        }
    }
}

fn path(user: Option<&String>, team: Option<&String>) -> String {
    match (user, team) {
        (_, Some(team)) => format!("/v1/teams/{}/quota", segment(team)),
        (Some(user), None) => format!("/v1/users/{}/quota", segment(user)),
        (None, None) => "/v1/quota".to_owned(),
    }
}

/// Runs `gvm quota`.
///
/// # Errors
/// See [`CliError`].
pub async fn run(cx: &Context, command: QuotaCommand) -> CliResult {
    let view: QuotaView = match command {
        QuotaCommand::Show(args) => {
            let mut path = path(args.user.as_ref(), args.team.as_ref());
            if let Some(profile) = &args.profile {
                path.push_str(&format!("?profile={}", segment(profile)));
            }
            cx.client.get(&path).await?
        }
        QuotaCommand::Set(args) => {
            let changes = args.changes()?;
            let request = match args.member_default {
                true => SetQuota { member_limits: changes, ..SetQuota::default() },
                false => SetQuota { limits: changes, ..SetQuota::default() },
            };
            cx.client.patch(&path(args.user.as_ref(), args.team.as_ref()), &request).await?
        }
    };
    cx.out.result(&view, || sheet(&view, cx.out.is_colored()))
}

/// An amount or a limit for people.
pub(super) fn amount(line: &QuotaLineView, amount: u64) -> String {
    match line.kind.parse::<QuotaKind>() {
        Ok(kind) => kind.show(amount),
        // Of a newer manager.
        Err(_) => format!("{amount} {}", line.unit),
    }
}

fn sheet(view: &QuotaView, is_colored: bool) -> String {
    let columns = [
        ("QUOTA", Align::Left),
        ("USED", Align::Right),
        ("LIMIT", Align::Right),
        ("NEXT", Align::Right),
        ("LIMIT FROM", Align::Left),
    ];
    let row = |line: &QuotaLineView| {
        let limit = line.limit.map_or_else(|| "unlimited".to_owned(), |limit| amount(line, limit));
        let next = if line.next == 0 { String::new() } else { format!("+{}", amount(line, line.next)) };
        vec![line.kind.replace('_', "-"), amount(line, line.used), limit, next, line.source.clone()]
    };
    let mut text = table(&columns, view.lines.iter().map(row).collect(), is_colored);
    let whose = if view.is_team { format!("team {}", view.name) } else { view.name.clone() };
    text.push_str(&format!("\n{whose}; GPU hours begin anew at {}", moment(&view.month_end)));
    if !view.profile.is_empty() {
        text.push_str(&format!("; NEXT is one more machine of profile {}", view.profile));
    }
    if !view.member_limits.is_empty() {
        let each = |(kind, limit): (&String, &String)| format!("{} {limit}", kind.replace('_', "-"));
        let all: Vec<String> = view.member_limits.iter().map(each).collect();
        text.push_str(&format!("\neach member: {}", all.join(", ")));
    }
    text
}

/// What a machine would make of the kinds that have a limit, in one line; empty where none has.
pub(super) fn after_next(lines: &[QuotaLineView]) -> String {
    let limited = lines.iter().filter_map(|line| Some((line, line.limit?)).filter(|(line, _)| line.next > 0));
    let of = |(line, limit): (&QuotaLineView, u64)| {
        let used = amount(line, line.used.saturating_add(line.next));
        format!("{} {used} of {}", line.kind.replace('_', "-"), amount(line, limit))
    };
    limited.map(of).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(kind: &str, unit: &str, used: u64, limit: Option<u64>, next: u64, source: &str) -> QuotaLineView {
        let (kind, unit, source) = (kind.to_owned(), unit.to_owned(), source.to_owned());
        QuotaLineView { kind, unit, used, limit, source, next }
    }

    #[test]
    fn a_sheet_says_what_is_held_what_may_be_and_who_says_so() {
        let view = QuotaView {
            name: "hpc".to_owned(),
            is_team: true,
            lines: vec![
                line("vms", "number", 2, Some(3), 1, "own"),
                line("memory", "mib", 6144, None, 2048, ""),
                line("gpu_hours", "seconds", 9000, Some(360_000), 0, "each member of hpc"),
                line("snapshots", "number", 1, Some(4), 0, "own"),
            ],
            profile: "debian".to_owned(),
            member_limits: [("gpu_hours".to_owned(), "20 h".to_owned())].into_iter().collect(),
            month_end: "2027-01-01T00:00:00Z".to_owned(),
        };
        insta::assert_snapshot!(sheet(&view, false));
        assert_eq!(after_next(&view.lines), "vms 3 of 3");
    }

    #[test]
    fn kinds_are_typed_as_options_or_as_words() {
        assert_eq!(kind("gpu-hours"), Ok(QuotaKind::GpuHours));
        assert_eq!(kind("gpu_hours"), Ok(QuotaKind::GpuHours));
        assert!(kind("cats").unwrap_err().contains("vms, running_vms"));
    }
}
