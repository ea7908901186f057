//! OpenSSH certificates: made by ssh-keygen and shown by ssh, and what those would not do, by a client of our own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use russh::client::{self, AuthResult};
use russh::keys::ssh_key::certificate::{Builder, CertType};
use russh::keys::{Certificate, PrivateKey, PublicKeyOrCertificate};

use crate::support::ssh::{Agent, Done, Wanted, World, identity, keygen, run};

async fn world() -> World {
    World::with(Wanted { takes_certificates: true, ..Wanted::default() }).await
}

/// Signs `key` (a name in the world's folder) with the authority `ca`; gives the certificate's path.
fn sign(world: &World, ca: &str, key: &str, arguments: &[&str]) -> PathBuf {
    let public = world.path(&format!("{key}.pub"));
    if !public.exists() {
        keygen(&world.path(key), &["-t", "ed25519"]);
    }
    let made = std::process::Command::new("ssh-keygen")
        .arg("-q")
        .arg("-s")
        .arg(world.path(ca))
        .args(arguments)
        .arg(&public)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    world.path(&format!("{key}-cert.pub"))
}

fn print(public: &Path) -> String {
    let shown = std::process::Command::new("ssh-keygen").arg("-lf").arg(public).output().unwrap();
    String::from_utf8(shown.stdout).unwrap().split_whitespace().nth(1).unwrap().to_owned()
}

/// Logs in with the certificate over this key and nothing else: the key itself is nobody's.
async fn ssh(world: &World, key: &str, arguments: &[&str]) -> Done {
    world.write_config(key);
    world.ssh(arguments).await
}

#[track_caller]
fn is_refused(done: &Done) {
    assert_eq!(done.code, Some(255), "{done:?}");
    assert!(done.stderr.contains("Permission denied (publickey)"), "{done:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_of_an_authority_lets_its_principal_in() {
    let world = world().await;
    sign(&world, "ca", "laptop", &["-I", "laptop of alice", "-n", "wheel,Not-A-Member,alice,bob", "-z", "42"]);
    for arguments in [&["dev@gw", "echo in"][..], &["-tt", "dev@gw", "echo in"]] {
        assert_eq!(ssh(&world, "laptop", arguments).await.ok().out().trim_end(), "in");
    }
    let asked = world.book.asked.lock().unwrap().last().unwrap().clone();
    let facts = asked.certificate.unwrap();
    assert_eq!(asked.public_key, identity(&world.path("laptop.pub")));
    assert_eq!((facts.principals.join(" "), facts.serial), ("wheel alice bob".to_owned(), 42));
    assert_eq!((facts.key_id, facts.ca), ("laptop of alice".to_owned(), print(&world.path("ca.pub"))));
    // The login name means the machine of whom the certificate names.
    let member = world.book.asked.lock().unwrap().last().unwrap().vm.clone();
    assert_eq!(member, "dev");
    // A jump is a forward: what ssh-keygen permits by itself suffices. Inside, the machine's own keys decide.
    std::fs::write(world.path("guest/authorized_keys"), identity(&world.path("laptop.pub"))).unwrap();
    assert_eq!(ssh(&world, "laptop", &["-J", "gw", "dev", "echo in"]).await.ok().out(), "in\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_key_can_be_certified_and_can_certify() {
    let world = world().await;
    for (name, kind) in [("p256", ["-t", "ecdsa", "-b", "256"]), ("rsa", ["-t", "rsa", "-b", "3072"])] {
        keygen(&world.path(name), &kind);
        keygen(&world.path(&format!("ca-{name}")), &kind);
        sign(&world, &format!("ca-{name}"), name, &["-I", name, "-n", "alice"]);
        is_refused(&ssh(&world, name, &["dev@gw", "true"]).await);
        // A file of authorities may hold several, and is read again when it changes.
        let both = format!(
            "# ours\n{}\n\n{} x y\n",
            identity(&world.path("ca.pub")),
            identity(&world.path(&format!("ca-{name}.pub")))
        );
        std::fs::write(world.path("ca.pub"), both).unwrap();
        ssh(&world, name, &["dev@gw", "true"]).await.ok();
    }
    for option in ["PubkeyAcceptedAlgorithms=rsa-sha2-256-cert-v01@openssh.com", "LogLevel=INFO"] {
        ssh(&world, "rsa", &["-o", option, "dev@gw", "true"]).await.ok();
    }
    // SHA-1 and short keys are as bad in a certificate as without.
    is_refused(
        &ssh(&world, "rsa", &["-o", "PubkeyAcceptedAlgorithms=ssh-rsa-cert-v01@openssh.com", "dev@gw", "true"]).await,
    );
    keygen(&world.path("short"), &["-t", "rsa", "-b", "1024"]);
    sign(&world, "ca", "short", &["-I", "x", "-n", "alice"]);
    is_refused(&ssh(&world, "short", &["-o", "RequiredRSASize=1024", "dev@gw", "true"]).await);
    keygen(&world.path("sha1"), &["-t", "rsa", "-b", "2048"]);
    std::fs::copy(world.path("sha1.pub"), world.path("ca.pub")).unwrap();
    sign(&world, "sha1", "k1", &["-I", "x", "-n", "alice", "-t", "ssh-rsa"]);
    is_refused(&ssh(&world, "k1", &["dev@gw", "true"]).await);
    sign(&world, "sha1", "k1", &["-I", "x", "-n", "alice", "-t", "rsa-sha2-256"]);
    ssh(&world, "k1", &["dev@gw", "true"]).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_certificate_must_not_be() {
    let world = world().await;
    keygen(&world.path("stranger"), &["-t", "ed25519"]);
    let bad: [(&str, &str, &[&str]); 11] = [
        ("another authority", "stranger", &["-n", "alice"]),
        ("for a host", "ca", &["-n", "alice", "-h"]),
        ("for everybody", "ca", &[]),
        ("for another principal", "ca", &["-n", "mallory"]),
        ("for no possible member", "ca", &["-n", "Alice,alice@example.org,*"]),
        ("over", "ca", &["-n", "alice", "-V", "-2h:-1h"]),
        ("not yet", "ca", &["-n", "alice", "-V", "+1h:+2h"]),
        ("one command", "ca", &["-n", "alice", "-O", "force-command=id"]),
        ("other addresses", "ca", &["-n", "alice", "-O", "source-address=192.0.2.0/24,2001:db8::/32"]),
        ("touched and verified", "ca", &["-n", "alice", "-O", "verify-required"]),
        ("unknown critical option", "ca", &["-n", "alice", "-O", "critical:x@example.org=1"]),
    ];
    for (number, (what, ca, arguments)) in bad.into_iter().enumerate() {
        let key = format!("k{number}");
        sign(&world, ca, &key, &[&["-I", what], arguments].concat());
        println!("{what}");
        is_refused(&ssh(&world, &key, &["dev@gw", "true"]).await);
    }
    let good: [(&str, &[&str]); 3] = [
        ("these addresses", &["-O", "source-address=192.0.2.0/24,127.0.0.0/8"]),
        ("for ever", &["-V", "always:forever"]),
        ("with an unknown extension", &["-O", "extension:x@example.org=1"]),
    ];
    for (number, (what, arguments)) in good.into_iter().enumerate() {
        let key = format!("g{number}");
        sign(&world, "ca", &key, &[&["-I", what, "-n", "alice"], arguments].concat());
        println!("{what}");
        ssh(&world, &key, &["dev@gw", "true"]).await.ok();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_permits_what_it_says() {
    let world = world().await;
    sign(&world, "ca", "bare", &["-I", "bare", "-n", "alice", "-O", "clear"]);
    assert_eq!(ssh(&world, "bare", &["dev@gw", "echo in"]).await.ok().out(), "in\n");
    // No terminal, which the client takes for a reason to leave where it was told to have one.
    let done = ssh(&world, "bare", &["-tt", "dev@gw", "true"]).await;
    assert!(done.stderr.contains("PTY allocation request failed"), "{done:?}");
    let ask = "stty -a || echo none";
    assert_eq!(ssh(&world, "bare", &["-o", "LogLevel=QUIET", "dev@gw", ask]).await.ok().out(), "none\n");
    for forward in [&["-W", "localhost:80", "dev@gw"][..], &["-J", "gw", "dev", "true"]] {
        let done = ssh(&world, "bare", forward).await;
        assert!(done.stderr.contains("gvm: your certificate does not permit port forwarding"), "{done:?}");
    }
    let remote = ["-o", "ExitOnForwardFailure=yes", "-R", "0:localhost:1", "dev@gw", "true"];
    let done = ssh(&world, "bare", &remote).await;
    assert!(done.stderr.contains("remote port forwarding failed"), "{done:?}");
    let agent = Agent::start(world.path("agent.sock"), &[world.path("member")]).await;
    let lend = async |key: &str| {
        world.write_config(key);
        let mut client =
            world.client("ssh", &["-o", "IdentityAgent=SSH_AUTH_SOCK", "-A", "dev@gw", "ssh-add -L || echo none"]);
        client.env("SSH_AUTH_SOCK", &agent.socket);
        run(client, b"").await.ok().out()
    };
    assert_eq!(lend("bare").await, "none\n");
    sign(&world, "ca", "lender", &["-I", "x", "-n", "alice", "-O", "clear", "-O", "permit-agent-forwarding"]);
    assert!(lend("lender").await.starts_with("ssh-ed25519 "));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_list_of_what_is_revoked_is_kept() {
    let world = world().await;
    let ca = print(&world.path("ca.pub"));
    sign(&world, "ca", "k", &["-I", "laptop of alice", "-n", "alice", "-z", "7"]);
    let set = |text: &str| std::fs::write(world.path("revoked"), text).unwrap();
    let key = identity(&world.path("k.pub"));
    for (line, is_revoked) in [
        (format!("# nothing\n{}\n", print(&world.path("member.pub"))), false),
        (print(&world.path("k.pub")), true),
        (format!("{key} of a laptop that was stolen"), true),
        (ca.clone(), true),
        (identity(&world.path("ca.pub")), true),
        (format!("serial {ca} 8"), false),
        (format!("serial {ca} 8\nserial {ca} 3-7"), true),
        (format!("id {ca} laptop of alice"), true),
        (format!("id {ca} laptop of Alice"), false),
        ("SHA256:short".to_owned(), true),
        (format!("serial {ca} 9-8"), true),
        (format!("serial {ca}"), true),
        ("serial 7".to_owned(), true),
        ("revoke everything".to_owned(), true),
        ("SSHKRL\n\0\0\0\0\0".to_owned(), true),
        (String::new(), false),
    ] {
        set(&line);
        let done = ssh(&world, "k", &["dev@gw", "true"]).await;
        println!("{line}");
        if is_revoked { is_refused(&done) } else { drop(done.ok()) }
    }
    std::fs::remove_file(world.path("revoked")).unwrap();
    is_refused(&ssh(&world, "k", &["dev@gw", "true"]).await);
    // Registered keys go on, unless they are on the list themselves.
    ssh(&world, "member", &["dev@gw", "true"]).await.ok();
    set(&print(&world.path("member.pub")));
    is_refused(&ssh(&world, "member", &["dev@gw", "true"]).await);
    ssh(&world, "k", &["dev@gw", "true"]).await.ok();
    // An authority that nobody can read is believed no more.
    std::fs::write(world.path("ca.pub"), "no key\n").unwrap();
    is_refused(&ssh(&world, "k", &["dev@gw", "true"]).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_over_a_registered_key_leads_to_its_own_principal() {
    let world = world().await;
    let good = certificate(&sign(&world, "ca", "member", &["-I", "x", "-n", "bob"]));
    // OpenSSH's client shows the key first where it has both.
    let mut session = raw(&world).await;
    let done = session.authenticate_openssh_cert("dev", private(&world, "member"), good).await.unwrap();
    assert!(done.success());
    let mut channel = session.channel_open_session().await.unwrap();
    channel.exec(true, "true").await.unwrap();
    while channel.wait().await.is_some() {}
    let by = world.book.asked.lock().unwrap().last().unwrap().certificate.clone().unwrap();
    assert_eq!(by.principals, ["bob"], "the key alone is alice's");
    // The key alone is what it was.
    std::fs::remove_file(world.path("member-cert.pub")).unwrap();
    ssh(&world, "member", &["dev@gw", "true"]).await.ok();
    assert!(world.book.asked.lock().unwrap().last().unwrap().certificate.is_none());
    // A certificate for nobody makes the key no worse: the client goes on to it.
    sign(&world, "ca", "member", &["-I", "x", "-n", "mallory"]);
    ssh(&world, "member", &["dev@gw", "true"]).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_full_of_keys_still_finds_the_right_one() {
    let world = world().await;
    let mut keys: Vec<_> = (0..12).map(|number| world.path(&format!("k{number}"))).collect();
    for key in &keys {
        keygen(key, &["-t", "ed25519"]);
    }
    keys.push(world.path("member"));
    let agent = Agent::start(world.path("agent.sock"), &keys).await;
    world.write_config("none");
    let socket = format!("IdentityAgent={}", agent.socket.display());
    let mut client = world.client("ssh", &["-o", "IdentitiesOnly=no", "-o", "IdentityFile=none", "-o", &socket]);
    client.args(["dev@gw", "echo in"]);
    assert_eq!(run(client, b"").await.ok().out(), "in\n");
}

/// A client that trusts whom it reaches.
struct Trusting;

impl client::Handler for Trusting {
    type Error = russh::Error;

    async fn check_server_key(&mut self, _key: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        Ok(true)
    }
}

async fn raw(world: &World) -> client::Handle<Trusting> {
    client::connect(Arc::new(client::Config::default()), world.address, Trusting).await.unwrap()
}

fn private(world: &World, name: &str) -> Arc<PrivateKey> {
    Arc::new(PrivateKey::from_openssh(std::fs::read_to_string(world.path(name)).unwrap()).unwrap())
}

fn certificate(path: &Path) -> Certificate {
    Certificate::from_openssh(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_login_name_in_the_middle_and_another_key_get_nobody_in() {
    let world = world().await;
    let (key, other) = (private(&world, "member"), {
        keygen(&world.path("other"), &["-t", "ed25519"]);
        private(&world, "other")
    });
    let good = certificate(&sign(&world, "ca", "member", &["-I", "x", "-n", "bob"]));
    let foreign = certificate(&sign(&world, "ca", "other", &["-I", "x", "-n", "mallory"]));
    let mut session = raw(&world).await;
    // Somebody's certificate without the key that it is over.
    assert!(!session.authenticate_openssh_cert("dev", Arc::clone(&other), good.clone()).await.unwrap().success());
    // One that leads to nobody, then one that leads to bob, under another name each.
    let done = session.authenticate_openssh_cert("one", Arc::clone(&other), foreign).await.unwrap();
    assert!(matches!(done, AuthResult::Failure { .. }));
    let done = session.authenticate_openssh_cert("two", Arc::clone(&key), good).await.unwrap();
    assert!(done.success());
    assert_eq!(world.book.identified.lock().unwrap().last().unwrap().certificate.as_ref().unwrap().principals, ["bob"]);
    // And the name that counts is the last one: it is the machine that is asked for.
    let mut channel = session.channel_open_session().await.unwrap();
    channel.exec(true, "true").await.unwrap();
    while channel.wait().await.is_some() {}
    assert_eq!(world.book.asked.lock().unwrap().last().unwrap().vm, "two");
}

/// A certificate for alice with the chance to spoil it before it is signed.
fn built(world: &World, spoil: impl FnOnce(&mut Builder)) -> Certificate {
    let (ca, key) = (private(world, "ca"), private(world, "other"));
    let mut builder = Builder::new(vec![1; 16], key.public_key(), 0, u64::MAX).unwrap();
    builder.cert_type(CertType::User).unwrap();
    spoil(&mut builder);
    builder.sign(&*ca).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_certificates_are_refused_and_break_nothing() {
    let world = world().await;
    keygen(&world.path("other"), &["-t", "ed25519"]);
    let key = private(&world, "other");
    let many = built(&world, |builder| {
        for number in 0..300 {
            builder.valid_principal(format!("p{number}")).unwrap();
        }
        builder.valid_principal("alice").unwrap();
    });
    let long = built(&world, |builder| {
        builder.valid_principal("alice").unwrap().key_id("x".repeat(20_000)).unwrap();
    });
    let all = built(&world, |builder| {
        builder.all_principals_valid().unwrap();
    });
    for bad in [many, long, all] {
        let mut session = raw(&world).await;
        assert!(!session.authenticate_openssh_cert("dev", Arc::clone(&key), bad).await.unwrap().success());
    }
    let good = built(&world, |builder| {
        builder.valid_principal("alice").unwrap().key_id("\u{1b}[2Jnot for a terminal").unwrap();
    });
    let mut session = raw(&world).await;
    assert!(session.authenticate_openssh_cert("dev", Arc::clone(&key), good.clone()).await.unwrap().success());

    // Any byte of a good one spoiled: it decodes to something else or not at all, and never leads in.
    let bytes = good.to_bytes().unwrap();
    let (mut decoded, mut state) = (0, 1_u32);
    for at in (0..bytes.len()).step_by(3) {
        let mut spoiled = bytes.clone();
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        spoiled[at] ^= u8::try_from(state >> 24).unwrap() | 1;
        let Ok(spoiled) = Certificate::from_bytes(&spoiled) else { continue };
        decoded += 1;
        let mut session = raw(&world).await;
        // The session may also end at once.
        let done = session.authenticate_openssh_cert("dev", Arc::clone(&key), spoiled).await;
        assert!(!done.is_ok_and(|done| done.success()), "byte {at}");
    }
    assert!(decoded > 20, "{decoded}");
    let mut session = raw(&world).await;
    assert!(session.authenticate_openssh_cert("dev", key, good).await.unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_take_the_same_time_whatever_is_refused() {
    let world = world().await;
    keygen(&world.path("other"), &["-t", "ed25519"]);
    let key = private(&world, "other");
    let unknown = certificate(&sign(&world, "ca", "other", &["-I", "x", "-n", "mallory"]));
    let foreign = certificate(&sign(&world, "member", "other", &["-I", "x", "-n", "alice"]));
    let nobody = certificate(&sign(&world, "ca", "other", &["-I", "x", "-n", "Nobody"]));
    let mut took: [Vec<Duration>; 4] = Default::default();
    for _ in 0..8 {
        for (which, certificate) in [None, Some(&unknown), Some(&foreign), Some(&nobody)].into_iter().enumerate() {
            let mut session = raw(&world).await;
            let begun = Instant::now();
            let done = match certificate {
                Some(certificate) => {
                    session.authenticate_openssh_cert("dev", Arc::clone(&key), certificate.clone()).await
                }
                None => {
                    let key = russh::keys::PrivateKeyWithHashAlg::new(Arc::clone(&key), None);
                    session.authenticate_publickey("dev", key).await
                }
            };
            assert!(!done.unwrap().success());
            took[which].push(begun.elapsed());
        }
    }
    // The shortest: what other processes take from the machine is noise.
    let least = took.map(|took| took.into_iter().min().unwrap());
    println!("key, certificate of another, of an unknown authority, of no possible member: {least:?}");
    assert!(least.iter().all(|took| *took >= Duration::from_millis(50)), "{least:?}");
    // Which kind of thing it shows is the client's own choice; that is no secret.
    let (quick, slow) = (least[1..].iter().min().unwrap(), least[1..].iter().max().unwrap());
    assert!(*slow - *quick < Duration::from_millis(10), "{least:?}");
}
