//! Xid: the NVIDIA driver's word on an error of a card, in the kernel's log. Most are the application's own fault, and a
//! card must not be lost to them; some mean that it needs a reset, or more.
//!
//! Numbers and what to do: NVIDIA, "Xid Errors" (docs.nvidia.com/deploy/xid-errors), and the driver's `nverror.h`.

use crate::model::pci::PciAddress;

/// What an error means for the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The application's: the card goes on, with a note.
    Application,
    /// It works on and wants a reset once its machine is done: not handed out anew before.
    NeedsReset,
    /// It has fallen off the bus, or does not work any more: out of service.
    Lost,
}

/// One error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Xid {
    /// The card.
    pub address: PciAddress,
    /// The driver's number.
    pub number: u32,
}

impl Xid {
    /// The error in a line of the kernel's log, such as
    /// `NVRM: Xid (PCI:0000:41:00): 79, pid=1234, name=python, GPU has fallen off the bus.`
    pub fn parse(line: &str) -> Option<Self> {
        let (_, rest) = line.split_once("NVRM: Xid (PCI:")?;
        let (place, rest) = rest.split_once("):")?;
        // The driver names the slot; its cards are function 0.
        let address = place.parse().or_else(|_| format!("{place}.0").parse()).ok()?;
        let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
        Some(Self { address, number: digits.parse().ok()? })
    }

    /// What it means.
    pub const fn severity(self) -> Severity {
        match self.number {
            // 63 and 64: rows to be remapped; 48, 74, 95, 119, 120, 140: memory, NVLink or firmware of the card.
            48 | 63 | 64 | 74 | 95 | 119 | 120 | 140 => Severity::NeedsReset,
            // 79: off the bus; 54: no power; 62: its controller halted; 110, 136, 143: not initialised, or its links dead.
            54 | 62 | 79 | 110 | 136 | 143 => Severity::Lost,
            _ => Severity::Application,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Case A-unhealthy-forever.
    #[test]
    fn what_an_error_means_is_told_by_its_number() {
        let check = |line: &str| Xid::parse(line).map(|xid| (xid.address.to_string(), xid.number, xid.severity()));
        let at = |number, severity| Some(("0000:41:00.0".to_owned(), number, severity));
        assert_eq!(
            check("[ 12.3] NVRM: Xid (PCI:0000:41:00): 31, pid=77, name=python, Ch 00000008, MMU Fault"),
            at(31, Severity::Application)
        );
        assert_eq!(check("NVRM: Xid (PCI:0000:41:00): 94, Contained memory error"), at(94, Severity::Application));
        assert_eq!(check("NVRM: Xid (PCI:0000:41:00): 63, Row Remapper: New row marked"), at(63, Severity::NeedsReset));
        assert_eq!(check("NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus."), at(79, Severity::Lost));
        assert_eq!(check("NVRM: Xid (PCI:10000:E1:00): 13, x").unwrap().0, "10000:e1:00.0");
        for other in ["NVRM: loading NVIDIA UNIX", "NVRM: Xid (PCI:0000:41): 1", "NVRM: Xid (PCI:0000:41:00): x", ""] {
            assert_eq!(check(other), None, "{other}");
        }
    }
}
