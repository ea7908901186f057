//! The managers that one is logged in to: `~/.config/gvm/hosts.toml`, for its owner's eyes only.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::error::{CliError, CliResult};
use super::files;
use crate::api::client::place::ServerUrl;
use crate::model::fingerprint::Fingerprint;

/// Largest file that is read.
const FILE_MAX: u64 = 1 << 20;

/// What is kept of all of them.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Hosts {
    /// The one that is asked where none is named.
    pub default: Option<String>,
    /// By URL.
    pub hosts: BTreeMap<String, Host>,
}

/// What is kept of one.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Its certificate, where no public authority signed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Fingerprint>,
    /// Who one is there.
    pub token: String,
}

fn path() -> CliResult<PathBuf> {
    let base = match std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute()) {
        Some(base) => base,
        None => files::home()?.join(".config"),
    };
    Ok(base.join("gvm/hosts.toml"))
}

impl Hosts {
    /// Reads the file; none is the same as an empty one.
    ///
    /// # Errors
    /// Where it cannot be read or understood.
    pub fn load() -> CliResult<Self> {
        let path = path()?;
        if !path.exists() {
            return Ok(Self::default());
        }
        let text = files::read_text(&path, FILE_MAX)?;
        // The parser's own words would quote the line, and a token with it.
        toml::from_str(&text).map_err(|_| {
            CliError::invalid(format!("{} cannot be understood", path.display()))
                .hint("move it away and log in anew: gvm login URL")
        })
    }

    /// Writes the file.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn save(&self) -> CliResult {
        let path = path()?;
        if let Some(folder) = path.parent() {
            files::ensure_private_dir(folder)?;
        }
        let text = toml::to_string(self).map_err(|e| CliError::invalid(e.to_string()))?;
        files::write_private(&path, &text)
    }

    /// What is kept of that one.
    pub fn get(&self, url: &ServerUrl) -> Option<&Host> {
        self.hosts.get(url.as_str())
    }

    /// The one that is asked where none is named.
    pub fn usual(&self) -> Option<ServerUrl> {
        self.default.as_deref()?.parse().ok()
    }

    /// Keeps it, as the one that is asked from now on.
    pub fn put(&mut self, url: &ServerUrl, host: Host) {
        self.hosts.insert(url.to_string(), host);
        self.default = Some(url.to_string());
    }

    /// Forgets it; another one becomes the default, where there is one.
    pub fn forget(&mut self, url: &ServerUrl) -> Option<Host> {
        let gone = self.hosts.remove(url.as_str());
        if self.default.as_deref() == Some(url.as_str()) {
            self.default = self.hosts.keys().next().cloned();
        }
        gone
    }
}
