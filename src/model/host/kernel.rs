//! What a host's kernel has for giving devices to machines, and what is in the way.

use std::path::PathBuf;

/// Everything about it. What could not be looked at is left at its "unknown".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelFacts {
    /// Who made the CPU.
    pub cpu: CpuVendor,
    /// The KVM module of this CPU.
    pub kvm: ModuleState,
    /// The IOMMU; `None` where it could not be looked at.
    pub iommu: Option<Iommu>,
    /// Those of the kernel's arguments that matter to devices of machines, as they are written.
    pub flags: Vec<String>,
    /// The driver that hands whole devices over.
    pub vfio_pci: ModuleState,
    /// `/dev/vfio/vfio` is there.
    pub has_vfio_node: bool,
    /// `/dev/iommu` is there, the newer way.
    pub has_iommufd: bool,
    /// Drivers of the firmware's screen that hold a card's memory.
    pub framebuffers: Vec<Framebuffer>,
    /// Switches of the text consoles on a frame buffer; 0 written into one lets go.
    pub consoles: Vec<PathBuf>,
    /// The open driver of NVIDIA cards is loaded.
    pub has_nouveau: bool,
    /// NVIDIA's own driver is loaded.
    pub has_nvidia: bool,
    /// UEFI secure boot of the host; `None` where there is no UEFI or it does not say.
    pub has_secure_boot: Option<bool>,
    /// Services that keep cards open.
    pub services: Vec<GpuService>,
    /// The fabric manager's mode by its configuration (1 is shared NVSwitch).
    pub fabric_mode: Option<u32>,
}

impl KernelFacts {
    /// An argument by its name: `vfio-pci.ids` finds `vfio-pci.ids=10de:20b5`.
    pub fn flag(&self, name: &str) -> Option<&str> {
        let is_it = |flag: &&String| flag.split('=').next() == Some(name);
        self.flags.iter().find(is_it).map(String::as_str)
    }
}

/// Who made the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuVendor {
    /// Somebody else, or not known.
    #[default]
    Other,
    /// Intel: VT-x, VT-d.
    Intel,
    /// AMD: AMD-V, AMD-Vi.
    Amd,
}

impl CpuVendor {
    /// The KVM module for it.
    pub const fn kvm_module(self) -> Option<&'static str> {
        match self {
            Self::Intel => Some("kvm_intel"),
            Self::Amd => Some("kvm_amd"),
            Self::Other => None,
        }
    }
}

/// How the kernel has a driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModuleState {
    /// Could not be looked at.
    #[default]
    Unknown,
    /// Loaded, or part of the kernel and at work.
    Loaded,
    /// Part of the kernel.
    BuiltIn,
    /// It can be loaded.
    Loadable,
    /// This kernel does not have it.
    Missing,
}

/// What keeps devices apart in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Iommu {
    /// Its units.
    pub units: usize,
    /// Groups of devices.
    pub groups: usize,
}

impl Iommu {
    /// True where it is at work.
    pub const fn is_on(self) -> bool {
        self.units > 0 || self.groups > 0
    }
}

/// A driver of the firmware's screen with its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Framebuffer {
    /// Such as `efi-framebuffer.0`.
    pub device: String,
    /// The file that takes the device's name to let go.
    pub unbind: PathBuf,
}

/// A service that keeps cards open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuService {
    /// Its unit.
    pub unit: String,
    /// Its process, where it was found by that.
    pub pid: Option<u32>,
}
