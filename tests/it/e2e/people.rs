//! Members, and people who are none.

use crate::support::site::{CONFIG, Site};
use crate::support::skip::need_libvirt;
use crate::support::traces::assert_bare;

#[test]
fn members_see_their_own_machines_and_others_are_told_what_to_do() {
    need_libvirt!();
    let site = Site::new(&format!("{CONFIG}\n[people]\nquota = {{ vms = 2 }}\n"));
    site.add_user("alice", &["gvm"]);
    site.add_user("bob", &["gvm"]);
    site.add_user("mallory", &[]);
    let manager = site.serve();
    let gvm = |user: &str, arguments: &[&str]| site.run_as(user, &[&["gvm"], arguments].concat());

    let made = gvm("alice", &["create", "dev", "--profile", "firmware"]).ok();
    assert!(made.stderr.contains("made a key for gvm"), "{}", made.stderr);
    assert!(made.stdout.contains("dev is ready"), "{}", made.stdout);
    let refused = gvm("mallory", &["list"]).fails(3);
    assert!(refused.contains("sudo usermod -aG gvm"), "{refused}");

    // What is not bob's does not exist for him, by whatever name.
    let vm = site.show("dev.alice");
    for name in ["dev", "dev.alice", &vm.id] {
        for verb in
            [&["show"][..], &["start"], &["stop"], &["delete", "--now", "--yes"], &["logs"], &["ssh"], &["console"]]
        {
            let told = gvm("bob", &[verb, &[name]].concat()).fails(4);
            assert!(told.contains(&format!("there is no VM \"{name}\"")), "{verb:?} {name}: {told}");
        }
    }
    assert_eq!(gvm("bob", &["-o", "json", "list"]).json::<gvm::api::types::VmList>().vms, []);
    gvm("bob", &["list", "--all"]).fails(3);
    gvm("bob", &["image", "import", "/etc"]).fails(3);
    gvm("bob", &["image", "rm", "tiny"]).fails(3);
    // The same name is free for another person; root sees both.
    gvm("bob", &["create", "dev", "--profile", "firmware", "--stopped"]).ok();
    let all = site.gvm(&["list", "--all"]).text();
    assert!(all.contains("alice") && all.contains("bob"), "{all}");

    gvm("bob", &["create", "two", "--profile", "firmware", "--stopped"]).ok();
    let told = gvm("bob", &["create", "three", "--profile", "firmware", "--stopped"]).fails(3);
    assert!(told.contains("over your quota of virtual machines: you have 2"), "{told}");
    let denied = site.operations().into_iter().find(|row| row.actor == "bob" && row.outcome == "denied").unwrap();
    assert_eq!(denied.action, "vm.create");

    // A key leads to one person only.
    let key = std::fs::read_dir(site.home("alice").join(".ssh")).unwrap().flatten();
    let key = key.map(|entry| entry.path()).find(|path| path.extension().is_some_and(|end| end == "pub")).unwrap();
    let text = std::fs::read(key).unwrap();
    let told = site.feed_as("bob", &["gvm", "key", "add", "-"], &text).fails(5);
    assert!(told.contains("is registered already"), "{told}");

    for (user, name) in [("alice", "dev"), ("bob", "dev"), ("bob", "two")] {
        gvm(user, &["delete", "--now", "--yes", name]).ok();
    }
    assert_bare(&site);
    manager.stop();
}
