//! gvm: personal GPU computers from a shared server, over libvirt/KVM.
//!
//! The list below is the map; `docs/architecture.md` says who may use whom, and a test enforces it.

pub mod api;
#[cfg(feature = "libvirt")]
pub mod auth;
#[cfg(feature = "libvirt")]
pub mod backup;
pub mod child;
pub mod cli;
pub mod config;
#[cfg(feature = "libvirt")]
pub mod daemon;
pub mod gate;
pub mod gateway;
pub mod gpu;
pub mod helper;
#[cfg(feature = "libvirt")]
pub mod host;
#[cfg(feature = "libvirt")]
pub mod hypervisor;
#[cfg(feature = "libvirt")]
pub mod image;
#[cfg(feature = "libvirt")]
pub mod manager;
pub mod model;
#[cfg(feature = "libvirt")]
pub mod network;
pub mod plan;
#[cfg(feature = "libvirt")]
pub mod store;
pub mod telemetry;
