//! The language in which GPUs are asked for.
//!
//! ```text
//! request = [COUNT "x"] WHAT {":" CONDITION}  |  COUNT {":" CONDITION}  |  "mig:" PROFILE  |  "vgpu:" TYPE
//! WHAT      = a model word (a100, a100-80g, rtx-4090), or a size (48GiB): a card with at least that much memory
//! CONDITION = a size, "same-node" (one NUMA node) or "same-switch" (one PCI Express switch)
//! ```
//! `2`, `a100`, `2xa100`, `48GiB`, `2x48GiB`, `a100:80GiB`, `4xa100:same-switch`. Sizes are binary whatever the unit is
//! called. A model that is named by a number alone is written with its family, since a number is a count. Close cards
//! are preferred always; the conditions refuse others.
//!
//! Several requests stand for as many cards together, not for alternatives.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::name::ModelWord;
use crate::model::pci::PciAddress;
use crate::model::units::Mib;

/// Most GPUs of one machine. The largest servers that are sold hold as many; more is a slip of the finger.
pub const MAX_GPUS: u32 = 16;
/// Most different requests of one machine; the planner's search grows with them.
pub const MAX_KINDS: usize = 4;

/// How near to each other the cards of one request must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Closeness {
    /// On one NUMA node, which must be known.
    SameNode,
    /// Below one root port, that is below one PCI Express switch.
    SameSwitch,
}

impl Closeness {
    /// As typed.
    pub const fn word(self) -> &'static str {
        match self {
            Self::SameNode => "same-node",
            Self::SameSwitch => "same-switch",
        }
    }
}

/// So many whole cards that meet all conditions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WholeCards {
    /// How many; 1 to [`MAX_GPUS`].
    pub count: u32,
    /// By name; any where not said.
    pub model: Option<ModelWord>,
    /// At least this much memory each.
    pub memory: Option<Mib>,
    /// How near to each other; as near as can be where not said.
    pub closeness: Option<Closeness>,
}

/// What a member asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum GpuRequest {
    /// Whole cards.
    Whole(WholeCards),
    /// One MIG slice by profile name, such as `3g.40gb`.
    Mig(String),
    /// One vGPU by type name, such as `L40S-12Q`.
    Vgpu(String),
}

/// Why a text is not a GPU request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuRequestError {
    /// Not of the language.
    #[error(
        "{0:?} is not a GPU request; write a count (2), a model (a100), a size (20GiB), so many of one (2xa100), \
         with a condition (a100:80GiB, 2xa100:same-node), mig:PROFILE (mig:3g.40gb) or vgpu:TYPE (vgpu:L40S-12Q)"
    )]
    Syntax(String),
    /// A card of its own.
    #[error(
        "{0:?} is the name of one card, and cards are asked for by kind: a model (a100), a size (20GiB), a count (2); \
         `gvm gpu offers` says what there is"
    )]
    Address(String),
    /// No GPU.
    #[error("{0:?} asks for no GPU; for a machine without one write none, or leave it out")]
    Zero(String),
    /// Too many.
    #[error(
        "{0} GPUs are more than one machine may have ({MAX_GPUS}); a model named by a number is written with its family (rtx-4090)"
    )]
    TooMany(String),
    /// Too many different ones.
    #[error("{0} different GPU requests are more than one machine may have ({MAX_KINDS})")]
    TooManyKinds(usize),
    /// `none` with others.
    #[error("none cannot stand beside another GPU request")]
    NoneBeside,
    /// Terms that do not go together.
    #[error("{text:?} contradicts itself: {why}")]
    Contradiction {
        /// As typed.
        text: String,
        /// What does not go together.
        why: &'static str,
    },
}

impl GpuRequest {
    /// Reads all requests of one machine; `none` alone stands for no GPU.
    ///
    /// # Errors
    /// Where one is not understood, or they cannot stand together.
    pub fn parse_list<S: AsRef<str>>(texts: &[S]) -> Result<Vec<Self>, GpuRequestError> {
        match texts {
            [one] if one.as_ref() == "none" => return Ok(Vec::new()),
            some if some.iter().any(|text| text.as_ref() == "none") => return Err(GpuRequestError::NoneBeside),
            _ => {}
        }
        let requests = texts.iter().map(|text| text.as_ref().parse()).collect::<Result<Vec<Self>, _>>()?;
        Self::check_list(&requests)?;
        Ok(requests)
    }

    /// Whether these can be the requests of one machine.
    ///
    /// # Errors
    /// Where they are too many, or too many different ones.
    pub fn check_list(requests: &[Self]) -> Result<(), GpuRequestError> {
        let total: u64 = requests.iter().map(|request| u64::from(request.count())).sum();
        if total > u64::from(MAX_GPUS) {
            return Err(GpuRequestError::TooMany(total.to_string()));
        }
        let is_first = |(at, request): &(usize, &Self)| requests.iter().take(*at).all(|other| !other.is_alike(request));
        let kinds = requests.iter().enumerate().filter(is_first).count();
        if kinds > MAX_KINDS {
            return Err(GpuRequestError::TooManyKinds(kinds));
        }
        Ok(())
    }

    /// How many devices it asks for.
    pub const fn count(&self) -> u32 {
        match self {
            Self::Whole(cards) => cards.count,
            Self::Mig(_) | Self::Vgpu(_) => 1,
        }
    }

    fn is_alike(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Whole(one), Self::Whole(other)) => one.is_alike(other),
            (one, other) => one == other,
        }
    }
}

impl WholeCards {
    /// So many of any kind.
    pub const fn any(count: u32) -> Self {
        Self { count, model: None, memory: None, closeness: None }
    }

    /// True where both ask for the same cards, so that their counts may be added. Not where they must be close: each
    /// would be met on its own.
    pub fn is_alike(&self, other: &Self) -> bool {
        let is_open = self.closeness.is_none() && other.closeness.is_none();
        is_open && self.model == other.model && self.memory == other.memory
    }

    fn parse(text: &str) -> Result<Self, GpuRequestError> {
        let wrong = || GpuRequestError::Syntax(text.to_owned());
        let contradiction = |why| GpuRequestError::Contradiction { text: text.to_owned(), why };
        let lower = text.to_ascii_lowercase();
        let mut words = lower.split(':');
        let first = words.next().unwrap_or_default();
        let is_number = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
        let (count, what) = match first.split_once('x') {
            Some((count, "")) if is_number(count) => return Err(wrong()),
            Some((count, what)) if is_number(count) => (count, Some(what)),
            _ if is_number(first) => (first, None),
            _ => ("1", Some(first)),
        };
        let mut cards = Self::any(parse_count(count, text)?);
        match what {
            Some(word) if is_number(word) => return Err(wrong()),
            Some(word) => match parse_size(word) {
                Some(size) => cards.memory = Some(size.ok_or_else(wrong)?),
                None => cards.model = Some(ModelWord::parse(word).ok_or_else(wrong)?),
            },
            None => {}
        }
        for word in words {
            let closeness = match word {
                "same-node" => Closeness::SameNode,
                "same-switch" => Closeness::SameSwitch,
                _ => {
                    let size = parse_size(word).flatten().ok_or_else(wrong)?;
                    match cards.memory.replace(size) {
                        None => continue,
                        Some(_) => return Err(contradiction("one card has one memory; say the larger size alone")),
                    }
                }
            };
            if cards.closeness.replace(closeness).is_some() {
                return Err(contradiction("say one closeness; same-switch is on the same node by itself"));
            }
            if cards.count < 2 {
                return Err(contradiction("closeness needs two cards or more, in one request (2xa100:same-node)"));
            }
        }
        Ok(cards)
    }
}

fn parse_count(digits: &str, text: &str) -> Result<u32, GpuRequestError> {
    match digits.parse::<u32>() {
        Ok(0) => Err(GpuRequestError::Zero(text.to_owned())),
        Ok(count) if count <= MAX_GPUS => Ok(count),
        _ => Err(GpuRequestError::TooMany(digits.to_owned())),
    }
}

/// A size with its unit; `None` where it is none, `Some(None)` where it is zero. A bare number is a count, no size.
fn parse_size(word: &str) -> Option<Option<Mib>> {
    let is_size = word.starts_with(|c: char| c.is_ascii_digit()) && word.ends_with(|c: char| c.is_ascii_alphabetic());
    let size = is_size.then(|| word.parse::<Mib>().ok()).flatten()?;
    Some((size.0 > 0).then_some(size))
}

impl FromStr for GpuRequest {
    type Err = GpuRequestError;

    fn from_str(text: &str) -> Result<Self, GpuRequestError> {
        let is_name = |w: &str| {
            !w.is_empty() && w.len() <= 40 && w.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.+_".contains(&b))
        };
        let name = |w: &str| is_name(w).then(|| w.to_owned()).ok_or_else(|| GpuRequestError::Syntax(text.to_owned()));
        if text.parse::<PciAddress>().is_ok() || text.starts_with("GPU-") || text.starts_with("pci-") {
            return Err(GpuRequestError::Address(text.to_owned()));
        }
        if let Some(profile) = text.strip_prefix("mig:") {
            return name(profile).map(Self::Mig);
        }
        if let Some(kind) = text.strip_prefix("vgpu:") {
            return name(kind).map(Self::Vgpu);
        }
        WholeCards::parse(text).map(Self::Whole)
    }
}

impl TryFrom<String> for GpuRequest {
    type Error = GpuRequestError;

    fn try_from(text: String) -> Result<Self, GpuRequestError> {
        text.parse()
    }
}

impl fmt::Display for WholeCards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |size: Mib| match size.0.is_multiple_of(1 << 10) {
            true => format!("{}GiB", size.0 >> 10),
            false => format!("{}MiB", size.0),
        };
        let mut conditions: Vec<String> = self.memory.map(size).into_iter().collect();
        match (&self.model, self.count) {
            (Some(model), 1) => write!(f, "{model}")?,
            (Some(model), count) => write!(f, "{count}x{model}")?,
            (None, 1) if !conditions.is_empty() => write!(f, "{}", conditions.remove(0))?,
            (None, count) if !conditions.is_empty() => write!(f, "{count}x{}", conditions.remove(0))?,
            (None, count) => write!(f, "{count}")?,
        }
        conditions.extend(self.closeness.map(|closeness| closeness.word().to_owned()));
        conditions.iter().try_for_each(|condition| write!(f, ":{condition}"))
    }
}

impl fmt::Display for GpuRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(cards) => cards.fmt(f),
            Self::Mig(profile) => write!(f, "mig:{profile}"),
            Self::Vgpu(kind) => write!(f, "vgpu:{kind}"),
        }
    }
}

impl From<GpuRequest> for String {
    fn from(request: GpuRequest) -> Self {
        request.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_and_written_back() {
        for text in [
            "1",
            "2",
            "16",
            "a100",
            "2xa100",
            "a100-80g",
            "48GiB",
            "2x48GiB",
            "a100:80GiB",
            "2xa100:80GiB:same-node",
            "4:same-switch",
            "20000MiB",
            "6000-ada",
            "mig:3g.40gb",
            "vgpu:L40S-12Q",
        ] {
            assert_eq!(text.parse::<GpuRequest>().unwrap().to_string(), text);
        }
        for (text, same) in [("A100", "a100"), ("1xA100", "a100"), ("20480MiB", "20GiB"), ("48g", "48GiB"), ("02", "2")]
        {
            assert_eq!(text.parse::<GpuRequest>().unwrap().to_string(), same, "{text}");
        }
    }

    fn fault(text: &str) -> String {
        text.parse::<GpuRequest>().unwrap_err().to_string()
    }

    #[test]
    fn what_is_not_of_the_language_is_told_what_is() {
        for bad in
            ["", "mig:", "a b", "x'><y", "2x", "2x2", "-1", "a100:", "a100:2", "a100:near", "0GiB", "none", "1.5"]
        {
            assert!(fault(bad).contains("is not a GPU request; write a count"), "{bad}: {}", fault(bad));
        }
        insta::assert_snapshot!(fault("0"), @r#""0" asks for no GPU; for a machine without one write none, or leave it out"#);
        for one in ["0000:41:00.0", "GPU-5a9e", "pci-0000:41:00.0"] {
            assert!(fault(one).contains("is the name of one card"), "{one}: {}", fault(one));
        }
        insta::assert_snapshot!(fault("0xa100"), @r#""0xa100" asks for no GPU; for a machine without one write none, or leave it out"#);
        insta::assert_snapshot!(fault("65"), @"65 GPUs are more than one machine may have (16); a model named by a number is written with its family (rtx-4090)");
        insta::assert_snapshot!(fault("99999999999"), @"99999999999 GPUs are more than one machine may have (16); a model named by a number is written with its family (rtx-4090)");
        insta::assert_snapshot!(fault("a100:40GiB:80GiB"), @r#""a100:40GiB:80GiB" contradicts itself: one card has one memory; say the larger size alone"#);
        insta::assert_snapshot!(fault("a100:same-node"), @r#""a100:same-node" contradicts itself: closeness needs two cards or more, in one request (2xa100:same-node)"#);
        insta::assert_snapshot!(fault("2:same-node:same-switch"), @r#""2:same-node:same-switch" contradicts itself: say one closeness; same-switch is on the same node by itself"#);
    }

    #[test]
    fn requests_of_one_machine_are_judged_together() {
        let check = |texts: &[&str]| GpuRequest::parse_list(texts).map(|list| list.len()).map_err(|e| e.to_string());
        assert_eq!(check(&["none"]), Ok(0));
        assert_eq!(check(&[]), Ok(0));
        assert_eq!(check(&["a100", "a100", "l40s"]), Ok(3));
        assert_eq!(check(&["1"; 16]), Ok(16));
        insta::assert_snapshot!(check(&["none", "a100"]).unwrap_err(), @"none cannot stand beside another GPU request");
        insta::assert_snapshot!(check(&["9", "8"]).unwrap_err(), @"17 GPUs are more than one machine may have (16); a model named by a number is written with its family (rtx-4090)");
        insta::assert_snapshot!(check(&["a100", "l40s", "t4", "a10", "1"]).unwrap_err(), @"5 different GPU requests are more than one machine may have (4)");
    }
}
