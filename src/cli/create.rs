//! `gvm create`: from a profile to a login.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;

use super::caps::CapArgs;
use super::context::Context;
use super::error::{CliError, CliResult};
use super::goal::Goal;
use super::wait::{WaitArgs, follow};
use super::{files, key, quota, ssh, table};
use crate::api::types::{Accepted, CreateVm, DryRun, VmView};

/// Largest cloud-init document that is sent.
const USER_DATA_MAX: u64 = 64 << 10;

/// Options of `gvm create`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  gvm create dev --profile debian
  gvm create train --profile ubuntu-cuda --gpu a100 --memory 64G --ttl 8h

What is not said comes from the profile; `gvm profile list` shows them.")]
pub struct CreateArgs {
    /// Name of the machine [default: made up from the profile's]
    name: Option<String>,
    /// Profile to start from
    #[arg(short, long, value_name = "PROFILE")]
    profile: String,
    /// Virtual CPUs
    #[arg(long, value_name = "N")]
    cpus: Option<u32>,
    /// Memory, such as 4G
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// Root disk, such as 40G
    #[arg(long, value_name = "SIZE")]
    disk: Option<String>,
    /// GPU: a model (a100), a number (2), both (2xa100), a memory (48GiB, a100:80GiB), :same-node or :same-switch after
    /// them, or none; may be repeated
    #[arg(long = "gpu", value_name = "GPU")]
    gpus: Vec<String>,
    /// Image to clone the disk from
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Lifetime after each start, such as 8h; it is stopped then, not deleted
    #[arg(long, value_name = "DURATION")]
    ttl: Option<String>,
    /// Priority in the queue
    #[arg(long, value_name = "PRIORITY")]
    priority: Option<String>,
    /// Cloud-init document to merge with ours; - for standard input
    #[arg(long, value_name = "FILE")]
    user_data: Option<PathBuf>,
    /// Label; may be repeated
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// Team that it counts for [default: your default team]
    #[arg(long, value_name = "TEAM")]
    team: Option<String>,
    /// Give it a TPM 2.0 (--tpm=false: none, whatever the profile says)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    tpm: Option<bool>,
    /// Leave it off
    #[arg(long)]
    stopped: bool,
    /// Only say what would be made, and which GPUs it would be given now
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    caps: CapArgs,
    #[command(flatten)]
    wait: WaitArgs,
}

impl CreateArgs {
    fn request(&self) -> CliResult<CreateVm> {
        let user_data = match &self.user_data {
            Some(file) => Some(files::read_text(file, USER_DATA_MAX)?),
            None => None,
        };
        Ok(CreateVm {
            name: self.name.clone(),
            profile: self.profile.clone(),
            image: self.image.clone(),
            cpus: self.cpus,
            memory: self.memory.clone(),
            disk: self.disk.clone(),
            gpus: gpus(&self.gpus)?,
            caps: self.caps.view(),
            ttl: self.ttl.clone(),
            priority: self.priority.clone(),
            user_data,
            tags: self.tags.clone(),
            team: self.team.clone(),
            tpm: self.tpm,
            is_stopped: self.stopped,
        })
    }
}

/// GPUs as typed: none said means the profile's or those it has, the word `none` means none at all.
pub(super) fn gpus(typed: &[String]) -> CliResult<Option<Vec<String>>> {
    match typed {
        [] => Ok(None),
        [one] if one == "none" => Ok(Some(Vec::new())),
        some if some.iter().any(|gpu| gpu == "none") => {
            Err(CliError::invalid("--gpu none cannot stand beside another --gpu"))
        }
        some => Ok(Some(some.to_vec())),
    }
}

/// Runs `gvm create`.
///
/// # Errors
/// See [`CliError`].
pub async fn run(cx: &Context, args: CreateArgs) -> CliResult {
    // Values are judged by the manager alone, so that what it refuses is on its record.
    let request = args.request()?;
    if args.dry_run {
        let rehearsed: DryRun = cx.client.post("/v1/dry-run", &request).await?;
        rehearsed.notes.iter().for_each(|note| cx.out.note(note));
        return cx.out.result(&rehearsed, || would_be(&rehearsed));
    }
    key::ensure_first_key(cx).await?;
    let started = Instant::now();
    let accepted: Accepted = cx.client.post("/v1/vms", &request).await?;
    let goal = if args.stopped { Goal::Done } else { Goal::Created };
    let made = follow(cx, accepted, goal, &args.wait).await?;
    ssh::refresh_config(cx).await;
    if goal == Goal::Created && !args.wait.no_wait && !matches!(made.vm.first_boot.as_str(), "done" | "waiting" | "") {
        cx.out.note(&format!("its first boot goes on: {}; `gvm show {}`", made.vm.first_boot, made.vm.name));
    }
    cx.out.result(&made, || {
        if args.wait.no_wait {
            format!("{} is being made\n  gvm events {}", made.vm.name, made.vm.name)
        } else if args.stopped {
            format!("{} is made and off: {}\n  gvm start {}", made.vm.name, shape(&made.vm), made.vm.name)
        } else {
            let took = started.elapsed().as_secs_f64();
            format!("{} is ready: {} ({took:.1} s)\n  {}", made.vm.name, shape(&made.vm), ssh::next_line(&made.vm))
        }
    })
}

/// What a dry run found, one card per line.
fn would_be(run: &DryRun) -> String {
    let cpus = if run.cpus == 1 { "1 CPU".to_owned() } else { format!("{} CPUs", run.cpus) };
    let mut parts: Vec<String> = Some(run.image.clone()).filter(|image| !image.is_empty()).into_iter().collect();
    parts.extend([
        cpus,
        format!("{} memory", table::size(run.memory_mib)),
        format!("{} disk", table::size(run.disk_mib)),
    ]);
    parts.extend(run.numa_node.map(|node| format!("on NUMA node {node}")));
    let mut text = format!("{} could be made now: {}", run.name, parts.join(", "));
    for gpu in &run.gpus {
        let node = gpu.numa_node.map(|node| format!(", NUMA node {node}")).unwrap_or_default();
        let along = if gpu.siblings.is_empty() { String::new() } else { format!(", with {}", gpu.siblings.join(", ")) };
        text.push_str(&format!("\n  GPU {} {}{node}{along}", gpu.address, gpu.model));
    }
    let quota = quota::after_next(&run.quota);
    if !quota.is_empty() {
        text.push_str(&format!("\n  quota afterwards: {quota}"));
    }
    text
}

/// The shape of a machine in a few words.
fn shape(vm: &VmView) -> String {
    let cpus = if vm.cpus == 1 { "1 CPU".to_owned() } else { format!("{} CPUs", vm.cpus) };
    let mut parts = vec![cpus, format!("{} memory", table::size(vm.memory_mib))];
    if !vm.image.is_empty() {
        parts.insert(0, vm.image.clone());
    }
    parts.push(format!("{} disk", table::size(vm.disk_mib)));
    parts.extend(vm.gpus.iter().map(|gpu| format!("GPU {gpu}")));
    if !vm.address.is_empty() {
        parts.push(vm.address.clone());
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::samples;

    #[test]
    fn gpus_are_the_profiles_some_or_none() {
        let check = |typed: &[&str]| gpus(&typed.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>());
        assert_eq!(check(&[]).unwrap(), None);
        assert_eq!(check(&["none"]).unwrap(), Some(Vec::new()));
        assert_eq!(check(&["a100", "2"]).unwrap(), Some(vec!["a100".to_owned(), "2".to_owned()]));
        assert_eq!(check(&["none", "2"]).unwrap_err().exit_code(), 2);
    }

    #[test]
    fn a_shape_is_told_in_a_few_words() {
        assert_eq!(shape(&samples::vm()), "debian, 2 CPUs, 2 GiB memory, 10 GiB disk, 10.77.0.12");
    }
}
