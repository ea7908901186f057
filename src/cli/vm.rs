//! `gvm list` and `gvm show`.

use clap::Args;
use jiff::Timestamp;

use super::context::Context;
use super::error::CliResult;
use super::table::{Align, age, caps, card, moment, size, span, table};
use super::vm_ref::VmRef;
use crate::api::client::segment;
use crate::api::types::{VmList, VmView};

/// Options of `gvm list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Everybody's machines, as far as you may see them
    #[arg(short, long)]
    all: bool,
    /// The machines that count for this team, where you are its teacher
    #[arg(long, value_name = "TEAM", conflicts_with = "all")]
    team: Option<String>,
    /// Deleted machines that can be undeleted, as well
    #[arg(long)]
    deleted: bool,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: u32,
}

/// Options of `gvm show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Machine: NAME, NAME.OWNER or id
    vm: VmRef,
}

/// Runs `gvm list`.
///
/// # Errors
/// See [`super::error::CliError`].
pub async fn list(cx: &Context, args: &ListArgs) -> CliResult {
    let mut path = format!("/v1/vms?limit={}", args.limit);
    if args.all {
        path.push_str("&all=true");
    }
    if let Some(team) = &args.team {
        path.push_str(&format!("&team={}", segment(team)));
    }
    if args.deleted {
        path.push_str("&deleted=true");
    }
    let list: VmList = cx.client.get(&path).await?;
    if list.vms.is_empty() && !cx.out.is_json() {
        cx.out.say("no machines yet; make one with `gvm create NAME --profile PROFILE` (see `gvm profile list`)");
        return Ok(());
    }
    cx.out.result(&list, || {
        let with = Columns { owner: args.all || args.team.is_some(), deleted: args.deleted };
        rows(&list.vms, with, Timestamp::now(), cx.out.is_colored())
    })
}

/// Which columns are shown beside the usual ones.
#[derive(Clone, Copy, Debug)]
struct Columns {
    owner: bool,
    deleted: bool,
}

fn rows(vms: &[VmView], with: Columns, now: Timestamp, colored: bool) -> String {
    let mut columns = vec![("NAME", Align::Left)];
    if with.owner {
        columns.push(("OWNER", Align::Left));
    }
    columns.extend([
        ("STATE", Align::Left),
        ("CPUS", Align::Right),
        ("MEMORY", Align::Right),
        ("DISK", Align::Right),
        ("GPU", Align::Left),
        ("ADDRESS", Align::Left),
        ("PROFILE", Align::Left),
        ("AGE", Align::Right),
    ]);
    if with.deleted {
        columns.push(("UNDELETE UNTIL", Align::Left));
    }
    let row = |vm: &VmView| {
        let mut row = vec![vm.name.clone()];
        if with.owner {
            row.push(vm.owner.clone());
        }
        row.extend([
            vm.state.clone(),
            vm.cpus.to_string(),
            size(vm.memory_mib),
            size(vm.disk_mib),
            vm.gpus.join(","),
            vm.address.clone(),
            vm.profile.clone(),
            age(&vm.created_at, now),
        ]);
        if with.deleted {
            row.push(vm.undelete_until.as_deref().map(moment).unwrap_or_default());
        }
        row
    };
    table(&columns, vms.iter().map(row).collect(), colored)
}

/// Runs `gvm show`.
///
/// # Errors
/// See [`super::error::CliError`].
pub async fn show(cx: &Context, args: &ShowArgs) -> CliResult {
    let vm = cx.vm(&args.vm).await?;
    cx.out.result(&vm, || facts(&vm))
}

fn facts(vm: &VmView) -> String {
    let yes = |fact: bool, text: &str| if fact { text.to_owned() } else { String::new() };
    let in_force = match &vm.caps_in_force {
        Some(limits) if *limits == vm.caps => "as asked for".to_owned(),
        Some(limits) => caps(limits),
        None => String::new(),
    };
    let login = match (vm.state.as_str(), vm.is_reachable) {
        ("running", true) => format!("gvm ssh {}", vm.name),
        ("running", false) => "its SSH server does not answer yet".to_owned(),
        _ => String::new(),
    };
    card(&[
        ("Name", vm.name.clone()),
        ("Owner", vm.owner.clone()),
        ("Team", vm.team.clone()),
        ("Id", vm.id.clone()),
        ("State", vm.state.clone()),
        ("Detail", vm.detail.clone()),
        ("Restart", yes(vm.needs_restart, "a change waits for a restart")),
        ("Log in", login),
        ("Guest user", vm.guest_user.clone()),
        ("First boot", vm.first_boot.clone()),
        ("Address", vm.address.clone()),
        ("Ethernet", vm.mac.clone()),
        ("Profile", vm.profile.clone()),
        ("Image", vm.image.clone()),
        ("CPUs", vm.cpus.to_string()),
        ("Memory", size(vm.memory_mib)),
        ("Disk", size(vm.disk_mib)),
        ("GPUs", gpus(vm)),
        ("Runs on", vm.accelerator.clone()),
        ("Limits", caps(&vm.caps)),
        ("In force", in_force),
        ("Tags", vm.tags.join(", ")),
        ("Lifetime", vm.ttl_seconds.map(span).unwrap_or_default()),
        ("Stops at", vm.expires_at.as_deref().map(moment).unwrap_or_default()),
        ("Undelete until", vm.undelete_until.as_deref().map(moment).unwrap_or_default()),
        ("Made", moment(&vm.created_at)),
    ])
}

/// What was asked for, and the cards it has.
pub(super) fn gpus(vm: &VmView) -> String {
    let asked = vm.gpus.join(", ");
    if vm.gpu_addresses.is_empty() { asked } else { format!("{asked}: {}", vm.gpu_addresses.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::CapsView;
    use crate::cli::samples;

    #[test]
    fn a_list_has_the_columns_of_its_options() {
        let now = "2026-11-30T15:00:00Z".parse().unwrap();
        let other = VmView {
            name: "train".to_owned(),
            owner: "bob".to_owned(),
            state: "deleted".to_owned(),
            gpus: vec!["a100".to_owned(), "a100".to_owned()],
            address: String::new(),
            undelete_until: Some("2026-12-01T12:00:00Z".to_owned()),
            ..samples::vm()
        };
        let vms = [samples::vm(), other];
        insta::assert_snapshot!("list", rows(&vms, Columns { owner: false, deleted: false }, now, false));
        insta::assert_snapshot!("list_all_deleted", rows(&vms, Columns { owner: true, deleted: true }, now, false));
    }

    #[test]
    fn a_machine_is_shown_with_its_limits_asked_for_and_in_force() {
        let caps = CapsView { cpu_percent: Some(150), disk_iops: Some(500), ..CapsView::default() };
        let vm = VmView {
            caps_in_force: Some(CapsView { cpu_percent: Some(150), ..CapsView::default() }),
            caps,
            ttl_seconds: Some(28_800),
            expires_at: Some("2026-11-30T20:00:00Z".to_owned()),
            tags: vec!["course".to_owned()],
            needs_restart: true,
            ..samples::vm()
        };
        insta::assert_snapshot!("show", facts(&vm));
    }
}
