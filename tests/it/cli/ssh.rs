//! `ssh`, `scp` and `ssh-config`: what OpenSSH is given.

use std::process::Command;

use serde_json::json;

use super::fake::{Fake, VM, mode, names, ssh_info, vm, with};

fn fake() -> Fake {
    let fake = Fake::start();
    fake.json("GET /v1/vms/dev", 200, vm("running"));
    fake.json("GET /v1/vms", 200, json!({"vms": [vm("running")]}));
    fake.json(&format!("GET {VM}/ssh"), 200, ssh_info());
    fake.json("GET /v1/gateway", 200, ssh_info()["gateway"].clone());
    fake
}

const STATE: &str = "<dir>/home/.local/state/gvm/ssh/0192f0c1-2b3c-7d4e-8f50-111213141516";

#[test]
fn ssh_is_the_real_one_with_a_configuration_and_its_exit_code() {
    let fake = fake();
    fake.program("ssh", "echo \"$@\"; exit 42");
    let ran = fake.run(&["ssh", "dev", "uname", "-a"]).expect(42);
    assert_eq!(ran.stdout, format!("-F {STATE}.conf -l debian dev.gvm uname -a\n"));
    let ran = fake.run(&["ssh", "root@dev", "--", "-L", "1:x:2"]).expect(42);
    assert_eq!(ran.stdout, format!("-F {STATE}.conf -l root dev.gvm -L 1:x:2\n"));
    let ran = fake.run(&["ssh", "--direct", "dev"]).expect(42);
    assert_eq!(ran.stdout, format!("-F {STATE}.direct.conf -l debian dev.gvm\n"));
    let dir = fake.home().join(".local/state/gvm/ssh");
    assert_eq!(mode(&dir), 0o700);
    for name in names(&dir) {
        assert_eq!(mode(&dir.join(&name)), 0o600, "{name}");
    }
    assert_eq!(names(&dir).len(), 4);
}

#[test]
fn openssh_understands_the_configuration() {
    let fake = fake();
    let _ = fake.run(&["ssh", "dev", "-G"]).expect(0);
    let config = fake.home().join(".local/state/gvm/ssh/0192f0c1-2b3c-7d4e-8f50-111213141516.conf");
    let ask = |host: &str| {
        let said = Command::new("ssh").arg("-G").arg("-F").arg(&config).arg(host).output().unwrap();
        assert!(said.status.success(), "{said:?}");
        String::from_utf8(said.stdout).unwrap()
    };
    let guest = ask("dev.gvm");
    for line in [
        "hostname dev.alice",
        "user debian",
        "proxyjump gvm-gw",
        "hostkeyalias gvm-0192f0c1-2b3c-7d4e-8f50-111213141516",
        "stricthostkeychecking true",
    ] {
        assert!(guest.lines().any(|l| l == line), "{line} is not in\n{guest}");
    }
    let gateway = ask("gvm-gw");
    assert!(gateway.contains("hostname localhost\n") && gateway.contains("port 2222\n"), "{gateway}");
}

#[test]
fn a_machine_that_is_off_is_explained_before_ssh_is_run() {
    let fake = fake();
    fake.forget("GET /v1/vms/dev");
    fake.json("GET /v1/vms/dev", 200, vm("stopped"));
    fake.program("ssh", "exit 42");
    let ran = fake.run(&["ssh", "dev"]).expect(5);
    assert_eq!(ran.stderr, "error: dev is stopped: one cannot log in\nhint: start it with `gvm start dev`\n");
    fake.forget("GET /v1/vms/dev");
    assert_eq!(fake.run(&["ssh", "dev"]).expect(4).stdout, "");
}

#[test]
fn a_gateway_that_never_ran_is_explained() {
    let fake = fake();
    fake.forget(&format!("GET {VM}/ssh"));
    let gateway = json!({"host": "localhost", "port": 2222, "host_keys": []});
    fake.json(&format!("GET {VM}/ssh"), 200, with(ssh_info(), json!({"gateway": gateway})));
    let ran = fake.run(&["ssh", "dev"]).expect(6);
    assert!(
        ran.stderr.contains("the SSH gateway has not run yet") && ran.stderr.contains("gvm-gateway"),
        "{}",
        ran.page()
    );
}

#[test]
fn scp_names_machines_on_either_side() {
    let fake = fake();
    fake.program("scp", "echo \"$@\"; exit 3");
    let ran = fake.run(&["scp", "a b.txt", "dev:/tmp/x:y"]).expect(3);
    assert_eq!(ran.stdout, format!("-F {STATE}.conf a b.txt debian@dev.gvm:/tmp/x:y\n"));
    let ran = fake.run(&["scp", "--", "-r", "-l", "100", "root@dev:", "."]).expect(3);
    assert_eq!(ran.stdout, format!("-F {STATE}.conf -r -l 100 root@dev.gvm: .\n"));
    let ran = fake.run(&["scp", "a", "b"]).expect(2);
    assert!(ran.stderr.contains("no machine is named"), "{}", ran.page());
}

#[test]
fn ssh_config_is_printed_with_the_keys_it_refers_to() {
    let fake = fake();
    let ran = fake.run(&["ssh-config", "--short"]).expect(0);
    assert!(ran.stdout.contains("Host dev.gvm dev.alice.gvm dev\n"), "{}", ran.page());
    let known = std::fs::read_to_string(fake.home().join(".local/state/gvm/ssh/known_hosts")).unwrap();
    assert!(known.starts_with("[localhost]:2222,[127.0.0.1]:2222,[::1]:2222 ssh-ed25519 "), "{known}");
    assert!(!fake.home().join(".ssh").exists());
}

#[test]
fn ssh_config_is_written_twice_with_the_same_end() {
    let fake = fake();
    let ssh = fake.home().join(".ssh");
    std::fs::create_dir(&ssh).unwrap();
    let theirs = "Host *\n  ServerAliveInterval 5\n";
    std::fs::write(ssh.join("config"), theirs).unwrap();
    let first = fake.run(&["ssh-config", "--write"]).expect(0);
    insta::assert_snapshot!("ssh_config_write", first.page());
    let read =
        || ["config", "gvm/config", "gvm/known_hosts"].map(|name| std::fs::read_to_string(ssh.join(name)).unwrap());
    let before = read();
    assert_eq!(before[0], format!("Include gvm/config\n\n{theirs}"));
    let second = fake.run(&["ssh-config", "--write"]).expect(0);
    assert!(second.stdout.contains("includes it already"), "{}", second.page());
    assert_eq!(read(), before);
    assert_eq!(
        (mode(&ssh.join("gvm")), mode(&ssh.join("gvm/config")), mode(&ssh.join("gvm/known_hosts"))),
        (0o700, 0o600, 0o600)
    );
    assert_eq!(names(&ssh), ["config", "gvm"]);
    // From now on the next line is plain ssh, and changes keep the files up to date.
    fake.json("POST /v1/vms/dev/start", 202, super::fake::accepted("creating"));
    fake.json(&format!("GET {VM}"), 200, vm("running"));
    assert!(fake.run(&["start", "dev"]).expect(0).stdout.ends_with("ssh dev.gvm\n"));
    fake.forget("GET /v1/vms");
    fake.json("GET /v1/vms", 200, json!({"vms": []}));
    fake.json("DELETE /v1/vms/dev", 202, super::fake::accepted("deleted"));
    let _ = fake.run(&["delete", "dev", "--no-wait"]).expect(0);
    assert!(!read()[1].contains("dev.gvm"));
}

#[test]
fn the_gateway_is_known_to_plain_ssh_as_well() {
    let fake = fake();
    let _ = fake.run(&["ssh-config", "--write"]).expect(0);
    let config = fake.home().join(".ssh/gvm/config");
    let ask = |port: &str| {
        let said =
            Command::new("ssh").args(["-G", "-F"]).arg(&config).args(["-p", port, "dev@localhost"]).output().unwrap();
        String::from_utf8(said.stdout).unwrap()
    };
    assert!(ask("2222").contains(".ssh/gvm/known_hosts"), "{}", ask("2222"));
    assert!(!ask("22").contains(".ssh/gvm/known_hosts"));
}
