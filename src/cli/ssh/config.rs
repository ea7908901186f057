//! The OpenSSH configuration for machines, as text. Pure: what is rendered here is written elsewhere.
//!
//! A machine is the host `NAME.gvm`, reached through the host `gvm-gw`. Its host key is known under the alias
//! `gvm-ID`, which no other machine ever has, and the gateway's under `[HOST]:PORT`; both are in a known_hosts
//! file of gvm's own with strict checking, so that nobody is asked to trust a key.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::api::error::ErrorCode;
use crate::api::types::{GatewayView, SshInfo};
use crate::cli::error::{CliError, CliResult};

/// The gateway's host name in the configuration.
pub const GATEWAY: &str = "gvm-gw";

/// One machine.
#[derive(Clone, Debug)]
pub struct Host {
    /// The machine's id.
    pub id: String,
    /// What to type after `ssh`; the first is the one that gvm itself uses.
    pub names: Vec<String>,
    /// Login that was asked for; the configuration itself says the machine's usual one.
    pub user: String,
    /// How it is reached.
    pub info: SshInfo,
}

/// The way to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Through the SSH gateway.
    Gateway,
    /// Straight to its address, from the host itself.
    Direct,
}

/// What is the same for all machines of a configuration.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The known_hosts file.
    pub known_hosts: PathBuf,
    /// Private keys to offer; empty leaves the choice to ssh.
    pub identities: Vec<PathBuf>,
    /// The way.
    pub route: Route,
}

/// Names of a machine: `dev.gvm` and `dev.alice.gvm`.
pub fn names(info: &SshInfo) -> Vec<String> {
    vec![format!("{}.gvm", info.vm), format!("{}.{}.gvm", info.vm, info.owner)]
}

/// The host blocks.
///
/// # Errors
/// Where a value cannot stand in such a file.
pub fn blocks(gateway: &GatewayView, hosts: &[Host], layout: &Layout) -> CliResult<String> {
    let mut text = String::new();
    if layout.route == Route::Gateway {
        let lines =
            [("HostName", word(&gateway.host)?.to_owned()), ("Port", gateway.port.to_string()), ("User", "gvm".into())];
        block(&mut text, "Host", GATEWAY, &lines, layout)?;
    }
    for host in hosts {
        for name in &host.names {
            word(name)?;
        }
        let mut lines = match layout.route {
            // The gateway takes NAME.OWNER for the address to jump to.
            Route::Gateway => vec![
                ("HostName", format!("{}.{}", word(&host.info.vm)?, word(&host.info.owner)?)),
                ("ProxyJump", GATEWAY.to_owned()),
            ],
            Route::Direct => {
                vec![("HostName", word(&host.info.address)?.to_owned()), ("ProxyCommand", "none".to_owned())]
            }
        };
        lines.extend([
            ("Port", "22".to_owned()),
            ("User", word(&host.info.guest_user)?.to_owned()),
            ("HostKeyAlias", alias(&host.id)?),
        ]);
        block(&mut text, "Host", &host.names.join(" "), &lines, layout)?;
    }
    Ok(text)
}

/// The block that lets `ssh VM@GATEWAY -p PORT` know the gateway's key as well.
///
/// # Errors
/// As [`blocks`].
pub fn plain_gateway_block(gateway: &GatewayView, layout: &Layout) -> CliResult<String> {
    let mut text = String::new();
    let host = word(&gateway.host)?;
    let what = format!("originalhost {host} exec \"test %p = {}\"", gateway.port);
    block(&mut text, "Match", &what, &[], layout)?;
    Ok(text)
}

fn block(text: &mut String, kind: &str, what: &str, lines: &[(&str, String)], layout: &Layout) -> CliResult {
    let mut common = vec![
        ("UserKnownHostsFile", path(&layout.known_hosts)?),
        ("StrictHostKeyChecking", "yes".to_owned()),
        ("UpdateHostKeys", "no".to_owned()),
        ("CheckHostIP", "no".to_owned()),
    ];
    for identity in &layout.identities {
        common.push(("IdentityFile", path(identity)?));
    }
    if !layout.identities.is_empty() {
        common.push(("IdentitiesOnly", "yes".to_owned()));
    }
    if !text.is_empty() {
        text.push('\n');
    }
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{kind} {what}");
    for (key, value) in lines.iter().chain(&common) {
        let _ = writeln!(text, "  {key} {value}");
    }
    Ok(())
}

/// The known_hosts lines of the gateway and the machines.
///
/// # Errors
/// Where the gateway has shown no key yet, or a key cannot stand in such a file.
pub fn known_hosts(gateway: &GatewayView, hosts: &[Host], route: Route) -> CliResult<String> {
    let mut text = String::new();
    let mut put = |names: &str, keys: &[String]| -> CliResult {
        for key in keys {
            let _ = writeln!(text, "{names} {}", public_key(key)?);
        }
        Ok(())
    };
    if route == Route::Gateway {
        if gateway.host_keys.is_empty() {
            return Err(CliError::new(ErrorCode::Unavailable, "the SSH gateway has not run yet").hint(
                "start it with `sudo systemctl start gvm-gateway` (or `gvm gateway`); on the server itself, `gvm ssh --direct` does without it",
            ));
        }
        put(&gateway_names(gateway)?, &gateway.host_keys)?;
    }
    for host in hosts {
        put(&alias(&host.id)?, &host.info.host_keys)?;
    }
    Ok(text)
}

fn gateway_names(gateway: &GatewayView) -> CliResult<String> {
    let host = word(&gateway.host)?;
    let hosts = if host == "localhost" { vec!["localhost", "127.0.0.1", "::1"] } else { vec![host] };
    let with_port = |host: &&str| match gateway.port {
        22 => (*host).to_owned(),
        port => format!("[{host}]:{port}"),
    };
    Ok(hosts.iter().map(with_port).collect::<Vec<_>>().join(","))
}

fn alias(id: &str) -> CliResult<String> {
    Ok(format!("gvm-{}", word(id)?))
}

/// A value that is one word: what is from elsewhere must not begin another line or option.
fn word(text: &str) -> CliResult<&str> {
    let is_fit = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(is_fit) {
        Ok(text)
    } else {
        Err(CliError::new(
            ErrorCode::Internal,
            format!("the manager sent {text:?}, which cannot stand in an SSH configuration"),
        ))
    }
}

/// Kind and body of a key.
fn public_key(text: &str) -> CliResult<String> {
    let mut words = text.split_whitespace();
    match (words.next(), words.next()) {
        (Some(kind), Some(body)) if body.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b)) => {
            Ok(format!("{} {body}", word(kind)?))
        }
        _ => Err(CliError::new(ErrorCode::Internal, format!("the manager sent {text:?}, which is not a host key"))),
    }
}

/// A path as OpenSSH reads it: tokens escaped, quoted where it has spaces.
fn path(path: &Path) -> CliResult<String> {
    let text = path.to_string_lossy().replace('%', "%%");
    if text.contains(['"', '\\', '\n']) || text.contains("${") {
        return Err(CliError::invalid(format!("the path {text:?} cannot stand in an SSH configuration")));
    }
    Ok(if text.contains(' ') { format!("\"{text}\"") } else { text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::samples;

    fn host() -> Host {
        let info = samples::ssh();
        Host { id: samples::vm().id, names: names(&info), user: info.guest_user.clone(), info }
    }

    fn layout(route: Route) -> Layout {
        Layout { known_hosts: "/home/alice/.ssh/gvm/known_hosts".into(), identities: Vec::new(), route }
    }

    #[test]
    fn a_machine_is_reached_through_the_gateway_with_both_keys_known() {
        let (hosts, gateway) = ([host()], samples::ssh().gateway);
        let layout = Layout { identities: vec!["/home/alice/my keys/id".into()], ..layout(Route::Gateway) };
        let text = blocks(&gateway, &hosts, &layout).unwrap();
        insta::assert_snapshot!("config", text + "\n" + &plain_gateway_block(&gateway, &layout).unwrap());
        insta::assert_snapshot!("known_hosts", known_hosts(&gateway, &hosts, Route::Gateway).unwrap());
    }

    #[test]
    fn the_direct_way_needs_no_gateway() {
        let (hosts, gateway) = ([host()], GatewayView::default());
        insta::assert_snapshot!("config_direct", blocks(&gateway, &hosts, &layout(Route::Direct)).unwrap());
        assert_eq!(known_hosts(&gateway, &hosts, Route::Direct).unwrap().lines().count(), 1);
        assert_eq!(known_hosts(&gateway, &hosts, Route::Gateway).unwrap_err().exit_code(), 6);
    }

    #[test]
    fn nothing_from_elsewhere_begins_a_line_of_its_own() {
        for bad in ["", "a b", "a\nProxyCommand rm", "-oProxyCommand=x", "a\"", "#a", "a,b", "*"] {
            assert!(word(bad).is_err(), "{bad:?}");
        }
        let mut host = host();
        host.info.host_keys = vec!["ssh-ed25519 AAAA\n* ssh-ed25519 BBBB".to_owned()];
        let gateway = host.info.gateway.clone();
        assert_eq!(known_hosts(&gateway, &[host], Route::Gateway).unwrap().lines().count(), 2);
        assert!(public_key("ssh-ed25519").is_err() && public_key("ssh-ed25519 A*").is_err());
    }
}
