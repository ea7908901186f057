//! Access that ends while connections are open, and clients that fail to log in.

use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gvm::api::types::EndedAccess;
use gvm::gateway::directory::Ending;
use gvm::model::backoff::Rules;
use jiff::SignedDuration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Child;

use crate::support::ssh::{Wanted, World, free_port, keygen};

/// A client whose command has begun and goes on for long.
async fn session(world: &World, options: &[&str]) -> Child {
    let arguments = [options, &["echo ready; sleep 100"]].concat();
    let mut client = world.client("ssh", &arguments);
    let mut child = client.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 5];
    let read = child.stdout.as_mut().unwrap().read_exact(&mut ready);
    tokio::time::timeout(Duration::from_secs(20), read).await.expect("not ready").unwrap();
    child
}

/// Waits for its end; gives how long it took and what it said.
async fn ended(mut child: Child) -> (Duration, String) {
    let begun = Instant::now();
    let mut text = String::new();
    let read = child.stderr.as_mut().unwrap().read_to_string(&mut text);
    tokio::time::timeout(Duration::from_secs(20), read).await.expect("it goes on").unwrap();
    child.wait().await.unwrap();
    (begun.elapsed(), text)
}

fn lives(child: &mut Child) -> bool {
    child.try_wait().unwrap().is_none()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ended_is_closed_within_a_second_with_the_reason() {
    let world = World::new().await;
    world.book.register(&keygen(&world.path("second"), &["-t", "ed25519"]), "alice");
    world.book.register(&keygen(&world.path("bobs"), &["-t", "ed25519"]), "bob");
    let shell = session(&world, &["-tt", "dev@gw"]).await;
    let jump = session(&world, &["-J", "gw", "dev"]).await;
    let port = free_port().to_string();
    let forward = session(&world, &["-L", &format!("{port}:localhost:1"), "dev@gw"]).await;
    world.write_config("second");
    let mut second = session(&world, &["dev@gw"]).await;
    world.write_config("bobs");
    let mut bobs = session(&world, &["dev@gw"]).await;

    // One key of alice, then all of hers.
    let print = std::process::Command::new("ssh-keygen").arg("-lf").arg(world.path("member.pub")).output().unwrap();
    let print = String::from_utf8(print.stdout).unwrap().split_whitespace().nth(1).unwrap().to_owned();
    world.book.end("alice", EndedAccess::Key, Some(&print));
    for (child, says_why) in [(shell, true), (jump, false), (forward, true)] {
        let (took, text) = ended(child).await;
        assert!(took < Duration::from_secs(1), "{took:?} {text}");
        assert!(!says_why || text.contains("gvm: your access was ended"), "{text}");
    }
    assert!(lives(&mut second) && lives(&mut bobs));
    world.book.end("alice", EndedAccess::All, None);
    let (took, text) = ended(second).await;
    assert!(took < Duration::from_secs(1) && text.contains("gvm: your access was ended"), "{took:?} {text}");
    assert!(lives(&mut bobs));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_role_or_team_ends_what_leads_to_machines_of_others() {
    let world = World::new().await;
    let mut target = world.target();
    target.label = "lab.bob".to_owned();
    world.book.set("lab.bob", Ok(target));
    let theirs = session(&world, &["lab.bob@gw"]).await;
    let mut own = session(&world, &["dev@gw"]).await;
    world.book.end("alice", EndedAccess::Others, None);
    let (took, text) = ended(theirs).await;
    assert!(took < Duration::from_secs(1) && text.contains("gvm: your access was ended"), "{took:?} {text}");
    assert!(lives(&mut own));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_listen_is_cut_off_as_soon() {
    let world = World::new().await;
    let count = world.path("count");
    let command = format!("while head -c 65536 /dev/zero; do echo >> {} || exit; done", count.display());
    let mut client = world.client("ssh", &["dev@gw", &command]);
    // Its output is read by nobody, so that its connection is stuck.
    let mut child = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 1];
    child.stdout.as_mut().unwrap().read_exact(&mut first).await.unwrap();
    let stopped = nix::unistd::Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap());
    tokio::time::sleep(Duration::from_secs(1)).await;
    nix::sys::signal::kill(stopped, nix::sys::signal::Signal::SIGSTOP).unwrap();
    world.book.end("alice", EndedAccess::All, None);
    tokio::time::sleep(Duration::from_secs(1)).await;
    // The machine's end is gone: whatever the client still holds leads nowhere.
    let log = std::fs::read_to_string(world.path("guest/sshd.log")).unwrap();
    assert!(
        log.contains("Received disconnect") || log.contains("Connection closed by") || log.contains("Connection reset"),
        "{log}"
    );
    nix::sys::signal::kill(stopped, nix::sys::signal::Signal::SIGCONT).unwrap();
    let _ = child.stdin.take().unwrap().write_all(b"more").await;
    child.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ended_while_nobody_listened_is_found_out() {
    let world = World::new().await;
    world.book.register(&keygen(&world.path("bobs"), &["-t", "ed25519"]), "bob");
    let alice = session(&world, &["dev@gw"]).await;
    world.write_config("bobs");
    let mut bobs = session(&world, &["dev@gw"]).await;
    // The manager goes down; meanwhile nobody is let go for that.
    world.book.is_down.store(true, Ordering::SeqCst);
    world.book.restart();
    tokio::time::sleep(Duration::from_millis(700)).await;
    world.book.keys.lock().unwrap().retain(|_, user| user != "alice");
    world.book.is_down.store(false, Ordering::SeqCst);
    let (took, text) = ended(alice).await;
    assert!(took < Duration::from_secs(8) && text.contains("gvm: your access was ended"), "{took:?} {text}");
    assert!(lives(&mut bobs));
    // A message that was lost on the way.
    world.book.keys.lock().unwrap().clear();
    world.book.endings.lock().unwrap().send(Ending::Missed).unwrap();
    let (took, _) = ended(bobs).await;
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logins_are_asked_about_again_and_a_revoked_certificate_ends_its_sessions() {
    let wanted = Wanted { takes_certificates: true, recheck: Duration::from_millis(500), ..Wanted::default() };
    let world = World::with(wanted).await;
    let sign = |key: &str, serial: &str| {
        keygen(&world.path(key), &["-t", "ed25519"]);
        let mut signing = std::process::Command::new("ssh-keygen");
        signing.args(["-q", "-I", key, "-n", "bob", "-V", "-1m:+2s", "-z", serial, "-s"]).arg(world.path("ca"));
        assert!(signing.arg(world.path(&format!("{key}.pub"))).status().unwrap().success());
    };
    let mut plain = session(&world, &["dev@gw"]).await;
    sign("one", "1");
    world.write_config("one");
    let one = session(&world, &["dev@gw"]).await;
    sign("two", "2");
    world.write_config("two");
    let mut two = session(&world, &["dev@gw"]).await;
    // They are over by now, which ends logins and not sessions; a list that is damaged ends none either.
    std::fs::write(world.path("revoked"), "damaged\n").unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(lives(&mut plain) && lives(&mut two));
    let ca = std::process::Command::new("ssh-keygen").arg("-lf").arg(world.path("ca.pub")).output().unwrap();
    let ca = String::from_utf8(ca.stdout).unwrap().split_whitespace().nth(1).unwrap().to_owned();
    std::fs::write(world.path("revoked"), format!("serial {ca} 1\n")).unwrap();
    let (took, text) = ended(one).await;
    assert!(took < Duration::from_secs(3) && text.contains("gvm: your access was ended"), "{took:?} {text}");
    assert!(lives(&mut plain) && lives(&mut two));
    // The authority itself goes; who has a registered key stays.
    std::fs::copy(world.path("member.pub"), world.path("ca.pub")).unwrap();
    ended(two).await;
    assert!(lives(&mut plain));
    world.book.keys.lock().unwrap().clear();
    ended(plain).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_from_which_logins_fail_has_to_wait() {
    let backoff = Rules { free: 3, first: SignedDuration::from_secs(2), ..Rules::default() };
    let world = World::with(Wanted { backoff, ..Wanted::default() }).await;
    keygen(&world.path("stranger"), &["-t", "ed25519"]);
    // Whoever only looks, or finds the right key in the end, has not failed.
    for _ in 0..5 {
        let mut looker = TcpStream::connect(world.address).await.unwrap();
        looker.read_exact(&mut [0; 8]).await.unwrap();
    }
    let mut held = session(&world, &["dev@gw"]).await;
    let config = std::fs::read_to_string(world.path("config")).unwrap();
    let both =
        config.replace("IdentityFile", &format!("IdentityFile {}\n IdentityFile", world.path("stranger").display()));
    for _ in 0..4 {
        std::fs::write(world.path("config"), &both).unwrap();
        world.ssh(&["dev@gw", "true"]).await.ok();
    }
    world.write_config("stranger");
    for _ in 0..3 {
        assert!(world.ssh(&["dev@gw", "true"]).await.stderr.contains("Permission denied"));
    }
    // The right key as well: it is not even looked at.
    world.write_config("member");
    let done = world.ssh(&["-v", "dev@gw", "true"]).await;
    assert!(done.stderr.contains("gvm: too many logins from your address failed; try again in"), "{done:?}");
    assert!(lives(&mut held));
    tokio::time::sleep(Duration::from_millis(2500)).await;
    world.ssh(&["dev@gw", "true"]).await.ok();
    // That was forgiven.
    world.write_config("stranger");
    for _ in 0..2 {
        assert!(world.ssh(&["dev@gw", "true"]).await.stderr.contains("Permission denied"));
    }
    world.write_config("member");
    world.ssh(&["dev@gw", "true"]).await.ok();
}
