//! The writes by which a function changes its driver: what `gvm helper` does, one function after the other.
//!
//! ```text
//!   bind:     driver_override = vfio-pci -> driver/unbind (if one has it) -> drivers_probe -> wait for VFIO
//!   restore:  driver_override = ""       -> driver/unbind (if another has it) -> drivers_probe -> wait
//!                                        \-> drivers/NAME/bind where the probe brought none or another
//!   restore to no driver: driver/unbind -> driver_override = "", and no probe
//! ```
//!
//! By address only: `new_id` and everything else that names a kind of device would take its twins as well. Each write may
//! hang in the kernel for ever, and nothing can end it then. So this runs in a process of its own, which says what it is
//! about to do before it does it. What is already as wished is left alone, so that each job can be done again from
//! wherever its last doing was ended.

mod mig;
mod reset;
mod shape;
mod vgpu;

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

pub(super) use self::reset::first_reset_method;
use super::files::Files;
use super::holders::{self, Nodes};
use super::sysfs::Device;
use crate::model::card::function::{DriverJob, Restore};
use crate::model::gpu::PciAddress;

/// The driver that holds a card for a machine.
pub(super) const VFIO: &str = "vfio-pci";

/// What is said where it is missing.
pub(super) const NOT_LOADED: &str = "vfio-pci is not loaded (modprobe vfio-pci)";

const DEVICES: &str = "sys/bus/pci/devices";
const DRIVERS: &str = "sys/bus/pci/drivers";
const PROBE: &str = "sys/bus/pci/drivers_probe";

/// A probe that is asked for is done when the write is back, unless the driver does it later by itself. Past this time
/// a driver that we know by name is told to take the device.
const SETTLE: Duration = Duration::from_secs(2);

/// Between two looks at who has a device.
const PAUSE: Duration = Duration::from_millis(10);

/// How far it is: one line of JSON on the helper's standard output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "step")]
pub enum Progress {
    /// Looks at a function.
    Begin {
        /// Which.
        address: PciAddress,
    },
    /// Is about to write.
    Write {
        /// For which function.
        address: PciAddress,
        /// Where, below the root.
        file: String,
        /// What; empty for a line without anything.
        value: String,
    },
    /// Is about to run a program of the vendor.
    Run {
        /// For which card.
        address: PciAddress,
        /// The program and its arguments.
        program: String,
    },
    /// Is about to call NVIDIA's library.
    Call {
        /// For which card.
        address: PciAddress,
        /// For what.
        call: String,
    },
    /// What was asked for comes into force with the next reset of the card; no failure.
    NeedsReset {
        /// Which card.
        address: PciAddress,
    },
    /// The write is back.
    Wrote {
        /// For which function.
        address: PciAddress,
        /// Where.
        file: String,
    },
    /// Waits for a driver.
    Wait {
        /// To take which function.
        address: PciAddress,
        /// Which driver.
        driver: String,
    },
    /// The function is as wished.
    Done {
        /// Which.
        address: PciAddress,
        /// The driver that has it.
        driver: Option<String>,
        /// False where nothing was written.
        is_changed: bool,
    },
    /// Gives up; the last line.
    Failed {
        /// Of what kind.
        kind: StepKind,
        /// Why, with the address.
        text: String,
    },
}

impl Progress {
    /// What it is doing, such as `writing vfio-pci to /sys/...`.
    pub fn words(&self) -> String {
        match self {
            Self::Begin { address } => format!("looking at {address}"),
            Self::Write { address, file, value } => format!("{address}: {}", writing(file, value)),
            Self::Run { address, program } => format!("{address}: running {program}"),
            Self::Call { address, call } => format!("{address}: NVML: {call}"),
            Self::NeedsReset { address } => format!("{address}: what was asked for needs a reset"),
            Self::Wrote { address, file } => format!("{address}: after writing to /{file}"),
            Self::Wait { address, driver } => format!("{address}: waiting for {driver}"),
            Self::Done { address, .. } => format!("{address} is done"),
            Self::Failed { text, .. } => text.clone(),
        }
    }
}

/// Of what kind a failure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    /// It must not be done, and was not begun for this function.
    Refused,
    /// The kernel did not do it.
    Failed,
}

/// Why a job was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct StepError {
    /// Of what kind.
    pub kind: StepKind,
    /// Why, with the address.
    pub text: String,
}

impl StepError {
    fn refused(text: impl Into<String>) -> Self {
        Self { kind: StepKind::Refused, text: text.into() }
    }

    fn failed(text: impl Into<String>) -> Self {
        Self { kind: StepKind::Failed, text: text.into() }
    }
}

/// Does jobs below a root. It blocks as long as the kernel does.
pub struct Steps<'a> {
    files: Files,
    patience: Duration,
    tell: &'a mut dyn FnMut(&Progress),
}

impl std::fmt::Debug for Steps<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Steps").field("files", &self.files).finish_non_exhaustive()
    }
}

impl<'a> Steps<'a> {
    /// Each function has so much time to come to its driver; `tell` hears of each step before it is made.
    pub fn new(root: &Path, patience: Duration, tell: &'a mut dyn FnMut(&Progress)) -> Self {
        Self { files: Files::below(root), patience, tell }
    }

    /// Does a job.
    ///
    /// # Errors
    /// At the first function that could not be brought to its driver; those behind it are not touched.
    pub fn run(&mut self, job: &DriverJob) -> Result<(), StepError> {
        match job {
            DriverJob::Bind(addresses) => addresses.iter().try_for_each(|address| self.bind(*address)),
            DriverJob::Restore(all) => all.iter().try_for_each(|one| self.restore(one)),
        }
    }

    fn bind(&mut self, address: PciAddress) -> Result<(), StepError> {
        let until = self.begin(address)?;
        if self.device(address).is_vfio() {
            return self.done(address, Change::None);
        }
        if !self.files.exists(&format!("{DRIVERS}/{VFIO}")) {
            return Err(StepError::refused(format!("{address}: {NOT_LOADED}")));
        }
        if self.device(address).driver_override().as_deref() != Some(VFIO) {
            self.write(address, &format!("{DEVICES}/{address}/driver_override"), VFIO)?;
        }
        self.unbind(address, until)?;
        self.write(address, PROBE, &address.to_string())?;
        self.wait(address, VFIO, until, |device| device.is_vfio())?;
        self.done(address, Change::Made)
    }

    fn restore(&mut self, restore: &Restore) -> Result<(), StepError> {
        let address = restore.address;
        let Some(wanted) = restore.driver.as_deref() else { return self.restore_to_none(address) };
        if wanted == VFIO {
            return self.bind(address);
        }
        let until = self.begin(address)?;
        let device = self.device(address);
        let (driver, only) = (device.driver(), device.driver_override());
        let is_with = |device: &Device<'_>| device.driver().as_deref() == Some(wanted);
        if driver.as_deref() == Some(wanted) && only.is_none() {
            return self.done(address, Change::None);
        }
        if only.is_some() {
            self.clear(address)?;
        }
        if is_with(&self.device(address)) {
            return self.done(address, Change::Made);
        }
        self.unbind(address, until)?;
        self.write(address, PROBE, &address.to_string())?;
        let settled = Instant::now() + SETTLE.min(self.patience / 4);
        while self.device(address).driver().is_none() && Instant::now() < settled {
            std::thread::sleep(PAUSE);
        }
        if !is_with(&self.device(address)) {
            if !self.files.exists(&format!("{DRIVERS}/{wanted}")) {
                let now = with(self.device(address).driver().as_deref());
                let text = format!("{address}: its driver {wanted} is not loaded (modprobe {wanted}); it is {now}");
                return Err(StepError::failed(text));
            }
            self.unbind(address, until)?;
            let bound = self.write(address, &format!("{DRIVERS}/{wanted}/bind"), &address.to_string());
            // The driver may have come by itself meanwhile, and then refuses to come twice.
            bound.or_else(|error| if is_with(&self.device(address)) { Ok(()) } else { Err(error) })?;
        }
        self.wait(address, wanted, until, is_with)?;
        self.done(address, Change::Made)
    }

    fn restore_to_none(&mut self, address: PciAddress) -> Result<(), StepError> {
        let until = self.begin(address)?;
        let device = self.device(address);
        let is_changed = device.driver().is_some() || device.driver_override().is_some();
        self.unbind(address, until)?;
        // Not before: whoever probes meanwhile would bring the driver that it did not have.
        if self.device(address).driver_override().is_some() {
            self.clear(address)?;
        }
        self.done(address, if is_changed { Change::Made } else { Change::None })
    }

    /// The deadline of this function.
    fn begin(&mut self, address: PciAddress) -> Result<Instant, StepError> {
        (self.tell)(&Progress::Begin { address });
        if !self.device(address).is_there() {
            return Err(StepError::refused(format!("there is no PCI device at {address}")));
        }
        Ok(Instant::now() + self.patience)
    }

    fn device(&self, address: PciAddress) -> Device<'_> {
        Device::at_rest(&self.files, address)
    }

    fn clear(&mut self, address: PciAddress) -> Result<(), StepError> {
        self.write(address, &format!("{DEVICES}/{address}/driver_override"), "")
    }

    /// Takes it from the driver that has it, if one has.
    fn unbind(&mut self, address: PciAddress, until: Instant) -> Result<(), StepError> {
        let Some(driver) = self.device(address).driver() else { return Ok(()) };
        if self.device(address).is_vfio() {
            self.refuse_if_held(address)?;
        }
        let unbound = self.write(address, &format!("{DEVICES}/{address}/driver/unbind"), &address.to_string());
        if let Err(error) = unbound {
            // Gone by itself, or by somebody else.
            return if self.device(address).driver().is_none() { Ok(()) } else { Err(error) };
        }
        while self.device(address).driver().is_some() {
            if Instant::now() > until {
                let text = format!("{address}: {driver} has not let go of it within {}", seconds(self.patience));
                return Err(StepError::failed(text));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// A VFIO device that is taken from a running QEMU blocks in the kernel until the host is rebooted.
    fn refuse_if_held(&self, address: PciAddress) -> Result<(), StepError> {
        let mut nodes = Nodes::default();
        nodes.add_function(0, &self.files, address, self.device(address).group_number());
        self.refuse_if_open(address, &nodes)
    }

    /// The manager that started us has cards open while it asks NVML about them, and that is over in a moment.
    fn refuse_if_open(&self, address: PciAddress, nodes: &Nodes) -> Result<(), StepError> {
        let until = Instant::now() + self.patience / 2;
        let parent = u32::try_from(nix::unistd::getppid().as_raw()).unwrap_or_default();
        loop {
            let search = holders::look_for(&self.files, nodes);
            let is_all_ours = search.found.iter().all(|(_, holder)| holder.pid == parent);
            if !search.found.is_empty() && is_all_ours && Instant::now() < until {
                std::thread::sleep(PAUSE * 10);
                continue;
            }
            return match (search.found.first(), search.incomplete) {
                (Some((_, holder)), _) => Err(StepError::refused(format!("{address} is in use: {}", holder.words()))),
                (None, Some(why)) => {
                    Err(StepError::refused(format!("{address}: {why}, so it is not known who has it open")))
                }
                (None, None) => Ok(()),
            };
        }
    }

    fn write(&mut self, address: PciAddress, file: &str, value: &str) -> Result<(), StepError> {
        let written = self.put(address, file, value);
        written.map_err(|e| StepError::failed(format!("{address}: {}: {}", writing(file, value), told(&e))))
    }

    /// One line by one write, as the kernel wants it; no file is made where there is none.
    fn put(&mut self, address: PciAddress, file: &str, value: &str) -> io::Result<()> {
        (self.tell)(&Progress::Write { address, file: file.to_owned(), value: value.to_owned() });
        let line = format!("{value}\n");
        let open = OpenOptions::new().write(true).truncate(true).open(self.files.path(file));
        open.and_then(|mut file| match file.write(line.as_bytes())? {
            count if count == line.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        })?;
        (self.tell)(&Progress::Wrote { address, file: file.to_owned() });
        Ok(())
    }

    fn wait(
        &mut self,
        address: PciAddress,
        driver: &str,
        until: Instant,
        is_so: impl Fn(&Device<'_>) -> bool,
    ) -> Result<(), StepError> {
        (self.tell)(&Progress::Wait { address, driver: driver.to_owned() });
        while !is_so(&self.device(address)) {
            if Instant::now() > until {
                let now = with(self.device(address).driver().as_deref());
                let patience = seconds(self.patience);
                let text =
                    format!("{address}: {driver} has not taken it within {patience}; it is {now} (dmesg may say why)");
                return Err(StepError::failed(text));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn done(&mut self, address: PciAddress, change: Change) -> Result<(), StepError> {
        let driver = self.device(address).driver();
        (self.tell)(&Progress::Done { address, driver, is_changed: matches!(change, Change::Made) });
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Change {
    None,
    Made,
}

fn with(driver: Option<&str>) -> String {
    driver.map_or_else(|| "without a driver".to_owned(), |driver| format!("with {driver}"))
}

fn writing(file: &str, value: &str) -> String {
    let value = if value.is_empty() { "an empty line" } else { value };
    format!("writing {value} to /{file}")
}

/// `Invalid argument (EINVAL)`.
fn told(error: &io::Error) -> String {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(errno) => format!("{} ({errno:?})", errno.desc()),
        None => error.to_string(),
    }
}

pub(super) fn seconds(duration: Duration) -> String {
    format!("{} s", (duration.as_millis() / 100) as f64 / 10.0)
}
