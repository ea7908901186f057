//! `gvm profile`: the shapes that machines are made from.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::args::checked;
use super::context::Context;
use super::error::{CliError, CliResult, plain};
use super::files;
use super::table::{Align, caps, card, size, table};
use crate::api::client::segment;
use crate::api::types::{CheckProfile, ProfileCheck, ProfileList, ProfileView};
use crate::model::name::ProfileName;

/// Largest captured inventory that is sent.
const FIXTURE_MAX: u64 = 4 << 20;

/// `gvm profile`
#[derive(Debug, Subcommand)]
pub enum ProfileCommand {
    /// List the profiles you may use
    #[command(visible_alias = "ls")]
    List,
    /// Show everything about a profile
    Show {
        /// Profile
        #[arg(value_parser = checked::<ProfileName>)]
        name: String,
    },
    /// Check that machines can be made from a profile: plan, render, validate, convert
    Check(CheckArgs),
}

/// Options of `profile check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Profile
    #[arg(value_parser = checked::<ProfileName>)]
    name: String,
    /// Plan against the GPUs of a captured inventory (JSON) instead of those of this host
    #[arg(long, value_name = "FILE")]
    gpu_fixture: Option<PathBuf>,
    /// Print the domain description as well
    #[arg(long)]
    xml: bool,
    /// Print QEMU's command line as well
    #[arg(long)]
    native: bool,
}

/// Runs `gvm profile`.
///
/// # Errors
/// See [`CliError`].
pub async fn run(cx: &Context, command: ProfileCommand) -> CliResult {
    match command {
        ProfileCommand::List => list(cx).await,
        ProfileCommand::Show { name } => show(cx, &name).await,
        ProfileCommand::Check(args) => check(cx, &args).await,
    }
}

async fn list(cx: &Context) -> CliResult {
    let list: ProfileList = cx.client.get("/v1/profiles").await?;
    list.faults.iter().for_each(|fault| cx.out.warning(fault));
    cx.out.result(&list, || rows(&list.profiles, cx.out.is_colored()))
}

fn rows(profiles: &[ProfileView], colored: bool) -> String {
    let columns = [
        ("NAME", Align::Left),
        ("CPUS", Align::Right),
        ("MEMORY", Align::Right),
        ("DISK", Align::Right),
        ("GPU", Align::Left),
        ("IMAGE", Align::Left),
        ("DESCRIPTION", Align::Left),
    ];
    let row = |profile: &ProfileView| {
        let image =
            if profile.is_image_present { profile.image.clone() } else { format!("{} (missing)", profile.image) };
        vec![
            profile.name.clone(),
            profile.cpus.to_string(),
            size(profile.memory_mib),
            size(profile.disk_mib),
            profile.gpus.join(","),
            image,
            profile.description.clone(),
        ]
    };
    table(&columns, profiles.iter().map(row).collect(), colored)
}

async fn show(cx: &Context, name: &str) -> CliResult {
    let profile: ProfileView = cx.client.get(&format!("/v1/profiles/{}", segment(name))).await?;
    let yes = |fact: bool| if fact { "yes" } else { "no" }.to_owned();
    cx.out.result(&profile, || {
        card(&[
            ("Name", profile.name.clone()),
            ("Description", profile.description.clone()),
            ("Image", profile.image.clone()),
            ("Image present", yes(profile.is_image_present)),
            ("Boot", profile.boot.clone()),
            ("CPUs", profile.cpus.to_string()),
            ("Memory", size(profile.memory_mib)),
            ("Disk", size(profile.disk_mib)),
            ("GPUs", profile.gpus.join(", ")),
            ("Limits", caps(&profile.caps)),
            ("TPM", yes(profile.tpm)),
            ("Secure boot", yes(profile.secure_boot)),
        ])
    })
}

async fn check(cx: &Context, args: &CheckArgs) -> CliResult {
    let gpu_fixture = match &args.gpu_fixture {
        Some(file) => {
            let text = files::read_text(file, FIXTURE_MAX)?;
            let json = serde_json::from_str(&text)
                .map_err(|e| CliError::invalid(format!("{} is not JSON: {e}", file.display())))?;
            Some(json)
        }
        None => None,
    };
    let path = format!("/v1/profiles/{}/check", segment(&args.name));
    let verdict: ProfileCheck = cx.client.post(&path, &CheckProfile { gpu_fixture }).await?;
    cx.out.result(&verdict, || findings(&verdict, args))?;
    if verdict.ok { Ok(()) } else { Err(CliError::Silent(1)) }
}

fn findings(verdict: &ProfileCheck, args: &CheckArgs) -> String {
    let mut text: String = verdict.findings.iter().map(|line| plain(line) + "\n").collect();
    if !verdict.gpus.is_empty() {
        text.push_str(&format!("GPUs chosen: {}\n", plain(verdict.gpus.join(", "))));
    }
    let mut part = |title: &str, body: &str, is_wanted: bool| {
        if is_wanted && !body.is_empty() {
            text.push_str(&format!("\n{title}:\n{}\n", body.trim_end()));
        }
    };
    part("Difference from the built-in template", &verdict.template_diff, true);
    part("Domain description", &verdict.xml, args.xml);
    part("QEMU's command line", &verdict.native, args.native);
    let end = if verdict.ok { "machines can be made from it" } else { "no machine can be made from it" };
    let gap = if text.contains("\n\n") { "\n" } else { "" };
    text + &format!("{gap}{}: {end}", args.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_ends_with_one_sentence() {
        let verdict = ProfileCheck {
            ok: false,
            findings: vec!["ok: image debian".to_owned(), "fault: no GPU a100".to_owned()],
            template_diff: "-a\n+b\n".to_owned(),
            xml: "<domain/>".to_owned(),
            ..ProfileCheck::default()
        };
        let args = CheckArgs { name: "big".to_owned(), gpu_fixture: None, xml: true, native: true };
        insta::assert_snapshot!(findings(&verdict, &args));
    }
}
