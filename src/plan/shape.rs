//! How a card comes to be divided as it should be: one job at a time, each judged by what is seen after the last.
//!
//! ```text
//!   to vGPUs   instances off -> (functions off -> MIG off -> reset where it is pending) -> functions on -> drivers come
//!   to MIG     (functions off -> MIG on -> reset where it is pending) -> functions on -> drivers come -> instances
//!   to whole   instances off -> functions off -> MIG off -> reset where it is pending
//! ```
//! MIG does not change while virtual functions are on, and a change of virtual functions takes all MIG instances with it:
//! so functions go before the mode and instances come last (NVIDIA's MIG and vGPU user guides). Nothing that is in use is
//! touched: then the answer is [`Next::Stop`].

use crate::model::card::shape::ShapeJob;
use crate::model::card::{Card, Health, HostVgpuMode, MadeInstance, MigFacts, NvmlFacts};
use crate::model::gpu::Vendor;
use crate::model::gpu::mig::Instance;
use crate::model::inventory::Shape;

/// What a card is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'s> {
    /// In one piece.
    Whole,
    /// Divided.
    Shape(&'s Shape),
}

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing: it is as it should be.
    Done,
    /// This.
    Do(ShapeJob),
    /// Something that comes by itself.
    Wait(String),
    /// It cannot be, as things are.
    Stop(String),
}

/// What comes next for a card with these virtual functions.
pub fn next(card: &Card, functions: &[&Card], target: Target<'_>) -> Next {
    if let Some(next) = not_ready(card, target) {
        return next;
    }
    let at = card.address;
    let enabled = card.sriov.as_ref().map_or(0, |sriov| sriov.enabled);
    let wants_mig = matches!(target, Target::Shape(Shape::Mig { .. }));
    if let Some(mig) = card.mig()
        && (mig.is_on != wants_mig || mig.is_on_pending != wants_mig)
    {
        return change_mig(card, functions, mig, wants_mig, enabled);
    }
    if matches!(target, Target::Whole) {
        return match enabled {
            0 => Next::Done,
            _ => functions_off(card, functions),
        };
    }
    let total = card.sriov.as_ref().map_or(0, |sriov| sriov.total);
    let mode = card.nvml.as_ref().and_then(|nvml| nvml.host_vgpu);
    if total > 0 && mode != Some(HostVgpuMode::NonSriov) {
        if enabled == 0 {
            return Next::Do(ShapeJob::Functions { card: at, count: None });
        }
        // Those that go to machines as they are need no driver of the host's.
        let late = functions.iter().find(|function| function.driver.is_none() && !function.is_part());
        if let Some(late) = late {
            return Next::Wait(format!("no driver has taken {} yet", late.address));
        }
        if (functions.len() as u64) < u64::from(enabled) {
            return Next::Wait(format!("{} of {enabled} virtual functions have come", functions.len()));
        }
    }
    let is_parent = |card: &Card| card.vgpu.is_some() || card.is_part();
    if !is_parent(card) && !functions.iter().any(|function| is_parent(function)) {
        return Next::Wait("its driver offers no types of vGPU yet (nvidia-vgpud)".to_owned());
    }
    match (target, card.mig()) {
        (Target::Shape(Shape::Mig { instances: Some(wanted), .. }), Some(mig)) => {
            next_instance(card, functions, mig, wanted)
        }
        _ => Next::Done,
    }
}

/// What keeps a card from being divided at all, as it is.
fn not_ready(card: &Card, target: Target<'_>) -> Option<Next> {
    match &card.health {
        Health::Ok | Health::Asleep => {}
        Health::NoAnswer(why) => return Some(Next::Stop(format!("it does not answer: {why}"))),
        // A look that failed, or a driver that is not ready yet.
        Health::Dropped(why) | Health::Unknown(why) => return Some(Next::Wait(why.clone())),
    }
    if card.is_vfio {
        let driver = card.driver.as_deref().unwrap_or("VFIO");
        return Some(Next::Stop(format!("it is with {driver}; only its own driver divides it")));
    }
    if card.driver.is_none() {
        return Some(Next::Wait("no driver has taken it yet".to_owned()));
    }
    let wants = match target {
        Target::Whole => return None,
        Target::Shape(shape) => shape,
    };
    let total = card.sriov.as_ref().map_or(0, |sriov| sriov.total);
    match (&card.nvml, wants) {
        (None, Shape::Mig { .. }) if card.vendor == Vendor::Nvidia => {
            Some(Next::Wait("NVML does not tell of it yet".to_owned()))
        }
        (None, Shape::Mig { .. }) => Some(Next::Stop("only NVIDIA's cards have MIG".to_owned())),
        // What NVML failed to tell is not what the card lacks.
        (Some(NvmlFacts { mig: None, faults, .. }), Shape::Mig { .. })
        | (Some(NvmlFacts { host_vgpu: None, faults, .. }), _)
            if !faults.is_empty() =>
        {
            Some(Next::Wait(format!("NVML does not say all of it: {}", faults.join("; "))))
        }
        (Some(nvml), Shape::Mig { .. }) if nvml.mig.is_none() => Some(Next::Stop("the card has no MIG".to_owned())),
        (Some(nvml), _) if nvml.host_vgpu.is_none() => Some(Next::Stop(NO_HOST_DRIVER.to_owned())),
        (None, Shape::Vgpu { .. }) if !can_be_divided(card) => {
            let vendor = card.vendor.word();
            Some(Next::Stop(format!(
                "this card of {vendor} has no virtual functions that go to machines, and makes no mediated devices. \
                 `gvm gpu mode GPU passthrough` gives all of it to one VM"
            )))
        }
        (None, Shape::Vgpu { .. }) if total == 0 && card.vgpu.is_none() => {
            Some(Next::Wait("its driver offers no vGPUs yet".to_owned()))
        }
        _ => None,
    }
}

/// True where it makes vGPUs, or may yet, or has virtual functions that go to machines as they are.
fn can_be_divided(card: &Card) -> bool {
    let has_functions = card.sriov.as_ref().is_some_and(|sriov| sriov.total > 0);
    match card.vendor {
        Vendor::Nvidia => true,
        Vendor::Amd | Vendor::Intel => has_functions || card.vgpu.is_some(),
        Vendor::Other => card.vgpu.is_some(),
    }
}

/// Said of a driver that makes no vGPUs.
pub const NO_HOST_DRIVER: &str = "its driver makes no vGPUs: NVIDIA's vGPU host driver is needed (nvidia-smi -q shows \
    Host VGPU Mode); a bare MIG instance is no PCI device, so no machine can have one. `gvm gpu mode GPU passthrough` gives \
    the whole card, which the machine itself can divide by MIG";

fn change_mig(card: &Card, functions: &[&Card], mig: &MigFacts, wants_mig: bool, enabled: u32) -> Next {
    let at = card.address;
    if !wants_mig && mig.is_on {
        let next = remove_one(card, functions, mig.instances.iter().collect());
        if let Some(next) = next {
            return next;
        }
    }
    if enabled > 0 {
        return functions_off(card, functions);
    }
    match mig.is_on_pending == wants_mig {
        true => Next::Do(ShapeJob::Reset { card: at }),
        false => Next::Do(ShapeJob::MigMode { card: at, is_on: wants_mig }),
    }
}

fn functions_off(card: &Card, functions: &[&Card]) -> Next {
    let carries = |function: &&&Card| function.vgpu.as_ref().is_some_and(|facts| !facts.made.is_empty());
    if let Some(busy) = functions.iter().find(carries) {
        return Next::Stop(format!("{} carries a vGPU", busy.address));
    }
    Next::Do(ShapeJob::Functions { card: card.address, count: Some(0) })
}

/// The next instance that is missing; what is idle and in its way goes first.
fn next_instance(card: &Card, functions: &[&Card], mig: &MigFacts, wanted: &[Instance]) -> Next {
    let at = card.address;
    let is_there = |instance: &Instance| mig.instances.iter().any(|made| made.instance == *instance);
    if let Some(bare) = mig.instances.iter().find(|made| made.compute_instances == 0 && wanted.contains(&made.instance))
    {
        return Next::Do(ShapeJob::MakeInstance { card: at, instance: bare.instance });
    }
    if wanted.iter().all(is_there) {
        return Next::Done;
    }
    // The layout is all that an administrator wants there: its compute slices may be taken by something beside it.
    let others = mig.instances.iter().filter(|made| !wanted.contains(&made.instance)).collect();
    if let Some(next) = remove_one(card, functions, others) {
        return next;
    }
    match wanted.iter().find(|instance| !is_there(instance)) {
        Some(instance) => Next::Do(ShapeJob::MakeInstance { card: at, instance: *instance }),
        None => Next::Done,
    }
}

/// The first of the instances that are to go; none of them where one is in use.
fn remove_one(card: &Card, functions: &[&Card], instances: Vec<&MadeInstance>) -> Option<Next> {
    if let Some(user) = instances.iter().find_map(|made| user_of(functions, card, made)) {
        return Some(Next::Stop(user));
    }
    let made = instances.first()?;
    Some(Next::Do(ShapeJob::RemoveInstance { card: card.address, instance: made.instance }))
}

/// Who has an instance, in words.
pub fn user_of(functions: &[&Card], card: &Card, made: &MadeInstance) -> Option<String> {
    let has_it = |function: &&Card| {
        let facts = function.vgpu.as_ref();
        facts.is_some_and(|facts| facts.made.iter().any(|vgpu| vgpu.gpu_instance == Some(made.id)))
    };
    let user = functions.iter().copied().chain([card]).find(has_it)?;
    Some(format!("the MIG instance {} is in use by a vGPU on {}", made.instance, user.address))
}

#[cfg(test)]
mod tests;
