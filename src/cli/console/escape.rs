//! The detach key: finds it in what is typed. Pure.
//!
//! The key alone detaches, as in virsh; a moment is waited for one of the letters that make something else of it.

use std::str::FromStr;

/// What to do with what was typed, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Typed {
    /// Bytes for the guest.
    Bytes(Vec<u8>),
    /// Leave.
    Detach,
    /// Tell the guest the size of the window.
    Size,
    /// Explain the keys.
    Help,
}

/// The key that begins a command to gvm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EscapeKey(Option<u8>);

impl EscapeKey {
    /// No key: everything goes to the guest.
    pub const NONE: Self = Self(None);

    /// As people write it: `Ctrl-]`.
    pub fn name(self) -> String {
        match self.0 {
            Some(byte) => format!("Ctrl-{}", char::from(byte | 0x40).to_ascii_lowercase()),
            None => "no key".to_owned(),
        }
    }
}

impl Default for EscapeKey {
    fn default() -> Self {
        Self(Some(0x1d))
    }
}

impl FromStr for EscapeKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" {
            return Ok(Self::NONE);
        }
        match text.as_bytes() {
            [b'^', key @ (b'a'..=b'z' | b'@'..=b'_')] => Ok(Self(Some(key & 0x1f))),
            _ => Err("write ^ and a letter or one of @[\\]^_ (^] is Ctrl-]), or none".to_owned()),
        }
    }
}

impl std::fmt::Display for EscapeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(byte) => write!(f, "^{}", char::from(byte | 0x40)),
            None => f.write_str("none"),
        }
    }
}

/// Watches what is typed.
#[derive(Debug)]
pub struct EscapeWatch {
    key: EscapeKey,
    is_pending: bool,
}

impl EscapeWatch {
    /// Watches for `key`.
    pub const fn new(key: EscapeKey) -> Self {
        Self { key, is_pending: false }
    }

    /// True after the key alone: if nothing follows soon, call [`Self::settle`].
    pub const fn is_pending(&self) -> bool {
        self.is_pending
    }

    /// The moment has passed: the key alone detaches.
    pub fn settle(&mut self) -> Option<Typed> {
        std::mem::take(&mut self.is_pending).then_some(Typed::Detach)
    }

    /// Takes what was typed apart. Nothing after a detach is kept.
    pub fn typed(&mut self, input: &[u8]) -> Vec<Typed> {
        let Some(key) = self.key.0 else { return vec![Typed::Bytes(input.to_vec())] };
        let mut out = Vec::new();
        let mut plain = Vec::new();
        for &byte in input {
            if std::mem::take(&mut self.is_pending) {
                let what = match byte {
                    b'r' | b'R' => Typed::Size,
                    b'?' | b'h' => Typed::Help,
                    byte if byte == key => {
                        plain.push(key);
                        continue;
                    }
                    _ => Typed::Detach,
                };
                if !plain.is_empty() {
                    out.push(Typed::Bytes(std::mem::take(&mut plain)));
                }
                let is_over = what == Typed::Detach;
                out.push(what);
                if is_over {
                    return out;
                }
            } else if byte == key {
                self.is_pending = true;
            } else {
                plain.push(byte);
            }
        }
        if !plain.is_empty() {
            out.push(Typed::Bytes(plain));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(input: &[&str], expected: &[Typed]) {
        let mut watch = EscapeWatch::new(EscapeKey::default());
        let mut out: Vec<Typed> = input.iter().flat_map(|part| watch.typed(part.as_bytes())).collect();
        out.extend(watch.settle());
        assert_eq!(out, expected, "{input:?}");
    }

    fn bytes(text: &str) -> Typed {
        Typed::Bytes(text.as_bytes().to_vec())
    }

    #[test]
    fn the_key_alone_detaches_and_letters_after_it_do_more() {
        check(&["ls\r"], &[bytes("ls\r")]);
        check(&["ab\u{1d}"], &[bytes("ab"), Typed::Detach]);
        check(&["\u{1d}", "."], &[Typed::Detach]);
        check(&["a\u{1d}", "rb"], &[bytes("a"), Typed::Size, bytes("b")]);
        check(&["\u{1d}?"], &[Typed::Help]);
        check(&["a\u{1d}\u{1d}b"], &[bytes("a\u{1d}b")]);
        check(&["\u{1d}qlost"], &[Typed::Detach]);
    }

    #[test]
    fn without_a_key_everything_goes_to_the_guest() {
        let mut watch = EscapeWatch::new(EscapeKey::NONE);
        assert_eq!(watch.typed(b"a\x1db"), [Typed::Bytes(b"a\x1db".to_vec())]);
        assert_eq!(watch.settle(), None);
    }

    #[test]
    fn keys_are_written_with_a_caret() {
        for (text, key) in [("^]", Some(0x1d)), ("^a", Some(1)), ("^A", Some(1)), ("none", None)] {
            assert_eq!(text.parse::<EscapeKey>(), Ok(EscapeKey(key)), "{text}");
        }
        for bad in ["", "]", "^", "^1", "^]]"] {
            assert!(bad.parse::<EscapeKey>().is_err(), "{bad}");
        }
        assert_eq!((EscapeKey::default().to_string(), EscapeKey::default().name()), ("^]".into(), "Ctrl-]".into()));
        assert_eq!("^a".parse::<EscapeKey>().unwrap().name(), "Ctrl-a");
    }
}
