//! What comes in as a dependency: licences, sources and bans of `deny.toml`, held against `cargo metadata`.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use super::{none, read, root};

/// `deny.toml` as this test uses it.
struct Rules {
    allow: BTreeSet<String>,
    exceptions: Vec<(String, String)>,
    banned: Vec<String>,
    registry: String,
    ignored: Vec<(String, String)>,
}

fn rules() -> Rules {
    let deny: toml::Value = toml::from_str(&read("deny.toml")).unwrap();
    let text = |value: &toml::Value| value.as_str().unwrap().to_owned();
    let list = |value: &toml::Value| value.as_array().unwrap().clone();
    let licenses = &deny["licenses"];
    let exception = |entry: &toml::Value| (text(&entry["crate"]), text(&entry["allow"][0]));
    Rules {
        allow: list(&licenses["allow"]).iter().map(text).collect(),
        exceptions: list(&licenses["exceptions"]).iter().map(exception).collect(),
        banned: list(&deny["bans"]["deny"]).iter().map(|entry| text(&entry["crate"])).collect(),
        registry: text(&deny["sources"]["allow-registry"][0]),
        ignored: list(&deny["advisories"]["ignore"]).iter().map(|e| (text(&e["id"]), text(&e["reason"]))).collect(),
    }
}

fn cargo(args: &[&str]) -> Vec<u8> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = Command::new(cargo).args(args).current_dir(root()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}

/// Everything that is built for the one platform we have, tests and all features included.
fn packages() -> Vec<Value> {
    const PLATFORM: &str = "x86_64-unknown-linux-gnu";
    // The metadata's own graph has crates that no chosen feature brings in.
    let tree = ["tree", "--offline", "--all-features", "--target", PLATFORM, "--prefix", "none", "--format", "{p}"];
    let tree = String::from_utf8(cargo(&tree)).unwrap();
    let name = |line: &str| {
        let (name, rest) = line.split_once(" v")?;
        Some(format!("{name} {}", rest.split_whitespace().next()?))
    };
    let used: BTreeSet<String> = tree.lines().filter_map(name).collect();
    let metadata = ["metadata", "--format-version", "1", "--offline", "--all-features", "--filter-platform", PLATFORM];
    let metadata: Value = serde_json::from_slice(&cargo(&metadata)).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let is_used = |package: &&Value| {
        used.contains(&format!("{} {}", package["name"].as_str().unwrap(), package["version"].as_str().unwrap()))
    };
    packages.iter().filter(is_used).cloned().collect()
}

/// True where an SPDX expression can be met with these licences. Old crates write `/` for `OR`.
fn is_met(expression: &str, is_allowed: &dyn Fn(&str) -> bool) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ").replace(" WITH ", "+WITH+");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let met = either(&words, &mut at, is_allowed);
    assert_eq!(at, words.len(), "{expression:?} is not read to its end");
    met
}

fn either(words: &[&str], at: &mut usize, is_allowed: &dyn Fn(&str) -> bool) -> bool {
    let mut met = all(words, at, is_allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= all(words, at, is_allowed);
    }
    met
}

fn all(words: &[&str], at: &mut usize, is_allowed: &dyn Fn(&str) -> bool) -> bool {
    let mut met = one(words, at, is_allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(words, at, is_allowed);
    }
    met
}

fn one(words: &[&str], at: &mut usize, is_allowed: &dyn Fn(&str) -> bool) -> bool {
    let word = words[*at];
    *at += 1;
    if word == "(" {
        let met = either(words, at, is_allowed);
        assert_eq!(words.get(*at), Some(&")"));
        *at += 1;
        return met;
    }
    is_allowed(&word.replace("+WITH+", " WITH "))
}

#[test]
fn expressions_of_licences_are_understood() {
    let check = |expression: &str| is_met(expression, &|one| ["MIT", "ISC"].contains(&one));
    assert!(check("MIT") && check("Apache-2.0/MIT") && check("GPL-3.0 OR (MIT AND ISC)"));
    assert!(
        !check("MIT AND GPL-3.0") && !check("Apache-2.0 WITH LLVM-exception") && !check("(MIT OR GPL-3.0) AND GPL-3.0")
    );
}

#[test]
fn every_licence_is_on_the_list_and_every_entry_is_used() {
    let rules = rules();
    let mut wrong = Vec::new();
    let mut unused: BTreeSet<String> = rules.allow.clone();
    let mut unused_exceptions: Vec<_> = rules.exceptions.iter().collect();
    for package in packages() {
        let (name, expression) = (package["name"].as_str().unwrap(), package["license"].as_str().unwrap_or("none"));
        let exception = rules.exceptions.iter().find(|(package, _)| package == name);
        let is_allowed =
            |license: &str| rules.allow.contains(license) || exception.is_some_and(|(_, allowed)| allowed == license);
        if !is_met(expression, &is_allowed) {
            wrong.push(format!("{name}: {expression}"));
        }
        // A licence counts as used only where nothing else would do.
        unused.retain(|entry| is_met(expression, &|license| is_allowed(license) && license != entry));
        unused_exceptions.retain(|(package, _)| package != name);
    }
    none("licences", &wrong);
    assert!(unused.is_empty(), "nothing needs these licences any more: {unused:?}");
    assert!(unused_exceptions.is_empty(), "exceptions for crates that are not here: {unused_exceptions:?}");
}

#[test]
fn everything_comes_from_the_one_registry_and_nothing_banned_is_in() {
    let rules = rules();
    let registry = format!("registry+{}", rules.registry);
    let mut wrong = Vec::new();
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        match package["source"].as_str() {
            // Ours, the second of them for the tests alone.
            None if ["gvm", "gvm-nvml-mock"].contains(&name) => {}
            Some(source) if source == registry => {}
            source => wrong.push(format!("{name} comes from {source:?}")),
        }
        if rules.banned.iter().any(|banned| banned == name) {
            wrong.push(format!("{name} is banned; `cargo tree -i {name}` shows who brings it"));
        }
    }
    none("sources and bans", &wrong);
}

#[test]
fn every_ignored_advisory_says_why_it_does_not_touch_us() {
    for (id, reason) in rules().ignored {
        assert!(reason.split_whitespace().count() > 5, "{id}: {reason:?} is no reason");
        assert!(read("docs/adr/0013-dependencies.md").contains(&id), "ADR 0013 does not name {id}");
    }
}

#[test]
fn every_dependency_has_its_line_in_the_decision() {
    let manifest: toml::Value = toml::from_str(&read("Cargo.toml")).unwrap();
    let adr = read("docs/adr/0013-dependencies.md");
    let names = ["dependencies", "dev-dependencies"].iter().flat_map(|part| manifest[part].as_table().unwrap().keys());
    let missing: Vec<String> = names.filter(|name| !adr.contains(&format!("`{name}`"))).cloned().collect();
    none("docs/adr/0013-dependencies.md says of every dependency why it is here", &missing);
}
