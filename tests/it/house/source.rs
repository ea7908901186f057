//! Rust sources taken apart just far enough: code without comments, texts and tests; the texts by themselves.

use super::{files_below, read};

/// One file of `src/`.
pub struct Source {
    /// Path from `src/`, such as `manager/mod.rs`.
    pub path: String,
    /// Code with comments and the insides of texts blanked out, inline tests cut off. Lines are those of the file.
    pub code: String,
    /// The texts with their lines.
    pub texts: Vec<(usize, String)>,
    /// Comments, for rules about what a file says of itself.
    pub comments: String,
}

impl Source {
    /// The folder or file right below `src/` that it belongs to; `api` is told apart one level deeper.
    pub fn unit(&self) -> String {
        let parts: Vec<&str> = self.path.trim_end_matches(".rs").split('/').filter(|part| *part != "mod").collect();
        match parts.as_slice() {
            ["api", part, ..] => format!("api::{part}"),
            [first, ..] => (*first).to_owned(),
            [] => String::new(),
        }
    }

    /// True where it is one of these files or lies in one of these folders.
    pub fn is_in(&self, places: &[&str]) -> bool {
        places.iter().any(|place| self.path == *place || self.path.starts_with(&format!("{place}/")))
    }

    /// Depth of its module below the crate's root.
    pub fn depth(&self) -> usize {
        self.path.trim_end_matches(".rs").split('/').filter(|part| !["mod", "lib", "main"].contains(part)).count()
    }

    /// Every place of a word in the code: line and what stands before and after it.
    pub fn places_of<'s>(&'s self, word: &'s str) -> impl Iterator<Item = (usize, &'s str, &'s str)> {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        self.code.match_indices(word).filter_map(move |(at, _)| {
            let (before, after) = (&self.code[..at], &self.code[at + word.len()..]);
            let is_whole = !before.ends_with(is_part) && !after.starts_with(is_part);
            is_whole.then(|| (before.lines().count().max(1), before, after))
        })
    }

    /// Lines on which a crate is named: as the first part of a path, or alone behind `use`.
    pub fn lines_with_crate(&self, name: &str) -> Vec<usize> {
        let places = self.places_of(name).filter(|(_, before, after)| {
            let before = before.trim_end();
            let is_root = !before.ends_with("::") && !before.ends_with('.') || before.ends_with("{::");
            let is_path = after.starts_with("::") || before.ends_with("use") || before.ends_with("extern crate");
            is_root && is_path
        });
        places.map(|(line, ..)| line).collect()
    }
}

/// All sources, without files that hold only tests.
pub fn sources() -> Vec<Source> {
    let is_code = |path: &String| path.ends_with(".rs") && !path.ends_with("_tests.rs") && !path.ends_with("/tests.rs");
    let parse = |path: String| {
        let text = read(&path);
        take_apart(path.trim_start_matches("src/"), &text)
    };
    files_below("src").into_iter().filter(is_code).map(parse).collect()
}

fn take_apart(path: &str, text: &str) -> Source {
    let mut source = Source { path: path.to_owned(), code: String::new(), texts: Vec::new(), comments: String::new() };
    let mut rest = text;
    let mut line = 1;
    while let Some(first) = rest.chars().next() {
        let (taken, kind) = token(rest);
        let (token, after) = rest.split_at(taken);
        match kind {
            Kind::Comment => {
                source.comments.push_str(token);
                source.comments.push('\n');
            }
            Kind::Text => source.texts.push((line, token.to_owned())),
            Kind::Code => source.code.push(first),
        }
        if kind != Kind::Code {
            source.code.push(if kind == Kind::Text { '"' } else { ' ' });
            token.chars().filter(|c| *c == '\n').for_each(|c| source.code.push(c));
        }
        line += token.matches('\n').count();
        rest = after;
    }
    let from = source.code.len();
    source.code = without_tests(&source.code);
    // What is cut off the code is cut off the texts as well.
    if source.code.len() < from {
        let last = source.code.lines().count();
        source.texts.retain(|(line, _)| *line <= last);
    }
    source
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Text,
    Comment,
}

/// The length of the next comment or text; code is taken a character at a time, words of it whole.
fn token(rest: &str) -> (usize, Kind) {
    if rest.starts_with("//") {
        return (rest.find('\n').unwrap_or(rest.len()), Kind::Comment);
    }
    if rest.starts_with("/*") {
        return (rest.find("*/").map_or(rest.len(), |at| at + 2), Kind::Comment);
    }
    let raw = rest.strip_prefix('b').unwrap_or(rest);
    if let Some(body) = raw.strip_prefix('r') {
        let hashes = body.len() - body.trim_start_matches('#').len();
        if body[hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let start = rest.len() - body.len() + hashes + 1;
            let length = rest[start..].find(&end).map_or(rest.len(), |at| start + at + end.len());
            return (length, Kind::Text);
        }
    }
    if rest.starts_with('"') {
        return (quoted(rest, '"'), Kind::Text);
    }
    // A character, not a lifetime.
    if rest.starts_with('\'') && (rest[1..].starts_with('\\') || rest[1..].chars().nth(1) == Some('\'')) {
        return (quoted(rest, '\''), Kind::Text);
    }
    (rest.chars().next().map_or(1, char::len_utf8), Kind::Code)
}

fn quoted(rest: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// House style has inline tests at the end of a file.
fn without_tests(code: &str) -> String {
    let is_inline = |after: &str| {
        let item = after.trim_start().trim_start_matches("pub ");
        item.starts_with("mod ") && item.find('{').unwrap_or(usize::MAX) < item.find(';').unwrap_or(usize::MAX)
    };
    let mark = "#[cfg(test)]";
    match code.match_indices(mark).find(|(at, _)| is_inline(&code[at + mark.len()..])) {
        Some((at, _)) => code[..at].to_owned(),
        None => code.to_owned(),
    }
}

#[test]
fn sources_are_taken_apart() {
    let text = r##"//! doc of virt::x
use virt::connect; // sqlx::query
let a = "it's \" axum::Router"; let b = 'x'; let c: &'static str = r#"a "quoted" /sys"#;
fn f<'a>(x: &'a str) -> char { '"' }
#[cfg(test)]
mod tests {
    use tokio::spawn;
}
"##;
    let source = take_apart("hypervisor/xml/read.rs", text);
    assert_eq!(source.unit(), "hypervisor");
    assert_eq!(source.lines_with_crate("virt"), [2]);
    assert!(source.lines_with_crate("sqlx").is_empty() && source.lines_with_crate("axum").is_empty());
    assert!(source.lines_with_crate("tokio").is_empty(), "tests are cut off");
    assert!(source.texts.iter().any(|(line, text)| *line == 3 && text.contains("/sys")), "{:?}", source.texts);
    assert!(source.code.contains("fn f<'a>(x: &'a str)"), "{}", source.code);
    assert!(source.comments.contains("doc of virt"));
    assert_eq!((source.depth(), take_apart("manager/mod.rs", "").depth()), (3, 1));
    assert!(source.is_in(&["hypervisor/xml"]) && !source.is_in(&["hypervisor/x"]));
}
