//! `gvm check-config`: reads a configuration as the manager would.

use std::path::{Path, PathBuf};

use clap::Args;

use super::error::CliResult;
use super::output::Output;
use crate::config::{Config, DEFAULT_PATH};

/// Options of `gvm check-config`.
#[derive(Debug, Args)]
pub struct CheckConfigArgs {
    /// File [default: that of --config, else /etc/gvm/gvm.toml]
    file: Option<PathBuf>,
}

/// Runs `gvm check-config`. It needs no manager.
///
/// # Errors
/// Says file, line and key of what is wrong.
pub fn run(out: &Output, global: Option<&Path>, args: CheckConfigArgs) -> CliResult {
    let file = args.file.as_deref().or(global);
    let config = Config::load(file)?;
    let shown = file.unwrap_or(Path::new(DEFAULT_PATH));
    let is_there = file.is_some() || shown.exists();
    out.result(&config, || {
        if is_there {
            format!("{}: usable", shown.display())
        } else {
            format!("{} does not exist: the defaults are used", shown.display())
        }
    })
}
