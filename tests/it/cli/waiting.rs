//! Changes followed to their end.

use std::io::{BufRead as _, BufReader, Read as _};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::fake::{Fake, VM, accepted, event, operation, vm, with};

fn creating() -> Fake {
    let fake = Fake::start();
    fake.json(
        "POST /v1/vms",
        202,
        with(accepted("creating"), json!({"notes": ["no KVM here: machines are emulated"]})),
    );
    fake
}

fn get_vm() -> String {
    format!("GET {VM}")
}

fn events() -> String {
    format!("GET {VM}/events")
}

const CREATE: [&str; 4] = ["create", "dev", "--profile", "debian"];

#[test]
fn a_create_shows_its_stages_and_ends_with_the_line_to_type() {
    let fake = creating();
    fake.events(
        &events(),
        vec![
            (0, event("disk", "cloned the disk", "creating")),
            (10, event("state", "", "creating")),
            (10, json!("lagged")),
            (10, event("start", "the machine runs", "running")),
            (10, event("start", "the machine runs", "running")),
            (10, event("ready", "its SSH server answers", "running")),
        ],
    );
    // Ready is an event, so that the state need not say so.
    fake.json(&get_vm(), 200, with(vm("running"), json!({"is_reachable": false})));
    fake.json("GET /v1/operations/op-1", 200, operation("pending", ""));
    insta::assert_snapshot!("create", fake.run(&CREATE).expect(0).page());
}

#[test]
fn a_create_without_events_is_followed_by_its_state() {
    let fake = creating();
    fake.json(&get_vm(), 200, vm("creating"));
    fake.json(&get_vm(), 200, vm("running"));
    let ran = fake.run(&CREATE).expect(0);
    assert!(ran.stdout.starts_with("dev is ready: debian, 2 CPUs"), "{}", ran.page());
}

#[test]
fn json_is_the_accepted_change_with_the_machine_as_it_is_in_the_end() {
    let fake = creating();
    fake.json(&get_vm(), 200, vm("running"));
    let ran = fake.run(&["-o", "json", "create", "dev", "--profile", "debian"]).expect(0);
    assert_eq!(ran.stderr, "");
    let json: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&json["operation"], &json["vm"]["state"]), (&json!("op-1"), &json!("running")));
}

#[test]
fn a_create_that_fails_says_why() {
    let fake = creating();
    fake.events(&events(), vec![(0, event("disk", "cloning the disk", "creating"))]);
    fake.json(&get_vm(), 200, with(vm("failed"), json!({"detail": "the pool is full"})));
    fake.json("GET /v1/operations/op-1", 200, operation("pending", ""));
    fake.json("GET /v1/operations/op-1", 200, operation("failure", "no space left on the host"));
    let ran = fake.run(&CREATE).expect(1);
    assert_eq!(ran.stdout, "");
    assert!(ran.stderr.contains("failed: the pool is full"), "{}", ran.page());
    assert!(
        ran.stderr.contains("error: dev is not ready: no space left on the host\nhint: see `gvm show dev`"),
        "{}",
        ran.page()
    );
}

#[test]
fn a_wait_is_bounded() {
    let fake = creating();
    fake.json(&get_vm(), 200, vm("creating"));
    let ran = fake.run(&[&CREATE[..], &["--timeout", "1s"]].concat()).expect(6);
    assert!(ran.stderr.contains("dev is not ready after 1s; it goes on by itself (now: creating)"), "{}", ran.page());
}

#[test]
fn ctrl_c_leaves_the_machine_alone() {
    let fake = creating();
    fake.events(&events(), vec![(0, event("disk", "cloning the disk", "creating"))]);
    fake.json(&get_vm(), 200, vm("creating"));
    let mut child = fake.gvm(&CREATE).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut text = String::new();
    while !text.contains("disk: ") {
        assert_ne!(stderr.read_line(&mut text).unwrap(), 0, "{text}");
    }
    kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    stderr.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{text}");
    assert!(text.contains("gvm events dev"), "{text}");
    assert!(fake.requests("DELETE").is_empty());
}

#[test]
fn a_manager_that_restarts_is_waited_for() {
    let mut fake = creating();
    fake.events(&events(), vec![(0, event("disk", "cloning the disk", "creating"))]);
    fake.json(&get_vm(), 200, vm("creating"));
    let mut child = fake.gvm(&CREATE).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut text = String::new();
    while !text.contains("disk: ") {
        assert_ne!(stderr.read_line(&mut text).unwrap(), 0, "{text}");
    }
    fake.stop();
    while !text.contains("manager: it does not answer") {
        assert_ne!(stderr.read_line(&mut text).unwrap(), 0, "{text}");
    }
    std::thread::sleep(Duration::from_millis(300));
    fake.forget(&get_vm());
    fake.json(&get_vm(), 200, vm("running"));
    fake.listen();
    stderr.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{text}");
}

#[test]
fn power_and_deletion_end_with_their_state() {
    for (args, request, state, said) in [
        (&["start", "dev"][..], "POST /v1/vms/dev/start {}", "running", "dev is ready\n  gvm ssh dev\n"),
        (&["stop", "dev", "--force"], "POST /v1/vms/dev/stop {\"force\":true}", "stopped", "dev is stopped\n"),
        (&["restart", "dev"], "POST /v1/vms/dev/restart {\"force\":false}", "running", "dev is ready\n  gvm ssh dev\n"),
        (&["pause", "dev"], "POST /v1/vms/dev/pause {}", "paused", "dev is paused\n"),
        (&["resume", "dev"], "POST /v1/vms/dev/resume {}", "running", "dev is running\n"),
        (&["undelete", "dev"], "POST /v1/vms/dev/undelete {}", "stopped", "dev is back\n  gvm start dev\n"),
        (&["delete", "dev"], "DELETE /v1/vms/dev", "deleted", "dev is deleted\n"),
        (&["rename", "dev", "new"], "PATCH /v1/vms/dev {\"name\":\"new\"", "running", "dev is now dev\n"),
        (
            &["clone", "dev", "new"],
            "POST /v1/vms/dev/clone {\"name\":\"new\"}",
            "running",
            "dev is a copy of dev\n  gvm ssh dev\n",
        ),
    ] {
        let fake = Fake::start();
        fake.json("GET /v1/operations/op-1", 200, operation("success", ""));
        let path = request.split(" {").next().unwrap();
        fake.json(path, 202, accepted("stopping"));
        fake.json(&get_vm(), 200, vm(state));
        let ran = fake.run(args).expect(0);
        assert_eq!(ran.stdout, said, "{}", ran.page());
        assert!(fake.requests(path)[0].starts_with(request), "{:?}", fake.requests(path));
    }
}

#[test]
fn delete_now_ends_when_the_machine_is_gone() {
    let fake = Fake::start();
    fake.json("DELETE /v1/vms/dev?now=true", 202, accepted("deleting"));
    fake.json(&get_vm(), 200, vm("deleting"));
    fake.json(&get_vm(), 404, json!({"code": "not_found", "message": "no such machine"}));
    assert_eq!(fake.run(&["delete", "dev", "--now", "--yes"]).expect(0).stdout, "dev is gone\n");
}

#[test]
fn events_are_lines_or_json_lines() {
    let fake = Fake::start();
    fake.json("GET /v1/vms/dev", 200, vm("running"));
    fake.events(
        &events(),
        vec![(0, event("stop", "asked to stop", "stopping")), (0, event("gone", "removed", "deleted"))],
    );
    let ran = fake.run(&["events", "dev", "-o", "json"]).expect(0);
    let lines: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), &lines[1]["stage"]), (2, &json!("gone")));
}
