//! `gvm doctor`: what the manager finds about its host.

use std::collections::HashSet;

use clap::Args;

use super::args::checked;
use super::context::Context;
use super::error::{CliError, CliResult, plain};
use super::table::{Align, table};
use crate::api::client::segment;
use crate::api::types::{DoctorReport, FindingView, VersionView};
use crate::model::name::ProfileName;

/// Options of `gvm doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Only what this profile needs, judged for it
    #[arg(long, short = 'p', value_name = "PROFILE", value_parser = checked::<ProfileName>)]
    profile: Option<String>,
}

/// Runs `gvm doctor`. What does not work ends with exit code 1.
///
/// # Errors
/// See [`CliError`].
pub async fn run(cx: &Context, args: &DoctorArgs) -> CliResult {
    let path = match &args.profile {
        Some(profile) => format!("/v1/doctor?profile={}", segment(profile)),
        None => "/v1/doctor".to_owned(),
    };
    let report: DoctorReport = cx.client.get(&path).await?;
    warn_of_another_version(cx).await;
    cx.out.result(&report, || shown(&report.findings, cx.out.is_colored()))?;
    if report.findings.iter().any(|finding| finding.level == "fail") {
        return Err(CliError::Silent(1));
    }
    Ok(())
}

async fn warn_of_another_version(cx: &Context) {
    let ours = env!("CARGO_PKG_VERSION");
    if let Ok(theirs) = cx.client.get::<VersionView>("/v1/version").await
        && theirs.version != ours
    {
        cx.out.warning(&format!("the manager is gvm {}, this is gvm {ours}", theirs.version));
    }
}

/// Findings as people see them; what is in `docs/doctor` is made by this.
pub fn shown(findings: &[FindingView], colored: bool) -> String {
    let columns = [("LEVEL", Align::Left), ("CHECK", Align::Left), ("FINDING", Align::Left)];
    let row = |finding: &FindingView| vec![finding.level.clone(), finding.check.clone(), finding.message.clone()];
    let mut text = table(&columns, findings.iter().map(row).collect(), colored);
    let fixes: Vec<&FindingView> = findings.iter().filter(|finding| !finding.fix.is_empty()).collect();
    if !fixes.is_empty() {
        text.push_str("\nTo mend it:\n");
        let mut told = HashSet::new();
        for finding in fixes {
            // What mends several things is told once.
            for line in finding.fix.lines().filter(|line| told.insert(*line)) {
                text.push_str(&format!("  {}: {}\n", plain(&finding.check), plain(line)));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_come_with_what_mends_them() {
        let finding = |check: &str, level: &str, message: &str, fix: &str| FindingView {
            check: check.to_owned(),
            level: level.to_owned(),
            message: message.to_owned(),
            fix: fix.to_owned(),
        };
        let findings = [
            finding("libvirt", "ok", "libvirt 11.3 answers", ""),
            finding("kvm", "warn", "/dev/kvm cannot run an ordinary guest; machines are emulated", "first\nsecond"),
            finding("space", "fail", "2 GiB free in /var/lib/gvm", "move manager.state_dir to a larger disk\nsecond"),
        ];
        insta::assert_snapshot!(shown(&findings, false));
    }
}
