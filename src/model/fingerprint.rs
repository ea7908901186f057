//! Fingerprints of certificates: how a client knows a server again.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// SHA-256 of a certificate in DER; shown as `SHA256:` and base64, like a host key's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fingerprint([u8; 32]);

/// Why a text is no fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no fingerprint of a certificate; write SHA256: and 43 characters of base64, or 64 hex digits")]
pub struct FingerprintError(String);

impl Fingerprint {
    /// Of a certificate in DER.
    pub fn of(certificate: &[u8]) -> Self {
        Self(Sha256::digest(certificate).into())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("SHA256:{}", STANDARD_NO_PAD.encode(self.0)))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

impl FromStr for Fingerprint {
    type Err = FingerprintError;

    /// Also hex with or without colons, as OpenSSL shows it.
    fn from_str(text: &str) -> Result<Self, FingerprintError> {
        let wrong = || FingerprintError(text.chars().take(120).collect());
        let body = text.trim();
        let body = body.strip_prefix("SHA256:").or_else(|| body.strip_prefix("sha256:")).unwrap_or(body);
        let hex: String = body.chars().filter(|c| *c != ':').collect();
        let bytes = if hex.len() == 64 {
            hex::decode(&hex).map_err(|_| wrong())?
        } else {
            STANDARD_NO_PAD.decode(body.trim_end_matches('=')).map_err(|_| wrong())?
        };
        bytes.try_into().map(Self).map_err(|_| wrong())
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = FingerprintError;

    fn try_from(text: String) -> Result<Self, FingerprintError> {
        text.parse()
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> Self {
        fingerprint.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_of_writing_are_read() {
        let of = Fingerprint::of(b"x");
        let shown = of.to_string();
        assert!(shown.starts_with("SHA256:") && shown.len() == 50, "{shown}");
        let openssl = hex::encode_upper(of.0)
            .as_bytes()
            .chunks(2)
            .map(|pair| String::from_utf8_lossy(pair).into_owned())
            .collect::<Vec<_>>()
            .join(":");
        for text in
            [shown.clone(), format!("{shown}="), hex::encode(of.0), openssl.clone(), format!("SHA256:{openssl}")]
        {
            assert_eq!(text.parse::<Fingerprint>().unwrap(), of, "{text}");
        }
        for bad in ["", "SHA256:", "SHA256:abc", "MD5:00", &"g".repeat(64)] {
            assert!(bad.parse::<Fingerprint>().is_err(), "{bad}");
        }
    }
}
