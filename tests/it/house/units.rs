//! What a server gets beside the program: units, accounts, folders, packages. One set of files, which quickstart, the role
//! and the Debian package share.

use std::collections::BTreeSet;
use std::process::Command;

use gvm::config::Config;

use super::{read, root};
use crate::support::skip;

const FILES: &str = "ansible/roles/gvm_host/files";

/// What `systemd-analyze security` says is open, 0 to 10, by systemd 252. It must not grow: whoever opens something closes
/// something else, or says here and beside the unit's line what it is worth.
const EXPOSURE: [(&str, f64); 2] = [("gvm-gateway.service", 1.1), ("gvm.service", 3.9)];

/// Other versions of systemd look at a little more.
const OTHER_VERSION: f64 = 0.3;

#[test]
fn what_the_sandboxes_leave_open_does_not_grow() {
    fn here() {}
    let analyze = |args: &[&str]| {
        let output = Command::new("systemd-analyze").args(args).current_dir(root()).output().ok()?;
        Some(String::from_utf8(output.stdout).unwrap())
    };
    let Some(version) = analyze(&["--version"]) else {
        return skip::say(skip::test_of(std::any::type_name_of_val(&here)), "there is no systemd-analyze here");
    };
    let slack = if version.starts_with("systemd 252") { 0.0 } else { OTHER_VERSION };
    for (unit, limit) in EXPOSURE {
        let path = format!("{FILES}/systemd/{unit}");
        let said = analyze(&["security", "--offline=true", "--no-pager", &path]).unwrap();
        let exposure: f64 = said
            .lines()
            .find_map(|line| line.split_once("Overall exposure level for ")?.1.split_whitespace().nth(1)?.parse().ok())
            .unwrap_or_else(|| panic!("{unit}: {said}"));
        let open: Vec<&str> = said.lines().filter(|line| line.starts_with('✗')).collect();
        // Both are written with one digit.
        assert!(exposure <= limit + slack + 0.01, "{unit}: {exposure} where {limit} was agreed:\n{}", open.join("\n"));
    }
}

#[test]
fn folders_and_accounts_are_those_of_the_configuration() {
    let (config, folders, accounts) = (
        Config::default(),
        read(&format!("{FILES}/tmpfiles.d/gvm.conf")),
        read(&format!("{FILES}/sysusers.d/gvm.conf")),
    );
    let group = config.manager.socket_group.unwrap();
    let user = config.gateway.user;
    let parent = |path: &std::path::Path| path.parent().unwrap().to_str().unwrap().to_owned();
    for line in [
        format!("d {} 0755 root root -", config.manager.config_dir.display()),
        format!("d {} 0755 root {group} -", parent(&config.manager.socket)),
        format!("d {} 0711 root root -", config.manager.state_dir.display()),
        format!("d {} 0700 {user} {user} -", parent(&config.gateway.host_key)),
    ] {
        assert!(folders.lines().any(|known| known == line), "tmpfiles.d/gvm.conf has no line {line:?}");
    }
    for line in [format!("g {group} -"), format!("m {user} {group}")] {
        assert!(accounts.lines().any(|known| known == line), "sysusers.d/gvm.conf has no line {line:?}");
    }
    let gateway = read(&format!("{FILES}/systemd/gvm-gateway.service"));
    for line in [format!("User={user}"), format!("BindReadOnlyPaths={}", parent(&config.manager.socket))] {
        assert!(gateway.lines().any(|known| known == line), "gvm-gateway.service has no line {line:?}");
    }
}

#[test]
fn the_package_needs_what_the_role_installs() {
    let listed: BTreeSet<String> = read(&format!("{FILES}/packages/runtime.txt"))
        .lines()
        .filter_map(|line| line.split('#').next()?.split_whitespace().next().map(str::to_owned))
        .collect();
    let cargo: toml::Value = toml::from_str(&read("Cargo.toml")).unwrap();
    let host = &cargo["package"]["metadata"]["deb"]["variants"]["host"];
    let needed: BTreeSet<String> = ["depends", "recommends"]
        .iter()
        .flat_map(|field| host[*field].as_str().unwrap().split(','))
        .map(|entry| entry.split_whitespace().next().unwrap().to_owned())
        .filter(|name| name != "$auto")
        .collect();
    assert_eq!(needed, listed, "Cargo.toml (package.metadata.deb.variants.host) and packages/runtime.txt");
}
