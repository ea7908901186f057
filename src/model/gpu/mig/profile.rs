//! Names of MIG profiles.
//!
//! ```text
//! profile = [COMPUTE "c."] GPU "g." MEMORY "gb" ["+me" | "+me.all" | "+gfx" | "-me"]
//! ```
//! `3g.40gb`, `1g.10gb+me`, `1c.3g.40gb`. The first part is left out where it says what the second says, so that
//! `3c.3g.40gb` is written `3g.40gb`. The memory is the vendor's rounding and no quantity: what an instance has is what
//! the card says of the profile.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What a profile has beside compute and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MigVariant {
    /// What comes with its size.
    #[default]
    Plain,
    /// `+me`: the media extensions.
    Media,
    /// `+me.all`: all media engines of the card.
    AllMedia,
    /// `+gfx`: graphics.
    Graphics,
    /// `-me`: no media engine at all.
    NoMedia,
}

impl MigVariant {
    const ALL: [Self; 5] = [Self::Plain, Self::Media, Self::AllMedia, Self::Graphics, Self::NoMedia];

    /// As it stands at the end of a name.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Media => "+me",
            Self::AllMedia => "+me.all",
            Self::Graphics => "+gfx",
            Self::NoMedia => "-me",
        }
    }
}

/// The name of a profile, parsed. Equal exactly where the written names are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MigProfile {
    gpu: u8,
    compute: u8,
    memory: u16,
    variant: MigVariant,
}

/// Why a text is not the name of a profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MigProfileError {
    /// Not of the grammar.
    #[error("{0:?} is not a MIG profile; write it as the card does: 3g.40gb, 1g.10gb+me, 1c.3g.40gb")]
    Syntax(String),
    /// What stands behind the memory.
    #[error("{text:?} ends in {end:?}, which no MIG profile does; there are +me, +me.all, +gfx and -me, one at a time")]
    Suffix {
        /// As typed.
        text: String,
        /// Its end.
        end: String,
    },
    /// A part of an instance that is larger than the instance.
    #[error("{text:?} has {compute} compute slices of an instance of {gpu}; there can be no more than {gpu}")]
    Compute {
        /// As typed.
        text: String,
        /// Compute slices.
        compute: u8,
        /// Slices of the instance.
        gpu: u8,
    },
}

impl MigProfile {
    /// Slices of the instance (`3` of `3g.40gb`).
    pub const fn slices(self) -> u8 {
        self.gpu
    }

    /// Compute slices of it that are used (`1` of `1c.3g.40gb`); mostly all.
    pub const fn compute(self) -> u8 {
        self.compute
    }

    /// The vendor's rounding of its memory (`40` of `3g.40gb`).
    pub const fn memory_gb(self) -> u16 {
        self.memory
    }

    /// What it has beside.
    pub const fn variant(self) -> MigVariant {
        self.variant
    }

    /// True where it has all of its instance's compute: the name of a GPU instance, no part of one.
    pub const fn is_whole(self) -> bool {
        self.compute == self.gpu
    }
}

/// A number from 1, as it would be written.
fn number<T: FromStr>(digits: &str) -> Option<T> {
    let is_plain = digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
    is_plain.then(|| digits.parse().ok()).flatten()
}

impl FromStr for MigProfile {
    type Err = MigProfileError;

    fn from_str(text: &str) -> Result<Self, MigProfileError> {
        let wrong = || MigProfileError::Syntax(text.to_owned());
        let (slices, rest) = text.split_once("g.").ok_or_else(wrong)?;
        let (memory, end) = rest.split_once("gb").ok_or_else(wrong)?;
        let (compute, gpu) = match slices.split_once("c.") {
            Some((compute, gpu)) => (Some(compute), gpu),
            None => (None, slices),
        };
        let gpu: u8 = number(gpu).ok_or_else(wrong)?;
        let compute = compute.map_or(Some(gpu), number).ok_or_else(wrong)?;
        let memory = number(memory).ok_or_else(wrong)?;
        let variant = MigVariant::ALL.into_iter().find(|variant| variant.suffix() == end);
        let variant = variant.ok_or_else(|| match end.starts_with(['+', '-']) {
            true => MigProfileError::Suffix { text: text.to_owned(), end: end.to_owned() },
            false => wrong(),
        })?;
        match compute > gpu {
            true => Err(MigProfileError::Compute { text: text.to_owned(), compute, gpu }),
            false => Ok(Self { gpu, compute, memory, variant }),
        }
    }
}

impl TryFrom<String> for MigProfile {
    type Error = MigProfileError;

    fn try_from(text: String) -> Result<Self, MigProfileError> {
        text.parse()
    }
}

impl fmt::Display for MigProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = if self.is_whole() { String::new() } else { format!("{}c.", self.compute) };
        f.pad(&format!("{part}{}g.{}gb{}", self.gpu, self.memory, self.variant.suffix()))
    }
}

impl From<MigProfile> for String {
    fn from(profile: MigProfile) -> Self {
        profile.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_read_and_written_back() {
        for text in
            ["1g.5gb", "3g.40gb", "7g.141gb", "1g.10gb+me", "1g.24gb+me.all", "4g.96gb+gfx", "2g.48gb-me", "1c.3g.40gb"]
        {
            assert_eq!(text.parse::<MigProfile>().unwrap().to_string(), text);
        }
        let whole: MigProfile = "1c.1g.5gb+me".parse().unwrap();
        assert_eq!((whole.to_string().as_str(), whole.is_whole()), ("1g.5gb+me", true), "one way to write it");
        let part: MigProfile = "2c.3g.40gb".parse().unwrap();
        assert_eq!((part.slices(), part.compute(), part.memory_gb(), part.is_whole()), (3, 2, 40, false));
        assert_eq!(serde_json::from_str::<MigProfile>(r#""3g.40gb""#).unwrap().to_string(), "3g.40gb");
        assert_eq!(serde_json::to_string(&part).unwrap(), r#""2c.3g.40gb""#);
        assert!(serde_json::from_str::<MigProfile>("19").is_err(), "never by number");
    }

    fn fault(text: &str) -> String {
        text.parse::<MigProfile>().unwrap_err().to_string()
    }

    #[test]
    fn what_is_no_name_is_told_what_would_be() {
        let wrong = [
            "",
            "3g",
            "g.5gb",
            "3g.gb",
            "03g.40gb",
            "0g.5gb",
            "3g.040gb",
            "3G.40GB",
            " 3g.40gb",
            "3g.40gb ",
            "3g.40",
            "3g.40gib",
            "3g.40gbme",
            "+3g.40gb",
            "300g.40gb",
            "3g.99999gb",
            "c.3g.40gb",
            "1c3g.40gb",
            "1c.2c.3g.40gb",
            "3g.4\u{660}gb",
            "MIG 3g.40gb",
            "3g.40gb\n",
        ];
        for text in wrong {
            assert!(fault(text).contains("write it as the card does"), "{text:?}: {}", fault(text));
        }
        insta::assert_snapshot!(fault("3g"), @r#""3g" is not a MIG profile; write it as the card does: 3g.40gb, 1g.10gb+me, 1c.3g.40gb"#);
        insta::assert_snapshot!(fault("1g.10gb+ME"), @r#""1g.10gb+ME" ends in "+ME", which no MIG profile does; there are +me, +me.all, +gfx and -me, one at a time"#);
        insta::assert_snapshot!(fault("1g.10gb+me+gfx"), @r#""1g.10gb+me+gfx" ends in "+me+gfx", which no MIG profile does; there are +me, +me.all, +gfx and -me, one at a time"#);
        insta::assert_snapshot!(fault("4c.3g.40gb"), @r#""4c.3g.40gb" has 4 compute slices of an instance of 3; there can be no more than 3"#);
    }

    proptest! {
        #[test]
        fn nothing_else_is_read(text in "[0-9]{0,2}c?\\.?[0-9]{1,2}g\\.[0-9]{1,4}gb[-+a-z.]{0,7}") {
            if let Ok(profile) = text.parse::<MigProfile>() {
                let written = profile.to_string();
                prop_assert_eq!(written.parse::<MigProfile>(), Ok(profile));
                let long = format!("{}c.{written}", profile.compute());
                prop_assert!(text == written || text == long, "{} was read as {}", text, written);
            }
        }
    }
}
