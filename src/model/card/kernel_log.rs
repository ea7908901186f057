//! The kernel's log: its records, and what they say of a card's health.
//!
//! ```text
//!   b"4,812,5098112,-;NVRM: Xid (PCI:0000:41:00): 79, ..."  --KernelRecord::parse--> one record
//!   records, in order --LogReader::read--> LogSign { address, severity, why }
//! ```
//!
//! Form of a record: the kernel's `Documentation/ABI/testing/dev-kmsg`. What the driver says of a card that is lost:
//! NVIDIA/NVSentinel#155, leptonai/gpud#1209; of a recovery action: NVIDIA/open-gpu-kernel-modules#1353. `not ready` and
//! `device inaccessible` are the kernel's own (`drivers/pci/pci.c`).

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::RecoveryAction;
use super::xid::{Severity, Xid};
use crate::model::pci::PciAddress;

/// Facility of what the kernel says itself; programs that write to the log get another (`dev-kmsg`).
const KERNEL: u64 = 0;

/// So much of a line is told to people.
const MAX_WHY: usize = 200;

/// A message that goes over several lines names the card in the first: so many of the driver's lines are looked at after
/// it. The real one has three.
const SPAN: u8 = 8;

/// One record of the kernel's log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelRecord {
    /// Its number since boot, without gaps.
    pub sequence: u64,
    /// When, in microseconds since boot.
    pub micros: u64,
    /// True where the kernel said it, and no program.
    pub is_kernels: bool,
    /// What, in one or more lines.
    pub text: String,
}

impl KernelRecord {
    /// Reads a record: `priority,sequence,microseconds,flags;text`, with lines of `NAME=value` after it.
    pub fn parse(record: &[u8]) -> Option<Self> {
        let at = record.iter().position(|byte| *byte == b';')?;
        let (head, text) = (record.get(..at)?, record.get(at + 1..)?);
        let mut numbers = std::str::from_utf8(head).ok()?.split(',').map(str::parse::<u64>);
        let (priority, sequence, micros) = (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
        let text = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        Some(Self { sequence, micros, is_kernels: priority >> 3 == KERNEL, text: unescaped(text) })
    }
}

/// The kernel writes `\x0a` for a byte that is not printable.
fn unescaped(text: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let hex = after.strip_prefix(b"x").and_then(|digits| std::str::from_utf8(digits.get(..2)?).ok());
        let byte = hex.filter(|_| *first == b'\\').and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { after.get(3..).unwrap_or_default() } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// How far the log was taken in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogMark {
    /// The boot; numbers begin anew with each.
    pub boot_id: String,
    /// The last record that was.
    pub sequence: u64,
}

/// What a line says of a card.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LogSign {
    /// The function that it names.
    pub address: PciAddress,
    /// What it means.
    pub severity: Severity,
    /// In plain words.
    pub why: String,
}

/// Reads records one after the other.
#[derive(Clone, Debug, Default)]
pub struct LogReader {
    /// Numbers that are not heeded.
    ignored: BTreeSet<u32>,
    /// A card that the driver began to speak of, and for how many more lines.
    named: Option<(PciAddress, u8)>,
}

impl LogReader {
    /// These numbers of Xid are not heeded.
    pub fn ignoring(ignored: &BTreeSet<u32>) -> Self {
        Self { ignored: ignored.clone(), named: None }
    }

    /// What a record says.
    pub fn read(&mut self, record: &KernelRecord) -> Vec<LogSign> {
        match record.is_kernels {
            true => record.text.lines().filter_map(|line| self.line(line.trim())).collect(),
            false => Vec::new(),
        }
    }

    fn line(&mut self, line: &str) -> Option<LogSign> {
        match line.strip_prefix("NVRM: ") {
            Some(said) => self.driver(line, said),
            None => device(line),
        }
    }

    fn driver(&mut self, line: &str, said: &str) -> Option<LogSign> {
        if let Some(xid) = Xid::parse(line).filter(|_| said.starts_with("Xid ")) {
            return self.xid(xid, line);
        }
        if let Some(rest) = said.strip_prefix("The NVIDIA GPU ") {
            let address = rest.split_whitespace().next().and_then(|word| word.parse().ok());
            self.named = address.map(|address| (address, SPAN));
        }
        let (address, left) = self.named?;
        if said.contains("fallen off the bus") {
            self.named = None;
            let why = "it has fallen off the bus and does not respond to commands".to_owned();
            return Some(LogSign { address, severity: Severity::Lost, why });
        }
        self.named = left.checked_sub(1).map(|left| (address, left));
        None
    }

    fn xid(&self, xid: Xid, line: &str) -> Option<LogSign> {
        if self.ignored.contains(&xid.number) {
            return None;
        }
        let severity = match recovery(xid, line) {
            Some(RecoveryAction::None) => return None,
            Some(RecoveryAction::Reboot) => Severity::Lost,
            Some(_) => Severity::NeedsReset,
            None => xid.severity(),
        };
        let said = line.split_once("): ").and_then(|(_, said)| said.split_once(", ")).map_or("", |(_, said)| said);
        // Which program of which tenant it was is nobody else's business.
        let said = match said.split_once(", name=").filter(|(pid, _)| pid.starts_with("pid=")) {
            Some((_, name)) => name.split_once(", ").map_or("", |(_, said)| said),
            None => said,
        };
        let said = if said.is_empty() { String::new() } else { format!(": {said}") };
        Some(LogSign { address: xid.address, severity, why: plain(&format!("Xid {}{said}", xid.number)) })
    }
}

/// Xid 154: `GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)`.
fn recovery(xid: Xid, line: &str) -> Option<RecoveryAction> {
    let (_, to) =
        line.split_once("recovery action changed from").filter(|_| xid.number == 154)?.1.split_once(" to ")?;
    let digits = to.trim_start().trim_start_matches("0x");
    let digits: String = digits.chars().take_while(char::is_ascii_hexdigit).collect();
    u32::from_str_radix(&digits, 16).ok().map(action)
}

/// NVML's numbers (`nvmlDeviceGpuRecoveryAction_t`), which the driver writes to the log as well.
const fn action(number: u32) -> RecoveryAction {
    match number {
        0 => RecoveryAction::None,
        1 => RecoveryAction::Reset,
        2 => RecoveryAction::Reboot,
        3 => RecoveryAction::DrainPeers,
        4 => RecoveryAction::DrainAndReset,
        other => RecoveryAction::Other(other),
    }
}

/// What the kernel says of a device in its own voice: `vfio-pci 0000:41:00.0: not ready 65535ms after FLR; giving up`.
fn device(line: &str) -> Option<LogSign> {
    let mut words = line.split_whitespace();
    let driver = words.next()?;
    let address: PciAddress = words.next()?.strip_suffix(':')?.parse().ok()?;
    let (_, said) = line.split_once(": ")?;
    let severity = match () {
        () if said.starts_with("not ready ") && said.contains("giving up") => Severity::Lost,
        () if said.starts_with("not ready ") => Severity::Application,
        () if said.contains("device inaccessible") => Severity::Lost,
        () if said.starts_with("AER: ") && said.contains("device recovery failed") => Severity::NeedsReset,
        () if said.contains("Uncorrect") && said.contains("(Fatal)") && driver != "pcieport" => Severity::NeedsReset,
        () => return None,
    };
    Some(LogSign { address, severity, why: plain(said) })
}

/// Without what a terminal would heed, and not too long: parts of a line are chosen by the programs of members.
fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_WHY).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(priority: u64, text: &str) -> KernelRecord {
        KernelRecord::parse(format!("{priority},7,1000,-;{text}\n SUBSYSTEM=pci\n").as_bytes()).unwrap()
    }

    fn read(reader: &mut LogReader, text: &str) -> Vec<(String, Severity)> {
        let signs = reader.read(&record(4, text));
        signs.into_iter().map(|sign| (sign.address.to_string(), sign.severity)).collect()
    }

    #[test]
    fn a_record_is_read_with_its_lines_and_without_its_dictionary() {
        let told =
            KernelRecord::parse(b"6,339,5140900,-;NVRM: one\\x0aNVRM: two \\\\x zwei \\xc3\\xb6\n DEVICE=+pci\n");
        let told = told.unwrap();
        assert_eq!((told.sequence, told.micros, told.is_kernels), (339, 5_140_900, true));
        assert_eq!(told.text, "NVRM: one\nNVRM: two \\\\x zwei \u{f6}");
        assert!(!KernelRecord::parse(b"12,340,5140901,-;NVRM: by a program").unwrap().is_kernels);
        for bad in [
            &b""[..],
            b"6,1,2",
            b"x,1,2,-;text",
            b"6,1;text",
            b"6,-1,2,-;t",
            b"\xff\xfe;\x00",
            b"6,1,99999999999999999999,-;",
        ] {
            assert_eq!(KernelRecord::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_card_off_the_bus_is_told_in_one_line_or_in_three() {
        let mut reader = LogReader::default();
        let lost = |address: &str| vec![(address.to_owned(), Severity::Lost)];
        let one = "NVRM: Xid (PCI:0000:44:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.";
        assert_eq!(read(&mut reader, one), lost("0000:44:00.0"));
        let three = "NVRM: The NVIDIA GPU 0000:b3:00.0\\x0aNVRM: (PCI ID: 10de:26b5) installed in this system has\\x0aNVRM: \
                     fallen off the bus and is not responding to commands.";
        assert_eq!(read(&mut reader, three), lost("0000:b3:00.0"));
        // The same in records of their own, with another driver's words in between.
        assert_eq!(read(&mut reader, "NVRM: The NVIDIA GPU 0000:b4:00.0"), []);
        assert_eq!(read(&mut reader, "usb 1-1: new device"), []);
        assert_eq!(read(&mut reader, "NVRM: (PCI ID: 10de:26b5) installed in this system has"), []);
        let last = "NVRM: fallen off the bus and is not responding to commands.";
        assert_eq!(read(&mut reader, last), lost("0000:b4:00.0"));
        // Without a name before it, or long after, it is about nobody.
        assert_eq!(read(&mut reader, last), []);
        read(&mut reader, "NVRM: The NVIDIA GPU 0000:b4:00.0");
        (0..20).for_each(|_| assert_eq!(read(&mut reader, "NVRM: something else"), []));
        assert_eq!(read(&mut reader, last), []);
    }

    #[test]
    fn a_recovery_action_is_heeded_by_what_it_changes_to() {
        let mut reader = LogReader::default();
        let mut at = |to: &str| {
            let text = format!("NVRM: Xid (PCI:0000:44:00): 154, GPU recovery action changed from 0x0 (None) to {to}");
            read(&mut reader, &text).first().map(|(_, severity)| *severity)
        };
        assert_eq!(at("0x1 (GPU Reset Required)"), Some(Severity::NeedsReset));
        assert_eq!(at("0x2 (Node Reboot Required)"), Some(Severity::Lost));
        assert_eq!(
            (at("0x3 (Drain P2P)"), at("0x4 (Drain and Reset)")),
            (Some(Severity::NeedsReset), Some(Severity::NeedsReset))
        );
        assert_eq!(at("0x0 (None)"), None);
        // One that cannot be read is no reason to lose a card; NVML says it as well.
        assert_eq!(at("something"), Some(Severity::Application));
        let timeout =
            "NVRM: Xid (PCI:0000:44:00): 119, pid=1, name=x, Timeout after 45s of waiting for RPC response from GPU0";
        assert_eq!(read(&mut reader, timeout), [("0000:44:00.0".to_owned(), Severity::NeedsReset)]);
    }

    #[test]
    fn the_kernels_own_words_on_a_device_are_heeded() {
        let mut reader = LogReader::default();
        let mut at = |text: &str| read(&mut reader, text).first().map(|(_, severity)| *severity);
        assert_eq!(at("vfio-pci 0000:41:00.0: not ready 1023ms after FLR; waiting"), Some(Severity::Application));
        assert_eq!(at("vfio-pci 0000:41:00.0: not ready 65535ms after FLR; giving up"), Some(Severity::Lost));
        assert_eq!(at("vfio-pci 0000:41:00.0: not ready 65535ms after bus reset; giving up"), Some(Severity::Lost));
        let power = "vfio-pci 0000:41:00.0: Unable to change power state from D3cold to D0, device inaccessible";
        assert_eq!(at(power), Some(Severity::Lost));
        assert_eq!(at("vfio-pci 0000:41:00.0: AER: device recovery failed"), Some(Severity::NeedsReset));
        let fatal = "nvidia 0000:41:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer";
        assert_eq!(at(fatal), Some(Severity::NeedsReset));
        for other in [
            "vfio-pci 0000:41:00.0: ready 4095ms after FLR",
            "nvidia 0000:41:00.0: PCIe Bus Error: severity=Correctable, type=Data Link Layer",
            "pcieport 0000:40:01.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer",
            "vfio-pci 0000:41:00.0: enabling device (0000 -> 0002)",
            "not ready 1023ms after FLR; giving up",
        ] {
            assert_eq!(at(other), None, "{other}");
        }
    }

    #[test]
    fn ignored_numbers_and_words_of_programs_are_not_heeded() {
        let line = "NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus.";
        assert_eq!(LogReader::ignoring(&BTreeSet::from([79])).read(&record(4, line)), []);
        assert_eq!(LogReader::default().read(&record(12, line)), []);
        // A process may be called anything; the driver repeats it.
        assert_eq!(
            read(&mut LogReader::default(), "traps: NVRM: Xid (PCI:0000:44:00): 79, x[12] general protection"),
            []
        );
        let named = "NVRM: Xid (PCI:0000:44:00): 31, pid=9, name=red, MMU \\x1b[2JFault";
        let sign = LogReader::default().read(&record(4, named)).remove(0);
        assert_eq!((sign.severity, sign.why.as_str()), (Severity::Application, "Xid 31: MMU [2JFault"));
    }

    proptest! {
        #[test]
        fn wild_bytes_do_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..300), text in ".{0,200}") {
            let mut reader = LogReader::default();
            if let Some(record) = KernelRecord::parse(&bytes) {
                reader.read(&record);
            }
            let record = KernelRecord { sequence: 1, micros: 1, is_kernels: true, text: format!("NVRM: {text}") };
            prop_assert!(reader.read(&record).is_empty());
        }
    }
}
