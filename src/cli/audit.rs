//! `gvm audit`: who did what to what, and whether the record of it is what was written.

mod verify;

use clap::{Args, Subcommand};
use futures_util::StreamExt as _;
use jiff::Timestamp;
use jiff::tz::TimeZone;

pub use self::verify::VerifyArgs;
use super::context::Context;
use super::error::{CliError, CliResult};
use super::output::Output;
use super::table::{Align, card, moment, table};
use crate::api::client::STREAM_DEADLINE;
use crate::api::client::segment;
use crate::api::error::ErrorCode;
use crate::api::types::{EntryList, EntryView, HeadView};
use crate::model::units::Seconds;

/// Most entries of one answer.
const PAGE: u32 = 1000;

/// The record of who did what to what.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// List the newest entries: your own, everybody's for operators
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show what a request or operation did, by its id
    Show(ShowArgs),
    /// Print the record with its hashes, a line of JSON each
    Export(ExportArgs),
    /// Print the newest signed head of the record, to keep elsewhere
    Head,
    /// Check that the record, or an export of it, is what was written
    Verify(VerifyArgs),
}

/// Options of `audit list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only of this person; `gvm` is the manager itself
    #[arg(long, value_name = "NAME")]
    actor: Option<String>,
    /// Only actions that begin so, such as `vm.` or `key.add`
    #[arg(long, value_name = "ACTION")]
    action: Option<String>,
    /// Only to this
    #[arg(long, value_name = "TARGET")]
    target: Option<String>,
    /// Only about this machine: NAME, NAME.OWNER, or the id also of one that is gone
    #[arg(long, value_name = "VM")]
    vm: Option<String>,
    /// Only with this outcome: pending, success, denied or failure
    #[arg(long, value_name = "OUTCOME")]
    outcome: Option<String>,
    /// Only from then on: a time, a day, or how long ago (2026-11-30T12:00:00Z, 2026-11-30, 2h)
    #[arg(long, value_name = "TIME", value_parser = past)]
    since: Option<Timestamp>,
    /// Only before then
    #[arg(long, value_name = "TIME", value_parser = past)]
    until: Option<Timestamp>,
    /// At most so many
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 50)]
    limit: u32,
}

/// Options of `audit show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Id of a request, as an error told it, or of an operation
    #[arg(value_name = "ID")]
    id: uuid::Uuid,
}

/// Options of `audit export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// From the first entry of then on: a time, a day, or how long ago
    #[arg(long, value_name = "TIME", value_parser = past)]
    since: Option<Timestamp>,
}

/// A time as people write it.
fn past(text: &str) -> Result<Timestamp, String> {
    if let Ok(ago) = text.parse::<Seconds>() {
        return Timestamp::now().checked_sub(ago.duration()).map_err(|e| e.to_string());
    }
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(at);
    }
    let day = text.parse::<jiff::civil::Date>().and_then(|day| TimeZone::system().to_timestamp(day.at(0, 0, 0, 0)));
    day.map_err(|_| "use a time, a day, or how long ago: 2026-11-30T12:00:00Z, 2026-11-30, 2h".to_owned())
}

/// What can be done without a manager.
///
/// # Errors
/// See [`CliError`].
pub fn offline(out: &Output, command: &AuditCommand) -> Option<CliResult> {
    match command {
        AuditCommand::Verify(args) => args.file().map(|file| verify::export(out, file, args)),
        _ => None,
    }
}

/// Runs `gvm audit`.
///
/// # Errors
/// See [`CliError`].
pub async fn run(cx: &Context, command: AuditCommand) -> CliResult {
    match command {
        AuditCommand::List(args) => list(cx, &args).await,
        AuditCommand::Show(args) => show(cx, &args).await,
        AuditCommand::Export(args) => export(cx, &args).await,
        AuditCommand::Head => head(cx).await,
        AuditCommand::Verify(args) => verify::manager(cx, &args).await,
    }
}

async fn list(cx: &Context, args: &ListArgs) -> CliResult {
    let words = [
        ("actor", args.actor.clone()),
        ("action", args.action.clone()),
        ("target", args.target.clone()),
        ("vm", args.vm.clone()),
        ("outcome", args.outcome.clone()),
        ("since", args.since.map(|at| at.to_string())),
        ("until", args.until.map(|at| at.to_string())),
    ];
    let words: Vec<String> =
        words.into_iter().filter_map(|(key, value)| Some(format!("&{key}={}", segment(&value?)))).collect();
    let mut found = EntryList::default();
    let mut left = args.limit;
    while left > 0 {
        let before = found.next.map(|seq| format!("&before={seq}")).unwrap_or_default();
        let page: EntryList =
            cx.client.get(&format!("/v1/audit?limit={}{}{before}", left.min(PAGE), words.concat())).await?;
        left = left.saturating_sub(u32::try_from(page.entries.len()).unwrap_or(u32::MAX));
        found.entries.extend(page.entries);
        found.next = page.next;
        if found.next.is_none() {
            break;
        }
    }
    if found.entries.is_empty() && !cx.out.is_json() {
        cx.out.say("nothing on the record");
        return Ok(());
    }
    cx.out.result(&found, || rows(&found.entries, cx.out.is_colored()))
}

fn rows(entries: &[EntryView], colored: bool) -> String {
    let columns = [
        ("WHEN", Align::Left),
        ("WHO", Align::Left),
        ("WHAT", Align::Left),
        ("TO", Align::Left),
        ("OUTCOME", Align::Left),
        ("FROM", Align::Left),
        ("WHY", Align::Left),
    ];
    let row = |entry: &EntryView| {
        vec![
            moment(&entry.at),
            entry.actor.clone(),
            entry.action.clone(),
            entry.target.clone(),
            entry.outcome.clone(),
            from(entry),
            entry.detail.clone(),
        ]
    };
    table(&columns, entries.iter().map(row).collect(), colored)
}

/// The address where there is one, else how it was known who asked.
fn from(entry: &EntryView) -> String {
    entry.address.clone().unwrap_or_else(|| entry.via.clone())
}

async fn show(cx: &Context, args: &ShowArgs) -> CliResult {
    let mut found: EntryList = cx.client.get(&format!("/v1/audit?limit={PAGE}&request={}", args.id)).await?;
    if found.entries.is_empty() {
        let hint = "only changes, logins and refusals of changes are on the record, and you see your own";
        return Err(
            CliError::new(ErrorCode::NotFound, format!("there is nothing on the record of {}", args.id)).hint(hint)
        );
    }
    found.entries.reverse();
    cx.out.result(&found, || found.entries.iter().map(facts).collect::<Vec<_>>().join("\n"))
}

fn facts(entry: &EntryView) -> String {
    let with_id = |name: &str, id: Option<&String>| match id {
        Some(id) => format!("{name} ({id})"),
        None => name.to_owned(),
    };
    card(&[
        ("Entry", format!("{} ({})", entry.seq, entry.half)),
        ("When", moment(&entry.at)),
        ("Who", with_id(&entry.actor, entry.actor_id.as_ref())),
        ("From", entry.address.clone().unwrap_or_default()),
        ("Known by", entry.via.clone()),
        ("What", entry.action.clone()),
        ("To", entry.target.clone()),
        ("VM", entry.vm_id.clone().unwrap_or_default()),
        ("Outcome", entry.outcome.clone()),
        ("Why", entry.detail.clone()),
        ("Operation", entry.operation.clone()),
        ("Request", entry.request_id.clone().unwrap_or_default()),
        ("Hash", entry.hash.clone()),
    ])
}

async fn export(cx: &Context, args: &ExportArgs) -> CliResult {
    let since = args.since.map(|at| format!("?since={}", segment(&at.to_string()))).unwrap_or_default();
    let mut pages = cx.client.bytes(&format!("/v1/audit/export{since}"), STREAM_DEADLINE).await?;
    while let Some(page) = pages.next().await {
        cx.out.foreign(page?.as_ref())?;
    }
    Ok(())
}

async fn head(cx: &Context) -> CliResult {
    let view: HeadView = cx.client.get("/v1/audit/head").await?;
    cx.out.result(&view, || {
        let head = view
            .head
            .clone()
            .unwrap_or_else(|| "none is signed yet; one is every `audit.sign_every` minutes".to_owned());
        card(&[("Head", head), ("Key", view.key.clone()), ("Last entry", view.last.to_string())])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> EntryView {
        EntryView {
            seq: 7,
            at: "2026-11-30T12:00:01.5Z".to_owned(),
            operation: "01890000-0000-7000-8000-000000000001".to_owned(),
            half: "whole".to_owned(),
            actor: "eve".to_owned(),
            actor_id: Some("01890000-0000-7000-8000-000000000002".to_owned()),
            via: "socket".to_owned(),
            address: None,
            request_id: Some("01890000-0000-7000-8000-000000000003".to_owned()),
            action: "vm.delete".to_owned(),
            target: "dev.bob".to_owned(),
            vm_id: None,
            outcome: "denied".to_owned(),
            detail: "there is no VM \"dev.bob\"".to_owned(),
            hash: "ab".repeat(32),
        }
    }

    #[test]
    fn entries_are_listed() {
        let other = EntryView { address: Some("192.0.2.7".to_owned()), detail: String::new(), ..entry() };
        insta::assert_snapshot!(rows(&[entry(), other], false));
    }

    #[test]
    fn an_entry_is_shown_whole() {
        insta::assert_snapshot!(facts(&entry()));
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        assert_eq!(past("2026-11-30T12:00:00Z").unwrap().to_string(), "2026-11-30T12:00:00Z");
        assert!(past("2026-11-30").is_ok());
        let ago = Timestamp::now().duration_since(past("2h").unwrap()).as_secs();
        assert!((7199..7260).contains(&ago), "{ago}");
        assert!(past("yesterday").unwrap_err().contains("how long ago"));
    }
}
