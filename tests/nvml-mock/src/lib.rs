//! A mock of NVIDIA's management library, and of what the kernel shows of its cards.
//!
//! ```text
//!   gvm ----dlopen----> libgvm_nvml_mock.so --+
//!                                             +--> rules --> nvml-mock.json (state of all cards), under a lock
//!   gvm --/sys, /proc--> FUSE --> tree, writes +
//! ```
//! The library is loaded as the real one is, by as many processes as like to, and keeps nothing in memory: its state is
//! the file `nvml-mock.json` beside it, or where the variable `GVM_NVML_MOCK` says. Whoever wants cards of their own
//! takes a copy of the library to a folder of their own. The same state is shown as the kernel's files ([`tree`]), and
//! what is written to those files ([`writes`]) changes what the library answers, as the driver does it.
//!
//! What cards are is published data ([`kinds`]); what nobody could check is marked `[U]` there, and no test rests on it.
//!
//! `unsafe` is used in [`abi`] alone: it is what is called through C's pointers.
#![allow(missing_docs, clippy::missing_panics_doc, reason = "a tool of the tests")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]
#![allow(missing_debug_implementations)]

pub mod abi;
pub mod kinds;
pub mod rules;
pub mod state;
pub mod tree;
pub mod writes;

/// What NVML's calls return (`nvmlReturn_t`).
pub mod code {
    pub const SUCCESS: u32 = 0;
    pub const UNINITIALIZED: u32 = 1;
    pub const INVALID_ARGUMENT: u32 = 2;
    pub const NOT_SUPPORTED: u32 = 3;
    pub const NO_PERMISSION: u32 = 4;
    pub const NOT_FOUND: u32 = 6;
    pub const INSUFFICIENT_SIZE: u32 = 7;
    pub const DRIVER_NOT_LOADED: u32 = 9;
    pub const GPU_IS_LOST: u32 = 15;
    pub const RESET_REQUIRED: u32 = 16;
    pub const IN_USE: u32 = 19;
    pub const INSUFFICIENT_RESOURCES: u32 = 23;
    pub const VERSION_MISMATCH: u32 = 25;
    pub const UNKNOWN: u32 = 999;
}
