//! `gvm audit verify`: the manager's record by the manager, or an export by this program alone.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use crate::api::types::{RecordVerdict, VerifyRecord};
use crate::cli::context::Context;
use crate::cli::error::{CliError, CliResult};
use crate::cli::files;
use crate::cli::output::Output;
use crate::model::record::export::{ExportCheck, ExportFault};
use crate::model::record::head::{Key, SignedHead};

/// How long the manager may take: some hundred million entries.
const DEADLINE: Duration = Duration::from_secs(1800);
/// Longest line of an export; entries are far shorter.
const LONGEST_LINE: u64 = 1 << 20;
/// Largest file with a head in it.
const HEAD_FILE_MAX: u64 = 64 * 1024;

/// Options of `audit verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Verify this export instead of the manager's record; no manager is needed
    #[arg(long, value_name = "EXPORT")]
    file: Option<PathBuf>,
    /// A head that was kept elsewhere, or a file with such heads in it
    #[arg(long = "head", value_name = "HEAD")]
    heads: Vec<String>,
    /// The public key that must have signed all heads [default: the manager's]
    #[arg(long, value_name = "PUBLIC")]
    key: Option<Key>,
}

impl VerifyArgs {
    /// The export, where one is to be verified.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    fn heads(&self) -> CliResult<Vec<SignedHead>> {
        let mut heads = Vec::new();
        for given in &self.heads {
            let wrong = |e: String| CliError::invalid(format!("--head {given}: {e}"));
            // As it was printed, alone or among other words.
            let mut found = SignedHead::all_in(given).map_err(|e| wrong(e.to_string()))?;
            if found.is_empty() {
                let text = files::read_text(Path::new(given), HEAD_FILE_MAX)?;
                found = SignedHead::all_in(&text).map_err(|e| wrong(e.to_string()))?;
                if found.is_empty() {
                    return Err(wrong("there is no head in this file, such as `gvm audit head` prints".to_owned()));
                }
            }
            found.retain(|head| !heads.contains(head));
            heads.extend(found);
        }
        Ok(heads)
    }
}

/// The manager's record.
///
/// # Errors
/// See [`CliError`]; exit code 1 where something is wrong with it.
pub async fn manager(cx: &Context, args: &VerifyArgs) -> CliResult {
    let heads = args.heads()?.iter().map(ToString::to_string).collect();
    let ask = VerifyRecord { heads, key: args.key.map(|key| key.to_string()) };
    let verdict: RecordVerdict = cx.client.post_within("/v1/audit/verify", &ask, DEADLINE).await?;
    say(&cx.out, &verdict)
}

/// An export.
///
/// # Errors
/// See [`CliError`]; exit code 1 where something is wrong with it.
pub fn export(out: &Output, file: &Path, args: &VerifyArgs) -> CliResult {
    let mut check = ExportCheck::new(args.heads()?, args.key);
    let verdict = match walk(file, &mut check)?.and_then(|()| check.finish()) {
        Ok(found) => {
            let message = format!(
                "the export is what was written, from entry {} to {}",
                found.first.seq.saturating_add(1),
                found.last.seq
            );
            let heads = u64::try_from(found.heads).unwrap_or(u64::MAX);
            RecordVerdict { ok: true, last: found.last.seq, heads, message, ..RecordVerdict::default() }
        }
        Err(fault) => {
            let (first_bad, wrong) = match &fault {
                ExportFault::Entry(entry) => (Some(entry.seq), Some(entry.wrong.word().to_owned())),
                ExportFault::Line { .. } => (None, None),
                ExportFault::CutOff { after } => (Some(after.saturating_add(1)), Some("cut_off".to_owned())),
            };
            RecordVerdict { first_bad, wrong, message: fault.to_string(), ..RecordVerdict::default() }
        }
    };
    if verdict.ok && args.key.is_none() && args.heads.is_empty() {
        out.note("who signed it was not checked: give --key or --head, as `gvm audit head` printed them");
    }
    say(out, &verdict)
}

fn walk(file: &Path, check: &mut ExportCheck) -> CliResult<Result<(), ExportFault>> {
    let fault = |error| CliError::file("cannot read", file, &error);
    let mut reader = BufReader::new(File::open(file).map_err(fault)?);
    let mut line = String::new();
    loop {
        line.clear();
        let read = reader.by_ref().take(LONGEST_LINE).read_line(&mut line).map_err(fault)?;
        if read == 0 {
            return Ok(Ok(()));
        }
        if let Err(wrong) = check.take(line.trim_end_matches('\n')) {
            return Ok(Err(wrong));
        }
    }
}

fn say(out: &Output, verdict: &RecordVerdict) -> CliResult {
    out.result(verdict, || match (verdict.ok, verdict.heads) {
        (true, 0) => format!("ok: {}; no signed head stands against it", verdict.message),
        (true, heads) => format!("ok: {}, and {heads} signed heads agree", verdict.message),
        (false, _) => format!("fault: {}", verdict.message),
    })?;
    if verdict.ok { Ok(()) } else { Err(CliError::Silent(1)) }
}
