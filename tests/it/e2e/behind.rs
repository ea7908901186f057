//! Others have their hands on libvirt as well; and a second manager does not get in.

use gvm::api::types::VmView;

use crate::support::run::until;
use crate::support::site::{BOOT, CONFIG, Site};
use crate::support::skip::need_libvirt;
use crate::support::traces::{assert_bare, assert_no_trace, qemus, starts};

fn domain(vm: &VmView) -> String {
    format!("gvm-{}", vm.id)
}

#[test]
fn what_is_destroyed_or_undefined_behind_our_back_comes_back() {
    need_libvirt!();
    let (site, manager) = Site::serving();
    site.gvm(&["create", "dev", "--profile", "firmware"]).ok();
    let vm = site.show("dev");
    site.host.virsh(&["destroy", &domain(&vm)]).ok();
    until("it is started again", BOOT, || starts(&site.host, &vm) == 2);
    site.wait_for("dev", "running");
    site.host
        .sh(&format!("virsh -q -c qemu:///system destroy {0}; virsh -q -c qemu:///system undefine {0}", domain(&vm)));
    until("it is defined and started again", BOOT, || starts(&site.host, &vm) > 2 && qemus(&vm).len() == 1);
    site.wait_for("dev", "running");
    // What should be off is turned off again.
    site.gvm(&["stop", "dev"]).ok();
    site.host.virsh(&["start", &domain(&vm)]).ok();
    until("it is off again", BOOT, || qemus(&vm).is_empty());
    site.wait_for("dev", "stopped");
    // QEMU dies, as by the OOM killer.
    site.gvm(&["start", "dev"]).ok();
    let before = starts(&site.host, &vm);
    site.host.sh(&format!("pkill -9 -f '[g]uest=gvm-{}'", vm.id)).ok();
    until("it is started after its death", BOOT, || starts(&site.host, &vm) == before + 1);
    site.wait_for("dev", "running");
    site.gvm(&["delete", "--now", "--yes", "dev"]).ok();
    assert_no_trace(&site, &vm);
    assert_bare(&site);
    manager.stop();
}

/// A domain of somebody else.
fn foreign(site: &Site, name: &str) {
    let xml = format!(
        "<domain type='qemu'><name>{name}</name><memory unit='MiB'>32</memory><vcpu>1</vcpu>\
         <os><type arch='x86_64' machine='q35'>hvm</type></os></domain>"
    );
    std::fs::write(site.host.dir().join("foreign.xml"), xml).unwrap();
    site.host.virsh(&["define", site.host.dir().join("foreign.xml").to_str().unwrap()]).ok();
}

#[test]
fn foreign_domains_are_never_touched() {
    need_libvirt!();
    let (site, manager) = Site::serving();
    let stranger = "gvm-0190a1b2-0000-7000-8000-0123456789ab";
    foreign(&site, stranger);
    site.host.virsh(&["start", stranger]).ok();
    let vm = site.ask(&["create", "dev", "--profile", "firmware", "--stopped"]).vm;
    site.wait_for("dev", "stopped");
    until("it is defined", BOOT, || site.host.virsh(&["dominfo", &domain(&vm)]).code == 0);
    // Somebody takes its name, while no manager is there to take it back.
    manager.kill9();
    site.host.virsh(&["undefine", &domain(&vm)]).ok();
    foreign(&site, &domain(&vm));
    let manager = site.serve();
    let told = site.gvm(&["start", "dev", "--timeout", "60s"]).fails(1);
    assert!(told.contains("a domain that is not gvm's has its name or UUID"), "{told}");
    assert_eq!(site.show("dev").state, "failed");
    let xml = site.host.virsh(&["dumpxml", &domain(&vm)]).text();
    assert!(!xml.contains("gvm:vm"), "the foreign domain was changed: {xml}");
    site.host.virsh(&["undefine", &domain(&vm)]).ok();
    site.gvm(&["start", "dev"]).ok();
    site.gvm(&["delete", "--now", "--yes", "dev"]).ok();
    assert_eq!(site.host.virsh(&["domstate", stranger]).text(), "running");
    site.host.virsh(&["destroy", stranger]).ok();
    site.host.virsh(&["undefine", stranger]).ok();
    assert_no_trace(&site, &vm);
    assert_bare(&site);
    manager.stop();
}

#[test]
fn a_second_manager_does_not_get_in() {
    need_libvirt!();
    let (site, mut manager) = Site::serving();
    let told = site.serve_fails();
    assert!(told.contains("another gvm manager runs on /var/lib/gvm"), "{told}");
    site.configure(&format!("{CONFIG}state_dir = '/var/lib/gvm/other'\n"));
    let told = site.serve_fails();
    assert!(told.contains("another program listens on /run/gvm/api.sock"), "{told}");
    assert!(manager.is_alive());
    site.gvm(&["list"]).ok();
    manager.stop();
    // A file in the way is not removed.
    let socket = site.host.outside("/run/gvm/api.sock");
    assert!(!socket.exists(), "the socket goes with its manager");
    std::fs::write(&socket, "notes").unwrap();
    site.configure(CONFIG);
    let told = site.serve_fails();
    assert!(told.contains("/run/gvm/api.sock"), "{told}");
    assert_eq!(std::fs::read_to_string(&socket).unwrap(), "notes");
    std::fs::remove_file(&socket).unwrap();
    let told = site.gvm(&["list"]).fails(6);
    assert!(told.contains("the gvm manager does not run") && told.contains("gvm serve"), "{told}");
    // A dead socket is.
    site.serve().kill9();
    let told = site.gvm(&["list"]).fails(6);
    assert!(told.contains("the gvm manager does not run"), "{told}");
    site.serve().stop();
}
