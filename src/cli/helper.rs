//! `gvm helper`: for the manager, not for people. See [`crate::helper`], which does it.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

use crate::model::card::function::{DriverJob, HelperJob as Job, Restore};
use crate::model::card::vgpu::{VgpuJob, VgpuSite};
use crate::model::gpu::{PciAddress, VgpuTypeName};

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
    /// Make a vGPU
    MakeVgpu(VgpuArgs),
    /// Take a vGPU away, if it is of this type
    RemoveVgpu(VgpuArgs),
}

/// A vGPU
#[derive(Clone, Debug, clap::Args)]
pub struct VgpuArgs {
    /// Where, and how long
    #[command(flatten)]
    place: Place,
    /// The function that carries it; with a UUID for a mediated device
    #[arg(value_name = "ADDRESS[/UUID]")]
    site: VgpuSite,
    /// Its type by name, such as L40S-12Q
    #[arg(value_name = "TYPE", value_parser = |text: &str| VgpuTypeName::parse(text).ok_or("is no name of a type"))]
    name: VgpuTypeName,
}

impl HelperCommand {
    /// Where, how long each function may take, and what.
    pub fn parts(&self) -> (PathBuf, Duration, Job) {
        let (place, job) = match self {
            Self::Bind { place, functions } => (place, Job::Driver(DriverJob::Bind(functions.clone()))),
            Self::Restore { place, functions } => (place, Job::Driver(DriverJob::Restore(functions.clone()))),
            Self::MakeVgpu(VgpuArgs { place, site, name }) => {
                (place, Job::Vgpu(VgpuJob::Make { site: *site, name: name.clone() }))
            }
            Self::RemoveVgpu(VgpuArgs { place, site, name }) => {
                (place, Job::Vgpu(VgpuJob::Remove { site: *site, name: name.clone() }))
            }
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
