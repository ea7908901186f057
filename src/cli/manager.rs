//! Which manager is asked, and as whom.
//!
//! ```text
//!   --host, GVM_HOST     else     --socket, the socket     else     the last login
//!        token: GVM_TOKEN, else that of the login; on the socket the kernel says who asks where there is none
//! ```

use std::path::Path;

use super::Global;
use super::error::CliResult;
use super::hosts::Hosts;
use crate::api::client::Client;
use crate::api::client::place::ServerUrl;
use crate::model::fingerprint::Fingerprint;
use crate::model::secret::Secret;

/// How a manager on another host is named.
#[derive(Clone, Debug, clap::Args)]
pub struct HostArgs {
    /// A manager on another host, https://HOST[:PORT] [default: the socket where there is one, else the last login]
    #[arg(
        id = "manager_host",
        long = "host",
        global = true,
        env = "GVM_HOST",
        value_name = "URL",
        hide_env_values = true
    )]
    pub host: Option<ServerUrl>,
    /// The fingerprint of its certificate, where no public authority signed it [default: that of the login]
    #[arg(
        id = "manager_pin",
        long = "pin",
        global = true,
        env = "GVM_FINGERPRINT",
        value_name = "SHA256:...",
        hide = true
    )]
    pub pin: Option<Fingerprint>,
}

/// The client of the manager that is to be asked.
///
/// # Errors
/// Where the configuration or the file of the logins cannot be read.
pub fn client(global: &Global) -> CliResult<Client> {
    let token = std::env::var("GVM_TOKEN").ok().filter(|token| !token.is_empty()).map(Secret::new);
    if let Some(url) = &global.manager.host {
        return at(url, global.manager.pin, token, &Hosts::load()?);
    }
    let socket = global.socket()?;
    if global.socket.is_none() && !is_usable(&socket) {
        // A file that cannot be read is no reason to keep a member from the socket.
        let hosts = if socket.exists() { Hosts::load().unwrap_or_default() } else { Hosts::load()? };
        if let Some(url) = hosts.usual() {
            return at(&url, global.manager.pin, token, &hosts);
        }
    }
    Ok(Client::new(&socket)?.with_token(token))
}

fn at(url: &ServerUrl, pin: Option<Fingerprint>, token: Option<Secret<String>>, hosts: &Hosts) -> CliResult<Client> {
    let known = hosts.get(url);
    let pin = pin.or_else(|| known.and_then(|host| host.fingerprint));
    let token = token.or_else(|| known.map(|host| Secret::new(host.token.clone())));
    Ok(Client::https(url, pin)?.with_token(token))
}

/// True where this process may connect to it.
fn is_usable(socket: &Path) -> bool {
    nix::unistd::access(socket, nix::unistd::AccessFlags::W_OK).is_ok()
}
