//! SSH keys of people.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// The kinds of user keys that are accepted. RSA only with SHA-2 signatures, which is a matter of the
/// handshake, not of the key.
const KINDS: [&str; 7] = [
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "ssh-rsa",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
];

/// A public key line, taken apart: kind, base64 body, comment. Options are not kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey {
    kind: String,
    body: String,
    comment: String,
}

/// Why a text is not a usable public key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A private key was given.
    #[error("this is a private key; give the public half, the file that ends in .pub, and keep this one to yourself")]
    Private,
    /// Not a kind we take.
    #[error(
        "key type {0:?} is not accepted; use ed25519 (ssh-keygen -t ed25519), ecdsa, rsa of 2048 bits or more, or a security key (ed25519-sk, ecdsa-sk)"
    )]
    Kind(String),
    /// Not base64 of a key blob.
    #[error("the key is damaged: {0}")]
    Damaged(&'static str),
    /// Nothing there.
    #[error("no public key found; give one line as in ~/.ssh/id_ed25519.pub")]
    Empty,
}

impl PublicKey {
    /// The key's kind, such as `ssh-ed25519`.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The base64 body: what two equal keys have in common.
    pub fn body(&self) -> &str {
        &self.body
    }

    /// What stands behind the key, by custom `user@host`.
    pub fn comment(&self) -> &str {
        &self.comment
    }

    /// Kind and body without the comment.
    pub fn identity(&self) -> String {
        format!("{} {}", self.kind, self.body)
    }
}

/// The first length-prefixed string of an SSH blob and the rest (RFC 4251, section 5).
fn split_string(blob: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = blob.split_first_chunk::<4>()?;
    let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
    rest.split_at_checked(len)
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        if text.contains("PRIVATE KEY") {
            return Err(KeyError::Private);
        }
        let line = text
            .lines()
            .map(str::trim)
            .find(|line| !line.is_empty() && !line.starts_with('#'))
            .ok_or(KeyError::Empty)?;
        if line.chars().any(char::is_control) {
            return Err(KeyError::Damaged("it has control characters"));
        }
        // Options such as from="..." may stand in front: the kind is the first word we know.
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| KINDS.contains(word));
        let Some(at) = at else {
            let first = words.first().copied().unwrap_or_default();
            return Err(KeyError::Kind(first.chars().take(40).collect()));
        };
        let kind = words.get(at).copied().unwrap_or_default();
        let body = words.get(at + 1).copied().ok_or(KeyError::Damaged("nothing follows its type"))?;
        let blob = STANDARD.decode(body).map_err(|_| KeyError::Damaged("its body is not base64"))?;
        let (inner, rest) = split_string(&blob).ok_or(KeyError::Damaged("its body is cut short"))?;
        if inner != kind.as_bytes() {
            return Err(KeyError::Damaged("its body is of another type than its first word says"));
        }
        let mut rest = rest;
        let mut longest = 0;
        while !rest.is_empty() {
            // Security keys end in strings as well, so that every blob is a chain of strings.
            let (field, next) = split_string(rest).ok_or(KeyError::Damaged("its body is cut short"))?;
            longest = longest.max(field.len());
            rest = next;
        }
        if longest == 0 {
            return Err(KeyError::Damaged("its body is cut short"));
        }
        if kind == "ssh-rsa" && longest < 256 {
            return Err(KeyError::Kind("ssh-rsa with fewer than 2048 bits".to_owned()));
        }
        let comment = words.get(at + 2..).unwrap_or_default().join(" ").chars().take(120).collect();
        Ok(Self { kind: kind.to_owned(), body: body.to_owned(), comment })
    }
}

impl TryFrom<String> for PublicKey {
    type Error = KeyError;

    fn try_from(text: String) -> Result<Self, KeyError> {
        text.parse()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.body)?;
        if self.comment.is_empty() { Ok(()) } else { write!(f, " {}", self.comment) }
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        key.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdZ0vJtYXQ0ZXJvZnRlc3RzYW5kbm90aGluZ2Vsc2Uh eve@laptop";

    #[test]
    fn a_key_line_is_taken_apart_and_put_together() {
        let key: PublicKey = GOOD.parse().unwrap();
        assert_eq!(key.kind(), "ssh-ed25519");
        assert_eq!(key.to_string(), GOOD);
        let with_options: PublicKey = format!("\n# laptop\nfrom=\"10.0.0.0/8\" {GOOD}\r\n").parse().unwrap();
        assert_eq!(with_options, key);
    }

    #[test]
    fn what_is_not_a_public_key_is_refused_with_the_way_out() {
        let refused = |text: &str| text.parse::<PublicKey>().unwrap_err();
        assert_eq!(refused("-----BEGIN OPENSSH PRIVATE KEY-----\nb3Blb"), KeyError::Private);
        assert_eq!(refused(""), KeyError::Empty);
        assert!(matches!(refused("ssh-dss AAAAB3NzaC1kc3M= x"), KeyError::Kind(_)));
        assert!(matches!(refused("ssh-ed25519 AAAA!"), KeyError::Damaged(_)));
        assert!(matches!(refused("ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAAIJdZ"), KeyError::Damaged(_)));
    }
}
