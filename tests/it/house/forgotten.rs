//! Files that nobody would miss: not declared, not embedded, not listed.

use std::collections::BTreeSet;

use super::{files_below, none, read, root};

/// The files that may declare a module in `path`, and the words that do it.
fn declarations(path: &str) -> Option<(Vec<String>, Vec<String>)> {
    let (folder, file) = path.rsplit_once('/')?;
    let (folder, name) = match file {
        "main.rs" | "lib.rs" => return None,
        "mod.rs" => folder.rsplit_once('/')?,
        _ => (folder, file.trim_end_matches(".rs")),
    };
    let mut parents: Vec<String> =
        ["mod.rs", "main.rs", "lib.rs"].iter().map(|parent| format!("{folder}/{parent}")).collect();
    parents.push(format!("{folder}.rs"));
    // Tests beside a file are declared by that file.
    if let Some(tested) = name.strip_suffix("_tests") {
        parents.push(format!("{folder}/{tested}.rs"));
    }
    Some((parents, vec![format!("mod {name};"), format!("#[path = \"{file}\"]")]))
}

#[test]
fn every_source_file_is_declared() {
    let mut forgotten = Vec::new();
    for path in files_below("src").into_iter().chain(files_below("tests/it")).filter(|path| path.ends_with(".rs")) {
        let Some((parents, words)) = declarations(&path) else { continue };
        let is_declared = parents.iter().any(|parent| {
            let text = std::fs::read_to_string(root().join(parent)).unwrap_or_default();
            words.iter().any(|word| text.contains(word.as_str()))
        });
        if !is_declared {
            forgotten.push(path);
        }
    }
    none("files that no module declares, so that the compiler never sees them", &forgotten);
}

#[test]
fn every_migration_is_embedded_and_their_numbers_have_no_gap() {
    let embedded = read("src/store/migrate.rs");
    for (index, path) in files_below("migrations").iter().enumerate() {
        let (file, number) = (path.trim_start_matches("migrations/"), index + 1);
        assert!(
            file.starts_with(&format!("{number:04}_")) && file.ends_with(".sql"),
            "{path} is not number {number:04}"
        );
        let name = file.trim_end_matches(".sql").split_once('_').unwrap().1;
        assert!(embedded.contains(&format!("../../{path}")), "{path} is not embedded in src/store/migrate.rs");
        assert!(embedded.contains(&format!("({number}, \"{name}\"")), "{path} has another number or name there");
    }
}

#[test]
fn every_template_and_profile_is_embedded() {
    let sources: String =
        files_below("src").iter().filter(|path| path.ends_with(".rs")).map(|path| read(path)).collect();
    let forgotten: Vec<String> =
        files_below("templates").into_iter().filter(|path| !sources.contains(&format!("../{path}\")"))).collect();
    none("templates that no include_str! names", &forgotten);
}

#[test]
fn every_recipe_is_in_the_manifest_and_every_script_in_the_readme() {
    let manifest = read("vm-images/manifest.toml");
    let readme = read("README.md");
    let mut forgotten = Vec::new();
    for path in files_below("vm-images").into_iter().filter(|path| path.ends_with("/recipe.sh")) {
        let name = path.split('/').nth(1).unwrap();
        if !manifest.contains(&format!("recipe = \"{name}\"")) {
            forgotten.push(format!("{path} is not in vm-images/manifest.toml"));
        }
    }
    for path in files_below("scripts").into_iter().filter(|path| path.ends_with(".sh") && !path.contains("/lib/")) {
        if !readme.contains(&path) {
            forgotten.push(format!("{path} is not in README.md"));
        }
    }
    none("recipes and scripts", &forgotten);
}

#[test]
fn every_snapshot_belongs_to_a_test() {
    let names: BTreeSet<String> = files_below("src")
        .into_iter()
        .chain(files_below("tests/it"))
        .filter(|path| path.ends_with(".rs"))
        .flat_map(|path| {
            let fns =
                |line: &str| line.trim_start().trim_start_matches("async ").strip_prefix("fn ").map(str::to_owned);
            let text = read(&path);
            let named = text.match_indices("assert_snapshot!(").filter_map(|(at, mark)| {
                // Of a name that is put together, what is fixed at its end.
                let rest = text[at + mark.len()..].trim_start();
                let rest = rest.strip_prefix("format!(").unwrap_or(rest).strip_prefix('"')?;
                Some(rest.split('"').next()?.rsplit('}').next()?.to_owned())
            });
            let found: Vec<String> =
                text.lines().filter_map(fns).map(|f| f.split('(').next().unwrap().to_owned()).chain(named).collect();
            found
        })
        .collect();
    let mut forgotten = Vec::new();
    for path in files_below("src").into_iter().chain(files_below("tests/it")).filter(|path| path.ends_with(".snap")) {
        let name = path.trim_end_matches(".snap").rsplit("__").next().unwrap();
        // A second snapshot of one test carries a number.
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('-');
        let is_put_together = || names.iter().any(|end| end.starts_with('-') && name.ends_with(end.as_str()));
        if !names.contains(name) && !names.contains(stem) && !is_put_together() {
            forgotten.push(path);
        }
    }
    none("snapshots of tests that are gone", &forgotten);
}

/// Files that are longer, and why that is better than the pieces.
const LONG: &[(&str, &str)] = &[];

/// House rule: about 400 lines, then split by role.
const LINES: usize = 450;

#[test]
fn files_stay_small() {
    let mut wrong = Vec::new();
    for path in files_below("src").into_iter().chain(files_below("tests")).filter(|path| path.ends_with(".rs")) {
        let lines = read(&path).lines().count();
        let is_excused = LONG.iter().any(|(long, _)| *long == path);
        if lines > LINES && !is_excused {
            wrong.push(format!("{path} has {lines} lines"));
        }
        if lines <= LINES && is_excused {
            wrong.push(format!("{path} is short enough now: take it off the list"));
        }
    }
    none("files are split by role at about 400 lines", &wrong);
}
