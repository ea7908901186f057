//! Names that people type. Parsed once at the door; inside, a name is valid because it exists.

pub mod derive;
pub mod line;
mod reserved;
mod skeleton;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Why a text is not a name of the wanted kind. The message says what would be accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {shown} {problem}; use {rule}")]
pub struct NameError {
    kind: &'static str,
    shown: String,
    problem: &'static str,
    rule: &'static str,
}

/// Shows hostile input on one line: control characters escaped, long text cut.
fn shown(text: &str) -> String {
    let cut: String = text.chars().take(70).collect();
    let dots = if cut.len() < text.len() { "..." } else { "" };
    format!("{cut:?}{dots}")
}

fn is_lower_alnum(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// A label as in RFC 1123, lower case: `[a-z]([a-z0-9-]*[a-z0-9])?`, plus the extra inner bytes given.
fn check_label(text: &str, max: usize, inner: &[u8], digit_first: Leading) -> Result<(), &'static str> {
    let bytes = text.as_bytes();
    let (Some(&first), Some(&last)) = (bytes.first(), bytes.last()) else {
        return Err("is empty");
    };
    if bytes.len() > max {
        return Err("is too long");
    }
    let first_ok = match digit_first {
        Leading::Letter => first.is_ascii_lowercase(),
        Leading::LetterOrDigit => is_lower_alnum(first),
    };
    if !first_ok {
        return Err("starts with a character that is not allowed there");
    }
    if !is_lower_alnum(last) {
        return Err("ends with a character that is not allowed there");
    }
    if !bytes.iter().all(|byte| is_lower_alnum(*byte) || inner.contains(byte)) {
        return Err("has a character that is not allowed");
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Leading {
    Letter,
    LetterOrDigit,
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $rule:literal, $max:literal, $inner:literal, $leading:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                match check_label(text, $max, $inner, Leading::$leading) {
                    Ok(()) => Ok(Self(text.to_owned())),
                    Err(problem) => Err(NameError { kind: $kind, shown: shown(text), problem, rule: $rule }),
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(text: String) -> Result<Self, NameError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
    };
}

name_type!(
    /// The label a member gives a virtual machine; unique per owner, never used on the host.
    VmName, "VM name", "1 to 63 of a-z, 0-9 and -, starting with a letter and ending with a letter or digit",
    63, b"-", Letter
);
name_type!(
    /// A login name of gvm: what `getpwuid` says for members on the host.
    UserName, "user name", "1 to 32 of a-z, 0-9, - and _, starting with a letter and ending with a letter or digit",
    32, b"-_", Letter
);
name_type!(
    /// The name of a team.
    TeamName, "team name", "1 to 32 of a-z, 0-9, - and _, starting with a letter and ending with a letter or digit",
    32, b"-_", Letter
);
name_type!(
    /// The label that a member gives an API token; unique per owner.
    TokenName, "token name", "1 to 63 of a-z, 0-9, -, _ and ., starting and ending with a letter or digit",
    63, b"-_.", LetterOrDigit
);
name_type!(
    /// The name of a profile, and of its file without `.toml`.
    ProfileName, "profile name", "1 to 63 of a-z, 0-9 and -, starting with a letter and ending with a letter or digit",
    63, b"-", Letter
);
name_type!(
    /// The name of an image in the catalogue.
    ImageName, "image name", "1 to 63 of a-z, 0-9, - and ., starting and ending with a letter or digit",
    63, b"-.", LetterOrDigit
);
name_type!(
    /// The login inside a virtual machine.
    GuestUser, "guest user", "1 to 32 of a-z, 0-9, - and _, starting with a letter and ending with a letter or digit",
    32, b"-_", Letter
);
name_type!(
    /// A word that members put on their virtual machines to find them again.
    Tag, "tag", "1 to 63 of a-z, 0-9, -, _, . and =, starting and ending with a letter or digit",
    63, b"-_.=", LetterOrDigit
);

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, fits: bool) {
        assert_eq!(text.parse::<VmName>().is_ok(), fits, "{text:?}");
    }

    #[test]
    fn vm_names_follow_the_rule() {
        for good in ["a", "dev", "a1", "a-b", &"x".repeat(63)] {
            check(good, true);
        }
        for bad in [
            "",
            "1a",
            "-a",
            "a-",
            "A",
            "a b",
            "../x",
            "a\"b",
            "a<b",
            "a\u{1}",
            "m\u{e4}x",
            "\u{4f60}",
            "a.b",
            &"x".repeat(64),
        ] {
            check(bad, false);
        }
    }

    #[test]
    fn the_message_says_what_would_be_accepted_on_one_line() {
        let message = "a\nb".parse::<VmName>().map_err(|e| e.to_string());
        insta::assert_snapshot!(message.unwrap_err(), @r#"VM name "a\nb" has a character that is not allowed; use 1 to 63 of a-z, 0-9 and -, starting with a letter and ending with a letter or digit"#);
    }
}
