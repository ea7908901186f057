//! The writes by which a card is divided otherwise: what `gvm helper set-functions` and `reset` do; what is done by
//! NVIDIA's library is in `mig`.
//!
//! ```text
//!   functions   NVIDIA's sriov-manage -e|-d where the driver brings it; else sriov_numvfs = 0, sriov_numvfs = N
//!               then every virtual function must come to a driver, where NVIDIA made the card
//!   reset       nvidia-smi --gpu-reset: the driver's own, which knows what it has on the card
//! ```
//! A card is divided otherwise only when nothing lives on it: a virtual function that is taken away under a machine, or
//! with a vGPU on it, blocks in the kernel or takes the machine down.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::{Change, DEVICES, PAUSE, StepError, Steps, seconds, with};
use crate::gpu::holders::{self, Nodes};
use crate::gpu::{NVIDIA_DRIVER, vgpu};
use crate::model::card::shape::ShapeJob;
use crate::model::pci::{PciAddress, Vendor};

/// NVIDIA's vGPU manager brings it; it is the only way to virtual functions as long as its driver has the card.
const SRIOV_MANAGE: &str = "usr/lib/nvidia/sriov-manage";
const NVIDIA_SMI: &str = "usr/bin/nvidia-smi";

impl Steps<'_> {
    /// Changes what a card is divided into; `nvml` is NVIDIA's library, where not the system's.
    ///
    /// # Errors
    /// Where it must not be done, or the kernel or the library does not do it.
    pub fn run_shape(&mut self, job: &ShapeJob, nvml: Option<&Path>) -> Result<(), StepError> {
        let card = job.card();
        let until = self.begin(card)?;
        let change = match job {
            ShapeJob::Functions { count, .. } => self.set_functions(card, *count, until),
            ShapeJob::Reset { .. } => self.reset(card),
            ShapeJob::MigMode { is_on, .. } => self.set_mig(card, *is_on, nvml),
            ShapeJob::MakeInstance { instance, .. } => self.make_instance(card, *instance, nvml),
            ShapeJob::RemoveInstance { instance, .. } => self.remove_instance(card, *instance, nvml),
        };
        self.done(card, change?)
    }

    fn set_functions(&mut self, card: PciAddress, count: Option<u32>, until: Instant) -> Result<Change, StepError> {
        let folder = format!("{DEVICES}/{card}");
        let number = |file: &str| self.files.number(&format!("{folder}/{file}"));
        let total = number("sriov_totalvfs").unwrap_or(0);
        let wanted = count.map_or(total, u64::from);
        if total == 0 || wanted > total {
            let has = if total == 0 { "no virtual functions".to_owned() } else { format!("{total} virtual functions") };
            return Err(StepError::refused(format!("{card} has {has}")));
        }
        let now = number("sriov_numvfs").unwrap_or(0);
        if now != wanted {
            self.refuse_if_used(card)?;
            let driver = self.device(card).driver();
            let manage = self.files.path(SRIOV_MANAGE);
            if driver.as_deref() == Some(NVIDIA_DRIVER) && manage.exists() && (wanted == 0 || wanted == total) {
                let way = if wanted == 0 { "-d" } else { "-e" };
                self.run_program(card, &manage, &[way, &card.to_string()])?;
            } else {
                let file = format!("{folder}/sriov_numvfs");
                if now != 0 && wanted != 0 {
                    self.write(card, &file, "0")?;
                }
                self.write(card, &file, &wanted.to_string())?;
            }
        }
        self.wait_for_functions(card, wanted, until)?;
        Ok(if now == wanted { Change::None } else { Change::Made })
    }

    /// Virtual functions come one after the other, and their driver to each of them.
    fn wait_for_functions(&mut self, card: PciAddress, wanted: u64, until: Instant) -> Result<(), StepError> {
        // NVIDIA's driver makes vGPUs on them; those of other makers go to VFIO, and nobody else need have them.
        let is_driven = self.device(card).ids().is_some_and(|ids| Vendor::from_id(ids.vendor) == Some(Vendor::Nvidia));
        loop {
            let functions = self.functions_of(card);
            let bound = functions.iter().filter(|vf| !is_driven || self.device(**vf).driver().is_some()).count() as u64;
            if functions.len() as u64 == wanted && bound == wanted {
                return Ok(());
            }
            if Instant::now() > until {
                let (there, patience) = (functions.len(), seconds(self.patience));
                let late = functions.iter().find(|vf| self.device(**vf).driver().is_none());
                let late = late.map_or_else(String::new, |vf| format!("; {vf} is {}", with(None)));
                return Err(StepError::failed(format!(
                    "{card}: of {wanted} virtual functions {there} have come within {patience}, and {bound} of them have a driver{late}"
                )));
            }
            std::thread::sleep(PAUSE);
        }
    }

    pub(super) fn functions_of(&self, card: PciAddress) -> Vec<PciAddress> {
        let names = self.files.names(&format!("{DEVICES}/{card}"), 4096).unwrap_or_default();
        let is_link = |name: &&String| name.starts_with("virtfn");
        let target = |name: &String| self.files.link_name(&format!("{DEVICES}/{card}/{name}"))?.parse().ok();
        names.iter().filter(is_link).filter_map(target).collect()
    }

    /// Refuses where a process has the card or one of its functions open, or a function carries a vGPU.
    pub(super) fn refuse_if_used(&self, card: PciAddress) -> Result<(), StepError> {
        let mut nodes = Nodes::default();
        let minor = holders::nvidia_minor(&self.files, card);
        nodes.add(0, minor.map(|minor| format!("/dev/nvidia{minor}")));
        for function in self.functions_of(card).into_iter().chain([card]) {
            nodes.add_function(0, &self.files, function, self.device(function).group_number());
            let facts = vgpu::read(&self.files, &format!("{DEVICES}/{function}"));
            if let Some(made) = facts.iter().flat_map(|facts| &facts.made).next() {
                let name = made.name.as_ref().map_or_else(|| format!("type {}", made.type_id), ToString::to_string);
                return Err(StepError::refused(format!(
                    "{function} carries a vGPU ({name}), so {card} is left as it is"
                )));
            }
        }
        self.refuse_if_open(card, &nodes)
    }

    fn reset(&mut self, card: PciAddress) -> Result<Change, StepError> {
        self.refuse_if_used(card)?;
        let smi = self.files.path(NVIDIA_SMI);
        if !smi.exists() {
            return Err(StepError::refused(format!("{card} cannot be reset: there is no nvidia-smi")));
        }
        self.run_program(card, &smi, &["--gpu-reset", "-i", &card.to_string()])?;
        Ok(Change::Made)
    }

    /// Runs a program of the vendor to its end. It may hang like a write, and is bounded like one: by whoever waits for this
    /// process.
    fn run_program(&mut self, card: PciAddress, program: &PathBuf, arguments: &[&str]) -> Result<(), StepError> {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let told = format!("{name} {}", arguments.join(" "));
        (self.tell)(&super::Progress::Run { address: card, program: told.clone() });
        let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
        let output = output.map_err(|e| StepError::failed(format!("{card}: {told}: {e}")))?;
        if output.status.success() {
            return Ok(());
        }
        let text = [output.stderr, output.stdout].map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
        let said = text.iter().find(|text| !text.is_empty()).and_then(|text| text.lines().last());
        let said = said.unwrap_or("it does not say why");
        Err(StepError::failed(format!("{card}: {told}: {} ({said})", output.status)))
    }
}

#[cfg(test)]
#[path = "shape_tests.rs"]
mod tests;
