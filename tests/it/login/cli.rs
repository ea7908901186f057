//! `gvm login` from another machine, with a password and with a code.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use super::browser::{Browser, Ended};
use super::house::URL;
use super::oidc::Provider;
use super::pam::{LOGIN, PASSWORD, one_password};
use crate::support::served::Served;
use crate::support::skip;

/// The command on a machine with an empty home.
fn gvm(home: &tempfile::TempDir, served: &Served, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gvm"));
    command.args(["login", &served.url().to_string(), "--fingerprint", &served.pin().to_string()]).args(more);
    command.env_clear().env("HOME", home.path()).env("PATH", "/usr/bin:/bin");
    command.env("GVM_CONFIG", "/dev/null").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_read_from_standard_input() {
    let (_dir, config) = one_password();
    let served = Served::with(|all| all.login.pam = Some(config)).await;
    let home = tempfile::tempdir().unwrap();
    for (password, code) in [("wrong", 3), (PASSWORD, 0)] {
        let mut command = gvm(&home, &served, &["--user", LOGIN, "--password-stdin"]);
        let ran = tokio::task::spawn_blocking(move || {
            let mut child = command.spawn().unwrap();
            writeln!(child.stdin.take().unwrap(), "{password}").unwrap();
            child.wait_with_output().unwrap()
        });
        let ran = ran.await.unwrap();
        let told = format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        assert_eq!(ran.status.code(), Some(code), "{told}");
        assert_eq!(told.contains(&format!("as {LOGIN} (member)")), code == 0, "{told}");
        assert!(!told.contains(password), "{told}");
    }
    let kept = std::fs::read_to_string(home.path().join(".config/gvm/hosts.toml")).unwrap();
    assert!(kept.contains("gvm_s_") && !kept.contains(PASSWORD), "a session, and no password: {kept}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_code_is_shown_and_typed_elsewhere() {
    fn here() {}
    let Some(provider) = Provider::start(skip::test_of(std::any::type_name_of_val(&here))) else { return };
    let served = Served::with(|all| all.login.oidc = Some(provider.config())).await;
    let home = tempfile::tempdir().unwrap();
    let mut child = gvm(&home, &served, &[]).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let (address, said) = tokio::task::spawn_blocking(move || {
        let line = said.find_map(|line| Some(line.strip_prefix("Or open ")?.to_owned()));
        (line.expect("no address was shown"), said)
    })
    .await
    .unwrap();
    assert!(matches!(Browser::new("anna").go(&address, URL).await, Ended::Page(page) if page.contains("Success")));
    let ran = tokio::task::spawn_blocking(move || {
        let ran = child.wait_with_output().unwrap();
        drop(said);
        ran
    });
    let ran = ran.await.unwrap();
    let told = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert_eq!((ran.status.code(), told.contains("as anna (member)")), (Some(0), true), "{told}");
}
