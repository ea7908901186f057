//! `gvm user import`: many people from a file, all of them or nobody.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::api::types::{AddUser, ImportReport, ImportUsers};
use crate::cli::context::Context;
use crate::cli::csv::{self, Record};
use crate::cli::error::{CliError, CliResult};
use crate::cli::files;

/// Largest file.
const FILE_MAX: u64 = 8 << 20;
/// How long the manager may take for the largest file.
const DEADLINE: Duration = Duration::from_secs(300);
/// What a file may have.
const COLUMNS: [&str; 5] = ["name", "full_name", "role", "teams", "kind"];

/// Options of `user import`.
#[derive(Debug, Args)]
#[command(after_help = "\
The first line names the columns: name, and any of full_name, role, teams (with spaces between), kind (person or
service). Everything is checked before anybody is added.")]
pub struct ImportArgs {
    /// File of comma-separated values, or - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Only check
    #[arg(long)]
    dry_run: bool,
}

/// Runs `gvm user import`.
///
/// # Errors
/// See [`CliError`].
pub async fn run(cx: &Context, args: &ImportArgs) -> CliResult {
    let text = files::read_text(&args.file, FILE_MAX)?;
    let shown = args.file.display().to_string();
    let wrong = |faults: Vec<(usize, String)>| {
        let lines: Vec<String> = faults.into_iter().map(|(line, fault)| format!("{shown}:{line}: {fault}")).collect();
        CliError::invalid(lines.join("\n")).hint("nobody was added; mend the file and import it again")
    };
    let (lines, users): (Vec<usize>, Vec<AddUser>) = people(&text).map_err(wrong)?.into_iter().unzip();
    let ask = async |is_dry_run| -> CliResult<ImportReport> {
        let body = ImportUsers { users: users.clone(), is_dry_run };
        let report: ImportReport = cx.client.post_within("/v1/user-import", &body, DEADLINE).await?;
        let line = |index: u64| usize::try_from(index).ok().and_then(|index| lines.get(index)).copied();
        if report.problems.is_empty() {
            return Ok(report);
        }
        let faults = report.problems.into_iter().map(|fault| (line(fault.index).unwrap_or_default(), fault.message));
        Err(wrong(faults.collect()))
    };
    let checked = ask(true).await?;
    if args.dry_run {
        return cx.out.result(&checked, || format!("{} could be added", count(users.len())));
    }
    let report = ask(false).await?;
    cx.out.result(&report, || format!("added {}", count(users.len())))
}

fn count(people: usize) -> String {
    if people == 1 { "1 user".to_owned() } else { format!("{people} users") }
}

type Faults = Vec<(usize, String)>;

/// The people of a file, each with their line.
fn people(text: &str) -> Result<Vec<(usize, AddUser)>, Faults> {
    let records = csv::records(text).map_err(|e| vec![(e.line, e.problem.to_owned())])?;
    let Some((head, rows)) = records.split_first() else { return Err(vec![(1, "the file is empty".to_owned())]) };
    let mut faults: Faults = Vec::new();
    for (at, column) in head.fields.iter().enumerate() {
        if !COLUMNS.contains(&column.as_str()) {
            faults.push((
                head.line,
                format!("there is no column {column:?}; the first line names {}", COLUMNS.join(", ")),
            ));
        } else if head.fields.iter().take(at).any(|other| other == column) {
            faults.push((head.line, format!("the column {column} is there twice")));
        }
    }
    if faults.is_empty() && !head.fields.iter().any(|column| column == "name") {
        faults.push((head.line, "there is no column name".to_owned()));
    }
    if rows.is_empty() && faults.is_empty() {
        faults.push((head.line, "nobody is in the file".to_owned()));
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let mut all = Vec::new();
    for row in rows {
        match person(head, row) {
            Ok(person) => all.push((row.line, person)),
            Err(fault) => faults.push((row.line, fault)),
        }
    }
    if faults.is_empty() { Ok(all) } else { Err(faults) }
}

fn person(head: &Record, row: &Record) -> Result<AddUser, String> {
    if row.fields.len() != head.fields.len() {
        return Err(format!("{} values for {} columns", row.fields.len(), head.fields.len()));
    }
    let value = |column: &str| {
        let at = head.fields.iter().position(|name| name == column);
        at.and_then(|at| row.fields.get(at)).cloned().unwrap_or_default()
    };
    let is_service = match value("kind").as_str() {
        "" | "person" => false,
        "service" => true,
        other => return Err(format!("{other:?} is no kind; use person or service")),
    };
    Ok(AddUser {
        name: value("name"),
        full_name: value("full_name"),
        role: Some(value("role")).filter(|role| !role.is_empty()),
        is_service,
        teams: value("teams").split_whitespace().map(str::to_owned).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> String {
        let faults = people(text).unwrap_err();
        faults.into_iter().map(|(line, fault)| format!("{line}: {fault}\n")).collect()
    }

    #[test]
    fn columns_are_in_any_order() {
        let read = people("teams,name,kind\nml vision,anna,\n,ci,service\n").unwrap();
        assert_eq!(read.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2, 3]);
        assert_eq!((read[0].1.name.as_str(), read[0].1.teams.len()), ("anna", 2));
        assert!(read[1].1.is_service && read[1].1.role.is_none());
    }

    #[test]
    fn faults_of_a_file_are_told_together() {
        assert_eq!(faults(""), "1: the file is empty\n");
        assert_eq!(faults("name\n"), "1: nobody is in the file\n");
        assert_eq!(
            faults("anna\nbob\n"),
            "1: there is no column \"anna\"; the first line names name, full_name, role, teams, kind\n"
        );
        assert_eq!(faults("name,name\na,b\n"), "1: the column name is there twice\n");
        assert_eq!(faults("role\nadmin\n"), "1: there is no column name\n");
        assert_eq!(
            faults("name,kind\nanna\nbob,robot\ncleo,person\n"),
            "2: 1 values for 2 columns\n3: \"robot\" is no kind; use person or service\n"
        );
        assert_eq!(faults("name\n\"anna\n"), "2: a quote that is never closed\n");
    }
}
