//! libvirtd is stopped, restarted or hangs while machines are made and deleted: the API goes on answering, and in
//! the end everything is as was asked, with nothing left over.

use std::time::{Duration, Instant};

use crate::support::run::{run, until};
use crate::support::site::{BOOT, Site};
use crate::support::skip::need_libvirt;
use crate::support::traces::{assert_bare, assert_no_trace, qemus};

/// How long `gvm list` may take while libvirtd does not answer: 2 s by design, with room for a busy machine.
const ANSWER: Duration = Duration::from_secs(30);

/// What happens to libvirtd, and what ends it. Not its SIGKILL: libvirt itself leaves filter rules behind then.
const FAULTS: [(&str, &str); 3] = [("stop", "start"), ("restart", "start"), ("freeze", "thaw")];

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    /// Below 1.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(self.0 >> 33).unwrap()) / f64::from(1_u32 << 31)
    }
}

#[test]
fn libvirtd_may_fail_in_the_middle_of_create_and_delete() {
    need_libvirt!();
    let (site, manager) = Site::serving();
    // The first start makes the network, which takes longer than all that follows.
    site.gvm(&["create", "first", "--profile", "firmware"]).ok();
    let mut dice = Dice(7);
    for round in 0..2 {
        for (fault, end) in FAULTS {
            let name = format!("{fault}-{round}");
            let vm = site.ask(&["create", &name, "--profile", "firmware"]).vm;
            disturb(&site, &mut dice, fault, end);
            site.wait_for(&name, "running");
            assert_eq!(qemus(&vm).len(), 1, "{name}");
            let deleted = site.ask(&["delete", "--now", "--yes", &name]);
            disturb(&site, &mut dice, fault, end);
            site.wait_for(&vm.id, "gone");
            assert_eq!(site.outcome(&deleted.operation), "success", "{name}");
            assert_no_trace(&site, &vm);
        }
    }
    assert_eq!(site.show("first").state, "running", "others were left alone");
    site.gvm(&["delete", "--now", "--yes", "first"]).ok();
    assert_bare(&site);
    manager.stop();
}

/// The fault comes within the time that the steps take, and lasts a moment.
fn disturb(site: &Site, dice: &mut Dice, fault: &str, end: &str) {
    std::thread::sleep(Duration::from_secs_f64(dice.next()));
    site.host.libvirtd(fault);
    answers(site, (fault != "restart").then_some("unknown"));
    std::thread::sleep(Duration::from_secs_f64(dice.next()));
    site.host.libvirtd(end);
}

/// `gvm list` answers soon; with this state for all machines.
fn answers(site: &Site, state: Option<&str>) {
    let command = site.gvm_command(&["-o", "json", "list"]);
    let asked = Instant::now();
    let list: gvm::api::types::VmList = run(command, BOOT).json();
    assert!(asked.elapsed() < ANSWER, "`gvm list` took {:?}", asked.elapsed());
    if let Some(state) = state {
        let states: Vec<_> = list.vms.iter().map(|vm| vm.state.as_str()).collect();
        assert!(states.iter().all(|word| *word == state), "{states:?}");
    }
}

#[test]
fn a_libvirtd_that_hangs_for_long_is_waited_for() {
    need_libvirt!();
    let (site, manager) = Site::serving();
    site.gvm(&["create", "dev", "--profile", "firmware"]).ok();
    site.host.libvirtd("freeze");
    let vm = site.ask(&["create", "late", "--profile", "firmware"]).vm;
    site.ask(&["stop", "dev"]);
    // Longer than the deadline of a look, and than keepalive takes to notice.
    let end = Instant::now() + Duration::from_secs(25);
    while Instant::now() < end {
        answers(&site, Some("unknown"));
        std::thread::sleep(Duration::from_secs(1));
    }
    let show = site.gvm(&["show", "dev"]).text();
    assert!(show.contains("unknown"), "{show}");
    site.host.libvirtd("thaw");
    site.wait_for("late", "running");
    site.wait_for("dev", "stopped");
    assert_eq!(qemus(&vm).len(), 1);
    site.gvm(&["delete", "--now", "--yes", "late"]).ok();
    site.gvm(&["delete", "--now", "--yes", "dev"]).ok();
    assert_no_trace(&site, &vm);
    assert_bare(&site);
    manager.stop();
}

#[test]
fn a_manager_starts_without_libvirtd_and_does_its_work_when_it_comes() {
    need_libvirt!();
    let site = Site::new(crate::support::site::CONFIG);
    site.host.libvirtd("stop");
    let manager = site.serve();
    let vm = site.ask(&["create", "dev", "--profile", "firmware"]).vm;
    answers(&site, Some("unknown"));
    let refused = site.gvm(&["pause", "dev"]).fails(6);
    assert!(refused.contains("the state of VM dev is not known"), "{refused}");
    let doctor = site.gvm(&["doctor"]);
    assert!(doctor.code == 1 && doctor.stdout.contains("libvirt"), "{doctor:?}");
    site.host.libvirtd("start");
    site.wait_for("dev", "running");
    // Guests go on while libvirtd restarts.
    let before = qemus(&vm);
    site.host.libvirtd("restart");
    until("libvirtd is back for gvm", BOOT, || site.show("dev").state == "running");
    assert_eq!(qemus(&vm), before);
    site.gvm(&["delete", "--now", "--yes", "dev"]).ok();
    assert_no_trace(&site, &vm);
    assert_bare(&site);
    manager.stop();
}
