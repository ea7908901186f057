//! What the doctor said on real hosts, and what is written about its words.

use gvm::api::types::DoctorReport;
use gvm::cli::doctor::shown;
use gvm::plan::doctor::{CHECKS, Level};

use super::{files_below, none, read, root};

/// With this variable set, the texts are made anew of the captured findings.
const BLESS: &str = "GVM_BLESS";

/// `gvm -o json doctor > docs/doctor/HOST.json` captures; the text beside it is what people see.
#[test]
fn captured_findings_are_shown_as_it_is_kept() {
    let levels = [Level::Ok, Level::Note, Level::Warn, Level::Fail].map(Level::word);
    let mut wrong = Vec::new();
    let mut count = 0;
    for path in files_below("docs/doctor").into_iter().filter(|path| path.ends_with(".json")) {
        count += 1;
        let report: DoctorReport = serde_json::from_str(&read(&path)).unwrap_or_else(|e| panic!("{path}: {e}"));
        for finding in &report.findings {
            let is_known = CHECKS.contains(&finding.check.as_str()) && levels.contains(&finding.level.as_str());
            if !is_known || (finding.level == "ok") != finding.fix.is_empty() {
                wrong.push(format!("{path}: {} {}", finding.level, finding.check));
            }
        }
        let place = |check: &String| CHECKS.iter().position(|known| known == check);
        if !report.findings.iter().map(|finding| &finding.check).is_sorted_by_key(place) {
            wrong.push(format!("{path}: not in the order of the checks"));
        }
        let (text, file) = (shown(&report.findings, false), path.replace(".json", ".txt"));
        if std::env::var_os(BLESS).is_some() {
            std::fs::write(root().join(&file), &text).unwrap();
        } else if std::fs::read_to_string(root().join(&file)).unwrap_or_default() != text {
            wrong.push(format!("{file} is not what is shown of {path}; {BLESS}=1 makes it anew"));
        }
    }
    none("captured findings", &wrong);
    assert!(count > 0, "docs/doctor holds what the doctor said on the development host");
}

#[test]
fn every_check_is_explained_in_the_runbook() {
    let runbook = read("docs/runbook.md");
    let missing = CHECKS.iter().filter(|check| !runbook.contains(&format!("| `{check}` |")));
    let missing: Vec<String> = missing.map(|check| (*check).to_owned()).collect();
    none("checks that docs/runbook.md does not explain", &missing);
}
