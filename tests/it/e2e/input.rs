//! What people type wrongly, through the real command line and the real manager: an exit code, a word on what is wrong,
//! a row of the record, and nothing left.

use serde_json::json;

use crate::support::run::{run, run_with};
use crate::support::site::{BOOT, Site};
use crate::support::skip::need_libvirt;
use crate::support::traces::{assert_bare, assert_no_trace, rows};

const NAMES: [&str; 16] = [
    "",
    "a b",
    "../x",
    "/etc/passwd",
    "a'b",
    "a\"b",
    "<b>",
    "a&b",
    "Dev",
    "-dev",
    "dev-",
    "1dev",
    "d\u{e9}v",
    "开发",
    "a\u{7}b",
    "a\nb",
];

/// Of the checked command lines those that make no request: no profile.
const NO_REQUEST: usize = 1;

#[test]
fn bad_values_are_refused_with_a_reason() {
    need_libvirt!();
    let (site, manager) = Site::with_tiny(crate::support::site::CONFIG);
    let long = "x".repeat(64);
    for name in NAMES.iter().copied().chain([long.as_str(), "x".repeat(5000).as_str()]) {
        let told = site.gvm(&["create", "--profile", "tiny", "--", name]).fails(2);
        assert!(told.contains("VM name") && told.contains("a-z"), "{name:?}: {told}");
        assert!(!told.contains('\u{7}'), "control characters are not passed on: {told:?}");
    }
    let checks = std::cell::Cell::new(NAMES.len() + 2);
    let check = |arguments: &[&str], code: i32, words: &[&str]| {
        checks.set(checks.get() + 1);
        let told = site.gvm(&[&["create", "bad"], arguments].concat()).fails(code);
        for word in words {
            assert!(told.contains(word), "{arguments:?}: {told}");
        }
    };
    let tiny = ["--profile", "tiny"];
    check(&[&tiny[..], &["--memory", "0"]].concat(), 2, &["memory"]);
    check(&[&tiny[..], &["--memory", "1M"]].concat(), 2, &["1 MiB of memory is too small", "64 MiB"]);
    check(&[&tiny[..], &["--memory", "900T"]].concat(), 2, &["more than this host can give", "use --memory"]);
    check(&[&tiny[..], &["--memory", "lots"]].concat(), 2, &["is not a size"]);
    check(&[&tiny[..], &["--memory=-1G"]].concat(), 2, &["is not a size"]);
    check(&[&tiny[..], &["--memory", "99999999999999999999G"]].concat(), 2, &["is not a size"]);
    check(&[&tiny[..], &["--cpus", "0"]].concat(), 2, &["at least 1 CPU"]);
    check(&[&tiny[..], &["--cpus", "1000"]].concat(), 2, &["more than this host has"]);
    check(&[&tiny[..], &["--disk", "1M"]].concat(), 2, &["too small for image tiny", "16 MiB"]);
    check(&[&tiny[..], &["--disk", "17T"]].concat(), 2, &["too large"]);
    check(&["--profile", "nope"], 4, &["there is no profile nope", "gvm profile list"]);
    check(&["--profile", "debian"], 4, &["there is no image debian", "gvm image list"]);
    check(&[&tiny[..], &["--image", "nope"]].concat(), 4, &["there is no image nope"]);
    check(&["--profile", "../tiny"], 2, &["profile name"]);
    check(&[&tiny[..], &["--cpu-percent", "0"]].concat(), 2, &["cpu-percent is 0"]);
    check(&[&tiny[..], &["--ttl", "soon"]].concat(), 2, &["is not a duration"]);
    check(&[&tiny[..], &["--gpu", "1"]].concat(), 2, &["GPU"]);
    check(&[&tiny[..], &["--tag", "two words"]].concat(), 2, &["tag"]);
    check(&[], 2, &["--profile"]);

    let folder = site.host.dir();
    for (name, text, words) in [
        ("tabs.yaml", "#cloud-config\nusers:\n\t- name: x\n", "user data"),
        ("list.yaml", "#cloud-config\n- a\n- b\n", "user data"),
        ("what.txt", "hello there\n", "user data"),
        ("binary", "\u{0}\u{1}\u{2}", "user data"),
    ] {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        check(&[&tiny[..], &["--user-data", path.to_str().unwrap()]].concat(), 2, &[words]);
    }
    std::fs::write(folder.join("huge"), vec![b'#'; 300 << 10]).unwrap();
    let sent = checks.get() - NO_REQUEST;
    check(&[&tiny[..], &["--user-data", folder.join("huge").to_str().unwrap()]].concat(), 2, &["has more than"]);
    check(&[&tiny[..], &["--user-data", "/nonexistent"]].concat(), 2, &["/nonexistent"]);

    keys(&site);
    assert_eq!(rows(&site, "SELECT count(*) FROM vms"), 0);
    let refusals = site.operations().iter().filter(|row| row.action == "vm.create" && row.outcome == "denied").count();
    assert_eq!(refusals, sent, "each is on the record");
    assert_bare(&site);
    manager.stop();
}

/// Keys of kinds that are not taken, or no keys at all.
fn keys(site: &Site) {
    for (text, word) in [
        ("ssh-dss AAAAB3NzaC1kc3MAAACB x", "ssh-dss"),
        ("ssh-ed25519 AAAA", ""),
        ("ssh-ed25519 !!!!", ""),
        ("hello", ""),
        ("", ""),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n", "private"),
    ] {
        let told = run_with(site.gvm_command(&["key", "add", "-"]), text.as_bytes(), BOOT).fails(2);
        assert!(told.to_lowercase().contains(word), "{text:?}: {told}");
    }
}

/// The manager checks by itself what the command line would not have let through.
#[test]
fn requests_past_the_command_line_are_checked_as_well() {
    need_libvirt!();
    let (site, manager) = Site::serving();
    let post = |body: serde_json::Value| {
        let socket = site.host.outside("/run/gvm/api.sock");
        let client = gvm::api::client::Client::new(&socket).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(client.post::<_, serde_json::Value>("/v1/vms", &body)).unwrap_err()
    };
    use gvm::api::error::ErrorCode::{Invalid, NotFound};
    for name in NAMES {
        let error = post(json!({ "name": name, "profile": "firmware" }));
        assert_eq!(error.code(), Invalid, "{name:?}: {error}");
    }
    for (body, code) in [
        (json!({ "name": "x", "profile": "firmware", "memory": "0" }), Invalid),
        (json!({ "name": "x", "profile": "firmware", "cpus": 0 }), Invalid),
        (json!({ "name": "x", "profile": "firmware", "cpus": u32::MAX }), Invalid),
        (json!({ "name": "x", "profile": "firmware", "cpus": -1 }), Invalid),
        (json!({ "name": "x", "profile": "<nope>" }), Invalid),
        (json!({ "name": "x", "profile": "nope" }), NotFound),
        (json!({ "name": "x", "profile": "firmware", "priority": "high" }), Invalid),
        (json!({ "name": "x", "profile": "firmware", "sudo": true }), Invalid),
        (json!({ "name": "x", "profile": "firmware", "user_data": "no" }), Invalid),
        (
            json!({ "name": "x", "profile": "firmware", "tags": (0..33).map(|n| format!("t{n}")).collect::<Vec<_>>() }),
            Invalid,
        ),
        (json!([]), Invalid),
    ] {
        let error = post(body.clone());
        assert_eq!(error.code(), code, "{body}: {error}");
    }
    assert_eq!(rows(&site, "SELECT count(*) FROM vms"), 0);
    assert_bare(&site);
    manager.stop();
}

#[test]
fn of_two_creates_of_one_name_one_is_refused() {
    need_libvirt!();
    let (site, manager) = Site::serving();
    // The first call of all registers the key.
    site.gvm(&["create", "first", "--profile", "firmware", "--stopped"]).ok();
    let create = || run(site.gvm_command(&["create", "dev", "--profile", "firmware"]), BOOT);
    let ended = std::thread::scope(|scope| {
        let both = [scope.spawn(create), scope.spawn(create)];
        both.map(|one| one.join().unwrap())
    });
    let mut codes = ended.each_ref().map(|one| one.code);
    codes.sort_unstable();
    assert_eq!(codes, [0, 5], "{ended:?}");
    let refused = ended.iter().find(|one| one.code == 5).unwrap();
    assert!(refused.stderr.contains("you already have a VM named dev"), "{refused:?}");
    assert_eq!(rows(&site, "SELECT count(*) FROM vms"), 2);
    for name in ["first", "dev"] {
        let vm = site.show(name);
        site.gvm(&["delete", "--now", "--yes", name]).ok();
        assert_no_trace(&site, &vm);
    }
    assert_bare(&site);
    manager.stop();
}
