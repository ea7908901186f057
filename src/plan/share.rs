//! How much of its card a partition is: of a MIG instance by its compute slices, of a vGPU that shares the card by time
//! by its memory.

use crate::model::gpu::{GpuDevice, GpuShare, Partition};
use crate::model::units::Mib;
use crate::plan::vgpu::VgpuPool;

/// The share of a partition that was picked from these.
pub fn share(partition: &Partition, devices: &[GpuDevice], pools: &[VgpuPool]) -> GpuShare {
    let Partition::Vgpu { gpu, name, slice, .. } = partition else {
        let device = devices.iter().find(|device| device.id == *partition.gpu());
        return GpuShare::whole(device.map_or(Mib(0), |device| device.memory));
    };
    let Some(pool) = pools.iter().find(|pool| pool.gpu == *gpu) else { return GpuShare::whole(Mib(0)) };
    let named = pool.memory_of(name);
    if let Some((mig, instance)) = pool.mig.as_ref().zip(*slice) {
        let geometry = mig.planner.geometry();
        if let Some(profile) = geometry.profile(instance.profile) {
            let (part, whole) = (profile.compute.into(), geometry.compute_slices().into());
            return GpuShare::of(part, whole, named.unwrap_or(profile.memory));
        }
    }
    let memory = named.unwrap_or_default();
    GpuShare::of(memory.0, pool.memory.unwrap_or_default().0, memory)
}
