//! Tests that need a process of their own: this binary starts itself again for the one test.
//!
//! libvirt's event loop and its `test:///` driver are global to a process, so that two tests that open libvirt would
//! see each other. [`in_own_process!`] runs its body in a child; [`in_private_host!`] in a child inside a private host
//! (`scripts/private-host.sh`) with a libvirtd of its own.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Names the test that the child is to run.
const CHILD: &str = "GVM_TEST_CHILD";

/// Says which suites beyond the usual ones are wanted: `libvirt`, `lab`, `gpu`, separated by commas.
const SUITES: &str = "GVM_E2E";

/// Where the script is, when it is not in this repository.
const SCRIPT: &str = "GVM_PRIVATE_HOST";

/// Far above what any test takes on a busy machine; a child that hangs is killed after this.
const DEADLINE: Duration = Duration::from_secs(600);

/// Runs the body of the calling test in a process of its own.
macro_rules! in_own_process {
    ($body:expr) => {{
        fn here() {}
        $crate::support::own_process::run(std::any::type_name_of_val(&here), $body)
    }};
}

/// Runs the body of the calling test inside a private host with libvirtd, where `GVM_E2E` names `libvirt`; else says
/// why not.
macro_rules! in_private_host {
    ($body:expr) => {{
        fn here() {}
        $crate::support::own_process::run_in_host(std::any::type_name_of_val(&here), $body)
    }};
}

pub(crate) use {in_own_process, in_private_host};

/// `it::suite::test::here` -> `suite::test`, as the test runner names it.
fn test_of(here: &str) -> &str {
    here.trim_start_matches("it::").trim_end_matches("::here")
}

fn is_child_of(test: &str) -> bool {
    std::env::var(CHILD).is_ok_and(|wanted| wanted == test)
}

/// See [`in_own_process!`].
pub fn run(here: &str, body: impl FnOnce()) {
    let test = test_of(here);
    if is_child_of(test) {
        return body();
    }
    run_child(Command::new(this_binary()), test);
}

/// See [`in_private_host!`].
pub fn run_in_host(here: &str, body: impl FnOnce()) {
    let test = test_of(here);
    if is_child_of(test) {
        return body();
    }
    if !std::env::var(SUITES).is_ok_and(|suites| suites.split(',').any(|suite| suite == "libvirt")) {
        eprintln!("skipped {test}: needs root, libvirtd and QEMU; run it with {SUITES}=libvirt");
        return;
    }
    let script = std::env::var_os(SCRIPT)
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/private-host.sh"), PathBuf::from);
    if !script.exists() {
        eprintln!("skipped {test}: {} is not there", script.display());
        return;
    }
    let host = PrivateHost::start(&script);
    let mut command = Command::new(&script);
    command.arg("exec").arg(host.dir.path()).arg(this_binary());
    run_child(command, test);
}

fn this_binary() -> PathBuf {
    std::env::current_exe().unwrap()
}

fn run_child(mut command: Command, test: &str) {
    let child = command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, test);
    let child = child.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
    let mut child = Ending(child);
    let stdout = child.0.stdout.take().unwrap();
    // Read apart, so that a child that writes much does not wait for us.
    let reader = std::thread::spawn(move || {
        let mut ran = false;
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            ran |= line.starts_with("test result: ok. 1 passed");
            println!("{line}");
        }
        ran
    });
    let end = Instant::now() + DEADLINE;
    let status = loop {
        match child.0.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() > end => panic!("{test} did not end within {DEADLINE:?}"),
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let ran = reader.join().unwrap();
    assert!(status.success(), "{test} failed in its own process: {status}");
    assert!(ran, "{test} is not the name of a test");
}

/// A child that does not outlive us.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running private host. It ends when its standard input is closed, and with it all of its processes.
struct PrivateHost {
    dir: tempfile::TempDir,
    child: Child,
}

impl PrivateHost {
    fn start(script: &Path) -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut child = Command::new(script)
            .arg("run")
            .arg(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let host = Self { dir, child };
        assert!(line.starts_with("ready "), "the private host did not start: {line:?}");
        host
    }
}

impl Drop for PrivateHost {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
