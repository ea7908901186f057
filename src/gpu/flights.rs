//! Slots whose drivers are being changed at this moment, and those in which a change hangs.
//!
//! ```text
//!   begin --> in flight --helper ended--> gone
//!                \--deadline: helper killed--> stuck --helper gone after all--> gone
//! ```
//!
//! A helper that was killed and does not go away sits in the kernel, mostly with the device's lock in its hand. As long as
//! it is there, nobody may touch its slot: whoever does would hang beside it. Helpers of a manager that is gone are found
//! again by their command line. Nothing here is held while a helper runs but an entry in a table.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::BindError;
use super::files::{self, Files};
use super::sysfs::{Hanging, slot};
use crate::model::card::function::Restore;
use crate::model::card::vgpu::VgpuSite;
use crate::model::gpu::PciAddress;

/// A helper that nobody waits for any more - it was killed, or is an earlier manager's - hangs when it is there for longer.
const LEFT: Duration = Duration::from_secs(120);

/// What a command line of ours may have.
const MAX_COMMAND_LINE: usize = 64 << 10;

/// A process: its number, and when it began, since numbers are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    start: u64,
}

impl Process {
    /// One that lives; the dead who wait to be buried are none.
    pub(super) fn of(pid: u32) -> Option<Self> {
        let stat = Files::below(Path::new("/")).text(&format!("proc/{pid}/stat"))?;
        // The name in brackets may have anything in it.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?;
        let start = fields.nth(18)?.parse().ok()?;
        (!matches!(state, "Z" | "X")).then_some(Self { pid, start })
    }

    fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }
}

#[derive(Clone, Debug)]
struct Flight {
    process: Option<Process>,
    since: Instant,
    /// What it was doing last.
    doing: String,
    /// Its deadline has passed.
    is_late: bool,
    /// Somebody waits for it.
    is_owned: bool,
}

impl Flight {
    fn is_over(&self) -> bool {
        !self.is_owned && !self.process.is_some_and(Process::is_alive)
    }

    fn is_stuck(&self) -> bool {
        self.is_late || !self.is_owned && self.since.elapsed() > LEFT
    }

    fn words(&self) -> String {
        let who = self.process.map_or_else(|| "a helper".to_owned(), |process| format!("helper {}", process.pid));
        let doing = if self.doing.is_empty() { String::new() } else { format!(" ({})", self.doing) };
        let seconds = self.since.elapsed().as_secs();
        match self.is_stuck() {
            true => format!(
                "{who} hangs in the kernel since {seconds} s{doing} and cannot be ended: the host has to be rebooted"
            ),
            false => format!("its driver is being changed: {who} is at it since {seconds} s{doing}"),
        }
    }
}

/// The table.
#[derive(Debug, Default)]
pub(super) struct Flights {
    slots: Mutex<HashMap<PciAddress, Flight>>,
    is_adopted: OnceLock<()>,
}

impl Flights {
    /// Looks, once, for helpers that an earlier manager left. Blocks as long as it takes to go through `/proc`.
    pub(super) fn adopt(&self, root: &Path) {
        self.is_adopted.get_or_init(|| {
            for (process, slots) in leftovers(root) {
                for slot in slots {
                    let doing = "started by an earlier manager".to_owned();
                    let (since, is_late, is_owned) = (Instant::now(), false, false);
                    let flight = Flight { process: Some(process), since, doing, is_late, is_owned };
                    self.table().entry(slot).or_insert(flight);
                }
            }
        });
    }

    pub(super) fn is_adopted(&self) -> bool {
        self.is_adopted.get().is_some()
    }

    /// Begins a change of these slots, all or none.
    pub(super) fn begin(self: &Arc<Self>, addresses: &[PciAddress]) -> Result<Taken, BindError> {
        let slots: BTreeSet<PciAddress> = addresses.iter().copied().map(slot).collect();
        let mut table = self.table();
        table.retain(|_, flight| !flight.is_over());
        for slot in &slots {
            if let Some(flight) = table.get(slot) {
                let text = format!("{slot}: {}", flight.words());
                return Err(if flight.is_stuck() { BindError::Stuck(text) } else { BindError::Transient(text) });
            }
        }
        let (since, doing) = (Instant::now(), String::new());
        let flight = Flight { process: None, since, doing, is_late: false, is_owned: true };
        table.extend(slots.iter().map(|slot| (*slot, flight.clone())));
        drop(table);
        Ok(Taken { flights: Arc::clone(self), slots })
    }

    /// The slots that must be let alone, and why.
    pub(super) fn hanging(&self) -> Hanging {
        let mut table = self.table();
        table.retain(|_, flight| !flight.is_over());
        // Before its helper runs, nothing can hang.
        let running = table.iter().filter(|(_, flight)| flight.process.is_some());
        running.map(|(slot, flight)| (*slot, flight.words())).collect::<BTreeMap<_, _>>()
    }

    fn table(&self) -> MutexGuard<'_, HashMap<PciAddress, Flight>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A change in flight. When it is dropped, its slots are free as soon as its helper is gone.
#[derive(Debug)]
pub(super) struct Taken {
    flights: Arc<Flights>,
    slots: BTreeSet<PciAddress>,
}

impl Taken {
    fn change(&self, change: impl Fn(&mut Flight)) {
        let mut table = self.flights.table();
        for slot in &self.slots {
            if let Some(flight) = table.get_mut(slot) {
                change(flight);
            }
        }
    }

    pub(super) fn runs(&self, process: Option<Process>) {
        self.change(|flight| (flight.process, flight.since) = (process, Instant::now()));
    }

    pub(super) fn does(&self, doing: &str) {
        self.change(|flight| flight.doing = doing.to_owned());
    }

    /// Its deadline has passed.
    pub(super) fn sticks(&self) {
        self.change(|flight| flight.is_late = true);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.change(|flight| flight.is_owned = false);
    }
}

/// Helpers of this user below this root, each with its slots.
fn leftovers(root: &Path) -> Vec<(Process, BTreeSet<PciAddress>)> {
    let own = nix::unistd::Uid::effective().as_raw();
    let names = Files::below(Path::new("/")).names("proc", usize::MAX).unwrap_or_default();
    let pids = names.iter().filter_map(|name| name.parse::<u32>().ok());
    let helper = |pid: u32| {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        // Anybody may call a process anything.
        if std::fs::metadata(&folder).ok()?.uid() != own {
            return None;
        }
        let slots = slots_of(root, &files::start_of(&folder.join("cmdline"), MAX_COMMAND_LINE)?)?;
        Some((Process::of(pid)?, slots))
    };
    pids.filter_map(helper).collect()
}

/// The slots on a helper's command line, where it is one.
fn slots_of(root: &Path, command_line: &[u8]) -> Option<BTreeSet<PciAddress>> {
    let mut words = command_line.split(|byte| *byte == 0).filter_map(|word| std::str::from_utf8(word).ok()).skip(1);
    let verbs = [
        "bind",
        "restore",
        "make-vgpu",
        "remove-vgpu",
        "reset-function",
        "set-functions",
        "set-mig",
        "reset",
        "make-instance",
        "remove-instance",
    ];
    if words.next()? != "helper" || !verbs.contains(&words.next()?) {
        return None;
    }
    let words: Vec<&str> = words.collect();
    let is_here = words.windows(2).any(|pair| matches!(pair, ["--root", at] if Path::new(at) == root));
    let of_site = |word: &str| Some(word.parse::<VgpuSite>().ok()?.parent);
    let of_restore = |word: &str| Some(word.parse::<Restore>().ok()?.address);
    let address = |word: &&str| of_site(word).or_else(|| of_restore(word)).map(slot);
    is_here.then(|| words.iter().filter_map(address).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> PciAddress {
        text.parse().unwrap()
    }

    #[test]
    fn a_slot_is_changed_by_one_at_a_time() {
        let flights = Arc::new(Flights::default());
        let taken = flights.begin(&[at("0000:41:00.0"), at("0000:41:00.1")]).unwrap();
        assert!(matches!(flights.begin(&[at("0000:41:00.1")]), Err(BindError::Transient(_))));
        let other = flights.begin(&[at("0000:42:00.0")]).unwrap();
        assert!(flights.begin(&[at("0000:43:00.0"), at("0000:42:00.0")]).is_err());
        assert!(flights.begin(&[at("0000:43:00.0")]).is_ok(), "all or none");
        drop((taken, other));
        assert!(flights.begin(&[at("0000:41:00.0")]).is_ok());
        assert!(flights.hanging().is_empty());
    }

    #[test]
    fn a_helper_that_does_not_go_away_keeps_its_slot() {
        let flights = Arc::new(Flights::default());
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let taken = flights.begin(&[at("0000:41:00.1")]).unwrap();
        taken.runs(Process::of(child.id()));
        taken.does("0000:41:00.1: writing 0000:41:00.1 to /x");
        taken.sticks();
        drop(taken);
        let error = flights.begin(&[at("0000:41:00.0")]).unwrap_err();
        assert!(matches!(&error, BindError::Stuck(text) if text.contains("to /x") && text.contains("rebooted")));
        assert_eq!(flights.hanging().keys().copied().collect::<Vec<_>>(), [at("0000:41:00.0")]);
        child.kill().unwrap();
        let pid = child.id();
        while Process::of(pid).is_some() {
            std::thread::sleep(Duration::from_millis(5));
        }
        // Dead and not buried: that is gone as well.
        assert!(flights.hanging().is_empty());
        assert!(flights.begin(&[at("0000:41:00.0")]).is_ok());
        child.wait().unwrap();
    }

    #[test]
    fn helpers_are_known_by_their_command_line() {
        let check = |line: &str| {
            let slots = slots_of(Path::new("/"), line.replace(' ', "\0").as_bytes());
            slots.map(|slots| slots.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let line = "/usr/bin/gvm helper bind --root / --patience-ms 25000 0000:41:00.0 0000:41:00.1";
        assert_eq!(check(line).unwrap(), ["0000:41:00.0"]);
        assert_eq!(check("gvm helper restore --root / 10000:e1:00.1=nvidia").unwrap(), ["10000:e1:00.0"]);
        let site = "0000:c8:00.4/c2177883-f1bb-47f0-914d-32a22e3a8804";
        assert_eq!(check(&format!("gvm helper make-vgpu --root / {site} A2-4Q")).unwrap(), ["0000:c8:00.0"]);
        assert_eq!(check("gvm helper remove-vgpu --root / 0000:c8:01.4 L40S-4Q").unwrap(), ["0000:c8:01.0"]);
        assert_eq!(check("gvm helper reset-function --root / -- 0000:41:00.0").unwrap(), ["0000:41:00.0"]);
        for other in ["gvm serve", "gvm helper bind --root /x 0000:41:00.0", "gvm helper", "grep helper bind"] {
            assert_eq!(check(other), None, "{other}");
        }
    }
}
