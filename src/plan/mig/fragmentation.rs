//! How much of what is free cannot be had because of where things lie.

use std::fmt;

use super::Planner;
use super::why::{LayoutError, largeness};
use crate::model::gpu::mig::{Instance, MigProfile};

/// A profile of which fewer can be created than the free slices would serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Which.
    pub profile: MigProfile,
    /// So many can be created now.
    pub now: u32,
    /// So many could be, were what is there laid out anew.
    pub anew: u32,
}

/// What a layout cannot serve though memory and compute are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragmentation {
    /// Of the slices that could be handed out were the same instances laid out anew - profile by profile, summed up -
    /// the share that cannot be as they lie. 0: nothing is lost; 100: something would fit, and nothing does.
    pub percent: u32,
    /// Free compute slices.
    pub compute: u32,
    /// Free memory slices.
    pub memory: u32,
    /// The largest profile that fits now.
    pub largest: Option<MigProfile>,
    /// What is lost, the largest profile first.
    pub lost: Vec<Lost>,
}

impl Planner {
    /// How much this layout loses by where its instances lie.
    ///
    /// # Errors
    /// Where the layout is not lawful.
    pub fn fragmentation(&self, placed: &[Instance]) -> Result<Fragmentation, LayoutError> {
        let node = self.node(placed)?;
        let (compute, memory) = self.free(node);
        let there: Vec<MigProfile> = placed.iter().map(|instance| instance.profile).collect();
        let others = self.layouts_of(&there);
        let (mut now, mut anew) = (0, 0);
        let mut lost = Vec::new();
        for (at, told) in self.geometry.profiles().iter().enumerate() {
            let count = self.graph.room(node, at);
            let best = others.iter().map(|other| self.graph.room(*other, at)).max().unwrap_or(count);
            now += count * told.size;
            anew += best * told.size;
            if best > count {
                lost.push((largeness(told), Lost { profile: told.name, now: count, anew: best }));
            }
        }
        lost.sort_by_key(|(largeness, _)| std::cmp::Reverse(*largeness));
        // Rounded away from nothing: 0 says that nothing is lost.
        let percent = if anew == 0 { 0 } else { ((anew - now) * 100).div_ceil(anew) };
        let largest = self.largest(node).map(|told| told.name);
        Ok(Fragmentation { percent, compute, memory, largest, lost: lost.into_iter().map(|(_, lost)| lost).collect() })
    }
}

impl fmt::Display for Fragmentation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "free: {} memory and {} compute slices; ", self.memory, self.compute)?;
        match self.largest {
            Some(largest) => write!(f, "the largest that fits is {largest}")?,
            None => write!(f, "nothing fits")?,
        }
        if self.lost.is_empty() {
            return write!(f, "; nothing is lost by where things lie");
        }
        write!(f, "; fragmented by {} %, laid out anew it would have room for ", self.percent)?;
        for (at, Lost { profile, now, anew }) in self.lost.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            match now {
                0 => write!(f, "{comma}{anew}x {profile} (now none)")?,
                now => write!(f, "{comma}{anew}x {profile} (now {now})")?,
            }
        }
        Ok(())
    }
}
