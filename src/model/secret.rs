//! Values that must not be seen.

use std::fmt;

/// A value whose `Debug` says nothing. It has no `Display` and no serde, so that showing it takes a call of
/// [`Secret::expose`] that a reader can find.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    /// Wraps a value.
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// The value, for the one place that needs it.
    pub const fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> From<T> for Secret<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

/// Shortest word that is taken for a token; all names of ours are shorter or do not begin like one.
const TOKEN_LENGTH: usize = 24;

/// A text of a stranger without what looks like a secret: tokens of gvm, and private keys with all behind them. For what
/// is kept of requests that were refused, where such things stand in the wrong place.
pub fn without_secrets(text: &str) -> String {
    let (text, has_key) = match text.split_once("-----BEGIN ") {
        Some((before, _)) => (before, true),
        None => (text, false),
    };
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let is_token = |word: &str| {
        let is_ours = word.split_once('_').is_some_and(|(start, _)| start.starts_with("gvm") && start.len() <= 6);
        word.len() >= TOKEN_LENGTH && is_ours
    };
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        kept.push_str(if is_token(word) { "<secret>" } else { word });
        let between = after.find(is_word).unwrap_or(after.len());
        let (other, next) = after.split_at(between);
        kept.push_str(other);
        rest = next;
    }
    if has_key {
        kept.push_str("<secret>");
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_secret_is_not_kept() {
        for (text, kept) in [
            ("there is no VM \"dev.eve\"", "there is no VM \"dev.eve\""),
            ("gvm_0123456789abcdefghijklmn", "<secret>"),
            ("?token=gvmt_0123456789abcdefghij-xyz&a=ü", "?token=<secret>&a=ü"),
            ("gvm_short", "gvm_short"),
            ("key -----BEGIN OPENSSH PRIVATE KEY-----\nabc", "key <secret>"),
            ("", ""),
        ] {
            assert_eq!(without_secrets(text), kept, "{text}");
        }
    }

    #[test]
    fn debug_shows_nothing_of_it() {
        assert_eq!(format!("{:?}", Some(Secret::new("hunter2"))), "Some(<secret>)");
    }
}
