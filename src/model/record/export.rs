//! The record outside of the database: one JSON object a line. What stands before it, its entries, each head behind its
//! entry, its end.

use serde::{Deserialize, Serialize};

use super::check::{Chain, Fault, Heads, Wrong};
use super::head::{Key, SignedHead};
use super::{Entry, Hash};

/// The form of an export.
const FORM: u32 = 1;
/// Entries that are looked through for the right one where a wrong one stands.
const SEARCHED: usize = 1000;

/// A line that is not an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Line {
    /// The first: what the first entry follows.
    Export {
        /// Number of the form.
        form: u32,
        /// The entry before the first one; 0 for none.
        after: u64,
        /// Its hash.
        hash: String,
    },
    /// A signed head of the entry before this line.
    Head(String),
    /// The last: without it the export was cut off.
    End {
        /// The last entry.
        seq: u64,
    },
}

impl Line {
    /// The first line of an export that begins behind this entry.
    pub fn start(after: Chain) -> Self {
        Self::Export { form: FORM, after: after.seq, hash: after.hash.to_string() }
    }
}

/// Why an export cannot be said to be right.
#[derive(Debug, thiserror::Error)]
pub enum ExportFault {
    /// An entry is not as it was written.
    #[error(transparent)]
    Entry(Fault),
    /// It is not an export, or a line of it was broken.
    #[error("line {line} is not of an export of the record: {problem}")]
    Line {
        /// From 1 on.
        line: u64,
        /// What is wrong.
        problem: String,
    },
    /// The last line is missing.
    #[error("the export was cut off behind entry {after}")]
    CutOff {
        /// The last entry that is there.
        after: u64,
    },
}

impl From<Fault> for ExportFault {
    fn from(fault: Fault) -> Self {
        Self::Entry(fault)
    }
}

/// What an export was found to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Before the first entry.
    pub first: Chain,
    /// The last entry.
    pub last: Chain,
    /// Heads that it was held against.
    pub heads: usize,
}

/// Takes an export line by line, with what is known of it from elsewhere.
#[derive(Debug)]
pub struct ExportCheck {
    /// Entries that heads speak of, in order, with the hash that was met there.
    met: Vec<(u64, Hash)>,
    first: Option<Chain>,
    chain: Chain,
    heads: Vec<SignedHead>,
    outside: Vec<SignedHead>,
    key: Option<Key>,
    /// The first bad entry and those behind it, until there are enough to tell what happened.
    bad: Option<Vec<Entry>>,
    end: Option<u64>,
    line: u64,
}

impl ExportCheck {
    /// Against heads that were kept elsewhere, and the key that must have signed all.
    pub fn new(outside: Vec<SignedHead>, key: Option<Key>) -> Self {
        Self {
            met: Vec::new(),
            first: None,
            chain: Chain::START,
            heads: Vec::new(),
            outside,
            key,
            bad: None,
            end: None,
            line: 0,
        }
    }

    /// Takes a line.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn take(&mut self, text: &str) -> Result<(), ExportFault> {
        self.line = self.line.saturating_add(1);
        if self.first.is_some()
            && self.end.is_none()
            && let Ok(entry) = serde_json::from_str::<Entry>(text)
        {
            return self.entry(entry);
        }
        let wrong = |problem: String| ExportFault::Line { line: self.line, problem };
        let line: Line = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
        match line {
            Line::Export { form: FORM, after, hash } if self.first.is_none() => {
                let hash = hash.parse().map_err(|e: super::NoHash| wrong(e.to_string()))?;
                self.chain = Chain { seq: after, hash };
                self.first = Some(self.chain);
            }
            Line::Export { form, .. } if form != FORM => {
                return Err(wrong(format!("it has form {form}, and this gvm knows {FORM}")));
            }
            Line::Head(text) if self.first.is_some() && self.end.is_none() => {
                let signed: SignedHead = text.parse().map_err(|e: super::head::NoHead| wrong(e.to_string()))?;
                if signed.head.seq != self.chain.seq && self.bad.is_none() {
                    return Err(wrong("the head is not behind its entry".to_owned()));
                }
                self.met.push((self.chain.seq, self.chain.hash));
                self.heads.push(signed);
            }
            Line::End { seq } if self.first.is_some() && self.end.is_none() => self.end = Some(seq),
            _ => return Err(wrong("it is not in its place".to_owned())),
        }
        Ok(())
    }

    fn entry(&mut self, entry: Entry) -> Result<(), ExportFault> {
        if let Some(bad) = &mut self.bad {
            bad.push(entry);
            return if bad.len() < SEARCHED { Ok(()) } else { Err(self.bad_entry()) };
        }
        match self.chain.take(&entry.fields(), &entry.hash) {
            Ok(()) => {
                if self.outside.iter().any(|signed| signed.head.seq == self.chain.seq) {
                    self.met.push((self.chain.seq, self.chain.hash));
                }
                Ok(())
            }
            Err(Fault { wrong: Wrong::Edited, .. }) => {
                self.bad = Some(vec![entry]);
                Ok(())
            }
            Err(fault) => Err(fault.into()),
        }
    }

    fn bad_entry(&self) -> ExportFault {
        let wrong = self.chain.diagnose(self.bad.as_deref().unwrap_or_default());
        Fault { seq: self.chain.seq.saturating_add(1), wrong }.into()
    }

    /// After the last line.
    ///
    /// # Errors
    /// What is wrong.
    pub fn finish(self) -> Result<Verdict, ExportFault> {
        let Some(first) = self.first else {
            return Err(ExportFault::Line { line: 1, problem: "it is empty".to_owned() });
        };
        if self.bad.is_some() {
            return Err(self.bad_entry());
        }
        match self.end {
            None => return Err(ExportFault::CutOff { after: self.chain.seq }),
            Some(end) if end > self.chain.seq => {
                let seq = self.chain.seq.saturating_add(1);
                return Err(Fault { seq, wrong: Wrong::Deleted { next: None } }.into());
            }
            Some(end) if end < self.chain.seq => {
                return Err(Fault { seq: end.saturating_add(1), wrong: Wrong::Inserted }.into());
            }
            Some(_) => {}
        }
        let heads = Heads::trusted([self.heads, self.outside].concat(), self.key.as_ref())?;
        let hash_of = |seq: u64| {
            let at = self.met.binary_search_by_key(&seq, |(seq, _)| *seq).ok()?;
            self.met.get(at).map(|(_, hash)| *hash)
        };
        heads.agree(first, self.chain, hash_of)?;
        Ok(Verdict { first, last: self.chain, heads: heads.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::chain;
    use super::*;

    fn lines(entries: &[Entry]) -> Vec<String> {
        let mut all = vec![serde_json::to_string(&Line::start(Chain::START)).unwrap()];
        all.extend(entries.iter().map(|entry| serde_json::to_string(entry).unwrap()));
        all.push(serde_json::to_string(&Line::End { seq: u64::try_from(entries.len()).unwrap() }).unwrap());
        all
    }

    fn verdict(lines: &[String]) -> Result<Verdict, String> {
        let mut check = ExportCheck::new(Vec::new(), None);
        for line in lines {
            check.take(line).map_err(|e| e.to_string())?;
        }
        check.finish().map_err(|e| e.to_string())
    }

    #[test]
    fn an_export_is_held_against_itself() {
        let right = lines(&chain(20));
        assert_eq!(verdict(&right).unwrap().last.seq, 20);
        assert_eq!(verdict(&right[..15]).unwrap_err(), "the export was cut off behind entry 14");
        assert!(verdict(&[]).unwrap_err().contains("it is empty"));
        assert!(verdict(&right[1..]).unwrap_err().contains("line 1 is not of an export"));

        let mut edited = right.clone();
        edited[7] = edited[7].replace("\"eve\"", "\"bob\"");
        assert_eq!(verdict(&edited).unwrap_err(), "entry 7 is not what was written: it was edited");
        let mut swapped = right.clone();
        swapped.swap(7, 9);
        assert_eq!(verdict(&swapped).unwrap_err(), "entry 7 is missing: it was deleted; the next is 9");
        let mut shorter = right.clone();
        shorter.remove(20);
        assert_eq!(verdict(&shorter).unwrap_err(), "entry 20 is missing: the end was cut off");
        let mut more = right.clone();
        more[5] = more[5].replace("{", "{\"note\":1,");
        assert!(verdict(&more).unwrap_err().contains("line 6 is not of an export"));
    }
}
