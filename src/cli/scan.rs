//! `gvm gpu scan`: the cards of this machine, looked at here and now, without a manager. Reads only.

use std::path::PathBuf;

use clap::Args;

use super::error::{CliError, CliResult};
use super::output::Output;
use super::table::{Align, size, table};
use crate::api::error::ErrorCode;
use crate::gpu::{GpuOptions, HostGpus};
use crate::model::card::{Card, Discovery, NvmlStatus};

/// Options of `gpu scan`.
#[derive(Debug, Args)]
pub struct ScanArgs {
    /// Folder that stands for /, with its sys and proc
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// NVIDIA's management library [default: the system's]
    #[arg(long, value_name = "FILE")]
    nvml: Option<PathBuf>,
}

/// Looks, and tells what was found.
///
/// # Errors
/// Where there is nothing to look at, or standard output cannot be written.
pub fn run(out: &Output, args: &ScanArgs) -> CliResult {
    if !args.root.join("sys").is_dir() {
        let text = format!("{} has no folder sys, so that there is nothing to look at", args.root.display());
        return Err(CliError::new(ErrorCode::Invalid, text));
    }
    if let Some(library) = args.nvml.as_ref().filter(|library| !library.exists()) {
        let text = format!("{} is not there", library.display());
        return Err(CliError::new(ErrorCode::Invalid, text));
    }
    let options = GpuOptions { root: args.root.clone(), nvml: args.nvml.clone(), ..GpuOptions::default() };
    let found = HostGpus::new(options).look();
    found.findings.iter().for_each(|finding| out.warning(&finding.text));
    if let NvmlStatus::Ready { driver: Some(driver) } = &found.nvml {
        out.note(&format!("NVML answers with driver {driver}"));
    }
    out.result(&found, || rows(&found, out.is_colored()))
}

fn rows(found: &Discovery, colored: bool) -> String {
    let columns = [
        ("ADDRESS", Align::Left),
        ("MODEL", Align::Left),
        ("MEMORY", Align::Right),
        ("NODE", Align::Right),
        ("GROUP", Align::Right),
        ("DRIVER", Align::Left),
        ("AGAINST PASSTHROUGH", Align::Left),
    ];
    let row = |card: &Card| {
        let number = |value: Option<u32>| value.map(|value| value.to_string()).unwrap_or_default();
        vec![
            card.address.to_string(),
            card.model.clone(),
            card.memory.map(|memory| size(memory.size.0)).unwrap_or_default(),
            number(card.numa_node),
            number(card.iommu.as_ref().map(|group| group.number)),
            card.driver.clone().unwrap_or_default(),
            card.blockers.iter().map(|blocker| blocker.text.as_str()).collect::<Vec<_>>().join("; "),
        ]
    };
    match found.cards.is_empty() {
        true => "no GPU that the kernel shows\n".to_owned(),
        false => table(&columns, found.cards.iter().map(row).collect(), colored),
    }
}
