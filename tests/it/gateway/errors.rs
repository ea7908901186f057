//! What people are told when there is no machine behind the name.

use std::sync::atomic::Ordering;

use gvm::api::error::ErrorCode;

use crate::support::ssh::{World, body, identity, keygen, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_machine_is_explained_and_nothing_is_on_standard_output() {
    let world = World::new().await;
    world.book.set("dev", Err(body(ErrorCode::Conflict, "dev is stopped", Some("start it: gvm start dev"))));
    for arguments in [&["dev@gw", "cat"][..], &["-tt", "dev@gw"], &["-s", "dev@gw", "sftp"], &["-q", "dev@gw", "id"]] {
        let done = world.ssh(arguments).await;
        assert_eq!((done.code, done.out().as_str()), (Some(255), ""), "{arguments:?} {done:?}");
        assert!(done.stderr.contains("gvm: dev is stopped"), "{arguments:?} {done:?}");
        assert!(done.stderr.contains("gvm: start it: gvm start dev"), "{arguments:?} {done:?}");
    }
    let done = run(world.client("sftp", &["-b", "-", "dev@gw"]), b"ls\n").await;
    assert!(done.stderr.contains("gvm: dev is stopped") && done.out().is_empty(), "{done:?}");
    let done = world.ssh(&["-J", "gw", "dev", "id"]).await;
    assert_eq!((done.code, done.out().as_str()), (Some(255), ""), "{done:?}");
    assert!(done.stderr.contains("gvm: dev is stopped (start it: gvm start dev)"), "{done:?}");
    let done = world.ssh(&["-W", "localhost:80", "dev@gw"]).await;
    assert!(done.stderr.contains("gvm: dev is stopped (start it: gvm start dev)"), "{done:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_lead_nowhere_are_explained_after_the_login_only() {
    let world = World::new().await;
    for (login, text) in [("none@gw", "there is no machine none"), ("Not-a-name@gw", "the login name is no machine")] {
        let done = world.ssh(&[login, "id"]).await;
        assert_eq!((done.code, done.out().as_str()), (Some(255), ""), "{done:?}");
        assert!(done.stderr.contains(text), "{done:?}");
    }
    // Without a registered key all names look alike, and the directory is not asked about any.
    world.book.asked.lock().unwrap().clear();
    keygen(&world.path("stranger"), &["-t", "ed25519"]);
    world.write_config("stranger");
    let mut answers = Vec::new();
    for login in ["dev@gw", "none@gw", "Not-a-name@gw"] {
        let done = world.ssh(&[login, "id"]).await;
        answers.push(done.stderr.replace(login.trim_end_matches("@gw"), "NAME"));
    }
    assert!(answers[0].contains("Permission denied (publickey)"), "{answers:?}");
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert!(world.book.asked.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_with_a_foreign_host_key_gets_no_login() {
    let world = World::new().await;
    let mut target = world.target();
    target.host_keys = vec![identity(&keygen(&world.path("other"), &["-t", "ed25519"]))];
    world.book.set("dev", Ok(target));
    let done = world.ssh(&["dev@gw", "id"]).await;
    assert_eq!((done.code, done.out().as_str()), (Some(255), ""), "{done:?}");
    assert!(done.stderr.contains("gvm: dev.alice shows another host key"), "{done:?}");
    let log = std::fs::read_to_string(world.path("guest/sshd.log")).unwrap();
    assert!(!log.contains("Accepted"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_does_not_answer_or_let_us_in_is_explained() {
    let mut world = World::new().await;
    std::fs::write(world.path("guest/authorized_keys"), identity(&world.path("member.pub"))).unwrap();
    let done = world.ssh(&["dev@gw", "id"]).await;
    assert!(done.stderr.contains("gvm: dev.alice does not let gvm log in as"), "{done:?}");
    // Jumps do not need gvm's key.
    world.ssh(&["-J", "gw", "dev", "true"]).await.ok();
    world.guest.stop().await;
    for arguments in [&["dev@gw", "id"][..], &["-J", "gw", "dev", "id"]] {
        let done = world.ssh(arguments).await;
        assert!(done.stderr.contains("gvm: dev.alice does not answer on its SSH port"), "{done:?}");
        assert!(done.stderr.contains("gvm show"), "{done:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manager_that_is_down_is_said_and_found_again() {
    let world = World::new().await;
    world.book.is_down.store(true, Ordering::SeqCst);
    let done = world.ssh(&["dev@gw", "id"]).await;
    assert!(done.stderr.contains("gvm: the gvm manager does not answer"), "{done:?}");
    world.book.is_down.store(false, Ordering::SeqCst);
    world.ssh(&["dev@gw", "true"]).await.ok();
}
