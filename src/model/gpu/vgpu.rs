//! Names of vGPU types.
//!
//! ```text
//!   [vendor] CARD-[SLICES-]GB SERIES [VARIANT]         NVIDIA L40S-12Q, GRID A100D-1-10CME, M60-0Q,
//!                                                      NVIDIA RTX Pro 6000 Blackwell DC-1-24Q
//! ```
//! NVIDIA's names tell the card, the memory and, where a MIG instance is behind, its compute slices (vgpu-device-manager,
//! `pkg/types/vgpu_type.go`; spaces as drivers show them). Numbers of types differ from driver to driver and are never
//! kept. Other makers' names tell nothing; they are kept as they are.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::mig::{Geometry, MigProfile, MigVariant};
use crate::model::units::Mib;

/// Makers' words before the name.
const VENDORS: [&str; 2] = ["NVIDIA ", "GRID "];

/// Longer than any name.
const MAX_NAME: usize = 64;

/// What a vGPU is for: it decides what a guest's licence must cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum VgpuSeries {
    /// vApps: applications that are streamed.
    A,
    /// vPC: offices.
    B,
    /// Compute: CUDA without graphics.
    C,
    /// RTX virtual workstation: graphics and CUDA.
    Q,
}

/// To which card the next vGPU goes that several have room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VgpuPolicy {
    /// To the fullest card, so that others stay empty for other sizes and for machines that want all of one.
    #[default]
    Pack,
    /// To the emptiest card, so that neighbours are few.
    Spread,
}

impl VgpuSeries {
    const fn of(letter: char) -> Option<Self> {
        match letter {
            'A' => Some(Self::A),
            'B' => Some(Self::B),
            'C' => Some(Self::C),
            'Q' => Some(Self::Q),
            _ => None,
        }
    }
}

/// What a name says of a vGPU.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VgpuGrade {
    /// The card's short name, such as `L40S` or `RTX Pro 6000 Blackwell DC`.
    pub card: String,
    /// Compute slices of the MIG instance behind it; `None` where it shares the card by time.
    pub slices: Option<u8>,
    /// Its framebuffer as named; the guest sees somewhat less.
    pub memory: Mib,
    /// What it is for.
    pub series: VgpuSeries,
    /// Of the instance: `ME`, `NOME`, `MEALL` or `GFX`; empty for the ordinary one.
    pub variant: &'static str,
}

impl VgpuGrade {
    /// The profile of the MIG instance behind it, by name: `A100D-3-40C` stands on `3g.40gb`, `A100-1-5CME` on `1g.5gb+me`.
    pub fn profile(&self, geometry: &Geometry) -> Option<MigProfile> {
        let variant = match self.variant {
            "" => MigVariant::Plain,
            "ME" => MigVariant::Media,
            "MEALL" => MigVariant::AllMedia,
            "GFX" => MigVariant::Graphics,
            "NOME" => MigVariant::NoMedia,
            _ => return None,
        };
        let is_it = |name: &MigProfile| {
            Some(name.slices()) == self.slices
                && Mib(u64::from(name.memory_gb()) << 10) == self.memory
                && name.variant() == variant
        };
        geometry.profiles().iter().map(|profile| profile.name).find(is_it)
    }
}

/// A type of vGPU by its name, as the driver spells it but without the maker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VgpuTypeName(String);

impl VgpuTypeName {
    /// Takes a name as a driver shows it; `None` where there is none. Spaces that are too many go.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let name = VENDORS.iter().find_map(|vendor| plain.strip_prefix(vendor)).unwrap_or(&plain);
        let is_name = !name.is_empty() && name.len() <= MAX_NAME && !name.chars().any(char::is_control);
        is_name.then(|| Self(name.to_owned()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its last word: what people type. `DC-1-24Q` of `RTX Pro 6000 Blackwell DC-1-24Q`.
    pub fn short(&self) -> &str {
        self.0.rsplit(' ').next().unwrap_or(&self.0)
    }

    /// True where the word asks for it: its last word, or all of it with hyphens for spaces; letters large or small.
    pub fn is_called(&self, word: &str) -> bool {
        self.short().eq_ignore_ascii_case(word) || self.0.replace(' ', "-").eq_ignore_ascii_case(word)
    }

    /// What the name says; `None` where it is not of NVIDIA's grammar.
    pub fn grade(&self) -> Option<VgpuGrade> {
        let (head, tail) = self.0.rsplit_once('-')?;
        let digits = tail.len() - tail.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, rest) = tail.split_at_checked(digits)?;
        let is_number = number == "0" || (!number.is_empty() && !number.starts_with('0'));
        let gib: u64 = number.parse().ok().filter(|gib| is_number && *gib <= 4096)?;
        let series = VgpuSeries::of(rest.chars().next()?)?;
        let variant = *["", "ME", "NOME", "MEALL", "GFX"].iter().find(|known| rest.get(1..) == Some(**known))?;
        let (card, slices) = match head.rsplit_once('-') {
            Some((card, slices)) if is_slices(slices) => (card, slices.parse().ok()),
            _ => (head, None),
        };
        let is_whole = !card.is_empty() && (slices.is_some() || variant.is_empty());
        // 0 stands for half a GiB.
        let memory = if gib == 0 { Mib(512) } else { Mib(gib << 10) };
        is_whole.then(|| VgpuGrade { card: card.to_owned(), slices, memory, series, variant })
    }
}

fn is_slices(text: &str) -> bool {
    text.len() == 1 && text.bytes().all(|digit| (b'1'..=b'9').contains(&digit))
}

impl fmt::Display for VgpuTypeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> VgpuTypeName {
        VgpuTypeName::parse(text).unwrap()
    }

    #[test]
    fn names_tell_card_slices_memory_and_series() {
        let told = |text: &str| {
            let VgpuGrade { card, slices, memory, series, variant } = name(text).grade().unwrap();
            let slices = slices.map_or_else(String::new, |slices| format!(" {slices} slices"));
            format!("{card}:{slices} {memory} {series:?} {variant}").trim_end().to_owned()
        };
        for (text, want) in [
            ("NVIDIA L40S-12Q", "L40S: 12 GiB Q"),
            ("GRID A100D-1-10CME", "A100D: 1 slices 10 GiB C ME"),
            ("GRID M60-0Q", "M60: 512 MiB Q"),
            ("NVIDIA RTX Pro 6000 Blackwell DC-1-24Q", "RTX Pro 6000 Blackwell DC: 1 slices 24 GiB Q"),
            ("DC-4-96C", "DC: 4 slices 96 GiB C"),
            ("NVIDIA RTX6000-Ada-4Q", "RTX6000-Ada: 4 GiB Q"),
            ("NVIDIA H100-1-10CGFX", "H100: 1 slices 10 GiB C GFX"),
            ("A30-2-12CNOME", "A30: 2 slices 12 GiB C NOME"),
            ("H200X-7-141C", "H200X: 7 slices 141 GiB C"),
        ] {
            assert_eq!(told(text), want, "{text}");
        }
    }

    #[test]
    fn other_names_tell_nothing_and_are_kept() {
        for text in [
            "Dual port serial",
            "i915-GVTg_V5_4",
            "mtty-1",
            "L40S-12",
            "L40S-Q",
            "L40S-012Q",
            "L40S-12QX",
            "-4Q",
            // Only a MIG instance has variants.
            "L40S-12QME",
            "A100-99999C",
        ] {
            assert_eq!(name(text).grade(), None, "{text}");
            assert_eq!(name(text).as_str(), text);
        }
        assert_eq!(VgpuTypeName::parse(" \t\r\n"), None);
        assert_eq!(VgpuTypeName::parse("a\u{7}b"), None);
        assert_eq!(VgpuTypeName::parse(&"x".repeat(65)), None);
    }

    #[test]
    fn a_type_is_called_by_its_last_word_or_by_all_of_them() {
        let pro = name("  NVIDIA RTX Pro  6000 Blackwell DC-1-24Q\r");
        assert_eq!(pro.as_str(), "RTX Pro 6000 Blackwell DC-1-24Q");
        for (word, is_it) in [
            ("DC-1-24Q", true),
            ("dc-1-24q", true),
            ("RTX-Pro-6000-Blackwell-DC-1-24Q", true),
            ("1-24Q", false),
            ("24Q", false),
            ("", false),
        ] {
            assert_eq!(pro.is_called(word), is_it, "{word}");
        }
    }
}
