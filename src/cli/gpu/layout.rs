//! `gvm gpu layout`: files of NVIDIA's mig-parted and vgpu-device-manager.

use std::io::Read as _;
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

use crate::api::error::ErrorCode;
use crate::api::types::{CardLayoutView, ExportedLayout, ImportLayout, LayoutResult};
use crate::cli::context::Context;
use crate::cli::error::{CliError, CliResult};
use crate::cli::table::{Align, table};

/// Longer files the manager does not take; one for every card of a host is far below it.
const MAX_FILE: u64 = 128 << 10;

/// `gvm gpu layout`
#[derive(Debug, Subcommand)]
pub enum LayoutCommand {
    /// Divide cards as a file says
    #[command(after_help = "\
The file is one of mig-parted (mig-configs) or of vgpu-device-manager (vgpu-configs). It is judged as a whole first: where it
does not fit, or a card that would change is in use, nothing is done. Cards that it does not name stay as they are. The
layout is done again after a restart of the host, before any machine starts.")]
    Import {
        /// The file; - reads standard input
        file: PathBuf,
        /// Which of its configs; may be left out where there is only one
        #[arg(long, value_name = "NAME")]
        selected_config: Option<String>,
        /// Only show what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Write a file of the cards as they are
    Export {
        /// For which program
        #[arg(long = "for", value_enum, default_value_t = Program::MigParted)]
        program: Program,
    },
}

/// Programs that read layout files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Program {
    /// NVIDIA mig-parted
    MigParted,
    /// NVIDIA vgpu-device-manager
    VgpuDeviceManager,
}

/// Runs it.
///
/// # Errors
/// See [`CliError`].
pub async fn run(cx: &Context, command: LayoutCommand) -> CliResult {
    match command {
        LayoutCommand::Import { file, selected_config, dry_run } => {
            let request = ImportLayout { text: read(&file)?, config: selected_config, dry_run };
            let result: LayoutResult = cx.client.post_within("/v1/gpu-layout", &request, super::MODE_DEADLINE).await?;
            cx.out.result(&result, || rows(&result, cx.out.is_colored()))?;
            match result.cards.iter().filter(|card| card.outcome == "failed").count() {
                0 => Ok(()),
                some => {
                    Err(CliError::new(ErrorCode::Conflict, format!("{some} GPUs are not divided as the file says")))
                }
            }
        }
        LayoutCommand::Export { program } => {
            let word = match program {
                Program::MigParted => "mig-parted",
                Program::VgpuDeviceManager => "vgpu-device-manager",
            };
            let file: ExportedLayout = cx.client.get(&format!("/v1/gpu-layout?format={word}")).await?;
            cx.out.result(&file, || file.text.trim_end().to_owned())
        }
    }
}

fn read(file: &PathBuf) -> Result<String, CliError> {
    let invalid = |text: String| CliError::new(ErrorCode::Invalid, text);
    let name = file.display();
    let cannot = |e: std::io::Error| invalid(format!("{name} cannot be read: {e}"));
    let mut text = String::new();
    let source: Box<dyn std::io::Read> = match file.as_os_str() == "-" {
        true => Box::new(std::io::stdin()),
        false => Box::new(std::fs::File::open(file).map_err(cannot)?),
    };
    source.take(MAX_FILE + 1).read_to_string(&mut text).map_err(cannot)?;
    match text.len() as u64 > MAX_FILE {
        true => Err(invalid(format!("{name} is longer than {} KiB; a layout file is a few lines", MAX_FILE >> 10))),
        false => Ok(text),
    }
}

fn rows(result: &LayoutResult, colored: bool) -> String {
    let columns = [
        ("ADDRESS", Align::Left),
        ("MODEL", Align::Left),
        ("LAYOUT", Align::Left),
        ("OUTCOME", Align::Left),
        ("WHY", Align::Left),
    ];
    let row = |card: &CardLayoutView| {
        let why = card.why.clone().unwrap_or_default();
        vec![card.address.clone(), card.model.clone(), card.layout.clone(), card.outcome.clone(), why]
    };
    table(&columns, result.cards.iter().map(row).collect(), colored)
}
