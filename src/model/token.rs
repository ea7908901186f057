//! API tokens as text, and what makes one good.
//!
//! ```text
//!   gvm_ p _ 6u2c...(22) 0Zk1...(43) a1B2c3(6)
//!        |   |           |           checksum: a mistyped token is told before anything is looked up
//!        |   |           256 random bits
//!        |   id: no secret, it finds the token again in lists and on the record
//!        kind: p personal, a service account, s session
//! ```
//!
//! Secret scanners know one by [`PATTERN`]. Digits are base 62.

use std::fmt;
use std::str::FromStr;

use jiff::{SignedDuration, Timestamp};
use sha2::{Digest as _, Sha256};

use super::id::TokenId;
use super::principal::Scopes;
use super::secret::Secret;

/// What a token looks like, as a regular expression.
pub const PATTERN: &str = "gvm_[pas]_[0-9A-Za-z]{71}";
/// Random bytes of a token.
pub const SECRET_BYTES: usize = 32;

const PREFIX: &str = "gvm_";
const ID_DIGITS: usize = 22;
const SECRET_DIGITS: usize = 43;
const CHECK_DIGITS: usize = 6;
/// `gvm_p_` and everything behind it.
const LENGTH: usize = PREFIX.len() + 2 + ID_DIGITS + SECRET_DIGITS + CHECK_DIGITS;
const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// A clock may be behind the one that stamped a token by so much.
const SKEW: SignedDuration = SignedDuration::from_secs(60);

/// Why a text is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not of this form.
    #[error("this is no token of gvm; one begins with gvm_p_, gvm_a_ or gvm_s_ and has {LENGTH} characters")]
    Form,
    /// A character is wrong.
    #[error("the token is mistyped: its checksum does not fit")]
    Checksum,
}

/// For whom a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// A person made it, for programs of theirs.
    Personal,
    /// Of a service account.
    Service,
    /// A person logged in.
    Session,
}

impl TokenKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Personal, Self::Service, Self::Session];

    /// The word that is stored and shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Personal => "personal",
            Self::Service => "service",
            Self::Session => "session",
        }
    }

    const fn letter(self) -> char {
        match self {
            Self::Personal => 'p',
            Self::Service => 'a',
            Self::Session => 's',
        }
    }
}

impl fmt::Display for TokenKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for TokenKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.as_str() == text);
        found.ok_or_else(|| format!("{text:?} is no kind of token"))
    }
}

/// A text of the right form and checksum. Whether it is anybody's, the store knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenText {
    kind: TokenKind,
    id: TokenId,
    text: Secret<String>,
}

impl TokenText {
    /// A token of that id from random bytes.
    pub fn new(kind: TokenKind, id: TokenId, random: &[u8; SECRET_BYTES]) -> Self {
        let head = format!(
            "{PREFIX}{}_{}{}",
            kind.letter(),
            digits(id.uuid().as_bytes(), ID_DIGITS),
            digits(random, SECRET_DIGITS)
        );
        let text = format!("{head}{}", checksum(&head));
        Self { kind, id, text: text.into() }
    }

    /// For whom.
    pub const fn kind(&self) -> TokenKind {
        self.kind
    }

    /// The id, which is no secret.
    pub const fn id(&self) -> TokenId {
        self.id
    }

    /// The token itself, for the one who may have it.
    pub const fn secret(&self) -> &Secret<String> {
        &self.text
    }

    /// By what it is known: SHA-256, hex.
    pub fn digest(&self) -> String {
        hex::encode(Sha256::digest(self.text.expose()))
    }

    /// The first text of the form of a token within another, such as a URL.
    pub fn find(text: &str) -> Option<Self> {
        let starts = text.match_indices(PREFIX).map(|(at, _)| at);
        starts.filter_map(|at| text.get(at..at + LENGTH)).find_map(|piece| piece.parse().ok())
    }
}

impl FromStr for TokenText {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let rest = text.strip_prefix(PREFIX).filter(|_| text.len() == LENGTH && text.is_ascii());
        let rest = rest.ok_or(TokenError::Form)?;
        let kind = TokenKind::ALL.into_iter().find(|kind| rest.starts_with(kind.letter())).ok_or(TokenError::Form)?;
        let body = rest.get(1..).and_then(|rest| rest.strip_prefix('_')).ok_or(TokenError::Form)?;
        if !body.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(TokenError::Form);
        }
        let (head, check) = text.split_at(LENGTH - CHECK_DIGITS);
        if checksum(head) != check {
            return Err(TokenError::Checksum);
        }
        let id = body.get(..ID_DIGITS).and_then(number).ok_or(TokenError::Form)?;
        let id = TokenId::from_uuid(uuid::Uuid::from_u128(id));
        Ok(Self { kind, id, text: text.to_owned().into() })
    }
}

/// Bytes as a number in base 62, most significant digit first, in so many digits.
fn digits(bytes: &[u8], count: usize) -> String {
    let mut left = bytes.to_vec();
    let mut text = Vec::with_capacity(count);
    for _ in 0..count {
        let mut rest = 0_usize;
        for byte in &mut left {
            let value = rest << 8 | usize::from(*byte);
            // Below 256, since the rest is below 62.
            *byte = u8::try_from(value / DIGITS.len()).unwrap_or(u8::MAX);
            rest = value % DIGITS.len();
        }
        text.push(DIGITS.get(rest).copied().map_or('0', char::from));
    }
    text.iter().rev().collect()
}

/// The number that those digits are, where it is one of 128 bits.
fn number(text: &str) -> Option<u128> {
    text.bytes().try_fold(0_u128, |sum, byte| {
        let digit = DIGITS.iter().position(|digit| *digit == byte)?;
        sum.checked_mul(62)?.checked_add(u128::try_from(digit).ok()?)
    })
}

/// Of everything before it; it protects against mistakes and against nobody.
fn checksum(head: &str) -> String {
    let digest = Sha256::digest(head);
    digits(digest.get(..4).unwrap_or_default(), CHECK_DIGITS)
}

/// Why a known token is not good now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotGood {
    /// It is over.
    Expired,
    /// It was made after now: the clock of this host stepped back.
    NotYet,
}

/// What is kept of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Id.
    pub id: TokenId,
    /// For whom.
    pub kind: TokenKind,
    /// Its owner's word for it, unique among theirs.
    pub name: String,
    /// What it is good for.
    pub scopes: Scopes,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it ends.
    pub expires_at: Timestamp,
    /// When it was last used, to about a minute.
    pub last_used_at: Option<Timestamp>,
    /// From where.
    pub last_used_from: Option<String>,
}

impl Token {
    /// Is it good at that time?
    ///
    /// # Errors
    /// [`NotGood`].
    pub fn check(&self, now: Timestamp) -> Result<(), NotGood> {
        if now.duration_until(self.created_at) > SKEW {
            return Err(NotGood::NotYet);
        }
        if now >= self.expires_at { Err(NotGood::Expired) } else { Ok(()) }
    }
}

/// Names of tokens: short words for lists.
///
/// # Errors
/// Says what would be accepted.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(is_known) {
        // Not quoted: it may be a token that was put in the wrong place.
        return Err("that cannot be a token's name; use 1 to 64 letters, digits, -, _ or .".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn token(random: [u8; SECRET_BYTES]) -> TokenText {
        TokenText::new(TokenKind::Personal, TokenId::generate(), &random)
    }

    #[test]
    fn debug_shows_no_token() {
        let token = token([7; SECRET_BYTES]);
        assert!(!format!("{token:?}").contains(&token.secret().expose()[28..]), "{token:?}");
    }

    #[test]
    fn what_is_no_token_is_told_from_what_is_mistyped() {
        let good = token([1; SECRET_BYTES]).secret().expose().clone();
        assert_eq!(good.len(), LENGTH);
        for bad in ["", "gvm_", "gvm_p_", "ghp_x", &good[1..], &good[..LENGTH - 1], &good.replace("_p_", "_x_")] {
            assert_eq!(bad.parse::<TokenText>().unwrap_err(), TokenError::Form, "{bad}");
        }
        let umlauts = format!("{}\u{e4}", &good[..LENGTH - 2]);
        assert_eq!((umlauts.len(), umlauts.parse::<TokenText>().unwrap_err()), (LENGTH, TokenError::Form));
    }

    #[test]
    fn a_token_is_good_from_its_making_to_its_end() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let token = Token {
            id: TokenId::generate(),
            kind: TokenKind::Personal,
            name: "ci".to_owned(),
            scopes: Scopes::all(),
            created_at: at(1000),
            expires_at: at(2000),
            last_used_at: None,
            last_used_from: None,
        };
        for (now, verdict) in [
            (939, Err(NotGood::NotYet)),
            (940, Ok(())),
            (1000, Ok(())),
            (1999, Ok(())),
            (2000, Err(NotGood::Expired)),
            (9000, Err(NotGood::Expired)),
        ] {
            assert_eq!(token.check(at(now)), verdict, "{now}");
        }
    }

    #[test]
    fn names_are_short_words() {
        assert!(check_name("ci-2.x_y").is_ok());
        for bad in ["", "a b", "a/b", "\u{e4}", "a\n", &"x".repeat(65)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn tokens_are_read_as_they_are_written(random: [u8; SECRET_BYTES], id: u128, kind in 0_usize..3) {
            let id = TokenId::from_uuid(uuid::Uuid::from_u128(id));
            let made = TokenText::new(TokenKind::ALL[kind], id, &random);
            let text = made.secret().expose();
            prop_assert_eq!(text.parse::<TokenText>().unwrap(), made.clone());
            let url = format!("/v1/vms?token={text}&x=1");
            prop_assert_eq!(TokenText::find(&url), Some(made.clone()));
        }

        #[test]
        fn one_wrong_character_is_told(random: [u8; SECRET_BYTES], at in 6_usize..LENGTH, digit in 0_usize..62) {
            let text = token(random).secret().expose().clone();
            let mut bytes = text.clone().into_bytes();
            prop_assume!(bytes[at] != DIGITS[digit]);
            bytes[at] = DIGITS[digit];
            // One in four thousand million is not.
            prop_assert!(String::from_utf8(bytes).unwrap().parse::<TokenText>().is_err());
        }

        #[test]
        fn no_text_makes_the_parser_stumble(text in "\\PC{0,100}", tail in "gvm_[pas]_[0-9A-Za-z]{71}") {
            let _ = text.parse::<TokenText>();
            prop_assert!(tail.parse::<TokenText>().is_err(), "a checksum is not met by chance");
            prop_assert_eq!(TokenText::find(&text), None);
        }
    }
}
