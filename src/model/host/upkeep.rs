//! What an administrator keeps in order on a host: memory pools, clock, ports, modes of folders.

use std::path::PathBuf;

/// Everything about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpkeepFacts {
    /// Pools of huge pages by node and size, empty ones left out.
    pub hugepages: Vec<HugePool>,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub transparent_hugepages: Option<String>,
    /// Memory nodes by number.
    pub nodes: Vec<NumaNode>,
    /// The clock.
    pub clock: Clock,
    /// The gateway's port.
    pub gateway_port: PortUse,
    /// Modes of the state folder and of those above it, from the top.
    pub state_path: Vec<PathMode>,
    /// The mode of the database, where there is one.
    pub database: Option<PathMode>,
    /// The mode of the folder that the API's socket is in.
    pub socket_dir: Option<PathMode>,
}

/// Huge pages of one node and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugePool {
    /// The node.
    pub node: u32,
    /// Size of a page, KiB.
    pub page_kib: u64,
    /// Pages set aside.
    pub total: u64,
    /// Pages that nobody uses.
    pub free: u64,
}

/// A memory node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// Its number.
    pub number: u32,
    /// Its CPUs as the kernel lists them; empty for memory without CPUs.
    pub cpus: String,
}

/// Whether the clock follows others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// Nobody says.
    #[default]
    Unknown,
    /// It does.
    Synchronised,
    /// It goes by itself.
    Alone,
}

/// Who listens on a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PortUse {
    /// Could not be found out.
    #[default]
    Unknown,
    /// Nobody.
    Free,
    /// Somebody.
    Taken {
        /// The program, where it may be seen.
        program: Option<String>,
        /// The account that opened it.
        user: String,
    },
}

/// A path and who may do what with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathMode {
    /// The path.
    pub path: PathBuf,
    /// Permissions, with the sticky bit.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
}

impl PathMode {
    /// True where everybody may put files in it or change it.
    pub const fn is_open(&self) -> bool {
        self.mode & 0o002 != 0 && self.mode & 0o1000 == 0
    }
}
