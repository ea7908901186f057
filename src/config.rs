//! The one configuration file, `/etc/gvm/gvm.toml`. Unknown keys are refused; every key has a default.

mod access;
mod login;
mod people;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use self::access::{HttpsConfig, TokensConfig};
pub use self::login::{LdapConfig, LoginConfig, OidcConfig, PamConfig};
pub use self::people::{PeopleConfig, UTC};
use crate::model::gpu::VgpuPolicy;
use crate::model::network::Subnet;
use crate::model::pci::PciAddress;

/// Where the file is looked for.
pub const DEFAULT_PATH: &str = "/etc/gvm/gvm.toml";

/// Everything an administrator can set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The manager.
    pub manager: ManagerConfig,
    /// The SSH gateway.
    pub gateway: GatewayConfig,
    /// The members' network.
    pub network: NetworkConfig,
    /// Who administers, and what a member may hold.
    pub people: PeopleConfig,
    /// The API over the network.
    pub https: HttpsConfig,
    /// API tokens.
    pub tokens: TokensConfig,
    /// The cards.
    pub gpu: GpuConfig,
    /// Services that vouch for who somebody is.
    pub login: LoginConfig,
    /// The record.
    pub audit: AuditConfig,
}

/// The manager's part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ManagerConfig {
    /// Database, disks, images. Its folders must be passable for QEMU's user (o+x).
    pub state_dir: PathBuf,
    /// The API's unix socket.
    pub socket: PathBuf,
    /// Profiles and templates that override the built-in ones (`profiles/*.toml`, `templates/*`).
    pub config_dir: PathBuf,
    /// libvirt connection.
    pub libvirt_uri: String,
    /// Seconds that a guest has to shut down before it is forced off.
    pub stop_grace_seconds: u64,
    /// Seconds that a deleted machine can be undeleted.
    pub undelete_seconds: u64,
    /// Seconds between two looks at everything.
    pub tick_seconds: u64,
    /// Memory kept for the host itself, MiB.
    pub reserve_memory_mib: u64,
    /// Failed tries of one change before it is given up.
    pub max_attempts: u32,
    /// Use this accelerator without probing: `kvm` or `emulation`; absent means find out by running.
    pub accelerator: Option<String>,
    /// Unix group whose members may use the socket; absent leaves the group as it is.
    pub socket_group: Option<String>,
    /// Requests in a second of one account on the socket; root and the gateway have no limit.
    pub requests_per_second: u32,
}

impl Default for ManagerConfig {
    fn default() -> Self {
        Self {
            state_dir: "/var/lib/gvm".into(),
            socket: "/run/gvm/api.sock".into(),
            config_dir: "/etc/gvm".into(),
            libvirt_uri: "qemu:///system".to_owned(),
            stop_grace_seconds: 60,
            undelete_seconds: 24 * 3600,
            tick_seconds: 30,
            reserve_memory_mib: 1024,
            max_attempts: 8,
            accelerator: None,
            socket_group: Some("gvm".to_owned()),
            requests_per_second: 1000,
        }
    }
}

/// The gateway's part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GatewayConfig {
    /// Where it listens.
    pub listen: SocketAddr,
    /// The name that members type; also in `gvm ssh-config`.
    pub host: String,
    /// Its private host key; made at the first start where missing.
    pub host_key: PathBuf,
    /// The service account, allowed to ask the manager where a key leads.
    pub user: String,
    /// Files with the public keys of authorities whose OpenSSH certificates let members in; the gateway reads them
    /// again when they change.
    pub user_ca: Vec<PathBuf>,
    /// File that lists keys and certificates that are good no more; the gateway reads it again when it changes.
    pub revoked_keys: Option<PathBuf>,
    /// Connections at once, before authentication.
    pub max_unauthenticated: usize,
    /// Connections at once.
    pub max_connections: usize,
    /// Connections at once from one address.
    pub max_per_address: usize,
    /// Channels at once on one connection.
    pub max_channels: usize,
    /// Seconds to authenticate in.
    pub login_grace_seconds: u64,
    /// Seconds without any data after which a connection is closed; 0 means never.
    pub idle_seconds: u64,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 2222),
            host: "localhost".to_owned(),
            host_key: "/var/lib/gvm-gateway/host_ed25519".into(),
            user: "gvm-gateway".to_owned(),
            user_ca: Vec::new(),
            revoked_keys: None,
            max_unauthenticated: 64,
            max_connections: 1024,
            max_per_address: 256,
            max_channels: 64,
            login_grace_seconds: 30,
            idle_seconds: 0,
        }
    }
}

/// The members' network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkConfig {
    /// libvirt's name of it.
    pub name: String,
    /// Bridge device, at most 15 bytes.
    pub bridge: String,
    /// Addresses; the first is the host's.
    pub subnet: Subnet,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        // The literal is checked by a test; the fallback cannot be reached.
        let subnet = "10.77.0.0/20".parse();
        Self {
            name: "gvm".to_owned(),
            bridge: "gvmbr0".to_owned(),
            subnet: subnet.unwrap_or_else(|_| unreachable!("a constant that a test parses")),
        }
    }
}

/// The cards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GpuConfig {
    /// Addresses of the cards that gvm hands out; absent means all. Others are shown and never touched.
    pub managed: Option<BTreeSet<PciAddress>>,
    /// Cards that the firmware chose for the host's screen and that are handed out all the same.
    pub boot_displays: BTreeSet<PciAddress>,
    /// NVIDIA's management library; absent means the system's.
    pub nvml: Option<PathBuf>,
    /// The folder that stands for `/` where cards are looked for, for trying gvm on a host without any; absent means `/`.
    pub root: Option<PathBuf>,
    /// Seconds that the kernel has to take one function from its driver or to give it back.
    pub bind_seconds: Option<u64>,
    /// Numbers of Xid in the kernel's log that are not heeded.
    pub ignore_xids: BTreeSet<u32>,
    /// Program and arguments that sanitise a whole card between two machines, in place of a reset; `{address}` stands for
    /// the card's PCI address.
    pub sanitise_command: Vec<String>,
    /// Seconds that it has; absent means 300.
    pub sanitise_seconds: Option<u64>,
    /// To which card the next vGPU goes that several have room for.
    pub vgpu_policy: VgpuPolicy,
}

/// The record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuditConfig {
    /// Minutes between two signed heads; one is signed at the end of the manager as well, and after a thousand entries.
    pub sign_every: u64,
}

impl Default for AuditConfig {
    fn default() -> Self {
        Self { sign_every: 10 }
    }
}

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// Cannot be understood.
    #[error("{path} is not usable:\n{problem}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// With line and column.
        problem: String,
    },
    /// A value is out of range.
    #[error("{path}: {key}: {problem}")]
    Value {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// What would be accepted.
        problem: String,
    },
}

impl Config {
    /// Reads the file at `path`. A missing file at the default place means all defaults; a missing file that
    /// was named is an error.
    ///
    /// # Errors
    /// Says file, line and key of what is wrong.
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        let named = path.unwrap_or(Path::new(DEFAULT_PATH));
        let text = match std::fs::read_to_string(named) {
            Ok(text) => text,
            Err(e) if path.is_none() && e.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(ConfigError::Read { path: named.to_owned(), source }),
        };
        Self::parse(&text, named)
    }

    /// Parses and checks; `path` is for messages.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let config: Self =
            toml::from_str(text).map_err(|e| ConfigError::Parse { path: path.to_owned(), problem: e.to_string() })?;
        config.check().map_err(|(key, problem)| ConfigError::Value { path: path.to_owned(), key, problem })?;
        Ok(config)
    }

    fn check(&self) -> Result<(), (&'static str, String)> {
        let word = |text: &str, max: usize| {
            let ok = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
            !text.is_empty() && text.len() <= max && text.bytes().all(ok)
        };
        if !word(&self.network.name, 50) {
            return Err(("network.name", "use 1 to 50 letters, digits, -, _ or .".to_owned()));
        }
        if !word(&self.network.bridge, 15) {
            return Err(("network.bridge", "use 1 to 15 letters, digits, -, _ or .".to_owned()));
        }
        if let Some(other) = self.manager.accelerator.as_deref().filter(|a| !["kvm", "emulation"].contains(a)) {
            return Err((
                "manager.accelerator",
                format!("{other:?} is not known; use \"kvm\" or \"emulation\", or leave it out"),
            ));
        }
        self.check_numbers().and_then(|()| self.login.check())?;
        let zone = &self.people.zone;
        if zone != UTC && jiff::tz::TimeZone::get(zone).is_err() {
            let problem = format!("{zone:?} is no time zone of this host; use UTC, or one like Europe/Madrid (tzdata)");
            return Err(("people.zone", problem));
        }
        if !word(&self.gateway.host, 253) && self.gateway.host.parse::<IpAddr>().is_err() {
            return Err(("gateway.host", format!("{:?} is neither a host name nor an address", self.gateway.host)));
        }
        for (key, path) in [
            ("manager.state_dir", &self.manager.state_dir),
            ("manager.socket", &self.manager.socket),
            ("manager.config_dir", &self.manager.config_dir),
            ("gateway.host_key", &self.gateway.host_key),
        ] {
            if !path.is_absolute() {
                return Err((key, format!("{} is not an absolute path", path.display())));
            }
        }
        if self.https.certificate.is_some() != self.https.key.is_some() {
            return Err((
                "https.certificate",
                "a certificate and its key go together; set https.key as well".to_owned(),
            ));
        }
        if let Some(name) = self.https.names.iter().find(|name| !word(name, 253) && name.parse::<IpAddr>().is_err()) {
            return Err(("https.names", format!("{name:?} is neither a host name nor an address")));
        }
        for (key, path) in (self.gateway.user_ca.iter().map(|path| ("gateway.user_ca", path)))
            .chain(self.gateway.revoked_keys.iter().map(|path| ("gateway.revoked_keys", path)))
        {
            if !path.is_absolute() {
                return Err((key, format!("{} is not an absolute path", path.display())));
            }
        }
        if let Some(program) = self.gpu.sanitise_command.first().filter(|program| !program.starts_with('/')) {
            return Err(("gpu.sanitise_command", format!("{program:?} is not the absolute path of a program")));
        }
        Ok(())
    }

    fn check_numbers(&self) -> Result<(), (&'static str, String)> {
        const YEAR: u64 = 366 * 24 * 3600;
        // More than the kernel gives one process.
        const MANY: u64 = 1_000_000;
        let (manager, gateway, https) = (&self.manager, &self.gateway, &self.https);
        let count = |value: usize| u64::try_from(value).unwrap_or(u64::MAX);
        for (key, value, min, max) in [
            ("manager.tick_seconds", manager.tick_seconds, 1, 3600),
            ("manager.stop_grace_seconds", manager.stop_grace_seconds, 0, 24 * 3600),
            ("manager.undelete_seconds", manager.undelete_seconds, 0, 10 * YEAR),
            ("manager.max_attempts", manager.max_attempts.into(), 1, MANY),
            ("manager.requests_per_second", manager.requests_per_second.into(), 1, MANY),
            ("https.max_connections", count(https.max_connections), 1, MANY),
            ("https.max_per_address", count(https.max_per_address), 1, MANY),
            ("https.handshake_seconds", https.handshake_seconds, 1, 600),
            ("https.idle_seconds", https.idle_seconds, 1, 3600),
            ("https.requests_per_second", https.requests_per_second.into(), 1, MANY),
            ("https.person_requests_per_second", https.person_requests_per_second.into(), 1, MANY),
            ("tokens.default_days", self.tokens.default_days, 1, 10 * 366),
            ("tokens.max_days", self.tokens.max_days, 1, 10 * 366),
            ("tokens.session_hours", self.tokens.session_hours, 1, 24 * 366),
            ("audit.sign_every", self.audit.sign_every, 1, 7 * 24 * 60),
            ("gpu.bind_seconds", self.gpu.bind_seconds.unwrap_or(1), 1, 600),
            ("gpu.sanitise_seconds", self.gpu.sanitise_seconds.unwrap_or(1), 1, 24 * 3600),
            ("gateway.max_unauthenticated", count(gateway.max_unauthenticated), 1, MANY),
            ("gateway.max_connections", count(gateway.max_connections), 1, MANY),
            ("gateway.max_per_address", count(gateway.max_per_address), 1, MANY),
            ("gateway.max_channels", count(gateway.max_channels), 1, MANY),
            ("gateway.login_grace_seconds", gateway.login_grace_seconds, 1, 3600),
            ("gateway.idle_seconds", gateway.idle_seconds, 0, YEAR),
        ] {
            if !(min..=max).contains(&value) {
                return Err((key, format!("{value} is not usable; use {min} to {max}")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> String {
        Config::parse(text, Path::new("gvm.toml")).unwrap_err().to_string()
    }

    #[test]
    fn an_empty_file_means_the_defaults() {
        assert_eq!(Config::parse("", Path::new("x")).unwrap(), Config::default());
        assert_eq!(Config::default().network.subnet.to_string(), "10.77.0.0/20");
    }

    #[test]
    fn faults_name_the_key() {
        assert!(fault("[manager]\nsokcet = '/x'").contains("unknown field `sokcet`"));
        assert!(fault("[manager]\nsocket = 'x'").contains("manager.socket: x is not an absolute path"));
        assert!(fault("[network]\nbridge = 'much-too-long-for-linux'").contains("network.bridge"));
        assert!(fault("[manager]\naccelerator = 'xen'").contains("manager.accelerator"));
        assert!(
            fault("[manager]\nstop_grace_seconds = 99999999999").contains("manager.stop_grace_seconds: 99999999999")
        );
        assert!(fault("[gateway]\nmax_channels = 0").contains("gateway.max_channels: 0 is not usable; use 1 to"));
        assert!(fault("[gateway]\nhost = 'a b'").contains("gateway.host: \"a b\""));
        assert!(fault("[gateway]\nhost = ''").contains("gateway.host"));
        assert!(fault("[gpu]\nsanitise_command = ['scrub']").contains("gpu.sanitise_command: \"scrub\" is not"));
        assert!(fault("[gpu]\nsanitise_seconds = 0").contains("gpu.sanitise_seconds: 0 is not usable; use 1 to"));
    }
}
