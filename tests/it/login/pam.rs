//! Logins of the host, judged by real stacks of PAM in the helper's process.

use std::time::{Duration, Instant};

use gvm::auth::pam::{Pam, PamError};
use gvm::config::{Config, PamConfig};
use gvm::model::secret::Secret;
use serde_json::json;

use super::house::House;

/// An account that every Linux has.
pub const LOGIN: &str = "daemon";
pub const PASSWORD: &str = "pw of \"daemon\" \\ ünï";

/// A folder with a service whose modules are these.
fn service(lines: &str) -> (tempfile::TempDir, PamConfig) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("gvm"), lines).unwrap();
    let confdir = Some(dir.path().to_owned());
    (dir, PamConfig { confdir, helper: Some(env!("CARGO_BIN_EXE_gvm").into()), ..PamConfig::default() })
}

/// A service that takes one password, as a real module reads it.
pub fn one_password() -> (tempfile::TempDir, PamConfig) {
    use std::os::unix::fs::PermissionsExt as _;
    let (dir, config) = service("");
    let script = dir.path().join("check");
    let text = format!("#!/bin/sh\n[ \"$PAM_USER\" = {LOGIN} ] && [ \"$(cat | tr -d '\\0')\" = '{PASSWORD}' ]\n");
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    // As Debian's common-auth: a module that says no leads to pam_deny.
    let lines = format!(
        "auth [success=1 default=ignore] pam_exec.so expose_authtok quiet {}\nauth requisite pam_deny.so\n\
         auth required pam_permit.so\naccount required pam_permit.so\n",
        script.display()
    );
    std::fs::write(dir.path().join("gvm"), lines).unwrap();
    (dir, config)
}

async fn judge(config: &PamConfig, user: &str, password: &str) -> Result<String, PamError> {
    Pam::new(config.clone()).login(user, &Secret::from(password.to_owned())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn pam_judges_what_the_stack_says() {
    let (_dir, config) = one_password();
    assert_eq!(judge(&config, LOGIN, PASSWORD).await.unwrap(), LOGIN);
    for (user, password) in
        [(LOGIN, "wrong"), (LOGIN, ""), ("", PASSWORD), ("bin", PASSWORD), (LOGIN, "a\0b"), (LOGIN, &"x".repeat(600))]
    {
        let judged = judge(&config, user, password).await;
        assert!(matches!(judged, Err(PamError::Refused(_))), "{user} {password:.20}: {judged:?}");
    }
    let permit = "auth required pam_permit.so\naccount required pam_permit.so\n";
    for (case, lines, is_plain_no) in [
        ("denied", "auth required pam_deny.so\naccount required pam_permit.so\n", true),
        ("account not to be used", "auth required pam_permit.so\naccount required pam_deny.so\n", true),
        ("no such module", "auth required pam_gvm_none.so\naccount required pam_permit.so\n", false),
        ("no sense", "what is this\n", false),
        ("nothing", "", false),
    ] {
        let (_dir, config) = service(lines);
        let judged = judge(&config, LOGIN, "x").await;
        assert!(judged.is_err(), "{case}: {judged:?}");
        assert!(!is_plain_no || matches!(judged, Err(PamError::Refused(_))), "{case}: {judged:?}");
    }
    let (dir, config) = service(permit);
    assert_eq!(judge(&config, LOGIN, "x").await.unwrap(), LOGIN);
    // Without its own file PAM would take another service's.
    std::fs::rename(dir.path().join("gvm"), dir.path().join("other")).unwrap();
    let judged = judge(&config, LOGIN, "x").await;
    assert!(matches!(&judged, Err(PamError::Failed(why)) if why.contains("there is no service gvm")), "{judged:?}");
    let broken = PamConfig { helper: Some("/bin/true".into()), ..service(permit).1 };
    assert!(matches!(judge(&broken, LOGIN, "x").await, Err(PamError::Failed(_))), "no answer is no yes");
}

/// The command line and environment of a running helper of ours.
fn helper_words() -> Option<String> {
    let us = std::process::id().to_string();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let read = |name: &str| {
            std::fs::read(entry.path().join(name)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        };
        let Ok(command) = read("cmdline") else { continue };
        let parent =
            read("status").unwrap_or_default().lines().find_map(|line| line.strip_prefix("PPid:\t").map(str::to_owned));
        if command.ends_with("helper\0pam\0") && parent.as_deref() == Some(us.as_str()) {
            return Some(command + &read("environ").ok()?);
        }
    }
    None
}

#[tokio::test(flavor = "multi_thread")]
async fn a_module_that_hangs_costs_its_time_and_shows_no_password() {
    let (_dir, config) = service("auth required pam_exec.so quiet /bin/sleep 40\naccount required pam_permit.so\n");
    let begun = Instant::now();
    let judged = tokio::spawn(async move { judge(&config, LOGIN, "a-secret-of-the-test").await });
    let mut words = None;
    while words.is_none() && begun.elapsed() < Duration::from_secs(10) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        words = helper_words();
    }
    let words = words.expect("the helper is not seen");
    assert!(!words.contains("a-secret-of-the-test"), "{words}");
    assert!(matches!(judged.await.unwrap(), Err(PamError::Failed(_))));
    assert!((14..25).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
}

async fn house(config: PamConfig, edit: impl FnOnce(&mut Config)) -> House {
    House::new(|all| {
        all.login.pam = Some(config);
        edit(all);
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_of_the_host_is_the_same_person_as_over_the_socket() {
    let (_dir, config) = one_password();
    let house = house(config, |_| {}).await;
    let (status, session) = house.password(LOGIN, PASSWORD).await;
    assert_eq!((status, &session["user"]), (200, &json!(LOGIN)), "{session}");
    assert_eq!(house.me(session["token"].as_str().unwrap()).await.0, 200);
    let uid = nix::unistd::User::from_name(LOGIN).unwrap().unwrap().uid.as_raw();
    let row = house.life.store.user_by_name(&LOGIN.parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(house.life.store.user_row(row.id).await.unwrap().unwrap().uid, Some(uid));
    assert_eq!(house.password(LOGIN, "wrong").await.0, 401);
    let (_, body) = house.password("no-such-login", PASSWORD).await;
    assert_eq!(body["code"], "unauthenticated");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_use_the_socket_does_not_come_in_by_a_password() {
    let permit = "auth required pam_permit.so\naccount required pam_permit.so\n";
    let (_dir, config) = service(permit);
    let gateway = LOGIN.to_owned();
    let cases = [
        ("root", None, None),
        (LOGIN, Some("no-such-group"), None),
        (LOGIN, None, Some(gateway)),
        ("no-such-login", None, None),
    ];
    let all = cases.into_iter().map(|(login, group, gateway)| {
        let config = config.clone();
        async move {
            let house = house(config, |all| {
                all.manager.socket_group = group.map(str::to_owned);
                all.gateway.user = gateway.unwrap_or_else(|| "gvm-gateway".to_owned());
            });
            let (status, mut body) = house.await.password(login, "any").await;
            body.as_object_mut().unwrap().remove("request_id");
            (login, status, body)
        }
    });
    let all = futures_util::future::join_all(all).await;
    for (login, status, body) in &all {
        assert_eq!((*status, body), (401, &all[0].2), "{login}");
    }
}

#[test]
fn the_helper_without_a_question_says_so() {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_gvm"));
    command.args(["helper", "pam"]);
    let ended = crate::support::run::run_with(command, b"not json", Duration::from_secs(20));
    assert_eq!(ended.code, 1);
    assert!(ended.stdout.contains("\"verdict\":\"failed\""), "{}", ended.stdout);
}
