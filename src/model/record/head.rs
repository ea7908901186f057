//! Heads of the record: how far it went at a moment, signed, so that a copy elsewhere proves it later.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;

use super::Hash;
use super::check::Chain;
use crate::model::id::HostId;

/// Begins the text of a head; the number changes with the form.
const FORM: &str = "gvm-record-head:1";

/// How far the record went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The last entry.
    pub seq: u64,
    /// Its hash, which stands for all before it.
    pub hash: Hash,
    /// When.
    pub at: Timestamp,
    /// Whose record.
    pub host: HostId,
}

impl Head {
    /// The text that is signed. None of its parts can hold a colon.
    pub fn text(&self) -> String {
        format!("{FORM}:{}:{}:{}:{}", self.seq, self.hash, self.at.as_microsecond(), self.host)
    }

    /// Where it stands in the chain.
    pub const fn place(&self) -> Chain {
        Chain { seq: self.seq, hash: self.hash }
    }
}

/// The public half of the key that heads are signed with: Ed25519, base64url where it is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    /// Of its 32 bytes.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// Why a text is no head, or no key of heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoHead {
    /// Not a head.
    #[error("this is no signed head of a record, such as `gvm audit head` prints")]
    Head,
    /// Not a key.
    #[error("this is no key of a record, such as `gvm audit head` prints")]
    Key,
}

impl FromStr for Key {
    type Err = NoHead;

    fn from_str(text: &str) -> Result<Self, NoHead> {
        let bytes = URL_SAFE_NO_PAD.decode(text.trim()).map_err(|_| NoHead::Key)?;
        Self::of(&bytes).ok_or(NoHead::Key)
    }
}

/// A head with its signature; one line where it is shown and stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedHead {
    /// What is signed.
    pub head: Head,
    /// By whom.
    pub key: Key,
    signature: Vec<u8>,
}

impl SignedHead {
    /// Of its parts.
    pub const fn new(head: Head, key: Key, signature: Vec<u8>) -> Self {
        Self { head, key, signature }
    }

    /// True where the signature is the key's, and of this head.
    pub fn is_genuine(&self) -> bool {
        UnparsedPublicKey::new(&ED25519, self.key.0).verify(self.head.text().as_bytes(), &self.signature).is_ok()
    }
}

impl fmt::Display for SignedHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.head.text(), self.key, URL_SAFE_NO_PAD.encode(&self.signature))
    }
}

impl SignedHead {
    /// The heads in a text, such as a file that they were kept in or lines of the journal.
    ///
    /// # Errors
    /// [`NoHead`] where something begins like a head and is none.
    pub fn all_in(text: &str) -> Result<Vec<Self>, NoHead> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, ':' | '-' | '_');
        let whole = |(at, _): (usize, &str)| {
            text.get(at..).unwrap_or_default().split(|c| !is_part(c)).next().unwrap_or_default()
        };
        text.match_indices(FORM).map(whole).map(str::parse).collect()
    }
}

impl FromStr for SignedHead {
    type Err = NoHead;

    fn from_str(text: &str) -> Result<Self, NoHead> {
        let rest = text.trim().strip_prefix(FORM).and_then(|rest| rest.strip_prefix(':')).ok_or(NoHead::Head)?;
        let parts: Vec<&str> = rest.split(':').collect();
        let [seq, hash, at, host, key, signature] = parts.as_slice() else { return Err(NoHead::Head) };
        let no = |_| NoHead::Head;
        let micros = at.parse().map_err(|_| NoHead::Head)?;
        Ok(Self {
            head: Head {
                seq: seq.parse().map_err(|_| NoHead::Head)?,
                hash: hash.parse().map_err(|_| NoHead::Head)?,
                at: Timestamp::from_microsecond(micros).map_err(|_| NoHead::Head)?,
                host: host.parse().map_err(|_| NoHead::Head)?,
            },
            key: key.parse().map_err(no)?,
            signature: URL_SAFE_NO_PAD.decode(signature).map_err(|_| NoHead::Head)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};

    use super::super::check::{Fault, Heads, Wrong};
    use super::super::tests::chain;
    use super::*;

    fn signed(pair: &Ed25519KeyPair, seq: u64, hash: Hash) -> SignedHead {
        let head = Head { seq, hash, at: Timestamp::from_microsecond(1_800_000_000_000_001).unwrap(), host: host() };
        let signature = pair.sign(head.text().as_bytes()).as_ref().to_vec();
        SignedHead::new(head, Key::of(pair.public_key().as_ref()).unwrap(), signature)
    }

    fn host() -> HostId {
        "01890000-0000-7000-8000-000000000003".parse().unwrap()
    }

    #[test]
    fn a_head_is_one_line_and_no_part_of_it_can_be_changed() {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        let head = signed(&pair, 12, Hash::START);
        let line = head.to_string();
        assert_eq!(line.parse::<SignedHead>().unwrap(), head);
        assert!(head.is_genuine());
        // RFC 8032 signatures say the same every time.
        let (text, rest) = line.split_at(line.len() - 44 - 86);
        assert_eq!(
            text,
            format!("gvm-record-head:1:12:{}:1800000000000001:01890000-0000-7000-8000-000000000003:", "0".repeat(64))
        );
        assert_eq!(&rest[..44], "6kpsY-KcUgq-9VB7Ey7F-ZVHdq6-vnuSQh7qaRRG0iw:");
        for (from, to) in [(":12:", ":13:"), (":1800000000000001:", ":1800000000000002:"), ("000003:", "000004:")] {
            let other: SignedHead = line.replace(from, to).parse().unwrap();
            assert!(!other.is_genuine(), "{other}");
        }
        for wrong in ["", "gvm-record-head:2:1", &line[..line.len() - 1], &line.replace(":12:", ":x:")] {
            let parsed = wrong.parse::<SignedHead>();
            assert!(parsed.is_err() || parsed.is_ok_and(|head| !head.is_genuine()), "{wrong}");
        }
    }

    #[test]
    fn heads_tell_what_the_chain_alone_cannot() {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        let entries = chain(20);
        let hash = |seq: u64| entries.get(usize::try_from(seq).ok()?.checked_sub(1)?)?.hash.parse().ok();
        let at = |seq| signed(&pair, seq, hash(seq).unwrap());
        let key = at(1).key;
        let heads = Heads::trusted(vec![at(15), at(5)], Some(&key)).unwrap();
        let end = |seq| Chain { seq, hash: hash(seq).unwrap() };
        assert_eq!(heads.agree(Chain::START, end(20), hash), Ok(()));
        let cut = heads.agree(Chain::START, end(12), hash).unwrap_err();
        assert_eq!(cut, Fault { seq: 13, wrong: Wrong::CutOff { head: 15 } });
        let anew = |seq| if seq < 9 { hash(seq) } else { Some(Hash::START) };
        let rewritten = heads.agree(Chain::START, end(20), anew).unwrap_err();
        assert_eq!(rewritten, Fault { seq: 6, wrong: Wrong::Rewritten { head: 15 } });

        let other = Ed25519KeyPair::from_seed_unchecked(&[8; 32]).unwrap();
        let foreign = signed(&other, 5, hash(5).unwrap());
        let fault = Heads::trusted(vec![at(15), foreign.clone()], Some(&key)).unwrap_err();
        assert_eq!(fault, Fault { seq: 5, wrong: Wrong::OtherKey { key: foreign.key } });
        let forged = SignedHead::new(at(15).head, key, foreign.signature);
        assert_eq!(Heads::trusted(vec![forged], None).unwrap_err().wrong, Wrong::BadSignature);
    }
}
