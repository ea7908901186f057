//! Makes the SSH keys that belong to a machine: its host key, and the key the gateway logs in with.
//!
//! Made here and not by ssh-keygen, so that no private key ever lies in a temporary file and no program needs to
//! be there. The format is OpenSSH's `openssh-key-v1` (PROTOCOL.key in its sources) without a passphrase.

use std::fmt;

use aws_lc_rs::encoding::AsBigEndian as _;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::error::{ImageError, ImageErrorKind, Result};
use crate::model::access::PublicKey;
use crate::model::secret::Secret;

const KIND: &[u8] = b"ssh-ed25519";

/// An Ed25519 key in OpenSSH's formats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshKey {
    /// The private half: the text of an OpenSSH private key file, ending in a newline.
    pub private: Secret<String>,
    /// The public half.
    pub public: PublicKey,
}

/// A string of the SSH wire format (RFC 4251, section 5).
fn put(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(text);
}

impl SshKey {
    /// A new key. `comment` stands behind the public half and inside of the private one.
    ///
    /// # Errors
    /// Only where the random source or the crypto library fails.
    pub fn generate(comment: &str) -> Result<Self> {
        let failed = |why: &dyn fmt::Display| {
            ImageError::new(ImageErrorKind::Transient, "making an SSH key", format!("the crypto library fails: {why}"))
        };
        let pair = Ed25519KeyPair::generate().map_err(|e| failed(&e))?;
        let seed = pair.seed().and_then(|seed| seed.as_be_bytes()).map_err(|e| failed(&e))?;
        let mut check = [0; 4];
        aws_lc_rs::rand::fill(&mut check).map_err(|e| failed(&e))?;
        Self::encode(seed.as_ref(), pair.public_key().as_ref(), check, comment)
    }

    fn encode(seed: &[u8], public: &[u8], check: [u8; 4], comment: &str) -> Result<Self> {
        let mut blob = Vec::new();
        put(&mut blob, KIND);
        put(&mut blob, public);
        let line = format!("ssh-ed25519 {} {comment}", STANDARD.encode(&blob));

        // The section that would be encrypted: two equal check words, the key, the comment, padding 1, 2, 3...
        let mut inner = Vec::new();
        inner.extend_from_slice(&check);
        inner.extend_from_slice(&check);
        put(&mut inner, KIND);
        put(&mut inner, public);
        put(&mut inner, &[seed, public].concat());
        put(&mut inner, comment.as_bytes());
        for pad in 1u8..=7 {
            if inner.len().is_multiple_of(8) {
                break;
            }
            inner.push(pad);
        }

        let mut file = b"openssh-key-v1\0".to_vec();
        put(&mut file, b"none");
        put(&mut file, b"none");
        put(&mut file, b"");
        file.extend_from_slice(&1u32.to_be_bytes());
        put(&mut file, &blob);
        put(&mut file, &inner);

        let body = STANDARD.encode(&file);
        let mut private = String::from("-----BEGIN OPENSSH PRIVATE KEY-----\n");
        let mut rest = body.as_str();
        while !rest.is_empty() {
            let (head, tail) = rest.split_at(rest.len().min(70));
            private.push_str(head);
            private.push('\n');
            rest = tail;
        }
        private.push_str("-----END OPENSSH PRIVATE KEY-----\n");
        let public = line.parse().map_err(|e| ImageError::invalid("making an SSH key", format!("{e}")))?;
        Ok(Self { private: private.into(), public })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::OpenOptionsExt as _;

    use super::*;
    use crate::child::needs;

    #[test]
    fn openssh_reads_the_key_back() {
        needs!("ssh-keygen");
        let dir = tempfile::tempdir().unwrap();
        for comment in ["", "a", "host of dev", "0123456"] {
            let key = SshKey::generate(comment).unwrap();
            let path = dir.path().join(format!("key{}", comment.len()));
            let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).unwrap();
            std::io::Write::write_all(&mut file, key.private.expose().as_bytes()).unwrap();
            let out = std::process::Command::new("ssh-keygen").arg("-y").arg("-f").arg(&path).output().unwrap();
            let said = String::from_utf8(out.stdout).unwrap();
            assert_eq!(said.trim(), key.public.to_string(), "{}", String::from_utf8_lossy(&out.stderr));
        }
    }

    #[test]
    fn two_keys_differ_and_debug_hides_the_private_half() {
        let (one, two) = (SshKey::generate("x").unwrap(), SshKey::generate("x").unwrap());
        assert_ne!(one.public, two.public);
        assert!(format!("{one:?}").contains("private: <secret>"), "{one:?}");
    }
}
