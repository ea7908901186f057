//! What the documents promise is there: links, tests, configuration keys, commands, exit codes.

use std::path::Path;

use clap::CommandFactory as _;
use gvm::cli::Cli;
use gvm::config::{Config, LdapConfig, OidcConfig, PamConfig};
use gvm::model::quota::QuotaKind;

use super::{files_below, none, read, root};

fn documents() -> Vec<String> {
    let mut all = files_below("docs");
    all.retain(|path| path.ends_with(".md"));
    all.extend(["README.md", "CHANGELOG.md", "vm-images/README.md"].map(str::to_owned));
    all
}

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    for path in documents() {
        let text = read(&path);
        let folder = Path::new(&path).parent().unwrap();
        for (at, _) in text.match_indices("](") {
            let target = text[at + 2..].split(')').next().unwrap();
            let file = target.split('#').next().unwrap();
            let is_elsewhere = file.is_empty() || target.starts_with("http");
            if !is_elsewhere && !root().join(folder).join(file).exists() {
                broken.push(format!("{path}: {target}"));
            }
        }
    }
    none("links", &broken);
}

/// Names of tests in backticks: `house::layering::...` or `manager::profiles::tests::...`.
#[test]
fn tests_that_documents_name_exist() {
    let sources: Vec<(String, String)> = files_below("src")
        .into_iter()
        .chain(files_below("tests"))
        .filter(|p| p.ends_with(".rs"))
        .map(|p| {
            let text = read(&p);
            (p, text)
        })
        .collect();
    let mut missing = Vec::new();
    let mut count = 0;
    for path in documents() {
        let text = read(&path);
        for name in
            text.split('`').skip(1).step_by(2).filter(|word| word.contains("::") && !word.contains([' ', '(', '<']))
        {
            let (module, function) = name.rsplit_once("::").unwrap();
            let is_test = ["house::", "reconcile", "e2e::", "people::"].iter().any(|known| module.starts_with(known))
                || module.contains("tests");
            if !is_test {
                continue;
            }
            count += 1;
            let parts: Vec<&str> = module.split("::").filter(|part| *part != "tests").collect();
            let tail = parts.join("/");
            let is_there = sources.iter().any(|(file, text)| {
                let stem = file
                    .trim_end_matches(".rs")
                    .trim_end_matches("/mod")
                    .trim_end_matches("_tests")
                    .trim_end_matches("/tests");
                stem.ends_with(&tail) && text.contains(&format!("fn {function}("))
            });
            if !is_there {
                missing.push(format!("{path}: {name}"));
            }
        }
    }
    none("tests that documents name", &missing);
    assert!(count >= 10, "docs/architecture.md names the tests of its invariants; {count} found");
}

#[test]
fn every_key_of_the_configuration_is_explained() {
    let mut config = Config::default();
    config.manager.accelerator = Some("kvm".to_owned());
    config.people.quota = QuotaKind::ALL.iter().map(|kind| (*kind, 1)).collect();
    config.login.oidc = Some(OidcConfig {
        client_secret_file: Some("/x".into()),
        public_url: Some("https://x".to_owned()),
        ..OidcConfig::default()
    });
    config.login.ldap = Some(LdapConfig {
        bind_dn: Some("cn=x".to_owned()),
        bind_password_file: Some("/x".into()),
        subject_attribute: Some("x".to_owned()),
        ..LdapConfig::default()
    });
    config.login.pam = Some(PamConfig { confdir: Some("/x".into()), ..PamConfig::default() });
    let all = toml::Value::try_from(&config).unwrap();
    let readme = read("README.md");
    let mut missing = Vec::new();
    for (part, keys) in all.as_table().unwrap() {
        for (key, value) in keys.as_table().unwrap() {
            let names = match value.as_table() {
                Some(inner) => inner.keys().map(|name| format!("{part}.{key}.{name}")).collect(),
                None => vec![format!("{part}.{key}")],
            };
            missing.extend(names.into_iter().filter(|name| !readme.contains(&format!("`{name}`"))));
        }
    }
    none("keys that README.md does not explain", &missing);
}

#[test]
fn every_command_and_exit_code_is_in_the_readme() {
    let readme = read("README.md");
    let command = Cli::command();
    let missing: Vec<String> = command
        .get_subcommands()
        // What is hidden is not for people.
        .filter(|sub| !sub.is_hide_set())
        .map(|sub| format!("gvm {}", sub.get_name()))
        .filter(|words| !readme.contains(words.as_str()))
        .collect();
    none("commands that README.md does not show", &missing);
    let told = command.get_after_help().unwrap().to_string();
    let codes = told.lines().filter_map(|line| line.split_whitespace().next()?.parse::<u8>().ok());
    let missing: Vec<String> =
        codes.map(|code| format!("| {code} |")).filter(|row| !readme.contains(row.as_str())).collect();
    none("exit codes that README.md does not have", &missing);
}

#[test]
fn decisions_are_numbered_without_a_gap_and_have_their_three_parts() {
    let decisions: Vec<String> = files_below("docs/adr").into_iter().filter(|path| path.ends_with(".md")).collect();
    let index = read("docs/architecture.md");
    for (number, path) in decisions.iter().enumerate() {
        let file = path.trim_start_matches("docs/adr/");
        assert!(file.starts_with(&format!("{:04}-", number + 1)), "{path} is not number {}", number + 1);
        let text = read(path);
        for part in ["## Context", "## Decision", "## Consequences"] {
            assert!(text.contains(part), "{path} has no {part}");
        }
        assert!(index.contains(&format!("adr/{file}")), "docs/architecture.md does not list {path}");
    }
}

#[test]
fn hold_points_are_those_of_the_code() {
    let architecture = read("docs/architecture.md");
    let mut missing = Vec::new();
    for path in files_below("src/manager").into_iter().filter(|path| path.ends_with(".rs")) {
        let text = read(&path);
        for (at, mark) in text.match_indices("hold::point(\"") {
            let point = text[at + mark.len()..].split('"').next().unwrap();
            if !architecture.contains(&format!("`{point}`")) {
                missing.push(format!("{path}: {point}"));
            }
        }
    }
    let plan = read("src/plan/vm.rs");
    for line in plan.lines().filter(|line| line.contains("Self::") && line.contains("=> \"")) {
        let step = line.split('"').nth(1).unwrap();
        if !architecture.contains(&format!("`{step}`")) {
            missing.push(format!("src/plan/vm.rs: {step}"));
        }
    }
    none("steps and hold points that docs/architecture.md does not have", &missing);
}
