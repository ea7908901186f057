//! `gvm helper`: for the manager, not for people. See [`crate::helper`], which does it.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

use crate::model::card::function::{DriverJob, Restore};
use crate::model::gpu::PciAddress;

/// What the helper is to do.
#[derive(Clone, Debug, Subcommand)]
pub enum HelperCommand {
    /// Give functions to VFIO
    Bind {
        /// Where, and how long
        #[command(flatten)]
        place: Place,
        /// Functions, in this order
        #[arg(required = true, value_name = "ADDRESS")]
        functions: Vec<PciAddress>,
    },
    /// Give functions back to their drivers
    Restore {
        /// Where, and how long
        #[command(flatten)]
        place: Place,
        /// Functions and their drivers, in this order; nothing behind the = leaves one without a driver
        #[arg(required = true, value_name = "ADDRESS=DRIVER")]
        functions: Vec<Restore>,
    },
}

impl HelperCommand {
    /// Where, how long each function may take, and what.
    pub fn parts(&self) -> (PathBuf, Duration, DriverJob) {
        let (place, job) = match self {
            Self::Bind { place, functions } => (place, DriverJob::Bind(functions.clone())),
            Self::Restore { place, functions } => (place, DriverJob::Restore(functions.clone())),
        };
        (place.root.clone(), Duration::from_millis(place.patience_ms), job)
    }
}

/// Where, and how long it may take.
#[derive(Clone, Debug, clap::Args)]
pub struct Place {
    /// The folder that stands for /
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Time for each function to come to its driver
    #[arg(long, value_name = "MS", default_value_t = 25_000)]
    patience_ms: u64,
}
