//! Marketing names of cards, and the words by which people ask for them.
//!
//! A name is taken apart at everything that is no letter or digit: `NVIDIA A100-SXM4-80GB` has the tokens `nvidia`,
//! `a100`, `sxm4`, `80gb`. A word is taken apart in the same way, and each of its parts must be a whole token, or whole
//! neighbouring tokens written together. So `a10` is no `A100`, `a100-80g` is the large one, and `rtx4090` is the
//! `GeForce RTX 4090`. Sizes of one number are one token however they are spelt (`80g`, `80gb`, `80gib`).

use std::fmt;

use super::Vendor;

/// Parts of names that do not tell cards apart: makers, families, words of marketing.
const FILLERS: &[&str] = &[
    "nvidia",
    "amd",
    "ati",
    "intel",
    "corporation",
    "tesla",
    "geforce",
    "quadro",
    "radeon",
    "instinct",
    "generation",
    "graphics",
    "gpu",
    "pcie",
];

/// A word that asks for cards by their name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelWord(String);

impl ModelWord {
    /// Takes letters, digits and `-._`, at most 40 of them and at least one letter; kept in lower case.
    pub fn parse(text: &str) -> Option<Self> {
        let is_plain = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
        let is_word = is_plain && text.len() <= 40 && text.bytes().any(|b| b.is_ascii_alphabetic());
        (is_word && text != "none").then(|| Self(text.to_ascii_lowercase()))
    }

    /// The word as kept.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ModelWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A marketing name, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelName {
    tokens: Vec<String>,
    vendor: Vendor,
}

impl ModelName {
    /// Takes a name apart.
    pub fn new(name: &str, vendor: Vendor) -> Self {
        Self { tokens: tokens(name), vendor }
    }

    /// True where the word asks for this card.
    pub fn is_called(&self, word: &ModelWord) -> bool {
        let parts = tokens(&word.0);
        !parts.is_empty() && parts.iter().all(|part| part == self.vendor.word() || self.has(part))
    }

    fn has(&self, part: &str) -> bool {
        (0..self.tokens.len()).any(|from| {
            let mut rest = part;
            for token in self.tokens.iter().skip(from) {
                match rest.strip_prefix(token.as_str()) {
                    Some("") => return true,
                    Some(more) => rest = more,
                    None => return false,
                }
            }
            false
        })
    }

    /// A short word that asks for this card, to be shown: `a100`, `l40s`, `rtx-6000-ada`.
    pub fn word(&self) -> String {
        let short = self.joined(|token| !FILLERS.contains(&token) && !is_size(token) && !token.starts_with("sxm"));
        // A bare number would be read as a count.
        short.or_else(|| self.joined(|_| true)).unwrap_or_else(|| "gpu".to_owned())
    }

    /// Words that ask for this card, each of them for fewer others than the one before: `a100`, `a100-80g`,
    /// `nvidia-a100-sxm4-80g`.
    pub fn words(&self) -> Vec<ModelWord> {
        let sized = self.joined(|token| !FILLERS.contains(&token) && !token.starts_with("sxm"));
        let all = [Some(self.word()), sized, self.joined(|_| true)].into_iter().flatten();
        all.filter_map(|word| ModelWord::parse(&word)).filter(|word| self.is_called(word)).collect()
    }

    fn joined(&self, is_kept: impl Fn(&str) -> bool) -> Option<String> {
        let kept: Vec<&str> = self.tokens.iter().map(String::as_str).filter(|token| is_kept(token)).collect();
        ModelWord::parse(&kept.join("-")).map(|word| word.0)
    }

    /// How many letters would have to change for the word to be a token of this name: for a hint at a slip.
    pub fn distance(&self, word: &ModelWord) -> usize {
        let short = self.word();
        let candidates =
            self.tokens.iter().map(String::as_str).filter(|t| !FILLERS.contains(t)).chain([short.as_str()]);
        candidates.map(|token| edits(token, &word.0)).min().unwrap_or(usize::MAX)
    }
}

fn is_size(token: &str) -> bool {
    token.strip_suffix('g').is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

/// Lower-case tokens; sizes all end in `g`. Of a name of pci.ids only what stands in brackets, the chip's name left out.
fn tokens(name: &str) -> Vec<String> {
    let name = match name.split_once('[') {
        Some((_, inner)) => inner.split(']').next().unwrap_or(inner),
        None => name,
    };
    let token = |part: &str| {
        let part = part.to_ascii_lowercase();
        let short = part.strip_suffix("ib").or_else(|| part.strip_suffix('b')).filter(|short| is_size(short));
        short.map(str::to_owned).unwrap_or(part)
    };
    name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| !part.is_empty()).map(token).collect()
}

/// Levenshtein's distance.
fn edits(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (number, a) in one.bytes().enumerate() {
        let mut diagonal = number;
        let mut left = number + 1;
        for (cell, b) in row.iter_mut().skip(1).zip(other.bytes()) {
            let best = (diagonal + usize::from(a != b)).min(left + 1).min(*cell + 1);
            diagonal = *cell;
            *cell = best;
            left = best;
        }
        if let Some(first) = row.first_mut() {
            *first = number + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_match_whole_tokens() {
        let check =
            |word: &str, name: &str| ModelName::new(name, Vendor::Nvidia).is_called(&ModelWord::parse(word).unwrap());
        let large = "NVIDIA A100-SXM4-80GB";
        for word in
            ["a100", "A100", "a100-80g", "a100-80GB", "a100_80gib", "sxm4", "nvidia", "nvidia-a100", "a100.sxm4"]
        {
            assert!(check(word, large), "{word}");
        }
        for word in ["a10", "a1000", "100", "a100-40g", "a100-sxm", "amd", "a100-l40s", "g", "80"] {
            assert!(
                ModelWord::parse(word).is_none_or(|w| !ModelName::new(large, Vendor::Nvidia).is_called(&w)),
                "{word}"
            );
        }
        assert!(check("a10", "NVIDIA A10") && !check("a10", "NVIDIA A10G") && !check("l40", "NVIDIA L40S"));
        assert!(check("rtx4090", "NVIDIA GeForce RTX 4090") && check("rtx-4090", "NVIDIA GeForce RTX 4090"));
        assert!(!check("rtx409", "NVIDIA GeForce RTX 4090"));
        assert!(check("a100", "GA100 [A100 PCIe 40GB]") && !check("ga100", "GA100 [A100 PCIe 40GB]"));
    }

    #[test]
    fn every_name_has_a_short_word_that_asks_for_it() {
        for (name, short) in [
            ("NVIDIA A100-SXM4-80GB", "a100"),
            ("NVIDIA H100 PCIe", "h100"),
            ("Tesla T4", "t4"),
            ("NVIDIA L40S", "l40s"),
            ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
            ("NVIDIA GeForce RTX 4090", "rtx-4090"),
            ("AMD Instinct MI210", "mi210"),
            ("GA100 [A100 PCIe 40GB]", "a100"),
            ("Radeon 7900", "radeon-7900"),
            ("", "gpu"),
        ] {
            let model = ModelName::new(name, Vendor::Other);
            assert_eq!(model.word(), short, "{name}");
            assert!(name.is_empty() || model.is_called(&ModelWord::parse(short).unwrap()), "{name}");
        }
    }

    #[test]
    fn slips_are_near() {
        let check =
            |word: &str, name: &str| ModelName::new(name, Vendor::Other).distance(&ModelWord::parse(word).unwrap());
        assert_eq!(check("a110", "NVIDIA A100"), 1);
        assert_eq!(check("l40", "NVIDIA L40S"), 1);
        assert_eq!(check("kitten", "sitting"), 3);
    }
}
