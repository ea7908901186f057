//! `gvm doctor`: what the manager finds about its host.

use super::context::Context;
use super::error::{CliError, CliResult, plain};
use super::table::{Align, table};
use crate::api::types::{DoctorReport, FindingView, VersionView};

/// Runs `gvm doctor`. Faults end with exit code 1.
///
/// # Errors
/// See [`CliError`].
pub async fn run(cx: &Context) -> CliResult {
    let report: DoctorReport = cx.client.get("/v1/doctor").await?;
    warn_of_another_version(cx).await;
    cx.out.result(&report, || shown(&report.findings, cx.out.is_colored()))?;
    if report.findings.iter().any(|finding| finding.level == "fault") {
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

fn shown(findings: &[FindingView], colored: bool) -> String {
    let columns = [("LEVEL", Align::Left), ("CHECK", Align::Left), ("FINDING", Align::Left)];
    let row = |finding: &FindingView| vec![finding.level.clone(), finding.check.clone(), finding.message.clone()];
    let mut text = table(&columns, findings.iter().map(row).collect(), colored);
    let fixes: Vec<&FindingView> = findings.iter().filter(|finding| !finding.fix.is_empty()).collect();
    if !fixes.is_empty() {
        text.push_str("\nTo mend it:\n");
        for finding in fixes {
            text.push_str(&format!("  {}: {}\n", plain(&finding.check), plain(&finding.fix)));
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
            finding("kvm", "warning", "/dev/kvm cannot run an ordinary guest; machines are emulated", ""),
            finding("space", "fault", "2 GiB free in /var/lib/gvm", "move manager.state_dir to a larger disk"),
        ];
        insta::assert_snapshot!(shown(&findings, false));
    }
}
