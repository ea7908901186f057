//! The one write by which a function is reset: what `gvm helper reset-function` does.
//!
//! ```text
//!   with VFIO, and nobody has its slot open? --> a method that reaches only itself? --> reset = 1 --> it answers again?
//!     \ Refused                                    \ Refused                              \ Failed      \ Failed
//! ```
//!
//! A reset of what somebody uses takes his machine down, and one that reaches over the bus takes the neighbours along. On
//! kernels from 7.0 on it wedges the host where the card has virtual functions. So it is refused in all of these cases, and
//! what VFIO does at the close of a device is then all that the card had.

use std::time::Instant;

use super::{Change, DEVICES, PAUSE, StepError, Steps, seconds};
use crate::gpu::files::Files;
use crate::gpu::holders::Nodes;
use crate::gpu::sysfs::slot;
use crate::model::card::Health;
use crate::model::card::pci::is_bridge;
use crate::model::pci::PciAddress;

/// Methods that reset one function and nothing beside it (kernel, `sysfs-bus-pci`, `reset_method`).
const OF_ONE: [&str; 5] = ["flr", "af_flr", "pm", "device_specific", "acpi"];

/// Methods that reset a whole bus.
const OF_BUS: [&str; 2] = ["bus", "cxl_bus"];

/// From this kernel on, cards with virtual functions are not reset.
const WEDGING: u32 = 7;

const MAX_DEVICES: usize = 65_536;

/// The method that a write to `reset` takes; the kernel tries them in this order.
pub(in crate::gpu) fn first_reset_method(files: &Files, address: PciAddress) -> Option<String> {
    let text = files.text(&format!("{DEVICES}/{address}/reset_method"))?;
    text.split_whitespace().next().map(str::to_owned)
}

impl Steps<'_> {
    /// Resets a function that is with VFIO and that nobody has open.
    ///
    /// # Errors
    /// Where it must not be reset, or does not answer afterwards.
    pub fn run_reset(&mut self, address: PciAddress) -> Result<(), StepError> {
        let until = self.begin(address)?;
        let refused = |why: String| Err(StepError::refused(format!("{address} {why}")));
        if (self.device(address).is_vf() && !self.device(address).is_part()) || !self.device(address).is_gpu() {
            return refused("is no card of its own".to_owned());
        }
        if !self.device(address).is_vfio() {
            return refused("is not with VFIO".to_owned());
        }
        if let Some(why) = self.why_not_reset(address) {
            return refused(why);
        }
        self.refuse_if_slot_open(address)?;
        self.write(address, &format!("{DEVICES}/{address}/reset"), "1")?;
        while let Health::NoAnswer(why) = self.device(address).health() {
            if Instant::now() > until {
                let patience = seconds(self.patience);
                return Err(StepError::failed(format!("{address} does not answer {patience} after its reset: {why}")));
            }
            std::thread::sleep(PAUSE);
        }
        self.done(address, Change::Made)
    }

    /// What speaks against a reset besides who has it open.
    fn why_not_reset(&self, address: PciAddress) -> Option<String> {
        if let Health::NoAnswer(why) = self.device(address).health() {
            return Some(format!("does not answer ({why})"));
        }
        let number = |file: &str| self.files.number(&format!("{DEVICES}/{address}/{file}")).unwrap_or(0);
        if number("sriov_numvfs") > 0 {
            return Some("has virtual functions that are switched on".to_owned());
        }
        let release = self.files.text("proc/sys/kernel/osrelease").unwrap_or_default();
        let kernel: u32 = release.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0);
        if kernel >= WEDGING && number("sriov_totalvfs") > 0 {
            return Some(format!("can have virtual functions, and kernel {release} hangs at the reset of such a card"));
        }
        let mine = slot(address);
        for other in (0..8).map(|function| PciAddress { function, ..mine }).filter(|other| *other != address) {
            let device = self.device(other);
            let is_bridge = device.class().is_some_and(is_bridge);
            if let Some(driver) = device.driver().filter(|_| !device.is_vfio() && !is_bridge) {
                return Some(format!("shares its slot with {other}, which the host uses ({driver})"));
            }
        }
        match first_reset_method(&self.files, address).as_deref() {
            None => Some("has no way to be reset that the kernel knows".to_owned()),
            Some(method) if OF_ONE.contains(&method) => None,
            Some(method) if OF_BUS.contains(&method) => {
                let neighbour = self.neighbour(address)?;
                Some(format!("can only be reset with its bus ({method}), and {neighbour} is on it as well"))
            }
            Some(method) => Some(format!("would be reset by {method}, of which gvm does not know what it reaches")),
        }
    }

    /// Another device of its bus.
    fn neighbour(&self, address: PciAddress) -> Option<PciAddress> {
        let names = self.files.names(DEVICES, MAX_DEVICES).unwrap_or_default();
        let mut others = names.iter().filter_map(|name| name.parse::<PciAddress>().ok());
        others.find(|other| (other.domain, other.bus) == (address.domain, address.bus) && *other != address)
    }

    fn refuse_if_slot_open(&self, address: PciAddress) -> Result<(), StepError> {
        let mut nodes = Nodes::default();
        for function in (0..8).map(|function| PciAddress { function, ..address }) {
            if self.device(function).is_there() {
                nodes.add_function(0, &self.files, function, self.device(function).group_number());
            }
        }
        self.refuse_if_open(address, &nodes)
    }
}
