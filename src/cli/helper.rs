//! `gvm helper`: for the manager, not for people. See [`crate::helper`], which does it.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

use crate::model::card::function::{DriverJob, HelperJob as Job, Restore};
use crate::model::card::shape::{MAX_FUNCTIONS, ShapeJob, parse_instance};
use crate::model::card::vgpu::{VgpuJob, VgpuSite};
use crate::model::gpu::mig::Instance;
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
    /// Switch virtual functions of a card on, or off
    SetFunctions {
        /// Where, and how long
        #[command(flatten)]
        place: Place,
        /// The card
        card: PciAddress,
        /// How many, or all
        #[arg(value_parser = functions)]
        count: Functions,
    },
    /// Switch MIG on or off
    SetMig {
        /// Where, and how long
        #[command(flatten)]
        place: Place,
        /// The card
        card: PciAddress,
        /// on or off
        #[arg(value_parser = ["on", "off"])]
        mode: String,
    },
    /// Reset a card by its driver
    Reset {
        /// Where, and how long
        #[command(flatten)]
        place: Place,
        /// The card
        card: PciAddress,
    },
    /// Reset a function that is with VFIO and that nobody has open
    ResetFunction {
        /// Where, and how long
        #[command(flatten)]
        place: Place,
        /// The function
        function: PciAddress,
    },
    /// Make a MIG instance
    MakeInstance(InstanceArgs),
    /// End a MIG instance
    RemoveInstance(InstanceArgs),
    /// Judge a password by PAM: the question on standard input, the answer on standard output
    #[cfg(feature = "libvirt")]
    Pam,
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

/// A MIG instance
#[derive(Clone, Debug, clap::Args)]
pub struct InstanceArgs {
    /// Where, and how long
    #[command(flatten)]
    place: Place,
    /// The card
    card: PciAddress,
    /// Profile, first memory slice and number of memory slices, such as 3g.40gb@4:4
    #[arg(value_parser = parse_instance)]
    instance: Instance,
}

/// How many virtual functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Functions(Option<u32>);

fn functions(text: &str) -> Result<Functions, String> {
    match text {
        "all" => Ok(Functions(None)),
        number => match number.parse() {
            Ok(count) if count <= MAX_FUNCTIONS => Ok(Functions(Some(count))),
            _ => Err(format!("write a number up to {MAX_FUNCTIONS}, or all")),
        },
    }
}

impl HelperCommand {
    /// What to do to a card, and where; none where it is about none.
    pub fn parts(&self) -> Option<(&Place, Job)> {
        let (place, job) = match self {
            #[cfg(feature = "libvirt")]
            Self::Pam => return None,
            Self::Bind { place, functions } => (place, Job::Driver(DriverJob::Bind(functions.clone()))),
            Self::Restore { place, functions } => (place, Job::Driver(DriverJob::Restore(functions.clone()))),
            Self::MakeVgpu(VgpuArgs { place, site, name }) => {
                (place, Job::Vgpu(VgpuJob::Make { site: *site, name: name.clone() }))
            }
            Self::RemoveVgpu(VgpuArgs { place, site, name }) => {
                (place, Job::Vgpu(VgpuJob::Remove { site: *site, name: name.clone() }))
            }
            Self::SetFunctions { place, card, count } => {
                (place, Job::Shape(ShapeJob::Functions { card: *card, count: count.0 }))
            }
            Self::SetMig { place, card, mode } => {
                (place, Job::Shape(ShapeJob::MigMode { card: *card, is_on: mode == "on" }))
            }
            Self::Reset { place, card } => (place, Job::Shape(ShapeJob::Reset { card: *card })),
            Self::ResetFunction { place, function } => (place, Job::ResetFunction(*function)),
            Self::MakeInstance(InstanceArgs { place, card, instance }) => {
                (place, Job::Shape(ShapeJob::MakeInstance { card: *card, instance: *instance }))
            }
            Self::RemoveInstance(InstanceArgs { place, card, instance }) => {
                (place, Job::Shape(ShapeJob::RemoveInstance { card: *card, instance: *instance }))
            }
        };
        Some((place, job))
    }
}

/// Where, and how long it may take.
#[derive(Clone, Debug, clap::Args)]
pub struct Place {
    /// The folder that stands for /
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
    /// NVIDIA's management library; the system's by default
    #[arg(long, value_name = "FILE")]
    pub nvml: Option<PathBuf>,
    /// Time for each function to come to its driver
    #[arg(long, value_name = "MS", default_value_t = 25_000)]
    patience_ms: u64,
}

impl Place {
    /// Time for each function.
    pub const fn patience(&self) -> Duration {
        Duration::from_millis(self.patience_ms)
    }
}
