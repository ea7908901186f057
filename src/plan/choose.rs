//! Partitions for all requests of one machine: vGPUs first, whole cards for the rest.
//!
//! A vGPU is had by the name of its type, or by memory alone: `12GiB` gets the smallest vGPU that computes and has it,
//! where a card is divided into such, so that whole cards are left for those who want one. Where none can be had, it gets
//! a whole card as everywhere else.

use uuid::Uuid;

use crate::model::card::vgpu::{VgpuFramework, VgpuSite};
use crate::model::gpu::{GpuDevice, GpuRequest, Partition, WholeCards};
use crate::plan::place::{self, Held, NoVgpu, WhyKind, WhyNot};
use crate::plan::vgpu::{self, Policy, VgpuChoice, VgpuPool, VgpuWish};

/// Picks partitions for all requests of one machine, or says why not. Mediated devices are named after `fresh`, which was
/// never given before, so that no name is either.
///
/// # Errors
/// [`WhyNot`], with a reason for each card.
pub fn choose(
    requests: &[GpuRequest],
    devices: &[GpuDevice],
    held: &Held,
    pools: &[VgpuPool],
    policy: Policy,
    fresh: Uuid,
) -> Result<Vec<Partition>, WhyNot> {
    // What this machine has chosen already is not given back by others; what is out of use comes back into it.
    let is_others = pools.iter().flat_map(VgpuPool::taken).any(|taken| taken.is_ours)
        || pools.iter().any(|pool| pool.blocked.is_some());
    let mut pools = pools.to_vec();
    let (mut slices, mut whole) = (Vec::new(), Vec::new());
    for request in requests {
        let wish = match request {
            GpuRequest::Vgpu(word) if !pools.is_empty() => VgpuWish::Type(word.clone()),
            GpuRequest::Mig(word) if pools.iter().any(|pool| pool.mig.is_some()) => match word.parse() {
                Ok(profile) => VgpuWish::Profile(profile),
                Err(error) => return Err(WhyNot::of_request(requests, WhyKind::BadRequest(error.to_string()))),
            },
            GpuRequest::Whole(WholeCards { count: 1, model: None, memory: Some(size), closeness: None }) => {
                VgpuWish::Memory(*size)
            }
            _ => {
                whole.push(request.clone());
                continue;
            }
        };
        match vgpu::pick(&pools, &wish, policy) {
            Ok(choice) => {
                slices.extend(partition(&pools, &choice, devices, name(fresh, slices.len())));
                vgpu::take(&mut pools, &choice);
            }
            Err(why) if matches!(request, GpuRequest::Vgpu(_) | GpuRequest::Mig(_)) => {
                let kind =
                    WhyKind::NoVgpu(Box::new(NoVgpu { why: why.to_string(), may_come: why.may_come && is_others }));
                return Err(WhyNot { now: why.now, ..WhyNot::of_request(requests, kind) });
            }
            Err(_) => whole.push(request.clone()),
        }
    }
    let mut all = place::pick(&whole, devices, held)?;
    all.extend(slices);
    Ok(all)
}

/// The name of the mediated device of this number of a machine.
fn name(fresh: Uuid, number: usize) -> Uuid {
    Uuid::new_v5(&fresh, &number.to_le_bytes())
}

fn partition(pools: &[VgpuPool], choice: &VgpuChoice, devices: &[GpuDevice], name: Uuid) -> Option<Partition> {
    let pool = pools.iter().find(|pool| pool.gpu == choice.gpu)?;
    let parent = pool.parents.iter().find(|parent| parent.address == choice.parent)?;
    let node = devices.iter().find(|device| device.id == pool.gpu).and_then(|device| device.numa_node);
    Some(Partition::Vgpu {
        gpu: pool.gpu.clone(),
        bdf: pool.bdf,
        site: VgpuSite { parent: choice.parent, uuid: (parent.framework == VgpuFramework::Mdev).then_some(name) },
        name: choice.name.clone(),
        numa_node: node,
        slice: choice.slice,
    })
}

#[cfg(test)]
mod tests;
