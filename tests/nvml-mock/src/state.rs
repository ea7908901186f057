//! The state of all cards, in one file that many processes share.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::kinds::{self, Family, Kind};

/// The file beside the library.
pub const FILE: &str = "nvml-mock.json";

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    pub driver: String,
    pub cards: Vec<Card>,
    /// Errors that calls answer with, by the call's name; of writes, by the file's name, as errno.
    pub errors: BTreeMap<String, Fault>,
    /// Milliseconds that calls take, by the call's name; `*` for all others. Of the kernel's files, by their names.
    pub latency: BTreeMap<String, u64>,
    pub holders: Vec<Holder>,
    /// What the last program of the vendor said.
    pub said: String,
    /// Cards that the library does not list although its driver has them.
    pub dropped: Vec<String>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            driver: "580.95.05".to_owned(),
            cards: Vec::new(),
            errors: BTreeMap::new(),
            latency: BTreeMap::new(),
            holders: Vec::new(),
            said: String::new(),
            dropped: Vec::new(),
        }
    }
}

/// An error that is injected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub code: u32,
    /// Only for this card.
    #[serde(default)]
    pub card: Option<String>,
    /// So often; always where nothing is said.
    #[serde(default)]
    pub times: Option<u32>,
}

/// A process that has a node open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub pid: u32,
    pub comm: String,
    pub node: String,
}

/// How vGPUs are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Framework {
    /// The driver makes none.
    #[default]
    None,
    Vendor,
    Mdev,
}

/// One card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    pub kind: String,
    pub address: String,
    pub uuid: String,
    pub minor: u32,
    pub framework: Framework,
    pub driver: Option<String>,
    #[serde(default)]
    pub driver_override: String,
    #[serde(default)]
    pub is_persistent: bool,
    /// In force, and after the next reset.
    #[serde(default)]
    pub mig: (bool, bool),
    #[serde(default)]
    pub instances: Vec<GpuInstance>,
    #[serde(default)]
    pub functions: Vec<Function>,
    #[serde(default)]
    pub mdevs: Vec<Mdev>,
    /// Sizes may be mixed.
    #[serde(default)]
    pub is_mixed: bool,
    /// It has fallen off the bus.
    #[serde(default)]
    pub is_lost: bool,
    /// Counts resets: handles from before one mean nothing.
    #[serde(default)]
    pub epoch: u32,
    #[serde(default)]
    pub recovery: u32,
    /// Correctable, uncorrectable, pending, failed.
    #[serde(default)]
    pub remapped: Option<(u32, u32, bool, bool)>,
    #[serde(default)]
    pub clock_reasons: u64,
    /// Per cent, degrees Celsius, milliwatts.
    #[serde(default)]
    pub load: (u32, u32, u32),
    /// Milliseconds after which each next virtual function comes to its driver; none come where it is huge.
    #[serde(default)]
    pub late: u64,
    /// How often a write of 0 is refused after a vGPU was in use.
    #[serde(default)]
    pub refusals: u32,
}

/// A GPU instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInstance {
    pub id: u32,
    pub profile: u32,
    pub start: u32,
    pub size: u32,
    /// Profiles of its compute instances by their ids.
    pub compute: BTreeMap<u32, u32>,
}

/// A virtual function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Function {
    pub driver: Option<String>,
    pub driver_override: String,
    /// Milliseconds since 1970 from which on its driver is seen.
    pub bound_at: u64,
    pub vgpu: u32,
    pub instance: Option<u32>,
    /// A machine has it.
    pub is_in_use: bool,
    /// Writes of 0 that are still refused.
    pub refusals: u32,
}

/// A mediated device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mdev {
    pub uuid: String,
    pub parent: String,
    pub vgpu: u32,
    pub instance: Option<u32>,
    #[serde(default)]
    pub is_in_use: bool,
}

/// Milliseconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

impl State {
    /// Adds a card with the driver nvidia, as a host with NVIDIA's vGPU driver has it after its start.
    pub fn add(&mut self, kind: &str, address: &str) -> &mut Card {
        let number = self.cards.len() as u32;
        let framework = match kinds::kind(kind).family {
            Family::Turing => Framework::Mdev,
            _ => Framework::Vendor,
        };
        self.cards.push(Card {
            kind: kind.to_owned(),
            address: address.to_owned(),
            uuid: format!("GPU-00000000-0000-0000-0000-{:012x}", number + 1),
            minor: number,
            framework,
            driver: Some("nvidia".to_owned()),
            driver_override: String::new(),
            is_persistent: false,
            mig: (false, false),
            instances: Vec::new(),
            functions: Vec::new(),
            mdevs: Vec::new(),
            is_mixed: false,
            is_lost: false,
            epoch: 0,
            recovery: 0,
            remapped: Some((0, 0, false, false)),
            clock_reasons: 0,
            load: (0, 38, 45_000),
            late: 0,
            refusals: 0,
        });
        self.cards.last_mut().unwrap()
    }

    pub fn card(&self, address: &str) -> Option<&Card> {
        self.cards.iter().find(|card| card.address == address)
    }

    pub fn card_mut(&mut self, address: &str) -> Option<&mut Card> {
        self.cards.iter_mut().find(|card| card.address == address)
    }

    /// The card and the number of the virtual function at an address.
    pub fn function(&self, address: &str) -> Option<(usize, usize)> {
        self.cards.iter().enumerate().find_map(|(at, card)| {
            let function = (0..card.functions.len()).find(|number| card.function_address(*number) == address);
            Some((at, function?))
        })
    }
}

impl Card {
    pub fn kind(&self) -> &'static Kind {
        kinds::kind(&self.kind)
    }

    /// The first virtual function is the fifth function of the card's slot, and they go on through the slots behind it.
    pub fn function_address(&self, number: usize) -> String {
        let (slot, function) = self.address.rsplit_once('.').unwrap();
        let (bus, slot) = slot.rsplit_once(':').unwrap();
        let first = u32::from_str_radix(slot, 16).unwrap() * 8 + function.parse::<u32>().unwrap() + 4;
        let devfn = first + number as u32;
        format!("{bus}:{:02x}.{}", devfn >> 3, devfn & 7)
    }
}

impl Function {
    pub fn driver_now(&self) -> Option<&str> {
        self.driver.as_deref().filter(|_| self.bound_at <= now())
    }
}

/// What tells two versions of the file apart.
type Stamp = (u64, i64, i64, u64);

/// The file.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    last: Mutex<Option<(Stamp, Arc<State>)>>,
}

impl Store {
    /// The state in a folder.
    pub fn in_folder(folder: &Path) -> Self {
        Self::at(folder.join(FILE))
    }

    pub fn at(path: PathBuf) -> Self {
        Self { path, last: Mutex::new(None) }
    }

    /// The state as it is; what was read last where the file is the same.
    pub fn read(&self) -> io::Result<Arc<State>> {
        let meta = fs::metadata(&self.path)?;
        let stamp = (meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.size());
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, state)) = last.as_ref().filter(|(of, _)| *of == stamp) {
            return Ok(Arc::clone(state));
        }
        let state: State = serde_json::from_slice(&fs::read(&self.path)?)?;
        let state = Arc::new(state);
        *last = Some((stamp, Arc::clone(&state)));
        Ok(state)
    }

    /// Changes it, alone.
    pub fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> io::Result<T> {
        let lock = File::options().create(true).truncate(false).write(true).open(self.path.with_extension("lock"))?;
        let lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
        let before = if self.path.exists() { self.read()? } else { Arc::default() };
        let mut state = State::clone(&before);
        let answer = change(&mut state);
        if state != *before || !self.path.exists() {
            let part = self.path.with_extension("part");
            fs::write(&part, serde_json::to_vec(&state)?)?;
            fs::rename(&part, &self.path)?;
        }
        drop(lock);
        Ok(answer)
    }

    /// Takes as long as a call or a write of this name is to take.
    pub fn wait(state: &State, name: &str) {
        let wait = state.latency.get(name).or_else(|| state.latency.get("*")).copied().unwrap_or(0);
        if wait > 0 {
            std::thread::sleep(Duration::from_millis(wait));
        }
    }
}
