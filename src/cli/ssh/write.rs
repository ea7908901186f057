//! `gvm ssh-config`: one OpenSSH configuration for all of one's machines, printed or put where ssh looks.

use std::path::{Path, PathBuf};

use clap::Args;
use futures_util::{StreamExt as _, TryStreamExt as _};

use super::config::{self, Host, Layout, Route};
use super::identities;
use crate::api::types::{SshInfo, VmList, VmView};
use crate::cli::context::Context;
use crate::cli::error::{CliError, CliResult};
use crate::cli::files;
use crate::cli::vm_ref::VmRef;

/// Machines asked for at once; more would only wait in the manager.
const AT_ONCE: usize = 8;
/// The first line of `~/.ssh/config` that `--write` adds.
const INCLUDE: &str = "Include gvm/config";
/// Marks a configuration with plain names, so that a refresh keeps them.
const SHORT_MARK: &str = "# short names";

/// Options of `gvm ssh-config`.
#[derive(Debug, Args)]
#[command(after_help = "\
With --write, ~/.ssh/gvm/config and ~/.ssh/gvm/known_hosts are written anew, and the line
`Include gvm/config` is put first into ~/.ssh/config unless it is there already; nothing else there
is touched. Then ssh, scp, rsync, sftp and editors know your machines with their host keys:
  ssh dev.gvm
Commands that make, rename or delete machines keep the files up to date. To undo it, remove that
line and the folder ~/.ssh/gvm.")]
pub struct SshConfigArgs {
    /// Write it to ~/.ssh/gvm and include it in ~/.ssh/config
    #[arg(long)]
    write: bool,
    /// Plain names as well: `ssh dev` beside `ssh dev.gvm`
    #[arg(long)]
    short: bool,
}

/// Which names machines get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    Long,
    Short,
}

/// Runs `gvm ssh-config`.
///
/// # Errors
/// See [`CliError`].
pub async fn ssh_config(cx: &Context, args: &SshConfigArgs) -> CliResult {
    let names = if args.short { Names::Short } else { Names::Long };
    if !args.write {
        // What is printed refers to a file that must exist.
        let known_hosts = files::state_dir()?.join("ssh/known_hosts");
        let rendered = render(cx, known_hosts, names).await?;
        files::ensure_private_dir(rendered.known_hosts_path.parent().unwrap_or(Path::new("/")))?;
        files::write_private(&rendered.known_hosts_path, &rendered.known_hosts)?;
        let json = serde_json::json!({ "config": rendered.config, "known_hosts": rendered.known_hosts_path });
        return cx.out.result(&json, || rendered.config.clone());
    }
    let home = files::home()?;
    let (written, dir) = (write_files(cx, &home, names).await?, gvm_dir(&home));
    let is_added = ensure_include(&home.join(".ssh/config"))?;
    let json = serde_json::json!({
        "config": dir.join("config"),
        "known_hosts": dir.join("known_hosts"),
        "hosts": written,
        "is_include_added": is_added,
    });
    cx.out.result(&json, || {
        let include = if is_added {
            format!("added `{INCLUDE}` as the first line of ~/.ssh/config")
        } else {
            "~/.ssh/config includes it already".to_owned()
        };
        let next = written.first().map(|name| format!("\n  ssh {name}")).unwrap_or_default();
        format!("wrote ~/.ssh/gvm/config and ~/.ssh/gvm/known_hosts, machines: {}\n{include}{next}", written.len())
    })
}

/// Brings `~/.ssh/gvm` up to date where `gvm ssh-config --write` made it; a failure is only a warning.
pub async fn refresh_config(cx: &Context) {
    let Ok(home) = files::home() else { return };
    let Ok(present) = std::fs::read_to_string(gvm_dir(&home).join("config")) else { return };
    let names = if present.lines().any(|line| line == SHORT_MARK) { Names::Short } else { Names::Long };
    if let Err(CliError::Failed(body)) = write_files(cx, &home, names).await {
        cx.out.warning(&format!("~/.ssh/gvm/config could not be brought up to date: {}", body.message));
    }
}

/// What to type to log in: plain ssh where `gvm ssh-config --write` was used, else `gvm ssh`.
pub fn next_line(vm: &VmView) -> String {
    let is_written = files::home()
        .and_then(|home| files::read_text(&gvm_dir(&home).join("config"), 1 << 20))
        .is_ok_and(|config| config.split_whitespace().any(|word| word == format!("{}.gvm", vm.name)));
    if is_written { format!("ssh {}.gvm", vm.name) } else { format!("gvm ssh {}", vm.name) }
}

fn gvm_dir(home: &Path) -> PathBuf {
    home.join(".ssh/gvm")
}

struct Rendered {
    config: String,
    known_hosts: String,
    known_hosts_path: PathBuf,
    names: Vec<String>,
}

async fn render(cx: &Context, known_hosts_path: PathBuf, names: Names) -> CliResult<Rendered> {
    let gateway = cx.gateway(cx.client.get("/v1/gateway").await?);
    let list: VmList = cx.client.get("/v1/vms?limit=1000").await?;
    let hosts: Vec<Host> = futures_util::stream::iter(list.vms.into_iter().map(|vm| async move {
        let info: SshInfo = cx.client.get(&format!("{}/ssh", VmRef::by_id(&vm.id).path())).await?;
        let mut all = config::names(&info);
        if names == Names::Short {
            all.push(info.vm.clone());
        }
        Ok::<_, CliError>(Host { id: vm.id, names: all, user: info.guest_user.clone(), info })
    }))
    .buffered(AT_ONCE)
    .try_collect()
    .await?;
    let identities = identities(cx, &files::home()?.join(".ssh")).await;
    let layout = Layout { known_hosts: known_hosts_path, identities, route: Route::Gateway };
    let known_hosts = config::known_hosts(&gateway, &hosts, Route::Gateway)?;
    let mark = if names == Names::Short { format!("{SHORT_MARK}\n") } else { String::new() };
    let config = format!(
        "# Made by gvm ssh-config; changes are lost.\n{mark}\n{}\n{}",
        config::blocks(&gateway, &hosts, &layout)?,
        config::plain_gateway_block(&gateway, &layout)?
    );
    let names = hosts.iter().filter_map(|host| host.names.first().cloned()).collect();
    Ok(Rendered { config, known_hosts, known_hosts_path: layout.known_hosts, names })
}

/// Writes the two files and returns the names of the machines in them.
async fn write_files(cx: &Context, home: &Path, names: Names) -> CliResult<Vec<String>> {
    let dir = gvm_dir(home);
    let rendered = render(cx, dir.join("known_hosts"), names).await?;
    files::ensure_private_dir(&dir)?;
    files::write_private(&rendered.known_hosts_path, &rendered.known_hosts)?;
    files::write_private(&dir.join("config"), &rendered.config)?;
    Ok(rendered.names)
}

/// Puts our line first into the user's configuration; false where one is there already.
fn ensure_include(path: &Path) -> CliResult<bool> {
    let present = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(CliError::file("cannot read", path, &error)),
    };
    match with_include(&present) {
        Some(text) => files::write_private(path, &text).map(|()| true),
        None => Ok(false),
    }
}

/// The configuration with our line in front, or nothing where it is included already.
fn with_include(present: &str) -> Option<String> {
    let is_ours = |word: &str| {
        let word = word.trim_matches('"');
        word == "gvm/config" || word.ends_with("/.ssh/gvm/config")
    };
    let is_included = present.lines().any(|line| {
        let mut words = line.split(|c: char| c.is_whitespace() || c == '=').filter(|word| !word.is_empty());
        words.next().is_some_and(|key| key.eq_ignore_ascii_case("include")) && words.any(is_ours)
    });
    // It must come before the first Host line: below one it would count for that host only.
    (!is_included).then(|| format!("{INCLUDE}\n{}{present}", if present.is_empty() { "" } else { "\n" }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_include_line_is_added_once_and_the_rest_kept() {
        assert_eq!(with_include("").unwrap(), "Include gvm/config\n");
        let theirs = "Host *\n\tServerAliveInterval 5\n# end without newline";
        let once = with_include(theirs).unwrap();
        assert_eq!(once, format!("Include gvm/config\n\n{theirs}"));
        assert_eq!(with_include(&once), None);
        for there in ["include ~/.ssh/gvm/config", "Include=other /home/a/.ssh/gvm/config", "  Include \"gvm/config\""]
        {
            assert_eq!(with_include(there), None, "{there}");
        }
        assert!(with_include("# Include gvm/config").is_some());
    }
}
