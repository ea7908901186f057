//! `gvm admin`: what an administrator does with the manager itself.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use futures_util::StreamExt as _;

use super::context::Context;
use super::error::{CliError, CliResult};
use crate::api::error::ErrorCode;
use crate::api::types::VersionView;

/// How long a backup may take until its first byte: it is put together before it is sent.
const PATIENCE: Duration = Duration::from_secs(600);

/// Look after the manager.
#[derive(Debug, Subcommand)]
pub enum AdminCommand {
    /// Write a backup of the manager's state: database, keys, configuration; not the disks
    Backup(BackupArgs),
    /// Show the fingerprint of the HTTPS certificate, for who logs in from another machine
    Fingerprint,
    /// Put a backup back in place, with the manager stopped
    Restore(RestoreArgs),
}

/// Options of `admin backup`.
#[derive(Debug, Args)]
pub struct BackupArgs {
    /// File to write; - for standard output
    #[arg(value_name = "FILE")]
    to: PathBuf,
}

/// Options of `admin restore`.
#[derive(Clone, Debug, Args)]
pub struct RestoreArgs {
    /// The backup
    #[arg(value_name = "FILE")]
    pub from: PathBuf,
    /// Only read it through and say what is in it
    #[arg(long)]
    pub check: bool,
    /// Put the configuration back too
    #[arg(long)]
    pub with_config: bool,
    /// Even over a state that is there; what it replaces is kept beside it
    #[arg(long)]
    pub replace: bool,
}

/// Runs `gvm admin`, but for what needs no manager.
///
/// # Errors
/// See [`CliError`].
pub async fn run(cx: &Context, command: AdminCommand) -> CliResult {
    match command {
        AdminCommand::Backup(args) => backup(cx, &args).await,
        AdminCommand::Fingerprint => fingerprint(cx).await,
        AdminCommand::Restore(_) => {
            Err(CliError::new(ErrorCode::Internal, "restoring is done by the program, not by the command line"))
        }
    }
}

async fn fingerprint(cx: &Context) -> CliResult {
    let version: VersionView = cx.client.get("/v1/version").await?;
    let shown = version.https_fingerprint.ok_or_else(|| {
        CliError::new(ErrorCode::NotFound, "the manager does not listen for other machines")
            .hint("set https.listen in /etc/gvm/gvm.toml, then: systemctl restart gvm")
    })?;
    cx.out.result(&serde_json::json!({ "fingerprint": shown }), || shown.clone())
}

async fn backup(cx: &Context, args: &BackupArgs) -> CliResult {
    let to = &args.to;
    if to.as_os_str() == "-" {
        let stdout = std::io::stdout().lock();
        copy(cx, stdout, to).await?;
        return Ok(());
    }
    // Whole or not at all under its name, and its owner's only.
    let mut part = to.clone().into_os_string();
    part.push(".part");
    let part = PathBuf::from(part);
    let fault = |error| CliError::file("cannot write", to, &error);
    let _ = std::fs::remove_file(&part);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part).map_err(fault)?;
    let written = async {
        let size = copy(cx, &file, to).await?;
        file.sync_all().map_err(fault)?;
        std::fs::rename(&part, to).map_err(fault)?;
        Ok::<_, CliError>(size)
    };
    let written = written.await;
    if written.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    let size = written?;
    let value = serde_json::json!({ "file": to, "bytes": size });
    cx.out.result(&value, || {
        format!("wrote {} ({size} bytes); it holds secrets: keep it as you keep the host", to.display())
    })
}

async fn copy(cx: &Context, mut file: impl std::io::Write, shown: &Path) -> CliResult<u64> {
    let fault = |error| CliError::file("cannot write", shown, &error);
    let mut bytes = cx.client.bytes("/v1/backup", PATIENCE).await?;
    let mut size = 0_u64;
    while let Some(chunk) = bytes.next().await {
        let chunk = chunk?;
        file.write_all(chunk.as_ref()).map_err(fault)?;
        size = size.saturating_add(u64::try_from(chunk.as_ref().len()).unwrap_or(u64::MAX));
    }
    file.flush().map_err(fault)?;
    Ok(size)
}
