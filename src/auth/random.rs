//! Bytes that nobody can guess.

use aws_lc_rs::rand;

/// The host gives none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cryptographic library gives no random bytes")]
pub struct NoRandom;

/// So many random bytes.
///
/// # Errors
/// [`NoRandom`].
pub fn bytes<const N: usize>() -> Result<[u8; N], NoRandom> {
    let mut bytes = [0; N];
    rand::fill(&mut bytes).map_err(|_| NoRandom)?;
    Ok(bytes)
}
