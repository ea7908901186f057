//! Completion scripts and manual pages.

use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

use super::error::{CliError, CliResult};
use super::output::Output;

/// Options of `gvm completions`.
#[derive(Debug, Args)]
#[command(after_help = "\
For bash: gvm completions bash > ~/.local/share/bash-completion/completions/gvm")]
pub struct CompletionsArgs {
    /// Shell
    shell: Shell,
}

/// Options of `gvm man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write gvm.1, gvm-create.1 and so on into this folder
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

/// Runs `gvm completions`.
///
/// # Errors
/// When the output cannot be written.
pub fn completions(out: &Output, args: &CompletionsArgs, command: &mut Command) -> CliResult {
    // Into memory first: the generator panics when its writer fails, as a pipe to `head` does.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, command, "gvm", &mut script);
    out.text(&String::from_utf8_lossy(&script))
}

/// Runs `gvm man`.
///
/// # Errors
/// When the output or a file cannot be written.
pub fn man(out: &Output, args: &ManArgs, command: Command) -> CliResult {
    match &args.output {
        Some(dir) => {
            std::fs::create_dir_all(dir).map_err(|e| CliError::file("cannot make the folder", dir, &e))?;
            clap_mangen::generate_to(command, dir).map_err(|e| CliError::file("cannot write to", dir, &e))?;
            out.say(&format!("wrote the manual pages to {}", dir.display()));
            Ok(())
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page).map_err(|e| CliError::output(&e))?;
            out.text(&String::from_utf8_lossy(&page))
        }
    }
}
