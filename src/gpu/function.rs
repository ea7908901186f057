//! Functions read anew, and whether a change of their drivers may be begun. Blocks as long as the kernel does.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::BindError;
use super::files::Files;
use super::holders::{self, Nodes};
use super::sysfs::{Device, slot};
use crate::model::card::Health;
use crate::model::card::function::{DriverJob, FunctionState, Restore, is_driver_name};
use crate::model::card::pci::is_bridge;
use crate::model::gpu::PciAddress;

/// Reads one function; who has it open is not asked here.
pub(super) fn state(files: &Files, address: PciAddress, hangs: Option<&str>) -> FunctionState {
    let device = Device { hangs, ..Device::at_rest(files, address) };
    if !device.is_there() {
        return FunctionState::absent(address);
    }
    let answers = match device.health() {
        Health::Ok | Health::Asleep => Ok(()),
        Health::NoAnswer(why) | Health::Dropped(why) | Health::Unknown(why) => Err(why),
    };
    FunctionState {
        address,
        is_there: true,
        ids: device.ids(),
        class: device.class(),
        driver: device.driver(),
        driver_override: device.driver_override(),
        is_vfio: device.is_vfio(),
        answers,
        iommu_group: device.group_number(),
        vgpus: device.vgpu().map(|facts| facts.made).unwrap_or_default(),
        is_open: None,
        open_mdevs: Vec::new(),
    }
}

/// Fills in who has VFIO devices open.
pub(super) fn find_open(files: &Files, states: &mut [FunctionState]) {
    let mut nodes = Nodes::default();
    // Mediated devices are numbered behind the functions.
    let mut mdevs: Vec<(usize, Uuid)> = Vec::new();
    for (index, state) in states.iter().enumerate().filter(|(_, state)| state.is_there) {
        nodes.add_vfio(index, files, state.address, state.iommu_group);
        for uuid in state.vgpus.iter().filter_map(|made| made.uuid) {
            nodes.add_mdev(states.len() + mdevs.len(), files, uuid);
            mdevs.push((index, uuid));
        }
    }
    let first = states.len();
    let search = holders::look_for(files, &nodes);
    let unseen = search.incomplete.is_none().then_some(false);
    for (index, state) in states.iter_mut().enumerate().filter(|(_, state)| state.is_there) {
        let is_seen = search.found.iter().any(|(owner, _)| *owner == index);
        state.is_open = if is_seen { Some(true) } else { unseen };
    }
    for (owner, _) in &search.found {
        let mdev = owner.checked_sub(first).and_then(|number| mdevs.get(number));
        if let Some((index, uuid)) = mdev
            && let Some(state) = states.get_mut(*index)
            && !state.open_mdevs.contains(uuid)
        {
            state.open_mdevs.push(*uuid);
        }
    }
}

/// One function before its driver is changed.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub(super) address: PciAddress,
    is_gpu: bool,
    /// Its driver is to be taken from it, so nobody may have it open.
    is_taken: bool,
    group: Option<u32>,
}

/// Whether a function is as wished already, and if not whether it may be changed at all. `None`: nothing to do.
fn look(files: &Files, address: PciAddress, wish: Wish<'_>) -> Result<Option<Look>, BindError> {
    let refused = |why: &str| Err(BindError::Refused(format!("{address} {why}")));
    let device = Device::at_rest(files, address);
    if !device.is_there() {
        return refused("is not there");
    }
    if device.is_vf() && !device.is_part() {
        return refused("is a virtual function, not a whole card");
    }
    let whole_slot = || (0..8).map(|function| Device::at_rest(files, PciAddress { function, ..address }));
    if !whole_slot().any(|other| other.is_gpu() && (!other.is_vf() || other.is_part())) {
        return refused("is no function of a GPU");
    }
    if device.class().is_some_and(is_bridge) {
        return refused("is a bridge");
    }
    let driver = device.driver();
    let is_as_wished = match wish {
        Wish::Vfio { .. } => device.is_vfio(),
        Wish::Back(wanted) => {
            driver.as_deref() == wanted && device.driver_override().as_deref().is_none_or(|only| Some(only) == wanted)
        }
    };
    if is_as_wished {
        return Ok(None);
    }
    if let Wish::Vfio { is_display_given } = wish {
        if !is_display_given && whole_slot().any(|other| other.is_boot_display()) {
            return refused("is the boot display: the host's screen is on it");
        }
        if device.enabled_vfs() > 0 {
            return refused("has virtual functions that are switched on");
        }
    }
    let is_kept = matches!(wish, Wish::Back(wanted) if driver.as_deref() == wanted);
    let group = device.group_number();
    Ok(Some(Look { address, is_gpu: device.is_gpu(), is_taken: driver.is_some() && !is_kept, group }))
}

#[derive(Clone, Copy)]
enum Wish<'a> {
    Vfio {
        /// Also where the host's screen is on it.
        is_display_given: bool,
    },
    Back(Option<&'a str>),
}

/// Looks at all functions of a job that lie in one slot.
pub(super) fn look_at(
    files: &Files,
    job: &DriverJob,
    which: PciAddress,
    boot_displays: &BTreeSet<PciAddress>,
) -> Result<Vec<Look>, BindError> {
    let mut found = Vec::new();
    let is_display_given = boot_displays.iter().any(|given| slot(*given) == which);
    match job {
        DriverJob::Bind(addresses) => {
            for address in addresses.iter().filter(|address| slot(**address) == which) {
                found.extend(look(files, *address, Wish::Vfio { is_display_given })?);
            }
        }
        DriverJob::Restore(all) => {
            for one in all.iter().filter(|one| slot(one.address) == which) {
                if let Some(name) = one.driver.as_deref().filter(|name| !is_driver_name(name)) {
                    return Err(BindError::Refused(format!("{}: {name:?} is no name of a driver", one.address)));
                }
                found.extend(look(files, one.address, Wish::Back(one.driver.as_deref()))?);
            }
        }
    }
    Ok(found)
}

/// Refuses where somebody has a function open that is to be taken from its driver, or where nobody can know.
pub(super) fn refuse_if_held(files: &Files, looks: &[Look]) -> Result<(), BindError> {
    let mut nodes = Nodes::default();
    for (index, look) in looks.iter().enumerate().filter(|(_, look)| look.is_taken) {
        nodes.add_function(index, files, look.address, look.group);
    }
    let search = holders::look_for(files, &nodes);
    let mut held = BTreeSet::new();
    for (index, holder) in &search.found {
        let address = looks.get(*index).map(|look| look.address.to_string()).unwrap_or_default();
        held.insert(format!("{address} is in use: {}", holder.words()));
    }
    if !held.is_empty() {
        return Err(BindError::Refused(held.into_iter().collect::<Vec<_>>().join("; ")));
    }
    match search.incomplete {
        Some(why) => Err(BindError::Refused(format!("{why}, so it is not known who has the card open"))),
        None => Ok(()),
    }
}

/// What is left to do, in the right order.
///
/// A card is taken before its siblings and given back after them. What may fail or hang is the driver of the card (it
/// waits for its users); where it does, its audio and USB functions are still, or again, with the host.
pub(super) fn in_order(job: DriverJob, mut looks: Vec<Look>) -> DriverJob {
    looks.sort_by_key(|look| (!look.is_gpu, look.address));
    match job {
        DriverJob::Bind(_) => DriverJob::Bind(looks.into_iter().map(|look| look.address).collect()),
        DriverJob::Restore(all) => {
            let driver = |address| all.iter().find(|one| one.address == address).and_then(|one| one.driver.clone());
            let back = looks.into_iter().rev().map(|look| look.address);
            DriverJob::Restore(back.map(|address| Restore { address, driver: driver(address) }).collect())
        }
    }
}
