//! What both sides of the gateway offer and accept: algorithms, windows, timers.

use std::borrow::Cow;
use std::time::Duration;

use russh::keys::{Algorithm, EcdsaCurve, HashAlg, PrivateKey, PublicKey};
use russh::{MethodKind, MethodSet, Preferred, SshId, cipher, client, kex, server};

use super::conn::WINDOW;

/// How the gateway introduces itself.
const SSH_ID: &str = "SSH-2.0-gvm";
/// Largest packet asked for; what OpenSSH uses.
const PACKET: u32 = 32 * 1024;
/// Messages of one channel that wait for its task; with [`PACKET`] this bounds a channel's memory to 1 MiB a side.
const CHANNEL_QUEUE: usize = 32;
/// Messages that wait for a session's loop: enough to encrypt a whole read of a guest in one go.
const SESSION_QUEUE: usize = 32;
/// Every refusal of a key takes at least this long, whoever's key it is.
const REJECTION_TIME: Duration = Duration::from_millis(50);
/// russh's own limit of refusals, unsigned offers included: a backstop behind `auth::KeyCheck`, which counts better.
const REJECTIONS_MAX: usize = 48;
/// Silence after which the other side is asked whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Unanswered questions after which it is not; a suspended laptop or client has five minutes.
const KEEPALIVES_MAX: usize = 10;
/// The smallest RSA key of a member.
const RSA_BITS_MIN: usize = 2048;

/// The algorithms of users' keys. The library's own offer has SHA-1 in it and leaves security keys out.
const USER_KEYS: &[Algorithm] = &[
    Algorithm::Ed25519,
    Algorithm::SkEd25519,
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP256 },
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP384 },
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP521 },
    Algorithm::SkEcdsaSha2NistP256,
    Algorithm::Rsa { hash: Some(HashAlg::Sha512) },
    Algorithm::Rsa { hash: Some(HashAlg::Sha256) },
];

/// Key exchanges with clients. Finite-field groups are left out: with one of 8192 bits a stranger buys a second of our
/// processor for one packet. The NIST curves are left out as well, which auditors mark: nobody knows where their
/// constants are from. `scripts/audit-ssh.sh` looks at what is left.
const CLIENT_KEY_EXCHANGES: &[kex::Name] = &[
    kex::MLKEM768X25519_SHA256,
    kex::CURVE25519,
    kex::CURVE25519_PRE_RFC_8731,
    kex::EXTENSION_SUPPORT_AS_CLIENT,
    kex::EXTENSION_SUPPORT_AS_SERVER,
    kex::EXTENSION_OPENSSH_STRICT_KEX_AS_CLIENT,
    kex::EXTENSION_OPENSSH_STRICT_KEX_AS_SERVER,
];
/// Key exchanges with guests, which are their members' to set up; in FIPS mode they have the NIST curves only.
const GUEST_KEY_EXCHANGES: &[kex::Name] = &[
    kex::MLKEM768X25519_SHA256,
    kex::CURVE25519,
    kex::CURVE25519_PRE_RFC_8731,
    kex::ECDH_SHA2_NISTP256,
    kex::ECDH_SHA2_NISTP384,
    kex::ECDH_SHA2_NISTP521,
    kex::EXTENSION_SUPPORT_AS_CLIENT,
    kex::EXTENSION_SUPPORT_AS_SERVER,
    kex::EXTENSION_OPENSSH_STRICT_KEX_AS_CLIENT,
    kex::EXTENSION_OPENSSH_STRICT_KEX_AS_SERVER,
];

/// Towards guests: the cipher that processors have instructions for goes first.
const GUEST_CIPHERS: &[cipher::Name] =
    &[cipher::AES_256_GCM, cipher::AES_128_GCM, cipher::CHACHA20_POLY1305, cipher::AES_256_CTR, cipher::AES_128_CTR];
/// Towards clients, whose order decides.
const CLIENT_CIPHERS: &[cipher::Name] = &[
    cipher::CHACHA20_POLY1305,
    cipher::AES_256_GCM,
    cipher::AES_128_GCM,
    cipher::AES_256_CTR,
    cipher::AES_192_CTR,
    cipher::AES_128_CTR,
];

/// Why a user's key is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeakKey {
    /// SHA-1.
    #[error("ssh-rsa signatures use SHA-1; the client must sign with rsa-sha2-256 or rsa-sha2-512")]
    Sha1,
    /// Short RSA.
    #[error("an RSA key needs 2048 bits or more")]
    ShortRsa,
    /// Any other kind.
    #[error("keys of this kind are not accepted")]
    Kind,
}

/// Checks that a user's key, used with this signature algorithm, is one that the gateway takes.
///
/// # Errors
/// Says why it is not.
pub fn check_user_key(key: &PublicKey, algorithm: &Algorithm) -> Result<(), WeakKey> {
    if matches!(algorithm, Algorithm::Rsa { hash: None }) {
        return Err(WeakKey::Sha1);
    }
    if !USER_KEYS.contains(algorithm) {
        return Err(WeakKey::Kind);
    }
    match key.key_data().rsa() {
        Some(rsa) if (rsa.key_size() as usize) < RSA_BITS_MIN => Err(WeakKey::ShortRsa),
        _ => Ok(()),
    }
}

/// New keys after a gibibyte, or after this time.
fn limits(rekey: Duration) -> russh::Limits {
    russh::Limits { rekey_time_limit: rekey, ..russh::Limits::default() }
}

/// Towards clients.
pub fn server_config(host_key: PrivateKey, rekey: Duration) -> server::Config {
    server::Config {
        server_id: SshId::Standard(SSH_ID.into()),
        methods: MethodSet::from([MethodKind::PublicKey].as_slice()),
        auth_rejection_time: REJECTION_TIME,
        // The client's first, empty attempt only asks which methods there are.
        auth_rejection_time_initial: Some(Duration::ZERO),
        max_auth_attempts: REJECTIONS_MAX,
        keys: vec![host_key],
        limits: limits(rekey),
        window_size: WINDOW,
        maximum_packet_size: PACKET,
        channel_buffer_size: CHANNEL_QUEUE,
        event_buffer_size: SESSION_QUEUE,
        preferred: Preferred {
            key: Cow::Borrowed(USER_KEYS),
            kex: Cow::Borrowed(CLIENT_KEY_EXCHANGES),
            cipher: Cow::Borrowed(CLIENT_CIPHERS),
            ..Preferred::DEFAULT
        },
        // The library would also end a connection whose consumer is slow, and count keepalives as life;
        // `connection` watches instead.
        inactivity_timeout: None,
        keepalive_interval: Some(KEEPALIVE),
        keepalive_max: KEEPALIVES_MAX,
        nodelay: true,
        ..server::Config::default()
    }
}

/// Towards a guest that must show one of `host_keys`.
pub fn client_config(host_keys: &[PublicKey], rekey: Duration) -> client::Config {
    // Only what is known is asked for, so that a guest with more keys shows one of these.
    let mut kinds: Vec<Algorithm> = Vec::new();
    for key in host_keys {
        let wanted = match key.algorithm() {
            Algorithm::Rsa { .. } => {
                vec![Algorithm::Rsa { hash: Some(HashAlg::Sha512) }, Algorithm::Rsa { hash: Some(HashAlg::Sha256) }]
            }
            other => vec![other],
        };
        kinds.extend(wanted.into_iter().filter(|kind| !kinds.contains(kind)).collect::<Vec<_>>());
    }
    client::Config {
        client_id: SshId::Standard(SSH_ID.into()),
        limits: limits(rekey),
        window_size: WINDOW,
        maximum_packet_size: PACKET,
        channel_buffer_size: CHANNEL_QUEUE,
        preferred: Preferred {
            key: Cow::Owned(kinds),
            kex: Cow::Borrowed(GUEST_KEY_EXCHANGES),
            cipher: Cow::Borrowed(GUEST_CIPHERS),
            ..Preferred::DEFAULT
        },
        inactivity_timeout: None,
        keepalive_interval: Some(KEEPALIVE),
        keepalive_max: KEEPALIVES_MAX,
        nodelay: true,
        ..client::Config::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weak_keys_are_told_apart() {
        let key: PublicKey =
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti".parse().unwrap();
        assert_eq!(check_user_key(&key, &Algorithm::Ed25519), Ok(()));
        assert_eq!(check_user_key(&key, &Algorithm::Rsa { hash: None }), Err(WeakKey::Sha1));
        assert_eq!(check_user_key(&key, &Algorithm::Dsa), Err(WeakKey::Kind));
    }

    #[test]
    fn the_offer_of_user_keys_is_whole() {
        let names: Vec<String> = USER_KEYS.iter().map(ToString::to_string).collect();
        assert_eq!(
            names.join(","),
            "ssh-ed25519,sk-ssh-ed25519@openssh.com,ecdsa-sha2-nistp256,ecdsa-sha2-nistp384,ecdsa-sha2-nistp521,\
             sk-ecdsa-sha2-nistp256@openssh.com,rsa-sha2-512,rsa-sha2-256"
        );
    }
}
