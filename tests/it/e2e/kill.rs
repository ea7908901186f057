//! The manager is killed at every step of every story; after its next start the machine is as was asked and nothing is
//! left over.
//!
//! ```text
//!   prepare -> manager that holds at STEP -> ask all stories that pass it -> SIGKILL -> manager -> settled? traces?
//! ```
//!
//! Guests have no system, only firmware that says its name on the serial line: they start within a second and are deaf
//! to a request to shut down. [`tiny`] repeats two points with a guest that listens.

use gvm::api::types::VmView;

use crate::support::run::until;
use crate::support::site::{BOOT, CONFIG, Daemon, Site};
use crate::support::skip::{is_long, need_libvirt, say};
use crate::support::traces::{assert_bare, assert_no_trace, qemus, starts};

/// What is asked of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Story {
    Create,
    Duplicate,
    Start,
    Stop,
    ForceStop,
    Restart,
    Pause,
    Resume,
    Set,
    DeleteOff,
    DeleteRunning,
    /// Deleted with a window to undelete it in, which ends at once.
    Expire,
}

use Story::{Create, DeleteOff, DeleteRunning, Duplicate, Expire, ForceStop, Pause, Restart, Resume, Set, Start, Stop};

impl Story {
    /// The state in which it begins; none where there is no machine yet.
    const fn before(self) -> Option<&'static str> {
        match self {
            Create | Duplicate => None,
            Start | DeleteOff => Some("stopped"),
            Resume => Some("paused"),
            _ => Some("running"),
        }
    }

    const fn goal(self) -> &'static str {
        match self {
            Create | Duplicate | Start | Restart | Resume | Set => "running",
            Stop | ForceStop => "stopped",
            Pause => "paused",
            DeleteOff | DeleteRunning | Expire => "gone",
        }
    }

    /// How often the machine is started, all in all.
    const fn starts(self) -> usize {
        match self {
            DeleteOff => 0,
            Restart => 2,
            _ => 1,
        }
    }

    fn prepare(self, site: &Site, name: &str) {
        match self {
            Create => {}
            Duplicate => drop(site.ask(&["create", &format!("{name}-src"), "--profile", "firmware", "--stopped"])),
            Start | DeleteOff => drop(site.ask(&["create", name, "--profile", "firmware", "--stopped"])),
            _ => drop(site.ask(&["create", name, "--profile", "firmware"])),
        }
    }

    fn ask(self, site: &Site, name: &str) -> VmView {
        let source = format!("{name}-src");
        let words: &[&str] = match self {
            Create => &["create", name, "--profile", "firmware"],
            Duplicate => &["clone", &source, name],
            Start => &["start", name],
            Stop => &["stop", name],
            ForceStop => &["stop", "--force", name],
            Restart => &["restart", name],
            Pause => &["pause", name],
            Resume => &["resume", name],
            Set => &["set", name, "--cpu-percent", "50"],
            DeleteOff | DeleteRunning => &["delete", "--now", "--yes", name],
            Expire => &["delete", name],
        };
        site.ask(words).vm
    }
}

/// One kill: the step, and the stories that come by it.
type Point = (&'static str, &'static [Story]);

const MAKING: &[Point] = &[
    ("ensure-disk", &[Create, Duplicate]),
    ("after-ensure-disk", &[Create, Duplicate]),
    ("ensure-seed", &[Create, Duplicate]),
    ("after-ensure-seed", &[Create]),
    ("define", &[Create]),
    ("after-define", &[Create]),
    ("start", &[Create, Start, Restart]),
    ("host-entry", &[Create, Start, Restart]),
    ("start-domain", &[Create, Start, Restart]),
    ("after-start", &[Create, Start, Restart]),
    ("record-started", &[Create, Start, Restart]),
    ("after-record-started", &[Create, Start, Restart]),
    ("pause", &[Pause]),
    ("after-pause", &[Pause]),
    ("resume", &[Resume]),
    ("apply-caps", &[Set]),
    ("after-apply-caps", &[Set]),
];

const ENDING: &[Point] = &[
    ("ask-shutdown", &[Stop, Restart, Expire]),
    ("stop-asked", &[Stop, Restart]),
    ("after-ask-shutdown", &[Stop, Restart]),
    ("force-off", &[Stop, ForceStop, Restart, DeleteRunning]),
    ("after-force-off", &[Stop, ForceStop, Restart, DeleteRunning]),
    ("record-off", &[Stop, ForceStop, Restart, Expire]),
    ("after-record-off", &[Stop, Restart, Expire]),
    ("purge", &[Expire]),
    ("after-purge", &[Expire]),
    ("undefine", &[DeleteOff, DeleteRunning]),
    ("after-undefine", &[DeleteOff, DeleteRunning]),
    ("ensure-files-gone", &[DeleteOff, DeleteRunning]),
    ("files-gone", &[DeleteOff, DeleteRunning]),
    ("after-ensure-files-gone", &[DeleteOff, DeleteRunning]),
    ("forget", &[DeleteOff, DeleteRunning]),
    ("after-forget", &[DeleteOff, DeleteRunning]),
];

#[test]
fn making_starting_and_changing_survive_a_kill_at_every_step() {
    need_libvirt!();
    survive(&in_turn(MAKING));
}

#[test]
fn stopping_restarting_and_deleting_survive_a_kill_at_every_step() {
    need_libvirt!();
    survive(&in_turn(ENDING));
}

/// All 70 kills; the two above make one for each step.
#[test]
fn every_story_survives_a_kill_at_every_step_that_it_passes() {
    need_libvirt!();
    if !is_long() {
        let here = "e2e::kill::every_story_survives_a_kill_at_every_step_that_it_passes";
        return say(here, "all stories at each step, not one in turn; a long variant (GVM_LONG=1)");
    }
    survive(&[MAKING, ENDING].concat());
}

/// Each step with one of its stories, another one at each.
fn in_turn(points: &[Point]) -> Vec<Point> {
    let turn = |(number, (step, stories)): (usize, &Point)| {
        let story = number % stories.len();
        (*step, &stories[story..=story])
    };
    points.iter().enumerate().map(turn).collect()
}

/// A machine of one point.
struct Actor {
    story: Story,
    name: String,
}

fn survive(points: &[Point]) {
    let site = Site::new(&format!("{CONFIG}undelete_seconds = 1\n"));
    let mut manager = site.serve();
    let mut kills = 0;
    for (number, (step, stories)) in points.iter().enumerate() {
        let name = |story: &Story| format!("{story:?}-{number}").to_lowercase();
        let actors: Vec<_> = stories.iter().map(|story| Actor { story: *story, name: name(story) }).collect();
        kills += actors.len();
        manager = point(&site, manager, step, &actors);
    }
    assert_bare(&site);
    println!("killed at {kills} points");
    manager.stop();
}

fn point(site: &Site, manager: Daemon, step: &str, actors: &[Actor]) -> Daemon {
    for actor in actors {
        actor.story.prepare(site, &actor.name);
    }
    for Actor { story, name } in actors {
        match (story, story.before()) {
            (Duplicate, _) => site.wait_for(&format!("{name}-src"), "stopped"),
            (Resume, _) => {
                site.wait_for(name, "running");
                site.gvm(&["pause", name]).ok();
            }
            (_, Some(state)) => site.wait_for(name, state),
            (_, None) => {}
        }
    }
    until("all is recorded", BOOT, || site.operations().iter().all(|row| row.outcome != "pending"));
    manager.kill9();
    let held = site.serve_held(step);
    let vms: Vec<_> = actors.iter().map(|actor| actor.story.ask(site, &actor.name)).collect();
    until(&format!("{} machines wait at {step}", actors.len()), BOOT, || held.held() >= actors.len());
    held.kill9();
    let manager = site.serve();
    for (actor, vm) in actors.iter().zip(&vms) {
        check(site, step, actor, vm);
    }
    clear(site, actors, &vms);
    manager
}

fn check(site: &Site, step: &str, Actor { story, name }: &Actor, vm: &VmView) {
    site.wait_for(&vm.id, story.goal());
    let at = format!("{name}, killed at {step}");
    until(&format!("{at}: all is recorded"), BOOT, || {
        site.operations()
            .iter()
            .filter(|row| row.target.starts_with(&format!("{name}.")))
            .all(|row| row.outcome == "success")
    });
    assert_eq!(starts(&site.host, vm), story.starts(), "{at}: starts");
    let running = usize::from(matches!(story.goal(), "running" | "paused"));
    assert_eq!(qemus(vm).len(), running, "{at}: processes");
    match story.goal() {
        "gone" => assert_no_trace(site, vm),
        "running" => speaks(site, vm, &at),
        _ => {}
    }
    if *story == Set {
        until(&format!("{at}: the limit is in force"), BOOT, || {
            site.show(name).caps_in_force.and_then(|caps| caps.cpu_percent) == Some(50)
        });
    }
}

/// The firmware says its name on the serial line, so the machine really runs.
fn speaks(site: &Site, vm: &VmView, at: &str) {
    let log = site.state().join(format!("vms/{}/serial.log", vm.id));
    until(&format!("{at}: the firmware speaks"), BOOT, || {
        std::fs::read(&log).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains("SeaBIOS"))
    });
}

fn clear(site: &Site, actors: &[Actor], vms: &[VmView]) {
    let delete = |name: &str| site.ask(&["delete", "--now", "--yes", name]).vm;
    let mut gone = Vec::new();
    for (Actor { story, name }, vm) in actors.iter().zip(vms) {
        if story.goal() != "gone" {
            delete(name);
            gone.push(vm.clone());
        }
        if *story == Duplicate {
            gone.push(delete(&format!("{name}-src")));
        }
    }
    for vm in gone {
        site.wait_for(&vm.id, "gone");
        assert_no_trace(site, &vm);
    }
}

#[test]
fn tiny_survives_a_kill_in_its_start_and_in_its_stop() {
    need_libvirt!();
    let (site, manager) = Site::with_tiny(&CONFIG.replace("stop_grace_seconds = 1", "stop_grace_seconds = 120"));
    manager.kill9();
    let held = site.serve_held("after-start");
    let vm = site.ask(&["create", "dev", "--profile", "tiny"]).vm;
    until("it waits after the start", BOOT, || held.held() > 0);
    held.kill9();
    let manager = site.serve();
    until("its SSH server answers", BOOT, || site.show("dev").is_reachable);
    assert_eq!(starts(&site.host, &vm), 1);
    manager.kill9();
    let held = site.serve_held("stop-asked");
    site.ask(&["stop", "dev"]);
    until("it waits before it asks", BOOT, || held.held() > 0);
    held.kill9();
    let manager = site.serve();
    site.wait_for("dev", "stopped");
    assert!(!manager.log().contains("forcing it off"), "a guest that listens is not forced");
    site.gvm(&["delete", "--now", "--yes", "dev"]).ok();
    assert_no_trace(&site, &vm);
    assert_bare(&site);
    manager.stop();
}
