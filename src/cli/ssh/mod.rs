//! `gvm ssh`, `gvm scp`, `gvm ssh-config`: the real OpenSSH with everything it has to know.

mod config;
mod write;

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;

use self::config::{Host, Layout, Route};
pub use self::write::{SshConfigArgs, next_line, refresh_config, ssh_config};
use super::context::Context;
use super::error::{CliError, CliResult};
use super::vm_ref::VmRef;
use super::{files, identity};
use crate::api::error::ErrorCode;
use crate::api::types::{KeyList, SshInfo, VmView};
use crate::model::name::GuestUser;

/// Options of `gvm ssh`.
#[derive(Debug, Args)]
#[command(after_help = "\
Everything after the machine is given to ssh as it is; put -- before options of ssh:
  gvm ssh dev uname -a
  gvm ssh dev -- -L 8888:localhost:8888
  gvm ssh root@dev

It runs the real ssh, which reads your own ~/.ssh/config as well. The exit code is that of ssh.")]
pub struct SshArgs {
    /// Machine: NAME, NAME.OWNER or id; with another login as USER@NAME
    #[arg(value_name = "[USER@]VM")]
    target: Target,
    /// Straight to the machine's address instead of through the gateway; on the server itself
    #[arg(long)]
    direct: bool,
    /// Options and command for ssh
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Options of `gvm scp`.
#[derive(Debug, Args)]
#[command(after_help = "\
Arguments are those of scp; a machine is named VM:PATH or USER@VM:PATH, on either side.
Put -- before options of scp:
  gvm scp data.csv dev:
  gvm scp -- -r dev:results .

The exit code is that of scp.")]
pub struct ScpArgs {
    /// Straight to the machine's address instead of through the gateway; on the server itself
    #[arg(long)]
    direct: bool,
    /// Options, files and VM:PATH for scp
    #[arg(value_name = "ARGS", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// A machine and the login inside, where one is said.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    user: Option<GuestUser>,
    vm: VmRef,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (user, vm) = text.split_once('@').map_or((None, text), |(user, vm)| (Some(user), vm));
        let user = user.map(str::parse).transpose().map_err(|e: crate::model::name::NameError| e.to_string())?;
        Ok(Self { user, vm: vm.parse()? })
    }
}

/// Runs `gvm ssh`: becomes ssh.
///
/// # Errors
/// Where the machine cannot be logged in to, or ssh cannot be run.
pub async fn ssh(cx: &Context, args: SshArgs) -> CliResult {
    let host = host(cx, args.target).await?;
    let name = host.names.first().cloned().unwrap_or_default();
    let user = host.user.clone();
    let config = prepare(cx, &[host], route(args.direct)).await?;
    let mut command = with_config(config, route(args.direct))?;
    command.extend(["-l".into(), user.into(), name.into()]);
    command.extend(args.args);
    become_program("ssh", &command)
}

/// Runs `gvm scp`: becomes scp.
///
/// # Errors
/// Where no machine is named, one cannot be logged in to, or scp cannot be run.
pub async fn scp(cx: &Context, args: ScpArgs) -> CliResult {
    let words = scp_words(args.args);
    let mut hosts: Vec<Host> = Vec::new();
    let mut command = Vec::new();
    for word in words {
        match word {
            ScpWord::Other(word) => command.push(word),
            ScpWord::Remote(target, path) => {
                let host = host(cx, target).await?;
                let name = host.names.first().cloned().unwrap_or_default();
                let mut word = OsString::from(format!("{}@{name}:", host.user));
                word.push(path);
                command.push(word);
                if hosts.iter().all(|known| known.id != host.id) {
                    hosts.push(host);
                }
            }
        }
    }
    if hosts.is_empty() {
        return Err(CliError::invalid("no machine is named").hint("name it as VM:PATH, as in `gvm scp data.csv dev:`"));
    }
    let config = prepare(cx, &hosts, route(args.direct)).await?;
    let mut all = with_config(config, route(args.direct))?;
    all.extend(command);
    become_program("scp", &all)
}

/// The option for the configuration. OpenSSH hands it on to the jump through a shell, without quotes.
fn with_config(config: PathBuf, route: Route) -> CliResult<Vec<OsString>> {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+,@:=".contains(c);
    if route == Route::Gateway && !config.to_string_lossy().chars().all(is_plain) {
        let text = format!("OpenSSH cannot jump with a configuration at {}", config.display());
        return Err(
            CliError::invalid(text).hint("use `gvm ssh-config --write` and `ssh NAME.gvm`, or a HOME without spaces")
        );
    }
    Ok(vec!["-F".into(), config.into()])
}

fn route(direct: bool) -> Route {
    if direct { Route::Direct } else { Route::Gateway }
}

/// Options of scp that take a value in the next argument.
const SCP_VALUES: &str = "cDFiJloPSX";

#[derive(Debug, PartialEq, Eq)]
enum ScpWord {
    Other(OsString),
    Remote(Target, OsString),
}

/// Finds the machines among the arguments of scp; what is not `VM:PATH` is left to scp.
fn scp_words(args: Vec<OsString>) -> Vec<ScpWord> {
    let mut is_value = false;
    let mut is_options = true;
    args.into_iter()
        .map(|arg| {
            let text = arg.to_string_lossy().into_owned();
            if std::mem::take(&mut is_value) {
                return ScpWord::Other(arg);
            }
            if is_options && text.starts_with('-') && text.len() > 1 {
                is_options = text != "--";
                is_value = text != "--" && text.chars().last().is_some_and(|c| SCP_VALUES.contains(c));
                return ScpWord::Other(arg);
            }
            match text.split_once(':').map(|(host, path)| (host.parse::<Target>(), path)) {
                Some((Ok(target), path)) => ScpWord::Remote(target, path.into()),
                _ => ScpWord::Other(arg),
            }
        })
        .collect()
}

/// Looks a machine up and sees that one can log in to it.
async fn host(cx: &Context, target: Target) -> CliResult<Host> {
    let vm = cx.vm(&target.vm).await?;
    refuse_unless_up(&vm)?;
    let info: SshInfo = cx.client.get(&format!("{}/ssh", VmRef::by_id(&vm.id).path())).await?;
    if vm.state == "unknown" {
        cx.out.note(&format!("what {} does is not known: {}", vm.name, vm.detail));
    } else if !vm.is_reachable {
        cx.out.note(&format!(
            "{} runs, but its SSH server has not answered yet; its first boot: {}",
            vm.name, vm.first_boot
        ));
    }
    let user = target.user.map_or_else(|| info.guest_user.clone(), |user| user.to_string());
    Ok(Host { id: vm.id, names: config::names(&info), user, info })
}

fn refuse_unless_up(vm: &VmView) -> CliResult {
    let name = &vm.name;
    let hint = match vm.state.as_str() {
        "running" | "degraded" | "unknown" => return Ok(()),
        "stopped" | "failed" => format!("start it with `gvm start {name}`"),
        "paused" => format!("let it go on with `gvm resume {name}`"),
        "deleted" => format!("bring it back with `gvm undelete {name}`"),
        _ => format!("wait for it; `gvm events {name}` shows how far it is"),
    };
    let detail = if vm.detail.is_empty() { String::new() } else { format!(" ({})", vm.detail) };
    Err(CliError::new(ErrorCode::Conflict, format!("{name} is {}{detail}: one cannot log in", vm.state)).hint(hint))
}

/// Writes the configuration for some machines under the state folder and returns its path.
async fn prepare(cx: &Context, hosts: &[Host], route: Route) -> CliResult<PathBuf> {
    let dir = files::state_dir()?.join("ssh");
    files::ensure_private_dir(&dir)?;
    let stem = hosts.iter().map(|host| host.id.as_str()).collect::<Vec<_>>().join("+");
    // A file for each way, so that two calls at once do not change each other's.
    let stem = if route == Route::Direct { format!("{stem}.direct") } else { stem };
    let known_hosts = dir.join(format!("{stem}.known_hosts"));
    let path = dir.join(format!("{stem}.conf"));
    let gateway = cx.gateway(hosts.first().map(|host| host.info.gateway.clone()).unwrap_or_default());
    let layout = Layout { known_hosts, identities: identities(cx, &files::home()?.join(".ssh")).await, route };
    let blocks = config::blocks(&gateway, hosts, &layout)?;
    files::write_private(&layout.known_hosts, &config::known_hosts(&gateway, hosts, route)?)?;
    // With -F ssh reads nothing else by itself; the first value of a key counts, so that ours come first.
    let text = format!("{blocks}\nHost *\n  Include ~/.ssh/config\n  Include /etc/ssh/ssh_config\n");
    files::write_private(&path, &text)?;
    Ok(path)
}

/// The private keys on this machine whose public halves are registered, so that ssh offers the right one first;
/// none where that cannot be told.
async fn identities(cx: &Context, ssh: &Path) -> Vec<PathBuf> {
    let Ok(registered) = cx.client.get::<KeyList>("/v1/keys").await else { return Vec::new() };
    identity::local_keys(ssh)
        .into_iter()
        .filter(|local| {
            let print = identity::fingerprint(&local.key);
            registered.keys.iter().any(|key| key.fingerprint == print)
        })
        .map(|local| local.identity_file())
        .collect()
}

/// Replaces this process by a program, so that terminal, signals and exit code are the program's own.
fn become_program(program: &str, args: &[OsString]) -> CliResult {
    let error = std::process::Command::new(program).args(args).exec();
    Err(CliError::new(ErrorCode::Internal, format!("cannot run {program}: {error}"))
        .hint("install OpenSSH's client (`sudo apt install openssh-client`)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::samples;

    #[test]
    fn a_target_may_name_a_login() {
        let target: Target = "root@dev.alice".parse().unwrap();
        assert_eq!((target.user.unwrap().as_str(), target.vm.to_string().as_str()), ("root", "dev.alice"));
        for bad in ["@dev", "root@", "Ro ot@dev", "root@../x"] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }

    #[test]
    fn machines_are_found_among_the_arguments_of_scp() {
        let check = |line: &str| -> Vec<String> {
            scp_words(line.split(' ').map(OsString::from).collect())
                .into_iter()
                .map(|word| match word {
                    ScpWord::Other(word) => word.into_string().unwrap(),
                    ScpWord::Remote(target, path) => format!("<{}>{}", target.vm, path.into_string().unwrap()),
                })
                .collect()
        };
        assert_eq!(check("a dev:b"), ["a", "<dev>b"]);
        assert_eq!(check("-r -P 22 root@dev: ."), ["-r", "-P", "22", "<dev>", "."]);
        assert_eq!(check("-o dev:x dev.bob:/etc/x:y ./a:b"), ["-o", "dev:x", "<dev.bob>/etc/x:y", "./a:b"]);
        assert_eq!(check("-rp -- -x dev:"), ["-rp", "--", "-x", "<dev>"]);
    }

    #[test]
    fn a_machine_that_is_not_up_is_explained() {
        assert!(refuse_unless_up(&samples::vm()).is_ok());
        for (state, way_out) in
            [("stopped", "gvm start dev"), ("paused", "gvm resume dev"), ("creating", "gvm events dev")]
        {
            let error = refuse_unless_up(&VmView { state: state.to_owned(), ..samples::vm() }).unwrap_err();
            assert_eq!(error.exit_code(), 5);
            let CliError::Failed(body) = error else { panic!() };
            assert!(body.hint.unwrap().contains(way_out), "{state}");
        }
    }
}
