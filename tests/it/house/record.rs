//! The record is append-only: nothing in the code changes or removes an entry.

use super::source::sources;
use super::{files_below, none, read};

/// True for SQL that changes or removes rows of the table `record`, whatever its spacing.
fn changes_the_record(text: &str) -> bool {
    let words: Vec<String> = text
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    let names = |pair: &[&str]| {
        words.windows(pair.len() + 1).any(|run| run[..pair.len()] == *pair && run[pair.len()] == "record")
    };
    names(&["update"])
        || names(&["delete", "from"])
        || names(&["replace", "into"])
        || names(&["or", "replace", "into"])
        || names(&["drop", "table"])
        || names(&["alter", "table"])
        || words.windows(3).any(|run| run == ["insert", "into", "record"])
            && words.iter().any(|word| word == "conflict")
}

#[test]
fn nothing_changes_or_removes_an_entry_of_the_record() {
    let mut wrong = Vec::new();
    for source in sources() {
        let found = source.texts.iter().filter(|(_, text)| changes_the_record(text));
        wrong.extend(found.map(|(line, text)| format!("src/{}:{line}: {text}", source.path)));
    }
    for path in files_below("migrations") {
        for statement in read(&path).split(';').filter(|statement| changes_the_record(statement)) {
            wrong.push(format!("{path}: {}", statement.trim()));
        }
    }
    none("the record is append-only", &wrong);
}

#[test]
fn such_sql_is_recognised() {
    for sql in [
        "UPDATE record SET detail = ''",
        "delete  from\n record WHERE seq = 1",
        "INSERT OR REPLACE INTO record VALUES (1)",
        "INSERT INTO record (seq) VALUES (1) ON CONFLICT (seq) DO UPDATE SET at = 1",
        "DROP TABLE record",
    ] {
        assert!(changes_the_record(sql), "{sql}");
    }
    for sql in ["UPDATE record_tip SET seq = 1", "DELETE FROM record_pending", "INSERT INTO record (seq) VALUES (1)"] {
        assert!(!changes_the_record(sql), "{sql}");
    }
}
