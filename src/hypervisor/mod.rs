//! The port to what runs virtual machines, and its two implementations.
//!
//! ```text
//!   manager --(DomainSpec, LiveChange)--> [dyn Hypervisor] --> libvirt.rs   real
//!           <--(Observed, events)--------                  --> fake.rs      in memory, with faults
//! ```
//!
//! The port speaks in model terms: no XML, no flags and no `virt` type crosses it. Only this folder names
//! `virt` and `quick_xml`, and `quick_xml` only in `xml.rs` and below. `unsafe` is used in `raw.rs` and `events.rs`
//! alone, for the calls of libvirt that `virt` does not wrap.

mod events;
pub mod fake;
pub mod libvirt;
mod raw;
mod wake;
mod xml;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::model::caps::Caps;
use crate::model::gpu::HostDevice;
use crate::model::host::Accelerator;
use crate::model::id::VmId;
use crate::model::image::DiskFormat;
use crate::model::network::{GuestAddress, MacAddress, NetworkSpec};
use crate::model::state::{Observed, ObservedDomain};
use crate::model::units::Mib;

/// What kind of failure it is: all that the planner looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// It may work later: daemon away, deadline passed, busy.
    Transient,
    /// The domain or object is not there.
    NotFound,
    /// It is there already, or not in a state for this.
    Conflict,
    /// The request itself is wrong.
    Invalid,
    /// It will not work until somebody changes the host.
    Permanent,
}

/// A failed call of the hypervisor.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{doing}: {message}")]
pub struct HypervisorError {
    /// What kind.
    pub kind: ErrorKind,
    /// What was being done, such as `defining domain gvm-...`.
    pub doing: String,
    /// What the hypervisor said, or what it means in plain words where that is known.
    pub message: String,
}

/// Devices that can be plugged into a machine while it runs, counted by their functions: libvirt plugs one into each port.
pub const PLUG_PORTS: u8 = 4;

/// Shorthand for results of the port.
pub type Result<T> = std::result::Result<T, HypervisorError>;

/// Everything that a domain is rendered from. The same spec gives the same description, byte for byte.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainSpec {
    /// The machine; the domain's UUID and, with `gvm-` before it, its name.
    pub id: VmId,
    /// The owner's label, free of markup meaning; goes into `<title>`.
    pub title: String,
    /// The owner's login, into our metadata for administrators who look with virsh.
    pub owner: String,
    /// The profile, into our metadata.
    pub profile: String,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// Up to so many may be plugged while it runs; at least `vcpus`.
    pub max_vcpus: u32,
    /// Memory.
    pub memory: Mib,
    /// Up to so much may be plugged while it runs; `None` where memory cannot be plugged (host devices, no ACPI guest).
    pub max_memory: Option<Mib>,
    /// Hardware virtualisation or emulation.
    pub accelerator: Accelerator,
    /// How it boots.
    pub firmware: Firmware,
    /// Disks in the order vda, vdb, ...
    pub disks: Vec<DomainDisk>,
    /// Its network card, where the network exists.
    pub nic: Option<DomainNic>,
    /// Host devices in the order of their root ports.
    pub hostdevs: Vec<HostDevice>,
    /// NUMA node that CPU and memory stay on.
    pub numa_node: Option<u32>,
    /// The least window for 64-bit BARs that the firmware is told, a power of two; `None` where its own choice does.
    pub mmio64: Option<Mib>,
    /// Size of the huge pages that hold its memory; `None` for ordinary ones.
    pub huge_page: Option<Mib>,
    /// TPM 2.0 by swtpm.
    pub tpm: bool,
    /// VNC through a descriptor of libvirt, no port.
    pub graphics: bool,
    /// Where the serial line is recorded.
    pub serial_log: PathBuf,
    /// Limits.
    pub caps: Caps,
}

impl HypervisorError {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, doing: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind, doing: doing.into(), message: message.into() }
    }
}

impl DomainSpec {
    /// A digest of everything that only a new definition can change, kept in the domain's metadata.
    ///
    /// Left out are what is read back by itself (vCPUs, memory, caps), the title, which is a label, and the
    /// reason of emulation, which is words: changing one of them must not make a running machine look stale.
    pub fn shape(&self) -> String {
        let mut fixed = self.clone();
        fixed.title.clear();
        fixed.vcpus = 0;
        fixed.memory = Mib(0);
        fixed.caps = Caps::default();
        if let Accelerator::Emulation { why } = &mut fixed.accelerator {
            why.clear();
        }
        let text = serde_json::to_vec(&fixed).unwrap_or_default();
        let digest = Sha256::digest(&text);
        hex::encode(digest.get(..8).unwrap_or_default())
    }

    /// True where the domain is as this spec wants it: defining it anew would change nothing but its title.
    pub fn is_met_by(&self, observed: &ObservedDomain) -> bool {
        observed.shape == self.shape()
            && observed.caps == self.caps
            && observed.vcpus == self.vcpus
            && observed.memory == self.memory
    }
}

/// How a domain boots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Firmware {
    /// UEFI.
    Uefi {
        /// With Microsoft's keys enrolled and enforced.
        secure_boot: bool,
    },
    /// Direct kernel boot.
    Kernel {
        /// Kernel file.
        kernel: PathBuf,
        /// Initrd file.
        initrd: PathBuf,
        /// Arguments.
        cmdline: String,
    },
    /// SeaBIOS that writes to the serial line and finds nothing to boot.
    Firmware,
}

/// A disk of a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainDisk {
    /// The file.
    pub path: PathBuf,
    /// Its format.
    pub format: DiskFormat,
    /// The file it is an overlay of, with that one's format; stated so that libvirt need not guess.
    pub backing: Option<(PathBuf, DiskFormat)>,
    /// Attached read-only (the seed).
    pub is_read_only: bool,
    /// Serial number the guest sees, such as `root`.
    pub serial: String,
}

/// A network card of a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainNic {
    /// Address on the wire.
    pub mac: MacAddress,
    /// libvirt network.
    pub network: String,
    /// The only IPv4 address it may use (nwfilter `clean-traffic`).
    pub address: GuestAddress,
    /// Attach the anti-spoofing filter; false where the host cannot.
    pub is_filtered: bool,
}

/// A change of a running machine (and of its definition).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LiveChange {
    /// All limits as given; `None` lifts one.
    Caps(Caps),
    /// Number of vCPUs, up to the maximum it was defined with.
    Vcpus(u32),
    /// Memory, up to the maximum it was defined with.
    Memory(Mib),
    /// Size of the root disk; only ever larger.
    RootDisk(Mib),
}

/// What the hypervisor is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HypervisorFacts {
    /// Connection URI, for messages and for virsh.
    pub uri: String,
    /// libvirt's version, such as `11.3.0`.
    pub libvirt_version: String,
    /// QEMU's version.
    pub qemu_version: String,
    /// Memory of the host.
    pub memory: Mib,
    /// Logical CPUs of the host.
    pub cpus: u32,
    /// Versioned q35 machine type that a new domain gets.
    pub machine: String,
}

/// Numbers of a running machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainStats {
    /// CPU time used since start, nanoseconds.
    pub cpu_time_ns: u64,
    /// Resident memory of QEMU, KiB.
    pub rss_kib: u64,
    /// Bytes read from disks since start.
    pub disk_read_bytes: u64,
    /// Bytes written to disks since start.
    pub disk_write_bytes: u64,
    /// Bytes received since start.
    pub net_rx_bytes: u64,
    /// Bytes sent since start.
    pub net_tx_bytes: u64,
}

/// The verdict on a description that is not defined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainVerdict {
    /// The rendered description.
    pub xml: String,
    /// QEMU's command line for it (`virsh domxml-to-native qemu-argv`), where libvirt could convert it.
    pub native: std::result::Result<String, String>,
    /// Difference between the built-in template and the administrator's, empty where there is none.
    pub template_diff: String,
}

/// A two-way byte stream, such as a serial line.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Something changed: look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// This machine.
    Vm(VmId),
    /// Everything: the connection was lost or regained, or events were dropped.
    All,
}

/// What runs virtual machines. Every call has a deadline of its own inside the implementation.
///
/// All calls that change something are `ensure`-like: repeated, they succeed and change nothing.
#[async_trait]
pub trait Hypervisor: Send + Sync + fmt::Debug {
    /// What it is.
    async fn facts(&self) -> Result<HypervisorFacts>;

    /// All domains that carry our id. An `Err` means that nothing may be concluded.
    async fn observe_all(&self) -> Result<Vec<(VmId, Observed)>>;

    /// One machine; failures to ask are `Observed::Unknown`.
    async fn observe(&self, vm: VmId) -> Observed;

    /// Names of domains that look like ours (`gvm-...`) but carry no or another id; never touched.
    async fn strangers(&self) -> Result<Vec<String>>;

    /// Renders and validates a description against libvirt's schema without leaving anything defined.
    async fn check(&self, spec: &DomainSpec) -> Result<DomainVerdict>;

    /// Defines the domain, or defines it anew where it is off. Success where it is active in the same shape;
    /// `Conflict` where it is active in another one, or where a stranger holds its name or UUID.
    async fn define(&self, spec: &DomainSpec) -> Result<()>;

    /// Starts a defined domain. Success where it is active already (running, paused or shutting down).
    async fn start(&self, vm: VmId) -> Result<()>;

    /// Asks the guest to shut down: by the power button, and by its guest agent too where that is connected. Returns
    /// once the request was handed over; asking again is the caller's part. Success where it is off.
    async fn shutdown(&self, vm: VmId) -> Result<()>;

    /// Ends it at once. Success where it is off or missing.
    async fn force_off(&self, vm: VmId) -> Result<()>;

    /// Holds the vCPUs. `Conflict` where it is off.
    async fn pause(&self, vm: VmId) -> Result<()>;

    /// Lets the vCPUs go on. `Conflict` where it is off.
    async fn resume(&self, vm: VmId) -> Result<()>;

    /// Removes the definition with its firmware variables, TPM state, snapshots' metadata. Success where missing;
    /// `Conflict` where it is active.
    async fn undefine(&self, vm: VmId) -> Result<()>;

    /// Changes an active machine and its definition.
    ///
    /// Where it is off: caps and vCPUs change the definition; memory and root disk are `Conflict` (define it anew;
    /// resize the image file). Where it is active, what cannot be done without a restart is `Conflict` and says so:
    /// less memory, more than its maximum, memory in other than 128 MiB steps, a smaller disk.
    async fn apply(&self, vm: VmId, change: &LiveChange) -> Result<()>;

    /// Plugs host devices into an active machine, one into each spare port; its definition stays as it is. Those that it
    /// has are left alone, so that what was plugged in part is completed. `Conflict` where it is off, or has fewer free
    /// ports ([`PLUG_PORTS`] at its start) than devices are missing; then nothing is plugged.
    async fn attach_devices(&self, vm: VmId, devices: &[HostDevice]) -> Result<()>;

    /// The size of the root disk as the hypervisor sees it; `NotFound` where the machine has none.
    async fn root_disk_size(&self, vm: VmId) -> Result<Mib>;

    /// Makes the members' network exist and be active. `Conflict` where its name or bridge is taken by another.
    async fn ensure_network(&self, network: &NetworkSpec) -> Result<()>;

    /// Makes the network hand this address to this card. `Conflict` where another card has it.
    async fn ensure_host_entry(&self, network: &str, mac: MacAddress, address: GuestAddress, name: &str) -> Result<()>;

    /// Forgets an entry of [`Self::ensure_host_entry`]. Success where there is none, or no such network.
    async fn ensure_host_entry_gone(&self, network: &str, mac: MacAddress) -> Result<()>;

    /// Opens the serial line. Only one may be open; an older one is closed. `Conflict` where it is off.
    async fn console(&self, vm: VmId) -> Result<Box<dyn ByteStream>>;

    /// Numbers of a running machine. `Conflict` where it is off.
    async fn stats(&self, vm: VmId) -> Result<DomainStats>;

    /// Runs a program inside through the guest agent and waits for it; exit code and standard output.
    /// `Transient` where the agent does not answer or the program is not done within `deadline`.
    async fn guest_exec(&self, vm: VmId, argv: &[&str], deadline: Duration) -> Result<(i32, Vec<u8>)>;

    /// Takes the receiver of wake-ups; `None` after the first call. The channel is bounded; a full one turns
    /// into [`Wake::All`].
    fn wakes(&self) -> Option<mpsc::Receiver<Wake>>;
}
