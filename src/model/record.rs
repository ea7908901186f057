//! The record: its entries, and the chain that binds each to all before it.
//!
//! ```text
//!   hash(n) = SHA-256( CONTEXT | hash(n-1) | number | time | each text: absent, or its length and bytes )
//!                                  ^
//!   hash(0) = 32 zero bytes -------+        head = (n, hash(n), time, host), signed: see `head`
//! ```
//!
//! An entry is never changed: what a request came to is a second entry of the same operation.

pub mod check;
pub mod export;
pub mod head;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::event::{AuditEvent, Outcome};
use super::id::OpId;

/// Begins what is hashed, so that no other use of SHA-256 gives the same value.
const CONTEXT: &[u8] = b"gvm record entry 1\n";

/// A SHA-256 value; in hexadecimal where it is stored and shown.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hash([u8; 32]);

impl Hash {
    /// What comes before the first entry.
    pub const START: Self = Self([0; 32]);

    /// True where this text is it, to the letter.
    pub fn is(&self, text: &str) -> bool {
        let mut own = [0; 64];
        hex::encode_to_slice(self.0, &mut own).is_ok() && own == text.as_bytes()
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&hex::encode(self.0))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hash({self})")
    }
}

/// A text that is no SHA-256 value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a hash is 64 digits 0-9 a-f")]
pub struct NoHash;

impl FromStr for Hash {
    type Err = NoHash;

    fn from_str(text: &str) -> Result<Self, NoHash> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| NoHash)?;
        let hash = Self(bytes);
        if hash.is(text) { Ok(hash) } else { Err(NoHash) }
    }
}

/// Which part of an operation an entry tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// It was accepted; its effect is under way.
    Begin,
    /// What it came to.
    End,
    /// It was over at once: a refusal, or a change without an effect outside of the database.
    Whole,
}

impl Half {
    /// The word that is stored and shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::End => "end",
            Self::Whole => "whole",
        }
    }

    /// The one that an event is told by when it comes up.
    pub fn first_of(event: &AuditEvent) -> Self {
        if event.outcome == Outcome::Pending { Self::Begin } else { Self::Whole }
    }
}

/// Names of the texts of an entry, in the order in which they are hashed.
pub const TEXTS: [&str; 12] = [
    "operation",
    "half",
    "actor",
    "actor_id",
    "via",
    "address",
    "request_id",
    "action",
    "target",
    "vm_id",
    "outcome",
    "detail",
];

/// An entry as it is hashed: exactly what was stored, whether it makes sense or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields<'a> {
    /// Number, from 1 on without a gap.
    pub seq: u64,
    /// Microseconds since 1970, by the host's clock: it may step back where the number does not.
    pub at: i64,
    /// The texts that [`TEXTS`] names.
    pub texts: [Option<&'a str>; TEXTS.len()],
}

impl Fields<'_> {
    /// Gives the bytes that are hashed to `out`, one after another. No two different entries give the same.
    pub fn encode(&self, mut out: impl FnMut(&[u8])) {
        out(&self.seq.to_be_bytes());
        out(&self.at.to_be_bytes());
        for text in &self.texts {
            match text {
                None => out(&[0]),
                Some(text) => {
                    let mut head = [1; 9];
                    let length = u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes();
                    head.iter_mut().skip(1).zip(length).for_each(|(to, from)| *to = from);
                    out(&head);
                    out(text.as_bytes());
                }
            }
        }
    }

    /// Its hash behind that of the entry before it.
    pub fn hash(&self, previous: &Hash) -> Hash {
        let mut hasher = Sha256::new();
        hasher.update(CONTEXT);
        hasher.update(previous.0);
        self.encode(|bytes| hasher.update(bytes));
        Hash(hasher.finalize().into())
    }
}

/// One entry, word for word as it is stored, taken out and hashed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Number, from 1 on without a gap.
    pub seq: u64,
    /// Microseconds since 1970.
    pub at: i64,
    /// The operation; two entries where it began and ended.
    pub operation: String,
    /// begin, end or whole.
    pub half: String,
    /// Name of who asked, as it was then.
    pub actor: String,
    /// Their id, which outlives a change of name; none for the manager itself and the gateway.
    pub actor_id: Option<String>,
    /// How it was known who asked.
    pub via: String,
    /// The client's address, where it came over a network.
    pub address: Option<String>,
    /// The request's id, which an error's answer carries as well.
    pub request_id: Option<String>,
    /// What, such as `vm.create`.
    pub action: String,
    /// To what.
    pub target: String,
    /// The machine, where it is one.
    pub vm_id: Option<String>,
    /// pending, success, denied or failure.
    pub outcome: String,
    /// Reason or detail in plain words.
    pub detail: String,
    /// Its hash, hexadecimal.
    pub hash: String,
}

impl Entry {
    /// What is put down of an event now; its number and hash come with its place in the chain.
    pub fn of(event: &AuditEvent) -> Self {
        let origin = &event.origin;
        Self {
            seq: 0,
            at: event.at.as_microsecond(),
            operation: event.id.to_string(),
            half: Half::first_of(event).as_str().to_owned(),
            actor: event.actor.clone(),
            actor_id: event.actor_id.map(|id| id.to_string()),
            via: origin.via.to_string(),
            address: origin.address.map(|address| address.to_string()),
            request_id: origin.request.map(|id| id.to_string()),
            action: event.action.clone(),
            target: event.target.clone(),
            vm_id: event.vm.map(|id| id.to_string()),
            outcome: event.outcome.as_str().to_owned(),
            detail: event.detail.clone(),
            hash: String::new(),
        }
    }

    /// The entry that ends what this one began.
    #[must_use]
    pub fn ended(self, at: jiff::Timestamp, outcome: Outcome, detail: &str) -> Self {
        Self {
            at: at.as_microsecond(),
            half: Half::End.as_str().to_owned(),
            outcome: outcome.as_str().to_owned(),
            detail: detail.to_owned(),
            ..self
        }
    }

    /// The same at its place in the chain: behind the entry of that number and hash.
    #[must_use]
    pub fn behind(mut self, seq: u64, hash: &Hash) -> (Self, Hash) {
        self.seq = seq.saturating_add(1);
        let own = self.fields().hash(hash);
        self.hash = own.to_string();
        (self, own)
    }

    /// What is hashed of it.
    pub fn fields(&self) -> Fields<'_> {
        Fields {
            seq: self.seq,
            at: self.at,
            texts: [
                Some(&self.operation),
                Some(&self.half),
                Some(&self.actor),
                self.actor_id.as_deref(),
                Some(&self.via),
                self.address.as_deref(),
                self.request_id.as_deref(),
                Some(&self.action),
                Some(&self.target),
                self.vm_id.as_deref(),
                Some(&self.outcome),
                Some(&self.detail),
            ],
        }
    }

    /// The operation that it tells of, where that can be read.
    pub fn operation_id(&self) -> Option<OpId> {
        self.operation.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An entry with these in place of the usual texts.
    pub fn entry(seq: u64, action: &str) -> Entry {
        Entry {
            seq,
            at: 1_800_000_000_000_000,
            operation: "01890000-0000-7000-8000-000000000001".to_owned(),
            half: "whole".to_owned(),
            actor: "eve".to_owned(),
            actor_id: Some("01890000-0000-7000-8000-000000000002".to_owned()),
            via: "socket".to_owned(),
            address: None,
            request_id: None,
            action: action.to_owned(),
            target: "dev.eve".to_owned(),
            vm_id: None,
            outcome: "success".to_owned(),
            detail: String::new(),
            hash: String::new(),
        }
    }

    /// A chain of so many entries, from its start.
    pub fn chain(count: u64) -> Vec<Entry> {
        let mut last = (0, Hash::START);
        let mut all = Vec::new();
        for number in 0..count {
            let (entry, hash) = entry(0, &format!("vm.{number}")).behind(last.0, &last.1);
            last = (entry.seq, hash);
            all.push(entry);
        }
        all
    }

    /// Made by another program (Python's hashlib) from the description above.
    #[test]
    fn hashes_are_those_that_were_agreed() {
        let first = entry(1, "vm.create").fields().hash(&Hash::START);
        assert_eq!(first.to_string(), "59e0cf03fd33a3fd4b60c2d025a6a8f8f94dc863141a6d5d81b92eef0fc5eff5");
        let mut second = entry(2, "key.add");
        second.address = Some("192.0.2.7".to_owned());
        second.detail = "ümläut".to_owned();
        assert_eq!(
            second.fields().hash(&first).to_string(),
            "9b0afbaa112ab4aac959ec719a175bf14da1f492b17e6f2d84bbfbe16f0ea18b"
        );
    }

    #[test]
    fn hashes_are_read_as_they_are_written_and_in_no_other_way() {
        let hash = entry(1, "x").fields().hash(&Hash::START);
        let text = hash.to_string();
        assert_eq!(text.parse::<Hash>(), Ok(hash));
        assert!(hash.is(&text));
        assert_eq!(text.to_uppercase().parse::<Hash>(), Err(NoHash));
        assert_eq!(text[1..].parse::<Hash>(), Err(NoHash));
    }

    fn bytes(fields: &Fields<'_>) -> Vec<u8> {
        let mut all = Vec::new();
        fields.encode(|part| all.extend_from_slice(part));
        all
    }

    type Parts = (u64, i64, Vec<Option<String>>);

    /// Few letters, so that texts that only differ in where they are cut come up often.
    fn parts() -> impl Strategy<Value = Parts> {
        let text = proptest::option::of("[ab\u{0}\u{1}]{0,3}");
        (0..4_u64, -2..2_i64, proptest::collection::vec(text, TEXTS.len()))
    }

    fn fields((seq, at, texts): &Parts) -> Fields<'_> {
        let mut all = [None; TEXTS.len()];
        for (to, from) in all.iter_mut().zip(texts) {
            *to = from.as_deref();
        }
        Fields { seq: *seq, at: *at, texts: all }
    }

    /// Reads the bytes back: what can be read back cannot stand for two entries.
    fn decode(mut rest: &[u8]) -> Parts {
        let mut take = |count: usize| {
            let (taken, left) = rest.split_at(count);
            rest = left;
            taken.to_vec()
        };
        let seq = u64::from_be_bytes(take(8).try_into().unwrap());
        let at = i64::from_be_bytes(take(8).try_into().unwrap());
        let texts = (0..TEXTS.len())
            .map(|_| match take(1).as_slice() {
                [0] => None,
                _ => {
                    let length = u64::from_be_bytes(take(8).try_into().unwrap());
                    Some(String::from_utf8(take(usize::try_from(length).unwrap())).unwrap())
                }
            })
            .collect();
        assert!(rest.is_empty());
        (seq, at, texts)
    }

    proptest! {
        #[test]
        fn no_two_entries_give_the_same_bytes(one in parts(), other in parts()) {
            let (a, b) = (fields(&one), fields(&other));
            prop_assert_eq!(a == b, bytes(&a) == bytes(&b));
            prop_assert_eq!(decode(&bytes(&a)), one.clone());
        }

        #[test]
        fn a_text_that_moves_to_its_neighbour_is_another_entry(one in parts(), at in 0..TEXTS.len() - 1) {
            let mut other = one.clone();
            other.2.swap(at, at + 1);
            prop_assert_eq!(one == other, bytes(&fields(&one)) == bytes(&fields(&other)));
        }
    }
}
