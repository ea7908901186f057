//! The command line against canned answers: what it shows, what it sends, how it ends.
//!
//! Nothing here stands for the manager; the path from end to end is tested elsewhere.

mod console;
mod fake;
mod ssh;
mod terminal;
mod waiting;

use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;

use serde_json::{Value, json};

use self::fake::{Fake, accepted, mode, operation, vm, with};

#[test]
fn lists_are_tables_or_the_wire_type() {
    let fake = Fake::start();
    fake.json("GET /v1/vms", 200, json!({"vms": [vm("running"), with(vm("stopped"), json!({"name": "old"}))]}));
    let table = fake.run(&["list"]).expect(0);
    assert!(table.stdout.starts_with("NAME  STATE    CPUS"), "{}", table.page());
    assert!(table.stdout.contains("dev   running") && table.stdout.contains("old   stopped"), "{}", table.page());
    assert!(!table.stdout.contains('\u{1b}'));
    let colored = fake.run(&["list", "--color", "always"]).expect(0);
    assert!(colored.stdout.contains('\u{1b}'));
    let list: Value = serde_json::from_str(&fake.run(&["-o", "json", "list", "--all"]).expect(0).stdout).unwrap();
    assert_eq!(list["vms"][0]["name"], "dev");
    assert_eq!(fake.requests("GET /v1/vms?").last().unwrap(), "GET /v1/vms?limit=1000&all=true");
}

#[test]
fn an_empty_list_says_how_to_go_on() {
    let fake = Fake::start();
    fake.json("GET /v1/vms", 200, json!({"vms": []}));
    let ran = fake.run(&["list"]).expect(0);
    assert!(ran.stdout.is_empty() && ran.stderr.contains("gvm create"), "{}", ran.page());
    let quiet = fake.run(&["list", "-q"]).expect(0);
    assert!(quiet.stdout.is_empty() && quiet.stderr.is_empty(), "{}", quiet.page());
}

#[test]
fn errors_have_a_hint_an_exit_code_and_a_json_form() {
    let fake = Fake::start();
    for (status, code, exit) in [
        (400, "invalid", 2),
        (403, "denied", 3),
        (403, "over_quota", 3),
        (404, "not_found", 4),
        (409, "conflict", 5),
        (409, "no_capacity", 5),
        (429, "too_much", 5),
        (503, "unavailable", 6),
        (500, "internal", 1),
    ] {
        let body = json!({"code": code, "message": "that is \u{1b}[31m no", "hint": "do this", "request_id": "r-7"});
        fake.forget("GET /v1/vms/dev");
        fake.json("GET /v1/vms/dev", status, body);
        let ran = fake.run(&["show", "dev"]).expect(exit);
        assert!(ran.stderr.starts_with("error: that is \\u{1b}[31m no\nhint: do this\n"), "{}", ran.page());
        assert_eq!(ran.stderr.contains("r-7"), code == "internal", "{}", ran.page());
        let json: Value = serde_json::from_str(&fake.run(&["show", "dev", "-o", "json"]).expect(exit).stderr).unwrap();
        assert_eq!((&json["error"]["code"], &json["error"]["hint"]), (&json!(code), &json!("do this")));
    }
}

#[test]
fn what_makes_no_request_is_refused_before_anything_is_sent() {
    let fake = Fake::start();
    for args in [
        &["create", "x", "--profile", "tiny", "--gpu", "none", "--gpu", "2"][..],
        &["create", "x", "--profile", "tiny", "--cpus", "-1"],
        &["create", "x", "--profile", "tiny", "--user-data", "/nonexistent"],
        &["create", "x", "--profile", "tiny", "--user-data", "/dev/zero"],
        &["create", "x"],
        &["resize", "dev"],
        &["set", "dev"],
        &["set", "dev", "--disk-bps", "fast"],
        &["delete", "dev", "--now"],
        &["key", "add", "/dev/null"],
        &["nonsense"],
    ] {
        let ran = fake.run(args).expect(2);
        assert!(ran.stderr.starts_with("error: "), "{}", ran.page());
    }
    let json = fake.run(&["show", "../x", "-o", "json"]).expect(2);
    let json: Value = serde_json::from_str(&json.stderr).unwrap();
    assert_eq!(json["error"]["code"], "invalid");
    assert_eq!(fake.requests(""), Vec::<String>::new());
}

#[test]
fn values_are_sent_as_typed_and_the_manager_judges_them() {
    let fake = Fake::start();
    let told = "memory \"lots\" is not a size";
    fake.json("POST /v1/vms", 400, json!({"code": "invalid", "message": told}));
    let ran = fake.run(&["create", "../x", "--profile", "a b", "--memory", "lots", "--cpus", "0"]).expect(2);
    assert_eq!(ran.stderr, format!("error: {told}\n"));
    let sent = fake.requests("POST /v1/vms ").remove(0);
    for word in ["\"../x\"", "\"a b\"", "\"lots\"", "\"cpus\":0"] {
        assert!(sent.contains(word), "{word}: {sent}");
    }
}

#[test]
fn a_manager_that_does_not_run_is_explained() {
    let mut fake = Fake::start();
    fake.stop();
    let dead = fake.run(&["list"]).expect(6);
    assert!(dead.stderr.contains("nobody answers on the socket <dir>/api.sock"), "{}", dead.page());
    std::fs::remove_file(fake.socket()).unwrap();
    let missing = fake.run(&["list"]).expect(6);
    assert!(
        missing.stderr.contains("there is no socket") && missing.stderr.contains("gvm serve"),
        "{}",
        missing.page()
    );
    let json: Value = serde_json::from_str(&fake.run(&["-ojson", "list"]).expect(6).stderr).unwrap();
    assert_eq!(json["error"]["code"], "unavailable");
}

#[test]
fn who_is_not_in_the_group_is_told_how_to_join_it() {
    let fake = Fake::start();
    let mut command = fake.gvm(&["list"]);
    if nix::unistd::geteuid().is_root() {
        // Root passes every permission, and the folder of the socket is root's alone.
        command.uid(65534).gid(65534);
    } else {
        std::fs::set_permissions(fake.socket(), std::fs::Permissions::from_mode(0o000)).unwrap();
    }
    match command.output() {
        Ok(output) => {
            let ran = fake.ran(output).expect(3);
            assert!(ran.stderr.contains("sudo usermod -aG gvm $USER"), "{}", ran.page());
        }
        Err(error) => println!("skipped: another user cannot run the program here: {error}"),
    }
}

#[test]
fn the_socket_comes_from_the_configuration_unless_it_is_given() {
    let fake = Fake::start();
    fake.json("GET /v1/vms", 200, json!({"vms": []}));
    let config = fake.home().join("gvm.toml");
    std::fs::write(&config, format!("[manager]\nsocket = {:?}\n", fake.socket())).unwrap();
    let mut command = fake.gvm(&["list", "--config", config.to_str().unwrap()]);
    let _ = fake.ran(command.env_remove("GVM_SOCKET").output().unwrap()).expect(0);
    std::fs::write(&config, "[manager]\nsokcet = '/x'\n").unwrap();
    let mut command = fake.gvm(&["list"]);
    command.env_remove("GVM_SOCKET").env("GVM_CONFIG", &config);
    let ran = fake.ran(command.output().unwrap()).expect(2);
    assert!(ran.stderr.contains("unknown field `sokcet`"), "{}", ran.page());
    let checked = fake.run(&["check-config", config.to_str().unwrap()]).expect(2);
    assert!(checked.stderr.contains("gvm.toml"), "{}", checked.page());
    let given = fake.ran(fake.gvm(&["list"]).env("GVM_CONFIG", &config).output().unwrap());
    let _ = given.expect(0);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let fake = Fake::start();
    for args in [&["completions", "bash"][..], &["man"], &["--help"], &["completions", "zsh"]] {
        let mut child = fake.gvm(args).spawn().unwrap();
        let mut first = [0; 1];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        let ran = fake.ran(child.wait_with_output().unwrap()).expect(0);
        assert_eq!(ran.stderr, "", "{args:?}");
    }
}

#[test]
fn limits_are_changed_one_by_one_and_lifted_by_none() {
    let fake = Fake::start();
    let after = with(vm("running"), json!({"caps": {"cpu_percent": 100, "net_in_bytes_per_sec": 10485760}}));
    fake.json(&format!("PATCH {}", "/v1/vms/dev"), 202, json!({"operation": "op-1", "vm": after, "notes": []}));
    fake.json(&format!("GET {}", fake::VM), 200, after.clone());
    fake.json("GET /v1/operations/op-1", 200, operation("success", ""));
    let ran = fake.run(&["set", "dev", "--disk-iops", "none", "--net-in", "10M", "--ttl", "8h"]).expect(0);
    assert_eq!(ran.stdout, "dev: limits cpu-percent 100, net-in 10M/s; lifetime none\n");
    let sent = fake.requests("PATCH /v1/vms/dev ").remove(0);
    let sent: Value =
        serde_json::from_str(sent.split_once(" {").map(|(_, rest)| format!("{{{rest}")).as_deref().unwrap()).unwrap();
    assert_eq!(sent["caps"], json!({"disk_iops": null, "net_in_bytes_per_sec": 10485760}));
    assert_eq!(sent["ttl"], "8h");
}

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdZ0vJtYXQ0ZXJvZnRlc3RzYW5kbm90aGluZ2Vsc2Uh eve@laptop";

fn without_keys() -> Fake {
    let fake = Fake::start();
    fake.forget("GET /v1/me");
    fake.json("GET /v1/me", 200, json!({"name": "alice", "role": "member", "keys": 0}));
    let key = json!({"id": "k", "fingerprint": "SHA256:x", "kind": "ssh-ed25519", "comment": "", "added_at": ""});
    fake.json("POST /v1/keys", 201, key);
    fake.json("POST /v1/vms", 202, accepted("creating"));
    fake
}

#[test]
fn the_first_create_registers_the_key_that_is_there() {
    let fake = without_keys();
    std::fs::create_dir(fake.home().join(".ssh")).unwrap();
    std::fs::write(fake.home().join(".ssh/id_ed25519.pub"), KEY).unwrap();
    let ran = fake.run(&["create", "dev", "--profile", "debian", "--no-wait"]).expect(0);
    assert!(ran.stderr.contains("registered your key <dir>/home/.ssh/id_ed25519.pub"), "{}", ran.page());
    assert!(ran.stdout.contains("gvm events dev"), "{}", ran.page());
    assert!(fake.requests("POST /v1/keys")[0].contains("eve@laptop"));
    assert!(fake.requests("POST /v1/vms ")[0].contains("\"profile\":\"debian\""));
}

#[test]
fn the_first_create_makes_a_key_where_there_is_none() {
    let fake = without_keys();
    let ran = fake.run(&["create", "dev", "--profile", "debian", "--no-wait"]).expect(0);
    assert!(ran.stderr.contains("made a key for gvm, without a passphrase"), "{}", ran.page());
    assert_eq!(mode(&fake.home().join(".ssh")), 0o700);
    assert_eq!(mode(&fake.home().join(".ssh/gvm_ed25519")), 0o600);
    assert!(fake.requests("POST /v1/keys")[0].contains("ssh-ed25519 AAAA"));
    // The next one finds it.
    let again = fake.run(&["create", "dev", "--profile", "debian", "--no-wait"]).expect(0);
    assert!(!again.stderr.contains("made a key"), "{}", again.page());
}

#[test]
fn on_a_terminal_the_first_create_asks() {
    let fake = without_keys();
    std::fs::create_dir(fake.home().join(".ssh")).unwrap();
    for name in ["id_ed25519.pub", "id_rsa.pub"] {
        std::fs::write(fake.home().join(".ssh").join(name), KEY).unwrap();
    }
    let create = ["create", "dev", "--profile", "debian", "--no-wait"];
    let mut it = terminal::OnTerminal::start(fake.gvm(&create));
    it.until("id_ed25519.pub (SHA256:F7YbSowSTz+aNLLioAXbOKSqaX5Xv5P175F2ktLfOrg)? [Y/n] ");
    it.type_in(b"n\n");
    it.until("id_rsa.pub");
    it.type_in(b"\n");
    it.until("registered your key");
    assert_eq!(it.end(), Some(0));
    // Who wants none of them is told how to go on, and nothing is made.
    let mut it = terminal::OnTerminal::start(fake.gvm(&create));
    for question in ["id_ed25519.pub", "id_rsa.pub", "Make a key"] {
        it.until(question);
        it.type_in(b"n\n");
    }
    it.until("gvm key add FILE");
    assert_eq!(it.end(), Some(2));
    assert_eq!(fake.requests("POST /v1/vms").len(), 1);
}

#[test]
fn what_cannot_be_undone_is_asked_on_a_terminal() {
    let fake = Fake::start();
    fake.json("DELETE /v1/vms/dev?now=true", 202, accepted("deleting"));
    for (answer, code, sent) in [(&b"\n"[..], 1, 0), (b"y\n", 0, 1)] {
        let mut it = terminal::OnTerminal::start(fake.gvm(&["delete", "dev", "--now", "--no-wait"]));
        it.until("for good? [y/N] ");
        it.type_in(answer);
        assert_eq!((it.end(), fake.requests("DELETE").len()), (Some(code), sent));
    }
}

#[test]
fn keys_are_removed_by_fingerprint() {
    let fake = Fake::start();
    fake.json("DELETE /v1/keys/SHA256%3Aa%2Fb", 200, json!({}));
    let _ = fake.run(&["key", "rm", "SHA256:a/b"]).expect(0);
    let text = fake.gvm(&["key", "add", "-"]).output().unwrap();
    assert!(fake.ran(text).expect(2).stderr.contains("no public key found"));
}

#[test]
fn checks_that_find_faults_end_with_one() {
    let fake = Fake::start();
    let finding = json!({"check": "space", "level": "fail", "message": "2 GiB free", "fix": "make room"});
    fake.json("GET /v1/doctor", 200, json!({"findings": [finding]}));
    fake.json("GET /v1/version", 200, json!({"version": "99.0.0", "parts": {}}));
    let ran = fake.run(&["doctor"]).expect(1);
    assert!(
        ran.stdout.contains("space: make room") && ran.stderr.contains("the manager is gvm 99.0.0"),
        "{}",
        ran.page()
    );
    let warned = json!({"check": "vfio", "level": "warn", "message": "not loaded", "fix": "modprobe vfio-pci\nreboot"});
    fake.json("GET /v1/doctor?profile=ubuntu-cuda", 200, json!({"findings": [warned]}));
    let ran = fake.run(&["doctor", "--profile", "ubuntu-cuda"]).expect(0);
    insta::assert_snapshot!(ran.stdout, @r"
    LEVEL  CHECK  FINDING
    warn   vfio   not loaded

    To mend it:
      vfio: modprobe vfio-pci
      vfio: reboot
    ");
    assert!(fake.run(&["doctor", "--profile", "no such"]).expect(2).stderr.contains("no such"));
    let verdict =
        json!({"ok": false, "findings": ["fault: no GPU"], "template_diff": "", "xml": "", "native": "", "gpus": []});
    fake.json("POST /v1/profiles/ubuntu-cuda/check", 200, verdict);
    let fixture = fake.home().join("gpus.json");
    std::fs::write(&fixture, r#"{"gpus": []}"#).unwrap();
    let ran = fake.run(&["profile", "check", "ubuntu-cuda", "--gpu-fixture", fixture.to_str().unwrap()]).expect(1);
    assert_eq!(ran.stdout, "fault: no GPU\nubuntu-cuda: no machine can be made from it\n");
    assert!(fake.requests("POST /v1/profiles")[0].contains(r#"{"gpu_fixture":{"gpus":[]}}"#));
}

#[test]
fn a_log_is_printed_as_it_is() {
    let fake = Fake::start();
    fake.json("GET /v1/vms/dev", 200, vm("running"));
    fake.text(&format!("GET {}/logs?lines=5", fake::VM), "boot\u{1b}[1m ok\r\n");
    assert_eq!(fake.run(&["logs", "dev", "-n", "5"]).expect(0).stdout, "boot\u{1b}[1m ok\r\n");
}

#[test]
fn a_machine_without_a_list_of_authorities_needs_none_for_the_socket() {
    let folder = tempfile::tempdir().unwrap();
    let ended = std::process::Command::new(env!("CARGO_BIN_EXE_gvm"))
        .args(["--socket", folder.path().join("none.sock").to_str().unwrap(), "list"])
        .env("SSL_CERT_FILE", folder.path().join("none.pem"))
        .env("SSL_CERT_DIR", folder.path().join("none"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(6) && said.contains("there is no socket"), "{said}");
}
