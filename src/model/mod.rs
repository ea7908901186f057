//! What things are: ids, names, units, virtual machines, profiles, GPUs, people.
//!
//! Pure values. No `async`, no I/O, no clock, no XML, SQL or HTTP: a decision that can be a function of
//! these types belongs in [`crate::plan`].

pub mod access;
pub mod backoff;
pub mod caps;
pub mod card;
pub mod event;
pub mod fingerprint;
pub mod gpu;
pub mod host;
pub mod id;
pub mod image;
pub mod inventory;
pub mod login;
pub mod name;
pub mod network;
pub mod pci;
pub mod principal;
pub mod profile;
pub mod quota;
pub mod record;
pub mod secret;
pub mod state;
pub mod token;
pub mod units;
pub mod vm;
