//! The port to the hypervisor: one contract for the fake, libvirt's test driver and a real libvirtd; then what only the
//! real one can show.

mod cards;
mod contract;
mod faults;
mod guest;
mod life;
mod outage;
mod samples;
