//! Picks GPUs for a request. Whole cards only, until the other modes come.

use std::collections::HashSet;

use crate::model::gpu::{GpuDevice, GpuId, GpuMode, GpuRequest, Partition};

/// Why a request cannot be placed, and what would have worked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhyNot {
    /// This host has no such card at all.
    #[error("no GPU here fits {wanted}: {have}")]
    NoSuchCard {
        /// The request.
        wanted: String,
        /// What there is.
        have: String,
    },
    /// All fitting cards are held.
    #[error("all {fitting} GPUs that fit {wanted} are in use")]
    AllHeld {
        /// The request.
        wanted: String,
        /// How many would fit.
        fitting: usize,
    },
    /// A mode that this gvm cannot hand out yet.
    #[error("{wanted}: this gvm hands out whole cards only; ask for a count, a model or a size")]
    ModeNotOffered {
        /// The request.
        wanted: String,
    },
}

/// Picks partitions for all requests of one machine, or says why not.
///
/// # Errors
/// The first request that cannot be met.
pub fn pick(requests: &[GpuRequest], cards: &[GpuDevice], held: &HashSet<GpuId>) -> Result<Vec<Partition>, WhyNot> {
    let mut taken = held.clone();
    let mut picked = Vec::new();
    for request in requests {
        let count = match request {
            GpuRequest::Count(count) => *count,
            _ => 1,
        };
        for _ in 0..count {
            let card = pick_whole(request, cards, &taken)?;
            taken.insert(card.id.clone());
            picked.push(Partition::Whole {
                gpu: card.id.clone(),
                bdf: card.bdf,
                siblings: card.siblings.clone(),
                numa_node: card.numa_node,
            });
        }
    }
    Ok(picked)
}

fn pick_whole<'c>(
    request: &GpuRequest,
    cards: &'c [GpuDevice],
    taken: &HashSet<GpuId>,
) -> Result<&'c GpuDevice, WhyNot> {
    let wanted = request.to_string();
    let fits = |card: &GpuDevice| match request {
        GpuRequest::Count(_) => true,
        GpuRequest::Model(word) => card.model.to_ascii_lowercase().contains(word),
        GpuRequest::Memory(size) => card.memory >= *size,
        GpuRequest::Mig(_) | GpuRequest::Vgpu(_) => false,
    };
    if matches!(request, GpuRequest::Mig(_) | GpuRequest::Vgpu(_)) {
        return Err(WhyNot::ModeNotOffered { wanted });
    }
    let usable = |card: &&GpuDevice| card.mode == GpuMode::Passthrough && card.blocked.is_none() && fits(card);
    let fitting: Vec<&GpuDevice> = cards.iter().filter(usable).collect();
    if fitting.is_empty() {
        return Err(WhyNot::NoSuchCard { wanted, have: describe(cards) });
    }
    // The smallest card that fits leaves the larger ones to those who need them; ties by address.
    let free = fitting.iter().filter(|card| !taken.contains(&card.id)).min_by_key(|card| (card.memory, card.bdf));
    free.copied().ok_or(WhyNot::AllHeld { wanted, fitting: fitting.len() })
}

fn describe(cards: &[GpuDevice]) -> String {
    if cards.is_empty() {
        return "this host has no GPU that gvm manages".to_owned();
    }
    let describe = |card: &GpuDevice| match &card.blocked {
        Some(why) => format!("{} at {} is blocked ({why})", card.model, card.bdf),
        None => format!("{} with {} at {}", card.model, card.memory, card.bdf),
    };
    cards.iter().map(describe).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::units::Mib;

    fn card(bdf: &str, model: &str, gib: u64) -> GpuDevice {
        GpuDevice {
            id: GpuId(format!("GPU-{bdf}")),
            bdf: bdf.parse().unwrap(),
            model: model.to_owned(),
            memory: Mib(gib << 10),
            mode: GpuMode::Passthrough,
            numa_node: None,
            siblings: Vec::new(),
            blocked: None,
        }
    }

    fn check(request: &str, held: &[&str]) -> Result<Vec<String>, String> {
        let cards = [card("0000:41:00.0", "NVIDIA A100", 80), card("0000:c1:00.0", "NVIDIA T4", 16)];
        let held = held.iter().map(|bdf| GpuId(format!("GPU-{bdf}"))).collect();
        let picked = pick(&[request.parse().unwrap()], &cards, &held).map_err(|e| e.to_string())?;
        Ok(picked.iter().map(Partition::key).collect())
    }

    #[test]
    fn the_smallest_fitting_card_is_taken() {
        assert_eq!(check("1", &[]).unwrap(), ["GPU-0000:c1:00.0/whole"]);
        assert_eq!(check("20GiB", &[]).unwrap(), ["GPU-0000:41:00.0/whole"]);
        assert_eq!(check("a100", &[]).unwrap(), ["GPU-0000:41:00.0/whole"]);
        assert_eq!(check("2", &[]).unwrap().len(), 2);
    }

    #[test]
    fn a_refusal_says_what_there_is() {
        insta::assert_snapshot!(check("h100", &[]).unwrap_err(), @"no GPU here fits h100: NVIDIA A100 with 80 GiB at 0000:41:00.0; NVIDIA T4 with 16 GiB at 0000:c1:00.0");
        insta::assert_snapshot!(check("a100", &["0000:41:00.0"]).unwrap_err(), @"all 1 GPUs that fit a100 are in use");
        insta::assert_snapshot!(check("3", &[]).unwrap_err(), @"all 2 GPUs that fit 3 are in use");
        insta::assert_snapshot!(check("mig:3g.40gb", &[]).unwrap_err(), @"mig:3g.40gb: this gvm hands out whole cards only; ask for a count, a model or a size");
    }
}
