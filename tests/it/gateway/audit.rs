//! What the gateway offers, as an auditor's program judges it.

use std::path::Path;

use tokio::process::Command;

use crate::support::skip;
use crate::support::ssh::{World, run};

fn script(argument: Option<String>) -> Command {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/audit-ssh.sh"));
    command.env("GVM_BIN", env!("CARGO_BIN_EXE_gvm")).args(argument);
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_auditor_finds_nothing_to_fail() {
    let mut look = std::process::Command::new("sh");
    if !look.args(["-c", "command -v ssh-audit >/dev/null"]).status().unwrap().success() {
        skip::say("gateway::audit::an_auditor_finds_nothing_to_fail", "needs the package ssh-audit");
        return;
    }
    let world = World::new().await;
    // The one of this test, and one that the script starts by itself.
    for target in [Some(world.address.to_string()), None] {
        let done = run(script(target), b"").await.ok();
        assert!(done.out().starts_with("no [fail] mark"), "{done:?}");
    }
    // It opened connection after connection without a login, which is no failure.
    world.ssh(&["dev@gw", "true"]).await.ok();
    // A host that does not answer is no good one.
    let done = run(script(Some("127.0.0.1:1".to_owned())), b"").await;
    assert!(done.code == Some(1) && done.stderr.contains("did not come to a result"), "{done:?}");
}

/// What OpenSSH 8.0 offers at most: neither its successors' exchanges nor their ciphers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_clients_still_find_something_to_agree_on() {
    let world = World::new().await;
    for options in [
        &["KexAlgorithms=curve25519-sha256@libssh.org", "Ciphers=aes128-ctr", "MACs=hmac-sha2-256"][..],
        &["KexAlgorithms=curve25519-sha256,ecdh-sha2-nistp256", "Ciphers=aes256-gcm@openssh.com"],
        &["KexAlgorithms=curve25519-sha256", "Ciphers=chacha20-poly1305@openssh.com"],
        &["KexAlgorithms=curve25519-sha256", "Ciphers=aes192-ctr", "MACs=hmac-sha2-512-etm@openssh.com"],
    ] {
        let mut arguments: Vec<&str> = options.iter().flat_map(|option| ["-o", option]).collect();
        arguments.extend(["dev@gw", "true"]);
        world.ssh(&arguments).await.ok();
    }
}
