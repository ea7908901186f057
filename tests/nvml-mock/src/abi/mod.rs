//! The library's calls, by the names and types of `nvml.h`.
//!
//! Each call takes the time that the state says, answers the error that the state says, and else does what [`rules`]
//! say. Handles are numbers: kind, epoch of the card, card, instance, compute instance. One from before a reset is
//! refused.
//!
//! `unsafe` is what C's pointers need: whoever calls gives pointers that are null or good, as with the real library.
//!
//! [`rules`]: crate::rules
#![allow(unsafe_code, non_snake_case)]
#![allow(clippy::not_unsafe_ptr_arg_deref, clippy::missing_safety_doc, reason = "C calls it")]

mod device;
mod mig;
mod vgpu;

use std::ffi::{CStr, c_char};
use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::code;
use crate::rules::Code;
use crate::state::{Card, FILE, State, Store};

/// Where the state is.
static STORE: LazyLock<Option<Store>> = LazyLock::new(|| {
    let beside = own_file().and_then(|file| Some(file.parent()?.join(FILE))).filter(|file| file.exists());
    let told = std::env::var_os("GVM_NVML_MOCK").map(PathBuf::from);
    beside.or(told).map(Store::at)
});

/// How often it was initialised.
static USERS: AtomicU32 = AtomicU32::new(0);

/// The file that this code was loaded from: the one whose mapping it lies in.
fn own_file() -> Option<PathBuf> {
    let here = own_file as *const () as u64;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let is_here = (hex(from)?..hex(to)?).contains(&here);
        is_here.then(|| rest.find('/').map(|at| PathBuf::from(&rest[at..])))?
    })
}

/// A handle, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Handle {
    kind: u8,
    epoch: u16,
    card: u8,
    instance: u16,
    compute: u16,
}

const DEVICE: u8 = 1;
const INSTANCE: u8 = 2;
const COMPUTE: u8 = 3;

impl Handle {
    const fn number(self) -> usize {
        (self.kind as usize) << 56
            | (self.epoch as usize) << 40
            | (self.card as usize) << 32
            | (self.instance as usize) << 16
            | self.compute as usize
    }

    const fn of(number: usize) -> Self {
        Self {
            kind: (number >> 56) as u8,
            epoch: (number >> 40) as u16,
            card: (number >> 32) as u8,
            instance: (number >> 16) as u16,
            compute: number as u16,
        }
    }

    fn device(state: &State, card: usize) -> usize {
        let epoch = state.cards[card].epoch as u16;
        Self { kind: DEVICE, epoch, card: card as u8, instance: 0, compute: 0 }.number()
    }

    fn pointer<T>(self) -> *mut T {
        self.number() as *mut T
    }

    /// The card that it means.
    fn card(self, kind: u8, state: &State) -> Result<usize, Code> {
        let card = state.cards.get(self.card as usize).filter(|_| self.kind == kind).ok_or(code::INVALID_ARGUMENT)?;
        match (card.is_lost, card.epoch as u16 == self.epoch) {
            (true, _) => Err(code::GPU_IS_LOST),
            (_, false) => Err(code::INVALID_ARGUMENT),
            _ => Ok(self.card as usize),
        }
    }
}

/// Begins a call: time, and errors that are injected. For which card is known by the handle.
fn begin(name: &str, handle: Option<usize>) -> Result<&'static Store, Code> {
    let store = STORE.as_ref().ok_or(code::DRIVER_NOT_LOADED)?;
    let state = store.read().map_err(|_| code::UNKNOWN)?;
    Store::wait(&state, name);
    let address = handle.and_then(|handle| state.cards.get(Handle::of(handle).card as usize)).map(|card| &card.address);
    let is_meant = |card: &Option<String>| card.is_none() || card.as_ref() == address;
    if let Some(fault) = state.errors.get(name).filter(|fault| is_meant(&fault.card)) {
        if fault.times == Some(0) {
            return Ok(store);
        }
        let less = |state: &mut State| {
            if let Some(times) = state.errors.get_mut(name).and_then(|fault| fault.times.as_mut()) {
                *times = times.saturating_sub(1);
            }
        };
        if fault.times.is_some() {
            store.change(less).map_err(|_| code::UNKNOWN)?;
        }
        return Err(fault.code);
    }
    Ok(store)
}

fn is_initialised() -> Result<(), Code> {
    if USERS.load(Ordering::Relaxed) == 0 { Err(code::UNINITIALIZED) } else { Ok(()) }
}

fn done(result: Result<(), Code>) -> Code {
    result.err().unwrap_or(code::SUCCESS)
}

/// A call that only reads.
fn ask(name: &str, handle: Option<usize>, work: impl FnOnce(&State) -> Result<(), Code>) -> Code {
    let answer = || {
        is_initialised()?;
        let state = begin(name, handle)?.read().map_err(|_| code::UNKNOWN)?;
        work(&state)
    };
    done(answer())
}

/// A call that only reads, about one card.
fn ask_card(name: &str, device: usize, work: impl FnOnce(&Card) -> Result<(), Code>) -> Code {
    ask(name, Some(device), |state| work(&state.cards[Handle::of(device).card(DEVICE, state)?]))
}

/// A call that changes a card.
fn change_card<T>(
    name: &str,
    kind: u8,
    handle: usize,
    work: impl FnOnce(&mut Card) -> Result<T, Code>,
) -> Result<T, Code> {
    is_initialised()?;
    let store = begin(name, Some(handle))?;
    let change = |state: &mut State| {
        let card = Handle::of(handle).card(kind, state)?;
        work(&mut state.cards[card])
    };
    store.change(change).map_err(|_| code::UNKNOWN)?
}

/// Gives a value through a pointer.
fn put<T>(at: *mut T, value: T) -> Result<(), Code> {
    if at.is_null() {
        return Err(code::INVALID_ARGUMENT);
    }
    // SAFETY: see the module's doc.
    unsafe { at.write(value) };
    Ok(())
}

fn take<T: Copy>(at: *const T) -> Result<T, Code> {
    if at.is_null() {
        return Err(code::INVALID_ARGUMENT);
    }
    // SAFETY: see the module's doc.
    Ok(unsafe { at.read() })
}

/// Gives a text through a buffer.
fn put_text(at: *mut c_char, room: u32, text: &str) -> Result<(), Code> {
    if at.is_null() {
        return Err(code::INVALID_ARGUMENT);
    }
    if text.len() >= room as usize {
        return Err(code::INSUFFICIENT_SIZE);
    }
    // SAFETY: see the module's doc; the room is enough.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), at, text.len());
        at.add(text.len()).write(0);
    }
    Ok(())
}

fn take_text(at: *const c_char) -> Result<String, Code> {
    if at.is_null() {
        return Err(code::INVALID_ARGUMENT);
    }
    // SAFETY: see the module's doc.
    Ok(unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned())
}

/// Gives a list through a buffer whose room is told; the number where there is no buffer or not enough of it.
fn put_counted<T>(at: *mut T, count: *mut u32, all: Vec<T>) -> Result<(), Code> {
    let room = take(count)?;
    put(count, all.len() as u32)?;
    if (room as usize) < all.len() {
        return Err(code::INSUFFICIENT_SIZE);
    }
    put_all(at, all)
}

/// Gives a list through a buffer that is believed to be long enough.
fn put_all<T>(at: *mut T, all: Vec<T>) -> Result<(), Code> {
    for (number, one) in all.into_iter().enumerate() {
        // SAFETY: see the module's doc.
        put(if at.is_null() { at } else { unsafe { at.add(number) } }, one)?;
    }
    Ok(())
}

/// A text in a field of a structure.
fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut all = [0; N];
    for (to, from) in all.iter_mut().zip(text.bytes().take(N - 1)) {
        *to = from as c_char;
    }
    all
}
