//! The serial console: pipes, a real terminal, other viewers, a manager that restarts.

use std::io::Write as _;
use std::process::Stdio;

use nix::sys::signal::Signal;

use super::fake::{Fake, VM, Visit, vm};
use super::terminal::OnTerminal;

fn fake(visits: &[Visit]) -> Fake {
    let fake = Fake::start();
    fake.json("GET /v1/vms/dev", 200, vm("running"));
    fake.visits(visits);
    fake
}

/// Runs with an input that is a pipe.
fn piped(fake: &Fake, args: &[&str], input: &[u8]) -> super::fake::Ran {
    let mut child = fake.gvm(args).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    fake.ran(child.wait_with_output().unwrap())
}

#[test]
fn a_pipe_is_typed_as_it_is_and_waited_for_after_its_end() {
    let fake = fake(&[Visit::Echo("login: ")]);
    // The detach key is a byte like any other where nobody sits.
    let ran = piped(&fake, &["console", "dev", "--linger", "3s"], b"root\r\x1d.x").expect(0);
    assert_eq!(ran.stdout, "login: root\r\x1d.x");
    assert_eq!(fake.requests("GET /v1/vms/0192"), [format!("GET {VM}/console?mode=write")]);
}

#[test]
fn where_somebody_types_one_looks_on() {
    let fake = fake(&[Visit::Refuse(409, "conflict"), Visit::Echo("login: ")]);
    let ran = piped(&fake, &["console", "dev", "--linger", "3s"], b"not sent").expect(0);
    assert_eq!(ran.stdout, "login: ", "{}", ran.page());
    assert!(ran.stderr.contains("somebody else types there; looking on"), "{}", ran.page());
    let asked = fake.requests("GET /v1/vms/0192");
    assert_eq!(asked, [format!("GET {VM}/console?mode=write"), format!("GET {VM}/console?mode=read")]);
}

#[test]
fn a_manager_that_restarts_gives_the_console_back() {
    let visits = [Visit::Close("one ", 1012, ""), Visit::Refuse(503, "unavailable"), Visit::Echo("two ")];
    let fake = fake(&visits);
    let ran = piped(&fake, &["console", "dev", "--linger", "3s"], b"").expect(0);
    assert_eq!(ran.stdout, "one two ", "{}", ran.page());
    assert!(
        ran.stderr.contains("connection lost, trying again") && ran.stderr.contains("connected again"),
        "{}",
        ran.page()
    );
}

#[test]
fn the_end_of_a_console_is_explained() {
    let over = fake(&[Visit::Close("bye", 1000, "the machine was shut down")]);
    let ran = piped(&over, &["console", "dev"], b"").expect(0);
    assert!(ran.stdout == "bye" && ran.stderr.contains("dev: the machine was shut down"), "{}", ran.page());
    let refused = fake(&[Visit::Close("", 4403, "not yours")]);
    assert!(piped(&refused, &["console", "dev"], b"").expect(3).stderr.contains("error: dev: not yours"));
    let off = fake(&[Visit::Refuse(409, "conflict")]);
    assert!(piped(&off, &["console", "dev"], b"").expect(5).stderr.contains("hint: see `gvm show dev`"));
}

#[test]
fn logs_are_followed_over_the_console() {
    let fake = fake(&[Visit::Close("and more\n", 1000, "the machine was shut down")]);
    fake.text(&format!("GET {VM}/logs"), "past\n");
    assert_eq!(fake.run(&["logs", "dev", "-f"]).expect(0).stdout, "past\nand more\n");
}

fn open(fake: &Fake) -> OnTerminal {
    let mut it = OnTerminal::start(fake.gvm(&["console", "dev"]));
    it.until("login: ");
    it
}

#[test]
fn the_detach_key_leaves_and_the_terminal_is_as_before() {
    let fake = fake(&[Visit::Echo("login: ")]);
    let mut it = open(&fake);
    assert!(it.is_raw());
    it.type_in(b"root\x03");
    it.until("root\x03");
    it.type_in(b"\x1d");
    assert_eq!(it.end(), Some(0));
    assert!(!it.is_raw());
    it.until("detached from dev");
}

#[test]
fn the_size_of_the_window_is_sent_by_key() {
    let fake = fake(&[Visit::Echo("login: ")]);
    let mut it = open(&fake);
    it.type_in(b"\x1dr");
    it.until("stty rows 40 cols 120\r");
    it.type_in(b"\x1d.");
    assert_eq!(it.end(), Some(0));
}

#[test]
fn a_signal_gives_the_terminal_back() {
    let fake = fake(&[Visit::Echo("login: ")]);
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let mut it = open(&fake);
        assert!(it.is_raw());
        it.signal(signal);
        assert_eq!(it.end(), Some(code));
        assert!(!it.is_raw(), "{signal}");
    }
}
