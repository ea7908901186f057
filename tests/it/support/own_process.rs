//! Tests that need a process of their own: this binary starts itself again for the one test.
//!
//! libvirt's event loop and its `test:///` driver are global to a process, so that two tests that open libvirt would
//! see each other. [`in_own_process!`] runs its body in a child; [`in_private_host!`] in a child inside a private host
//! (`scripts/private-host.sh`) with a libvirtd of its own.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::private_host::PrivateHost;
use super::skip::{say, test_of, why_no_libvirt};

/// Names the test that the child is to run.
const CHILD: &str = "GVM_TEST_CHILD";

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

/// The same with these values in its environment.
pub fn run_with(here: &str, env: &[(&str, &str)], body: impl FnOnce()) {
    let test = test_of(here);
    if is_child_of(test) {
        return body();
    }
    let mut command = Command::new(this_binary());
    command.envs(env.iter().copied());
    run_child(command, test);
}

/// See [`in_private_host!`].
pub fn run_in_host(here: &str, body: impl FnOnce()) {
    let test = test_of(here);
    if is_child_of(test) {
        return body();
    }
    if let Some(why) = why_no_libvirt() {
        return say(test, &why);
    }
    let host = PrivateHost::start();
    run_child(host.command(&[this_binary()]), test);
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
