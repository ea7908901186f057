//! Facts of a host that decisions are made of.

use serde::{Deserialize, Serialize};

use super::units::Mib;

/// What runs guest code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Accelerator {
    /// Hardware virtualisation, proven by running an ordinary kernel.
    Kvm,
    /// Software emulation: correct but many times slower.
    Emulation {
        /// Why KVM cannot be used, in plain words.
        why: String,
    },
}

impl Accelerator {
    /// True for KVM.
    pub const fn is_kvm(&self) -> bool {
        matches!(self, Self::Kvm)
    }
}

/// Capacity for admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Memory of the host.
    pub memory: Mib,
    /// Memory kept for the host itself.
    pub reserve: Mib,
    /// Logical CPUs.
    pub cpus: u32,
}
