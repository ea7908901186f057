//! A private host on which gvm is installed: the real manager, the real command line.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gvm::api::client::{Client, ClientError};
use gvm::api::error::ErrorCode;
use gvm::api::types::{Accepted, GatewayView, OperationList, OperationView, VmView};

use super::private_host::{PrivateHost, SOON, child_of, kill_pid};
use super::run::{Ended, kill, run, run_with, until};

/// For a guest of a few MiB to boot under emulation on a busy machine.
pub const BOOT: Duration = Duration::from_secs(300);

/// How the tests' manager is set unless a test says otherwise: short waits, nothing probed.
pub const CONFIG: &str = "[manager]\ntick_seconds = 1\nstop_grace_seconds = 1\naccelerator = 'emulation'\n";

/// The same for guests with a system, which are given time to shut down; with a gateway.
pub fn config_for_guests(dir: &Path) -> String {
    let key = dir.join("home/gvm-gateway/host_ed25519");
    let config = CONFIG.replace("stop_grace_seconds = 1", "stop_grace_seconds = 150");
    format!("{config}\n[gateway]\nhost_key = '{}'\n", key.display())
}

/// The socket inside.
const SOCKET: &str = "/run/gvm/api.sock";

/// A private host with gvm on it.
#[derive(Debug)]
pub struct Site {
    pub host: PrivateHost,
}

impl Site {
    /// A private host, gvm's configuration, its group; no manager runs yet.
    #[track_caller]
    pub fn new(config: &str) -> Self {
        let host = PrivateHost::start();
        let site = Self { host };
        // Where members may run it, wherever the build lies.
        if std::fs::hard_link(env!("CARGO_BIN_EXE_gvm"), site.program()).is_err() {
            std::fs::copy(env!("CARGO_BIN_EXE_gvm"), site.program()).unwrap();
        }
        site.configure(config);
        site.host.sh("groupadd --system gvm").ok();
        make_home(&site.home("root"));
        site
    }

    /// The usual configuration and a manager.
    #[track_caller]
    pub fn serving() -> (Self, Daemon) {
        let site = Self::new(CONFIG);
        let daemon = site.serve();
        (site, daemon)
    }

    /// The same with the image `tiny` in its catalogue.
    #[track_caller]
    pub fn with_tiny(config: &str) -> (Self, Daemon) {
        let site = Self::new(config);
        let daemon = site.serve();
        site.gvm(&["image", "import", tiny().to_str().unwrap()]).ok();
        (site, daemon)
    }

    pub fn program(&self) -> PathBuf {
        self.host.dir().join("gvm")
    }

    /// A home that is not the machine's.
    pub fn home(&self, user: &str) -> PathBuf {
        self.host.dir().join("home").join(user)
    }

    pub fn configure(&self, text: &str) {
        std::fs::write(self.host.outside("/etc/gvm/gvm.toml"), text).unwrap();
    }

    /// The state folder, seen from outside.
    pub fn state(&self) -> PathBuf {
        self.host.outside("/var/lib/gvm")
    }

    /// Starts the manager and waits until it answers.
    #[track_caller]
    pub fn serve(&self) -> Daemon {
        self.serve_with(&[])
    }

    /// Starts a manager that waits at this point (cargo feature `hold`).
    #[track_caller]
    pub fn serve_held(&self, step: &str) -> Daemon {
        self.serve_with(&[("GVM_HOLD_AT", step)])
    }

    #[track_caller]
    fn serve_with(&self, env: &[(&str, &str)]) -> Daemon {
        let mut daemon = self.spawn(env);
        until("the manager answers", SOON, || {
            assert!(daemon.is_alive(), "the manager ended:\n{}", daemon.log());
            UnixStream::connect(self.host.outside(SOCKET)).is_ok()
        });
        daemon
    }

    /// Starts a manager and does not wait for anything.
    #[track_caller]
    pub fn spawn(&self, env: &[(&str, &str)]) -> Daemon {
        let path = self.host.dir().join("serve.log");
        let log = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        let from = log.metadata().unwrap().len();
        let mut command = self.host.command(&[self.program().as_os_str(), "serve".as_ref()]);
        command.env("GVM_LOG", "info,gvm=debug").envs(env.iter().copied());
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        Daemon { child: Some(child), path, from }
    }

    /// Makes the gateway's account and starts the gateway as it.
    #[track_caller]
    pub fn gateway(&self) -> Daemon {
        self.add_user("gvm-gateway", &["gvm"]);
        let path = self.host.dir().join("gateway.log");
        let log = File::create(&path).unwrap();
        let mut command = self.as_user("gvm-gateway", &["gvm", "gateway"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let mut gateway = Daemon { child: Some(child), path, from: 0 };
        until("the gateway has said how it is reached", SOON, || {
            assert!(gateway.is_alive(), "the gateway ended:\n{}", gateway.log());
            !self.api::<GatewayView>("/v1/gateway").host_keys.is_empty()
        });
        gateway
    }

    /// A manager that is expected to refuse: its exit code is 1, its standard error comes back.
    #[track_caller]
    pub fn serve_fails(&self) -> String {
        let program = self.program();
        let ended = run(self.host.command(&[program.as_os_str(), "serve".as_ref()]), SOON);
        ended.fails(1)
    }

    /// `gvm` as root, from outside over the private host's socket.
    #[track_caller]
    pub fn gvm(&self, arguments: &[&str]) -> Ended {
        run(self.gvm_command(arguments), BOOT)
    }

    /// The same with JSON asked for and read.
    #[track_caller]
    pub fn gvm_json<T: serde::de::DeserializeOwned>(&self, arguments: &[&str]) -> T {
        self.gvm(&[&["-o", "json"], arguments].concat()).json()
    }

    /// The command itself.
    pub fn gvm_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.program());
        command.args(arguments);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.home("root")).env("GVM_SOCKET", self.host.outside(SOCKET));
        command
    }

    /// `gvm` as root, inside.
    pub fn gvm_inside(&self, arguments: &[&str]) -> Command {
        let (home, program) = (format!("HOME={}", self.home("root").display()), self.program());
        self.host.command(&[&["env", &home, program.to_str().unwrap()], arguments].concat())
    }

    /// Asks for a change and does not wait for it.
    #[track_caller]
    pub fn ask(&self, arguments: &[&str]) -> Accepted {
        self.gvm_json(&[arguments, &["--no-wait"]].concat())
    }

    #[track_caller]
    pub fn show(&self, vm: &str) -> VmView {
        self.try_show(vm).unwrap_or_else(|e| panic!("{vm}: {e}"))
    }

    fn try_show(&self, vm: &str) -> Result<VmView, ClientError> {
        self.ask_api(&format!("/v1/vms/{vm}"))
    }

    /// Waits for a state; `gone` where there is to be no machine.
    #[track_caller]
    pub fn wait_for(&self, vm: &str, state: &str) {
        let end = Instant::now() + BOOT;
        loop {
            let found = match self.try_show(vm) {
                Ok(found) if found.state == state => return,
                Ok(found) => format!("{found:?}"),
                Err(e) if e.code() == ErrorCode::NotFound && state == "gone" => return,
                Err(e) if e.is_passing() => e.to_string(),
                Err(e) => panic!("{vm}: {e}"),
            };
            assert!(Instant::now() < end, "{vm} is not {state} within {BOOT:?}: {found}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until an operation is over and gives its outcome.
    #[track_caller]
    pub fn outcome(&self, operation: &str) -> String {
        let mut found = String::new();
        until(&format!("operation {operation} is over"), BOOT, || {
            found = self.operations().into_iter().find(|row| row.id == operation).unwrap().outcome;
            found != "pending"
        });
        found
    }

    /// The record, newest first.
    #[track_caller]
    pub fn operations(&self) -> Vec<OperationView> {
        self.api::<OperationList>("/v1/operations?limit=1000").operations
    }

    /// A plain question to the API, as root.
    #[track_caller]
    pub fn api<T: serde::de::DeserializeOwned>(&self, path: &str) -> T {
        self.ask_api(path).unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    fn ask_api<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { Client::new(&self.host.outside(SOCKET))?.get(path).await })
    }

    /// Makes a user inside, with a home of its own, in these groups.
    #[track_caller]
    pub fn add_user(&self, name: &str, groups: &[&str]) {
        let home = self.home(name);
        let home = home.to_str().unwrap();
        self.host.sh(&format!("useradd -l -M -U -s /bin/bash -d {home} -G '{}' {name}", groups.join(","))).ok();
        make_home(Path::new(home));
        self.host.sh(&format!("chown -R {name}: {home}")).ok();
    }

    /// A program that is to run inside as a user, with its groups as a new login has them.
    pub fn as_user(&self, name: &str, program: &[&str]) -> Command {
        let (home, path) = (self.home(name), self.program());
        let path = format!("PATH={}:/usr/local/bin:/usr/bin:/bin", path.parent().unwrap().display());
        let home = format!("HOME={}", home.display());
        let login = [format!("USER={name}"), format!("LOGNAME={name}"), home, path];
        let mut words: Vec<&str> = vec!["setpriv", "--reuid", name, "--regid", name, "--init-groups", "env", "-i"];
        words.extend(login.iter().map(String::as_str));
        // From a folder of its own.
        words.extend(["bash", "-c", "cd && exec \"$@\"", "-"]);
        words.extend(program);
        self.host.command(&words)
    }

    /// Runs a program inside as a user.
    #[track_caller]
    pub fn run_as(&self, name: &str, program: &[&str]) -> Ended {
        run(self.as_user(name, program), BOOT)
    }

    /// Runs a program inside as a user, with this on its standard input.
    #[track_caller]
    pub fn feed_as(&self, name: &str, program: &[&str], input: &[u8]) -> Ended {
        run_with(self.as_user(name, program), input, BOOT)
    }
}

fn make_home(home: &Path) {
    std::fs::create_dir_all(home.join(".ssh")).unwrap();
    let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(home.parent().unwrap(), 0o711);
    mode(home, 0o700);
    mode(&home.join(".ssh"), 0o700);
}

/// The folder of the image `tiny`, built where it is not yet.
#[track_caller]
pub fn tiny() -> PathBuf {
    image("tiny")
}

/// The folder of an image of ours, built where it is not yet.
#[track_caller]
pub fn image(name: &str) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("vm-images/build.sh");
    let mut command = Command::new(script);
    command.arg(name);
    run(command, Duration::from_secs(1200)).text().lines().last().unwrap().into()
}

/// A process of gvm inside a private host.
#[derive(Debug)]
pub struct Daemon {
    child: Option<Child>,
    path: PathBuf,
    /// Where its part of the log begins.
    from: u64,
}

impl Daemon {
    /// What it logged.
    pub fn log(&self) -> String {
        let bytes = std::fs::read(&self.path).unwrap_or_default();
        let from = usize::try_from(self.from).unwrap_or(usize::MAX);
        String::from_utf8_lossy(bytes.get(from..).unwrap_or_default()).into_owned()
    }

    /// How many steps it holds before.
    pub fn held(&self) -> usize {
        self.log().matches("\"holding\"").count()
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Its id, as the machine sees it.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        child_of(self.child.as_ref().unwrap().id()).expect("the manager is gone")
    }

    /// SIGKILL.
    #[track_caller]
    pub fn kill9(mut self) {
        kill_pid(self.pid());
        // Its parent inside ends when all of its threads have, and with them the last hand on its socket.
        let mut child = self.child.take().unwrap();
        until("the killed manager is gone", SOON, || child.try_wait().unwrap().is_some());
    }

    /// SIGTERM; it must come to a clean end.
    #[track_caller]
    pub fn stop(mut self) {
        let mut child = self.child.take().unwrap();
        let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        let mut status = None;
        until("the manager stops", SOON, || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.unwrap().success(), "{}", self.log());
    }

    fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            kill(&mut child);
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let state = if self.is_alive() { "it is alive" } else { "it is dead" };
            eprintln!(
                "{state}; the end of {}:\n{}",
                self.path.display(),
                lines[lines.len().saturating_sub(60)..].join("\n")
            );
        }
        self.end();
    }
}
