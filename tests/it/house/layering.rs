//! Who may import whom, and who may name what. The rules are those of `docs/architecture.md`, which cites these tests.

use super::source::{Source, sources};
use super::{none, read};

/// A folder (or file) of `src/` and what it may import beside itself. One that is not listed fails.
const LAYERS: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("plan", &["model"]),
    ("config", &["model"]),
    ("telemetry", &[]),
    // A leaf: it runs programs with a deadline and knows nothing else, so that adapters may share it.
    ("child", &[]),
    // The form of a backup: a leaf.
    ("backup", &[]),
    // Another: every listener counts its connections by it.
    ("gate", &["model"]),
    // Adapters: never each other.
    ("store", &["model"]),
    ("hypervisor", &["model"]),
    ("host", &["model", "child"]),
    ("image", &["model", "child"]),
    ("network", &["model", "child"]),
    ("gpu", &["model", "child"]),
    // A login of the host is judged by a helper of our own, a child.
    ("auth", &["model", "config", "child"]),
    (
        "manager",
        &["backup", "model", "plan", "config", "store", "hypervisor", "host", "image", "network", "gpu", "auth"],
    ),
    // The wire, and what stands on it.
    ("api", &[]),
    ("api::error", &[]),
    ("api::types", &["api::error"]),
    // It pins certificates by the model's fingerprint.
    ("api::client", &["api::error", "api::types", "model"]),
    ("gateway", &["api::client", "api::error", "api::types", "config", "gate", "model"]),
    // `gpu scan` looks at this machine itself, for hosts without a manager.
    ("cli", &["api::client", "api::error", "api::types", "config", "gpu", "model"]),
    // Front doors: they know use cases, and not what those stand on.
    ("api::server", &["api::error", "api::types", "auth", "config", "gate", "manager", "model"]),
    ("web", &["api::types", "auth", "manager", "model"]),
    // The child mode: started by the manager, it does what gpu says and knows nobody.
    ("helper", &["gpu", "model"]),
    // Composition.
    (
        "daemon",
        &["api::server", "backup", "auth", "config", "gpu", "host", "hypervisor", "image", "manager", "model", "store"],
    ),
    ("main", &["cli", "config", "daemon", "gateway", "helper", "telemetry"]),
    ("lib", &[]),
];

/// Crates that have one place.
const CRATES: &[(&[&str], &[&str])] = &[
    (&["virt", "virt_sys"], &["hypervisor"]),
    (&["quick_xml", "minijinja", "similar"], &["hypervisor/xml.rs", "hypervisor/xml"]),
    (&["nvml_wrapper", "nvml_wrapper_sys"], &["gpu"]),
    (&["sqlx"], &["store"]),
    (&["russh", "zeroize"], &["gateway"]),
    (&["axum"], &["api/server", "web"]),
    (&["utoipa", "utoipa_axum"], &["api"]),
    (&["tokio_tungstenite"], &["api/client.rs", "api/client"]),
    // The manager itself asks one kind of server: a login provider.
    (&["reqwest"], &["api/client.rs", "api/client", "auth/oidc.rs", "auth/oidc"]),
    (&["jsonwebtoken"], &["auth/oidc"]),
    (&["ldap3"], &["auth/ldap.rs", "auth/ldap"]),
    (&["libloading"], &["helper/pam.rs"]),
    (&["rustls", "tokio_rustls"], &["api/server", "api/client", "auth/ldap"]),
    (&["hyper", "hyper_util", "tower_service", "rcgen", "webpki_roots", "governor"], &["api/server"]),
    (&["hadris_iso"], &["image/seed.rs"]),
    // Making SSH keys; signing heads of the record, and verifying them without a manager.
    (&["aws_lc_rs"], &["image/sshkey.rs", "auth/random.rs", "auth/headkey.rs", "model/record/head.rs"]),
    (&["serde_saphyr"], &["image/user_data.rs", "model/gpu/layout"]),
    (&["clap", "clap_complete", "clap_mangen", "comfy_table", "indicatif", "anstream", "anstyle"], &["cli"]),
    (&["tracing_subscriber"], &["telemetry.rs"]),
    (&["sd_notify"], &["daemon.rs", "gateway"]),
    (&["anyhow"], &["daemon.rs", "daemon", "main.rs"]),
    (&["tar"], &["backup"]),
];

fn said(source: &Source, line: usize, what: &str) -> String {
    format!("src/{}:{line}: {what}", source.path)
}

/// The units that a file names by `crate::` (or `gvm::` in main.rs).
fn imports(source: &Source) -> Vec<(usize, String)> {
    let own = if source.path == "main.rs" { "gvm" } else { "crate" };
    let mut found = Vec::new();
    for (line, _, after) in source.places_of(own) {
        let Some(path) = after.strip_prefix("::") else { continue };
        let words: Vec<&str> =
            path.split("::").map(|w| w.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap()).collect();
        let unit = match words.as_slice() {
            ["api", part, ..] => format!("api::{part}"),
            [first, ..] => (*first).to_owned(),
            [] => String::new(),
        };
        found.push((line, unit));
    }
    found
}

#[test]
fn layers_import_only_what_is_below_them() {
    let mut wrong = Vec::new();
    for source in sources() {
        let unit = source.unit();
        let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == unit) else {
            wrong.push(said(&source, 1, &format!("{unit} has no place in the table of layers")));
            continue;
        };
        for (line, named) in imports(&source) {
            match named.as_str() {
                "" => wrong.push(said(&source, line, "a group right behind crate:: hides what is imported")),
                named if named == unit || allowed.contains(&named) => {}
                named => wrong.push(said(&source, line, &format!("{unit} may not import {named}"))),
            }
        }
        // `super::` that climbs up to the crate's root would be an import that this test does not see.
        for (line, before, after) in source.places_of("super") {
            let climbs = 1 + after.split("::").skip(1).take_while(|word| *word == "super").count();
            if !before.ends_with("::") && after.starts_with("::") && climbs >= source.depth() && source.depth() > 0 {
                wrong.push(said(&source, line, "super:: reaches the crate's root; write crate::"));
            }
        }
    }
    none("layers", &wrong);
}

#[test]
fn crates_are_named_only_where_they_belong() {
    let mut wrong = Vec::new();
    for source in sources() {
        for (crates, places) in CRATES.iter().filter(|(_, places)| !source.is_in(places)) {
            for name in *crates {
                let lines = source.lines_with_crate(name);
                wrong.extend(
                    lines.into_iter().map(|line| said(&source, line, &format!("{name} belongs to {places:?}"))),
                );
            }
        }
    }
    none("crates", &wrong);
}

#[test]
fn model_and_plan_are_pure() {
    // An id's random part and time stamp decide nothing.
    let exceptions = [("model/id.rs", "now_v7")];
    let words = [
        "async",
        "await",
        "tokio",
        "fs",
        "File",
        "process",
        "thread",
        "env",
        "SystemTime",
        "Instant",
        "now",
        "now_v7",
        "TcpStream",
        "UnixStream",
        "spawn",
        "sleep",
        "tracing",
        "static",
    ];
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| source.is_in(&["model", "plan"])) {
        for word in words {
            for (line, before, after) in source.places_of(word) {
                // A lifetime, and fields or arguments of that name, are values that were passed in.
                let is_value = before.ends_with(['\'', '.']) || word == "now" && !after.starts_with('(');
                if !is_value && !exceptions.contains(&(source.path.as_str(), word)) {
                    wrong.push(said(source, line, &format!("{word} has no place here")));
                }
            }
        }
    }
    none("pure", &wrong);
}

/// What a card can be divided into is asked of it: the published tables contradict each other.
#[test]
fn published_tables_are_for_tests_only() {
    let mut wrong = Vec::new();
    for source in
        sources().iter().filter(|source| !source.is_in(&["model/gpu/mig/fixtures.rs", "gpu/fake", "gpu/fake.rs"]))
    {
        let named = source.places_of("fixtures").filter(|(_, before, _)| !before.ends_with("pub mod "));
        wrong.extend(named.map(|(line, ..)| said(source, line, "names the published MIG tables")));
        let measured = source.places_of("yardstick").filter(|(_, before, _)| !before.ends_with("pub mod "));
        wrong.extend(measured.map(|(line, ..)| said(source, line, "places by what is only a measure")));
    }
    none("fixtures", &wrong);
}

#[test]
fn only_the_store_speaks_sql() {
    let verbs = ["SELECT ", "INSERT INTO", "UPDATE ", "DELETE FROM", "BEGIN ", "CREATE TABLE", "PRAGMA "];
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| !source.is_in(&["store"])) {
        for (line, text) in &source.texts {
            let body = text.trim_start_matches(['"', 'r', '#', 'b']).trim_start();
            if verbs.iter().any(|verb| body.starts_with(verb)) && !body.starts_with("UPDATE UNTIL") {
                wrong.push(said(source, *line, text));
            }
        }
    }
    none("SQL", &wrong);
}

#[test]
fn only_host_and_gpu_name_the_kernels_files() {
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| !source.is_in(&["host", "gpu"])) {
        for (line, text) in &source.texts {
            let body = text.trim_start_matches(['"', 'r', '#', 'b']);
            let is_path = ["/sys/", "/proc/", "sys/", "proc/"].iter().any(|start| body.starts_with(start));
            if is_path || body == "/sys\"" || body == "/proc\"" {
                wrong.push(said(source, *line, text));
            }
        }
    }
    none("/sys and /proc", &wrong);
}

#[test]
fn programs_are_run_only_where_they_belong() {
    // The command line becomes ssh and scp, and makes a first key by ssh-keygen; the helper, a bounded child itself, runs
    // the vendor's programs; all else runs through child.rs.
    let direct = ["child.rs", "cli/ssh/mod.rs", "cli/identity.rs", "gpu/steps/shape.rs"];
    let through_child = ["child.rs", "host", "image", "network", "gpu", "auth/pam.rs"];
    let mut wrong = Vec::new();
    for source in sources() {
        for (line, before, after) in source.places_of("Command") {
            let is_run = after.starts_with("::new") && !before.ends_with("clap::");
            if is_run && !source.is_in(&direct) && !source.is_in(&["cli/shell.rs"]) {
                wrong.push(said(&source, line, "runs a program"));
            }
        }
        for (line, ..) in source.places_of("ChildCall").filter(|_| !source.is_in(&through_child)) {
            wrong.push(said(&source, line, "runs a program through child.rs"));
        }
        // host asks for versions, and tries a packet scheduler in a network namespace of its own; plan only words
        // what is missing.
        if !source.is_in(&["network", "host/facts.rs", "plan/doctor"]) {
            let rules = source.texts.iter().filter(|(_, text)| ["\"nft\"", "\"tc\""].contains(&text.as_str()));
            wrong.extend(rules.map(|(line, text)| said(&source, *line, text)));
        }
    }
    none("programs", &wrong);
}

#[test]
fn unsafe_is_only_where_a_file_says_so() {
    let allowed = ["hypervisor", "gpu", "helper.rs", "helper"];
    let mut wrong = Vec::new();
    for source in sources() {
        let is_used = source.places_of("unsafe").next().is_some();
        let says_so = source.comments.lines().any(|line| line.starts_with("//!") && line.contains("`unsafe`"));
        if is_used && !(source.is_in(&allowed) && says_so) {
            wrong.push(said(
                &source,
                1,
                "unsafe code; only in hypervisor/, gpu/ and the helper, and the module doc says why",
            ));
        }
    }
    none("unsafe", &wrong);
}

#[test]
fn every_task_has_an_owner_and_every_queue_a_bound() {
    // Both handles are waited for at the end of daemon::run.
    let spawns = ["daemon.rs"];
    // Thread pools with their own bounds: libvirt's, and the one that looks at cards.
    let threads = ["hypervisor", "gpu/worker.rs"];
    let mut wrong = Vec::new();
    for source in sources() {
        for (line, before, _) in source.places_of("spawn") {
            if before.ends_with("tokio::") && !source.is_in(&spawns) {
                wrong.push(said(&source, line, "a detached task; use a TaskTracker"));
            }
        }
        for (line, before, after) in source.places_of("thread") {
            if before.ends_with("std::") && after.starts_with("::Builder") && !source.is_in(&threads) {
                wrong.push(said(&source, line, "a thread of its own"));
            }
        }
        for word in ["unbounded_channel", "UnboundedSender", "unbounded"] {
            wrong.extend(source.places_of(word).map(|(line, ..)| said(&source, line, "a queue without a bound")));
        }
        for (line, before, after) in source.places_of("channel") {
            let is_std = before.ends_with("std::sync::mpsc::");
            // A number in place of a name says nothing about why it is that number.
            let is_number = after.trim_start_matches('(').starts_with(|c: char| c.is_ascii_digit());
            if is_std || is_number && after.starts_with('(') {
                wrong.push(said(&source, line, "the size of a queue has a name and a reason"));
            }
        }
    }
    none("tasks and queues", &wrong);
}

#[test]
fn no_test_is_switched_off_and_nothing_is_left_to_do() {
    let mut wrong = Vec::new();
    for path in super::files_below("src").into_iter().chain(super::files_below("tests")) {
        if !path.ends_with(".rs") || path.ends_with("house/layering.rs") {
            continue;
        }
        for (number, line) in read(&path).lines().enumerate() {
            if line.trim_start().starts_with("#[ignore") || line.contains("TODO") || line.contains("XXX") {
                wrong.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    none("nothing is put off in the code; say it in an issue", &wrong);
}
