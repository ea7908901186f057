//! Whether a record is what was written: entry by entry, then against signed heads.

use std::fmt;

use super::head::{Key, SignedHead};
use super::{Entry, Fields, Hash};

/// What is wrong with the first bad entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// It is not what was written.
    Edited,
    /// It cannot even be read.
    Unreadable,
    /// It is not there. The number of the next one that is.
    Deleted {
        /// None where nothing comes after it.
        next: Option<u64>,
    },
    /// What was written here stands at another place.
    Moved {
        /// Where.
        to: u64,
    },
    /// It was put in: what was written here comes behind it, or nothing was.
    Inserted,
    /// It is not there, and a signed head says that it was.
    CutOff {
        /// The head's entry.
        head: u64,
    },
    /// It, or one behind it up to the head, was written anew with everything that follows.
    Rewritten {
        /// The head that does not fit.
        head: u64,
    },
    /// The head at this entry is not signed by the key that was expected.
    OtherKey {
        /// The key that it is signed by.
        key: Key,
    },
    /// The head at this entry is not what was signed.
    BadSignature,
}

/// The first entry that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its number.
    pub seq: u64,
    /// What is wrong.
    pub wrong: Wrong,
}

impl std::error::Error for Fault {}

impl Wrong {
    /// A stable word for programs.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Edited => "edited",
            Self::Unreadable => "unreadable",
            Self::Deleted { .. } => "deleted",
            Self::Moved { .. } => "moved",
            Self::Inserted => "inserted",
            Self::CutOff { .. } => "cut_off",
            Self::Rewritten { .. } => "rewritten",
            Self::OtherKey { .. } => "other_key",
            Self::BadSignature => "bad_signature",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seq = self.seq;
        match &self.wrong {
            Wrong::Edited => write!(f, "entry {seq} is not what was written: it was edited"),
            Wrong::Unreadable => write!(f, "entry {seq} cannot be read: it was edited"),
            Wrong::Deleted { next: Some(next) } => {
                write!(f, "entry {seq} is missing: it was deleted; the next is {next}")
            }
            Wrong::Deleted { next: None } => write!(f, "entry {seq} is missing: the end was cut off"),
            Wrong::Moved { to } => write!(f, "entry {seq} is not in its place: what was written here stands at {to}"),
            Wrong::Inserted => write!(f, "entry {seq} was put in: it is not what was written here"),
            Wrong::CutOff { head } => {
                write!(f, "entry {seq} is missing: the end was cut off, as a head signed at entry {head} says")
            }
            Wrong::Rewritten { head } => write!(
                f,
                "entry {seq} or one behind it, up to {head}, was written anew: a head signed at entry {head} says another hash"
            ),
            Wrong::OtherKey { key } => write!(f, "the head at entry {seq} is signed by another key: {key}"),
            Wrong::BadSignature => write!(f, "the head at entry {seq} is not what was signed"),
        }
    }
}

/// Goes along a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The last entry that is right.
    pub seq: u64,
    /// Its hash.
    pub hash: Hash,
}

impl Chain {
    /// Before the first entry.
    pub const START: Self = Self { seq: 0, hash: Hash::START };

    /// Takes the next entry, which is stored with this hash.
    ///
    /// # Errors
    /// What is wrong with it; then this stays where it was.
    pub fn take(&mut self, fields: &Fields<'_>, stored: &str) -> Result<(), Fault> {
        let seq = self.seq.saturating_add(1);
        if fields.seq > seq {
            return Err(Fault { seq, wrong: Wrong::Deleted { next: Some(fields.seq) } });
        }
        if fields.seq < seq {
            return Err(Fault { seq: fields.seq, wrong: Wrong::Inserted });
        }
        let hash = fields.hash(&self.hash);
        if !hash.is(stored) {
            return Err(Fault { seq, wrong: Wrong::Edited });
        }
        *self = Self { seq, hash };
        Ok(())
    }

    /// Whether an entry of another place was written for this one.
    fn fits(&self, entry: &Entry) -> Option<Self> {
        let seq = self.seq.saturating_add(1);
        let hash = Fields { seq, ..entry.fields() }.hash(&self.hash);
        hash.is(&entry.hash).then_some(Self { seq, hash })
    }

    /// Tells more of an entry that does not fit here: `from` are the entries from it on, as many as one likes to search.
    pub fn diagnose(&self, from: &[Entry]) -> Wrong {
        let seq = self.seq.saturating_add(1);
        let found = from.iter().skip(1).find_map(|entry| Some((entry.seq, self.fits(entry)?)));
        match found {
            None => Wrong::Edited,
            // One more was put in: everything behind it is one place further.
            Some((to, after)) if to == seq.saturating_add(1) => match from.get(2) {
                Some(next) if after.fits(next).is_none() => Wrong::Moved { to },
                _ => Wrong::Inserted,
            },
            Some((to, _)) => Wrong::Moved { to },
        }
    }
}

/// What a record must agree with beside itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heads {
    heads: Vec<SignedHead>,
}

impl Heads {
    /// These heads; all must be signed, and by this key where one is given.
    ///
    /// # Errors
    /// Names the first head that is not.
    pub fn trusted(mut heads: Vec<SignedHead>, key: Option<&Key>) -> Result<Self, Fault> {
        heads.sort_by_key(|signed| signed.head.seq);
        for signed in &heads {
            let fault = |wrong| Err(Fault { seq: signed.head.seq, wrong });
            if key.is_some_and(|key| *key != signed.key) {
                return fault(Wrong::OtherKey { key: signed.key });
            }
            if !signed.is_genuine() {
                return fault(Wrong::BadSignature);
            }
        }
        Ok(Self { heads })
    }

    /// Numbers of the entries that they speak of, in order.
    pub fn entries(&self) -> impl Iterator<Item = u64> + '_ {
        self.heads.iter().map(|signed| signed.head.seq)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// True for none.
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Holds a chain that is right in itself, from behind `first` to `last`, against them. `hash_of` gives the hash of
    /// an entry. Heads of entries before the chain's first are not asked.
    ///
    /// # Errors
    /// The first entry that they contradict.
    pub fn agree(&self, first: Chain, last: Chain, hash_of: impl Fn(u64) -> Option<Hash>) -> Result<(), Fault> {
        let mut agreed = first.seq;
        for signed in self.heads.iter().filter(|signed| signed.head.seq >= first.seq) {
            let head = signed.head.seq;
            if head > last.seq {
                return Err(Fault { seq: last.seq.saturating_add(1), wrong: Wrong::CutOff { head } });
            }
            let hash = if head == first.seq { Some(first.hash) } else { hash_of(head) };
            if hash != Some(signed.head.hash) {
                let seq = agreed.saturating_add(1).min(head);
                return Err(Fault { seq, wrong: Wrong::Rewritten { head } });
            }
            agreed = head;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::chain;
    use super::*;

    fn first_fault(entries: &[Entry]) -> Option<Fault> {
        let mut checked = Chain::START;
        for (at, entry) in entries.iter().enumerate() {
            match checked.take(&entry.fields(), &entry.hash) {
                Ok(()) => {}
                Err(Fault { wrong: Wrong::Edited, seq }) => {
                    return Some(Fault { seq, wrong: checked.diagnose(&entries[at..]) });
                }
                Err(fault) => return Some(fault),
            }
        }
        None
    }

    fn said(entries: &[Entry]) -> String {
        first_fault(entries).map(|fault| fault.to_string()).unwrap_or_default()
    }

    #[test]
    fn the_first_bad_entry_is_named_with_what_was_done_to_it() {
        let right = chain(20);
        assert_eq!(first_fault(&right), None);

        let mut edited = right.clone();
        edited[6].target = "other".to_owned();
        assert_eq!(said(&edited), "entry 7 is not what was written: it was edited");

        let mut with_new_hash = edited.clone();
        let before: Hash = right[5].hash.parse().unwrap();
        with_new_hash[6] = with_new_hash[6].clone().behind(6, &before).0;
        assert_eq!(
            said(&with_new_hash),
            "entry 8 is not what was written: it was edited",
            "the next one does not follow"
        );

        let mut deleted = right.clone();
        deleted.remove(6);
        assert_eq!(said(&deleted), "entry 7 is missing: it was deleted; the next is 8");

        let mut swapped = right.clone();
        swapped.swap(6, 11);
        (swapped[6].seq, swapped[11].seq) = (7, 12);
        assert_eq!(said(&swapped), "entry 7 is not in its place: what was written here stands at 12");
        let mut neighbours = right.clone();
        neighbours.swap(6, 7);
        (neighbours[6].seq, neighbours[7].seq) = (7, 8);
        assert_eq!(said(&neighbours), "entry 7 is not in its place: what was written here stands at 8");

        let mut inserted = right.clone();
        inserted.insert(6, right[2].clone());
        inserted.iter_mut().zip(1..).for_each(|(entry, seq)| entry.seq = seq);
        assert_eq!(said(&inserted), "entry 7 was put in: it is not what was written here");

        let mut twice = right.clone();
        twice.insert(7, right[6].clone());
        assert_eq!(said(&twice), "entry 7 was put in: it is not what was written here");
    }
}
