//! SSH keys of the user on this machine.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use sha2::{Digest as _, Sha256};

use super::error::{CliError, CliResult};
use super::files;
use crate::api::error::ErrorCode;
use crate::model::access::PublicKey;

/// Largest public key file that is read.
pub const KEY_FILE_MAX: u64 = 64 << 10;
/// The key that gvm makes where there is none, in `~/.ssh`.
const OWN_KEY: &str = "gvm_ed25519";
/// The files that OpenSSH uses by itself, best first; `id_*_sk.pub` comes after them.
const USUAL: [&str; 3] = ["id_ed25519.pub", "id_ecdsa.pub", "id_rsa.pub"];

/// A public key file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalKey {
    /// The file.
    pub path: PathBuf,
    /// What is in it.
    pub key: PublicKey,
}

impl LocalKey {
    /// What to give to `ssh -i`: the private half, or the public file where only the agent has the private half.
    pub fn identity_file(&self) -> PathBuf {
        let private = self.path.with_extension("");
        if private.exists() { private } else { self.path.clone() }
    }
}

/// The usable public keys in the folder `ssh` (`~/.ssh`), best first. Files that cannot be used are passed over.
pub fn local_keys(ssh: &Path) -> Vec<LocalKey> {
    let mut names: Vec<String> = USUAL.iter().map(|name| (*name).to_owned()).collect();
    let mut security_keys: Vec<String> = std::fs::read_dir(ssh)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("id_") && name.ends_with("_sk.pub"))
        .collect();
    security_keys.sort();
    names.append(&mut security_keys);
    names.push(format!("{OWN_KEY}.pub"));
    names
        .into_iter()
        .filter_map(|name| {
            let path = ssh.join(name);
            let key = files::read_text(&path, KEY_FILE_MAX).ok()?.parse().ok()?;
            Some(LocalKey { path, key })
        })
        .collect()
}

/// `SHA256:...` as OpenSSH writes it.
pub fn fingerprint(key: &PublicKey) -> String {
    let blob = STANDARD.decode(key.body()).unwrap_or_default();
    format!("SHA256:{}", STANDARD_NO_PAD.encode(Sha256::digest(blob)))
}

/// Makes a key without a passphrase in the folder `ssh`, for gvm alone.
///
/// # Errors
/// Where `ssh-keygen` is missing or fails.
pub fn make_key(ssh: &Path) -> CliResult<LocalKey> {
    files::ensure_private_dir(ssh)?;
    let private = ssh.join(OWN_KEY);
    let made = std::process::Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", "gvm", "-f"])
        .arg(&private)
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(|error| {
            CliError::new(ErrorCode::Internal, format!("cannot run ssh-keygen: {error}"))
                .hint("install OpenSSH's client (`sudo apt install openssh-client`), or `gvm key add FILE`")
        })?;
    if !made.status.success() {
        let said = String::from_utf8_lossy(&made.stderr);
        return Err(CliError::new(
            ErrorCode::Internal,
            format!("ssh-keygen could not make {}: {}", private.display(), said.trim()),
        ));
    }
    let path = private.with_extension("pub");
    let key = files::read_text(&path, KEY_FILE_MAX)?.parse().map_err(|e| CliError::invalid(format!("{e}")))?;
    Ok(LocalKey { path, key })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdZ0vJtYXQ0ZXJvZnRlc3RzYW5kbm90aGluZ2Vsc2Uh eve@laptop";

    #[test]
    fn keys_are_found_best_first_and_unusable_ones_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["id_work_sk.pub", "gvm_ed25519.pub", "id_ed25519.pub", "other.pub"] {
            std::fs::write(dir.path().join(name), KEY).unwrap();
        }
        std::fs::write(dir.path().join("id_rsa.pub"), "not a key").unwrap();
        let found: Vec<_> = local_keys(dir.path()).iter().map(|k| k.path.file_name().unwrap().to_owned()).collect();
        assert_eq!(found, ["id_ed25519.pub", "id_work_sk.pub", "gvm_ed25519.pub"]);
        assert!(local_keys(&dir.path().join("none")).is_empty());
    }

    #[test]
    fn the_private_half_is_named_where_it_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("id_ed25519.pub");
        let key = LocalKey { path: path.clone(), key: KEY.parse().unwrap() };
        assert_eq!(key.identity_file(), path);
        std::fs::write(dir.path().join("id_ed25519"), "").unwrap();
        assert_eq!(key.identity_file(), dir.path().join("id_ed25519"));
    }

    #[test]
    fn fingerprints_are_those_of_openssh() {
        // ssh-keygen -lf of the key above.
        let key: PublicKey = KEY.parse().unwrap();
        assert_eq!(fingerprint(&key), "SHA256:F7YbSowSTz+aNLLioAXbOKSqaX5Xv5P175F2ktLfOrg");
    }
}
