//! Fingerprints of public keys, as `ssh-keygen -l` shows them.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use sha2::{Digest, Sha256};

use crate::model::access::PublicKey;

/// `SHA256:` and the unpadded base64 of the digest of the key's blob.
pub fn fingerprint(key: &PublicKey) -> String {
    // A parsed key has a valid body.
    let blob = STANDARD.decode(key.body()).unwrap_or_default();
    format!("SHA256:{}", STANDARD_NO_PAD.encode(Sha256::digest(&blob)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fingerprint_is_that_of_ssh_keygen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k");
        let made =
            std::process::Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&path).status();
        assert!(made.unwrap().success());
        let public = dir.path().join("k.pub");
        let shown = std::process::Command::new("ssh-keygen").arg("-lf").arg(&public).output().unwrap();
        let key: PublicKey = std::fs::read_to_string(public).unwrap().parse().unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        assert_eq!(shown.split_whitespace().nth(1), Some(fingerprint(&key).as_str()));
    }
}
