//! Signatures of ID tokens: by one of the provider's own keys and an algorithm of the list, nothing else.

use jsonwebtoken::jwk::{AlgorithmParameters, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, Validation, decode, decode_header};
use serde::Deserialize;
use serde_json::Value;

use crate::model::login::id_token::Claims;

/// Longest token, bytes: groups make them long.
const MAX_TOKEN: usize = 64 * 1024;
/// Keys of one provider that are kept.
const MAX_KEYS: usize = 64;

/// Signatures that only the provider can make. Never `none`, never one with a secret that both sides know.
const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

/// The hash that goes with an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512, Ed25519's as well.
    Sha512,
}

/// A token whose signature is the provider's.
#[derive(Clone, Debug)]
pub struct Signed {
    /// What it says.
    pub claims: Claims,
    /// The hash of its algorithm.
    pub hash: Hash,
}

/// Why it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSigned {
    /// It is no token.
    #[error("it is malformed")]
    Malformed,
    /// By an algorithm that is not on the list.
    #[error("it is signed by no algorithm that counts")]
    Algorithm,
    /// By a key that is not among these: there may be newer ones.
    #[error("none of the provider's keys has signed it")]
    UnknownKey,
    /// Not by the key that it names.
    #[error("its signature is wrong")]
    Signature,
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

/// The keys of a provider's answer that can be used; what is of another kind is passed over.
pub fn read_set(body: &[u8]) -> Option<Vec<Jwk>> {
    let set: KeySet = serde_json::from_slice(body).ok()?;
    let keys = set.keys.into_iter().filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
    Some(keys.filter(|key| family(key).is_some()).take(MAX_KEYS).collect())
}

/// The family of a public key for signatures.
fn family(key: &Jwk) -> Option<AlgorithmFamily> {
    if !matches!(key.common.public_key_use, None | Some(PublicKeyUse::Signature)) {
        return None;
    }
    match key.algorithm {
        AlgorithmParameters::RSA(_) => Some(AlgorithmFamily::Rsa),
        AlgorithmParameters::EllipticCurve(_) => Some(AlgorithmFamily::Ec),
        AlgorithmParameters::OctetKeyPair(_) => Some(AlgorithmFamily::Ed),
        _ => None,
    }
}

/// Checks the signature of a token. What it says is not judged here.
pub fn verify(keys: &[Jwk], token: &str) -> Result<Signed, NotSigned> {
    if token.len() > MAX_TOKEN {
        return Err(NotSigned::Malformed);
    }
    // An algorithm that the library does not know, such as `none`, makes no header.
    let header = decode_header(token).map_err(|_| NotSigned::Algorithm)?;
    let is_id_token = header.typ.as_deref().is_none_or(|typ| typ.eq_ignore_ascii_case("JWT"));
    if !is_id_token || header.crit.is_some() || header.enc.is_some() {
        return Err(NotSigned::Malformed);
    }
    let algorithm = header.alg;
    if !ALGORITHMS.contains(&algorithm) {
        return Err(NotSigned::Algorithm);
    }
    let fits = |key: &&Jwk| {
        let is_named = header.kid.is_none() || key.common.key_id == header.kid;
        let is_for = key.common.key_algorithm.is_none_or(|own| own.to_string() == format!("{algorithm:?}"));
        is_named && is_for && family(key) == Some(algorithm.family())
    };
    // A token that names no key is taken only where there is no choice.
    let mut fitting = keys.iter().filter(fits);
    let (Some(key), None) = (fitting.next(), fitting.next()) else { return Err(NotSigned::UnknownKey) };
    let key = DecodingKey::from_jwk(key).map_err(|_| NotSigned::UnknownKey)?;
    let mut rules = Validation::new(algorithm);
    // All claims are judged by the model, whose clock is an argument.
    rules.required_spec_claims.clear();
    (rules.validate_exp, rules.validate_nbf, rules.validate_aud) = (false, false, false);
    let decoded = decode::<Claims>(token, &key, &rules).map_err(|_| NotSigned::Signature)?;
    Ok(Signed { claims: decoded.claims, hash: hash(algorithm) })
}

const fn hash(algorithm: Algorithm) -> Hash {
    match algorithm {
        Algorithm::RS384 | Algorithm::PS384 | Algorithm::ES384 => Hash::Sha384,
        Algorithm::RS512 | Algorithm::PS512 | Algorithm::EdDSA => Hash::Sha512,
        _ => Hash::Sha256,
    }
}
