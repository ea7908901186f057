//! The real thing: `gvm serve`, `gvm gateway` and the command line on a real libvirtd with real guests, in private hosts.
//!
//! Wanted with `GVM_E2E=libvirt`; the kill tests need the cargo feature `hold` as well.

mod behind;
mod database;
mod debian;
mod input;
#[cfg(feature = "hold")]
mod kill;
mod member;
mod outage;
mod people;
mod space;
mod story;
