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

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    /// What `--help` says of a command and of everything below it. The global options are shown once.
    fn help(command: &Command, path: &[&str], text: &mut String) {
        let words: Vec<&str> = path.iter().copied().chain(["--help"]).collect();
        let own = Cli::command().term_width(100).try_get_matches_from(words).unwrap_err().to_string();
        text.push_str(&format!("==== {}\n\n", path.join(" ")));
        let mut is_global = false;
        for line in own.trim_end().lines() {
            let is_heading = !line.starts_with(' ') && !line.is_empty();
            is_global = if is_heading { line == "Global options:" && path.len() > 1 } else { is_global };
            if !is_global {
                text.push_str(line.trim_end());
                text.push('\n');
            }
        }
        for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
            help(below, &[path, &[below.get_name()]].concat(), text);
        }
    }

    #[test]
    fn the_whole_help() {
        let mut text = String::new();
        help(&Cli::command(), &["gvm"], &mut text);
        insta::assert_snapshot!("help", text);
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_a_manual_page() {
        let dir = tempfile::tempdir().unwrap();
        let out = Output::new(Default::default(), Default::default(), Default::default());
        man(&out, &ManArgs { output: Some(dir.path().to_owned()) }, Cli::command()).unwrap();
        for page in ["gvm.1", "gvm-create.1", "gvm-ssh-config.1", "gvm-image-import.1"] {
            assert!(dir.path().join(page).exists(), "{page}");
        }
        assert!(std::fs::read_to_string(dir.path().join("gvm.1")).unwrap().contains("Exit codes"));
    }
}
