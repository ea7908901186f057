//! Why a request cannot be met: values for programs, words for people.

use std::fmt;

use serde::Serialize;

use crate::model::gpu::{GpuId, GpuMode, GpuRequest, GroupMember, LeaseState, PciAddress};
use crate::model::units::Mib;

/// Why a request cannot be placed, card by card, and what would have worked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
pub struct WhyNot {
    /// The request, as written.
    pub wanted: String,
    /// The reason in short.
    #[serde(flatten)]
    pub kind: WhyKind,
    /// How many cards fit each part of the request.
    pub terms: Vec<TermCount>,
    /// Each card with its reason, by address; empty where the request itself is at fault.
    pub cards: Vec<CardWhy>,
    /// What would be granted now: each by itself.
    pub now: Vec<GpuRequest>,
}

/// The reason in short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "reason", content = "detail")]
pub enum WhyKind {
    /// The requests cannot stand together.
    BadRequest(String),
    /// A MIG slice.
    MigNotOffered,
    /// A vGPU, on a host without cards that are divided into some.
    VgpuNotOffered,
    /// A vGPU that no card can make now.
    NoVgpu(Box<NoVgpu>),
    /// Nothing here is gvm's.
    NoGpus,
    /// No card has that name.
    UnknownModel(Box<UnknownModel>),
    /// No card here fits, whatever is given back.
    NoneFits,
    /// Enough cards here fit, and some of them are out of use: held by something else, withheld, sick.
    OutOfUse,
    /// Fewer than that exist.
    TooFew,
    /// As many exist, and not as close.
    Apart,
    /// As many exist, and not in groups of that size.
    Grouped,
    /// It will fit when others give back.
    NotFree,
}

/// Why there is no vGPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NoVgpu {
    /// Each card with its reason.
    pub why: String,
    /// True where it can be had when others have given theirs back.
    pub may_come: bool,
}

/// A name that no card has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnknownModel {
    /// As asked for.
    pub word: String,
    /// What may have been meant.
    pub nearest: Option<String>,
    /// Words for what there is.
    pub models: Vec<String>,
}

/// How many cards fit a part of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TermCount {
    /// The part.
    pub request: GpuRequest,
    /// Cards that fit and are free.
    pub free: u32,
    /// Cards that fit and may be handed out, held ones included.
    pub exist: u32,
}

/// Why one card is not it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CardWhy {
    /// Identity.
    pub id: GpuId,
    /// Address.
    pub bdf: PciAddress,
    /// Marketing name.
    pub model: String,
    /// Memory; zero where not known.
    pub memory: Mib,
    /// The first reason that counts.
    #[serde(flatten)]
    pub reason: Reason,
}

/// What speaks against a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "reason", content = "detail")]
pub enum Reason {
    /// It has another name.
    Model,
    /// Too little memory.
    Memory {
        /// What was asked for.
        wanted: Mib,
    },
    /// How much memory it has is not known.
    MemoryUnknown,
    /// Not gvm's.
    Foreign {
        /// Whose, where known.
        why: Option<String>,
    },
    /// Blocked, as the inventory says.
    Blocked {
        /// Why.
        why: String,
    },
    /// Its group holds a device that cannot go along.
    GroupBlocked {
        /// The group.
        group: Option<u32>,
        /// The device.
        by: GroupMember,
    },
    /// It goes only together with a card that has a reason.
    Mate {
        /// The other card.
        with: PciAddress,
        /// That card's reason.
        why: Box<Reason>,
    },
    /// To be reset or repaired.
    Draining {
        /// Why.
        why: String,
    },
    /// Out of service.
    Quarantined {
        /// Why.
        why: String,
    },
    /// The kernel does not let go of it.
    Stuck {
        /// What hangs.
        why: String,
    },
    /// On an NVSwitch board.
    Fabric {
        /// What is missing there, where it is known.
        why: Option<String>,
    },
    /// In another mode.
    Mode {
        /// Which.
        mode: GpuMode,
    },
    /// Held.
    Held {
        /// Where the lease stands.
        state: LeaseState,
        /// The machine, where it may be seen.
        vm: Option<String>,
    },
    /// The NUMA node, that all should be on, is not known.
    NodeUnknown,
    /// The switch, that all should be below, is not known.
    SwitchUnknown,
    /// Free; goes only together with others, more than were asked for.
    FreeTogether {
        /// The others.
        with: Vec<PciAddress>,
    },
    /// Free; but there are not enough.
    Free,
}

impl WhyNot {
    /// A fault of the request itself.
    pub(in crate::plan) fn of_request(requests: &[GpuRequest], kind: WhyKind) -> Self {
        Self { wanted: written(requests), kind, terms: Vec::new(), cards: Vec::new(), now: Vec::new() }
    }

    /// True where the same request will be met once others give back what they hold.
    pub fn is_for_now(&self) -> bool {
        match &self.kind {
            WhyKind::NotFree => true,
            WhyKind::NoVgpu(why) => why.may_come,
            _ => false,
        }
    }

    /// True where it may be met another time: it is not the request that is at fault.
    pub fn may_pass(&self) -> bool {
        self.is_for_now() || matches!(self.kind, WhyKind::OutOfUse)
    }

    /// The first line, which stands alone.
    pub fn headline(&self) -> String {
        let wanted = &self.wanted;
        match &self.kind {
            WhyKind::BadRequest(why) => why.clone(),
            WhyKind::MigNotOffered => format!(
                "{wanted}: no card of this host is divided by MIG so that machines can have a part of it. A bare MIG instance is \
                 no PCI device; it goes to a machine as a vGPU, for which NVIDIA's vGPU host driver is needed \
                 (`gvm gpu mode GPU mig`). Ask for a whole card, which can be divided inside of the machine, or for what \
                 `gvm gpu offers` says there is"
            ),
            WhyKind::VgpuNotOffered => format!(
                "{wanted}: no card of this host is divided into vGPUs. Ask for a count, a model or a size; `gvm gpu offers` \
                 says what there is"
            ),
            WhyKind::NoVgpu(why) => why.why.clone(),
            WhyKind::NoGpus => format!("no GPU here fits {wanted}: this host has no GPU that gvm manages"),
            WhyKind::UnknownModel(unknown) => {
                let UnknownModel { word, nearest, models } = unknown.as_ref();
                let hint = nearest.as_ref().map(|near| format!("; did you mean {near}?")).unwrap_or_default();
                format!("no GPU here is called {word} (there are: {}){hint}", models.join(", "))
            }
            WhyKind::NoneFits => format!("no GPU here fits {wanted}"),
            WhyKind::OutOfUse => format!("{wanted} cannot be had now: GPUs here that fit are out of use"),
            WhyKind::TooFew => format!("{wanted} is more than this host has: {}", self.counts()),
            WhyKind::Apart => format!("{wanted}: no GPUs here are that close to each other; {}", self.counts()),
            WhyKind::Grouped => {
                format!("{wanted}: the GPUs here that fit go only together with others of their IOMMU group")
            }
            WhyKind::NotFree => format!("{wanted} is not free now: {}", self.counts()),
        }
    }

    /// `2 of 4 that fit are free`, for each part where there are several.
    fn counts(&self) -> String {
        let count = |term: &TermCount| {
            let name = if self.terms.len() > 1 { format!(" {}", term.request) } else { String::new() };
            let verb = if term.free == 1 { "is" } else { "are" };
            format!("{} of {} that fit{name} {verb} free", term.free, term.exist)
        };
        self.terms.iter().map(count).collect::<Vec<_>>().join(", ")
    }

    /// What would have worked, as one line; empty where nothing would.
    pub fn advice(&self) -> String {
        let now: Vec<String> = self.now.iter().map(ToString::to_string).collect();
        match (now.is_empty(), self.is_for_now()) {
            (true, true) => format!("{} will do once others have given back", self.wanted),
            (true, false) => String::new(),
            (false, true) => {
                format!("{} would do now; {} once others have given back", now.join(" or "), self.wanted)
            }
            (false, false) => format!("{} would do now", now.join(" or ")),
        }
    }
}

/// Requests as on the command line.
pub(super) fn written(requests: &[GpuRequest]) -> String {
    requests.iter().map(ToString::to_string).collect::<Vec<_>>().join(" + ")
}

impl fmt::Display for WhyNot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.headline())?;
        // Semicolons, as some show a message on one line.
        for card in &self.cards {
            write!(f, ";\n  {card}")?;
        }
        match self.advice() {
            advice if advice.is_empty() => Ok(()),
            advice => write!(f, ";\n{advice}"),
        }
    }
}

impl fmt::Display for CardWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.bdf, self.model)?;
        if self.memory.0 > 0 {
            write!(f, ", {}", self.memory)?;
        }
        write!(f, ": {}", self.reason)?;
        match self.reason {
            Reason::Mode { .. } => {
                write!(f, "; an administrator changes it by `gvm gpu mode {} passthrough`", self.bdf)
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with = |what: &str, why: &Option<String>| match why {
            Some(why) => format!("{what}: {why}"),
            None => what.to_owned(),
        };
        match self {
            Self::Model => f.write_str("another model"),
            Self::Memory { wanted } => write!(f, "less memory than {wanted}"),
            Self::MemoryUnknown => f.write_str("how much memory it has is not known"),
            Self::Foreign { why } => f.write_str(&with("not managed by gvm", why)),
            Self::Blocked { why } => write!(f, "blocked: {why}"),
            Self::GroupBlocked { group, by } => {
                let group = group.map(|group| format!(" {group}")).unwrap_or_default();
                write!(f, "its IOMMU group{group} cannot go along: {}", by.words())
            }
            Self::Mate { with, why } => write!(f, "goes only together with {with}, which is not to be had ({why})"),
            Self::Draining { why } => write!(f, "to be reset or repaired first: {why}"),
            Self::Quarantined { why } => write!(f, "kept out of use: {why}"),
            Self::Stuck { why } => write!(f, "stuck in the kernel until the host restarts: {why}"),
            Self::Fabric { why: Some(why) } => {
                write!(f, "on an NVSwitch board, where CUDA in a machine needs a partition of the fabric: {why}")
            }
            Self::Fabric { why: None } => f.write_str(
                "on an NVSwitch board: CUDA in a machine needs a partition of the fabric, which this gvm cannot activate yet",
            ),
            Self::Mode { mode } => write!(f, "in {} mode", mode.word()),
            Self::Held { state, vm } => {
                let vm = vm.as_ref().map(|vm| format!(" VM {vm}")).unwrap_or_default();
                match (state, vm.is_empty()) {
                    (LeaseState::Sanitising, true) => f.write_str("being cleaned"),
                    (LeaseState::Sanitising, false) => write!(f, "being cleaned after{vm}"),
                    (_, true) => f.write_str("in use"),
                    (_, false) => write!(f, "in use by{vm}"),
                }
            }
            Self::NodeUnknown => f.write_str("its NUMA node is not known"),
            Self::SwitchUnknown => f.write_str("its PCI Express switch is not known"),
            Self::FreeTogether { with } => {
                let with: Vec<String> = with.iter().map(ToString::to_string).collect();
                write!(f, "free, goes only together with {}", with.join(", "))
            }
            Self::Free => f.write_str("free"),
        }
    }
}
