//! A private host (`scripts/private-host.sh`): libvirtd with its networks, rules and guests in namespaces of their own.
//!
//! ```text
//!   test --stdin held open--> private-host.sh run DIR --> init, virtlogd, libvirtd, guests
//!        --exec------------->                               whatever is run inside
//! ```
//!
//! Its end is the end of the standard input that the test holds, so that nothing outlives a test that panics or is
//! killed.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::run::{Ended, kill, run};

/// Where the script is, when it is not in this repository.
const SCRIPT: &str = "GVM_PRIVATE_HOST";

/// For commands inside that do little, on a machine that does much.
pub const SOON: Duration = Duration::from_secs(90);

/// The script.
pub fn script() -> PathBuf {
    std::env::var_os(SCRIPT)
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/private-host.sh"), PathBuf::from)
}

/// A running private host.
#[derive(Debug)]
pub struct PrivateHost {
    runner: Child,
    dir: tempfile::TempDir,
    since: Instant,
}

impl PrivateHost {
    /// Starts one and waits until its libvirtd answers. On a busy machine libvirtd itself may hang at its start; that is
    /// tried once more.
    #[track_caller]
    pub fn start() -> Self {
        Self::try_start().or_else(Self::try_start).expect("the private host did not start")
    }

    fn try_start() -> Option<Self> {
        let dir = tempfile::Builder::new().prefix("gvm-e2e-").tempdir_in("/tmp").unwrap();
        // QEMU's user and the members pass through.
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o711)).unwrap();
        let mut command = Command::new(script());
        command.arg("run").arg(dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut runner = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(runner.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let host = Self { runner, dir, since: Instant::now() };
        line.starts_with("ready ").then_some(host)
    }

    /// Its folder, the same inside and outside.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Where a file of its own (`/run`, `/etc`, `/var/lib/gvm`, `/var/lib/libvirt`, ...) is seen from outside.
    pub fn outside(&self, inside: &str) -> PathBuf {
        self.dir().join(inside.trim_start_matches('/'))
    }

    /// A program that is to run inside as root.
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, program: &[S]) -> Command {
        let mut command = Command::new(script());
        command.arg("exec").arg(self.dir()).args(program);
        command
    }

    /// Runs a program inside as root.
    #[track_caller]
    pub fn exec<S: AsRef<std::ffi::OsStr>>(&self, program: &[S]) -> Ended {
        run(self.command(program), SOON)
    }

    /// Runs a shell script inside as root.
    #[track_caller]
    pub fn sh(&self, script: &str) -> Ended {
        self.exec(&["bash", "-euc", script])
    }

    /// `virsh -q` with these arguments.
    #[track_caller]
    pub fn virsh(&self, arguments: &[&str]) -> Ended {
        self.exec(&[&["virsh", "-q", "-c", "qemu:///system"], arguments].concat())
    }

    /// stop, kill, start, restart, freeze, thaw.
    #[track_caller]
    pub fn libvirtd(&self, verb: &str) {
        let mut command = Command::new(script());
        command.arg("libvirtd").arg(self.dir()).arg(verb);
        run(command, SOON).ok();
    }
}

impl Drop for PrivateHost {
    fn drop(&mut self) {
        // `scripts/test.sh` tells the longest of them.
        let test = std::thread::current().name().unwrap_or("?").to_owned();
        println!("PRIVATE HOST of {test}: {:.1} s", self.since.elapsed().as_secs_f64());
        // The runner ends everything inside when its standard input ends.
        drop(self.runner.stdin.take());
        for _ in 0..600 {
            if !matches!(self.runner.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        kill(&mut self.runner);
    }
}

/// The child of a process, as the machine sees it.
pub fn child_of(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// Kills one process by its id.
pub fn kill_pid(pid: u32) {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap());
    let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
}
